"""Bytes from elsewhere: listings, ranges, whole files, retries, space and a cache.

The loader and ``remote`` stand above it. Nothing else in leconvert reads from the Hub or from URLs.
"""
