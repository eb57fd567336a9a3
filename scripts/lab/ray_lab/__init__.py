"""A Ray cluster of some nodes on one machine, each in a network namespace of its own."""

from ray_lab.cluster import RayCluster

__all__ = ["RayCluster"]
