"""The content that a result must hold: the episodes of its sources, in their order."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path

import numpy as np

from leconvert import media
from leconvert.dataset.formats import (
    Dataset,
    Slices,
    SourceRecord,
    Sources,
    SourceView,
    StatsBlock,
    Totals,
    read_provenance,
    v3,
)
from leconvert.dataset.scan.changes import meta_digest
from leconvert.model.repairs import NO_REPAIRS, Repairs
from leconvert.model.values import (
    IntArray,
    camera_of,
)
from leconvert.support.errors import SourceError, UnreadableSourceError, UsageError
from leconvert.support.values import dataclass


@dataclass(frozen=True, eq=False)
class Expected:
    """The content that the result must hold: the kept episodes, source by source.

    Attributes:
        sources: The sources.
        number: Number of each episode's source, shape (E,).
        index: Index of each episode in its source, shape (E,).
        length: Number of frames of each episode, shape (E,).
        slices: Positions of their files, by stream of the result, one entry per source. For trimmed
            episodes, the kept frames.
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
        """Read the kept episodes of the sources."""
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
    def streams(self) -> list[str]:
        """The streams of the result."""
        return list(self.slices)

    @property
    def cameras(self) -> list[str]:
        """The cameras of the result."""
        return [camera for stream in self.slices if (camera := camera_of(stream)) is not None]

    @property
    def totals(self) -> Totals:
        """The totals of the result's ``info.json``."""
        return Totals(
            fps=self.sources.fps,
            episodes=len(self),
            frames=int(self.length.sum()),
            tasks=len(self.sources.tasks),
            splits=self.sources.splits,
        )

    @cached_property
    def begins(self) -> IntArray:
        """Position of each episode's first frame in the result, shape (E,)."""
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
        """Return the path of an episode's file in its source."""
        return next(self.paths(stream, np.array([position])))

    def paths(self, stream: str, positions: IntArray) -> Iterator[str]:
        """Yield the source's file for each of some episodes of one source."""
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
        """Return the number of samples kept for decoding before some episodes' first frames."""
        return self._beside[stream][0][positions]

    def samples(self, stream: str, positions: IntArray) -> IntArray:
        """Return the number of rows or samples of some episodes, with those kept for decoding."""
        lead, tail = self._beside[stream]
        samples: IntArray = self.length[positions] + lead[positions] + tail[positions]
        return samples

    @cached_property
    def _beside(self) -> dict[str, tuple[IntArray, IntArray]]:
        """Number of kept samples before and after the frames of each episode, shape (E,) each."""

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

    def stats(self) -> Iterator[tuple[SourceView, list[int], StatsBlock]]:
        """Yield the statistics of episodes of one source, with their indices in it."""
        for source in self.sources:
            first = 0
            for block in source.stats_blocks():
                yield source, source.index[first : first + len(block)].tolist(), block
                first += len(block)


def _slices(source: Dataset, stream: str) -> Slices:
    # Times of a v3.0 source may have drifted, and its files may have frames of no episode.
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
    """Return the slices with some episodes trimmed."""
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
            # A clip may be longer than its episode.
            last = None if slices.whole else end + int(tail[position])
            cut = clip.cut_around(
                own + begin, own + stop, begin=own - int(lead[position]), end=last
            )
        # Without such a cut the frames cannot be there, and no samples are expected beside them.
        cut_from, cut_to = cut or (own + begin, own + stop)
        lead[position], tail[position] = own + begin - cut_from, cut_to - own - stop
    return replace(slices, first=first, lead=lead, tail=tail)


def in_order(result: Path, roots: Sequence[Path]) -> list[Path]:
    """Return sources in the order of their episodes in a result, as far as its records say."""
    left = list(roots)
    provenance = read_provenance(result) if len(left) > 1 else None
    if provenance is None or len(provenance.sources) != len(left):
        return left
    found: dict[int, Path] = {}
    # A copy may have another name, and a changed source has other tables.
    for is_it in (_has_tables, lambda told, root: root.name == told.name, lambda *_: True):
        for number, told in enumerate(provenance.sources):
            if number not in found:
                root = next((root for root in left if is_it(told, root)), None)
                if root is not None:
                    found[number] = root
                    left.remove(root)
    return [found[number] for number in sorted(found)]


def other_sources(result: Path, roots: Sequence[Path]) -> list[str]:
    """Return the datasets that a result's record names as its sources and that are not given."""
    try:
        provenance = read_provenance(result)
    except UnreadableSourceError:
        return []
    told = () if provenance is None else provenance.sources
    return [each.name for each in told if not any(_has_tables(each, root) for root in roots)]


def _has_tables(told: SourceRecord, root: Path) -> bool:
    with suppress(OSError, SourceError):
        return meta_digest(root, told.codebase_version) == told.meta_digest
    return False


def declared_repairs(result: Path, num_sources: int) -> list[Repairs]:
    """Return the changes of each of its sources from a result's records.

    Raises:
        UsageError: The result was made from another number of datasets.
    """
    try:
        provenance = read_provenance(result)
        if num_sources == 1 and (provenance is None or len(provenance.sources) == 1):
            return [v3.read_repairs(result)]
    except UnreadableSourceError:
        if num_sources > 1:
            raise
        return [NO_REPAIRS]  # the comparison reports its error
    of = 1 if provenance is None else len(provenance.sources)
    if provenance is None or of != num_sources:
        raise UsageError(
            f"{result} was made from {of} {'dataset' if of == 1 else 'datasets'}, not from "
            f"{num_sources}.",
            path=str(result),
            next_step="Give this dataset as the only --source."
            if provenance is None
            else f"Give each as --source: {', '.join(each.name for each in provenance.sources)}.",
        )
    return [source.repairs for source in provenance.sources]


@contextmanager
def joinable(
    found: media.ClipIndex | UnreadableSourceError, path: str, fps: Fraction
) -> Iterator[media.ClipIndex]:
    """Yield the index of a source clip; if necessary, of a remuxed copy in a scratch file."""
    if isinstance(found, media.ClipIndex):
        yield found
        return
    if isinstance(found, media.TruncatedClipError):  # a trimmed episode's
        yield found.index
        return
    if not isinstance(found, media.UnsupportedClipError):
        raise found
    with tempfile.TemporaryDirectory(prefix="leconvert-verify-") as scratch:
        plain = f"{scratch}/clip.mp4"
        media.remux_clip(path, plain, fps=fps)
        yield media.read_clip_index(plain)


def file_runs(numbers: IntArray) -> Iterator[tuple[int, int]]:
    """Yield the first and the end position of each run of episodes in one file."""
    edges = (np.flatnonzero(np.diff(numbers)) + 1).tolist()
    yield from itertools.pairwise([0, *edges, len(numbers)])
