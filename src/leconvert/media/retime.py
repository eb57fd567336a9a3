"""Give the frames of an MP4 their exact times by changing its index, and nothing else of it.

The one time rule is that of `leconvert.media.header`: the frame of rank *i* in the order of
presentation is shown at i / fps. Where the timescale of the track holds 1 / fps exactly, a time
table of one row says that. It is shorter than the one it replaces, and a ``free`` box behind it,
inside ``stbl``, fills what is left: so ``moov`` keeps its size, no sample moves, and what changes
is one short run of bytes. Durations in ``mvhd``, ``tkhd``, ``mdhd`` and the edit list follow from
the times.

Where that cannot be done (another timescale is needed, or there is no room for a table), there is
no patch, and the samples are joined into a new file instead (`leconvert.media.join_clips`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from struct import Struct, pack_into
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from leconvert.media.boxes import Span, broken, read_moov, unreadable
from leconvert.media.clip import ClipIndex
from leconvert.media.index import parse_moov
from leconvert.media.join import RangeMover, create_file
from leconvert.support.errors import SourceChangedError

IntArray = npt.NDArray[np.int64]

_U32 = Struct(">I")
_LARGE_SIZE = Struct(">Q")
_CHILDREN_LIMIT = 256
_BOX = Struct(">I4s")
_UINT32_MAX = 2**32 - 1
# Whole blocks of this size are cloned where a file system can; what is smaller is copied.
_BLOCK_BYTES = 4096
# Bytes of a counted table's box before its rows: size, type, version and flags, count.
_TABLE_HEADER_BYTES = 16
_ROW_BYTES = 8
# Where the duration stands in the payload of each box, by its version; 4 bytes, or 8 in version 1.
_DURATION_PLACE = {b"mvhd": (16, 24), b"tkhd": (20, 28), b"mdhd": (16, 24)}


@dataclass(frozen=True, slots=True)
class Patch:
    """One run of bytes of a file that become others; the file keeps its size.

    Attributes:
        offset: Where in the file the run begins.
        old: What stands there.
        new: What shall stand there, of the same length.
    """

    offset: int
    old: bytes
    new: bytes


@dataclass(frozen=True, slots=True)
class CopiedFile:
    """How the bytes of a copy came.

    Attributes:
        size_bytes: Size of the file.
        copied_bytes: Bytes that were copied.
        cloned_bytes: Bytes whose blocks are shared with the source.
    """

    size_bytes: int
    copied_bytes: int
    cloned_bytes: int


class _NoRoom(Exception):  # noqa: N818 - an answer that ends a search, never seen outside
    """The index cannot hold the exact times without growing, or without another timescale."""


class _Boxes(NamedTuple):
    """Payloads of the boxes that say times, as places in the buffer."""

    movie: Span
    track: Span
    media: Span
    edits: Span | None
    times: Span
    offsets: Span | None
    other_durations: tuple[int, ...]


def retiming(path: str | os.PathLike[str], fps: Fraction) -> Patch | None:
    """Return the patch that gives each frame of a file its exact time.

    The patch is empty (``old == new``, no bytes) where all times are exact already.

    Args:
        path: An MP4 with one video track, as `read_clip_index` reads it.
        fps: Frames a second.

    Returns:
        The patch, or None where no index of the same size can say these times.
    """
    name = os.fspath(path)
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size_bytes = os.fstat(descriptor).st_size
            found = read_moov(descriptor, size_bytes, name)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise unreadable(name, error) from error
    assert found is not None, "no moov is larger than the limit"
    buffer, moov, begin = found[:3]
    index = parse_moov(found, name, size_bytes)
    old = found.payload
    new = retimed_moov(buffer, moov, index, fps)
    if new is None:
        return None
    differing = np.flatnonzero(np.frombuffer(old, np.uint8) != np.frombuffer(new, np.uint8))
    first, stop = (int(differing[0]), int(differing[-1]) + 1) if len(differing) else (0, 0)
    return Patch(begin + moov[0] + first, old[first:stop], new[first:stop])


def retimed_moov(buffer: bytes, moov: Span, index: ClipIndex, fps: Fraction) -> bytes | None:
    """Return the payload of ``moov`` with exact times, of the same length; None where none can be.

    A pure function: what it takes is what was read, what it returns parses as the same samples in
    the same order.
    """
    ticks = index.timescale * fps.denominator / fps.numerator
    frame_ticks = index.timescale * fps.denominator // fps.numerator
    if ticks != frame_ticks or not frame_ticks:
        return None
    try:
        boxes = _find_boxes(buffer, moov, index.path)
        return _rewritten(buffer, moov, boxes, index, frame_ticks)
    except _NoRoom:
        return None


def _rewritten(
    buffer: bytes, moov: Span, boxes: _Boxes, index: ClipIndex, frame_ticks: int
) -> bytes:
    lead = (index.ranks - np.arange(index.num_samples)).astype(np.int64)
    lag = max(0, -int(lead.min()))
    if lag and boxes.edits is None:
        raise _NoRoom  # nothing takes the delay of the first frame back
    if lag and boxes.offsets is None:
        raise _NoRoom
    shift = lag * frame_ticks
    duration = index.num_samples * frame_ticks
    movie_timescale = _U32.unpack_from(buffer, _place(buffer, boxes.movie, 12, 20))[0]
    movie_duration = -(-duration * movie_timescale // index.timescale)

    content = bytearray(buffer)
    _set_duration(content, boxes.movie, b"mvhd", max(movie_duration, *boxes.other_durations, 0))
    _set_duration(content, boxes.track, b"tkhd", movie_duration)
    _set_duration(content, boxes.media, b"mdhd", duration + shift)
    if boxes.edits is not None:
        _set_edit(content, boxes.edits, movie_duration, shift)
    _set_rows(content, boxes.times, np.array([[index.num_samples, frame_ticks]]))
    if boxes.offsets is not None:
        values = lead * frame_ticks + shift
        heads = np.flatnonzero(np.concatenate(([True], values[1:] != values[:-1])))
        counts = np.diff(heads, append=len(values))
        _set_rows(content, boxes.offsets, np.stack([counts, values[heads]], axis=1))
    return bytes(content[moov[0] : moov[1]])


def _find_boxes(buffer: bytes, moov: Span, path: str) -> _Boxes:
    movie: Span | None = None
    video: dict[bytes, Span] = {}
    others: list[int] = []
    for kind, body, stop in children(buffer, moov, path):
        if kind == b"mvhd":
            movie = (body, stop)
        elif kind == b"trak":
            track = _boxes_of_track(buffer, (body, stop), path)
            start = track[b"hdlr"][0] + 8
            if buffer[start : start + 4] == b"vide":
                video = track
            else:
                others.append(_duration(buffer, track[b"tkhd"], b"tkhd"))
    needed = (b"tkhd", b"mdhd", b"stts")
    if movie is None or any(kind not in video for kind in needed):
        raise _NoRoom
    return _Boxes(
        movie,
        video[b"tkhd"],
        video[b"mdhd"],
        video.get(b"elst"),
        video[b"stts"],
        video.get(b"ctts"),
        tuple(others),
    )


_CONTAINERS = frozenset([b"mdia", b"minf", b"stbl", b"edts"])


def _boxes_of_track(buffer: bytes, span: Span, path: str) -> dict[bytes, Span]:
    """Return the payload of each box of a track; one that is there twice is no plain file."""
    found: dict[bytes, Span] = {}
    around = [span]
    while around:
        for kind, body, stop in children(buffer, around.pop(), path):
            if kind in _CONTAINERS:
                around.append((body, stop))
            elif kind in (b"free", b"skip", b"udta", b"sgpd", b"sbgp"):
                continue
            elif found.setdefault(kind, (body, stop)) != (body, stop):
                raise _NoRoom
    return found


def _place(buffer: bytes | bytearray, span: Span, narrow: int, wide: int) -> int:
    return span[0] + (wide if buffer[span[0]] else narrow)


def _duration(buffer: bytes, span: Span, kind: bytes) -> int:
    place = _place(buffer, span, *_DURATION_PLACE[kind])
    return int.from_bytes(buffer[place : place + (8 if buffer[span[0]] else 4)], "big")


def _set_duration(content: bytearray, span: Span, kind: bytes, ticks: int) -> None:
    place = _place(content, span, *_DURATION_PLACE[kind])
    if content[span[0]]:
        pack_into(">Q", content, place, ticks)
    elif ticks > _UINT32_MAX:
        raise _NoRoom
    else:
        pack_into(">I", content, place, ticks)


def _set_edit(content: bytearray, span: Span, duration: int, media_time: int) -> None:
    """Let the one edit show all samples, from the first that is shown."""
    start, _ = span
    if _U32.unpack_from(content, start + 4)[0] != 1:
        raise _NoRoom  # an empty edit before it: a late start
    if content[start]:
        pack_into(">Qq", content, start + 8, duration, media_time)
    elif duration > _UINT32_MAX or media_time > _UINT32_MAX // 2:
        raise _NoRoom
    else:
        pack_into(">Ii", content, start + 8, duration, media_time)


def _set_rows(content: bytearray, span: Span, rows: IntArray) -> None:
    """Write a table of pairs into its box, and a ``free`` box into what is left of it."""
    start, stop = span
    head = start - 8
    size_bytes = _TABLE_HEADER_BYTES + len(rows) * _ROW_BYTES
    left_bytes = stop - head - size_bytes
    is_plain = _U32.unpack_from(content, head)[0] == stop - head  # no 64-bit size
    if left_bytes < 0 or 0 < left_bytes < _BOX.size or not is_plain:
        raise _NoRoom
    if int(rows.max()) > _UINT32_MAX // 2:
        raise _NoRoom
    _U32.pack_into(content, head, size_bytes)
    _U32.pack_into(content, start + 4, len(rows))
    content[start + 8 : head + size_bytes] = rows.astype(">u4").tobytes()
    if left_bytes:
        # What is in a free box means nothing: what stood there stays, and need not be written.
        _BOX.pack_into(content, head + size_bytes, left_bytes, b"free")


# ------------------------------------------------------------------------------------------------
# Copies of files, with a patch put in.


def copy_file(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    patch: Patch | None = None,
    on_bytes: Callable[[int], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    sync: bool = False,
) -> CopiedFile:
    """Copy a file, sharing its blocks where the file system can, and put a patch into the copy.

    The source is read only, and shares no inode with the copy. On any error the target is removed.

    Args:
        source: The file; a link to a file is followed.
        target: Must not exist.
        patch: What to change in the copy.
        on_bytes: Called with the number of bytes as they arrive.
        should_stop: Asked now and then; when it answers True the copy ends.
        sync: Force the copy to the disk.

    Raises:
        UnreadableSourceError: The source cannot be read to its end.
        SourceChangedError: The source does not hold what the patch replaces.
        TargetError: The target exists already.
        StorageError: The target cannot be written.
        InterruptedRunError: ``should_stop`` said so.
    """
    name, new_name = os.fspath(source), os.fspath(target)
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise unreadable(name, error) from error
    try:
        size_bytes = os.fstat(descriptor).st_size
        destination = create_file(new_name)
        try:
            mover = RangeMover(
                destination,
                new_name,
                block_align=_BLOCK_BYTES,
                on_bytes=on_bytes,
                should_stop=should_stop,
            )
            mover.move(descriptor, name, 0, size_bytes, 0)
            if patch is not None and patch.old != patch.new:
                found = os.pread(destination, len(patch.old), patch.offset)
                if found != patch.old:
                    raise SourceChangedError(
                        f"{name} was changed while it was repaired.",
                        path=name,
                        next_step="Run the same command again when nobody writes to the dataset.",
                    )
                mover.write(patch.new, patch.offset)
            if sync:
                os.fsync(destination)
        except BaseException:
            Path(new_name).unlink(missing_ok=True)
            raise
        finally:
            os.close(destination)
    finally:
        os.close(descriptor)
    return CopiedFile(size_bytes, mover.copied_bytes, mover.cloned_bytes)


def children(buffer: bytes, span: Span, path: str) -> list[tuple[bytes, int, int]]:
    """List the boxes directly inside a box.

    Returns:
        One (type, first byte of the payload, byte after the box) a box, in file order. Fewer than
        8 bytes that are left over, and QuickTime's closing zero, are ignored.
    """
    found = []
    position, end = span
    unpack = _BOX.unpack_from
    while position + 8 <= end:
        box_bytes, kind = unpack(buffer, position)
        body = position + 8
        if box_bytes == 1 and position + 16 <= end:
            box_bytes, body = _LARGE_SIZE.unpack_from(buffer, body)[0], position + 16
        elif box_bytes == 0:
            if kind == b"\0\0\0\0":
                break
            box_bytes = end - position
        stop = position + box_bytes
        if stop < body or stop > end:
            raise broken(path, "a box of its index reaches beyond the one around it")
        found.append((kind, body, stop))
        position = stop
        if len(found) > _CHILDREN_LIMIT:
            raise broken(path, "its index has an implausible number of boxes")
    return found
