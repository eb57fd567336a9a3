"""Sources that are named by a URL: a revision on the Hub, or a folder in a store."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from leconvert.errors import UsageError
from leconvert.progress import NO_PROGRESS, Progress

__all__ = [
    "local_path",
    "name_on_the_hub",
    "path_or_url",
    "source_at",
]

_HUB_URL = re.compile(r"hf://datasets/([^/@]+/[^/@]+)(?:@([^/]+))?/?\Z")


def path_or_url(text: str) -> Path | str:
    """Return a path, or a URL as it is: as a path it would lose a slash."""
    return text if "://" in text else Path(text)


def local_path(text: str) -> Path:
    """Return a path, and refuse a URL where a folder is needed."""
    if "://" in text:
        raise argparse.ArgumentTypeError(
            f"{text} is no folder; convert to one, and send it there with `leconvert push` (the "
            "Hub) or `leconvert mirror` (other stores)"
        )
    return Path(text)


def name_on_the_hub(options: argparse.Namespace) -> None:
    """Make ``--repo-id`` and ``--revision`` of ``--root hf://datasets/ORG/NAME@REV``.

    Raises:
        UsageError: It is no such URL, or contradicts the other two options.
    """
    if not isinstance(options.root, str) or not options.root.startswith("hf://"):
        return
    repo_id, revision = _on_the_hub(options.root)
    for name, found in (("repo_id", repo_id), ("revision", revision)):
        if getattr(options, name) not in (None, found):
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{options.root} and {option} contradict each other.")
    options.repo_id, options.revision, options.root = repo_id, revision, None


def _on_the_hub(url: str) -> tuple[str, str | None]:
    found = _HUB_URL.match(url)
    if found is None:
        raise UsageError(
            f"{url} names no dataset on the Hub.",
            path=url,
            next_step="Datasets are called hf://datasets/ORG/NAME or hf://datasets/ORG/NAME@REV.",
        )
    return found[1], found[2]


@contextmanager
def source_at(
    place: Path | str, scratch_dir: Path | None, progress: Progress = NO_PROGRESS
) -> Iterator[Path]:
    """Provide a source for the block; one that a URL names is fetched, and goes again.

    Args:
        place: A folder or a URL.
        scratch_dir: Where to fetch to; None for the system's folder for temporary files.
        progress: Where to report.

    Raises:
        LeconvertError: One of its subclasses.
    """
    if isinstance(place, Path):
        yield place.resolve()
        return
    with TemporaryDirectory(prefix="leconvert-source-", dir=scratch_dir) as folder:
        if place.startswith("hf://"):
            from leconvert.hub.arrival import download

            repo_id, revision = _on_the_hub(place)
            yield download(repo_id, revision, Path(folder) / "source", progress=progress).source
        else:
            from leconvert.mirrors import download_tree

            yield download_tree(place, Path(folder) / "source", progress=progress)
