"""Joined headers say the same to FFmpeg as to us, for any shape of episodes and any frame rate."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.packets import coded_packets

from leconvert.media import (
    frame_ticks,
    read_clip_index,
)
from leconvert.media.codecs import IDENTITY_MATRIX
from leconvert.media.join import FileSamples, build_header


@dataclass
class EpisodeSamples:
    sizes: npt.NDArray[np.int64]
    lead: npt.NDArray[np.int32] | None
    keyframes: npt.NDArray[np.bool_] | None
    source_offset: int
    num_bytes: int


RATES = st.one_of(
    st.integers(1, 240).map(Fraction),
    st.integers(1, 24000).map(lambda value: Fraction(value, 100)),
    st.sampled_from([Fraction(30000, 1001), Fraction("29.97002997002997"), Fraction(1, 3)]),
    st.floats(0.01, 1000).map(lambda value: Fraction(repr(value))),
)


# A codec whose coded bytes FFmpeg's demuxer does not look into, since there are none here.
SAMPLE_ENTRY = struct.pack(
    ">I4s6xH16xHHIIIH32sHh", 86, b"png ", 1, 32, 32, 72 << 16, 72 << 16, 0, 1, b"", 24, -1
)
GEOMETRY = IDENTITY_MATRIX + struct.pack(">II", 32 << 16, 32 << 16)


@st.composite
def episodes(draw: st.DrawFn) -> EpisodeSamples:
    count = draw(st.integers(1, 12))
    sizes = draw(st.lists(st.integers(1, 3000), min_size=count, max_size=count))
    lead = None
    if draw(st.booleans()):
        # Rank 0 is decoded first; the others in small groups, turned round.
        order = np.arange(count)
        width = draw(st.integers(1, 4))
        for start in range(1, count, width):
            order[start : start + width] = order[start : start + width][::-1].copy()
        lead = (order - np.arange(count)).astype(np.int32)
    keyframes = None
    if draw(st.booleans()):
        keyframes = np.zeros(count, np.bool_)
        keyframes[0] = True
        keyframes[draw(st.integers(0, count - 1))] = True
    return EpisodeSamples(
        sizes=np.array(sizes, np.int64),
        lead=lead,
        keyframes=keyframes,
        source_offset=draw(st.integers(0, 10**6)),
        num_bytes=sum(sizes),
    )


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    content=st.lists(episodes(), min_size=1, max_size=8),
    fps=RATES,
    block_align=st.sampled_from([0, 512, 4096]),
)
def test_a_joined_header_says_what_was_meant(
    content: list[EpisodeSamples],
    fps: Fraction,
    block_align: int,
    tmp_path: Path,
) -> None:
    samples = FileSamples()
    for episode in content:
        everywhere = np.ones(len(episode.sizes), np.bool_)
        samples.add(
            episode.sizes,
            everywhere if episode.keyframes is None else episode.keyframes,
            episode.lead,
            source_offset=episode.source_offset,
            num_bytes=episode.num_bytes,
        )
    header = build_header(
        samples,
        fps=fps,
        sample_entry=SAMPLE_ENTRY,
        geometry=GEOMETRY,
        block_align=block_align,
    )
    path = tmp_path / "joined.mp4"
    path.write_bytes(header.content + bytes(header.size_bytes - len(header.content)))
    index = read_clip_index(path)

    timescale, duration = frame_ticks(fps)
    sizes = np.concatenate([episode.sizes for episode in content])
    ranks, offsets, keyframes = [], [], []
    for episode, position in zip(content, header.positions, strict=True):
        count = len(episode.sizes)
        lead = np.zeros(count, np.int64) if episode.lead is None else episode.lead
        ranks += (len(ranks) + np.arange(count) + lead).tolist()
        offsets += (position + np.cumsum(episode.sizes, dtype=np.int64) - episode.sizes).tolist()
        keyframes += [True] * count if episode.keyframes is None else episode.keyframes.tolist()
        if block_align:
            assert (position - episode.source_offset) % block_align == 0
    assert index.timescale == timescale
    assert index.sizes.tolist() == sizes.tolist()
    assert index.offsets.tolist() == offsets
    assert index.ranks.tolist() == ranks
    assert index.presentation_times.tolist() == [rank * duration for rank in ranks]
    assert index.keyframes.tolist() == keyframes
    gaps = np.diff([len(header.content), *header.positions])
    lengths = np.array([0, *(episode.num_bytes for episode in content[:-1])])
    assert ((gaps - lengths) >= 0).all()
    assert ((gaps - lengths) < max(1, block_align)).all()

    packets = list(coded_packets(path))
    assert [packet.pts for packet in packets] == [rank * duration for rank in ranks]
    assert [packet.keyframe for packet in packets] == keyframes
    assert [packet.size for packet in packets] == sizes.tolist()


@pytest.mark.parametrize("fps", ["1.00001", "29.97003", "9.1234567", "33.333333333333336"])
def test_frames_that_wait_long_keep_their_times_at_any_rate(fps: str, tmp_path: Path) -> None:
    lead = np.array([0, 15, *[-1] * 15, 15, *[-1] * 15], np.int32)  # 15 frames between two others
    samples = FileSamples()
    samples.add(np.full(33, 9), np.arange(33) == 0, lead, source_offset=0, num_bytes=297)
    rate = Fraction(fps)
    header = build_header(
        samples, fps=rate, sample_entry=SAMPLE_ENTRY, geometry=GEOMETRY, block_align=0
    )
    path = tmp_path / "joined.mp4"
    path.write_bytes(header.content + bytes(header.size_bytes - len(header.content)))
    _, duration = frame_ticks(rate)
    times = [packet.pts for packet in coded_packets(path)]
    assert times == ((np.arange(33) + lead) * duration).tolist()


@given(fps=RATES)
def test_frame_ticks_fit_ffmpeg_and_are_exact_where_they_can_be(fps: Fraction) -> None:
    timescale, duration = frame_ticks(fps)
    assert 0 < timescale < 2**31
    assert 0 < duration <= 2**23
    if fps.numerator < 2**31 and fps.denominator <= 2**23:
        assert Fraction(timescale, duration) == fps
    error = abs(Fraction(timescale, duration) - fps)
    # Dirichlet: among fractions with denominators up to N one is within 1/(N + 1).
    largest = min((2**31 - 1) // math.ceil(fps), 2**23)
    assert error * (largest + 1) <= 1
    for below in range(1, min(200, largest + 1)):
        assert error <= abs(Fraction(round(fps * below), below) - fps)
    assert frame_ticks(Fraction(timescale, duration)) == (timescale, duration)


def test_the_usual_rates_have_the_usual_ticks() -> None:
    assert frame_ticks(Fraction(30)) == (15360, 512)
    assert frame_ticks(Fraction("29.97")) == (2997 * 512, 51200)
