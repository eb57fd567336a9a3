"""Clips for the tests of ``leconvert.media``, encoded with PyAV once a session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from clip_recipes import Recipe, encode

RECORDINGS = Path(__file__).parents[4] / "shared" / "data"


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


@pytest.fixture
def recordings() -> Callable[[str], list[Path]]:
    """Return the clips of a real dataset, which the shared folder beside the checkout holds."""

    def clips(dataset: str) -> list[Path]:
        found = sorted((RECORDINGS / dataset).glob("videos/**/*.mp4"))
        if not found:
            pytest.skip(f"{dataset} is not beside the checkout (../shared/data)")
        return found

    return clips
