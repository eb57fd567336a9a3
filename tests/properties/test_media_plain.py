"""The quick readers of usual clips, of one and of many, never disagree with that of any clip."""

from __future__ import annotations

import os
import struct
from fractions import Fraction
from itertools import batched
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leconvert.media import ClipIndex, StoredIndex, read_stored_index
from leconvert.media.boxes import read_moov
from leconvert.media.encode import encode_clip
from leconvert.media.index import _shape_of, read_plainly
from leconvert.media.parse import parse_moov
from leconvert.media.shapes import FEWEST_CLIPS, IndexShape
from leconvert.support.errors import UnreadableSourceError

INTERESTING = [0, 1, 2, 7, 8, 12, 20, 0xFF, 0xFFFF, 2**24, 2**31 - 1, 2**31, 2**32 - 1]
FUZZ = settings(
    max_examples=500,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

OPTIONS = {
    "plain": {"x264-params": "bframes=0:scenecut=0:keyint=4"},
    "reordered": {"x264-params": "bframes=2:b-adapt=0:scenecut=0:keyint=4"},
    "keyframes-only": {"x264-params": "bframes=0:keyint=1"},
}


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    rng = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("plain")
    contents = {}
    for name, options in OPTIONS.items():
        frames = [rng.integers(0, 255, (32, 32, 3), dtype=np.uint8) for _ in range(9)]
        encode_clip(folder / name, frames, fps=Fraction(30), options=options)
        contents[name] = (folder / name).read_bytes()
    return contents


def answers(path: Path, content: bytes) -> tuple[ClipIndex | None, ClipIndex | str]:
    """Return what each reader makes of a file: an index, None for unusual, or the refusal."""
    path.write_bytes(content)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        found = read_moov(descriptor, len(content), str(path))
    except UnreadableSourceError as error:
        return None, str(error)
    finally:
        os.close(descriptor)
    assert found is not None
    quick = read_plainly(found, str(path), len(content))
    try:
        return quick, parse_moov(found, str(path), len(content))
    except UnreadableSourceError as error:
        return quick, str(error)


def assert_agree(quick: ClipIndex | None, full: ClipIndex | str) -> None:
    if quick is None:
        return
    assert isinstance(full, ClipIndex), f"accepted what is refused: {full}"
    for name in (
        "path",
        "file_size_bytes",
        "codec",
        "width",
        "height",
        "timescale",
        "num_bytes",
        "sample_entry",
        "config_key",
        "other_tracks",
        "geometry",
    ):
        assert getattr(quick, name) == getattr(full, name), name
    assert (quick.duration, quick.unindexed_bytes) == (full.duration, full.unindexed_bytes)
    for name in ("sizes", "offsets", "decode_times", "presentation_times", "keyframes", "ranks"):
        one, other = getattr(quick, name), getattr(full, name)
        assert one.dtype == other.dtype
        assert one.tolist() == other.tolist(), name
    count = full.num_samples
    for first, stop in ((0, count), (1, count), (0, 1), (count // 2, count), (2, 2)):
        assert quick.byte_runs(first, stop) == full.byte_runs(first, stop)
        one, other = quick.reordering(first, stop), full.reordering(first, stop)
        assert (one is None) == (other is None)
        assert one is None or one.tolist() == other.tolist()
    for fps in (Fraction(30), Fraction(2997, 100), Fraction(1, 10)):
        assert quick.frames_off_their_place(fps) == full.frames_off_their_place(fps)
        assert quick.misfit(fps) == full.misfit(fps)


@pytest.mark.parametrize("name", OPTIONS)
def test_a_usual_clip_is_read_quickly_and_equally(
    name: str, clips: dict[str, bytes], tmp_path: Path
) -> None:
    quick, full = answers(tmp_path / "clip.mp4", clips[name])
    assert quick is not None
    assert_agree(quick, full)


@FUZZ
@given(data=st.data(), name=st.sampled_from(sorted(OPTIONS)))
def test_the_readers_agree_on_changed_numbers(
    data: st.DataObject, name: str, clips: dict[str, bytes], tmp_path: Path
) -> None:
    content = bytearray(clips[name])
    start = content.index(b"moov") - 4
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(start, len(content) - 4))
        value = data.draw(st.one_of(st.sampled_from(INTERESTING), st.integers(0, 2**32 - 1)))
        if data.draw(st.booleans()):
            content[place : place + 4] = struct.pack(">I", value)
        else:
            content[place] = value & 0xFF
    assert_agree(*answers(tmp_path / "clip.mp4", bytes(content)))


@FUZZ
@given(data=st.data(), name=st.sampled_from(sorted(OPTIONS)))
def test_the_readers_agree_on_bytes_cut_out_or_put_in(
    data: st.DataObject, name: str, clips: dict[str, bytes], tmp_path: Path
) -> None:
    clip = clips[name]
    start = data.draw(st.integers(clip.index(b"moov") - 4, len(clip)))
    stop = data.draw(st.integers(start, min(len(clip), start + 40)))
    content = clip[:start] + data.draw(st.binary(max_size=40)) + clip[stop:]
    assert_agree(*answers(tmp_path / "clip.mp4", content))


def test_the_readers_agree_when_any_single_number_is_extreme(
    clips: dict[str, bytes], tmp_path: Path
) -> None:
    """Not sampled: each byte of the index, and each 32-bit place with values that break sums."""
    clip = clips["reordered"]
    start = clip.index(b"moov") - 4
    quickly = 0
    for place in range(start, len(clip) - 4):
        changes = [bytes([clip[place] ^ 1]), bytes([clip[place] ^ 0x80])]
        if place % 2 == 0:
            changes += [struct.pack(">I", value) for value in (0, 1, 2**31 - 1, 2**32 - 1)]
        for change in changes:
            content = clip[:place] + change + clip[place + len(change) :]
            quick, full = answers(tmp_path / "clip.mp4", content)
            quickly += quick is not None
            assert_agree(quick, full)
    assert quickly > 1000, "most changes should leave a usual clip, or nothing was compared"


@pytest.fixture(scope="module")
def alike(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """Clips of one set-up and many lengths."""
    rng = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("alike")
    contents = []
    for length in (9, 2, 17, 9, 30, 8, 12):
        frames = [rng.integers(0, 255, (32, 32, 3), dtype=np.uint8) for _ in range(length)]
        path = folder / f"{length}.mp4"
        encode_clip(path, frames, fps=Fraction(30), options=OPTIONS["plain"])
        contents.append(path.read_bytes())
    return contents


def stored(path: Path, content: bytes) -> StoredIndex | None:
    path.write_bytes(content)
    try:
        return read_stored_index(str(path))
    except UnreadableSourceError:
        return None


def compared(shape: IndexShape, files: list[StoredIndex]) -> int:
    """Compare what a shape says of files with what is said of each; return how many it read."""
    clips = shape.read(files)
    for file, clip in zip(files, clips, strict=True):
        if clip is not None:
            assert_agree(clip, parse_moov(file.moov, file.path, file.size_bytes))
    return sum(clip is not None for clip in clips)


def test_clips_of_one_set_up_are_read_at_once_whatever_their_lengths(
    alike: list[bytes], clips: dict[str, bytes], tmp_path: Path
) -> None:
    files = [stored(tmp_path / f"{number}", content) for number, content in enumerate(alike)]
    sound = [file for file in files if file is not None]
    for file in sound:
        shape = _shape_of(file)
        assert shape is not None
        assert compared(shape, sound) == len(alike)
    strange = [stored(tmp_path / name, clips[name]) for name in ("reordered", "keyframes-only")]
    others = [file for file in strange if file is not None]
    assert [_shape_of(file) for file in others] == [None, None]
    assert compared(shape, [*others, *sound, *others]) == len(alike)
    # Of so few the arrays cost more than they save.
    assert compared(shape, sound[: FEWEST_CLIPS - 1]) == 0


def test_a_shape_and_the_reader_of_one_clip_agree_when_any_single_number_is_extreme(
    alike: list[bytes], tmp_path: Path
) -> None:
    """Not sampled: each byte of the index, and each 32-bit place with values that break sums."""
    clip = alike[0]
    shape = _shape_of(sound) if (sound := stored(tmp_path / "sound.mp4", clip)) else None
    assert shape is not None
    alone = tmp_path / "clip.mp4"
    files: list[StoredIndex] = []
    for place in range(clip.index(b"moov") - 4, len(clip) - 4):
        changes = [bytes([clip[place] ^ 1]), bytes([clip[place] ^ 0x80])]
        if place % 2 == 0:
            changes += [struct.pack(">I", value) for value in (0, 1, 2**31 - 1, 2**32 - 1)]
        for change in changes:
            content = clip[:place] + change + clip[place + len(change) :]
            if (file := stored(alone, content)) is not None:
                files.append(file)
    read = 0
    for some in batched(files, 50):
        together = [*[sound] * FEWEST_CLIPS, *some]
        assert None not in shape.read(together)[:FEWEST_CLIPS]
        read += compared(shape, together) - FEWEST_CLIPS
    assert 100 < read < len(files) / 4, "most changes should not be of the shape"


@settings(FUZZ, max_examples=200)
@given(data=st.data())
def test_a_shape_learned_of_a_changed_clip_agrees_with_the_reader_of_one(
    data: st.DataObject, alike: list[bytes], tmp_path: Path
) -> None:
    contents = list(alike)
    for _ in range(data.draw(st.integers(1, 3))):
        number = data.draw(st.integers(0, len(contents) - 1))
        clip = bytearray(contents[number])
        place = data.draw(st.integers(alike[number].index(b"moov") - 4, len(clip) - 4))
        value = data.draw(st.one_of(st.sampled_from(INTERESTING), st.integers(0, 2**32 - 1)))
        clip[place : place + 4] = struct.pack(">I", value)
        contents[number] = bytes(clip)
    found = [stored(tmp_path / f"{number}", content) for number, content in enumerate(contents)]
    files = [file for file in found if file is not None]
    for file in files:
        if (shape := _shape_of(file)) is not None:
            compared(shape, [*files, *files])


def index_of(shown: npt.NDArray[np.int64] | range, timescale: int) -> ClipIndex:
    count = len(shown)
    return ClipIndex(
        path="",
        file_size_bytes=count,
        codec="avc1",
        width=1,
        height=1,
        timescale=timescale,
        sizes=np.ones(count, np.int64),
        num_bytes=count,
        unindexed_bytes=0,
        places=0,
        decoded=shown,
        shown=shown,
        keyframes=np.ones(count, np.bool_),
        sample_entry=b"",
        config_key="",
        other_tracks=(),
        geometry=b"",
        duration=count,
    )


RATES = st.one_of(
    st.integers(1, 240).map(Fraction),
    st.floats(0.01, 1000).map(lambda value: Fraction(repr(value))),
)


def naive_off_their_place(index: ClipIndex, fps: Fraction) -> int:
    times = sorted(index.presentation_times.tolist())
    return sum(
        abs(Fraction(time, index.timescale) - rank / fps) >= 1 / (2 * fps)
        for rank, time in enumerate(times)
    )


@settings(max_examples=300, deadline=None)
@given(
    first=st.integers(-(2**40), 2**40) | st.integers(-3000, 3000),
    step=st.integers(1, 2**31) | st.integers(400, 600),
    count=st.integers(1, 40),
    timescale=st.sampled_from([1000, 15360, 90000, 2**31 - 1]),
    fps=RATES,
)
def test_frames_of_even_times_off_their_place_are_counted_exactly(
    first: int, step: int, count: int, timescale: int, fps: Fraction
) -> None:
    index = index_of(range(first, first + step * count, step), timescale)
    assert index.frames_off_their_place(fps) == naive_off_their_place(index, fps)


@settings(max_examples=300, deadline=None)
@given(
    times=st.lists(st.integers(-(2**60), 2**60) | st.integers(0, 9000), min_size=1, unique=True),
    timescale=st.sampled_from([1000, 15360, 2**31 - 1]),
    fps=RATES,
)
def test_frames_of_any_times_off_their_place_are_counted_exactly(
    times: list[int], timescale: int, fps: Fraction
) -> None:
    index = index_of(np.array(times, np.int64), timescale)
    assert index.frames_off_their_place(fps) == naive_off_their_place(index, fps)


def test_the_frames_of_a_steady_clip_are_where_they_belong() -> None:
    steady = index_of(range(0, 60 * 512, 512), 15360)
    assert steady.frames_off_their_place(Fraction(30)) == 0
    assert steady.frames_off_their_place(Fraction(29)) == 60 - 15
    late = index_of(range(256, 256 + 60 * 512, 512), 15360)
    assert late.frames_off_their_place(Fraction(30)) == 60
