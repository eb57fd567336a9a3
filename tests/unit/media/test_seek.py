"""Seeking decodes from the keyframe before, further back where that is too late, or says so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leconvert.errors import UnreadableSourceError
from leconvert.media import ClipIndex, pyav

STREAM = object()
TICKS = 10
FIRST_TIME = 1000


@dataclass
class Frame:
    """A decoded frame whose picture is its rank."""

    pts: int | None
    rank: int

    def to_ndarray(self, *, format: str) -> np.ndarray[Any, Any]:  # noqa: A002 (PyAV's name)
        assert format == "rgb24"
        return np.full((2, 2, 3), self.rank, np.uint8)


@dataclass
class Container:
    """Plays frames from where it was sought, and notes how far it was asked to go.

    Attributes:
        frames: What decoding from the start gives.
        late: By time sought: how many frames further it comes out.
        sought: The times, in order.
        decoded: Ranks, in order.
    """

    frames: list[Frame]
    late: dict[int, int] = field(default_factory=dict)
    sought: list[int] = field(default_factory=list)
    decoded: list[int] = field(default_factory=list)
    _place: int = 0

    def seek(self, ticks: int, *, stream: object) -> None:
        assert stream is STREAM
        assert type(ticks) is int, "PyAV takes no number of NumPy's"
        self.sought.append(ticks)
        self._place = (ticks - FIRST_TIME) // TICKS + self.late.get(ticks, 0)

    def decode(self, stream: object) -> Iterator[Frame]:
        assert stream is STREAM
        for frame in self.frames[max(0, self._place) :]:
            self.decoded.append(frame.rank)
            yield frame


def time_of(rank: int) -> int:
    return FIRST_TIME + rank * TICKS


def frames_of(count: int, *, without: Sequence[int] = ()) -> list[Frame]:
    return [Frame(time_of(rank), rank) for rank in range(count) if rank not in without]


def index_of(keyframes: Sequence[int], count: int = 12, first_time: int = FIRST_TIME) -> ClipIndex:
    """Describe a clip without reordering, whose decoding begins two ticks before it is shown."""
    times = range(first_time, first_time + count * TICKS, TICKS)
    flags = np.zeros(count, np.bool_)
    flags[list(keyframes)] = True
    return ClipIndex(
        path="clip.mp4",
        file_size_bytes=count,
        codec="avc1",
        width=2,
        height=2,
        timescale=300,
        sizes=np.ones(count, np.int64),
        num_bytes=count,
        places=0,
        decoded=range(times.start - 2, times.stop - 2, TICKS),
        shown=times,
        keyframes=flags,
        sample_entry=b"",
        config_key="",
        other_tracks=(),
        geometry=b"",
    )


def sought(
    container: Container,
    wanted: Sequence[int],
    monkeypatch: pytest.MonkeyPatch,
    index: ClipIndex | None = None,
) -> list[int]:
    """Return the ranks that are found; each with its own picture."""
    found_index = index or index_of([0, 4, 8])

    def read(path: str) -> ClipIndex:
        assert path == "clip.mp4"
        return found_index

    monkeypatch.setattr(pyav, "read_clip_index", read)
    found = []
    for rank, picture in pyav.seek_frames(container, STREAM, "clip.mp4", wanted):
        assert (picture == rank).all()
        found.append(rank)
    return found


def refusal(
    container: Container,
    wanted: Sequence[int],
    monkeypatch: pytest.MonkeyPatch,
    index: ClipIndex | None = None,
) -> str:
    with pytest.raises(UnreadableSourceError) as caught:
        sought(container, wanted, monkeypatch, index)
    assert caught.value.path == "clip.mp4"
    return caught.value.message.removeprefix("clip.mp4 is not a readable video: ")


@pytest.mark.parametrize(
    ("wanted", "times", "decoded"),
    [
        ([0], [0], [0]),
        ([3], [0], [0, 1, 2, 3]),
        ([4], [4], [4]),
        ([7], [4], [4, 5, 6, 7]),
        ([11], [8], [8, 9, 10, 11]),
        # Decoding goes on where the next keyframe is no jump ahead.
        ([3, 4, 5], [0], [0, 1, 2, 3, 4, 5]),
        ([2, 5], [0, 4], [0, 1, 2, 4, 5]),
        ([5, 6, 11], [4, 8], [4, 5, 6, 8, 9, 10, 11]),
        ([0, 1, 2, 3], [0], [0, 1, 2, 3]),
    ],
)
def test_decoding_begins_at_the_keyframe_before_and_skips_no_less_than_it_can(
    wanted: list[int],
    times: list[int],
    decoded: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    container = Container(frames_of(12))
    assert sought(container, wanted, monkeypatch) == wanted
    assert container.sought == [time_of(rank) for rank in times]
    assert container.decoded == decoded


def test_a_seek_that_comes_out_too_late_is_tried_a_keyframe_further_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    container = Container(frames_of(12), late={time_of(8): 2, time_of(4): 6})
    assert sought(container, [9], monkeypatch) == [9]
    assert container.sought == [time_of(8), time_of(4), time_of(0)]
    # One that comes out late but not too late is as good.
    container = Container(frames_of(12), late={time_of(8): 2})
    assert sought(container, [10], monkeypatch) == [10]
    assert container.sought == [time_of(8)]


def test_where_no_keyframe_serves_decoding_begins_at_the_very_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late = {time_of(0): 2, time_of(0) - 2: 1}
    container = Container(frames_of(12), late=late)
    assert sought(container, [1], monkeypatch) == [1]
    assert container.sought == [time_of(0), time_of(0) - 2]


def test_a_frame_shown_before_the_first_keyframe_is_reached_from_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    container = Container(frames_of(12))
    assert sought(container, [1, 2, 3], monkeypatch, index_of([3, 8])) == [1, 2, 3]
    assert container.sought == [time_of(0) - 2]


def test_from_before_the_first_keyframe_decoding_may_jump_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    container = Container(frames_of(12))
    assert sought(container, [0, 4], monkeypatch, index_of([3, 8])) == [0, 4]
    assert container.sought == [time_of(0) - 2, time_of(3)]
    assert container.decoded == [0, 3, 4]


@pytest.mark.parametrize("lost", [0, 5, 11])
def test_a_frame_that_no_seek_brings_is_named(lost: int, monkeypatch: pytest.MonkeyPatch) -> None:
    container = Container(frames_of(12, without=[lost]))
    words = f"frame {lost} cannot be decoded."
    assert refusal(container, [lost], monkeypatch) == words
    keyframes = [time_of(rank) for rank in (8, 4, 0) if rank <= lost]
    assert container.sought == [*keyframes, time_of(0) - 2], "each is tried once"


def test_a_frame_that_is_passed_over_on_the_way_is_not_sought_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    container = Container(frames_of(12, without=[2]))
    assert refusal(container, [1, 2], monkeypatch) == "frame 2 cannot be decoded."
    assert container.sought == [time_of(0)]
    container = Container(frames_of(12, without=[11]))
    assert refusal(container, [10, 11], monkeypatch) == "frame 11 cannot be decoded."
    assert container.sought == [time_of(8)]


@pytest.mark.parametrize("rank", [12, 13])
def test_a_rank_beyond_the_last_is_refused_before_anything_is_sought(
    rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = Container(frames_of(20))
    assert refusal(container, [rank], monkeypatch) == f"there is no frame {rank}."
    assert container.sought == []


@pytest.mark.parametrize("pts", [None, time_of(0) - 1, time_of(0) + 1, time_of(11) + 1])
def test_a_frame_at_a_time_that_the_index_does_not_have_is_refused(
    pts: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = Container([Frame(pts, 0), *frames_of(12)])
    words = f"a frame decodes at tick {pts}, which its index does not have."
    assert refusal(container, [3], monkeypatch) == words


def unread(path: str) -> ClipIndex:
    raise UnreadableSourceError(f"{path} is of another kind.", path=path)


@pytest.mark.parametrize("wanted", [[], [0], [5], [2, 3, 11], [11], list(range(12))])
def test_without_an_index_frames_are_counted(
    wanted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pyav, "read_clip_index", unread)
    container = Container(frames_of(12))
    found = list(pyav.seek_frames(container, STREAM, "clip.mp4", wanted))
    assert [rank for rank, _ in found] == wanted
    assert all((picture == rank).all() for rank, picture in found)
    assert container.sought == []
    # No further than the frame behind the last.
    assert container.decoded == list(range(min(12, max(wanted, default=-1) + 2)))


def test_without_an_index_a_rank_beyond_the_last_is_refused_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pyav, "read_clip_index", unread)
    frames = pyav.seek_frames(Container(frames_of(12)), STREAM, "clip.mp4", [11, 12])
    assert next(frames)[0] == 11
    with pytest.raises(UnreadableSourceError, match="there is no frame 12") as caught:
        next(frames)
    assert caught.value.path == "clip.mp4"


def test_an_index_that_cannot_be_read_for_lack_of_a_file_is_no_crash(tmp_path: Path) -> None:
    container = Container(frames_of(3))
    path = str(tmp_path / "absent.mp4")
    assert [rank for rank, _ in pyav.seek_frames(container, STREAM, path, [1])] == [1]
