"""What measures loaders: throughput, limits, and whether each sample is the right one."""
