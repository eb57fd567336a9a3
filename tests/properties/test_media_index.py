"""No bytes make the index reader do anything but answer soundly or refuse clearly, and quickly."""

from __future__ import annotations

import struct
import tracemalloc
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leconvert.media import read_clip_index, samples_sha256
from leconvert.support.errors import UnreadableSourceError
from leconvert.testing.encode import encode_clip

FUZZ = settings(
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
# One table of 8 bytes a sample is at most as large as the file; a few are needed.
_MEMORY_FACTOR = 64
_MEMORY_BASE_BYTES = 2 * 1024**2

INTERESTING = [0, 1, 2, 7, 8, 0x7F, 0x80, 0xFF, 0xFFFF, 2**24, 2**31 - 1, 2**31, 2**32 - 1]


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A clip with every table: B-frames, an edit list, keyframes, several chunks."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("fuzz") / "clip.mp4"
    frames = [rng.integers(0, 255, (32, 32, 3), dtype=np.uint8) for _ in range(9)]
    options = {"x264-params": "bframes=2:b-adapt=0:scenecut=0:keyint=4"}
    encode_clip(path, frames, fps=Fraction(30), options=options)
    content = path.read_bytes()
    assert all(kind in content for kind in (b"ctts", b"elst", b"stss", b"stco"))
    return content


def assert_sound_or_refused(path: Path, content: bytes) -> bool:
    path.write_bytes(content)
    tracemalloc.start()
    try:
        index = read_clip_index(path)
    except UnreadableSourceError:
        return False
    else:
        assert index.num_samples > 0
        tables = [index.sizes, index.offsets, index.presentation_times]
        assert {len(table) for table in [*tables, index.keyframes]} == {index.num_samples}
        assert index.offsets.min() >= 0
        assert index.sizes.min() > 0
        assert int((index.offsets + index.sizes).max()) <= len(content)
        assert int(index.sizes.sum()) <= len(content)
        assert len(np.unique(index.presentation_times)) == index.num_samples
        assert sorted(index.ranks.tolist()) == list(range(index.num_samples))
        samples_sha256(index)
        return True
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < _MEMORY_BASE_BYTES + _MEMORY_FACTOR * len(content)


@FUZZ
@given(data=st.data())
def test_changed_numbers_in_the_index_are_refused_or_harmless(
    data: st.DataObject, clip: bytes, tmp_path: Path
) -> None:
    content = bytearray(clip)
    start = clip.index(b"moov") - 4
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(start, len(content) - 4))
        value = data.draw(st.one_of(st.sampled_from(INTERESTING), st.integers(0, 2**32 - 1)))
        if data.draw(st.booleans()):
            content[place : place + 4] = struct.pack(">I", value)
        else:
            content[place] = value & 0xFF
    assert_sound_or_refused(tmp_path / "clip.mp4", bytes(content))


@FUZZ
@given(data=st.data())
def test_bytes_cut_out_or_put_in_are_refused_or_harmless(
    data: st.DataObject, clip: bytes, tmp_path: Path
) -> None:
    start = data.draw(st.integers(0, len(clip)))
    stop = data.draw(st.integers(start, min(len(clip), start + 64)))
    content = clip[:start] + data.draw(st.binary(max_size=64)) + clip[stop:]
    assert_sound_or_refused(tmp_path / "clip.mp4", content)


@FUZZ
@given(kind=st.sampled_from([b"ftyp", b"moov", b"mdat", b"free"]), tail=st.binary(max_size=300))
def test_arbitrary_bytes_behind_a_plausible_start_are_refused(
    kind: bytes, tail: bytes, tmp_path: Path
) -> None:
    size = struct.pack(">I", 8 + len(tail))
    assert not assert_sound_or_refused(tmp_path / "clip.mp4", size + kind + tail)


def test_every_single_number_of_the_index_may_be_extreme(clip: bytes, tmp_path: Path) -> None:
    """Not sampled: each 32-bit place of the index, with the values that break arithmetic."""
    start = clip.index(b"moov") - 4
    sound = 0
    for place in range(start, len(clip) - 4, 2):
        for value in (0, 2**31 - 1, 2**32 - 1):
            content = clip[:place] + struct.pack(">I", value) + clip[place + 4 :]
            path = tmp_path / "clip.mp4"
            path.write_bytes(content)
            try:
                index = read_clip_index(path)
            except UnreadableSourceError:
                continue
            sound += 1
            assert index.offsets.min() >= 0
            assert int((index.offsets + index.sizes).max()) <= len(content)
    assert sound
