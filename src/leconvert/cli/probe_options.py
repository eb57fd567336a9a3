"""The options of ``leconvert probe run``, which ``probe submit`` hands on to its jobs."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leconvert.bench import RunOptions

__all__ = [
    "DEFAULT_OUT_DIR",
    "DEFAULT_TRAIN_DIR",
    "add_dataset_options",
    "add_run_options",
    "add_train_options",
    "run_options",
    "training_given",
]


# ------------------------------------------------------------------------------------------------
# Options of the dataset that a probe looks at.


def add_dataset_options(parser: argparse._ActionsContainer) -> None:
    """Add what says which dataset is looked at."""
    parser.add_argument("--repo-id", metavar="ORG/NAME", help="the dataset's name on the Hub")
    parser.add_argument(
        "--root", "--local-root", metavar="DIR|URL",
        help="the dataset folder, or a URL that fsspec opens: hf://datasets/ORG/NAME, "
        "hf://buckets/ORG/NAME (default: the local copy of --repo-id, else the Hub)",
    )  # fmt: skip
    parser.add_argument(
        "--data-files-root", metavar="DIR|URL",
        help="where data/ and videos/ are, if not beside meta/",
    )  # fmt: skip
    parser.add_argument("--revision", metavar="REV", help="branch, tag or commit on the Hub")


# ------------------------------------------------------------------------------------------------
# Options of how a probe makes batches; a measurement and a training share them.


def add_loader_options(group: argparse._ActionsContainer) -> None:
    """Add what says how batches are made."""
    group.add_argument(
        "--batch-size", type=int, metavar="N", help="samples in a batch (default: 16)"
    )
    group.add_argument(
        "--num-workers",
        type=int,
        metavar="N",
        help="processes that load; 0 loads in this one (default: cores, at most 4)",
    )
    group.add_argument(
        "--prefetch-factor",
        type=int,
        metavar="N",
        help="batches that each worker prepares ahead (default: 2)",
    )
    group.add_argument(
        "--episode-pool-size", "--buffer-size", type=int, metavar="N",
        help="episodes that stream mixes, or frames that stream-lerobot buffers",
    )  # fmt: skip
    group.add_argument(
        "--max-buffer-input-shards", "--max-num-shards", type=int, metavar="N",
        help="files that stream-lerobot reads side by side",
    )  # fmt: skip
    group.add_argument(
        "--video-decoder-cache-size",
        type=int,
        metavar="N",
        help="open decoders in each worker, at most",
    )
    group.add_argument(
        "--video-fetch-workers", type=int, metavar="N",
        help="threads of a worker that fetch and decode ahead (stream)",
    )  # fmt: skip
    group.add_argument("--device", metavar="DEVICE", help="where batches go: cpu (default), cuda")
    group.add_argument(
        "--decode-device", "--video-decode-device", metavar="DEVICE",
        help="decode on cpu (default), or on cuda by NVDEC (stream only)",
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------
# Options of how long and how often ``leconvert probe run`` measures.


def add_measurement_options(group: argparse._ActionsContainer) -> None:
    """Add how long and how often is measured, and what beside the rate."""
    group.add_argument(
        "--warmup-batches",
        type=int,
        metavar="N",
        help="untimed batches before the timing (default: 10)",
    )
    group.add_argument(
        "--duration-s", type=float, metavar="S", help="shortest timing, in seconds (default: 60)"
    )
    group.add_argument(
        "--num-batches", type=int, metavar="N", help="largest number of timed batches"
    )
    group.add_argument(
        "--probe-samples", type=int, metavar="N",
        help="samples of the pass in this process that tells reading from decoding (default: 100)",
    )  # fmt: skip
    group.add_argument(
        "--probe-warmup",
        type=int,
        metavar="N",
        help="untimed samples before --probe-samples (default: 10)",
    )
    group.add_argument(
        "--check", type=int, metavar="N",
        help="compare N samples with LeRobot's map-style loader, frame by frame",
    )  # fmt: skip
    group.add_argument(
        "--with-limit", action="store_true",
        help="measure the decode limit too (default: take it from the result of `probe limit` in "
        "--out-dir)",
    )  # fmt: skip
    group.add_argument(
        "--limit-duration-s",
        type=float,
        metavar="S",
        help="seconds of each of its measurements (default: 5)",
    )


# ------------------------------------------------------------------------------------------------
# The options of ``leconvert probe run``, which ``probe submit`` hands on to its jobs.


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
    group.add_argument(
        "--tolerance-s", type=float, metavar="S",
        help="how far windows may lie from multiples of 1/fps (default: 0.0001)",
    )  # fmt: skip
    group.add_argument(
        "--seed", type=int, metavar="N", help="seed of the sample order (default: 0)"
    )
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
    """Return the options of the measurement; what was left out keeps the library's default."""
    from dataclasses import fields

    from leconvert.bench import RunOptions

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


# ------------------------------------------------------------------------------------------------
# The options of ``leconvert probe train``, which ``--submit`` hands on to its job.


DEFAULT_TRAIN_DIR = "probe-train"
_OF_TRAINING = ("steps", "learning_rate", "log_every", "save_every", "resume_from", "dummy")


def add_train_options(parser: argparse.ArgumentParser) -> None:
    """Add every option but those of the job that ``--submit`` sends."""
    group = parser.add_argument_group("dataset")
    add_dataset_options(group)
    group.add_argument(
        "--max-episodes", type=int, metavar="N", help="use the first N episodes only"
    )
    group.add_argument("--mode", metavar="NAME", help="single (default), sarm or sarm-action")
    group.add_argument(
        "--deltas", metavar="FILE", help="windows as JSON, feature to list of seconds"
    )
    group.add_argument(
        "--tolerance-s", type=float, metavar="S",
        help="how far windows may lie from multiples of 1/fps (default: 0.0001)",
    )  # fmt: skip
    group.add_argument(
        "--seed",
        type=int,
        metavar="N",
        help="seed of the sample order and of the weights (default: 0)",
    )
    group.add_argument(
        "--rank", type=int, metavar="N", help="this process, from 0 (default: from the launcher)"
    )
    group.add_argument(
        "--world-size", type=int, metavar="N", help="processes in all (default: from the launcher)"
    )
    add_loader_options(parser.add_argument_group("loader"))
    group = parser.add_argument_group("training")
    group.add_argument(
        "--steps",
        type=int,
        metavar="N",
        help="number of steps, those before a resume included (default: 200)",
    )
    group.add_argument(
        "--learning-rate",
        type=float,
        metavar="X",
        help="learning rate of the optimizer (default: 0.001)",
    )
    group.add_argument("--log-every", type=int, metavar="N", help="log every N steps (default: 10)")
    group.add_argument(
        "--save-every", type=int, metavar="N", help="write a checkpoint every N steps (default: 50)"
    )
    group.add_argument(
        "--resume-from", metavar="DIR|last",
        help="a checkpoint, or the newest one of --out-dir if it has any",
    )  # fmt: skip
    group.add_argument("--dummy", action="store_true", help="only load, and log how fast")
    group.add_argument(
        "--out-dir", metavar="DIR", help=f"checkpoints and log (default: {DEFAULT_TRAIN_DIR})"
    )
    group.add_argument("--json", action="store_true", help="print the outcome as JSON on stdout")


def training_given(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options of the training that the user gave."""
    given = {name: getattr(options, name) for name in _OF_TRAINING}
    return {name: value for name, value in given.items() if value is not None}
