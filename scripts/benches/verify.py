"""Time verification by bytes against hashing both sides, alternately.

    python scripts/bench.py verify small mid images many --repeats 5
    python scripts/bench.py verify many --episodes 1300 --repeats 5

A profile's dataset is generated and converted without a check, and both are read once. Then these
take turns, each a process of its own, so importing is part of its time:

- ``bytes`` and ``bytes 1``: ``leconvert verify --bytes``, with its defaults and with one worker;
- ``hash`` and ``hash 1``: SHA-256 of every file of both sides with ``hashlib``, in a process a core
  and in one.

Raw rows go to ``bench_logs/<date>-verify-<dataset>-<file system>.jsonl``: a header line, then one
line a run. In commands ``$SCRATCH`` stands for the scratch folder.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benches import kit
from leconvert.support.machine import allowed_cores

BYTES, BYTES_1, HASH, HASH_1 = RUNNERS = ("bytes", "bytes 1", "hash", "hash 1")
PACKAGES = ("pyarrow", "av", "numpy")


def hash_all(roots: Sequence[Path], processes: int) -> None:
    """Hash every file below some folders."""
    from multiprocessing import get_context

    paths = sorted(entry.path for root in roots for entry in kit.files_below(root))
    if processes == 1:
        for path in paths:
            _digest(path)
        return
    with get_context("fork").Pool(processes) as pool:
        list(pool.imap_unordered(_digest, paths, chunksize=max(1, len(paths) // (processes * 16))))


def _digest(path: str) -> bytes:
    import hashlib

    with Path(path).open("rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").digest()


def command(runner: str, scratch: Path) -> list[str]:
    """Return the command line of one runner; all datasets are in the scratch folder."""
    source, result = (str(scratch / name) for name in ("source", "result"))
    verify = [*kit.LECONVERT, "verify", result, "--source", source, "--json", "--bytes"]
    hashes = [sys.executable, str(kit.BENCH), "verify", "--hash", source, result, "--processes"]
    return {
        BYTES: verify,
        BYTES_1: [*verify, "--max-workers", "1"],
        HASH: [*hashes, str(allowed_cores())],
        HASH_1: [*hashes, "1"],
    }[runner]


def run(runner: str, scratch: Path) -> kit.Row:
    """Run once and return the measured row.

    Raises:
        SystemExit: The command failed, or what it verified differs.
    """
    environment = {"XDG_CACHE_HOME": str(scratch / "cache")}
    row = kit.measured(command(runner, scratch), scratch, environment)
    if runner in {BYTES, BYTES_1}:
        report = json.loads((scratch / "last-run.out").read_bytes())
        if not report["ok"]:
            raise SystemExit(f"{runner} found {report['differences'][:3]}")
    return {"runner": runner, **row}


def bench(
    profile: str, scratch: Path, options: argparse.Namespace, arguments: Sequence[str]
) -> None:
    """Generate and convert one dataset, run everything on it, write the log and print the table."""
    kit.make_profile(profile, scratch / "source", options.episodes)
    convert = [*kit.LECONVERT, "convert", scratch / "source", scratch / "result", "--no-verify"]
    kit.run_quietly(convert)
    kit.read_through(scratch / "result")
    shape = kit.dataset_shape(scratch / "source", profile)
    first = kit.header("bench.py verify", arguments, scratch, shape, packages=PACKAGES)
    first["result_bytes"] = kit.size_of(scratch / "result")
    runners = tuple(name for name in RUNNERS if not options.runners or name in options.runners)
    log = kit.new_log(options.log_dir, first, "verify", profile, first["file_system"])
    rows = kit.rows_in_turns(log, first, runners, options.repeats, partial(run, scratch=scratch))
    ratios = {"it / hash": HASH, "it / hash 1": HASH_1}
    print(f"{profile}\n{kit.table(rows, slower=ratios)}\n")


def main(arguments: Sequence[str]) -> int:
    """Parse and run."""
    parser = kit.parser(__doc__, repeats=5)
    parser.add_argument("datasets", nargs="*", choices=kit.PROFILE_NAMES, metavar="DATASET")
    parser.add_argument("--runners", nargs="+", metavar="NAME", help="only these, by name")
    parser.add_argument("--episodes", type=int, help="other than the profile's")
    parser.add_argument("--hash", nargs="+", type=Path, metavar="DIR", help=argparse.SUPPRESS)
    parser.add_argument("--processes", type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.hash is not None:
        hash_all(options.hash, options.processes)
        return 0
    if not options.datasets:
        parser.error("name at least one dataset")
    for profile in options.datasets:
        with kit.scratch_folder(options.scratch, "bench") as scratch:
            bench(profile, scratch, options, arguments)
    return 0
