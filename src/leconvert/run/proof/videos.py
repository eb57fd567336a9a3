"""One video file of a result against the clips that it was made from.

A file is proven in one of three ways. A file with the index of its source's clip was *kept*, and
must only be valid for the result. In a *joined* file, each episode's samples are compared with the
digest from the worker that read the clip. Without a digest, they are compared with the clip's
index. Then the header of a joined file is compared with the one that its samples demand.
``--bytes`` compares the coded bytes as well.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from fractions import Fraction
from itertools import groupby, zip_longest
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from leconvert import media
from leconvert.model.values import Misfit
from leconvert.run.proof.difference import (
    Difference,
    OpenFile,
    Said,
    differences_of,
    differing_bytes,
    first_difference,
    naming,
    open_file,
)
from leconvert.run.proof.expected import joinable
from leconvert.support.errors import UnreadableSourceError

_SAMPLES_AT_A_TIME = 1 << 14
# If a file is aligned to more than its size, episodes are exactly at their stated positions.
_WHERE_THEY_ARE = 1 << 62
_CONTAINERS = frozenset([b"moov", b"trak", b"edts", b"mdia", b"minf", b"dinf", b"stbl"])
_SHOWN_BYTES = 8
_MDAT_HEADER_BYTES = 16
_LARGEST_GAP_BYTES = 1 << 20


class Span(NamedTuple):
    """The entry of ``meta/episodes`` about one episode in one video file.

    Attributes:
        episode: The episode's index.
        length: Number of its frames.
        first_sample: Number of its first sample in the file.
        from_timestamp: Start in the file, in seconds; None if the result lacks it.
        to_timestamp: End in the file, in seconds.
        source: Path of the clip it came from.
        source_first: Its first sample there; None if the clip holds nothing else.
        order_digest: The `leconvert.media.order_digest` from the worker that read the clip; None to
            read the clip again.
        lead: Number of samples before its first frame, kept for decoding.
        samples: Number of all its samples; None if they are its frames.
    """

    episode: int
    length: int
    first_sample: int
    from_timestamp: float | None
    to_timestamp: float | None
    source: str
    source_first: int | None = None
    order_digest: str | None = None
    lead: int = 0
    samples: int | None = None

    @property
    def num_samples(self) -> int:
        """Number of samples of the episode, with those kept for decoding."""
        return self.length if self.samples is None else self.samples


def is_kept_clip(index: media.ClipIndex, source: media.ClipIndex) -> bool:
    """Return whether two indices are equal, so no clip was joined into the first file."""
    return (
        (index.file_size_bytes, index.timescale, index.duration, index.other_tracks)
        == (source.file_size_bytes, source.timescale, source.duration, source.other_tracks)
        and (index.sample_entry, index.geometry) == (source.sample_entry, source.geometry)
        and all(
            _are_equal(getattr(index, name), getattr(source, name))
            for name in ("sizes", "places", "shown", "keyframes")
        )
    )


def _are_equal(one: Any, other: Any) -> bool:
    """Return whether two columns of an index are equal; a plain clip has a few numbers instead."""
    if isinstance(one, int | range) and isinstance(other, int | range):
        return one == other
    return np.array_equal(one, other)


def compare_kept_clip(
    index: media.ClipIndex, span: Span, fps: Fraction, *, read_bytes: bool
) -> Said:
    """Yield reasons why LeRobot would miss frames in a kept video file, and different bytes."""
    if read_bytes:
        with open_file(span.source) as theirs, open_file(index.path) as ours:
            yield from differing_bytes(theirs, ours)
    misfit = index.misfit(fps)
    for reason in Misfit:
        if reason in misfit:
            what, wanted = "a file that LeRobot reads as it is", "even frames from time 0 on"
            yield what, wanted, f"it {reason.said}"
    if index.num_samples != span.length:
        yield "number of frames", span.length, index.num_samples
    yield from _other_times(span, 0, fps)


def check_video(index: media.ClipIndex, num_frames: int, fps: Fraction) -> Said:
    """Yield differences of an output file as a whole, whatever its episodes are."""
    if index.num_samples != num_frames:
        yield "number of frames", num_frames, index.num_samples
        return
    timescale, _ = media.frame_ticks(fps)
    if index.timescale != timescale:
        yield "timescale", timescale, index.timescale
    yield from _stray_bytes(index)


class ClipReader:
    """Reads indices of files, and holds the last one.

    Many files of a result may be cut from one file of the source, and many pieces belong to one
    file of the result. Threads may share it: at worst two of them read the same index.
    """

    def __init__(self) -> None:
        self._last: tuple[bytes, media.ClipIndex] | None = None

    def read(
        self, paths: Sequence[str], *, read_ahead: bool = False
    ) -> Iterator[tuple[bytes, media.ClipIndex | UnreadableSourceError]]:
        """Yield the first bytes of each file, as far as they were read, and its index.

        If there is no index, the error takes its place.
        """
        last = self._last
        if last is not None and paths and paths[0] == last[1].path:
            yield last
            paths = paths[1:]
            if not paths:
                return
        last = self._last = None  # before the next is read, since two may be large
        for stored, found in media.read_clips(paths, read_ahead=read_ahead):
            head = b"" if stored is None else stored.head
            self._last = (head, found) if isinstance(found, media.ClipIndex) else None
            yield head, found


def compare_clips(
    path: str,
    stream: str,
    index: media.ClipIndex,
    spans: Sequence[Span],
    fps: Fraction,
    clips_of: ClipReader,
    *,
    read_bytes: bool,
) -> Iterator[Difference]:
    """Yield differences between some episodes of one output file and their clips.

    Packets are compared in place: consecutive packets of a clip are one range of bytes, which is
    read on both sides a block at a time.
    """
    read = [span for span in spans if span.order_digest is None or read_bytes]
    # Episodes of one file are consecutive, so its index is read only once.
    sources = [source for source, _ in groupby(read, attrgetter("source"))]
    clips = clips_of.read(sources, read_ahead=read_bytes)
    with ExitStack() as files, ExitStack() as last:
        source = ""
        result = files.enter_context(open_file(index.path)) if read_bytes else None
        for span in spans:
            part = slice(span.first_sample, span.first_sample + span.num_samples)
            lead = index.reordering(part.start, part.stop)
            found = list(_placed(index, part, lead, span, fps))
            if span.order_digest is None or read_bytes:
                if span.source != source:
                    last.close()
                    source = span.source
                    _, answer = next(clips)
                    clip = last.enter_context(joinable(answer, source, fps))
                theirs = _part_of(clip, span)
                found += _against_source(index, part, lead, clip, theirs)
                if result is not None and theirs.stop - theirs.start == span.num_samples:
                    found += _same_packets(index, part, clip, theirs, result)
            yield from differences_of(found, path, span.episode, stream)


type _Lead = npt.NDArray[np.int32] | None


def _placed(index: media.ClipIndex, part: slice, lead: _Lead, span: Span, fps: Fraction) -> Said:
    """Compare the properties that an episode must have whatever its source is."""
    start, (timescale, frame_ticks) = part.start, media.frame_ticks(fps)
    yield from _other_times(span, start + span.lead, fps)
    if not index.keyframes[start]:
        yield "first frame", "a keyframe", "a dependent frame"
    if index.timescale == timescale:
        yield from _exact_times(index.shown[part], start, lead, frame_ticks)
    if span.order_digest is not None:
        digest = media.order_digest(index.sizes[part], index.keyframes[part], lead)
        if digest != span.order_digest:
            yield "packet sizes, keyframes or order (digest)", span.order_digest, digest


def _other_times(span: Span, begin: int, fps: Fraction) -> Said:
    """Compare the times in the tables with the times of the episode's first frame and end."""
    timescale, frame_ticks = media.frame_ticks(fps)
    for name, have, frames in (
        ("from_timestamp", span.from_timestamp, begin),
        ("to_timestamp", span.to_timestamp, begin + span.length),
    ):
        if have is not None:
            seconds = frames * frame_ticks / timescale
            if have != seconds:
                yield name, seconds, have


def _exact_times(
    shown: npt.NDArray[np.int64] | range, start: int, lead: _Lead, frame_ticks: int
) -> Said:
    stop = start + len(shown)
    if (
        lead is None
        and isinstance(shown, range)
        and shown == range(start * frame_ticks, stop * frame_ticks, frame_ticks)
    ):
        return
    ranks = np.arange(start, stop) if lead is None else np.arange(start, stop) + lead
    expected, times = ranks * frame_ticks, np.asarray(shown)
    wrong = np.flatnonzero(times != expected)
    if len(wrong):
        at = int(wrong[0])
        yield (
            f"presentation time of {len(wrong)} frames, first at sample {start + at}",
            int(expected[at]),
            int(times[at]),
        )


def _part_of(clip: media.ClipIndex, span: Span) -> slice:
    """Return an episode's samples in its clip; fewer if the clip ends early."""
    if span.source_first is None:
        return slice(0, clip.num_samples)
    first = min(span.source_first, clip.num_samples)
    return slice(first, min(first + span.num_samples, clip.num_samples))


def _against_source(
    index: media.ClipIndex, part: slice, lead: _Lead, clip: media.ClipIndex, theirs: slice
) -> Said:
    frames, length = theirs.stop - theirs.start, part.stop - part.start
    if frames != length:
        yield "frames of its clip", frames, length
        return
    for name, ours, wanted in (
        ("packet sizes", index.sizes[part], clip.sizes[theirs]),
        ("keyframes", index.keyframes[part], clip.keyframes[theirs]),
    ):
        if not np.array_equal(ours, wanted):
            yield name, _digest(wanted), _digest(ours)
    order = clip.reordering(theirs.start, theirs.stop)
    if lead is not order and not np.array_equal(_whole(lead, length), _whole(order, length)):
        yield "order of frames", _digest(_whole(order, length)), _digest(_whole(lead, length))


def _same_packets(
    index: media.ClipIndex, part: slice, clip: media.ClipIndex, theirs: slice, result: OpenFile
) -> Said:
    runs = clip.byte_runs(theirs.start, theirs.stop), index.byte_runs(part.start, part.stop)
    with open_file(clip.path) as source:
        place = first_difference(source, result, *runs)
    if place is None:
        return
    ends = np.cumsum(clip.sizes[theirs])
    packet = min(int(np.searchsorted(ends, place, side="right")), len(ends) - 1)
    at, there = part.start + packet, theirs.start + packet
    yield (
        f"coded bytes from packet {packet} on (SHA-256 of that packet)",
        media.samples_sha256(clip, there, there + 1),
        media.samples_sha256(index, at, at + 1),
    )


def _whole(lead: _Lead, length: int) -> npt.NDArray[np.int32]:
    """Return each frame's rank in presentation order minus its rank in decoding order."""
    return np.zeros(length, np.int32) if lead is None else lead


def _digest(values: npt.NDArray[Any]) -> str:
    shown = ", ".join(str(value) for value in values[:4].tolist())
    return f"[{shown}{', ...' if len(values) > 4 else ''}] ({len(values)} values)"


def _stray_bytes(index: media.ClipIndex) -> Said:
    """Yield bytes between samples that are not zero; a file without gaps costs nothing."""
    holes = [(begin, end) for begin, end in _holes(index) if begin != end]
    if not holes:
        return
    # Unbuffered: a buffer would read ahead, up to a megabyte per gap over a network.
    with open(index.path, "rb", buffering=0) as file, naming(index.path):  # noqa: PTH123
        for begin, end in holes:
            if begin > end:
                yield "samples", "no overlap", f"an overlap before byte {begin}"
                return
            file.seek(begin)
            left = end - begin
            while left:
                block = file.read(min(left, 1 << 20))
                if block.strip(b"\0") or not block:
                    yield "padding", "zeros", f"other bytes after byte {begin}"
                    return
                left -= len(block)


def _holes(index: media.ClipIndex) -> Iterator[tuple[int, int]]:
    """Yield begin and end of the gaps between samples, and after the last one."""
    if isinstance(index.places, int):
        yield index.places + index.num_bytes, index.file_size_bytes
        return
    begins, sizes = index.offsets, index.sizes
    if np.any(begins[1:] < begins[:-1]):
        order = np.argsort(begins, kind="stable")
        begins, sizes = begins[order], sizes[order]
    for first in range(0, len(begins) - 1, _SAMPLES_AT_A_TIME):
        next_begins = begins[first + 1 : first + 1 + _SAMPLES_AT_A_TIME]
        last = first + len(next_begins)
        ends = begins[first:last] + sizes[first:last]
        for gap in np.flatnonzero(next_begins != ends).tolist():
            yield int(ends[gap]), int(next_begins[gap])
    yield int(begins[-1] + sizes[-1]), index.file_size_bytes


def compare_header(
    index: media.ClipIndex,
    lengths: Sequence[int],
    first_clip: str,
    fps: Fraction,
    clips_of: ClipReader,
    *,
    head: bytes = b"",
    may_be_free: bool = False,
) -> Said:
    """Yield differences between a video file's header and the one that samples and source demand.

    ``ftyp`` and ``moov`` hold everything else that decoders use (decoder configuration, dimensions,
    edit list, durations). With the source's decoder configuration, a file's packets determine
    exactly one header: that header is written again and compared byte by byte. A file with wrong
    samples passes here: `check_video` and `compare_clips` report it.

    Args:
        index: The file's index.
        lengths: Number of samples of each episode.
        first_clip: The source's file of the first episode.
        fps: Frames a second.
        clips_of: Reads the source's index.
        head: The first bytes of the file, as far as they were read with its index.
        may_be_free: Whether parts of the header may be a box without meaning, as in a repaired
            file.
    """
    start = 0
    samples = media.FileSamples()
    for length in lengths:
        stop = start + length
        if stop > index.num_samples:
            return
        sizes = index.sizes[start:stop]
        runs = index.byte_runs(start, stop)
        samples.add(
            sizes,
            index.keyframes[start:stop],
            index.reordering(start, stop),
            source_offset=runs[0][0],
            num_bytes=sum([size for _, size in runs]),
        )
        start = stop
    begins = samples.source_offsets
    overlaps = any(
        begin + size > after
        for begin, size, after in zip(begins, samples.num_bytes, begins[1:], strict=False)
    )
    if start != index.num_samples or overlaps:
        return
    first_byte = begins[0]
    ((_, found_clip),) = clips_of.read([first_clip])
    with joinable(found_clip, first_clip, fps) as clip:
        expected = media.build_header(
            samples,
            fps=fps,
            sample_entry=clip.sample_entry,
            geometry=clip.geometry,
            block_align=_WHERE_THEY_ARE,
        )
    if index.file_size_bytes != expected.size_bytes:
        yield "size of the file in bytes", expected.size_bytes, index.file_size_bytes
    del samples, begins  # of a file with many episodes, these and the header are large
    size = len(expected.content)
    # Up to the first sample; no alignment needs more than this.
    stop = max(size, first_byte if may_be_free else min(first_byte, size + _LARGEST_GAP_BYTES))
    if len(head) < stop:
        with open_file(index.path) as file, naming(index.path):
            head = os.pread(file.descriptor, stop, 0)
    if may_be_free and _without_room(head[:first_byte]) == _without_room(expected.content):
        return
    if not head.startswith(expected.content):
        yield _first_difference(expected.content, head[:size])
    elif head[size:stop].strip(b"\0"):
        yield "padding", "zeros", f"other bytes after byte {size}"


def _without_room(header: bytes) -> list[tuple[str, bytes]]:
    """Return the header's non-empty boxes; for ``mdat``, the bytes that are not zero."""
    return [
        (name, content[_MDAT_HEADER_BYTES:].strip(b"\0") if name == "mdat" else content)
        for name, content in _boxes(header)
        if name.rpartition("/")[2] != "free"
    ]


def _first_difference(expected: bytes, found: bytes) -> tuple[str, object, object]:
    """Return a difference for the first box that differs; a longer box shifts all others."""
    wanted, have = _boxes(expected), _boxes(found)
    for (name, content), (other, there) in zip_longest(wanted, have, fillvalue=("", b"")):
        if name != other:
            return f"header, box {name or other}", name or "no such box", other or "none"
        if content != there:
            pairs = enumerate(zip(content, there, strict=False))
            shorter = min(len(content), len(there))
            at = next((at for at, (left, right) in pairs if left != right), shorter)
            shown = slice(at, at + _SHOWN_BYTES)
            ours, theirs = (each[shown].hex(" ") or "its end" for each in (there, content))
            return f"header, box {name}, byte {at}", theirs, ours
    return "header", f"{len(wanted)} boxes", "the same in another form"


def _boxes(header: bytes) -> list[tuple[str, bytes]]:
    """Return path and payload of the innermost boxes; the path names the enclosing boxes."""
    found: list[tuple[str, bytes]] = []
    open_boxes: list[tuple[str, int, int]] = [("", 0, len(header))]
    while open_boxes:
        around, position, stop = open_boxes.pop()
        if position + 8 > stop:
            continue
        kind = header[position + 4 : position + 8]
        size = int.from_bytes(header[position : position + 4], "big")
        # Only the header of the media data, the last box, is here.
        end = min(position + size, stop) if size >= 8 and kind != b"mdat" else stop
        name = f"{around}{kind.decode('latin-1')}"
        open_boxes.append((around, end, stop))
        if kind in _CONTAINERS:
            open_boxes.append((f"{name}/", position + 8, end))
        elif kind == b"mdat":
            found.append((name, header[position:end]))
        else:
            found.append((name, header[position + 8 : end]))
    return found
