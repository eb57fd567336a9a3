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
        recompute_stats=options.recompute_stats,
        quantiles=options.quantiles,
        drop_features=tuple(options.drop_feature),
        accept=tuple(options.accept),
    )
