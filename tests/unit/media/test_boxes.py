"""Boxes are found by few reads, and no size that a file states is believed."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from leconvert.media import UnsupportedClipError, boxes
from leconvert.media.boxes import MOOV_LIMIT_BYTES, Moov, Span, read_moov, wanted_boxes
from leconvert.support.errors import UnreadableSourceError

HEAD_BYTES = 8192
DESCRIPTOR = 7


def box(kind: bytes, payload: bytes = b"", size: int | None = None) -> bytes:
    return struct.pack(">I4s", 8 + len(payload) if size is None else size, kind) + payload


def wide_box(kind: bytes, payload: bytes = b"", size: int | None = None) -> bytes:
    size_bytes = 16 + len(payload) if size is None else size
    return struct.pack(">I4sQ", 1, kind, size_bytes) + payload


class Reads:
    """Reads from bytes as ``os.pread`` does from a file, and notes what was asked for."""

    def __init__(self, content: bytes, *, most_bytes: int | None = None) -> None:
        self.asked: list[tuple[int, int]] = []
        self._content = content
        self._most_bytes = most_bytes

    def __call__(self, descriptor: int, count: int, position: int) -> bytes:
        assert descriptor == DESCRIPTOR
        self.asked.append((count, position))
        found = self._content[position : position + count]
        return found if self._most_bytes is None else found[: self._most_bytes]


def moov_of(
    content: bytes, *, size_bytes: int | None = None, most_bytes: int = MOOV_LIMIT_BYTES
) -> tuple[bytes | None, list[tuple[int, int]]]:
    """Return the payload of moov and what was read: (bytes, position) each."""
    pread = Reads(content)
    size = len(content) if size_bytes is None else size_bytes
    found = read_moov(DESCRIPTOR, size, "clip.mp4", most_bytes=most_bytes, pread=pread)
    if found is None:
        return None, pread.asked
    buffer, (start, stop) = found[:2]
    return buffer[start:stop], pread.asked


def refusal(content: bytes, **options: int) -> str:
    with pytest.raises(UnreadableSourceError) as caught:
        moov_of(content, **options)
    assert caught.value.path == "clip.mp4"
    before = "clip.mp4 is not a readable video: "
    assert caught.value.message.startswith(before)
    return caught.value.message.removeprefix(before)


@pytest.mark.parametrize("left", [7, 8, 15, 16])
def test_a_header_that_the_window_cuts_is_read_again(left: int) -> None:
    front = box(b"free", bytes(HEAD_BYTES - left - 8))
    content = front + wide_box(b"moov", b"index") + box(b"mdat", bytes(80))
    again = [(len(content) - len(front), len(front))] if left < 16 else []
    rest = [(5 + 88, len(front) + 16)] if left == 16 else []
    assert moov_of(content) == (b"index", [(HEAD_BYTES, 0), *again, *rest])


def test_an_index_beyond_256_mib_is_refused_before_it_is_read() -> None:
    front = box(b"ftyp", b"isom")
    largest = front + box(b"moov", b"", MOOV_LIMIT_BYTES)
    size = len(front) + MOOV_LIMIT_BYTES
    assert moov_of(largest, size_bytes=size, most_bytes=MOOV_LIMIT_BYTES - 1)[0] is None
    larger = front + box(b"moov", b"", MOOV_LIMIT_BYTES + 1)
    with pytest.raises(UnsupportedClipError) as caught:
        moov_of(larger, size_bytes=size + 1)
    assert caught.value.reason == "its index (moov) is larger than 256 MiB"
    assert caught.value.path == "clip.mp4"
    words = refusal(larger, size_bytes=size)
    assert words == "its index (moov) reaches beyond the end of the file."


@pytest.mark.parametrize("make", [box, wide_box])
def test_a_size_of_zero_means_to_the_end_of_the_file(make: Callable[..., bytes]) -> None:
    front = make(b"ftyp", b"isom")
    assert moov_of(front + box(b"moov", b"index", 0))[0] == b"index"
    assert "no index" in refusal(front + box(b"mdat", b"media", 0) + box(b"moov", b"index"))


@pytest.mark.parametrize(
    ("second", "is_possible"),
    [
        (box(b"free", b"", 7), False),
        (box(b"free", b"", 8), True),
        (wide_box(b"free", b"", 15), False),
        (wide_box(b"free", b"", 16), True),
        (wide_box(b"free", b"", 0), False),
    ],
)
def test_a_box_smaller_than_its_own_header_is_refused_with_its_place(
    second: bytes, is_possible: bool
) -> None:
    content = box(b"ftyp", b"isom") + second + box(b"moov", b"index")
    if is_possible:
        assert moov_of(content)[0] == b"index"
    else:
        assert refusal(content) == "the box at byte 12 has an impossible size."


@pytest.mark.parametrize(
    "rest",
    [
        b"",
        b"\0\0\0\x08moo",
        box(b"moov", b"", 1),
        wide_box(b"moov", b"index")[:15],
        box(b"free", b"", 1000),
    ],
    ids=["nothing", "half a header", "no large size", "half a large size", "a box cut off"],
)
def test_a_file_that_ends_before_its_index_is_said_to_be_truncated(rest: bytes) -> None:
    words = "it has no index (moov); probably the file is cut off."
    assert refusal(box(b"ftyp") + rest) == words


def test_an_index_that_comes_in_pieces_is_put_together() -> None:
    payload = bytes(range(256)) * 500
    content = box(b"moov", payload)
    pread = Reads(content, most_bytes=HEAD_BYTES)
    found = read_moov(DESCRIPTOR, len(content), "clip.mp4", pread=pread)
    assert found == Moov(content, (8, len(content)), 0, (0, 0), 0)
    rest = range(HEAD_BYTES, len(content), HEAD_BYTES)
    assert pread.asked == [(HEAD_BYTES, 0), *((len(content) - done, done) for done in rest)]


def test_an_index_that_shrinks_while_it_is_read_is_refused() -> None:
    content = box(b"moov", bytes(10_000))
    for length in (HEAD_BYTES, 9000):
        pread = Reads(content[:length])
        with pytest.raises(UnreadableSourceError) as caught:
            read_moov(DESCRIPTOR, len(content), "clip.mp4", pread=pread)
        words = "it became shorter while it was read"
        assert caught.value.message == f"clip.mp4 is not a readable video: {words}."
        assert len(pread.asked) < 5


INDEX = box(b"moov", b"index")


@pytest.mark.parametrize(
    ("content", "media", "media_bytes"),
    [
        (box(b"mdat", b"abc") + INDEX, (8, 11), 3),
        (INDEX + box(b"free", b"xx") + box(b"mdat", b"abc"), (31, 34), 3),
        (wide_box(b"mdat", b"abc") + box(b"free") + INDEX, (16, 19), 3),
        (box(b"mdat", b"abc") + INDEX + box(b"mdat", b"de") + box(b"mfra", b"z"), (8, 34), 5),
        (INDEX + box(b"mdat", b"abc", 0), (21, 24), 3),
        (INDEX + box(b"mdat", b"abc", 1000), (21, 24), 3),
        (box(b"mdat", b"abc") + INDEX + bytes(16), (8, 11), 3),
        (box(b"moov", bytes(5000)) + box(b"free") + box(b"mdat", bytes(900)), (5024, 5924), 900),
    ],
)  # fmt: skip
def test_the_media_is_what_all_boxes_of_it_hold_wherever_they_lie(
    content: bytes, media: Span, media_bytes: int
) -> None:
    pread = Reads(content)
    found = read_moov(DESCRIPTOR, len(content), "clip.mp4", pread=pread)
    assert (found.media, found.media_bytes) == (media, media_bytes)
    assert sum(count for count, _ in pread.asked) <= HEAD_BYTES + 5000 + 2 * 16


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (b"\x1aE\xdf\xa3", "a Matroska or WebM file, not an MP4"),
        (b"RIFF1234AVI ", "an AVI file, not an MP4"),
        (b"FLV\x01", "an FLV file, not an MP4"),
        (b"OggS", "an Ogg file, not an MP4"),
        (b"\x00\x00\x01\xba", "an MPEG program stream, not an MP4"),
        (b"G".ljust(188, b"\0") + b"G", "an MPEG transport stream, not an MP4"),
    ],
)
def test_another_container_is_named(head: bytes, reason: str) -> None:
    with pytest.raises(UnsupportedClipError) as caught:
        moov_of(head)
    assert (caught.value.reason, caught.value.path) == (reason, "clip.mp4")


def found_in(content: bytes) -> tuple[dict[bytes, bytes], list[dict[bytes, bytes]]]:
    """Return what the wanted boxes of an index hold: the movie's own, and those of each track."""
    before = b"before"
    moov = Moov(before + content + b"after", (6, 6 + len(content)), 0, (0, 0), 0)
    movie, tracks = wanted_boxes(moov, "clip.mp4")
    found = [
        {kind: moov.buffer[start:stop] for kind, (start, stop) in each.items()}
        for each in (movie, *tracks)
    ]
    return found[0], found[1:]


def track(*boxes_inside: bytes, handler: bytes = b"vide", tables: bytes = b"") -> bytes:
    media = box(b"hdlr", bytes(8) + handler) + box(b"minf", box(b"stbl", tables))
    return box(b"trak", b"".join(boxes_inside) + box(b"mdia", media))


def test_wanted_boxes_are_found_wherever_others_lie_and_others_passed_over() -> None:
    content = box(b"free") + box(b"mvhd", b"movie") + track(
        wide_box(b"tkhd", b"track"),
        box(b"edts", box(b"elst", b"edits")),
        box(b"meta", box(b"tkhd", b"none")),
        tables=box(b"sdtp", b"s") + box(b"stsz", b"sizes") + box(b"stco"),
    ) + box(b"mvex", b"more")  # fmt: skip
    movie, (video,) = found_in(content)
    assert movie == {b"mvhd": b"movie", b"mvex": b"more"}
    del video[b"hdlr"]
    assert video == {b"tkhd": b"track", b"elst": b"edits", b"stsz": b"sizes", b"stco": b""}


def test_the_tables_of_another_track_than_a_video_are_not_looked_at() -> None:
    broken = box(b"stsz", b"", 99)
    _, (sound, video) = found_in(track(handler=b"soun", tables=broken) + track())
    assert list(sound) == list(video) == [b"hdlr"]
    with pytest.raises(UnreadableSourceError):
        found_in(track(tables=broken))


def test_of_edit_lists_the_last_counts_and_other_boxes_may_not_be_there_twice() -> None:
    edits = box(b"edts", box(b"elst", b"one") + box(b"elst", b"two"))
    _, (video,) = found_in(track(edits))
    assert video[b"elst"] == b"two"
    twice = box(b"stsz", b"one") + box(b"stsz", b"two")
    with pytest.raises(UnsupportedClipError, match="two stsz boxes"):
        found_in(track(tables=twice))


def test_random_access_groups_are_refused_and_others_are_not() -> None:
    other, random_access = (box(b"sbgp", bytes(4) + kind + bytes(4)) for kind in (b"roll", b"rap "))
    found_in(track(tables=other))
    with pytest.raises(UnsupportedClipError, match="random access groups"):
        found_in(track(tables=other + random_access))


def test_an_index_is_walked_as_if_no_other_of_its_size_was_walked_before() -> None:
    content = (
        box(b"mvhd", b"movie")
        + track(handler=b"soun", tables=box(b"stsz", b"sound"))
        + track(
            box(b"edts", wide_box(b"elst", b"edits")),
            tables=box(b"sbgp", bytes(4) + b"rap!") + box(b"stsz", b"sizes") + box(b"stco"),
        )
        + box(b"mvex", b"more", 0)
    )

    def outcome(changed: bytes) -> object:
        try:
            return found_in(changed)
        except UnreadableSourceError as error:
            return type(error), str(error)

    known = outcome(content)
    different = 0
    for place in range(len(content)):
        for byte in {0, 1, 0x80, *b" v", content[place] ^ 1} - {content[place]}:
            changed = content[:place] + bytes((byte,)) + content[place + 1 :]
            assert outcome(content) == known
            after_the_other = outcome(changed)
            boxes._WALKS.clear()  # as a process that reads this index first
            assert after_the_other == outcome(changed), place
            different += after_the_other != known
    assert different > len(content)


@pytest.mark.parametrize("rest", [b"", bytes(7), bytes(8), bytes(16), bytes(4) + b"\0\0\0\0moov"])
def test_what_quicktime_leaves_behind_the_last_box_is_ignored(rest: bytes) -> None:
    movie, (video,) = found_in(box(b"trak", box(b"tkhd", b"track") + rest) + box(b"mvhd"))
    assert (movie, video) == ({b"mvhd": b""}, {b"tkhd": b"track"})


def test_the_last_box_may_reach_to_the_end() -> None:
    assert found_in(box(b"mvex") + box(b"mvhd", b"movie", 0))[0][b"mvhd"] == b"movie"
    assert found_in(box(b"mvex") + wide_box(b"mvhd"))[0] == {b"mvex": b"", b"mvhd": b""}


@pytest.mark.parametrize(
    "child",
    [
        box(b"elst", b"", 2),
        box(b"elst", b"", 7),
        box(b"elst", b"", 9),
        box(b"elst", b"", 1),
        box(b"elst", b"1234567", 1),
        wide_box(b"elst", b"", 15),
        wide_box(b"elst", b"", 17),
        wide_box(b"elst", b"", 2**64 - 1),
    ],
)
def test_a_box_that_does_not_fit_is_refused(child: bytes) -> None:
    words = "a box of its index reaches beyond the one around it"
    for content in (child, track(box(b"edts", box(b"free") + child))):
        with pytest.raises(UnreadableSourceError) as caught:
            found_in(content)
        assert caught.value.message == f"clip.mp4 is not a readable video: {words}."
