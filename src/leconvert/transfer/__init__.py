"""Bytes from elsewhere: listings, ranges, whole files, retries, space and a cache.

`store.Store` is the one interface, `hub.HubStore` and `urls.UrlStore` are what implements it. The
loader and ``remote`` stand above this room. Nothing else in leconvert reads from the Hub or URLs.

Space is kept in two ways on purpose. Workers reserve room in ``scratch`` before they fetch, so that
its limit holds at every moment. The loader's ``byte_cache`` evicts afterwards, so that no reader
waits for room.
"""
