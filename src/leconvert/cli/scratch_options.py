"""Options of the local folder for files that workers fetch from the Hub."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from leconvert.cli.values import size_in_bytes

if TYPE_CHECKING:
    from leconvert.hub.scratch import ScratchOptions

__all__ = ["add_scratch_options", "scratch_options"]


def add_scratch_options(parser: argparse.ArgumentParser) -> None:
    """Add where, and how much, workers keep of a source that they fetch batch by batch."""
    parser.add_argument(
        "--scratch-dir", type=Path, metavar="DIR",
        help="local folder for files that are fetched from the Hub (default: in the system's "
        "folder for temporary files)",
    )  # fmt: skip
    parser.add_argument(
        "--scratch-limit", type=size_in_bytes, metavar="BYTES",
        help="what all workers of a host may keep there at a time, such as 20G (default: what "
        "their batches need)",
    )  # fmt: skip


def scratch_options(options: argparse.Namespace) -> ScratchOptions:
    """Return what `add_scratch_options` declared."""
    from leconvert.hub.scratch import ScratchOptions

    folder = options.scratch_dir
    return ScratchOptions(None if folder is None else folder.resolve(), options.scratch_limit)
