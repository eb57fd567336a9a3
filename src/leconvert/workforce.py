"""How many workers a machine feeds, for one plan: from cores, free memory and what each needs."""

from __future__ import annotations

from leconvert.machine import Machine
from leconvert.model import MEBIBYTE, camera_of
from leconvert.workdir.manifest import Manifest
from leconvert.workdir.opened import OpenedRun

__all__ = ["auto_workers", "handling_seconds", "moving_seconds"]

# What a source file costs besides moving its bytes, and how fast these move.
_SECONDS_A_FILE = 0.0002
_SECONDS_A_CLIP_IS_DECODED = 0.2
_BYTES_A_SECOND = 1e9

_MOST_MOVERS = 4
_MOST_HANDLERS = 16
_SHARE_OF_FREE_MEMORY = 0.5
# What a worker takes besides what it shares with others: the interpreter, NumPy, Arrow and buffers
# (87 to 111 MiB in all for every dataset of docs/benchmarks.md), with room for a long episode.
_BYTES_A_WORKER = 256 * MEBIBYTE


def auto_workers(run: OpenedRun, machine: Machine | None = None) -> int:
    """Return how many workers this machine feeds well, at least 1.

    As many as it has cores: at most 16 where handling files takes the time (more were not
    measured), at most 4 where moving bytes does, as more wait for the disk. And no more than half
    of the free memory holds at 256 MiB each; the other half is the page cache's, through
    which all they read and write goes.

    Args:
        run: The run.
        machine: Where they are to work; None for this one.
    """
    machine = machine or Machine()
    handles = handling_seconds(run.manifest) > moving_seconds(run.manifest)
    feasible = min(machine.cores(), _MOST_HANDLERS if handles else _MOST_MOVERS)
    if feasible == 1:
        return 1
    fitting = int(machine.free_memory() * _SHARE_OF_FREE_MEMORY) // _BYTES_A_WORKER
    return max(1, min(feasible, fitting))


def handling_seconds(manifest: Manifest) -> float:
    """Return a guess at what opening, parsing, checking and naming files takes on one core."""
    seconds = manifest.num_episodes * len(manifest.streams) * _SECONDS_A_FILE
    cameras = {camera_of(layout.stream) for layout in manifest.streams}
    decoded = cameras.intersection(manifest.repairs.computed_stats)
    return seconds + manifest.num_episodes * len(decoded) * _SECONDS_A_CLIP_IS_DECODED


def moving_seconds(manifest: Manifest) -> float:
    """Return a guess at what moving the bytes takes."""
    return manifest.source_bytes / _BYTES_A_SECOND
