"""Time conversions: LeRobot's converter, ours in several ways, and a plain copy, alternately.

    python scripts/bench.py convert small mid --repeats 5
    python scripts/bench.py convert big --grid --scratch /mnt/disk
    python scripts/bench.py convert big --layouts
    python scripts/bench.py convert mid --runners default "cp -r" --trees ../before/src src
    python scripts/bench.py convert big --runners default "cp -r" --sync --scratch /mnt/xfs

Every command is a process of its own, as a user would start it, so importing is part of its time.
Untimed, before each: the results of the previous run are removed, dirty pages are written back, and
a command that works in place, the reference and an overlay, gets a fresh copy of the source. The
source is read once beforehand, so that every command finds it in the page cache.

With ``--sync`` each command's time has a ``sync -f``, and its row the new space that the file
system counts: hardly any for video where it shares extents.

CPU time and memory come from ``wait4``, see `benches.kit`. This module imports next to nothing
before it starts children, as a child's record begins with the memory of its parent.

Raw rows go to ``bench_logs/<date>-<profile>-<file system>.jsonl``: a header line, then one line a
run. In commands ``$SCRATCH`` stands for the scratch folder.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benches import kit

REFERENCE = "reference"
COPY = "cp -r"
# Flags of ``leconvert convert`` by the name of each way to convert.
WAYS: Mapping[str, Sequence[str]] = {
    "default": (),
    "inline": ("--max-workers", "1"),
    "threads-2": ("--max-workers", "2"),
    "workers-1": ("--orchestrate", "--num-workers", "1"),
    "workers-2": ("--orchestrate", "--num-workers", "2"),
    "workers-4": ("--orchestrate", "--num-workers", "4"),
}
OVERLAY = "overlay"
LAYOUTS: Mapping[str, Sequence[str]] = {
    "joined": (),
    "episode-files": ("--layout", "episode-files"),
    OVERLAY: ("--layout", OVERLAY),
}
GRID: Mapping[str, Sequence[str]] = {
    f"batch-{episodes} workers-{workers}": (
        *("--orchestrate", "--num-workers", workers),
        *(() if episodes == "auto" else ("--episodes-per-batch", episodes)),
    )
    for episodes in ("25", "50", "75", "100", "auto")
    for workers in ("1", "2", "4", "6")
}


def runners(
    ways: Mapping[str, Sequence[str]], source: Path, scratch: Path, *, with_reference: bool
) -> list[kit.Runner]:
    """Return every way to convert a dataset, LeRobot's converter before and a copy after them."""
    out, work, home = (scratch / name for name in ("dataset", "work", "huggingface"))
    made, in_place = [out, work, home], (source, out)
    # A cache that survived would save the reference work that a user's first run has.
    environment = {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1", "TMPDIR": str(scratch)}
    module = "lerobot.scripts.convert_dataset_v21_to_v30"
    reference = [sys.executable, "-m", module, "--repo-id", "bench/dataset", "--root", out]
    found = [
        kit.Runner(
            REFERENCE, [*reference, "--push-to-hub=false"], made, in_place,
            environment=environment, is_ours=False,
        )
    ]  # fmt: skip
    for name, flags in ways.items():
        place = ["--root", out] if name == OVERLAY else ["--root", source, "--output", out]
        command = [*kit.LECONVERT, "convert", "--json", *place, "--no-push", "--work-dir", work]
        copied = in_place if name == OVERLAY else None
        found.append(kit.Runner(name, [*command, *flags], made, copied, environment=environment))
    copy = ["cp", "-r", "--reflink=never", source, out]
    found.append(kit.Runner(COPY, copy, made, is_ours=False))
    return found if with_reference else found[1:]


RATIOS: Mapping[str, Mapping[str, str]] = {
    "faster": {"reference / it": REFERENCE},
    "slower": {"it / `cp -r`": COPY},
}


def main(arguments: Sequence[str]) -> int:
    """Generate each profile, run everything on it, and print the table."""
    parser = kit.parser(__doc__, repeats=5)
    parser.add_argument("profiles", nargs="+", choices=kit.PROFILE_NAMES)
    parser.add_argument("--grid", action="store_true", help="batch sizes against workers instead")
    parser.add_argument("--layouts", action="store_true", help="one runner a layout instead")
    parser.add_argument("--runners", nargs="+", metavar="NAME", help="only these, by name")
    parser.add_argument("--sync", action="store_true", help="time `sync -f` too, count new space")
    parser.add_argument("--episodes", type=int, help="fewer episodes than the profile's, to try")
    kit.add_trees(parser)
    options = parser.parse_args(arguments)
    ways = GRID if options.grid else LAYOUTS if options.layouts else WAYS
    kind = ("grid",) if options.grid else ("layouts",) if options.layouts else ()
    for profile in options.profiles:
        with kit.scratch_folder(options.scratch, "bench") as scratch:
            source = scratch / "source"
            kit.make_profile(profile, source, options.episodes)
            shape = kit.dataset_shape(source, profile)
            wanted = [
                runner
                for runner in runners(ways, source, scratch, with_reference=not options.layouts)
                if not options.runners or runner.name in options.runners
            ]
            needed = shape["bytes"] * (3 if wanted[0].name == REFERENCE else 2)
            if shutil.disk_usage(scratch).free < needed:
                raise SystemExit(f"{options.scratch} has less than {needed / 1e9:.1f} GB left")
            name = (profile, kit.file_system_of(scratch), *kind)
            kit.compare("convert", name, wanted, scratch, shape, options, arguments, **RATIOS)
    return 0
