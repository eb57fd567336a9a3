"""Which dataset is meant: its name on the Hub, and the folder that a name stands for."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from leconvert.errors import UsageError
from leconvert.home import lerobot_home
from leconvert.workdir.places import source_as_output

__all__ = ["add_revision", "dataset_root", "local_root", "refuse_source_as_output"]


def add_revision(parser: argparse.ArgumentParser) -> None:
    """Add ``--revision``."""
    parser.add_argument(
        "--revision",
        metavar="REV",
        help="tag, branch or commit of --repo-id on the Hub (default: the newest v2.x tag, "
        "else main)",
    )


def local_root(options: argparse.Namespace) -> Path:
    """Return the folder that ``--root`` or ``--repo-id`` names; it need not exist.

    Raises:
        UsageError: Neither is given, or ``--revision`` without ``--repo-id``; or there is no home
            folder that a name could stand in.
    """
    if options.repo_id is None and getattr(options, "revision", None) is not None:
        raise UsageError("--revision names a revision of --repo-id, which is not given.")
    if options.root is not None:
        return Path(options.root)
    if options.repo_id is None:
        raise UsageError(
            "No dataset is given.", next_step="Pass --root DIR, or --repo-id ORG/NAME."
        )
    return lerobot_home() / str(options.repo_id)


def dataset_root(options: argparse.Namespace) -> Path:
    """Return the folder that ``--root`` or ``--repo-id`` names on this machine.

    Raises:
        UsageError: Neither is given, or the repo is not on this machine.
    """
    root = local_root(options)
    if options.root is None and not root.is_dir():
        raise UsageError(
            f"{options.repo_id} is not on this machine: {root} does not exist.",
            path=str(root),
            next_step="Download it first: hf download --repo-type dataset "
            f"{shlex.quote(options.repo_id)} --local-dir {shlex.quote(str(root))}",
        )
    return root


def refuse_source_as_output(options: argparse.Namespace, local: Path) -> None:
    """Refuse an ``--output`` that is the source: beside it, the source is never touched.

    Args:
        options: What the user said.
        local: Where the source is, or would be.

    Raises:
        UsageError: It is.
    """
    if options.output is not None and Path(options.output).resolve() == local:
        raise source_as_output(local)
