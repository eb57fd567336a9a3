"""The content that a result must hold: the episodes of its sources, and their stated places."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from leconvert import media
from leconvert.dataset.formats import (
    Dataset,
    Slices,
    Sources,
    SourceView,
    StatsBlock,
    Target,
    Totals,
    v3,
)
from leconvert.model.values import (
    FloatArray,
    IntArray,
    camera_of,
)
from leconvert.support.errors import UnreadableSourceError


@dataclass(frozen=True, eq=False)
class Expected:
    """Sources as the result must hold them: the episodes that were kept, source by source.

    Attributes:
        sources: The sources.
        number: Number of each episode's source, shape (E,).
        index: Number of each episode in its source, shape (E,).
        length: Their frames, shape (E,).
        slices: The places of their files, by stream of the result: one a source; for a trimmed
            episode the frames that stay.
        trimmed: Positions of trimmed episodes.
    """

    sources: Sources
    number: IntArray
    index: IntArray
    length: IntArray
    slices: Mapping[str, Sequence[Slices]]
    trimmed: Set[int] = frozenset()

    @classmethod
    def of(cls, sources: Sources) -> Expected:
        """Read which episodes the sources have."""
        slices: dict[str, list[Slices]] = {stream: [] for stream in sources[0].streams}
        lengths: list[IntArray] = []
        trimmed: set[int] = set()
        for source in sources:
            length, begin = source.length, sum(map(len, lengths))
            intervals = {
                position: source.repairs.trimmed_episodes[episode]
                for position, episode in enumerate(source.index.tolist())
                if episode in source.repairs.trimmed_episodes
            }
            for stream, found in slices.items():
                own = _slices(source.dataset, stream).select(source.kept)
                if intervals:
                    own = _trimmed(source.dataset, stream, own, length, intervals)
                found.append(own)
            if intervals:
                length = length.copy()
                for position, (first, stop) in intervals.items():
                    length[position] = stop - first
            trimmed.update(begin + position for position in intervals)
            lengths.append(length)
        return cls(
            sources=sources,
            number=np.repeat(np.arange(len(sources)), list(map(len, sources))),
            index=np.concatenate([source.index for source in sources]),
            length=np.concatenate(lengths),
            slices=slices,
            trimmed=trimmed,
        )

    def __len__(self) -> int:
        return len(self.index)

    @property
    def num_frames(self) -> int:
        """Frames of all episodes."""
        return int(self.length.sum())

    @property
    def fps(self) -> Fraction:
        """Frames a second."""
        return self.sources.fps

    @property
    def streams(self) -> list[str]:
        """Streams of the result."""
        return list(self.slices)

    @property
    def cameras(self) -> list[str]:
        """Cameras of the result."""
        return [camera for stream in self.slices if (camera := camera_of(stream)) is not None]

    @property
    def features(self) -> dict[str, Any]:
        """Features of the result, as the sources declare them."""
        return self.sources.features

    @property
    def tasks(self) -> list[tuple[int, str]]:
        """Index and text of each task of the result."""
        return self.sources.tasks

    @property
    def splits(self) -> dict[str, str] | None:
        """Splits by the result's numbering; None where they are the source's own."""
        return self.sources.splits

    @property
    def totals(self) -> Totals:
        """The totals of the result's ``info.json``."""
        return Totals(
            fps=self.fps,
            episodes=len(self),
            frames=self.num_frames,
            tasks=len(self.tasks),
            splits=self.splits,
        )

    @cached_property
    def begins(self) -> IntArray:
        """Place of each episode's first frame in the result, shape (E,)."""
        begins: IntArray = np.cumsum(self.length) - self.length
        return begins

    @cached_property
    def source_starts(self) -> list[int]:
        """First position of each source and, last, E."""
        return [0, *itertools.accumulate(map(len, self.sources))]

    def source_of(self, position: int) -> SourceView:
        """Return the source of an episode."""
        return self.sources[int(self.number[position])]

    def path(self, stream: str, position: int) -> str:
        """Return the source's file of an episode."""
        return next(self.paths(stream, np.array([position])))

    def paths(self, stream: str, positions: IntArray) -> Iterator[str]:
        """Yield the source's file of each of some episodes of one source."""
        if not len(positions):
            return
        number = int(self.number[positions[0]])
        slices, folder = self.slices[stream][number], f"{self.sources[number].root}/"
        for file in slices.file[positions - self.source_starts[number]].tolist():
            yield folder + slices.paths[file]

    def first_in_file(self, stream: str, positions: IntArray) -> Iterable[int | None]:
        """Return the first row or sample of some episodes of one source in the source's file.

        None for an episode whose file holds nothing else.
        """
        number = int(self.number[positions[0]]) if len(positions) else 0
        slices = self.slices[stream][number]
        if slices.whole and not self.trimmed:
            return itertools.repeat(None, len(positions))
        begins = slices.first[positions - self.source_starts[number]]
        first: list[int | None] = (begins - self.lead(stream, positions)).tolist()
        if slices.whole:
            return [
                at if position in self.trimmed else None
                for at, position in zip(first, positions.tolist(), strict=True)
            ]
        return first

    def lead(self, stream: str, positions: IntArray) -> IntArray:
        """Return the samples before the first frame of some episodes, which come along."""
        return self._beside[stream][0][positions]

    def samples(self, stream: str, positions: IntArray) -> IntArray:
        """Return how many rows or samples some episodes have, with those that come along."""
        lead, tail = self._beside[stream]
        samples: IntArray = self.length[positions] + lead[positions] + tail[positions]
        return samples

    @cached_property
    def _beside(self) -> dict[str, tuple[IntArray, IntArray]]:
        """Samples before and after the frames of each episode that come along, shape (E,) each."""

        def joined(found: Sequence[IntArray | None]) -> IntArray:
            parts = [
                np.zeros(len(source), dtype=np.int64) if each is None else each
                for source, each in zip(self.sources, found, strict=True)
            ]
            return np.concatenate(parts)

        return {
            stream: (joined([own.lead for own in found]), joined([own.tail for own in found]))
            for stream, found in self.slices.items()
        }

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield what the sources say of each episode, see `leconvert.dataset.formats.Dataset`."""
        return self.sources.lines()

    def stats(self) -> Iterator[tuple[SourceView, list[int], StatsBlock]]:
        """Yield the statistics of episodes of one source, with their numbers in it."""
        for source in self.sources:
            first = 0
            for block in source.stats_blocks():
                yield source, source.index[first : first + len(block)].tolist(), block
                first += len(block)


def _slices(source: Dataset, stream: str) -> Slices:
    # Times of a v3.0 source may have drifted, and its files may hold what no episode has.
    if isinstance(source, v3.Dataset):
        return source.counted_slices(stream)
    return source.slices(stream)


def _trimmed(
    source: Dataset,
    stream: str,
    slices: Slices,
    length: IntArray,
    intervals: Mapping[int, tuple[int, int]],
) -> Slices:
    """Return slices of whole episodes as they are once some are trimmed."""
    first = slices.first.copy()
    lead = np.zeros_like(first) if slices.lead is None else slices.lead.copy()
    tail = np.zeros_like(first) if slices.tail is None else slices.tail.copy()
    for position, (begin, stop) in intervals.items():
        own, end = int(first[position]), int(first[position] + length[position])
        first[position] += begin
        if camera_of(stream) is None:
            continue
        path = f"{source.root}/{slices.path(position)}"
        (found,) = media.read_clip_indexes([path])
        with joinable(found, path, source.fps) as clip:
            cut = clip.cut_around(
                own + begin, own + stop, begin=own - lead[position], end=end + tail[position]
            )
        # Without such a cut the frames cannot be there, and nothing is expected beside them.
        cut_from, cut_to = cut or (own + begin, own + stop)
        lead[position], tail[position] = own + begin - cut_from, cut_to - own - stop
    return replace(slices, first=first, lead=lead, tail=tail)


@contextmanager
def joinable(
    found: media.ClipIndex | UnreadableSourceError, path: str, fps: Fraction
) -> Iterator[media.ClipIndex]:
    """Give the index of a source clip; one that must be remuxed lives in scratch meanwhile."""
    if isinstance(found, media.ClipIndex):
        yield found
        return
    if not isinstance(found, media.UnsupportedClipError):
        raise found
    with tempfile.TemporaryDirectory(prefix="leconvert-verify-") as scratch:
        plain = f"{scratch}/clip.mp4"
        media.remux_clip(path, plain, fps=fps)
        yield media.read_clip_index(plain)


class Routes(NamedTuple):
    """The columns that lead to files, by stream; arrays of shape (E,).

    Attributes:
        file_number: Number of the output file.
        from_timestamp: Start in a video file, in seconds; none for data, and where the result does
            not say it.
        to_timestamp: End in it.
    """

    file_number: Mapping[str, IntArray]
    from_timestamp: Mapping[str, FloatArray]
    to_timestamp: Mapping[str, FloatArray]


def read_routes(reader: v3.EpisodesReader, streams: Sequence[str], target: Target) -> Routes:
    """Return the routes of some streams, whose columns can be used."""
    table, _ = v3.read_episode_table(reader, streams)
    if table is None:
        nothing: FloatArray = np.empty(0)
        each = dict.fromkeys(streams, nothing)
        return Routes(dict.fromkeys(streams, np.empty(0, np.int64)), each, each)
    return Routes(
        {s: target.numbers(placed.chunk, placed.file) for s, placed in table.placed.items()},
        {s: placed.begin_seconds for s, placed in table.placed.items()},
        {s: placed.end_seconds for s, placed in table.placed.items()},
    )


def file_runs(numbers: IntArray) -> Iterator[tuple[int, int]]:
    """Yield first and stop of each run of episodes in one file."""
    edges = (np.flatnonzero(np.diff(numbers)) + 1).tolist()
    yield from itertools.pairwise([0, *edges, len(numbers)])
