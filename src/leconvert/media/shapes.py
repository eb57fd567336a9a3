"""Read the indices of many clips at once, where they differ only in some numbers.

The clips of a camera come from one program with one set-up. Their indices have the same boxes in
the same order; only counts, sizes, durations and the tables of samples differ. So one index is read
by `leconvert.media.index`, which gives a *shape*: the bytes that are the same, and where the
numbers are. The numbers of all other clips of this shape are columns of a few NumPy arrays.

Nothing is refused here. A clip that differs in any other byte, or whose numbers contradict each
other, is left to the readers of one clip.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from leconvert.media.boxes import Moov, Span
from leconvert.media.clip import BoolArray, ClipIndex, IntArray

if TYPE_CHECKING:
    from leconvert.media.index import StoredIndex

FEWEST_CLIPS = 6
"""Of fewer clips the arrays cost more than they save."""

# Products of times and timescales stay below 2**63.
_MAX_TIMESCALE = 2**24
_WORD_BYTES = 4
_BOXES_AROUND_THE_TABLES = (b"trak", b"mdia", b"minf", b"stbl")
_TABLES = (b"stts", b"stss", b"stsc", b"stsz", b"stco")
_BEFORE_THE_TABLES = (b"mvhd", b"tkhd", b"elst", b"mdhd", b"hdlr", b"dref", b"stsd")
_ONE_EDIT, _ONE_EDIT_BYTES = bytes([0, 0, 0, 0, 0, 0, 0, 1]), 20
# What stands in front of their first entry that varies, in words: size and kind of the box, version
# and the fields named here.
_KEYFRAMES_HEAD = 4  # count
_CHUNKS_HEAD = 7  # count, first chunk, samples, description
_SIZES_HEAD = 5  # size of all, count
_OFFSETS_WORDS = 5  # count, offset
_RATES_BYTES = 12


@dataclass(frozen=True, slots=True, eq=False)
class IndexShape:
    """What the indices of some clips have in common.

    Attributes:
        clip: The clip that it was learned from.
        prefix: The index up to its table of keyframes, as 64-bit words.
        is_fixed: The bits of these words that all clips have in common.
        prefix_bytes: Bytes of it.
        literal: The longest run of such bytes, and where it begins.
        suffix: What stands behind the tables.
        fields: Where the numbers of the prefix are, byte by byte: the sizes of the boxes around the
            tables, the number of samples, and the duration of the edit where there is an edit list.
        begins: Where the boxes around the tables begin, shape (4,).
        heads: The first words of the tables behind the prefix as they stood there.
        entry: Where the sample entry is.
        duration: Ticks of one sample.
        movie_timescale: Ticks a second of the edit's duration, 0 without an edit list.
    """

    clip: ClipIndex
    prefix: npt.NDArray[np.uint64]
    is_fixed: npt.NDArray[np.uint64]
    prefix_bytes: int
    literal: tuple[int, bytes]
    suffix: bytes
    fields: IntArray
    begins: IntArray
    heads: IntArray
    entry: Span
    duration: int
    movie_timescale: int

    def read(self, stored: Sequence[StoredIndex]) -> list[ClipIndex | None]:
        """Return the index of each clip; None for those that have another shape."""
        found: list[ClipIndex | None] = [None] * len(stored)
        rows = self._candidates([file.moov for file in stored])
        if len(rows) < FEWEST_CLIPS:
            return found
        fits, samples = self._with_this_prefix([stored[row].moov for row in rows])
        if not fits.all():
            rows = [row for row, fit in zip(rows, fits.tolist(), strict=True) if fit]
            samples = samples[fits]
        if rows:
            clips = self._with_sound_tables([stored[row] for row in rows], samples)
            for row, clip in zip(rows, clips, strict=True):
                found[row] = clip
        return found

    def _candidates(self, moovs: Sequence[Moov]) -> list[int]:
        """Return the places of clips that may have this shape."""
        at, literal = self.literal
        suffix = self.suffix
        around_bytes = self.prefix_bytes + len(suffix)
        least_bytes = around_bytes + _WORD_BYTES * (len(self.heads) + 2)
        return [
            row
            for row, (buffer, (begin, end), *_) in enumerate(moovs)
            if end - begin >= least_bytes
            and not (end - begin - around_bytes) % _WORD_BYTES
            and buffer.startswith(literal, begin + at)
            and buffer.endswith(suffix, begin, end)
        ]

    def _with_this_prefix(self, moovs: Sequence[Moov]) -> tuple[BoolArray, IntArray]:
        """Return which clips have the prefix, and how many samples each has by it."""
        size = 8 * len(self.prefix)
        raw = b"".join([buffer[begin : begin + size] for buffer, (begin, _), *_ in moovs])
        prefixes = np.frombuffer(raw, np.uint64).reshape(len(moovs), -1)
        differs: BoolArray = ((prefixes ^ self.prefix) & self.is_fixed != 0).any(axis=1)
        numbers = np.frombuffer(raw, np.uint8).reshape(len(moovs), -1).take(self.fields, axis=1)
        fields: IntArray = numbers.view(">u4").astype(np.int64)
        samples: IntArray = fields[:, 4]
        payload_bytes = np.array([end - begin for _, (begin, end), *_ in moovs])
        ends = payload_bytes - len(self.suffix)
        fits: BoolArray = (fields[:, :4] == ends[:, None] - self.begins).all(axis=1)
        fits &= ~differs & (samples > 0)
        if self.movie_timescale:
            # The edit shows the last sample, too: see `leconvert.media.parse.edit_shift`.
            twice = 2 * fields[:, 5] * self.clip.timescale + self.movie_timescale
            fits &= (samples - 1) * self.duration < twice // (2 * self.movie_timescale)
        return fits, samples

    def _with_sound_tables(
        self, stored: Sequence[StoredIndex], samples: IntArray
    ) -> list[ClipIndex | None]:
        """Return the index of each clip that has the prefix; None where its tables are unusual."""
        behind = len(self.suffix)
        moovs = [file.moov for file in stored]
        raw = [
            buffer[begin + self.prefix_bytes : end - behind] for buffer, (begin, end), *_ in moovs
        ]
        words = np.frombuffer(b"".join(raw), ">u4").astype(np.int64)
        lengths = np.array([len(table) for table in raw]) // _WORD_BYTES
        first = lengths.cumsum() - lengths
        keyframes = words[first + (_KEYFRAMES_HEAD - 1)]
        fits = lengths == keyframes + samples + len(self.heads) + 1
        fits &= keyframes > 0
        if not fits.all():
            # The tables lie elsewhere: without these clips all that follows is inside the array.
            rows = np.flatnonzero(fits).tolist()
            found: list[ClipIndex | None] = [None] * len(stored)
            if rows:
                clips = self._with_sound_tables([stored[row] for row in rows], samples[fits])
                for row, clip in zip(rows, clips, strict=True):
                    found[row] = clip
            return found

        chunks = first + keyframes + _KEYFRAMES_HEAD
        sizes = chunks + (_CHUNKS_HEAD + _SIZES_HEAD)
        stops = sizes + samples
        places = [
            first[:, None] + np.arange(_KEYFRAMES_HEAD),
            chunks[:, None] + np.arange(_CHUNKS_HEAD + _SIZES_HEAD),
            stops[:, None] + np.arange(_OFFSETS_WORDS - 1),
        ]
        heads = words[np.concatenate(places, axis=1)]
        expected = np.repeat(self.heads[None], len(stored), axis=0)
        expected[:, 0] = (_KEYFRAMES_HEAD + keyframes) * _WORD_BYTES
        expected[:, 3] = keyframes
        expected[:, 9] = samples
        expected[:, 11] = (_SIZES_HEAD + samples) * _WORD_BYTES
        expected[:, 15] = samples
        fits = (heads == expected).all(axis=1)
        starts = words[stops + (_OFFSETS_WORDS - 1)]
        media = np.array([(media[0], media_bytes) for *_, media, media_bytes in moovs])
        edges = np.column_stack([sizes, stops]).ravel()
        total_bytes = np.add.reduceat(words, edges)[::2]
        fits &= starts == media[:, 0]
        fits &= total_bytes == media[:, 1]
        fits &= np.minimum.reduceat(words, edges)[::2] > 0
        edges = np.column_stack([first + _KEYFRAMES_HEAD, chunks]).ravel()
        fits &= np.minimum.reduceat(words, edges)[::2] > 0
        fits &= np.maximum.reduceat(words, edges)[::2] <= samples
        begins = samples.cumsum() - samples
        flags = np.zeros(int(samples.sum()), np.bool_)
        numbers = np.repeat(edges[::2] - (keyframes.cumsum() - keyframes), keyframes)
        numbers = words[numbers + np.arange(len(numbers))] + np.repeat(begins - 1, keyframes)
        flags[numbers if fits.all() else numbers[np.repeat(fits, keyframes)]] = True
        return [
            self._clip(file, words[size:stop], total, start, flags[begin : begin + stop - size])
            if fit
            else None
            for file, fit, size, stop, total, start, begin in zip(
                stored,
                fits.tolist(),
                sizes.tolist(),
                stops.tolist(),
                total_bytes.tolist(),
                starts.tolist(),
                begins.tolist(),
                strict=True,
            )
        ]

    def _clip(
        self,
        file: StoredIndex,
        sizes: IntArray,
        total_bytes: int,
        start: int,
        keyframes: BoolArray,
    ) -> ClipIndex:
        like = self.clip
        begin = file.moov.span[0]
        shown = range(0, len(sizes) * self.duration, self.duration)
        return ClipIndex(
            file.path,
            file.size_bytes,
            like.codec,
            like.width,
            like.height,
            like.timescale,
            sizes,
            total_bytes,
            0,
            start,
            shown,
            shown,
            keyframes,
            file.moov.buffer[begin + self.entry[0] : begin + self.entry[1]],
            like.config_key,
            (),
            like.geometry,
            shown.stop,
        )


def learn_shape(
    stored: StoredIndex, clip: ClipIndex, boxes: dict[bytes, Span], *, rates_vary: bool
) -> IndexShape | None:
    """Return the shape of a clip's index, None for one that is rare among clips of robots.

    Args:
        stored: The index as it stands.
        clip: What it says.
        boxes: The payloads of its boxes.
        rates_vary: Whether the bit rates at the end of the sample description say nothing.
    """
    begin, end = stored.moov.span
    payload = stored.moov.buffer[begin:end]
    if not _is_regular(clip, boxes, stored.moov.buffer):
        return None
    inside = {kind: (first - begin, stop - begin) for kind, (first, stop) in boxes.items()}
    prefix_bytes, tables_end = inside[b"stts"][1], inside[b"stco"][1]
    # Times when the file was made, and durations that nobody asks for.
    free = [
        (inside[kind][0] + first, inside[kind][0] + stop)
        for kind, spans in (
            (b"mvhd", ((4, 12), (16, 20))),
            (b"tkhd", ((4, 12), (20, 24))),
            (b"mdhd", ((4, 12), (16, 20))),
        )
        for first, stop in spans
    ]
    if rates_vary:
        free.append((inside[b"stsd"][1] - _RATES_BYTES, inside[b"stsd"][1]))
    places = [inside[kind][0] - 8 for kind in _BOXES_AROUND_THE_TABLES]
    begins = np.array(places)
    places.append(inside[b"stts"][0] + 8)
    movie_timescale = 0
    if b"elst" in inside:
        places.append(inside[b"elst"][0] + 8)
        movie_timescale = _word(payload, inside[b"mvhd"][0] + 12)
    free += [(place, place + _WORD_BYTES) for place in places]
    is_fixed = np.full(-(-prefix_bytes // 8) * 8, 0xFF, np.uint8)
    is_fixed[prefix_bytes:] = 0
    for first, stop in free:
        is_fixed[first:stop] = 0
    edges = np.flatnonzero(np.diff(is_fixed, prepend=0, append=0)).reshape(-1, 2)
    first, stop = edges[np.argmax(edges[:, 1] - edges[:, 0])].tolist()
    tables = np.frombuffer(payload[prefix_bytes:tables_end], ">u4").astype(np.int64)
    chunks = _KEYFRAMES_HEAD + int(tables[3])
    sizes = chunks + _CHUNKS_HEAD + _SIZES_HEAD
    offsets = sizes + clip.num_samples
    entry_begin = inside[b"stsd"][0] + 8
    return IndexShape(
        clip,
        np.frombuffer(payload[: len(is_fixed)], np.uint64),
        is_fixed.view(np.uint64),
        prefix_bytes,
        (first, payload[first:stop]),
        payload[tables_end:],
        (np.array(places)[:, None] + np.arange(_WORD_BYTES)).ravel(),
        begins,
        np.concatenate(
            [
                tables[:_KEYFRAMES_HEAD],
                tables[chunks:sizes],
                tables[offsets : offsets + _OFFSETS_WORDS - 1],
            ]
        ),
        (entry_begin, entry_begin + len(clip.sample_entry)),
        clip.decoded[1] - clip.decoded[0],
        movie_timescale,
    )


def _is_regular(clip: ClipIndex, boxes: dict[bytes, Span], buffer: bytes) -> bool:
    """Tell whether a clip is as LeRobot encodes: some keyframes, one chunk, shown as decoded."""
    if (
        not isinstance(clip.shown, range)
        or not isinstance(clip.places, int)
        or clip.num_samples < 2
        or clip.shown[0]
        or clip.unindexed_bytes
        or clip.timescale > _MAX_TIMESCALE
        or b"ctts" in boxes
        or not boxes.keys() >= {*_TABLES, *_BOXES_AROUND_THE_TABLES}
    ):
        return False
    # Behind each other, and nothing behind the last in the boxes around them.
    stops = [boxes[kind][1] for kind in _TABLES]
    firsts = [boxes[kind][0] - 8 for kind in _TABLES]
    if stops[:-1] != firsts[1:] or any(
        boxes[kind][1] != stops[-1] for kind in _BOXES_AROUND_THE_TABLES
    ):
        return False
    if any(boxes[kind][1] > firsts[0] for kind in _BEFORE_THE_TABLES if kind in boxes):
        return False
    if b"elst" in boxes:
        first, stop = boxes[b"elst"]
        if buffer[first : first + 8] != _ONE_EDIT or stop - first != _ONE_EDIT_BYTES:
            return False
    sizes = [boxes[kind][1] - boxes[kind][0] for kind in _TABLES]
    return sizes[0] == 16 and sizes[2] == 20 and sizes[4] == 12


def _word(payload: bytes, place: int) -> int:
    return int.from_bytes(payload[place : place + _WORD_BYTES], "big")
