"""Trajectories of many rates brought to one, and what measures how fast that goes.

`leconvert.probe.resample` is the public function; ``docs/resampling.md`` describes both.
"""
