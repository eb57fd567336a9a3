"""A source in a store, such as S3: fetched whole, to beside where its result goes."""

from __future__ import annotations

import argparse
import threading
from pathlib import Path

from leconvert.errors import UsageError
from leconvert.progress import NO_PROGRESS, Progress

__all__ = ["bring_from_store"]


def bring_from_store(
    options: argparse.Namespace,
    target: Path,
    *,
    stop: threading.Event | None = None,
    progress: Progress = NO_PROGRESS,
) -> Path:
    """Fetch a dataset that ``--root`` names by a URL, to beside the target; return its folder.

    Raises:
        UsageError: There is no ``--output``, or nothing may be fetched.
        TargetError: Something stands at the target.
        LeconvertError: As `leconvert.mirrors.download_tree`.
    """
    from leconvert.mirrors import download_tree
    from leconvert.packer import PackOptions
    from leconvert.workdir.incoming import source_dir

    url = str(options.root)
    if options.output is None:
        raise UsageError(
            f"It is not said where the result of {url} goes.", next_step="Pass --output DIR."
        )
    if getattr(options, "dry_run", False):
        raise UsageError(f"--dry-run writes nothing, and {url} would have to be fetched.")
    folder = source_dir(target)
    force = getattr(options, "force_conversion", False)
    PackOptions(force_conversion=force).check_target(folder, target)
    return download_tree(url, folder, stop=stop, progress=progress)
