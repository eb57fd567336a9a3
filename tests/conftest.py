"""Fixtures that several folders share."""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from leconvert.support.machine import own_scheduling
from tests.program import Leconvert, expecting, run_leconvert, start_leconvert
from tests.slurm import slurm  # noqa: F401 - a fixture

if TYPE_CHECKING:
    from leconvert.workdir.run import OpenedRun

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Before NumPy, Arrow and torch are imported: tests run beside each other, their arrays are tiny,
# and threads of several processes that wait for each other took longer than the work itself.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# As on macOS; LeRobot's recorder starts processes.
if not hasattr(os, "fork"):
    multiprocessing.set_start_method("spawn", force=True)

# The same examples every time, so that a change is judged by what it changed. Others are searched
# with --hypothesis-profile search. No example fails for the time that it takes.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("search", deadline=None)
settings.load_profile("same")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Let the garbage collector leave alone what is imported: 700,000 objects, no garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what takes minutes, of which other tests run a part, unless a marker is given."""
    if config.getoption("markexpr"):
        return
    slow = [item for item in items if item.get_closest_marker("slow") is not None]
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if item not in slow]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test of a real recording where nobody says where they are."""
    if item.get_closest_marker("recordings"):
        from tests.recordings import FOLDER, VARIABLE

        if FOLDER is None:
            pytest.skip(f"{VARIABLE} does not name the folder of the real recordings")


@pytest.fixture(autouse=True)
def _scheduled_as_ever() -> Iterator[None]:
    """Take back what an encoder that was opened without `encode_clip` did to this thread."""
    with own_scheduling():
        yield


@pytest.fixture(autouse=True)
def _alone_as_ever() -> Iterator[None]:
    """Forget what accelerate, where a training used it, made known to the whole process."""
    yield
    state = sys.modules.get("accelerate.state")
    if hasattr(state, "AcceleratorState"):  # a test may have put another in its place
        state.AcceleratorState._reset_state(reset_partial_state=True)
        state.GradientState._reset_state()


@pytest.fixture(scope="session")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the folder of a recording, or of a dataset made like one; do not change it."""
    from tests.recordings import opened

    return partial(opened, made=tmp_path_factory.mktemp("like"))


@pytest.fixture
def recording(request: pytest.FixtureRequest, recordings: Callable[[str], Path]) -> Path:
    """That of the name that `tests.recordings.each` gives."""
    return recordings(request.param)


@pytest.fixture(scope="session")
def small_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A v2.1 dataset of five short episodes and two cameras; do not change it."""
    from leconvert.testing import CameraSpec, DatasetSpec, make_dataset

    spec = DatasetSpec(
        episodes=5,
        frames=[12, 7, 1, 9, 15],
        cameras=(
            CameraSpec(key="observation.images.top", width=64, height=48),
            CameraSpec(key="observation.images.wrist", width=32, height=32),
        ),
        extra_files={"README.md": "# A dataset\n", "meta/modality.json": "{}\n"},
    )
    return make_dataset(tmp_path_factory.mktemp("source") / "small", spec)


def _converted(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    import leconvert

    out = tmp_path_factory.mktemp("converted") / "out"
    leconvert.convert(source, output=out)
    return out


@pytest.fixture(scope="session")
def small_result(small_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That dataset converted to v3.0; do not change it."""
    return _converted(small_source, tmp_path_factory)


@pytest.fixture
def result_copy(small_result: Path, tmp_path: Path) -> Path:
    """A copy of the converted dataset that a test may damage."""
    import shutil

    return Path(shutil.copytree(small_result, tmp_path / "v30"))


@pytest.fixture(scope="session")
def picture_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A v2.1 dataset with a camera and images in its tables; do not change it."""
    from leconvert.testing import make_dataset
    from tests.pictures import SPEC

    return make_dataset(tmp_path_factory.mktemp("source") / "pictures", SPEC)


@pytest.fixture(scope="session")
def picture_result(picture_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That dataset converted; do not change it."""
    return _converted(picture_source, tmp_path_factory)


@pytest.fixture
def source_copy(small_source: Path, tmp_path: Path) -> Path:
    """A copy of the small dataset that a test may damage."""
    import shutil

    return Path(shutil.copytree(small_source, tmp_path / "small"))


@pytest.fixture
def edit_json() -> Callable[..., None]:
    """Change keys of a JSON file in place; a value of None removes the key."""
    import json

    def edit(path: Path, **changes: object) -> None:
        content = json.loads(path.read_bytes())
        for key, value in changes.items():
            if value is None:
                content.pop(key, None)
            else:
                content[key] = value
        path.write_text(json.dumps(content))

    return edit


@pytest.fixture
def leconvert() -> Leconvert:
    """Run ``leconvert ARGUMENTS`` and return what it said."""
    return run_leconvert


@pytest.fixture
def leconvert_anew() -> Leconvert:
    """Run ``python -m leconvert ARGUMENTS``, where the start of the program matters."""
    return start_leconvert


@pytest.fixture
def leconvert_here(capsys: pytest.CaptureFixture[str]) -> Leconvert:
    """Run ``leconvert ARGUMENTS`` in this process, where torch and LeRobot are imported once."""

    def run(*arguments: object, code: int | None = None) -> CompletedProcess[str]:
        from leconvert.cli import main

        words = [str(argument) for argument in arguments]
        capsys.readouterr()
        ended = main(words)
        told = capsys.readouterr()
        return expecting(code, CompletedProcess(words, ended, told.out, told.err))

    return run


@pytest.fixture
def planned(small_source: Path, tmp_path: Path) -> OpenedRun:
    """A run of one batch an episode that nobody has worked on, from ``work`` to ``out``."""
    from leconvert.model.values import LayoutOptions
    from leconvert.run.conversion import Conversion
    from tests.plans import open_or_plan

    return open_or_plan(
        small_source,
        tmp_path / "out",
        tmp_path / "work",
        Conversion(layout=LayoutOptions(episodes_per_batch=1)),
    )
