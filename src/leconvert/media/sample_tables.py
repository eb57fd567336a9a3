"""Turn the tables of ``stbl`` into one array a quantity, without a loop over samples.

Every count is checked against the box that holds it and the size of the file before it decides how
much is allocated: a table costs at most a few times what the file itself is large.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct

import numpy as np
import numpy.typing as npt

from leconvert.media.boxes import Span, broken, table_span
from leconvert.media.errors import UnsupportedClipError
from leconvert.media.sample_description import chosen_entry

__all__ = [
    "LONGEST_DURATION",
    "SAMPLE_LIMIT",
    "SampleTables",
    "composition_offsets",
    "read_sample_tables",
    "sample_offsets",
]

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
UnsignedArray = npt.NDArray[np.unsignedinteger]

_U32 = Struct(">I")
_U32_PAIR = Struct(">II")
SAMPLE_LIMIT = 2**24
# A coded frame is never smaller on average; it bounds a table whose samples all have one size.
_SMALLEST_UNIFORM_SAMPLE_BYTES = 8
LONGEST_DURATION = 2**31
_FEW_CHUNKS = 16
_DTYPES: dict[int, np.dtype[np.unsignedinteger]] = {4: np.dtype(">u4"), 8: np.dtype(">u8")}
_LARGER_THAN_THE_FILE = "its frames are larger than the file; most likely it is truncated"
_BEYOND_THE_END = "its frames lie beyond the end of the file; most likely it is truncated"


@dataclass(frozen=True, slots=True, eq=False)
class SampleTables:
    """The samples of a track in decode order, before any edit; arrays have shape (S,), S > 0.

    Attributes:
        sizes: Bytes.
        offsets: First byte in the file.
        decode_times: Ticks from the start of the media.
        shown_times: When each is shown, likewise; all different.
        first_shown: The least of these.
        last_shown: The greatest of these.
        keyframes: Whether decoding can start at the sample.
        sample_entry: The one sample entry that all of them use.
    """

    sizes: IntArray
    offsets: IntArray
    decode_times: IntArray
    shown_times: IntArray
    first_shown: int
    last_shown: int
    keyframes: BoolArray
    sample_entry: bytes


def read_sample_tables(
    buffer: bytes, boxes: dict[bytes, Span], file_size_bytes: int, path: str
) -> SampleTables:
    """Read the sample tables of the video track.

    Args:
        buffer: Holds the boxes.
        boxes: Payloads of the boxes in ``stbl`` and of ``dref``, by type.
        file_size_bytes: Samples must lie inside.
        path: For errors.

    Raises:
        UnreadableSourceError: Tables are missing, contradict each other, or point outside.
        UnsupportedClipError: The samples cannot be joined as they lie.
    """
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
        file_size_bytes=file_size_bytes,
    )
    decode_times, distinct = _decode_times(buffer, boxes, num_samples, path)
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
    file_size_bytes: int,
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
        file_size_bytes=file_size_bytes,
    )
    return offsets, {int(runs[0, 2])} if len(runs) == 1 else set(runs[:, 2].tolist())


def _offsets_of_few(
    starts: UnsignedArray,
    runs: UnsignedArray,
    begins: IntArray,
    path: str,
    *,
    total_bytes: int,
    file_size_bytes: int,
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
            if start + end - begin > file_size_bytes:
                raise broken(path, _BEYOND_THE_END)
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
    file_size_bytes: int,
) -> IntArray:
    if int(starts.max()) > file_size_bytes:
        raise broken(path, _BEYOND_THE_END)
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
    if int((places + np.append(begins[heads[1:]], total_bytes)).max()) > file_size_bytes:
        raise broken(path, _BEYOND_THE_END)
    return begins + np.repeat(places, samples)


def _decode_times(
    buffer: bytes, boxes: dict[bytes, Span], num_samples: int, path: str
) -> tuple[IntArray, bool]:
    """Return decode times and whether each is later than the one before."""
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
        return times, duration > 0 or num_samples == 1
    durations = np.repeat(runs[:, 1].astype(np.int64), counts)
    return durations.cumsum() - durations, bool(durations[:-1].all())


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
