"""Read the index of a clip of any shape: whatever is sound is read, the rest refused with a reason.

``plain.py`` does the same for clips of the usual shape, several times faster, and leaves every
other to this module.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from leconvert.media.boxes import Span, broken, children
from leconvert.media.clip import ClipIndex
from leconvert.media.errors import UnsupportedClipError
from leconvert.media.sample_description import check_one_configuration
from leconvert.media.sample_entry import IDENTITY_MATRIX, config_digest
from leconvert.media.sample_tables import read_sample_tables

__all__ = ["MATRIX_BYTES", "MAX_TIMESCALE", "edit_shift", "parse_moov"]

MAX_TIMESCALE = 2**31 - 1
MATRIX_BYTES = 36
_NORMAL_RATE = 0x10000

_U32 = Struct(">I")
_MDHD = {0: Struct(">4xIIII"), 1: Struct(">4xQQIQ")}
_EDIT = {0: Struct(">Iii"), 1: Struct(">Qqi")}
# Where the display matrix begins in the payload of tkhd.
_MATRIX_PLACE = {0: 40, 1: 52}
# Matrix, width and height.
_GEOMETRY_BYTES = MATRIX_BYTES + 8


class _Track(NamedTuple):
    handler: str
    media: dict[bytes, Span]
    boxes: dict[bytes, Span]


def parse_moov(buffer: bytes, moov: Span, path: str, size_bytes: int) -> ClipIndex:
    """Read the index of a clip of any shape.

    Args:
        buffer: Holds the ``moov`` box.
        moov: Its payload.
        path: The file, for errors and the result.
        size_bytes: The file's size.

    Raises:
        UnreadableSourceError: The index is damaged, or has no video.
        UnsupportedClipError: The samples cannot be joined as they lie.
    """
    movie_timescale = 0
    is_fragmented = False
    tracks = []
    for kind, body, stop in children(buffer, moov, path):
        if kind == b"trak":
            tracks.append(_read_track(buffer, (body, stop), path))
        elif kind == b"mvhd":
            movie_timescale, _ = _media_header(buffer, (body, stop), path)
        elif kind == b"mvex":
            is_fragmented = True
        elif kind in {b"cmov", b"rmra"}:
            raise UnsupportedClipError(
                "a QuickTime file with a compressed or foreign index", path=path
            )
    video = [track for track in tracks if track.handler == "vide"]
    others = tuple(track.handler for track in tracks if track.handler != "vide")
    if is_fragmented:
        for track in video:
            check_one_configuration(buffer, track.boxes, path)
        raise UnsupportedClipError("fragmented MP4", path=path)
    if not video:
        raise broken(path, "it has no video track")
    if len(video) > 1:
        raise UnsupportedClipError(f"{len(video)} video tracks", path=path)
    track = video[0]
    timescale, _ = _media_header(buffer, _need(track.media, b"mdhd", path), path)
    tables = read_sample_tables(buffer, track.boxes, size_bytes, path)
    entry = tables.sample_entry
    shift = edit_shift(
        buffer,
        track.boxes.get(b"elst"),
        path,
        first_shown=tables.first_shown,
        last_shown=tables.last_shown,
        timescale=timescale,
        movie_timescale=movie_timescale,
    )
    geometry = _geometry(buffer, track.boxes.get(b"tkhd"), entry, path)
    decode_times, presentation_times = tables.decode_times, tables.shown_times
    if shift:
        decode_times, presentation_times = decode_times + shift, presentation_times + shift
    return ClipIndex(
        path=path,
        file_size_bytes=size_bytes,
        codec=entry[4:8].decode("latin-1"),
        width=int.from_bytes(entry[32:34], "big"),
        height=int.from_bytes(entry[34:36], "big"),
        timescale=timescale,
        sizes=tables.sizes,
        num_bytes=int(tables.sizes.sum()),
        places=tables.offsets,
        decoded=decode_times,
        shown=presentation_times,
        keyframes=tables.keyframes,
        sample_entry=entry,
        config_key=config_digest(entry, geometry[:MATRIX_BYTES]),
        other_tracks=others,
        geometry=geometry,
    )


def _read_track(buffer: bytes, span: Span, path: str) -> _Track:
    """Collect the boxes of a track that matter, whatever holds them."""
    boxes: dict[bytes, Span] = {}
    media: dict[bytes, Span] = {}
    for kind, body, stop in children(buffer, span, path):
        if kind == b"mdia":
            media = {name: (a, b) for name, a, b in reversed(children(buffer, (body, stop), path))}
        elif kind == b"edts":
            boxes.update({name: (a, b) for name, a, b in children(buffer, (body, stop), path)})
        else:
            boxes.setdefault(kind, (body, stop))
    start, stop = media.get(b"hdlr", (0, 0))
    if stop - start < 12:
        raise broken(path, "a track of it has no handler")
    handler = buffer[start + 8 : start + 12].decode("latin-1")
    if handler == "vide":
        for kind, body, end in children(buffer, _need(media, b"minf", path), path):
            if kind in {b"stbl", b"dinf"}:
                for name, a, b in children(buffer, (body, end), path):
                    boxes.setdefault(name, (a, b))
                    if name == b"sbgp" and buffer[a + 4 : min(a + 8, b)] == b"rap ":
                        raise UnsupportedClipError("random access groups", path=path)
    return _Track(handler, media, boxes)


def _need(boxes: dict[bytes, Span], kind: bytes, path: str) -> Span:
    if kind not in boxes:
        raise broken(path, f"its video track has no {kind.decode('latin-1')} box")
    return boxes[kind]


def _media_header(buffer: bytes, span: Span, path: str) -> tuple[int, int]:
    """Return timescale and duration of an ``mdhd`` or ``mvhd`` box."""
    start, stop = span
    layout = _MDHD.get(buffer[start]) if stop > start else None
    if layout is None or start + layout.size > stop:
        raise broken(path, "a media header of it is too short or of an unknown version")
    _, _, timescale, duration = layout.unpack_from(buffer, start)
    if not 0 < timescale <= MAX_TIMESCALE:
        raise broken(path, "its timescale is impossible")
    return timescale, duration


def _geometry(buffer: bytes, span: Span | None, entry: bytes, path: str) -> bytes:
    if span is None:
        width, height = entry[32:34], entry[34:36]
        return IDENTITY_MATRIX + width + b"\0\0" + height + b"\0\0"
    start, stop = span
    place = _MATRIX_PLACE.get(buffer[start]) if stop > start else None
    if place is None or start + place + _GEOMETRY_BYTES > stop:
        raise broken(path, "its track header is too short or of an unknown version")
    return buffer[start + place : start + place + _GEOMETRY_BYTES]


def edit_shift(
    buffer: bytes,
    span: Span | None,
    path: str,
    *,
    first_shown: int,
    last_shown: int,
    timescale: int,
    movie_timescale: int,
) -> int:
    """Return what the edit list adds to every time, in ticks of the track.

    Supported is what a muxer writes for a plain clip: any empty edits (a late start), then one
    edit that shows every sample at normal speed. Hidden means what FFmpeg makes of it, since that
    is what loaders saw of the source: an edit of no duration hides everything.
    """
    if span is None:
        return 0
    start, stop = span
    layout = _EDIT.get(buffer[start]) if stop >= start + 8 else None
    if layout is None:
        raise broken(path, "its edit list is too short or of an unknown version")
    count = _U32.unpack_from(buffer, start + 4)[0]
    if start + 8 + count * layout.size > stop:
        raise broken(path, "its edit list is longer than the box that holds it")
    delay = 0
    for number in range(min(count, 64)):
        duration, media_time, rate = layout.unpack_from(buffer, start + 8 + number * layout.size)
        if media_time == -1:
            delay += duration
            continue
        if rate != _NORMAL_RATE:
            raise UnsupportedClipError("an edit list that changes the speed", path=path)
        if number + 1 != count:
            raise UnsupportedClipError("an edit list of several parts", path=path)
        if media_time < 0:
            raise broken(path, "its edit list begins before its media")
        if first_shown < media_time:
            raise UnsupportedClipError("an edit list that hides frames at the start", path=path)
        if not movie_timescale:
            raise broken(path, "it has no movie header")
        if last_shown >= media_time + _rescale(duration, timescale, movie_timescale):
            raise UnsupportedClipError("an edit list that hides frames at the end", path=path)
        shift: int = _rescale(delay, timescale, movie_timescale) - media_time
        if abs(shift) >= 2**62:
            raise broken(path, "its edit list has impossible times")
        return shift
    if count:
        raise UnsupportedClipError("an edit list that shows nothing", path=path)
    return 0


def _rescale(ticks: int, to_timescale: int, from_timescale: int) -> int:
    """Convert ticks between timescales, rounded to the nearest."""
    return (2 * ticks * to_timescale + from_timescale) // (2 * from_timescale)
