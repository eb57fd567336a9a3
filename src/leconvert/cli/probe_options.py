"""The options of ``leconvert probe run``, which ``probe submit`` hands on to its jobs."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from leconvert.cli.probe_dataset_options import add_dataset_options
from leconvert.cli.probe_loader_options import add_loader_options
from leconvert.cli.probe_measurement_options import add_measurement_options

if TYPE_CHECKING:
    from leconvert.probe.options import RunOptions

__all__ = ["DEFAULT_OUT_DIR", "add_run_options", "run_options"]

DEFAULT_OUT_DIR = "probe-results"
"""Where results go."""

# Options of the command itself; everything else is an option of the measurement.
_OF_THE_COMMAND = frozenset({"out_dir", "plots", "json", "command", "probe_command"})


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add every option of a run, with every accepted spelling."""
    group = parser.add_argument_group("dataset")
    add_dataset_options(group)
    group.add_argument(
        "--source", metavar="LABEL",
        help="a label for where the files are: local, hub, bucket or warmed_bucket; the result's "
        "read_from says where they really are",
    )  # fmt: skip
    group.add_argument(
        "--no-local",
        action="store_true",
        help="read --repo-id from the Hub, or from the bucket of --source bucket, even where a "
        "local copy is; refused where something local would be read",
    )
    group.add_argument(
        "--max-episodes", type=int, metavar="N", help="use the first N episodes only"
    )
    group.add_argument(
        "--num-partitions", type=int, metavar="N",
        help="nodes that share the dataset by whole files (default: 1)",
    )  # fmt: skip
    group.add_argument("--partition-index", type=int, metavar="I", help="this node, from 0")
    group = parser.add_argument_group("what is measured")
    group.add_argument(
        "--scenario", metavar="NAME",
        help="a named set-up: mmap_local, mmap_local_maxworkers, stream_hub, stream_bucket or "
        "stream_bucket_2node; fills in loader, source and workers",
    )  # fmt: skip
    group.add_argument("--loader", metavar="NAME", help="stream (default), map or stream-lerobot")
    group.add_argument(
        "--mode", metavar="NAME", help="single (default), sarm or sarm-action: what a sample is"
    )
    group.add_argument(
        "--deltas", metavar="FILE", help="windows as JSON, feature to list of seconds"
    )
    group.add_argument("--seed", type=int, metavar="N", help="of the order of samples (default: 0)")
    group.add_argument(
        "--rank", type=int, metavar="N", help="this process, from 0 (default: from the launcher)"
    )
    group.add_argument(
        "--world-size", type=int, metavar="N", help="processes in all (default: from the launcher)"
    )
    group = parser.add_argument_group("loader")
    add_loader_options(group)
    group = parser.add_argument_group("measurement")
    add_measurement_options(group)
    group = parser.add_argument_group("output")
    group.add_argument(
        "--out-dir", metavar="DIR", help=f"where the results go (default: {DEFAULT_OUT_DIR})"
    )
    group.add_argument("--plots", action="store_true", help="draw plots too (needs matplotlib)")
    group.add_argument("--json", action="store_true", help="print the result as JSON on stdout")


def run_options(options: argparse.Namespace) -> RunOptions:
    """Return the options of the measurement; what was left out keeps the library's default.

    Raises:
        UsageError: They make no sense.
    """
    from dataclasses import fields

    from leconvert.probe.options import RunOptions

    known = {field.name for field in fields(RunOptions)}
    given = {
        name: value
        for name, value in vars(options).items()
        if name in known - _OF_THE_COMMAND and value is not None
    }
    if "mode" in given:
        given["mode"] = given["mode"].replace("_", "-")
    if "loader" in given:
        given["loader"] = given["loader"].replace("_", "-")
    if "scenario" in given:
        given["scenario"] = given["scenario"].replace("-", "_")
    return RunOptions(**given)
