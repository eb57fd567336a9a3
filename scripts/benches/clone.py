"""Time a conversion where the file system shares extents, against a copy that moves every byte.

    python scripts/bench.py clone --repeats 5
    python scripts/bench.py clone --file-system btrfs --episodes 60 --repeats 2

Makes an image in the scratch folder, formats and mounts it (root only), and generates the profile
*big* there. ``leconvert convert`` with its defaults and ``cp -r --reflink=never`` take turns, each
a process of its own, each with a ``sync -f`` of the mounted file system in its time.

Untimed, before each: the previous result is removed, the file system is left to settle, and the
source is read once, so that both find as much of it in the page cache as fits. The image is
allocated beforehand and nothing is ever discarded in it, so that no time is spent on memory for
the image itself. New space is what ``statvfs`` counts, from before a command to after its sync.

Raw rows go to ``bench_logs/<date>-clone-<file system>.jsonl``, as `benches.convert` writes them;
the header says how the bytes of one more, untimed conversion moved. The mount and the loop device
are released on every way out.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benches import convert, kit
from benches.convert import COPY, Runner

PROFILE = "big"
CONVERT = "convert"
RUNNERS = (Runner(CONVERT), Runner(COPY))

# Neither formatting nor mounting may give the image's memory back.
MAKERS = {
    "xfs": ["mkfs.xfs", "-q", "-K", "-m", "reflink=1"],
    "btrfs": ["mkfs.btrfs", "-q", "-K"],
}
MOUNT_OPTIONS = {"xfs": "nodiscard", "btrfs": "nodiscard"}
# Tables, MP4 indices and rounding on top of the clips; then the file system's own log and trees.
DATASET_OVERHEAD = 1.04
FILE_SYSTEM_BYTES = 600_000_000
# The page cache of the mounted file system comes on top of an image in memory.
MEMORY_LEFT_BYTES = 4_000_000_000

SETTLE_LOOKS = 3
SETTLE_SECONDS = 0.2
LONGEST_SETTLE_SECONDS = 60.0
LONGEST_UNMOUNT_SECONDS = 60.0


@contextmanager
def loop_mounted(kind: str, folder: Path, size_bytes: int) -> Iterator[Path]:
    """Yield a freshly made, mounted file system; unmount it and free its loop device after.

    Args:
        kind: ``xfs`` or ``btrfs``.
        folder: The folder of the image.
        size_bytes: Its size, allocated at once.

    Raises:
        SystemExit: A step fails; what the tool said is shown.
    """
    image, mounted = folder / "image", folder / "mounted"
    mounted.mkdir()
    with image.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, size_bytes)
    kit.run_quietly([*MAKERS[kind], str(image)])
    device = kit.run_quietly(["losetup", "--find", "--show", str(image)])
    try:
        kit.run_quietly(["mount", "-o", MOUNT_OPTIONS[kind], device, str(mounted)])
        try:
            yield mounted
        finally:
            unmount(mounted)
    finally:
        kit.run_quietly(["losetup", "--detach", device])


def unmount(mounted: Path) -> None:
    """Unmount, after what still runs there has ended: a command that a signal left alone, say.

    Raises:
        SystemExit: Something holds it for too long.
    """
    deadline = time.monotonic() + LONGEST_UNMOUNT_SECONDS
    while True:
        try:
            kit.run_quietly(["umount", str(mounted)])
        except SystemExit:
            if not mounted.is_mount():
                return
            if time.monotonic() > deadline:
                raise
            time.sleep(SETTLE_SECONDS)  # the processes that hold it are no children of this one
        else:
            return


def used_bytes(mounted: Path) -> int:
    """Return the bytes in use once a file system no longer works on what was removed.

    Neither XFS nor btrfs frees the blocks of a removed file at once, and nothing tells when they
    have; so it is asked until it answers the same a few times.
    """
    deadline = time.monotonic() + LONGEST_SETTLE_SECONDS
    seen: list[int] = []
    while len(seen) < SETTLE_LOOKS or len(set(seen[-SETTLE_LOOKS:])) > 1:
        if time.monotonic() > deadline:
            raise SystemExit(f"the space in use did not settle in {LONGEST_SETTLE_SECONDS:.0f} s")
        if seen:
            time.sleep(SETTLE_SECONDS)
        kit.run_quietly(["sync", "-f", str(mounted)])
        state = os.statvfs(mounted)
        seen.append((state.f_blocks - state.f_bfree) * state.f_frsize)
    return seen[-1]


def image_bytes(clip_bytes: int) -> int:
    """Return the size of an image for a dataset and one copy of it."""
    size = int(2 * clip_bytes * DATASET_OVERHEAD) + FILE_SYSTEM_BYTES
    return -(-size // 2**20) * 2**20


def check_room(scratch: Path, size_bytes: int) -> None:
    """Refuse to begin what would not fit.

    Raises:
        SystemExit: The scratch folder, or memory where it lies in memory, is too small.
    """
    free = shutil.disk_usage(scratch).free
    if kit.file_system_of(scratch) == "tmpfs":
        lines = Path("/proc/meminfo").read_text("utf-8").splitlines()
        available = next(line for line in lines if line.startswith("MemAvailable:"))
        free = min(free, int(available.split()[1]) * 1024 - MEMORY_LEFT_BYTES)
    if free < size_bytes:
        raise SystemExit(
            f"{scratch} has room for {free / 1e9:.1f} GB, the image takes {size_bytes / 1e9:.1f} "
            "GB; give another --scratch or fewer --episodes"
        )


def clip_bytes(episodes: int | None) -> int:
    """Return about how many bytes of clips the profile has; needs no generating."""
    from leconvert.testing import PROFILES

    spec = PROFILES[PROFILE]
    count = spec.episodes if episodes is None else episodes
    return count * sum(camera.target_clip_bytes or 0 for camera in spec.cameras)


@dataclass(frozen=True)
class CloneBench(convert.Bench):
    """One source on the mounted file system, with the space that a command takes."""

    def run(self, runner: Runner) -> kit.Row:
        """Run once and return the measured row."""
        self.prepare(runner)
        kit.read_through(self.source)
        before = used_bytes(self.scratch)
        row = super().run(runner)
        return {**row, "new_bytes": used_bytes(self.scratch) - before}

    def moved(self) -> kit.Row:
        """Convert once, untimed, and return how the bytes moved."""
        self.prepare(Runner(CONVERT))
        kit.read_through(self.source)
        report = json.loads(kit.run_quietly(self.command(Runner(CONVERT))))
        kept = ("files", "batches", "seconds", "stage_seconds", "cloned_bytes", "copied_bytes")
        return {key: report[key] for key in kept}


def bench(mounted: Path, options: argparse.Namespace, arguments: Sequence[str]) -> None:
    """Generate, let both take turns, write the log and print the figures."""
    empty = used_bytes(mounted)
    bench = CloneBench(mounted, mounted / PROFILE, sync=True)
    kit.make_profile(PROFILE, bench.source, options.episodes)
    shape = kit.dataset_shape(bench.source, PROFILE)
    first = kit.header("bench.py clone", arguments, mounted, shape, synced=True)
    first |= {
        "image_file_system": kit.file_system_of(mounted.parent),
        # As many as the dataset has bytes: then the source shares nothing with itself.
        "sources_used_bytes": used_bytes(mounted) - empty,
        "moved": bench.moved(),
    }
    log = kit.new_log(options.log_dir, first, "clone", options.file_system)
    rows = kit.rows_in_turns(log, first, RUNNERS, options.repeats, bench.run)
    print(f"{convert.table(rows)}\n\nbefore these: {json.dumps(first['moved'])}\n{new_space(rows)}")


def new_space(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the most new space that each took, in words."""
    most = {name: max(r["new_bytes"] for r in group) for name, group in kit.by_runner(rows).items()}
    return "new space: " + ", ".join(f"{name} {of / 1e6:,.0f} MB" for name, of in most.items())


def main(arguments: Sequence[str]) -> int:
    """Parse and run."""
    parser = kit.parser(__doc__, repeats=5)
    parser.add_argument("--file-system", choices=sorted(MAKERS), default="xfs")
    parser.add_argument("--episodes", type=int, help="fewer episodes than the profile's, to try")
    options = parser.parse_args(arguments)
    # Ending by a signal unwinds like any error, so that nothing stays mounted.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    size_bytes = image_bytes(clip_bytes(options.episodes))
    folder = options.scratch / f"leconvert-clone-{os.getpid()}"
    check_room(options.scratch, size_bytes)
    folder.mkdir()
    try:
        with loop_mounted(options.file_system, folder, size_bytes) as mounted:
            bench(mounted, options, arguments)
    finally:
        if not (folder / "mounted").is_mount():
            shutil.rmtree(folder)
    return 0
