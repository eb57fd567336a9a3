"""Read the index of a clip of any shape: whatever is sound is read, the rest refused with a reason.

``plain.py`` does the same for clips of the usual shape, several times faster, and leaves every
other to this module.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from struct import Struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from leconvert.media.boxes import Moov, Span, UnsupportedClipError, broken, children, table_span
from leconvert.media.clip import ClipIndex

# ------------------------------------------------------------------------------------------------
# Sample entries: the part of a track that says how to decode it (ISO/IEC 14496-12, 8.5.2).


# Box header (8) and the fixed fields of a visual sample entry (78); child boxes follow.
VISUAL_HEADER_BYTES = 86
_REFERENCE_INDEX = slice(14, 16)
_COMPRESSOR_NAME = slice(50, 82)

_U32 = Struct(">I")
IDENTITY_MATRIX = b"".join(
    _U32.pack(value) for value in (0x10000, 0, 0, 0, 0x10000, 0, 0, 0, 0x40000000)
)

_ES_DESCRIPTOR = 3
_DECODER_CONFIG_DESCRIPTOR = 4
_RATES_BYTES = 11  # bufferSizeDB (3), maxBitrate (4), avgBitrate (4)


def entry_for_output(entry: bytes) -> bytes:
    """Return a sample entry as a joined file carries it.

    The bit rates that ``btrt`` states are those of one clip, so the box goes; the reference to
    where the media lies becomes 1, the only one that a joined file has.
    """
    return _rebuilt(entry, _without_btrt(entry), reference_index=1)


def config_digest(entry: bytes, matrix: bytes) -> str:
    """Return a digest that two clips share exactly when one decoder set-up shows both rightly.

    Bit rates (``btrt``, and those inside ``esds``), buffer sizes and the name of the compressor do
    not count. A display matrix that turns or mirrors the picture does.
    """
    return _digest(_rebuilt(entry, _without_btrt(entry), reference_index=0), matrix)


@lru_cache(maxsize=64)
def _digest(entry: bytes, matrix: bytes) -> str:
    kept = bytearray(entry)
    kept[_COMPRESSOR_NAME] = bytes(32)
    for kind, start, stop in _child_boxes(entry):
        if kind == b"esds":
            place = _rates_place(kept, start + 8, stop)
            if place is not None:
                kept[place : place + _RATES_BYTES] = bytes(_RATES_BYTES)
    digest = hashlib.sha256(kept)
    if matrix != IDENTITY_MATRIX:
        digest.update(matrix)
    return digest.hexdigest()


def _rebuilt(entry: bytes, child_boxes: bytes, *, reference_index: int) -> bytes:
    rebuilt = bytearray(entry[:VISUAL_HEADER_BYTES])
    rebuilt[_REFERENCE_INDEX] = reference_index.to_bytes(2, "big")
    rebuilt += child_boxes
    rebuilt[:4] = _U32.pack(len(rebuilt))
    return bytes(rebuilt)


def _without_btrt(entry: bytes) -> bytes:
    boxes = _child_boxes(entry)
    if not any(kind == b"btrt" for kind, _, _ in boxes):
        return entry[VISUAL_HEADER_BYTES:]
    kept = [entry[start:stop] for kind, start, stop in boxes if kind != b"btrt"]
    return b"".join(kept) + entry[boxes[-1][2] :]


def _child_boxes(entry: bytes) -> list[tuple[bytes, int, int]]:
    """List (type, start of the box, its end); stops silently at what is no box."""
    found = []
    position = VISUAL_HEADER_BYTES
    while position + 8 <= len(entry):
        size_bytes = _U32.unpack_from(entry, position)[0]
        stop = position + size_bytes
        if size_bytes < 8 or stop > len(entry):
            break
        found.append((entry[position + 4 : position + 8], position, stop))
        position = stop
    return found


def _rates_place(data: bytearray, start: int, stop: int) -> int | None:
    """Find the bit rates inside the payload of an ``esds`` box (ISO/IEC 14496-1, 7.2.6)."""
    position = start + 4
    body = _descriptor_body(data, position, stop, _ES_DESCRIPTOR)
    if body is None or body + 3 > stop:
        return None
    flags = data[body + 2]
    position = body + 3
    if flags & 0x80:  # depends on another stream
        position += 2
    if flags & 0x40:  # URL: a length byte and the text
        if position >= stop:
            return None
        position += 1 + data[position]
    if flags & 0x20:  # clock reference
        position += 2
    body = _descriptor_body(data, position, stop, _DECODER_CONFIG_DESCRIPTOR)
    if body is None or body + 2 + _RATES_BYTES > stop:
        return None
    return body + 2


def _descriptor_body(data: bytearray, position: int, stop: int, tag: int) -> int | None:
    if position >= stop or data[position] != tag:
        return None
    position += 1
    for _ in range(4):  # the length takes up to four bytes of seven bits
        if position >= stop:
            return None
        position += 1
        if not data[position - 1] & 0x80:
            return position
    return None


# ------------------------------------------------------------------------------------------------
# Which sample entry the samples of a track use, and where it says that their media lies.


CHANGES_MIDWAY = "its decoder configuration changes midway"

_U32_PAIR = Struct(">II")
_SELF_CONTAINED = 1
_ENTRY_LIMIT = 64


def chosen_entry(buffer: bytes, boxes: dict[bytes, Span], used: set[int], path: str) -> bytes:
    """Return the one sample entry of a track's samples, box header included."""
    entries = _entries(buffer, boxes, path)
    if min(used) < 1 or max(used) > len(entries):
        raise broken(path, "its frames use a sample description that is not there")
    entry = entries[min(used) - 1]
    if len(entry) < VISUAL_HEADER_BYTES:
        raise broken(path, "its sample description is too short")
    _check_same([entries[number - 1] for number in used], path)
    if entry[4:8] == b"encv":
        raise broken(path, "its video is encrypted")
    if entry[4:8] == b"resv":
        raise UnsupportedClipError("a restricted video scheme (resv)", path=path)
    _check_reference(buffer, boxes, int.from_bytes(entry[14:16], "big"), path)
    return entry


def check_one_configuration(buffer: bytes, boxes: dict[bytes, Span], path: str) -> None:
    """Refuse a track with sample entries for two decoders, for it may need both.

    For fragments, which say elsewhere what they use.
    """
    _check_same(_entries(buffer, boxes, path), path)


def _entries(buffer: bytes, boxes: dict[bytes, Span], path: str) -> list[bytes]:
    """Return the sample entries of a track, of which there is one at least."""
    start, stop = table_span(boxes, b"stsd", path)
    if stop - start < 8:
        raise broken(path, "its stsd table is cut off")
    count = _U32.unpack_from(buffer, start + 4)[0]
    if not 0 < count <= _ENTRY_LIMIT:
        raise broken(path, "it has no or implausibly many sample descriptions")
    entries = []
    position = start + 8
    for _ in range(count):
        if position + 8 > stop:
            raise broken(path, "its stsd table is cut off")
        size_bytes = _U32.unpack_from(buffer, position)[0]
        if size_bytes < 8 or position + size_bytes > stop:
            raise broken(path, "its stsd table is cut off")
        entries.append(buffer[position : position + size_bytes])
        position += size_bytes
    return entries


def _check_same(entries: list[bytes], path: str) -> None:
    if len(entries) > 1 and len({config_digest(entry, IDENTITY_MATRIX) for entry in entries}) > 1:
        raise UnsupportedClipError(CHANGES_MIDWAY, path=path)


def _check_reference(buffer: bytes, boxes: dict[bytes, Span], number: int, path: str) -> None:
    """Refuse media that lies in another file, which the data reference would name."""
    if b"dref" not in boxes:
        return
    start, stop = boxes[b"dref"]
    if stop - start < 8:
        raise broken(path, "its data reference is cut off")
    count = _U32.unpack_from(buffer, start + 4)[0]
    position = start + 8
    for current in range(1, min(count, _ENTRY_LIMIT) + 1):
        if position + 12 > stop:
            raise broken(path, "its data reference is cut off")
        size_bytes, _ = _U32_PAIR.unpack_from(buffer, position)
        if size_bytes < 12 or position + size_bytes > stop:
            raise broken(path, "its data reference is cut off")  # FFmpeg would not read on
        flags = _U32.unpack_from(buffer, position + 8)[0]
        if current == number and not flags & _SELF_CONTAINED:
            raise broken(path, "its media lies in another file")
        position += size_bytes


# ------------------------------------------------------------------------------------------------
# Turn the tables of ``stbl`` into one array a quantity, without a loop over samples.
#
# Every count is checked against the box that holds it and the size of the file before it decides
# how much is allocated: a table costs at most a few times what the file itself is large.


IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
UnsignedArray = npt.NDArray[np.unsignedinteger]

SAMPLE_LIMIT = 2**24
# A coded frame is never smaller on average; it bounds a table whose samples all have one size.
_SMALLEST_UNIFORM_SAMPLE_BYTES = 8
LONGEST_DURATION = 2**31
_FEW_CHUNKS = 16
_DTYPES: dict[int, np.dtype[np.unsignedinteger]] = {4: np.dtype(">u4"), 8: np.dtype(">u8")}
_LARGER_THAN_THE_FILE = "its frames are larger than the file; most likely it is truncated"
_OUTSIDE_THE_MEDIA = (
    "its index places frames outside its media data (mdat); it is truncated, or its index is wrong"
)


class SampleTables(NamedTuple):
    """The samples of a track in decode order, before any edit; arrays have shape (S,), S > 0.

    Attributes:
        sizes: Bytes.
        offsets: First byte in the file.
        decode_times: Ticks from the start of the media.
        duration: Ticks that all last together.
        shown_times: When each is shown, likewise; all different.
        first_shown: The least of these.
        last_shown: The greatest of these.
        keyframes: Whether decoding can start at the sample.
        sample_entry: The one sample entry that all of them use.
    """

    sizes: IntArray
    offsets: IntArray
    decode_times: IntArray
    duration: int
    shown_times: IntArray
    first_shown: int
    last_shown: int
    keyframes: BoolArray
    sample_entry: bytes


def read_sample_tables(
    buffer: bytes, boxes: dict[bytes, Span], media: Span, file_size_bytes: int, path: str
) -> SampleTables:
    """Read the sample tables of the video track; ``media`` says where frames can lie."""
    if b"stz2" in boxes:
        raise UnsupportedClipError("compact sample sizes (stz2)", path=path)
    if b"stps" in boxes:
        raise UnsupportedClipError("partial sync samples (stps)", path=path)
    sizes, ends = _sizes(buffer, boxes, file_size_bytes, path)
    num_samples = len(sizes)
    offsets, description = sample_offsets(
        buffer,
        boxes,
        ends - sizes,
        path,
        total_bytes=int(ends[-1]),
        media=media,
    )
    decode_times, duration, distinct = _decode_times(buffer, boxes, num_samples, path)
    composition = composition_offsets(buffer, boxes, num_samples, path)
    shown_times = in_order = decode_times
    if composition is not None:
        shown_times = decode_times + composition
        in_order = np.sort(shown_times)
        distinct = bool((in_order[1:] > in_order[:-1]).all())
    if not distinct:
        raise UnsupportedClipError("two frames at the same time", path=path)
    return SampleTables(
        sizes=sizes,
        offsets=offsets,
        decode_times=decode_times,
        duration=duration,
        shown_times=shown_times,
        first_shown=int(in_order[0]),
        last_shown=int(in_order[-1]),
        keyframes=_keyframes(buffer, boxes, num_samples, path),
        sample_entry=chosen_entry(buffer, boxes, description, path),
    )


def _rows(
    buffer: bytes,
    boxes: dict[bytes, Span],
    kind: bytes,
    columns: int,
    path: str,
    *,
    width: int = 4,
) -> UnsignedArray:
    """Return a counted table of big-endian numbers, shape (rows, columns)."""
    start, stop = table_span(boxes, kind, path)
    if stop - start < 8:
        raise broken(path, f"its {kind.decode()} table is cut off")
    count = _U32.unpack_from(buffer, start + 4)[0] * columns
    if start + 8 + count * width > stop:
        raise broken(path, f"its {kind.decode()} table is longer than the box that holds it")
    table: UnsignedArray = np.frombuffer(buffer, _DTYPES[width], count, start + 8)
    return table.reshape(-1, columns)


def _sizes(
    buffer: bytes, boxes: dict[bytes, Span], file_size_bytes: int, path: str
) -> tuple[IntArray, IntArray]:
    """Return the size of each sample, and the sum of the sizes up to and including it."""
    start, stop = table_span(boxes, b"stsz", path)
    if stop - start < 12:
        raise broken(path, "its stsz table is cut off")
    uniform_bytes, count = _U32_PAIR.unpack_from(buffer, start + 4)
    if not count:
        raise broken(path, "its video track has no frames")
    if count > SAMPLE_LIMIT:
        raise UnsupportedClipError(f"more than {SAMPLE_LIMIT} frames", path=path)
    if uniform_bytes:
        if count * max(uniform_bytes, _SMALLEST_UNIFORM_SAMPLE_BYTES) > file_size_bytes:
            raise broken(path, _LARGER_THAN_THE_FILE)
        sizes = np.full(count, uniform_bytes, np.int64)
        return sizes, sizes.cumsum()
    if start + 12 + count * 4 > stop:
        raise broken(path, "its stsz table is longer than the box that holds it")
    sizes = np.frombuffer(buffer, ">u4", count, start + 12).astype(np.int64)
    if not sizes.all():
        raise UnsupportedClipError("frames without bytes", path=path)
    ends = sizes.cumsum()
    if int(ends[-1]) > file_size_bytes:
        raise broken(path, _LARGER_THAN_THE_FILE)
    return sizes, ends


def sample_offsets(
    buffer: bytes,
    boxes: dict[bytes, Span],
    begins: IntArray,
    path: str,
    *,
    total_bytes: int,
    media: Span,
) -> tuple[IntArray, set[int]]:
    """Return where each sample begins, and which sample entries are used (numbered from 1).

    ``begins`` says where each would if the bytes of all followed each other from 0.
    """
    wide = b"stco" not in boxes and b"co64" in boxes
    starts = _rows(buffer, boxes, b"co64" if wide else b"stco", 1, path, width=8 if wide else 4)
    runs = _rows(buffer, boxes, b"stsc", 3, path)
    if not len(starts) or not len(runs):
        raise broken(path, "its chunk table is empty")
    # A few chunks, as most clips have, are quicker in plain numbers; the result is the same.
    find = _offsets_of_few if len(starts) <= _FEW_CHUNKS else _offsets_of_many
    offsets = find(
        starts[:, 0],
        runs,
        begins,
        path,
        total_bytes=total_bytes,
        media=media,
    )
    return offsets, {int(runs[0, 2])} if len(runs) == 1 else set(runs[:, 2].tolist())


def _offsets_of_few(
    starts: UnsignedArray,
    runs: UnsignedArray,
    begins: IntArray,
    path: str,
    *,
    total_bytes: int,
    media: Span,
) -> IntArray:
    """Place samples in chunks; moves ``begins`` itself."""
    chunk_starts = starts.tolist()
    rows = runs.tolist()
    firsts = [row[0] for row in rows]
    num_samples = len(begins)
    chunk, sample = 0, 0
    for row, (first, samples, _) in enumerate(rows):
        stop = firsts[row + 1] - 1 if row + 1 < len(rows) else len(chunk_starts)
        if first != chunk + 1 or not chunk < stop <= len(chunk_starts) or not samples:
            raise broken(path, "its chunk table contradicts itself")
        while chunk < stop:
            next_sample = sample + samples
            if next_sample > num_samples:
                raise broken(path, "its chunks hold more frames than it has")
            begin = int(begins[sample])
            end = int(begins[next_sample]) if next_sample < num_samples else total_bytes
            start = chunk_starts[chunk]
            if not media[0] <= start <= media[1] - (end - begin):
                raise broken(path, _OUTSIDE_THE_MEDIA)
            # The next chunk's places are read before they are moved: slices do not overlap.
            begins[sample:next_sample] += start - begin
            chunk, sample = chunk + 1, next_sample
    if sample != num_samples:
        raise broken(path, "its chunks hold fewer frames than it has")
    return begins


def _offsets_of_many(
    starts: UnsignedArray,
    runs: UnsignedArray,
    begins: IntArray,
    path: str,
    *,
    total_bytes: int,
    media: Span,
) -> IntArray:
    if int(starts.min()) < media[0] or int(starts.max()) > media[1]:
        raise broken(path, _OUTSIDE_THE_MEDIA)
    chunk_starts = starts.astype(np.int64)
    firsts = runs[:, 0].astype(np.int64)
    spans = np.diff(firsts, append=len(starts) + 1)
    if firsts[0] != 1 or spans.min() <= 0 or not runs[:, 1].all():
        raise broken(path, "its chunk table contradicts itself")
    samples = np.repeat(runs[:, 1].astype(np.int64), spans)
    if int(samples.sum()) != len(begins):
        raise broken(path, "its chunks do not hold as many frames as it has")
    heads = samples.cumsum() - samples
    places = chunk_starts - begins[heads]
    if int((places + np.append(begins[heads[1:]], total_bytes)).max()) > media[1]:
        raise broken(path, _OUTSIDE_THE_MEDIA)
    return begins + np.repeat(places, samples)


def _decode_times(
    buffer: bytes, boxes: dict[bytes, Span], num_samples: int, path: str
) -> tuple[IntArray, int, bool]:
    """Return decode times, how long all last, and whether each is later than the one before."""
    runs = _rows(buffer, boxes, b"stts", 2, path)
    if len(runs) == 1:
        count, duration = runs[0].tolist()
        total, longest = count, duration
    else:
        counts = runs[:, 0].astype(np.int64)
        total, longest = int(counts.sum()), int(runs[:, 1].max(initial=0))
    if total != num_samples:
        raise broken(path, "its time table does not cover its frames")
    if longest >= LONGEST_DURATION:
        raise UnsupportedClipError("implausible frame durations", path=path)
    if len(runs) == 1:
        times = (
            np.arange(0, num_samples * duration, duration)
            if duration
            else np.zeros(num_samples, np.int64)
        )
        return times, num_samples * duration, duration > 0 or num_samples == 1
    durations = np.repeat(runs[:, 1].astype(np.int64), counts)
    ends = durations.cumsum()
    return ends - durations, int(ends[-1]), bool(durations[:-1].all())


def composition_offsets(
    buffer: bytes, boxes: dict[bytes, Span], num_samples: int, path: str
) -> IntArray | None:
    """Return what to add to each decode time, or None where there is no such table."""
    if b"ctts" not in boxes:
        return None
    runs = _rows(buffer, boxes, b"ctts", 2, path)
    counts = runs[:, 0].tolist()
    if sum(counts) != num_samples:
        raise broken(path, "its composition table does not cover its frames")
    # Signed whatever the version says: writers disagree, and none means an offset above 2**31.
    values = runs[:, 1].astype(np.uint32).view(np.int32).astype(np.int64)
    return np.repeat(values, counts)


def _keyframes(buffer: bytes, boxes: dict[bytes, Span], num_samples: int, path: str) -> BoolArray:
    """Return whether decoding can start at each sample."""
    if b"stss" not in boxes:
        return np.ones(num_samples, np.bool_)
    numbers = _rows(buffer, boxes, b"stss", 1, path)[:, 0]
    if not len(numbers):
        raise UnsupportedClipError("no keyframe is listed", path=path)
    keyframes = np.zeros(num_samples + 1, np.bool_)
    try:
        keyframes[numbers] = True
    except IndexError as error:
        raise broken(path, "its keyframe table points outside") from error
    if keyframes[0]:
        raise broken(path, "its keyframe table points outside")
    return keyframes[1:]


# ------------------------------------------------------------------------------------------------
# Read the index of a clip of any shape: whatever is sound is read, the rest refused with a
# reason.


MAX_TIMESCALE = 2**31 - 1
MATRIX_BYTES = 36
_NORMAL_RATE = 0x10000

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


def parse_moov(moov: Moov, path: str, size_bytes: int) -> ClipIndex:
    """Read the index of a clip of any shape."""
    buffer = moov.buffer
    movie_timescale = 0
    is_fragmented = False
    tracks = []
    for kind, body, stop in children(buffer, moov.span, path):
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
    tables = read_sample_tables(buffer, track.boxes, moov.media, size_bytes, path)
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
    num_bytes = int(tables.sizes.sum())
    return ClipIndex(
        path=path,
        file_size_bytes=size_bytes,
        codec=entry[4:8].decode("latin-1"),
        width=int.from_bytes(entry[32:34], "big"),
        height=int.from_bytes(entry[34:36], "big"),
        timescale=timescale,
        sizes=tables.sizes,
        num_bytes=num_bytes,
        unindexed_bytes=0 if others else moov.media_bytes - num_bytes,
        places=tables.offsets,
        decoded=decode_times,
        shown=presentation_times,
        keyframes=tables.keyframes,
        sample_entry=entry,
        config_key=config_digest(entry, geometry[:MATRIX_BYTES]),
        other_tracks=others,
        geometry=geometry,
        duration=tables.duration,
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
