"""The dataset that most scenarios convert: as many batches as workers can fight over."""

from __future__ import annotations

from pathlib import Path

from nfs_lab.inside.tree_digest import tree_digest

from leconvert.api import convert
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset

__all__ = ["EPISODES", "short_episodes"]

EPISODES = 24
"""How many it has."""


def short_episodes(folder: Path) -> tuple[Path, str]:
    """Return a v2.1 dataset, and the digest of its conversion by one process.

    Args:
        folder: Both are made in it, unless they are there.
    """
    source, inline = folder / "many", folder / "inline"
    if not source.exists():
        spec = DatasetSpec(
            episodes=EPISODES,
            frames=[5 + number % 7 for number in range(EPISODES)],
            cameras=(CameraSpec(key="observation.images.top", width=64, height=48),),
        )
        make_dataset(source, spec)
        convert(source, output=inline)
    return source, tree_digest(inline)
