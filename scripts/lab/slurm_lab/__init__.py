"""A SLURM cluster of some logical nodes on one machine: real daemons, private to one folder."""

from slurm_lab.cluster import JobEnd, SlurmCluster

__all__ = ["JobEnd", "SlurmCluster"]
