"""The benchmark of `leconvert.loading.resample`, against NumPy."""
