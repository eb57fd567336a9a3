"""Clips for the tests of ``leconvert.media``, encoded with PyAV once a session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from clip_recipes import Recipe, encode


@pytest.fixture(scope="session")
def make_clip(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Recipe], Path]:
    """Encode a recipe, each only once a session; the files are not to be changed."""
    folder = tmp_path_factory.mktemp("clips")
    made: dict[Recipe, Path] = {}

    def make(recipe: Recipe) -> Path:
        if recipe not in made:
            made[recipe] = encode(folder / f"{len(made):03d}.{recipe.container}", recipe)
        return made[recipe]

    return make
