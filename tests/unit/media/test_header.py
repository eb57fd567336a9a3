"""The front of a joined file, byte for byte as a second writer puts it together."""

from __future__ import annotations

import struct
from fractions import Fraction

import numpy as np
import pytest
from table_bytes import counted, stsd, stsz, visual_entry
from tests.mp4_boxes import Box, parsed

from leconvert.media import FileHeader, FileSamples, build_header, frame_ticks
from leconvert.media.codecs import IDENTITY_MATRIX
from leconvert.support.errors import SourceError, UsageError

GEOMETRY = IDENTITY_MATRIX + struct.pack(">II", 64 << 16, 48 << 16)
THIRTY = Fraction(30)
BTRT = Box(b"btrt", struct.pack(">III", 1, 2, 3)).encoded()


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


def full(kind: bytes, version: int, flags: int, payload: bytes) -> Box:
    return Box(kind, struct.pack(">I", version << 24 | flags) + payload)


def expected_front(
    *, tables: list[Box], timescale: int, duration: int, shift: int, wide: bool, codec: bytes
) -> bytes:
    """Write ftyp and moov by the standard's tables (ISO/IEC 14496-12), a field at a time."""
    version = 1 if wide else 0
    clock = ">QQIQ" if wide else ">IIII"
    matrix = struct.pack(">9I", 0x10000, 0, 0, 0, 0x10000, 0, 0, 0, 0x40000000)
    movie = struct.pack(clock, 0, 0, timescale, duration)
    movie += struct.pack(">IH10x", 0x10000, 0x100) + matrix + bytes(24) + struct.pack(">I", 2)
    track = struct.pack(">QQIIQ" if wide else ">IIIII", 0, 0, 1, 0, duration)
    edit = struct.pack(">IQqI" if wide else ">IIiI", 1, duration, shift, 0x10000)
    language = (ord("u") - 0x60) << 10 | (ord("n") - 0x60) << 5 | (ord("d") - 0x60)
    media = struct.pack(clock, 0, 0, timescale, duration + shift)
    media += struct.pack(">HH", language, 0)
    handler = bytes(4) + b"vide" + bytes(12) + b"VideoHandler\0"
    here = full(b"url ", 0, 1, b"").encoded()
    minf = [
        full(b"vmhd", 0, 1, bytes(8)),
        Box(b"dinf", children=[full(b"dref", 0, 0, struct.pack(">I", 1) + here)]),
        Box(b"stbl", children=tables),
    ]
    mdia = [
        full(b"mdhd", version, 0, media),
        full(b"hdlr", 0, 0, handler),
        Box(b"minf", children=minf),
    ]
    trak = [
        full(b"tkhd", version, 3, track + bytes(16) + GEOMETRY),
        Box(b"edts", children=[full(b"elst", version, 0, edit)]),
        Box(b"mdia", children=mdia),
    ]
    moov = [full(b"mvhd", version, 0, movie), Box(b"trak", children=trak)]
    brands = b"isom" + struct.pack(">I", 512) + b"isomiso2" + codec + b"mp41"
    return Box(b"ftyp", brands).encoded() + Box(b"moov", children=moov).encoded()


def test_the_header_of_two_episodes_is_written_as_the_standard_has_it() -> None:
    found = built(two_episodes(), entry=visual_entry(b"avc1", BTRT, reference=3))
    first = len(found.content)
    tables = [
        Box(b"stsd", stsd(visual_entry(b"avc1", reference=1))),
        Box(b"stts", counted((5, 512))),
        Box(b"ctts", counted((1, 512), (1, 1024), (1, 0), (2, 512))),
        Box(b"stss", counted((1,), (4,))),
        Box(b"stsc", counted((1, 3, 1), (2, 2, 1))),
        Box(b"stsz", stsz(100, 20, 30, 90, 10)),
        Box(b"stco", counted((first,), (first + 150,))),
    ]
    front = expected_front(
        tables=tables, timescale=15360, duration=5 * 512, shift=512, wide=False, codec=b"avc1"
    )
    assert found.content == front + struct.pack(">I4s", 258, b"mdat")
    assert list(found.positions) == [first, first + 150]
    assert found.size_bytes == first + 250


def test_tables_that_say_nothing_are_left_out() -> None:
    samples = added(FileSamples(), [10, 20])
    added(samples, [30, 40])
    found = built(samples)
    first = len(found.content)
    tables = [
        Box(b"stsd", stsd(visual_entry())),
        Box(b"stts", counted((4, 512))),
        Box(b"stsc", counted((1, 2, 1))),
        Box(b"stsz", stsz(10, 20, 30, 40)),
        Box(b"stco", counted((first,), (first + 30,))),
    ]
    front = expected_front(
        tables=tables, timescale=15360, duration=4 * 512, shift=0, wide=False, codec=b"avc1"
    )
    assert found.content == front + struct.pack(">I4s", 108, b"mdat")


def test_times_beyond_32_bits_make_every_clock_wide() -> None:
    # One frame takes 2**23 ticks: 511 of them end just below 2**32, 512 do not.
    fps = Fraction(1, 2**20)
    assert frame_ticks(fps) == (8, 2**23)
    for count, lead in ((511, None), (512, None), (511, [0, 1, -1])):
        samples = added(FileSamples(), [1] * (count - 3))
        added(samples, [1] * 3, lead=lead)
        found = built(samples, fps=fps)
        shift = 2**23 if lead else 0
        composition = counted((count - 2, shift), (1, 2 * shift), (1, 0))
        tables = [
            Box(b"stsd", stsd(visual_entry())),
            Box(b"stts", counted((count, 2**23))),
            *([Box(b"ctts", composition)] if lead else []),
            Box(b"stsc", counted((1, count - 3, 1), (2, 3, 1))),
            Box(b"stsz", stsz(*[1] * count)),
            Box(b"stco", counted(*[(place,) for place in found.positions])),
        ]
        front = expected_front(
            tables=tables,
            timescale=8,
            duration=count * 2**23,
            shift=shift,
            wide=count == 512 or lead is not None,
            codec=b"avc1",
        )
        assert found.content[:-8] == front


def test_the_last_tick_of_32_bits_is_written_in_32_bits() -> None:
    fps = Fraction(64, 5_570_645)
    assert frame_ticks(fps) == (64, 5_570_645)
    assert 771 * 5_570_645 == 2**32 - 1
    for count, version in ((771, 0), (772, 1)):
        found = built(added(FileSamples(), [1] * count), fps=fps)
        moov = parsed(found.content[:-8])[1]
        for path in ("mvhd", "trak/tkhd", "trak/edts/elst", "trak/mdia/mdhd"):
            assert moov.find(path).payload[0] == version


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


@pytest.mark.parametrize("block_align", [1, 512, 4096])
def test_each_episode_begins_at_its_source_offset_modulo_the_block(block_align: int) -> None:
    samples = FileSamples()
    lengths, offsets = [100, 5000, 1, 4096], [5000, 123, 2**33 + 7, 0]
    for length, offset in zip(lengths, offsets, strict=True):
        added(samples, [length], source_offset=offset)
    found = built(samples, block_align=block_align)
    end = len(found.content)
    for position, length, offset in zip(found.positions, lengths, offsets, strict=True):
        assert (position - offset) % block_align == 0
        assert end <= position < end + block_align
        end = position + length
    assert found.size_bytes == end
    media_bytes = struct.unpack(">I", found.content[-8:-4])[0]
    assert media_bytes == end - len(found.content) + 8


@pytest.mark.parametrize(
    ("codec", "brands"),
    [
        (b"avc1", b"isomiso2avc1mp41"),
        (b"av01", b"isomiso2av01mp41"),
        (b"hvc1", b"isomiso2mp41"),
        (b"mp4v", b"isomiso2mp41"),
    ],
)
def test_the_brands_name_the_codecs_that_have_one(codec: bytes, brands: bytes) -> None:
    found = built(added(FileSamples(), [10]), entry=visual_entry(codec)).content
    kind = Box(b"ftyp", b"isom" + struct.pack(">I", 512) + brands).encoded()
    assert found.startswith(kind)


def test_samples_are_counted_as_they_are_added() -> None:
    samples = two_episodes()
    assert samples.num_samples == 5
    assert list(samples.num_bytes) == [150, 100]
    assert list(samples.source_offsets) == [5000, 77]


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


def test_a_lead_of_nothing_but_waiting_shifts_nothing_below_zero() -> None:
    # Not what a clip says of itself, since ranks are a permutation; a part of one may.
    samples = added(FileSamples(), [10, 10], lead=[1, 1])
    tables = samples.tables(shift=0, frame_duration=512)
    assert Box(b"ctts", counted((2, 512))).encoded() in tables
    front = built(samples).content
    moov = parsed(front[:-8])[1]
    assert moov.find("trak/edts/elst").payload == struct.pack(">IIIiI", 0, 1, 1024, 0, 0x10000)


def test_rows_stand_for_runs_of_equal_offsets_and_of_equal_episodes() -> None:
    samples = FileSamples()
    for _ in range(2):
        added(samples, [10, 10], lead=[0, 0])
    added(samples, [10, 10, 10], lead=[0, 1, -1])
    for _ in range(3):
        added(samples, [10, 10])
    found = samples.tables(shift=7, frame_duration=5)
    assert found[0] == Box(b"ctts", counted((5, 7), (1, 12), (1, 2), (6, 7))).encoded()
    assert Box(b"stsc", counted((1, 2, 1), (3, 3, 1), (4, 2, 1))).encoded() in found


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
