"""Does a file system keep what leasing and the swap rely on? Asked by trying, not by its name.

One process probes what a single host can see (`probe_folder`). Two of them, on two hosts, find each
other through files in the folder, play a script, and see the rest (`lead`, `follow`): whether of
two hosts one wins, and how late each sees what the other did.
"""

from leconvert.fscheck.pair import Peer, follow, lead
from leconvert.fscheck.probes import probe_folder
from leconvert.fscheck.promises import CheckReport, Finding, Fitness, Need, Promise, fitness_of
from leconvert.workdir.mounts import Mount, mount_of

__all__ = [
    "CheckReport",
    "Finding",
    "Fitness",
    "Mount",
    "Need",
    "Peer",
    "Promise",
    "fitness_of",
    "follow",
    "lead",
    "mount_of",
    "probe_folder",
]
