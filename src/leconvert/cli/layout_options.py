"""How a dataset is cut into files and batches: the options, and what they come to."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from leconvert.cli.values import block_align, megabytes, whole

if TYPE_CHECKING:
    from leconvert.model import LayoutOptions

__all__ = ["add_layout_options", "layout_options"]


def add_layout_options(parser: argparse.ArgumentParser) -> None:
    """Add sizes, alignment and the kind of layout."""
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
