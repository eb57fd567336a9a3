"""Reading many indices at once answers as reading them one by one does."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from clip_recipes import RECIPES, ChangedClip, Recipe
from tests.mp4_boxes import Box

from leconvert.media import (
    ClipIndex,
    UnsupportedClipError,
    read_clip_index,
    read_clip_indexes,
    read_clips,
)
from leconvert.media import index as index_module
from leconvert.support.errors import UnreadableSourceError


@pytest.fixture
def paths(make_clip: Callable[[Recipe], Path], tmp_path: Path) -> list[str]:
    """More than a block: sound clips, one that must be remuxed, a broken and a missing one."""
    clips = [make_clip(RECIPES["x264"]), make_clip(RECIPES["x264-b-frames"])]
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(clips[0].read_bytes()[:-40])
    audio = tmp_path / "matroska.mp4"
    audio.write_bytes(b"\x1aE\xdf\xa3" + bytes(100))
    some = [*clips, broken, audio, tmp_path / "missing.mp4"]
    return [str(path) for path in itertools.islice(itertools.cycle(some), 110)]


def described(answer: ClipIndex | UnreadableSourceError) -> tuple[object, ...]:
    if isinstance(answer, UnreadableSourceError):
        return type(answer), str(answer)
    return answer.path, answer.config_key, answer.sizes.tolist(), answer.offsets.tolist()


def one_by_one(paths: list[str]) -> list[tuple[object, ...]]:
    found = []
    for path in paths:
        try:
            found.append(described(read_clip_index(path)))
        except UnreadableSourceError as error:
            found.append(described(error))
    return found


@pytest.mark.parametrize("read_ahead", [False, True])
def test_many_indices_are_those_of_each(paths: list[str], read_ahead: bool) -> None:
    answers = list(read_clip_indexes(paths, read_ahead=read_ahead))
    assert [described(answer) for answer in answers] == one_by_one(paths)
    assert sum(isinstance(answer, UnsupportedClipError) for answer in answers) == 22


def test_each_index_comes_with_the_status_of_its_file(paths: list[str]) -> None:
    for path, (stored, answer) in zip(paths, read_clips(paths), strict=True):
        if isinstance(answer, ClipIndex):
            assert (stored.status.st_size, stored.status.st_ino) == (
                answer.file_size_bytes,
                Path(path).stat().st_ino,
            )


def test_an_index_too_large_to_hold_is_read_when_its_turn_comes(
    monkeypatch: pytest.MonkeyPatch, changed_clip: ChangedClip
) -> None:
    def spacious(top: Box) -> None:
        top.find("moov").children.append(Box(b"free", bytes(100_000)))

    path = changed_clip(spacious, "x264")
    monkeypatch.setattr(index_module, "_HELD_INDEX_BYTES", 90_000)
    expected = one_by_one([str(path)])
    alone: list[str] = []
    real_read = read_clip_index

    def noting_read(name: str) -> ClipIndex:
        alone.append(name)
        return real_read(name)

    monkeypatch.setattr(index_module, "read_clip_index", noting_read)
    assert [described(answer) for answer in read_clip_indexes([str(path)])] == expected
    assert alone == [str(path)]
