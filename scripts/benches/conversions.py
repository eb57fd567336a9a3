"""Commands measured in turns: conversions, verification, edits, appends and quantiles.

Every command is a process of its own, as a user would start it, so importing is part of its time.
Untimed, before each: the results of the previous run are removed, dirty pages are written back, and
a command that works in place gets a fresh copy of the source. The source is read once beforehand,
so that every command finds it in the page cache. In the logs ``$SCRATCH`` stands for the scratch
folder.

CPU time and memory come from ``wait4``, see `benches.kit`. This module imports next to nothing
before it starts children, as a child's record begins with the memory of its parent.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benches import kit
from benches.kit import LECONVERT, Runner
from leconvert.support.machine import allowed_cores

REFERENCE, COPY, OVERLAY = "reference", "cp -r", "overlay"
# Flags of ``leconvert convert`` by the name of each way to convert.
WAYS: Mapping[str, Sequence[str]] = {"default": ()}
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


def convert(case: kit.Case) -> None:
    """Time conversions: LeRobot's converter, ours, and a plain copy, in turns.

        python scripts/bench.py convert small mid --repeats 5
        python scripts/bench.py convert big --grid --scratch /mnt/disk
        python scripts/bench.py convert big --layouts
        python scripts/bench.py convert mid --runners default "cp -r" --trees ../before/src src
        python scripts/bench.py convert big --runners default "cp -r" --sync --scratch /mnt/xfs

    With ``--sync`` each command's time has a ``sync -f``, and its row the new space that the file
    system counts: hardly any for video where it shares extents.
    """
    add = case.parser.add_argument
    add("profiles", nargs="+", choices=kit.PROFILE_NAMES)
    add("--grid", action="store_true", help="batch sizes against workers instead")
    add("--layouts", action="store_true", help="one runner a layout instead")
    add("--runners", nargs="+", metavar="NAME", help="only these, by name")
    add("--sync", action="store_true", help="time `sync -f` too, count new space")
    add("--episodes", type=int, help="fewer episodes than the profile's, to try")
    case.add_trees()
    options = case.parse(repeats=5)
    ways = GRID if options.grid else LAYOUTS if options.layouts else WAYS
    kind = ("grid",) if options.grid else ("layouts",) if options.layouts else ()
    for profile in options.profiles:
        with case.scratch_folder() as scratch:
            source = scratch / "source"
            kit.make_profile(profile, source, options.episodes)
            shape = kit.dataset_shape(source, profile)
            wanted = [
                runner
                for runner in convert_runners(ways, source, scratch)
                if not (options.layouts and runner.name == REFERENCE)
                and (not options.runners or runner.name in options.runners)
            ]
            needed = shape["bytes"] * (3 if wanted[0].name == REFERENCE else 2)
            if shutil.disk_usage(scratch).free < needed:
                raise SystemExit(f"{options.scratch} has less than {needed / 1e9:.1f} GB left")
            name = (profile, kit.file_system_of(scratch), *kind)
            case.compare(name, wanted, scratch, shape, against=(REFERENCE, COPY))


def convert_runners(ways: Mapping[str, Sequence[str]], source: Path, scratch: Path) -> list[Runner]:
    """Return every way to convert a dataset, LeRobot's converter before and a copy after them."""
    out, work, home = (scratch / name for name in ("dataset", "work", "huggingface"))
    made, in_place = [out, work, home], (source, out)
    # A cache that survived would save the reference work that a user's first run has.
    environment = {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1", "TMPDIR": str(scratch)}
    module = "lerobot.scripts.convert_dataset_v21_to_v30"
    reference = [sys.executable, "-m", module, "--repo-id", "bench/dataset", "--root", out,
                 "--push-to-hub=false"]  # fmt: skip
    found = [Runner(REFERENCE, reference, made, in_place, environment=environment, is_ours=False)]
    for name, flags in ways.items():
        place = ["--root", out] if name == OVERLAY else ["--root", source, "--output", out]
        command = [*LECONVERT, "convert", "--json", *place, "--no-push", "--work-dir", work, *flags]
        copied = in_place if name == OVERLAY else None
        found.append(Runner(name, command, made, copied, environment=environment))
    copy = ["cp", "-r", "--reflink=never", source, out]
    return [*found, Runner(COPY, copy, made, is_ours=False)]


def verify(case: kit.Case) -> None:
    """Time verification by bytes against hashing both sides, in turns.

        python scripts/bench.py verify small mid images many --repeats 5
        python scripts/bench.py verify many --episodes 1300 --repeats 5

    - ``bytes`` and ``bytes 1``: ``leconvert verify --bytes``, by default and by one worker;
    - ``hash`` and ``hash 1``: SHA-256 of every file of both sides with ``hashlib``, in a process a
      core and in one.
    """
    add = case.parser.add_argument
    add("datasets", nargs="*", choices=kit.PROFILE_NAMES, metavar="DATASET")
    add("--episodes", type=int, help="other than the profile's")
    add("--hash", nargs="+", type=Path, metavar="DIR", help=argparse.SUPPRESS)
    add("--processes", type=int, default=1, help=argparse.SUPPRESS)
    options = case.parse(repeats=5)
    if options.hash is not None:
        hash_all(options.hash, options.processes)
        return
    if not options.datasets:
        case.parser.error("name at least one dataset")
    for profile in options.datasets:
        with case.scratch_folder() as scratch:
            source, result = scratch / "source", scratch / "result"
            kit.make_profile(profile, source, options.episodes)
            kit.run_quietly([*LECONVERT, "convert", source, result, "--no-verify"])
            kit.read_through(result)
            name = ("verify", profile, kit.file_system_of(scratch))
            shape = kit.dataset_shape(source, profile)
            case.compare(name, verify_runners(scratch), scratch, shape, against=("hash", "hash 1"))


def verify_runners(scratch: Path) -> list[Runner]:
    """Return everything that takes turns; all datasets are in the scratch folder."""
    source, result = scratch / "source", scratch / "result"
    verify = [*LECONVERT, "verify", result, "--source", source, "--json", "--bytes"]
    hashes = [sys.executable, kit.BENCH, "verify", "--hash", source, result, "--processes"]
    commands = {
        "bytes": verify,
        "bytes 1": [*verify, "--max-workers", "1"],
        "hash": [*hashes, allowed_cores()],
        "hash 1": [*hashes, "1"],
    }
    environment = {"XDG_CACHE_HOME": str(scratch / "cache")}
    return [Runner(name, words, environment=environment) for name, words in commands.items()]


def hash_all(roots: Sequence[Path], processes: int) -> None:
    """Hash every file below some folders."""
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    paths = sorted(path for root in roots for path in kit.files_below(root))
    if processes == 1:
        for path in paths:
            _digest(path)
        return
    size = max(1, len(paths) // (processes * 16))
    # The pool of multiprocessing may wait for ever when it is ended.
    with ProcessPoolExecutor(processes, get_context("fork")) as pool:
        list(pool.map(_digest, paths, chunksize=size))


def _digest(path: Path) -> bytes:
    import hashlib

    with path.open("rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").digest()


def edit(case: kit.Case) -> None:
    """How long does it take to edit a dataset, or to bring it back to v2.1, beside other tools?

        python scripts/bench.py edit --repeats 3
        python scripts/bench.py edit --tasks reverse --script any4lerobot=FILE

    Generates short episodes of two cameras, converts them to v3.0, and runs each task in turns:

    - `delete`: leave two episodes out, with ``leconvert convert --exclude-episodes`` and with
      ``lerobot-edit-dataset``, which encodes again the video files that they are in;
    - `split`: into nine tenths and one tenth;
    - `merge`: with a second dataset of the same shape;
    - `reverse`: to v2.1, with ``leconvert convert --to v2.1``, with each ``--script NAME=FILE`` of
      other projects, which is called as ``python FILE --repo-id bench/set --root COPY`` and works
      in place, on a copy whose making is not measured, and ``cp -r`` of what leconvert wrote.
    """
    add = case.parser.add_argument
    add("--tasks", default="delete,split,merge,reverse", help="which of them")
    add("--episodes", type=int, help="other than 400 to edit and 4,000 to reverse")
    add("--script", action="append", default=[], metavar="NAME=FILE")
    case.add_trees()
    options = case.parse(repeats=3)
    tasks = options.tasks.split(",")
    with case.scratch_folder() as scratch:
        if tasks != ["reverse"]:
            source, other = (
                _converted(scratch, name, options.episodes or 400) for name in ("set", "other")
            )
            runners = edit_runners(source, other)
            wanted = [each for each in runners if each.name.partition(":")[0] in tasks]
            case.compare(["edit"], wanted, scratch, kit.dataset_shape(source, "many"))
        if "reverse" in tasks:
            source = _converted(scratch, "long", options.episodes or 4000)
            runners = reverse_runners(source, scratch, options.script)
            case.compare(["reverse"], runners, scratch, kit.dataset_shape(source, "many"))


def edit_runners(source: Path, other: Path) -> list[Runner]:
    """Return the tools that edit a dataset."""
    out = source.with_name("out")
    lerobot = [
        Path(sys.executable).with_name("lerobot-edit-dataset"), "--repo_id", "bench/set",
        "--new_repo_id", "bench/out", "--root", source, "--new_root", out, "--operation.type",
    ]  # fmt: skip
    ours = {
        "delete": ["convert", source, out, "--exclude-episodes", "1,7", "-q"],
        "split": ["split", source, "--output-dir", out, "--into", "train=0.9,val=0.1"],
        "merge": ["merge", source, other, "--output", out],
    }
    theirs = {
        "delete": ["delete_episodes", "--operation.episode_indices", "[1, 7]"],
        "split": ["split", "--operation.splits", '{"train": 0.9, "val": 0.1}'],
        "merge": [
            "merge", "--operation.roots", f'["{source}", "{other}"]',
            "--operation.repo_ids", '["bench/set", "bench/other"]',
        ],
    }  # fmt: skip
    return [
        runner
        for task, words in ours.items()
        for runner in (
            Runner(f"{task}: leconvert", [*LECONVERT, *words], [out]),
            Runner(f"{task}: LeRobot", [*lerobot, *theirs[task]], [out], is_ours=False),
        )
    ]


def reverse_runners(source: Path, scratch: Path, scripts: Sequence[str]) -> list[Runner]:
    """Return the tools that bring a dataset back to v2.1, and a copy of the same bytes."""
    out, kept, copy = scratch / "back", scratch / "kept-back", scratch / "copy"
    reverse = [*LECONVERT, "convert", source, "--to", "v2.1", "-q", "--output"]
    kit.run_quietly([*reverse, kept])
    kit.read_through(kept)
    runners = [
        Runner("reverse: leconvert", [*reverse, out], [out]),
        Runner("reverse: cp -r", ["cp", "-r", kept, out], [out], is_ours=False),
    ]
    for given in scripts:
        name, _, script = given.partition("=")
        words = [sys.executable, script, "--repo-id", "bench/set", "--root", copy]
        runners.append(Runner(f"reverse: {name}", words, [copy], (source, copy), is_ours=False))
    return runners


def _converted(scratch: Path, name: str, episodes: int) -> Path:
    """Generate a dataset and convert it to v3.0."""
    source, result = scratch / f"{name}-v21", scratch / name
    kit.make_profile("many", source, episodes)
    kit.run_quietly([*LECONVERT, "convert", source, result, "-q"])
    shutil.rmtree(source)
    kit.read_through(result)
    return result


NEW = 10
APPENDED_TO = {"long": 400, "many": 4000}


def append(case: kit.Case) -> None:
    """Measure appending ten episodes to a result against a new conversion of the grown source.

        python scripts/bench.py append --repeats 3

    Both sides work on the same grown source; an append is undone by `leconvert undo` before the
    next. *long* has 400 episodes of 3 cameras with clips of 1.5 MB; *many* 4,000 short ones.
    """
    case.parser.add_argument("--episodes", type=int, help="other than the dataset's")
    options = case.parse(repeats=3)
    for name, usual in APPENDED_TO.items():
        with case.scratch_folder() as folder:
            episodes = options.episodes or usual
            kit.in_own_process(_make_grown, folder, name, episodes)
            source, result, anew = folder / "source", folder / "result", folder / "anew"
            words = (*LECONVERT, "convert", source)
            undo = (*LECONVERT, "undo", result)
            old = [folder / "result_v30"]
            runners = [
                Runner("anew", (*words, anew, "-q"), [anew]),
                Runner("append", (*words, result, "--append", "-q"), old, after=undo),
            ]
            shape = kit.dataset_shape(source, f"{episodes} and {NEW} episodes")
            case.compare(("append", str(episodes)), runners, folder, shape)


def _make_grown(folder: Path, name: str, episodes: int) -> None:
    """Make a dataset, convert it to ``result``, and make the dataset that it has grown to."""
    import leconvert
    from leconvert.testing import PROFILES, make_dataset

    cameras = [replace(each, target_clip_bytes=1_500_000) for each in PROFILES["mid"].cameras]
    shape = {
        "long": replace(PROFILES["mid"], cameras=cameras),
        # As long as on average: bit rates, and so all pictures, follow from the mean.
        "many": replace(PROFILES["many"], frames=60),
    }[name]
    make_dataset(folder / "first", replace(shape, episodes=episodes))
    leconvert.convert(folder / "first", output=folder / "result")
    shutil.rmtree(folder / "first")
    make_dataset(folder / "source", replace(shape, episodes=episodes + NEW))


def quantiles(case: kit.Case) -> None:
    """Measure conversions with quantiles, which LeRobot needs to resume a recording, and without.

        python scripts/bench.py quantiles DATASET... --repeats 5

    Converts each dataset with one thread, in turn without and with ``--quantiles``, whole and
    without its cameras, so that columns alone are computed. Processor seconds of the whole program
    count: other work on the machine changes them less than the wall clock.
    """
    case.parser.add_argument("sources", nargs="+", type=Path, metavar="DATASET")
    options = case.parse(repeats=5)
    for source in options.sources:
        features = json.loads((source / "meta/info.json").read_bytes())["features"].items()
        dropped = [f"--drop-feature={name}" for name, of in features if of["dtype"] == "video"]
        with case.scratch_folder() as folder:
            dataset, out = folder / "DATASET", folder / "out"
            dataset.symlink_to(source.resolve())
            words = (*LECONVERT, "convert", dataset, out, "--max-workers", "1", "-q")
            runners = [
                Runner(f"{what}, {way}", (*words, *fewer, *flags), [out])
                for what, fewer in (("all", []), ("columns", dropped))
                for way, flags in (("by default", []), ("--quantiles", ["--quantiles"]))
            ]
            shape = kit.dataset_shape(source, source.name)
            case.compare(("quantiles", source.name), runners, folder, shape)
