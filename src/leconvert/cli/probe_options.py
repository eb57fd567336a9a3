"""The options of ``leconvert probe run`` and ``train``, which are also handed on to SLURM jobs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from leconvert.cli.options import add_flags, add_json
from leconvert.support.flags import flags_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from leconvert.bench import RunOptions

_DATASET = ("repo_id", "root", "data_files_root", "revision")
# The options of a run below their headings; a training shares the loader's.
_LOADER = (
    "batch_size", "num_workers", "prefetch_factor", "episode_pool_size", "max_buffer_input_shards",
    "video_decoder_cache_size", "video_fetch_workers", "device", "decode_device",
)  # fmt: skip
_OF_RUN = {
    "dataset": (*_DATASET, "source", "max_episodes", "num_partitions", "partition_index"),
    "what is measured": (
        "scenario", "loader", "mode", "deltas", "tolerance_s", "seed", "rank", "world_size",
    ),
    "loader": _LOADER,
    "measurement": (
        "warmup_batches", "duration_s", "num_batches", "probe_samples", "probe_warmup", "check",
        "with_limit", "limit_duration_s",
    ),
}  # fmt: skip
_OF_TRAINING_DATA = {
    "dataset": (
        *_DATASET, "max_episodes", "mode", "deltas", "tolerance_s", "seed", "rank", "world_size",
    ),
    "loader": _LOADER,
}  # fmt: skip

# What `--help` lists of a measurement and of a training; `--help-all` lists the rest.
USUAL_OPTIONS = frozenset({
    "--batch-size", "--check", "--decode-device", "--deltas", "--duration-s",
    "--episode-pool-size", "--help", "--help-all", "--json", "--loader", "--max-episodes", "--mode",
    "--num-workers", "--out-dir", "--plots", "--repo-id", "--revision", "--root", "--scenario",
    "--seed", "--source",
})  # fmt: skip
DEFAULT_OUT_DIR = "probe-results"
"""Where results go."""

# Options of the command itself; everything else is an option of the measurement.
_OF_THE_COMMAND = frozenset({"out_dir", "plots", "json", "command", "probe_command"})


def add_fields(
    group: argparse._ActionsContainer,
    kind: type[DataclassInstance],
    names: Sequence[str],
    **said: str,
) -> None:
    """Add the flags of some fields of an options class, in this order."""
    every = {told.field for told in flags_of(kind)}
    for name in names:
        add_flags(group, kind, without=every - {name}, **said)


def add_dataset_options(parser: argparse._ActionsContainer) -> None:
    """Add what says which dataset is looked at."""
    from leconvert.bench import RunOptions

    add_fields(parser, RunOptions, _DATASET)


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add every option of a run, with every accepted spelling."""
    from leconvert.bench import RunOptions

    for title, names in _OF_RUN.items():
        add_fields(parser.add_argument_group(title), RunOptions, names)
    group = parser.add_argument_group("output")
    group.add_argument(
        "--out-dir", metavar="DIR", help=f"where the results go (default: {DEFAULT_OUT_DIR})"
    )
    group.add_argument("--plots", action="store_true", help="draw plots too (needs matplotlib)")
    add_json(group)


def run_options(options: argparse.Namespace) -> RunOptions:
    """Return the options of the measurement; what was left out keeps the library's default."""
    from leconvert.bench import RunOptions

    known = {told.field for told in flags_of(RunOptions)}
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


DEFAULT_TRAIN_DIR = "probe-train"
_OF_TRAINING = ("steps", "learning_rate", "log_every", "save_every", "resume_from", "dummy")


def add_train_options(parser: argparse.ArgumentParser) -> None:
    """Add every option but those of the job that ``--submit`` sends."""
    from leconvert.bench import RunOptions

    said = {
        "mode": "single (default), sarm or sarm-action",
        "seed": "seed of the sample order and of the weights (default: 0)",
    }
    for title, names in _OF_TRAINING_DATA.items():
        add_fields(parser.add_argument_group(title), RunOptions, names, **said)
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
    add_json(group)


def training_given(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options of the training that the user gave."""
    given = {name: getattr(options, name) for name in _OF_TRAINING}
    return {name: value for name, value in given.items() if value is not None}
