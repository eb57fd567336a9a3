"""One video file of a result against the clips that it was joined from."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from leconvert import media
from leconvert.errors import UnreadableSourceError
from leconvert.verify.difference import Difference

__all__ = ["Span", "compare_video", "source_clip"]

_SAMPLES_AT_A_TIME = 1 << 14


@dataclass(frozen=True, slots=True)
class Span:
    """What ``meta/episodes`` says of one episode in one video file.

    Attributes:
        episode: The episode's index.
        length: Its frames.
        from_timestamp: Start in the file, in seconds.
        to_timestamp: End in the file, in seconds.
        source: Path of the clip it came from.
        order_digest: What `leconvert.media.order_digest` gave when the clip was read; None has the
            clip read again.
    """

    episode: int
    length: int
    from_timestamp: float
    to_timestamp: float
    source: str
    order_digest: str | None = None


def compare_video(
    root: Path,
    path: str,
    stream: str,
    num_frames: int,
    spans: Iterable[Span],
    fps: Fraction,
    *,
    read_bytes: bool,
    on_frames: Callable[[int], None],
) -> Iterator[Difference]:
    """Yield whatever in one output file is not its episodes in order, packet by packet.

    Args:
        root: The result.
        path: The file, relative to it.
        stream: Its stream.
        num_frames: Frames of its episodes.
        spans: Its episodes in order.
        fps: The dataset's frame rate.
        read_bytes: Compare the coded bytes too, not only their sizes.
        on_frames: Called with the frames of each episode that was compared.
    """

    def differs(what: str, expected: object, found: object, span: Span | None = None) -> Difference:
        episode = None if span is None else span.episode
        return Difference(what, path, str(expected), str(found), episode, stream)

    try:
        index = media.read_clip_index(root / path)
    except (UnreadableSourceError, OSError) as error:
        yield differs("readable MP4", "an index", error)
        return
    if index.num_samples != num_frames:
        yield differs("number of frames", num_frames, index.num_samples)
        return
    timescale, frame_ticks = media.frame_ticks(fps)
    placed = Fraction(timescale, frame_ticks)
    if index.timescale != timescale:
        yield differs("timescale", timescale, index.timescale)
    yield from _stray_bytes(root / path, index, differs)

    start = 0
    for span in spans:
        stop = start + span.length
        for name, found, frames in (
            ("from_timestamp", span.from_timestamp, start),
            ("to_timestamp", span.to_timestamp, stop),
        ):
            expected = frames * placed.denominator / placed.numerator
            if found != expected:
                yield differs(name, expected, found, span)
        if not index.keyframes[start]:
            yield differs("first frame", "a keyframe", "a dependent frame", span)
        part = slice(start, stop)
        lead = _lead(index, start, stop)
        if index.timescale == timescale:
            expected_times = (np.arange(start, stop) + lead) * frame_ticks
            times = np.asarray(index.shown[part])
            wrong = np.flatnonzero(times != expected_times)
            if len(wrong):
                at = int(wrong[0])
                yield differs(
                    f"presentation time of {len(wrong)} frames, first at sample {start + at}",
                    int(expected_times[at]),
                    int(times[at]),
                    span,
                )
        if span.order_digest is not None:
            digest = media.order_digest(index.sizes[part], index.keyframes[part], lead)
            if digest != span.order_digest:
                yield differs(
                    "packet sizes, keyframes or order (digest)", span.order_digest, digest, span
                )
        if span.order_digest is None or read_bytes:
            with source_clip(span.source, fps) as clip:
                for what, expected_value, found_value in _against_source(
                    index, part, lead, clip, read_bytes=read_bytes
                ):
                    yield differs(what, expected_value, found_value, span)
        on_frames(span.length)
        start = stop


def _against_source(
    index: media.ClipIndex,
    part: slice,
    lead: npt.NDArray[np.int32],
    clip: media.ClipIndex,
    *,
    read_bytes: bool,
) -> Iterator[tuple[str, object, object]]:
    """Yield what, expected and found for whatever differs from the source clip."""
    for name, ours, theirs in (
        ("packet sizes", index.sizes[part], clip.sizes),
        ("keyframes", index.keyframes[part], clip.keyframes),
        ("order of frames", lead, _lead(clip, 0, clip.num_samples)),
    ):
        if not np.array_equal(ours, theirs):
            yield name, _digest(theirs), _digest(ours)
    if read_bytes:
        expected = media.samples_sha256(clip)
        found = media.samples_sha256(index, part.start, part.stop)
        if found != expected:
            yield "coded bytes (SHA-256)", expected, found


def _lead(index: media.ClipIndex, first: int, stop: int) -> npt.NDArray[np.int32]:
    """Return the place in the order of presentation minus that in the order of decoding."""
    lead = index.reordering(first, stop)
    return np.zeros(stop - first, np.int32) if lead is None else lead


class source_clip:  # noqa: N801 - used like a function
    """The index of a source clip; one that must be remuxed lives in scratch while it is used."""

    def __init__(self, path: str, fps: Fraction) -> None:
        self._path = path
        self._fps = fps
        self._scratch: str | None = None

    def __enter__(self) -> media.ClipIndex:
        try:
            return media.read_clip_index(self._path)
        except media.UnsupportedClipError:
            self._scratch = tempfile.mkdtemp(prefix="leconvert-verify-")
            plain = f"{self._scratch}/clip.mp4"
            media.remux_clip(self._path, plain, fps=self._fps)
            return media.read_clip_index(plain)

    def __exit__(self, *_: object) -> None:
        if self._scratch is not None:
            shutil.rmtree(self._scratch)


def _digest(values: npt.NDArray[Any]) -> str:
    shown = ", ".join(str(value) for value in values[:4].tolist())
    return f"[{shown}{', ...' if len(values) > 4 else ''}] ({len(values)} values)"


def _stray_bytes(
    path: Path, index: media.ClipIndex, differs: Callable[..., Difference]
) -> Iterator[Difference]:
    """Find bytes between samples that are not zero; a file without gaps costs nothing."""
    # Unbuffered: a buffer would read ahead, up to a megabyte a gap over a network.
    with path.open("rb", buffering=0) as file:
        for begin, end in _holes(index):
            if begin > end:
                yield differs("samples", "no overlap", f"an overlap before byte {begin}")
                return
            file.seek(begin)
            left = end - begin
            while left:
                block = file.read(min(left, 1 << 20))
                if block.strip(b"\0") or not block:
                    yield differs("padding", "zeros", f"other bytes after byte {begin}")
                    return
                left -= len(block)


def _holes(index: media.ClipIndex) -> Iterator[tuple[int, int]]:
    """Yield begin and end of what lies between samples, and behind the last."""
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
