"""Several hosts with kernels of their own around one NFS server, on one machine.

A host is a User-Mode-Linux kernel: a process of this machine, with a page cache, a clock, a boot id
and an NFS client of its own. So a power loss is a SIGKILL, a frozen host is a SIGSTOP, and neither
can be told from the real thing by the other hosts.
"""

from nfs_lab.guest import Guest, GuestCommand
from nfs_lab.lab import LabOptions, NfsLab

__all__ = [
    "Guest",
    "GuestCommand",
    "LabOptions",
    "NfsLab",
]
