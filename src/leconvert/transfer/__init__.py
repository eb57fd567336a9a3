"""Downloads: listings, ranges, whole files, retries, space and a cache.

`store.Store` is the interface, which `hub.HubStore` and `urls.UrlStore` implement. The loader and
``remote`` are above this room. No other code in leconvert reads from the Hub or URLs.

There are two ways to limit space, on purpose. Workers reserve room in ``scratch`` before they
fetch, so its limit holds at every moment. The loader's ``byte_cache`` evicts afterwards, so no
reader waits for room.
"""
