"""Tables of samples become arrays, whichever way they are written, or a reason to refuse them."""

from __future__ import annotations

import os
import struct

import numpy as np
import pytest
from table_bytes import counted, stsd, stsz, visual_entry
from tests.mp4_boxes import Box

from leconvert.media import ClipIndex, UnsupportedClipError
from leconvert.media.boxes import Moov, Span, StoredIndex
from leconvert.media.index import parse_indexes
from leconvert.support.errors import UnreadableSourceError

ENTRY = visual_entry()
FILE_BYTES = 10_000
OUTSIDE = (
    "its index places frames outside its media data (mdat); the file is cut off, or "
    "the index is wrong"
)


def plain(**changes: bytes | None) -> dict[str, bytes]:
    """Return the tables of five samples in two chunks, with changes; None leaves a table out."""
    tables = {
        "stsd": stsd(ENTRY),
        "stts": counted((5, 512)),
        "stss": counted((1,), (4,)),
        "stsz": stsz(10, 20, 30, 40, 50),
        "stsc": counted((1, 2, 1), (2, 3, 1)),
        "stco": counted((1000,), (2000,)),
    }
    for kind, payload in changes.items():
        tables.pop(kind, None)
        if payload is not None:
            tables[kind] = payload
    return tables


def read(
    file_size_bytes: int = FILE_BYTES, *, media: Span | None = None, **changes: bytes | None
) -> ClipIndex:
    """Read an index that has nothing but what it needs, and the tables."""
    tables = [Box(kind.encode(), payload) for kind, payload in plain(**changes).items()]
    track = [
        Box(b"mdhd", struct.pack(">12xII", 15360, 0)),
        Box(b"hdlr", bytes(8) + b"vide"),
        Box(b"minf", children=[Box(b"stbl", children=tables)]),
    ]
    payload = Box(b"trak", children=[Box(b"mdia", children=track)]).encoded()
    moov = Moov(payload, (0, len(payload)), 0, media or (0, file_size_bytes), file_size_bytes)
    stored = StoredIndex("clip.mp4", moov, file_size_bytes, os.stat_result(range(10)))
    (found,) = parse_indexes([stored])
    if isinstance(found, UnreadableSourceError):
        raise found
    return found


def refused(file_size_bytes: int = FILE_BYTES, **changes: bytes | None) -> str:
    """Return why tables are refused as broken."""
    with pytest.raises(UnreadableSourceError) as caught:
        read(file_size_bytes, **changes)
    assert not isinstance(caught.value, UnsupportedClipError), caught.value
    assert caught.value.path == "clip.mp4"
    before, after = "clip.mp4 is not a readable video: ", "."
    assert caught.value.message.startswith(before)
    return caught.value.message.removeprefix(before).removesuffix(after)


def unsupported(file_size_bytes: int = FILE_BYTES, **changes: bytes | None) -> str:
    """Return why tables cannot be joined as they lie."""
    with pytest.raises(UnsupportedClipError) as caught:
        read(file_size_bytes, **changes)
    assert caught.value.path == "clip.mp4"
    return caught.value.reason


UNSUPPORTED: dict[str, list[dict[str, bytes | None]]] = {
    "compact sample sizes (stz2)": [{"stz2": bytes(12)}],
    "partial sync samples (stps)": [{"stps": bytes(8)}],
    "two tables of offsets (stco and co64)": [{"co64": counted((1000,), (2000,), code="Q")}],
    "frames without bytes": [
        {"stsz": stsz(*(10 * (place != empty) for place in range(5)))} for empty in range(5)
    ],
    "implausible frame durations": [
        {"stts": counted(*rows)}
        for rows in ([(5, 2**31)], [(4, 1), (1, 2**31)], [(1, 2**31), (4, 1)])
    ],
    "implausible composition offsets": [
        {"ctts": counted(*rows)}
        for rows in (
            [(1, 2**28 + 1), (3, 0), (1, 0)],
            [(2, 0), (1, 2**32 - 2**28 - 1), (1, 0), (1, 0)],
        )
    ],
    "two frames at the same time": [
        {"stts": counted(*rows)}
        for rows in ([(5, 0)], [(1, 512), (1, 0), (3, 512)], [(3, 512), (2, 0)])
    ],
    "no keyframe is listed": [{"stss": counted()}],
}


@pytest.mark.parametrize("why", UNSUPPORTED)
def test_tables_that_cannot_be_joined_as_they_lie_say_why(why: str) -> None:
    for changes in UNSUPPORTED[why]:
        assert unsupported(**changes) == why, changes


def test_the_tables_of_a_plain_track_become_arrays() -> None:
    found = read()
    assert found.sizes.tolist() == [10, 20, 30, 40, 50]
    assert found.offsets.tolist() == [1000, 1010, 2000, 2030, 2070]
    assert found.presentation_times.tolist() == [0, 512, 1024, 1536, 2048]
    assert found.keyframes.tolist() == [True, False, False, True, False]
    assert found.sample_entry == ENTRY
    arrays = (found.sizes, found.offsets, found.presentation_times)
    assert {array.dtype for array in arrays} == {np.dtype(np.int64)}
    assert found.keyframes.dtype == np.bool_


def test_a_size_for_all_is_the_size_of_each() -> None:
    found = read(stsz=struct.pack(">III", 0, 20, 5))
    assert found.sizes.tolist() == [20] * 5
    assert found.sizes.dtype == np.int64
    assert found.offsets.tolist() == [1000, 1020, 2000, 2020, 2040]


@pytest.mark.parametrize(
    ("table", "bytes_in_all"),
    [
        (stsz(10, 20, 30, 40, 50), 150),
        (struct.pack(">III", 0, 30, 5), 150),
        # A frame of fewer than 8 bytes is no frame: so a table of 12 bytes cannot ask for memory.
        (struct.pack(">III", 0, 1, 5), 40),
        (struct.pack(">III", 0, 8, 5), 40),
    ],
)
def test_frames_are_no_larger_than_the_file(table: bytes, bytes_in_all: int) -> None:
    places = {"stco": counted((0,), (0,))}
    assert len(read(bytes_in_all, stsz=table, **places).sizes) == 5
    words = "its frames are larger than the file; probably the file is cut off"
    assert refused(bytes_in_all - 1, stsz=table, **places) == words


def test_frames_are_counted_before_anything_is_made_of_them() -> None:
    most = 2**24
    for count, words in ((most + 1, "more than 16777216 frames"), (2**32 - 1, "more than")):
        assert unsupported(2**40, stsz=struct.pack(">III", 0, 1, count)).startswith(words)
    words = "its stsz table is longer than the box that holds it"
    assert refused(2**40, stsz=struct.pack(">III", 0, 0, most)) == words


def test_wide_places_are_read_as_the_others() -> None:
    found = read(2**40, stco=None, co64=counted((2**33,), (2**34,), code="Q"))
    assert found.offsets.tolist() == [2**33, 2**33 + 10, 2**34, 2**34 + 30, 2**34 + 70]


@pytest.mark.parametrize(
    ("rows", "chunks", "offsets"),
    [
        ([(1, 5, 1)], [100], [100, 110, 130, 160, 200]),
        ([(1, 1, 1)], [100, 200, 300, 400, 500], [100, 200, 300, 400, 500]),
        ([(1, 2, 1), (3, 1, 1)], [100, 200, 300], [100, 110, 200, 230, 300]),
        ([(1, 1, 1), (2, 2, 1), (3, 1, 1), (4, 1, 1)], [9, 8, 7, 6], [9, 8, 28, 7, 6]),
        ([(1, 3, 1), (2, 2, 1)], [300, 100], [300, 310, 330, 100, 140]),
    ],
)
def test_samples_lie_where_their_chunks_put_them(
    rows: list[tuple[int, int, int]], chunks: list[int], offsets: list[int]
) -> None:
    found = read(stsc=counted(*rows), stco=counted(*[(chunk,) for chunk in chunks]))
    assert found.offsets.tolist() == offsets


@pytest.mark.parametrize(
    ("chunks", "least_bytes"), [((1000, 2000), 2120), ((2000, 1000), 2030), ((5000, 0), 5030)]
)
def test_frames_lie_inside_the_file_to_the_last_byte(
    chunks: tuple[int, int], least_bytes: int
) -> None:
    places = counted(*[(chunk,) for chunk in chunks])
    assert len(read(least_bytes, stco=places).sizes) == 5
    assert refused(least_bytes - 1, stco=places) == OUTSIDE


@pytest.mark.parametrize("chunks", [(1000, 2000), (2000, 1000)])
def test_frames_begin_where_media_data_does(chunks: tuple[int, int]) -> None:
    places = counted(*[(chunk,) for chunk in chunks])
    assert len(read(3000, media=(1000, 3000), stco=places).sizes) == 5
    with pytest.raises(UnreadableSourceError, match="outside its media data"):
        read(3000, media=(1001, 3000), stco=places)


@pytest.mark.parametrize(
    ("rows", "used"), [([(1, 2, 3), (2, 3, 3)], 3), ([(1, 2, 1), (2, 3, 2)], 1), ([(1, 5, 7)], 7)]
)
def test_the_description_that_samples_use_is_told(
    rows: list[tuple[int, int, int]], used: int
) -> None:
    entries = [visual_entry(compressor=bytes([number])) for number in range(1, 8)]
    chunks = [(1000,), (2000,)][: len(rows)]
    found = read(stsd=stsd(*entries), stsc=counted(*rows), stco=counted(*chunks))
    assert found.sample_entry == entries[used - 1]


@pytest.mark.parametrize(
    ("rows", "times"),
    [
        ([(5, 1)], [0, 1, 2, 3, 4]),
        ([(2, 10), (3, 20)], [0, 10, 20, 40, 60]),
        ([(1, 7), (4, 8), (0, 9)], [0, 7, 15, 23, 31]),
        ([(4, 512), (1, 0)], [0, 512, 1024, 1536, 2048]),
        ([(5, 2**31 - 1)], [number * (2**31 - 1) for number in range(5)]),
        ([(4, 2**31 - 1), (1, 1)], [number * (2**31 - 1) for number in range(5)]),
    ],
)
def test_durations_add_up_to_times(rows: list[tuple[int, int]], times: list[int]) -> None:
    found = read(stts=counted(*rows))
    assert found.presentation_times.tolist() == times
    assert found.presentation_times.dtype == np.int64


@pytest.mark.parametrize("rows", [[(1, 0)], [(1, 512)], [(0, 3), (1, 0)]])
def test_a_single_frame_may_last_no_time(rows: list[tuple[int, int]]) -> None:
    found = read(
        stts=counted(*rows),
        stsz=stsz(10),
        stsc=counted((1, 1, 1)),
        stco=counted((1000,)),
        stss=None,
    )
    assert found.presentation_times.tolist() == [0]
    assert found.presentation_times.dtype == np.int64


def signed(offset: int) -> int:
    """Return how an offset below zero is stored."""
    return offset % 2**32


def test_composition_offsets_give_the_times_of_presentation() -> None:
    offsets = [(1, 1024), (1, 2048), (1, signed(-1024)), (1, signed(-1000)), (1, 1)]
    found = read(ctts=counted(*offsets))
    assert found.presentation_times.tolist() == [1024, 2560, 0, 536, 2049]
    assert found.presentation_times.dtype == np.int64


def test_composition_offsets_that_meet_put_two_frames_at_one_time() -> None:
    offsets = [(1, 2048), (3, 0), (1, 0)]
    assert unsupported(ctts=counted(*offsets)) == "two frames at the same time"
    # Equal decode times may be told apart by them.
    apart = counted((1, 0), (1, 1), (1, 2), (1, 3), (1, 4))
    assert read(stts=counted((5, 0)), ctts=apart).presentation_times.tolist() == [0, 1, 2, 3, 4]


def test_a_row_of_composition_offsets_stands_for_many_samples() -> None:
    found = read(ctts=counted((3, 5), (0, 9), (2, signed(-(2**31)))))
    shifts = found.presentation_times - np.arange(0, 5 * 512, 512)
    assert shifts.tolist() == [5, 5, 5, -(2**31), -(2**31)]


def test_without_a_keyframe_table_every_frame_is_one() -> None:
    found = read(stss=None)
    assert found.keyframes.tolist() == [True] * 5
    assert found.keyframes.dtype == np.bool_


@pytest.mark.parametrize(("numbers", "first"), [([1], 0), ([5, 2, 2], 1), ([5], 4)])
def test_keyframes_are_numbered_from_one(numbers: list[int], first: int) -> None:
    found = read(stss=counted(*[(number,) for number in numbers]))
    assert found.keyframes.nonzero()[0].tolist() == sorted({n - 1 for n in numbers})
    assert found.keyframes.argmax() == first
