"""How many workers a machine feeds, for one plan: from cores, free memory and what each needs."""

from __future__ import annotations

import numpy as np

from leconvert.machine import Machine
from leconvert.model import DATA_STREAM, MEBIBYTE, camera_of
from leconvert.tables import deserialize_schema
from leconvert.workdir.manifest import Manifest
from leconvert.workdir.opened import OpenedRun

__all__ = ["auto_workers", "handling_seconds", "moving_seconds", "worker_bytes"]

# What a source file costs besides moving its bytes, and how fast these move.
_SECONDS_A_FILE = 0.0002
_SECONDS_A_CLIP_IS_DECODED = 0.2
_BYTES_A_SECOND = 1e9

_MOST_MOVERS = 4
_MOST_HANDLERS = 16
_SHARE_OF_FREE_MEMORY = 0.5
# What a worker was seen to need: scripts/bench_worker_memory.py, rounded up (docs/engines.md).
_BYTES_OF_ANY_WORKER = 128 * MEBIBYTE
_TIMES_THE_EPISODE = 6
_BYTES_A_COLUMN_CHUNK = 640
_BYTES_A_VIDEO_FRAME = 64
_BYTES_A_BATCH = 512
_BYTES_OF_STATISTICS = 64 * MEBIBYTE


def auto_workers(run: OpenedRun, machine: Machine | None = None) -> int:
    """Return how many workers this machine feeds well, at least 1.

    As many as it has cores: at most 16 where handling files takes the time (more were not
    measured), at most 4 where moving bytes does, as more wait for the disk. And no more than half
    of the free memory holds at `worker_bytes` each; the other half is the page cache's, through
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
    fitting = int(machine.free_memory() * _SHARE_OF_FREE_MEMORY) // worker_bytes(run)
    return max(1, min(feasible, fitting))


def worker_bytes(run: OpenedRun) -> int:
    """Return how much memory a worker needs at most for this plan.

    The sum of

    - 128 MiB: the interpreter, NumPy, Arrow, PyAV, buffers;
    - 6 times the largest episode's table (in its file, or uncompressed): a worker that has to
      encode rows anew holds it as read, as rows, and as written; copying pages needs next to
      nothing, but what is copied only its file tells;
    - 640 bytes a column and episode of the fullest data file: its footer;
    - 64 bytes a frame of the fullest video file: its sample tables;
    - 512 bytes a batch: a view of which are free;
    - 64 MiB where statistics are computed: pictures that are decoded.

    The factors were measured by ``scripts/bench_worker_memory.py`` and rounded up.

    Args:
        run: The run.
    """
    manifest = run.manifest
    data, _ = run.scan.stream(DATA_STREAM)
    _, length = run.scan.lengths()
    layouts = {layout.stream: layout for layout in manifest.streams}
    columns = len(deserialize_schema(manifest.data_schema))
    fullest_table = int(np.diff(layouts.pop(DATA_STREAM).starts).max())
    fullest_video = max(
        (int(np.add.reduceat(length, layout.starts[:-1]).max()) for layout in layouts.values()),
        default=0,
    )
    return (
        _BYTES_OF_ANY_WORKER
        + _TIMES_THE_EPISODE * int(max(data.size_bytes.max(), data.roll_bytes.max()))
        + _BYTES_A_COLUMN_CHUNK * columns * fullest_table
        + _BYTES_A_VIDEO_FRAME * fullest_video
        + _BYTES_A_BATCH * manifest.num_batches
        + (_BYTES_OF_STATISTICS if manifest.repairs.computed_stats else 0)
    )


def handling_seconds(manifest: Manifest) -> float:
    """Return a guess at what opening, parsing, checking and naming files takes on one core."""
    seconds = manifest.num_episodes * len(manifest.streams) * _SECONDS_A_FILE
    cameras = {camera_of(layout.stream) for layout in manifest.streams}
    decoded = cameras.intersection(manifest.repairs.computed_stats)
    return seconds + manifest.num_episodes * len(decoded) * _SECONDS_A_CLIP_IS_DECODED


def moving_seconds(manifest: Manifest) -> float:
    """Return a guess at what moving the bytes takes."""
    return manifest.source_bytes / _BYTES_A_SECOND
