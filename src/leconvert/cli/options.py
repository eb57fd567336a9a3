"""Options that several commands share, spelled and explained once."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from leconvert.cli.hub_source_options import add_revision, add_scratch_options
from leconvert.cli.url_source import local_path, path_or_url
from leconvert.cli.values import block_align, megabytes, seconds, some_seconds, whole

if TYPE_CHECKING:
    from leconvert.model import LayoutOptions
    from leconvert.repairs import RepairOptions

__all__ = [
    "add_json",
    "add_lease_options",
    "add_plan_options",
    "add_probe_wish",
    "add_proof_options",
    "add_repair_options",
    "add_report_option",
    "add_trouble_option",
    "add_version_option",
    "layout_options",
    "repair_options",
    "report_place",
]


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add ``--json``."""
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON on stdout")


def add_plan_options(parser: argparse.ArgumentParser) -> None:
    """Add what says which dataset goes where, and how it is cut."""
    parser.add_argument(
        "--repo-id",
        metavar="ORG/NAME",
        help="the dataset's name; its folder is $HF_LEROBOT_HOME/ORG/NAME, where it is "
        "downloaded to from the Hub if it is not there",
    )
    add_revision(parser)
    parser.add_argument(
        "--root",
        type=path_or_url,
        metavar="DIR|URL",
        help="the dataset folder itself, which holds meta/, data/ and videos/; or its URL, such as "
        "hf://datasets/ORG/NAME@REV or s3://BUCKET/NAME",
    )
    parser.add_argument(
        "--output",
        type=local_path,
        metavar="DIR",
        help="where the v3.0 dataset goes; the source is then never touched. Default: the source's "
        "place, with the source kept as <root>_old",
    )
    parser.add_argument(
        "--work-dir",
        type=Path,
        metavar="DIR",
        help="folder for the run's state, on a file system that all workers share; default: a "
        "hidden sibling of the target",
    )
    parser.add_argument(
        "--data-file-size-in-mb", type=megabytes, default=100, metavar="MB",
        help="a data file's limit, uncompressed (default: 100)",
    )  # fmt: skip
    parser.add_argument(
        "--video-file-size-in-mb", type=megabytes, default=200, metavar="MB",
        help="a video file's limit (default: 200)",
    )  # fmt: skip
    parser.add_argument(
        "--episodes-per-batch",
        type=whole(1),
        metavar="N",
        help="lease N episodes of all cameras at a time instead of whole output files; changes how "
        "work is shared, not the result",
    )
    parser.add_argument(
        "--block-align", type=block_align, metavar="auto|BYTES|0",
        help="align episodes in video files to blocks, so that XFS, btrfs and NFS over them share "
        "their bytes with the source (default: auto, by the size of the clips)",
    )  # fmt: skip
    parser.add_argument(
        "--layout", choices=("reference", "streaming"), default="reference",
        help="reference: files as LeRobot's converter cuts them; streaming: data and cameras cut "
        "together, so that every frame loads and many workers can stream (default: reference)",
    )  # fmt: skip
    parser.add_argument(
        "--loader-workers", type=whole(1), default=16, metavar="N",
        help="with --layout streaming: data files to make at least, one a loading worker "
        "(default: 16)",
    )  # fmt: skip
    add_scratch_options(parser)
    add_repair_options(parser)
    parser.add_argument(
        "--restart", action="store_true", help="give up a run under way and begin a new one"
    )
    parser.add_argument(
        "--one-host", action="store_true",
        help="let no host but this one work on the run, as where there are no hard links; for a "
        "mount of which check-fs --peer says so",
    )  # fmt: skip
    add_version_option(parser)


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


def add_proof_options(parser: argparse.ArgumentParser) -> None:
    """Add what is proven before the swap, and what becomes of the source after it."""
    parser.add_argument(
        "--verify", choices=("structure", "bytes", "none"),
        help="what is proven before the result takes its place (default: structure; bytes with "
        "--delete-source)",
    )  # fmt: skip
    parser.add_argument(
        "--no-verify", action="store_const", const="none", dest="verify",
        help="the same as --verify none",
    )  # fmt: skip
    parser.add_argument(
        "--delete-source", action="store_true",
        help="remove the source that the result replaced, once every byte is proven; it is kept "
        "if the result lacks anything of it",
    )  # fmt: skip


def add_version_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--allow-mixed-versions``."""
    parser.add_argument(
        "--allow-mixed-versions",
        action="store_true",
        help="work although this host's library versions differ from the planner's",
    )


def add_lease_options(parser: argparse.ArgumentParser) -> None:
    """Add what governs leases."""
    parser.add_argument(
        "--lease-seconds", type=some_seconds, default=60.0, metavar="S",
        help="a batch whose worker is silent for so long is taken over (default: 60)",
    )  # fmt: skip
    parser.add_argument(
        "--max-attempts", type=whole(1), default=3, metavar="N",
        help="set a batch aside after N errors (default: 3)",
    )  # fmt: skip


def add_probe_wish(parser: argparse.ArgumentParser) -> None:
    """Add ``--probe`` and for how long."""
    parser.add_argument(
        "--probe", action="store_true", help="measure how fast the result loads; needs torch"
    )
    parser.add_argument(
        "--probe-seconds",
        type=some_seconds,
        default=10.0,
        metavar="S",
        help="for so long (default: 10)",
    )


def add_report_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--report``; `report_place` reads it."""
    parser.add_argument(
        "--report", type=Path, nargs="?", const=Path(), metavar="FILE",
        help="tell what happened as one HTML page, also where it fails (default: "
        "<target>.report.html)",
    )  # fmt: skip


def report_place(given: Path | None, target: Path) -> Path | None:
    """Return where ``--report`` wants the page, or None where it was not given."""
    if given is None:
        return None
    from leconvert.report import default_report_place

    return default_report_place(target) if given == Path() else given.resolve()


def add_trouble_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--max-trouble-seconds``, for workers that nobody watches."""
    parser.add_argument(
        "--max-trouble-seconds", type=seconds, default=120.0, metavar="S",
        help="when the disk or the mount fails, try again for so long before giving up, with "
        "pauses of 1 s to 30 s (default: 120)",
    )  # fmt: skip


def layout_options(options: argparse.Namespace) -> LayoutOptions:
    """Return what decides the layout."""
    from leconvert.model import LayoutOptions

    return LayoutOptions(
        options.data_file_size_in_mb,
        options.video_file_size_in_mb,
        options.episodes_per_batch,
        options.block_align,
        options.layout,
        options.loader_workers,
    )
