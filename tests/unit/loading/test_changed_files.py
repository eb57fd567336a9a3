"""Files that change while a stream reads them end it; no sample is ever of two datasets."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.s3 import s3_store
from tests.unit.loading.conftest import shift

from leconvert.loading import EpisodeStream, StreamLoader
from leconvert.support.errors import PlanMismatchError, SourceChangedError

Change = Callable[[Path, Path], None]


def overwritten(path: Path, other: Path) -> None:
    path.write_bytes(other.read_bytes())


def exchanged(path: Path, other: Path) -> None:
    """Put another file in its place that is as large and as old."""
    beside = path.with_suffix(".new")
    beside.write_bytes(other.read_bytes())
    shutil.copystat(path, beside)
    beside.replace(path)


def gone(path: Path, _: Path) -> None:
    path.unlink()


def replaced(root: Path, other: Path, change: Change) -> None:
    for path in sorted((root / "videos").rglob("*.mp4")):
        change(path, other / path.relative_to(root))


@pytest.fixture
def local(two_commits: tuple[Path, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(two_commits[0], tmp_path / "local"))


@pytest.fixture
def in_store(local: Path) -> Iterator[str]:
    with s3_store(local):
        yield "s3://bucket"


WORKERS: list[dict[str, Any]] = [{}, {"num_workers": 2, "persistent_workers": True}]


@pytest.mark.parametrize(
    ("change", "workers", "video_backend"),
    [
        (overwritten, WORKERS[0], "torchcodec"),
        (exchanged, WORKERS[1], "pyav"),
        (gone, WORKERS[0], "pyav"),
    ],
)
def test_a_local_file_that_changes_between_two_epochs_ends_the_next(
    two_commits: tuple[Path, Path], local: Path, change: Change, workers: dict[str, Any],
    video_backend: Any,
) -> None:  # fmt: skip
    stream = EpisodeStream(local, return_uint8=True, video_backend=video_backend)
    loader = StreamLoader(stream, batch_size=5, **workers)
    assert shift(loader) == {0}
    replaced(local, two_commits[1], change)

    with pytest.raises(SourceChangedError, match="changed after the stream was made") as error:
        shift(loader)

    assert str(error.value.path).endswith(".mp4")
    del error  # by its frames it holds the loader, whose workers end with the loader
    assert shift(EpisodeStream(two_commits[0], return_uint8=True).batches(5)) == {0}
    if change is not gone:  # its remedy: a new stream
        assert shift(EpisodeStream(local, return_uint8=True).batches(5)) == {1}


@pytest.mark.parametrize("change", [overwritten, exchanged])
def test_a_local_file_that_changes_within_a_pass_gives_no_sample_more(
    two_commits: tuple[Path, Path], local: Path, change: Change
) -> None:
    batches = EpisodeStream(local, return_uint8=True).batches(1)
    seen = [next(batches)]
    replaced(local, two_commits[1], change)

    with pytest.raises(SourceChangedError):
        seen.extend(batches)

    assert shift(seen) == {0}


def test_rows_that_change_end_the_pass_too(two_commits: tuple[Path, Path], local: Path) -> None:
    stream = EpisodeStream(local, return_uint8=True)
    for path in (local / "data").rglob("*.parquet"):
        exchanged(path, two_commits[0] / path.relative_to(local))

    with pytest.raises(SourceChangedError, match="another file has its name"):
        next(iter(stream))


def test_a_change_is_no_unreadable_frame(two_commits: tuple[Path, Path], local: Path) -> None:
    stream = EpisodeStream(local, return_uint8=True, on_unreadable="count")
    replaced(local, two_commits[1], lambda path, _: path.write_bytes(b"") and None)

    with pytest.raises(SourceChangedError, match="bytes and has 0"):
        next(iter(stream))


def test_an_object_that_changes_between_two_epochs_ends_the_next(
    two_commits: tuple[Path, Path], local: Path, in_store: str
) -> None:
    stream = EpisodeStream(in_store, return_uint8=True, cache_size_in_gb=0)
    loader = StreamLoader(stream, batch_size=5)
    assert shift(loader) == {0}
    replaced(local, two_commits[1], overwritten)

    with pytest.raises(SourceChangedError, match=r"\.mp4 changed .*ETag"):
        shift(loader)

    again = EpisodeStream(in_store, return_uint8=True, cache_size_in_gb=0)
    assert shift(again.batches(5)) == {1}


def test_an_object_that_changes_while_it_is_open_is_neither_given_out_nor_kept(
    two_commits: tuple[Path, Path], local: Path, in_store: str
) -> None:
    stream = EpisodeStream(in_store, cache_size_in_gb=1)
    path = stream.meta.table.cameras["observation.images.top"].paths[0]
    opened = stream._files.open(path)
    replaced(local, two_commits[1], overwritten)

    with pytest.raises(SourceChangedError):
        opened.need([(0, opened.size_bytes)])

    overwritten(local / path, two_commits[0] / path)
    with open(opened.path, "rb") as file:  # noqa: PTH123 (a name, not a Path)
        assert file.read() == bytes(opened.size_bytes)


def test_a_state_is_refused_once_the_objects_are_others(
    two_commits: tuple[Path, Path], local: Path, in_store: str
) -> None:
    state = StreamLoader(EpisodeStream(in_store), batch_size=5).state_dict()
    here = StreamLoader(EpisodeStream(two_commits[0]), batch_size=5)
    here.load_state_dict(state)  # a copy: the store's marks say nothing of it
    StreamLoader(EpisodeStream(in_store), batch_size=5).load_state_dict(here.state_dict())
    replaced(local, two_commits[1], overwritten)

    with pytest.raises(PlanMismatchError) as error:
        StreamLoader(EpisodeStream(in_store), batch_size=5).load_state_dict(state)

    assert any("s3://bucket" in each for each in error.value.details)
