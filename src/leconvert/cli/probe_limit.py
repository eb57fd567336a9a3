"""``leconvert probe limit``."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from leconvert.cli.options import add_json
from leconvert.cli.output import table
from leconvert.cli.probe_options import DEFAULT_OUT_DIR, add_dataset_options
from leconvert.support.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_dataset_options(parser)
    parser.add_argument(
        "--duration-s", type=float, default=10.0, metavar="S",
        help="seconds of each of the four measurements (default: 10)",
    )  # fmt: skip
    parser.add_argument(
        "--processes",
        type=int,
        metavar="N",
        help="number of decoding processes (default: the cores)",
    )
    parser.add_argument(
        "--decode-device", "--video-decode-device", default="cpu", metavar="DEVICE",
        help="decode on cpu (default) or on cuda",
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed of the random access (default: 0)"
    )
    parser.add_argument(
        "--out-dir", default=DEFAULT_OUT_DIR, metavar="DIR",
        help=f"where the result goes (default: {DEFAULT_OUT_DIR})",
    )  # fmt: skip
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Measure, write the result, and show the rates."""
    from leconvert.bench import dataset_place, run_limit, write_document

    if not options.duration_s > 0 or (options.processes is not None and options.processes < 1):
        raise UsageError("--duration-s must be more than 0, and --processes at least 1.")
    document = run_limit(
        dataset_place(options.root, options.repo_id),
        data_files_root=options.data_files_root,
        revision=options.revision,
        processes=options.processes,
        duration_s=options.duration_s,
        decode_device=options.decode_device,
        seed=options.seed,
    )
    processes = document["options"]["processes"]
    stem = f"limit-{options.decode_device.replace(':', '')}-p{processes}"
    path = write_document(document, Path(options.out_dir), stem)
    if options.json:
        print(json.dumps(document, indent=2))
        return 0
    rows: list[list[object]] = [["access", "processes", "frames", "frames/s"]]
    rows += [
        [rate["access"], rate["processes"], rate["frames"], f"{rate['frames_per_s']:.0f}"]
        for rate in document["rates"]
    ]
    print(table(rows))
    print(f"Written to {path}.", file=sys.stderr)
    return 0
