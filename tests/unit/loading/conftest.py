"""A small v3.0 dataset that tests of the loader share."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from leconvert.api import convert
from leconvert.model.values import LayoutOptions
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset, read_label
from leconvert.transfer import byte_cache

if TYPE_CHECKING:
    from leconvert.loading.stream import SampleStream

# Ranks, workers of each, and samples of each in a batch.
Topology = tuple[int, int, int]

LENGTHS = [9, 4, 1, 12, 6]
CAMERAS = ("observation.images.top", "observation.images.wrist")
PUSHED_EPISODES = 3


@pytest.fixture(autouse=True)
def _cache_of_fetched_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the user's own cache alone."""
    monkeypatch.setattr(byte_cache, "_own_folder", lambda: tmp_path / "fetched")


@pytest.fixture(scope="session")
def v30(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five uneven episodes, several data files, several MP4s a camera; do not change it."""
    folder = tmp_path_factory.mktemp("probe")
    spec = DatasetSpec(
        episodes=len(LENGTHS),
        frames=LENGTHS,
        cameras=tuple(CameraSpec(key=key, width=48, height=32) for key in CAMERAS),
    )
    source = make_dataset(folder / "v21", spec)
    convert(
        source,
        output=folder / "v30",
        layout=LayoutOptions(data_file_size_in_mb=0.002, video_file_size_in_mb=0.002),
    )
    return folder / "v30"


@pytest.fixture
def v30_copy(v30: Path, tmp_path: Path) -> Path:
    """The dataset, for tests that damage it."""
    return Path(shutil.copytree(v30, tmp_path / "v30"))


def global_batches(
    make: Callable[[int, int], SampleStream],
    topology: Topology,
    state: Any = None,
    *,
    steps: int,
    keys: tuple[str, ...] = ("index",),
) -> tuple[list[list[tuple[int, ...]]], Any]:
    """Take global batches as all ranks would, in turn; return them and the last rank's state.

    Args:
        make: Makes the stream of a rank, of so many.
        state: Of a loader that shall be gone on from.
        steps: How many batches to take, over as many epochs as that needs.
        keys: Numbers that tell what sample it is.
    """
    from leconvert.loading import StreamLoader
    from leconvert.loading.order import spread_order

    ranks, workers, batch_size = topology
    loaders = [
        StreamLoader(make(rank, ranks), batch_size=batch_size, num_workers=workers)
        for rank in spread_order(ranks).tolist()  # as they take turns
    ]
    if state is not None:
        for loader in loaders:
            loader.load_state_dict(state)
    batches: list[list[tuple[int, ...]]] = []
    while len(batches) < steps:
        for parts in zip_longest(*loaders, fillvalue=None):
            columns = [
                list(zip(*(part[key].tolist() for key in keys), strict=True))
                for part in parts
                if part is not None
            ]
            turns = zip_longest(*columns)
            batches.append([sample for turn in turns for sample in turn if sample is not None])
            if len(batches) == steps:
                break
    return batches, loaders[-1].state_dict()


@contextmanager
def uploaded(dataset: Path, root: str = "/leconvert-probe-test") -> Iterator[str]:
    """Put a dataset behind a URL, as remote ones are, for a while."""
    import fsspec

    system = fsspec.filesystem("memory")
    for path in sorted(dataset.rglob("*")):
        if path.is_file():
            system.pipe_file(f"{root}/{path.relative_to(dataset)}", path.read_bytes())
    yield f"memory:/{root}"
    system.rm(root, recursive=True)


@pytest.fixture
def in_memory(v30: Path) -> Iterator[str]:
    """The small dataset behind a URL."""
    with uploaded(v30) as url:
        yield url


@pytest.fixture(scope="session")
def two_commits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A dataset, and the same rows with the pictures of each episode shown in the one before."""
    folder = tmp_path_factory.mktemp("pushed")
    camera = CameraSpec(key=CAMERAS[0], width=48, height=32)
    spec = DatasetSpec(episodes=PUSHED_EPISODES, frames=4, cameras=(camera,))
    source = make_dataset(folder / "v21", spec)
    convert(source, output=folder / "first")
    clips = sorted((source / "videos").rglob("*.mp4"))
    contents = [clip.read_bytes() for clip in clips]
    for clip, content in zip(clips, contents[1:] + contents[:1], strict=True):
        clip.write_bytes(content)
    convert(source, output=folder / "second")
    return folder / "first", folder / "second"


def shift(batches: Iterable[dict[str, Any]]) -> set[int]:
    """Return by how many episodes the pictures of samples are off their rows."""
    off = set()
    for batch in batches:
        for picture, episode in zip(batch[CAMERAS[0]], batch["episode_index"], strict=True):
            label = read_label(picture.permute(1, 2, 0).numpy())
            off.add((label.episode - int(episode)) % PUSHED_EPISODES)
    return off
