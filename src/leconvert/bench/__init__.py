"""Benchmarks, beside the library that they measure: loaders, and resampling."""
