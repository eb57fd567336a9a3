"""The front of a joined file, byte for byte as a second writer puts it together."""

from __future__ import annotations

import struct
from fractions import Fraction

import numpy as np
import pytest
from table_bytes import counted, visual_entry
from tests.mp4_boxes import Box, parsed

from leconvert.media import FileHeader, FileSamples, build_header, frame_ticks
from leconvert.media.codecs import IDENTITY_MATRIX
from leconvert.support.errors import SourceError, UsageError

GEOMETRY = IDENTITY_MATRIX + struct.pack(">II", 64 << 16, 48 << 16)
THIRTY = Fraction(30)


def added(
    samples: FileSamples,
    sizes: list[int],
    *,
    keyframes: list[int] | None = None,
    lead: list[int] | None = None,
    source_offset: int = 0,
) -> FileSamples:
    """Append an episode; keyframes by their places, all of them if None."""
    flags = np.ones(len(sizes), np.bool_)
    if keyframes is not None:
        flags[:] = False
        flags[keyframes] = True
    samples.add(
        np.array(sizes, np.int64),
        flags,
        None if lead is None else np.array(lead, np.int32),
        source_offset=source_offset,
        num_bytes=sum(sizes),
    )
    return samples


def two_episodes() -> FileSamples:
    """Three frames of which the last two change places, then two that do not."""
    samples = FileSamples()
    added(samples, [100, 20, 30], keyframes=[0], lead=[0, 1, -1], source_offset=5000)
    return added(samples, [90, 10], keyframes=[0], source_offset=77)


def built(
    samples: FileSamples,
    *,
    fps: Fraction = THIRTY,
    entry: bytes | None = None,
    block_align: int = 0,
) -> FileHeader:
    return build_header(
        samples,
        fps=fps,
        sample_entry=visual_entry() if entry is None else entry,
        geometry=GEOMETRY,
        block_align=block_align,
    )


def test_offsets_are_wide_exactly_where_the_file_ends_beyond_4_gib(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    narrow = built(two_episodes())
    monkeypatch.setattr("leconvert.media.join._WIDE_FROM_BYTES", narrow.size_bytes)
    assert built(two_episodes()) == narrow
    monkeypatch.setattr("leconvert.media.join._WIDE_FROM_BYTES", narrow.size_bytes - 1)
    wide = built(two_episodes())
    # Each of two places takes four bytes more, and the size of the media eight.
    first = len(narrow.content) + 2 * 4 + 8
    assert (len(wide.content), list(wide.positions)) == (first, [first, first + 150])
    assert wide.size_bytes == first + 250
    assert wide.content[-16:] == struct.pack(">I4sQ", 1, b"mdat", 266)
    table = counted((first,), (first + 150,), code="Q")
    assert wide.content[:-16].endswith(Box(b"co64", table).encoded())
    moov = parsed(wide.content[:-16])[1]
    assert moov.find("trak/mdia/minf/stbl").children[-1].payload == table
    monkeypatch.undo()
    large = FileSamples()
    for _ in range(2):
        added(large, [2**31])
    assert built(large).content[-16:] == struct.pack(">I4sQ", 1, b"mdat", 2**32 + 16)


@pytest.mark.parametrize(
    ("codec", "brands"), [(b"avc1", b"isomiso2avc1mp41"), (b"hvc1", b"isomiso2mp41")]
)
def test_the_front_names_the_codec_where_it_is_a_brand(codec: bytes, brands: bytes) -> None:
    front = built(two_episodes(), entry=visual_entry(codec)).content
    assert parsed(front[:-16])[0].payload == b"isom" + struct.pack(">I", 512) + brands


@pytest.mark.parametrize(
    ("leads", "lag"),
    [([], 0), ([None], 0), ([[0, 1, -1]], 1), ([[0, 2, -1, -1], [0, 0, 0], [0, 3, 1, -2, -2]], 2)],
)
def test_the_largest_lag_is_how_far_a_frame_must_be_decoded_ahead(
    leads: list[list[int] | None], lag: int
) -> None:
    samples = FileSamples()
    for lead in leads:
        added(samples, [10] * len(lead or [0]), lead=lead)
    assert samples.largest_lag == lag


def test_frames_shown_implausibly_late_are_refused_and_the_last_plausible_is_written() -> None:
    def lead_of(frames: int) -> list[int]:
        return [0, frames, *[-1] * frames]

    fps = Fraction(1, 2**20)
    added(samples := FileSamples(), [1] * 33, lead=lead_of(31))
    offsets = parsed(built(samples, fps=fps).content[:-8])[1].find("trak/mdia/minf/stbl/ctts")
    assert offsets.payload == counted((1, 2**23), (1, 32 * 2**23), (31, 0))
    added(samples := FileSamples(), [1] * 34, lead=lead_of(32))
    with pytest.raises(SourceError) as caught:
        built(samples, fps=fps)
    assert caught.value.message.startswith("A clip has impossible times: ")
    # To the tick: FFmpeg believes 2**28.
    samples = added(FileSamples(), [1])
    samples = added(samples, [1, 1], lead=[0, 0])
    table = Box(b"ctts", counted((3, 2**28))).encoded()
    assert samples.tables(shift=2**28, frame_duration=1)[0] == table
    with pytest.raises(SourceError):
        samples.tables(shift=2**28 + 1, frame_duration=1)


@pytest.mark.parametrize(
    ("fps", "ticks"),
    [
        (Fraction(30), (15360, 512)),
        (Fraction(30000, 1001), (30000 * 512, 1001 * 512)),
        (Fraction(1), (512, 512)),
        # The timescale fits 31 bits, as FFmpeg keeps it.
        (Fraction(2**20), (2**29, 512)),
        (Fraction(2**22 - 1, 5), ((2**22 - 1) * 512, 5 * 512)),
        (Fraction(2**22, 5), (2**22 * 256, 5 * 256)),
        # The duration is at most 2**23.
        (Fraction(1, 2**14), (512, 2**23)),
        (Fraction(1, 2**14 + 1), (256, 256 * (2**14 + 1))),
        (Fraction(1, 2**20), (8, 2**23)),
        (Fraction(2**31 - 1, 2**23 - 1), (2**31 - 1, 2**23 - 1)),
    ],
)
def test_ticks_are_512_a_frame_where_the_numbers_fit(fps: Fraction, ticks: tuple[int, int]) -> None:
    assert frame_ticks(fps) == ticks


@pytest.mark.parametrize(
    "fps", [Fraction(0), Fraction(-30), Fraction(1, 2**20 + 1), Fraction(2**20 + 1)]
)
def test_an_impossible_rate_is_refused_with_where_to_mend_it(fps: Fraction) -> None:
    with pytest.raises(UsageError) as caught:
        frame_ticks(fps)
    assert caught.value.message == f"A frame rate of {fps} is impossible."
    assert caught.value.next_step == "Correct fps in meta/info.json."
