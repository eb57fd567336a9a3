"""LeRobot datasets as they stand on disk: `v2` and `v3` each read and write their own format.

Whoever scans, checks, compares, loads or reports on a dataset reads it through these rooms.
"""
