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
import sys
from collections.abc import Sequence
from pathlib import Path

from benches import kit
from leconvert.support.machine import allowed_cores

HASH, HASH_1 = "hash", "hash 1"


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


def runners(scratch: Path) -> list[kit.Runner]:
    """Return everything that takes turns; all datasets are in the scratch folder."""
    source, result = scratch / "source", scratch / "result"
    verify = [*kit.LECONVERT, "verify", result, "--source", source, "--json", "--bytes"]
    hashes = [sys.executable, kit.BENCH, "verify", "--hash", source, result, "--processes"]
    environment = {"XDG_CACHE_HOME": str(scratch / "cache")}
    return [
        kit.Runner(name, command, environment=environment)
        for name, command in (
            ("bytes", verify),
            ("bytes 1", [*verify, "--max-workers", "1"]),
            (HASH, [*hashes, allowed_cores()]),
            (HASH_1, [*hashes, "1"]),
        )
    ]


def main(arguments: Sequence[str]) -> int:
    """Generate and convert each dataset, run everything on it, and print the table."""
    parser = kit.parser(__doc__, repeats=5)
    parser.add_argument("datasets", nargs="*", choices=kit.PROFILE_NAMES, metavar="DATASET")
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
            source, result = scratch / "source", scratch / "result"
            kit.make_profile(profile, source, options.episodes)
            kit.run_quietly([*kit.LECONVERT, "convert", source, result, "--no-verify"])
            kit.read_through(result)
            shape = kit.dataset_shape(source, profile)
            name = ("verify", profile, kit.file_system_of(scratch))
            ratios = {"it / hash": HASH, "it / hash 1": HASH_1}
            kit.compare(
                "verify", name, runners(scratch), scratch, shape, options, arguments, slower=ratios
            )
    return 0
