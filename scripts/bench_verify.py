"""Time verification: ours in both depths, against hashing both sides, alternately.

    python scripts/bench_verify.py small mid images many --repeats 5
    python scripts/bench_verify.py many --episodes 1300 --repeats 5

A profile's dataset is generated and converted without a check, and both are read once. Then these
take turns, each a process of its own, so importing is part of its time:

- ``bytes`` and ``bytes 1``: ``leconvert verify --bytes``, with its defaults and with one worker;
- ``structure``: ``leconvert verify``;
- ``hash`` and ``hash 1``: SHA-256 of every file of both sides with ``hashlib``, in a process a core
  and in one;
- ``convert`` and ``convert unchecked``: the conversion with its check of the structure and without,
  which is what that check costs;
- ``start``: Python importing what ``verify`` imports, and nothing else.

Raw rows go to ``bench_logs/<date>-verify-<dataset>-<file system>.jsonl``: a header line, then one
line a run. In commands ``$SCRATCH`` stands for the scratch folder.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench_common import (
    COST_HEAD,
    PROFILE_NAMES,
    REPOSITORY,
    bench_parser,
    cost_line,
    costs,
    dataset_shape,
    files_below,
    header,
    in_turns,
    make_profile,
    measured,
    new_log,
    read_through,
    rows_kept,
    size_of,
)

BYTES, BYTES_1, STRUCTURE = "bytes", "bytes 1", "structure"
HASH, HASH_1, START = "hash", "hash 1", "start"
CONVERT, UNCHECKED = "convert", "convert unchecked"
RUNNERS = (BYTES, BYTES_1, STRUCTURE, HASH, HASH_1, CONVERT, UNCHECKED, START)
PACKAGES = ("pyarrow", "av", "numpy")


def hash_all(roots: Sequence[Path], processes: int) -> None:
    """Hash every file below some folders."""
    from multiprocessing import get_context

    paths = sorted(entry.path for root in roots for entry in files_below(root))
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
    source, result, output = (str(scratch / name) for name in ("source", "result", "run"))
    verify = [sys.executable, "-m", "leconvert", "verify", result, "--source", source, "--json"]
    convert = [sys.executable, "-m", "leconvert", "convert", "--json", "--no-push"]
    convert += ["--root", source, "--output", output]
    hashes = [sys.executable, str(REPOSITORY / "scripts/bench_verify.py"), "--hash", source, result]
    return {
        BYTES: [*verify, "--bytes"],
        BYTES_1: [*verify, "--bytes", "--max-workers", "1"],
        STRUCTURE: verify,
        HASH: [*hashes, "--processes", str(len(os.sched_getaffinity(0)))],
        HASH_1: [*hashes, "--processes", "1"],
        CONVERT: convert,
        UNCHECKED: [*convert, "--no-verify"],
        START: [sys.executable, "-c", "import leconvert.cli.main, leconvert.cli.verify, "
                "leconvert.run.proof"],
    }[runner]  # fmt: skip


def run(runner: str, scratch: Path) -> dict[str, Any]:
    """Run once and return the measured row.

    Raises:
        SystemExit: The command failed, or what it verified differs.
    """
    shutil.rmtree(scratch / "run", ignore_errors=True)
    os.sync()
    environment = os.environ | {"XDG_CACHE_HOME": str(scratch / "cache")}
    row = measured(command(runner, scratch), environment, scratch)
    if runner in {BYTES, BYTES_1, STRUCTURE}:
        report = json.loads((scratch / "last-run.out").read_bytes())
        if not report["ok"]:
            raise SystemExit(f"{runner} found {report['differences'][:3]}")
    return {"runner": runner, **row}


def table(rows: Sequence[dict[str, Any]], both_bytes: int) -> str:
    """Return medians, spread, memory and ratios to the hashes as an aligned text table."""
    known = costs(rows)
    lines = [f"{COST_HEAD}{'x/hash':>8}{'x/hash 1':>10}"]
    for name, cost in known.items():
        ratios = [
            f"{cost.median / known[base].median:.2f}" if base in known else "-"
            for base in (HASH, HASH_1)
        ]
        lines.append(f"{cost_line(name, cost, both_bytes)}{ratios[0]:>8}{ratios[1]:>10}")
    if CONVERT in known and UNCHECKED in known:
        share = (known[CONVERT].cpu - known[UNCHECKED].cpu) / known[CONVERT].cpu
        lines.append(f"the check of the structure takes {share:.1%} of a conversion's CPU time")
    return "\n".join(lines)


def bench(profile: str, options: argparse.Namespace, arguments: Sequence[str]) -> None:
    """Generate and convert one dataset, run everything on it, write the log and print the table."""
    scratch = options.scratch / f"leconvert-bench-{os.getpid()}"
    scratch.mkdir(parents=True)
    try:
        print(f"{profile}: generating ...", flush=True)
        make = [sys.executable, __file__, "--make", str(scratch / "source"), profile]
        if options.episodes is not None:
            make += ["--episodes", str(options.episodes)]
        subprocess.run(make, check=True)
        run(UNCHECKED, scratch)
        (scratch / "run").rename(scratch / "result")
        for side in ("source", "result"):
            read_through(scratch / side)
        shape = dataset_shape(scratch / "source", profile)
        first = header("bench_verify.py", arguments, scratch, shape, packages=PACKAGES)
        first["result_bytes"] = size_of(scratch / "result")
        runners = tuple(name for name in RUNNERS if not options.runners or name in options.runners)
        stem = f"{first['started'][:10]}-verify-{profile}-{first['file_system']}"
        log = new_log(options.log_dir, stem)
        rows = []
        with rows_kept(log, first) as keep:
            for repeat, runner in in_turns(runners, options.repeats):
                row = {"repeat": repeat, **run(runner, scratch)}
                rows.append(row)
                keep(row)
        rows.sort(key=lambda row: runners.index(row["runner"]))
        print(f"\n{profile}, {log.name}\n{table(rows, shape['bytes'] + first['result_bytes'])}\n")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def main(arguments: Sequence[str]) -> int:
    """Parse and run."""
    parser = bench_parser(__doc__, repeats=5)
    parser.add_argument("datasets", nargs="*", choices=PROFILE_NAMES, metavar="DATASET")
    parser.add_argument("--runners", nargs="+", metavar="NAME", help="only these, by name")
    parser.add_argument("--episodes", type=int, help="other than the profile's")
    parser.add_argument("--make", metavar="DIR", help=argparse.SUPPRESS)
    parser.add_argument("--hash", nargs="+", type=Path, metavar="DIR", help=argparse.SUPPRESS)
    parser.add_argument("--processes", type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.hash is not None:
        hash_all(options.hash, options.processes)
        return 0
    if options.make is not None:
        make_profile(options.datasets[0], Path(options.make), options.episodes)
        return 0
    if not options.datasets:
        parser.error("name at least one dataset")
    for profile in options.datasets:
        bench(profile, options, arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
