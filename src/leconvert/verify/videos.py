"""One video file of a result against the clips that it was joined from."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
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
    spans: Sequence[Span],
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
    total = sum(span.length for span in spans)
    if index.num_samples != total:
        yield differs("number of frames", total, index.num_samples)
        return
    timescale, frame_ticks = media.frame_ticks(fps)
    placed = Fraction(timescale, frame_ticks)
    ranks = index.ranks
    if index.timescale != timescale:
        yield differs("timescale", timescale, index.timescale)
    else:
        expected_times = ranks * frame_ticks
        wrong = np.flatnonzero(index.presentation_times != expected_times)
        if len(wrong):
            at = int(wrong[0])
            yield differs(
                f"presentation time of {len(wrong)} frames, first at sample {at}",
                int(expected_times[at]),
                int(index.presentation_times[at]),
            )
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
        lead = ranks[part] - np.arange(start, stop)
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
    lead: npt.NDArray[np.int64],
    clip: media.ClipIndex,
    *,
    read_bytes: bool,
) -> Iterator[tuple[str, object, object]]:
    """Yield what, expected and found for whatever differs from the source clip."""
    for name, ours, theirs in (
        ("packet sizes", index.sizes[part], clip.sizes),
        ("keyframes", index.keyframes[part], clip.keyframes),
        ("order of frames", lead, clip.ranks - np.arange(clip.num_samples)),
    ):
        if not np.array_equal(ours, theirs):
            yield name, _digest(theirs), _digest(ours)
    if read_bytes:
        expected = media.samples_sha256(clip)
        found = media.samples_sha256(index, part.start, part.stop)
        if found != expected:
            yield "coded bytes (SHA-256)", expected, found


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
    order = np.argsort(index.offsets, kind="stable")
    begins = index.offsets[order]
    ends = begins + index.sizes[order]
    gaps = np.flatnonzero(begins[1:] != ends[:-1])
    tail = int(ends[-1]), index.file_size_bytes
    holes = [(int(ends[gap]), int(begins[gap + 1])) for gap in gaps] + [tail]
    with path.open("rb") as file:
        for begin, end in holes:
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
