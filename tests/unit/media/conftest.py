"""Clips for the tests of ``leconvert.media``, encoded with PyAV once a session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from clip_recipes import RECIPES, ChangedClip, MakeClip, Recipe, encode
from tests.mp4_boxes import Box, changed


@pytest.fixture(scope="session")
def make_clip(tmp_path_factory: pytest.TempPathFactory) -> MakeClip:
    """Encode a recipe, each only once a session; the files are not to be changed."""
    folder = tmp_path_factory.mktemp("clips")
    made: dict[Recipe, Path] = {}

    def make(recipe: Recipe) -> Path:
        if recipe not in made:
            made[recipe] = encode(folder / f"{len(made):03d}.{recipe.container}", recipe)
        return made[recipe]

    return make


@pytest.fixture
def changed_clip(make_clip: MakeClip, tmp_path: Path) -> ChangedClip:
    """Write ``clip.mp4`` in the test's folder: that of a recipe, but for its boxes."""

    def write(change: Callable[[Box], object], name: str = "x264-b-frames") -> Path:
        path = tmp_path / "clip.mp4"
        path.write_bytes(changed(make_clip(RECIPES[name]).read_bytes(), change))
        return path

    return write
