"""Keyframes that a file lists and that are none: found by the bits of the samples."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leconvert.media import codecs, read_clip_index
from leconvert.testing.encode import encode_clip

_FRAMES = 24


def moving(count: int = _FRAMES) -> list[npt.NDArray[np.uint8]]:
    noise = np.random.default_rng(0).integers(0, 256, (64, 160 + count, 3)).astype(np.uint8)
    return [noise[:, at : at + 160].copy() for at in range(count)]


@pytest.mark.parametrize(
    ("codec", "options"),
    [
        ("libx264", {"sc_threshold": "0"}),
        ("libx264", {"x264-params": "slices=3:aud=1"}),
        ("libx264", {"x264-params": "open-gop=1:bframes=2"}),
        ("libx265", {}),
        ("libx265", {"x265-params": "bframes=2:open-gop=1"}),
        ("libsvtav1", {"preset": "10"}),
        ("libvpx-vp9", {"cpu-used": "8"}),
        ("mpeg4", {}),
    ],
)
def test_whole_keyframes_are_believed_and_no_other_frame(
    tmp_path: Path, codec: str, options: dict[str, str]
) -> None:
    path = tmp_path / "clip.mp4"
    encode_clip(path, moving(), fps=Fraction(30), codec=codec, gop_size=8, options=options)
    index = read_clip_index(path)
    assert 1 < np.count_nonzero(index.keyframes) < _FRAMES
    assert index.false_keyframes(0, _FRAMES) == []
    lying = replace(index, keyframes=np.ones(_FRAMES, np.bool_))
    others = np.flatnonzero(~index.keyframes)
    assert lying.false_keyframes(0, _FRAMES) == others.tolist()
    assert lying.false_keyframes(3, 11) == [at for at in others if 3 <= at < 11]


def test_where_pictures_are_refreshed_bit_by_bit_no_decoder_can_start(tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    options = {"intra-refresh": "1", "x264-params": "keyint=10:scenecut=0:bframes=0"}
    encode_clip(path, moving(), fps=Fraction(30), gop_size=10, options=options)
    index = read_clip_index(path)
    listed = np.flatnonzero(index.keyframes).tolist()
    assert len(listed) > 1
    assert index.false_keyframes(0, _FRAMES) == listed[1:]


@given(st.sampled_from(sorted(codecs._STARTS)), st.binary(max_size=40), st.binary(max_size=40))
def test_any_bytes_are_looked_at_without_an_error(codec: str, sample: bytes, entry: bytes) -> None:
    for begin in (b"", b"avcC", b"hvcC"):
        assert codecs._STARTS[codec](sample, begin + entry) in (False, True)
