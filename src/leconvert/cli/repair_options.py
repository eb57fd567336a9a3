"""What the user allows a conversion to change: its options, and what they come to."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leconvert.repairs import RepairOptions

__all__ = ["add_repair_options", "repair_options"]


def add_repair_options(parser: argparse.ArgumentParser) -> None:
    """Add what the user allows a conversion to change; see docs/findings.md."""
    group = parser.add_argument_group("repairs", "nothing is repaired unless one of these says so")
    group.add_argument(
        "--on-bad-episode", choices=("fail", "drop"), default="fail",
        help="drop: leave damaged episodes out and number the others anew (default: fail)",
    )  # fmt: skip
    group.add_argument("--retime", action="store_true", help="timestamps become frame / fps")
    group.add_argument(
        "--reindex", action="store_true",
        help="count frame_index, episode_index and index anew",
    )  # fmt: skip
    group.add_argument(
        "--remap-tasks", action="store_true",
        help="number tasks from 0 without gaps, each text once",
    )  # fmt: skip
    group.add_argument(
        "--unwrap-scalars", action="store_true",
        help="make the value of each list of one value, which LeRobot cannot load",
    )  # fmt: skip
    group.add_argument(
        "--fill-stats", action="store_true",
        help="compute the statistics that are missing or stale, and keep the others",
    )  # fmt: skip
    group.add_argument(
        "--recompute-stats", action="store_true",
        help="compute the statistics of every feature from the data",
    )  # fmt: skip
    group.add_argument(
        "--quantiles", action="store_true",
        help="add q01, q10, q50, q90 and q99 to the statistics, computed from the data",
    )  # fmt: skip
    group.add_argument(
        "--drop-feature", action="append", default=[], metavar="NAME",
        help="leave a feature out, columns and videos alike; may be given again",
    )  # fmt: skip
    group.add_argument(
        "--declare-features", action="store_true",
        help="declare columns that info.json does not declare, as they are stored",
    )  # fmt: skip
    group.add_argument(
        "--locate-files", action="store_true",
        help="take files of episodes from where they are, if that is not where the templates say",
    )  # fmt: skip
    group.add_argument(
        "--tasks-from", choices=("episodes",), metavar="TABLE",
        help="episodes: rows of an episode get the task that episodes.jsonl lists for it",
    )  # fmt: skip
    group.add_argument(
        "--assume-fps", metavar="N",
        help="frames a second, such as 15 or 29.97, where fps in info.json is wrong or not there",
    )  # fmt: skip
    group.add_argument(
        "--assume-version", choices=("v2.0", "v2.1"), metavar="VERSION",
        help="read the source as v2.0 or v2.1, where its codebase_version is wrong or not there",
    )  # fmt: skip
    group.add_argument(
        "--accept", action="append", default=[], metavar="FINDING",
        help="convert in spite of a finding, named by its code; may be given again",
    )  # fmt: skip


def repair_options(options: argparse.Namespace) -> RepairOptions:
    """Return what the user allows a conversion to change."""
    from leconvert.repairs import RepairOptions

    return RepairOptions(
        on_bad_episode=options.on_bad_episode,
        retime=options.retime,
        reindex=options.reindex,
        remap_tasks=options.remap_tasks,
        unwrap_scalars=options.unwrap_scalars,
        fill_stats=options.fill_stats,
        recompute_stats=options.recompute_stats,
        quantiles=options.quantiles,
        drop_features=tuple(options.drop_feature),
        accept=tuple(options.accept),
        declare_features=options.declare_features,
        locate_files=options.locate_files,
        tasks_from=options.tasks_from,
        assume_fps=options.assume_fps,
        assume_version=options.assume_version,
    )
