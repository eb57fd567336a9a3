"""Read the index of an MP4 clip: where its coded samples lie, and when each is shown.

Only ``moov`` is read. Whatever the numbers in it say is checked against the file's size before
anything is allocated or computed from it, so that a broken or hostile file costs an error.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from leconvert.errors import UnreadableSourceError
from leconvert.media.boxes import Span, broken, children, read_moov
from leconvert.media.errors import UnsupportedClipError
from leconvert.media.sample_entry import IDENTITY_MATRIX, config_digest
from leconvert.media.sample_tables import SampleTables, read_sample_tables

__all__ = [
    "ClipIndex",
    "byte_runs",
    "order_digest",
    "presentation_ranks",
    "read_clip_index",
    "samples_sha256",
]

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_MAX_TIMESCALE = 2**31 - 1
_READ_BYTES = 4 * 1024**2
_NORMAL_RATE = 0x10000

_U32 = Struct(">I")
_MDHD = {0: Struct(">4xIIII"), 1: Struct(">4xQQIQ")}
_EDIT = {0: Struct(">Iii"), 1: Struct(">Qqi")}
# Where the display matrix begins in the payload of tkhd.
_MATRIX_PLACE = {0: 40, 1: 52}
_MATRIX_BYTES = 36
# Matrix, width and height.
_GEOMETRY_BYTES = _MATRIX_BYTES + 8


@dataclass(frozen=True, slots=True, eq=False)
class ClipIndex:
    """The index of a clip's one video track; arrays have shape (S,), in decode order.

    It guarantees that every sample lies inside the file as it was when the index was read, that no
    two samples have the same presentation time, and that the samples' bytes together are no more
    than the file. It does not guarantee that the samples decode, nor that the file stays as it is.

    Attributes:
        path: The file.
        file_size_bytes: Its size.
        codec: Four characters, such as ``avc1`` or ``av01``.
        width: Coded width in pixels.
        height: Coded height in pixels.
        timescale: Ticks a second of the times below.
        sizes: Bytes of each sample.
        offsets: Where each sample begins, from the start of the file.
        decode_times: Ticks; shifted by the edit list as the presentation times are.
        presentation_times: Ticks, the edit list applied: usually the first frame shown is at 0.
        keyframes: Whether decoding can start at the sample.
        sample_entry: The sample entry as it stands, box header included.
        config_key: Clips with equal keys can share one file; see ``config_digest``.
        other_tracks: Handler types of tracks that are left out, such as ``soun``.
        geometry: Display matrix, width and height of the track as in ``tkhd``, 44 bytes.
    """

    path: str
    file_size_bytes: int
    codec: str
    width: int
    height: int
    timescale: int
    sizes: IntArray
    offsets: IntArray
    decode_times: IntArray
    presentation_times: IntArray
    keyframes: BoolArray
    sample_entry: bytes
    config_key: str
    other_tracks: tuple[str, ...]
    geometry: bytes

    @property
    def num_samples(self) -> int:
        """Number of coded samples, S."""
        return len(self.sizes)

    @property
    def ranks(self) -> IntArray:
        """Place of each sample in the order of presentation, shape (S,)."""
        return presentation_ranks(self.presentation_times)


class _Track(NamedTuple):
    handler: str
    media: dict[bytes, Span]
    boxes: dict[bytes, Span]


def read_clip_index(path: str | os.PathLike[str]) -> ClipIndex:
    """Read the index of a clip.

    Args:
        path: An MP4 (or QuickTime) file.

    Raises:
        UnreadableSourceError: The file is missing, truncated, damaged, encrypted, has no video
            track, or keeps its media elsewhere.
        UnsupportedClipError: The file may be sound, but its samples cannot be joined as they lie.
    """
    name = os.fspath(path)
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size_bytes = os.fstat(descriptor).st_size
            buffer, span = read_moov(descriptor, size_bytes, name)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise UnreadableSourceError(
            f"{name} cannot be read: {error.strerror or error}.",
            path=name,
            next_step="Restore the file from its origin, or drop its episode "
            "(--on-bad-episode drop).",
        ) from error
    return _parse(buffer, span, name, size_bytes)


def presentation_ranks(presentation_times: IntArray) -> IntArray:
    """Return the place of each time in ascending order, equal times in the order given."""
    order = np.argsort(presentation_times, kind="stable")
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    return ranks


def order_digest(
    sizes: IntArray, keyframes: BoolArray, lead: npt.NDArray[np.signedinteger] | None
) -> str:
    """Return a digest of what a join must preserve besides the coded bytes.

    Args:
        sizes: Bytes of each sample in decode order.
        keyframes: Whether decoding can start at the sample.
        lead: Presentation rank minus place in decode order; None where all are 0.

    Returns:
        16 hexadecimal digits (BLAKE2b).
    """
    digest = hashlib.blake2b(np.ascontiguousarray(sizes, np.int64), digest_size=8)
    digest.update(np.packbits(keyframes))
    if lead is not None and lead.any():
        digest.update(np.ascontiguousarray(lead, np.int32))
    return digest.hexdigest()


def byte_runs(offsets: IntArray, sizes: IntArray) -> tuple[IntArray, IntArray]:
    """Merge samples that follow each other in the file.

    Returns:
        Start and length in bytes of each run, in the order of the samples.
    """
    if not len(offsets):
        return offsets, sizes
    ends = offsets + sizes
    heads = np.flatnonzero(np.concatenate(([True], offsets[1:] != ends[:-1])))
    return offsets[heads], np.add.reduceat(sizes, heads)


def samples_sha256(index: ClipIndex, first: int = 0, stop: int | None = None) -> str:
    """Return the SHA-256 of coded samples, concatenated in decode order.

    Args:
        index: Of the file that holds them; the file is opened and read, a few MiB at a time.
        first: The first sample.
        stop: The sample after the last; None for all.

    Raises:
        UnreadableSourceError: The file cannot be read, or is shorter than its index says.
    """
    digest = hashlib.sha256()
    starts, lengths = byte_runs(index.offsets[first:stop], index.sizes[first:stop])
    try:
        with open(index.path, "rb", buffering=0) as file:  # noqa: PTH123 (unbuffered, by name)
            for piece in _pieces(file.fileno(), starts, lengths, index.path):
                digest.update(piece)
    except OSError as error:
        raise UnreadableSourceError(
            f"{index.path} cannot be read: {error.strerror or error}.",
            path=index.path,
            next_step="Check the disk or the network and run the same command again.",
        ) from error
    return digest.hexdigest()


def _pieces(
    descriptor: int, starts: IntArray, lengths: IntArray, path: str
) -> Iterator[memoryview]:
    buffer = memoryview(bytearray(min(_READ_BYTES, int(lengths.max(initial=1)))))
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        done = 0
        while done < length:
            room = buffer[: min(len(buffer), length - done)]
            count = os.preadv(descriptor, [room], start + done)
            if not count:
                raise broken(path, "it is shorter than its index says")
            yield room[:count]
            done += count


def _parse(buffer: bytes, moov: Span, path: str, size_bytes: int) -> ClipIndex:
    movie_timescale = 0
    tracks = []
    for kind, body, stop in children(buffer, moov, path):
        if kind == b"trak":
            tracks.append(_read_track(buffer, (body, stop), path))
        elif kind == b"mvhd":
            movie_timescale, _ = _media_header(buffer, (body, stop), path)
        elif kind == b"mvex":
            raise UnsupportedClipError("fragmented MP4", path=path)
        elif kind in {b"cmov", b"rmra"}:
            raise UnsupportedClipError(
                "a QuickTime file with a compressed or foreign index", path=path
            )
    video = [track for track in tracks if track.handler == "vide"]
    others = tuple(track.handler for track in tracks if track.handler != "vide")
    if not video:
        raise broken(path, "it has no video track")
    if len(video) > 1:
        raise UnsupportedClipError(f"{len(video)} video tracks", path=path)
    track = video[0]
    timescale, _ = _media_header(buffer, _need(track.media, b"mdhd", path), path)
    tables = read_sample_tables(buffer, track.boxes, size_bytes, path)
    entry = tables.sample_entry
    shift = _edit_shift(
        buffer,
        track.boxes.get(b"elst"),
        path,
        tables=tables,
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
        offsets=tables.offsets,
        decode_times=decode_times,
        presentation_times=presentation_times,
        keyframes=tables.keyframes,
        sample_entry=entry,
        config_key=config_digest(entry, geometry[:_MATRIX_BYTES]),
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
    if not 0 < timescale <= _MAX_TIMESCALE:
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


def _edit_shift(
    buffer: bytes,
    span: Span | None,
    path: str,
    *,
    tables: SampleTables,
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
        if tables.first_shown < media_time:
            raise UnsupportedClipError("an edit list that hides frames at the start", path=path)
        if not movie_timescale:
            raise broken(path, "it has no movie header")
        if tables.last_shown >= media_time + _rescale(duration, timescale, movie_timescale):
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
