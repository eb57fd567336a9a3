"""What stands where a plan's result will go: better said before the work than by the packer."""

from __future__ import annotations

import argparse
from pathlib import Path

from leconvert.cli.repair_options import repair_options

__all__ = ["replaced_target"]


def replaced_target(
    options: argparse.Namespace, source: Path, target: Path, work_dir: Path
) -> Path | None:
    """Refuse a target that the packer would refuse, unless a run is under way here.

    The target of a run under way is its packer's: it may be in the middle of the swap.

    Args:
        options: Of ``leconvert plan``, or of ``leconvert convert --dry-run``, which has the
            packer's options too.
        source: The v2.x dataset.
        target: Where the result will go.
        work_dir: The run's folder, which need not exist.

    Returns:
        Where a v3.0 dataset that is there goes, if the packer is told ``--force-conversion``; else
        None.

    Raises:
        SourceError: There is no v2.x dataset, which is said first.
        TargetError: The packer could not put the result there.
        UsageError: The packer's options contradict each other.
    """
    from leconvert.packer import PackOptions
    from leconvert.source import load_info
    from leconvert.workdir.paths import WorkDir
    from leconvert.workdir.target import old_dir

    if not options.restart and WorkDir(work_dir).current_run_id() is not None:
        return None
    load_info(source, repair_options(options).reading, guess_version=True)
    PackOptions(
        getattr(options, "verify", None),
        getattr(options, "force_conversion", True),
        getattr(options, "delete_source", False),
    ).check_target(source, target)
    return old_dir(target) if target != source and target.exists() else None
