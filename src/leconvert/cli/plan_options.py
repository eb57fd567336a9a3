"""Options of a plan: which dataset goes where, and how; ``plan`` and ``convert`` share them."""

from __future__ import annotations

import argparse
from pathlib import Path

from leconvert.cli.layout_options import add_layout_options
from leconvert.cli.repair_options import add_repair_options
from leconvert.cli.scratch_options import add_scratch_options
from leconvert.cli.source_options import add_revision
from leconvert.cli.url_source import local_path, path_or_url
from leconvert.cli.worker_options import add_version_option

__all__ = ["add_plan_options"]


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
    add_layout_options(parser)
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
