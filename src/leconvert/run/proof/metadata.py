"""The tables under ``meta/`` of a result against those of its source."""

from __future__ import annotations

import itertools
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from leconvert import media, tables
from leconvert.dataset.formats import (
    PROVENANCE_PATH,
    TARGETS,
    Dataset,
    Slices,
    Sources,
    SourceView,
    StatsBlock,
    Target,
    Totals,
    episode_digests,
    has_provenance,
    read_provenance,
    v2,
    v3,
)
from leconvert.dataset.formats.v3 import (
    EPISODES_DIR,
    INFO_PATH,
    LOCATION_COLUMNS,
    REPAIRS_PATH,
    STATS_PATH,
    episodes_path,
    read_json_object,
)
from leconvert.dataset.scan.file_checks import ClipFacts, declared_as_encoded
from leconvert.dataset.scan.modality import read_modality, task_columns
from leconvert.model.repairs import Repairs
from leconvert.model.values import (
    DATA_STREAM,
    FILES_PER_CHUNK,
    FloatArray,
    IntArray,
    camera_of,
    stream_of_camera,
)
from leconvert.model.versions import SOURCE_VERSIONS, V3_VERSION, said_version
from leconvert.run.proof.difference import Difference
from leconvert.support.errors import LeconvertError, SourceError, UnreadableSourceError
from leconvert.support.storage_errors import raise_storage_trouble
from leconvert.tables.arrow import int64_values
from leconvert.tables.schemas import HUGGINGFACE_KEY, feature_of_type

__all__ = [
    "Expected",
    "ResultStats",
    "Routes",
    "compare_aggregate_form",
    "compare_cameras",
    "compare_info",
    "compare_location",
    "compare_own_values",
    "compare_provenance",
    "compare_repairs",
    "compare_stats",
    "compare_tasks",
    "file_runs",
    "flat_columns",
    "flattened",
    "joinable",
    "read_routes",
    "same_json",
    "same_statistic",
    "unreadable_metadata",
    "unusable_columns",
]


# ------------------------------------------------------------------------------------------------
# The columns of ``meta/episodes``: those that lead to files, and those that the source gave.


# More chunks would be more files than any file system has.
_CHUNKS_STOP = 10**12


def unusable_columns(
    table: v3.EpisodesReader, streams: Sequence[str], target: Target
) -> Iterator[Difference]:
    """Yield columns without which nothing can be compared: missing, incomplete, of another type."""
    placing = v3.placing_columns(streams)
    found: dict[str, Difference] = {}
    for path in table.paths:
        schema = table.schema(path)
        for name in [*placing, *LOCATION_COLUMNS, "tasks"]:
            at = schema.get_field_index(name)
            kind = None if at < 0 else schema.field(at).type
            wanted = pa.float64() if name.endswith("_timestamp") else pa.int64()
            if kind is None:
                said = "one such column", "none or several"
            elif name == "tasks" and not pa.types.is_list(kind):
                said = "lists", str(kind)
            elif name != "tasks" and kind != wanted:
                said = str(wanted), str(kind)
            else:
                continue
            found.setdefault(name, Difference(f"column {name!r}", EPISODES_DIR, *said))
    if not found:
        yield from _unusable_values(table, [*placing, *LOCATION_COLUMNS], target)
    yield from found.values()


def _unusable_values(
    table: v3.EpisodesReader, names: Sequence[str], target: Target
) -> Iterator[Difference]:
    """Yield columns with values that are missing, or that are no numbers of files.

    Two numbers that are wrong together could make a right one.
    """
    missing: Counter[str] = Counter()
    impossible: dict[str, Difference] = {}
    row = 0
    for block in table.blocks(names.__contains__):
        for name in names:
            column = block.column(name)
            missing[name] += column.null_count
            if column.null_count or not name.endswith(("/chunk_index", "/file_index")):
                continue
            counts_on = name not in LOCATION_COLUMNS and target != TARGETS[V3_VERSION]
            is_file = name.endswith("/file_index") and not counts_on
            stop = FILES_PER_CHUNK if is_file else _CHUNKS_STOP
            values = int64_values(column)
            wrong = np.flatnonzero((values < 0) | (values >= stop))
            if len(wrong):
                what = f"column {name!r}, row {row + wrong[0]}"
                said = f"a number from 0 to {stop - 1}", str(values[wrong[0]])
                impossible.setdefault(name, Difference(what, EPISODES_DIR, *said))
        row += block.num_rows
    for name in names:
        if missing[name]:
            wanted = "a value for each episode"
            yield Difference(f"column {name!r}", EPISODES_DIR, wanted, f"{missing[name]} missing")
        elif name in impossible:
            yield impossible[name]


def compare_own_values(
    lines: Sequence[Mapping[str, Any]], rows: Mapping[str, Sequence[Any]], known: Sequence[str]
) -> Iterator[Difference]:
    """Compare what lines of ``episodes.jsonl`` say beside places with their rows."""
    passed = {*known, *LOCATION_COLUMNS}
    names = dict.fromkeys(name for line in lines for name in line if name not in passed)
    names |= dict.fromkeys(name for name in rows if name not in passed)
    for name in names:
        found = rows.get(name, [None] * len(lines))
        for line, have in zip(lines, found, strict=True):
            if not _same(line.get(name), have):
                yield Difference(
                    name, EPISODES_DIR, str(line.get(name)), str(have), int(line["episode_index"])
                )


def compare_location(table: v3.EpisodesReader) -> Iterator[Difference]:
    """Compare what files of ``meta/episodes`` say of themselves with their names and types."""
    for number, path in enumerate(table.paths):
        if path != episodes_path(number):
            continue  # a name that should not be there is told where files are compared
        schema = table.schema(path)
        values: dict[str, set[int]] = {name: set() for name in LOCATION_COLUMNS}
        for block in table.blocks(values.__contains__, path):
            for name, seen in values.items():
                seen.update(np.unique(int64_values(block.column(name))).tolist())
        places = divmod(number, FILES_PER_CHUNK)
        for (name, seen), place in zip(values.items(), places, strict=True):
            if seen != {place}:
                yield Difference(name, path, str(place), ", ".join(map(str, sorted(seen))))
        yield from _compare_description(schema, path)


def _compare_description(schema: pa.Schema, path: str) -> Iterator[Difference]:
    """Compare what the file tells `datasets` about its columns with their types."""
    try:
        described = json.loads((schema.metadata or {})[HUGGINGFACE_KEY])["info"]["features"]
        told = dict(described)
    except (KeyError, ValueError, TypeError, RecursionError):
        told = {}
    for field in schema:
        expected = feature_of_type(field.type)
        if told.get(field.name) != expected:
            what = f"`huggingface` entry of column {field.name!r}"
            yield Difference(what, path, str(expected), str(told.get(field.name)))


def _same(expected: object, found: object) -> bool:
    """Tell whether a column holds a JSON value, in the widest type that its column may need."""
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        return all(_same(expected.get(key), found.get(key)) for key in {**expected, **found})
    if isinstance(expected, list) and isinstance(found, list):
        return len(expected) == len(found) and all(map(_same, expected, found))
    if isinstance(found, str) and expected is not None and not isinstance(expected, str):
        try:  # what shares a column with texts is text itself
            return bool(json.loads(found) == expected)
        except ValueError:
            return False
    if isinstance(found, float) and isinstance(expected, int | float):
        return float(expected) == found or (found != found and expected != expected)  # noqa: PLR0124
    return type(expected) is type(found) and expected == found


# ------------------------------------------------------------------------------------------------
# The tables under ``meta/`` of a result against those of its source.


@dataclass(frozen=True, eq=False)
class Expected:
    """Sources as the result must hold them: the episodes that were kept, source by source.

    Attributes:
        sources: The sources.
        number: Number of each episode's source, shape (E,).
        index: Number of each episode in its source, shape (E,).
        length: Their frames, shape (E,).
        slices: Where their files are, by stream of the result: one a source; of a trimmed episode
            the frames that stay.
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
        """What the result's ``info.json`` says of it as a whole."""
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


def _check_computed(source: SourceView, episode: int) -> None:
    """Raise if statistics of a source were wanted of an episode that has no table of them."""
    repairs = source.repairs
    if not any(repairs.computes_stats(name, episode) for name in repairs.computed_stats):
        raise SourceError(
            f"{v2.STATS_PATH} of the source has no table of statistics for episode {episode}.",
            path=str(source.root / v2.STATS_PATH),
            next_step="Mend the line, or restore the table from another copy of the dataset.",
        )


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
        # Where there is no such cut nothing is expected beside the frames, which are not there.
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


def unreadable_metadata(result: Path, error: Exception, expected: str = "its tables") -> Difference:
    """Return the difference of a table without which nothing can be compared."""
    path = getattr(error, "path", None) or getattr(error, "filename", None)
    inside = path is not None and Path(path).is_relative_to(result)
    place = Path(path).relative_to(result).as_posix() if path and inside else "meta/"
    said = str(error) if isinstance(error, LeconvertError | OSError) else repr(error)
    return Difference("readable metadata", place, expected, said)


def compare_tasks(
    path: str, expected: Sequence[tuple[int, str]], found: Sequence[tuple[int, str]]
) -> Iterator[Difference]:
    """Compare the tasks, by index and text."""
    for have, wanted in zip_longest(found, expected):
        if have != wanted:
            yield Difference("tasks", path, _task(wanted), _task(have))


def _task(task: tuple[int, str] | None) -> str:
    return "no such row" if task is None else f"task {task[0]}, {task[1]!r}"


class ResultStats(NamedTuple):
    """The statistics of some episodes of a result, by column ``stats/<feature>/<name>``.

    Attributes:
        length: How many episodes.
        columns: All columns as arrays; None where they are not regular.
        rows: Gives what each episode has.
    """

    length: int
    columns: Mapping[str, npt.NDArray[Any]] | None
    rows: Callable[[], Sequence[Mapping[str, Any]]]


def compare_stats(
    result: Path,
    path: str,
    expected: Expected,
    found: Iterable[ResultStats],
    data_files: Callable[[], Sequence[str]],
) -> Iterator[Difference]:
    """Compare every episode's statistics, and the dataset's with their aggregate and its rows.

    Statistics that the conversion computed are not compared here but with the rows that they are
    of; those of videos are taken as they stand.
    """
    try:
        yield from _compare_stats(result, path, expected, found, data_files)
    except SourceError as error:
        computes = any(source.repairs.computed_stats for source in expected.sources)
        if isinstance(error, UnreadableSourceError) or not computes:
            raise
        # The source's own could be added up when the conversion began; the result's cannot.
        yield Difference("computed statistics", path, "ones that add up", str(error))


def _compare_stats(
    result: Path,
    path: str,
    expected: Expected,
    found: Iterable[ResultStats],
    data_files: Callable[[], Sequence[str]],
) -> Iterator[Difference]:
    aggregate = v3.StatsAggregator()
    known: tuple[Set[str], Set[str]] = frozenset(), frozenset()
    names: list[str] = []
    times_computed: Counter[str] = Counter()
    rows = _stats_rows(aggregate, expected.stats(), found)
    for have, (repairs, index, stats) in rows:
        wanted = dict(flattened(stats, "stats"))
        for name in repairs.computed_stats:
            if not repairs.computes_stats(name, index):
                continue
            times_computed[name] += 1
            computed = _stats_of(have, name)
            if not computed:
                what = f"statistics of {name!r}"
                yield Difference(what, path, "computed ones", "none", episode=index)
            stats[name] = computed
            wanted |= flattened({name: computed}, "stats")
        aggregate.update(stats, episode_index=index)
        if (wanted.keys(), have.keys()) != known:
            known = frozenset(wanted), frozenset(have)
            names = sorted(wanted.keys() | have.keys())
        for name in names:
            theirs, ours = wanted.get(name), have.get(name)
            if theirs != ours and not same_statistic(_nested(theirs), _nested(ours)):
                yield Difference(name, path, str(theirs), str(ours), episode=index)
    total = _plain(aggregate.result())

    def bounds(feature: str, quantile: str) -> tuple[Any, Any] | None:
        is_picture = expected.features[feature]["dtype"] in ("image", "video")
        if not is_picture or times_computed[feature] < len(expected):
            return None
        return aggregate.bounds(feature, quantile)

    yield from _compare_aggregate(result, total, expected.features, data_files, bounds)


def _stats_rows(
    aggregate: v3.StatsAggregator,
    expected: Iterable[tuple[SourceView, list[int], StatsBlock]],
    found: Iterable[ResultStats],
) -> Iterator[tuple[Mapping[str, Any], tuple[Repairs, int, dict[str, Any]]]]:
    """Yield what must be compared episode by episode; blocks that are equal are aggregated here.

    Of each episode that is yielded there are the result's columns; repairs, number and statistics
    of the source, of features that stay and are not computed.
    """
    blocks = iter(found)
    have, first = ResultStats(0, None, list), 0
    for source, index, whole in expected:
        done = 0
        while done < len(whole):
            if first == have.length:
                following = next(blocks, None)
                if following is None:
                    return
                have, first = following, 0
            some = min(len(whole) - done, have.length - first)
            block, own = whole[done : done + some], index[done : done + some]
            part = slice(first, first + some)
            done, first = done + some, first + some
            repairs = source.repairs
            if not repairs.computed_stats:
                block = block.without(repairs.dropped_features)
                if _same_columns(block, have.columns, part):
                    aggregate.update_block(block, own)
                    continue
            for row, number, stats in zip(have.rows()[part], own, block.rows, strict=True):
                if stats is None:
                    _check_computed(source, number)
                kept = {
                    name: values
                    for name, values in (stats or {}).items()
                    if name not in repairs.dropped_features
                    and not repairs.computes_stats(name, number)
                }
                yield row, (repairs, number, kept)


def _same_columns(
    block: StatsBlock, found: Mapping[str, npt.NDArray[Any]] | None, part: slice
) -> bool:
    """Whether statistics are for sure those of a part of the result's; NaN is not looked at."""
    if found is None or block.columns is None:
        return False
    wanted = flat_columns(block.columns)
    return wanted.keys() == found.keys() and all(
        array.dtype == found[name].dtype and np.array_equal(array, found[name][part])
        for name, array in wanted.items()
    )


def flat_columns(
    columns: Mapping[str, Mapping[str, npt.NDArray[Any]]],
) -> dict[str, npt.NDArray[Any]]:
    """Return columns of statistics by their names in a table."""
    return {
        f"stats/{feature}/{name}": array
        for feature, own in columns.items()
        for name, array in own.items()
    }


def compare_aggregate_form(result: Path) -> Iterator[Difference]:
    """Say where ``stats.json`` is nothing that could be read, without a look at what it says."""
    found = _read_aggregate(result)
    if isinstance(found, Difference):
        yield found


def _read_aggregate(result: Path) -> dict[str, Any] | Difference:
    try:
        return read_json_object(result / STATS_PATH)
    except (OSError, ValueError) as error:
        raise_storage_trouble(error, result / STATS_PATH)
        return Difference("aggregate", STATS_PATH, "readable statistics", str(error))


def _compare_aggregate(
    result: Path,
    expected: Mapping[str, Any],
    features: Mapping[str, Any],
    data_files: Callable[[], Sequence[str]],
    bounds: Callable[[str, str], tuple[Any, Any] | None],
) -> Iterator[Difference]:
    """Compare the statistics of all episodes."""
    found = _read_aggregate(result)
    if isinstance(found, Difference):
        yield found
        return
    from leconvert.dataset.statistics import QUANTILES, columns_with_quantiles, wrong_quantiles

    both = [name for name in expected if isinstance(found.get(name), Mapping)]
    of_rows = {
        name: found[name] for name in columns_with_quantiles(expected, features) if name in both
    }
    counted: Mapping[str, Sequence[str]] = {}
    # What is wrong with a data file is said where it is compared.
    with suppress(UnreadableSourceError):
        counted = wrong_quantiles(data_files(), of_rows) if of_rows else {}
    for feature in sorted(expected.keys() | found.keys()):
        wanted, have = expected.get(feature), found.get(feature)
        if not isinstance(wanted, Mapping) or not isinstance(have, Mapping):
            if not same_statistic(wanted, have):
                what = f"aggregate of {feature!r}"
                yield Difference(what, STATS_PATH, _kind(wanted), _kind(have))
            continue
        for name in sorted(wanted.keys() | have.keys()):
            what, there = f"aggregate {name} of {feature!r}", str(have.get(name))
            if feature in counted and name in QUANTILES and name in wanted and name in have:
                if name in counted[feature]:
                    yield Difference(what, STATS_PATH, "that of its rows", there)
            elif name in QUANTILES and name in wanted and (ends := bounds(feature, name)):
                if not _is_between(have.get(name), *ends):
                    said = "from {} to {}".format(*map(_plain, ends))
                    yield Difference(what, STATS_PATH, said, there)
            elif not same_statistic(wanted.get(name), have.get(name)):
                yield Difference(what, STATS_PATH, str(wanted.get(name)), there)


def _is_between(value: object, least: FloatArray, greatest: FloatArray) -> bool:
    try:
        array = np.array(value, np.float64)
    except (ValueError, TypeError):
        return False
    return array.shape == least.shape and bool(((least <= array) & (array <= greatest)).all())


def _kind(value: object) -> str:
    if value is None:
        return "nothing"
    return "statistics" if isinstance(value, Mapping) else str(value)


def same_statistic(expected: object, found: object) -> bool:
    """Tell whether nested mappings and lists hold the same numbers; NaN equals NaN."""
    if expected == found:  # mostly, and many times faster than looking into lists here
        return True
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        return expected.keys() == found.keys() and all(
            same_statistic(value, found[key]) for key, value in expected.items()
        )
    if isinstance(expected, list) and isinstance(found, list):
        return len(expected) == len(found) and all(map(same_statistic, expected, found))
    return expected != expected and found != found  # noqa: PLR0124


def _stats_of(row: Mapping[str, Any], feature: str) -> dict[str, Any]:
    """Return one feature's statistics, from columns ``stats/<feature>/<name>``."""
    prefix = f"stats/{feature}/"
    return {
        column.removeprefix(prefix): value
        for column, value in row.items()
        if column.startswith(prefix) and value is not None
    }


def flattened(value: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield what is in nested mappings, under names ``<prefix>/<key>/...``."""
    for key, entry in value.items():
        if isinstance(entry, dict):
            yield from flattened(entry, f"{prefix}/{key}")
        else:
            yield f"{prefix}/{key}", entry


def _nested(value: object) -> object:
    return value if value is None or isinstance(value, list) else [value]


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else value


# ------------------------------------------------------------------------------------------------
# Where ``meta/episodes`` of a result says that each episode lies, as plain arrays.


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


# ------------------------------------------------------------------------------------------------
# ``meta/info.json`` of a result against that of its source, key by key.


def compare_info(
    info: Mapping[str, Any], expected: Mapping[str, Any], limits: Sequence[str] = ()
) -> Iterator[Difference]:
    """Compare ``info.json``: totals, rate, templates, every feature, and keys that were added.

    Args:
        limits: Keys whose value is the conversion's own choice, a positive number.
    """
    for key in [*expected, *(key for key in info if key not in expected)]:
        if key == "features":
            yield from _compare_features(expected[key], info.get(key))
        elif key in limits:
            limit = info.get(key)
            if isinstance(limit, bool) or not isinstance(limit, int | float) or not limit > 0:
                yield Difference(key, INFO_PATH, "a positive number", _shown(info, key))
        elif not same_json(expected.get(key), info.get(key)) or (key in expected) != (key in info):
            yield Difference(key, INFO_PATH, _shown(expected, key), _shown(info, key))


def compare_cameras(
    features: Mapping[str, Any], cameras: Mapping[str, Mapping[ClipFacts, int]], fps: Fraction
) -> Iterator[Difference]:
    """Compare what is declared of each camera with what the result's own files are.

    Args:
        cameras: Of each stream in how many episodes pictures are what; nothing is said of files
            whose header cannot be read.
    """
    for camera, feature in features.items():
        clips = cameras.get(stream_of_camera(camera))
        if not clips:
            continue
        usual = max(clips, key=clips.__getitem__)
        expected = declared_as_encoded(feature, usual, fps)
        for key in expected:
            if not same_json(expected[key], feature.get(key)):
                what = f"{key} of camera {camera!r}, whose files differ"
                yield Difference(what, INFO_PATH, _shown(expected, key), _shown(feature, key))


def _compare_features(expected: Mapping[str, Any], found: object) -> Iterator[Difference]:
    if not isinstance(found, Mapping) or set(found) != set(expected):
        have = sorted(found) if isinstance(found, Mapping) else found
        yield Difference("features", INFO_PATH, str(sorted(expected)), str(have))
        return
    for name, feature in expected.items():
        have = found[name]
        if not isinstance(have, Mapping):
            yield Difference(f"feature {name!r}", INFO_PATH, str(feature), str(have))
            continue
        for key in {**feature, **have}:
            if not same_json(feature.get(key), have.get(key)) or (key in feature) != (key in have):
                what = f"{key} of feature {name!r}"
                yield Difference(what, INFO_PATH, _shown(feature, key), _shown(have, key))


def same_json(expected: object, found: object) -> bool:
    """Tell whether two JSON values are the same: 1 is neither 1.0 nor true."""
    return json.dumps(expected, sort_keys=True) == json.dumps(found, sort_keys=True)


def _shown(record: Mapping[str, Any], key: str) -> str:
    return str(record[key]) if key in record else "no such key"


# ------------------------------------------------------------------------------------------------
# ``meta/repairs.json`` of a result: what the comparison then expects must be of its source.


def compare_repairs(
    declared: Repairs, expected: Repairs | None, source: Dataset
) -> Iterator[Difference]:
    """Yield where a result tells of repairs that were not made, or that nobody could make."""
    if expected is not None and declared != expected:
        yield Difference("repairs", REPAIRS_PATH, str(expected), str(declared))
    if isinstance(source, v2.Dataset):
        yield from _compare_reading(declared, source)
    names = {*source.stored_features, *_stored(set(declared.renamed_features), source)}
    strange = sorted(
        {old for old in declared.renamed_features if old not in names}
        | {new for new in declared.renamed_features.values() if new in names}
    )
    if strange:
        said = ", ".join(strange)
        yield Difference("renamed features", REPAIRS_PATH, "the source's, by new names", said)
    indices = task_columns(
        read_modality(source.root), _first_schema(source) if declared.task_columns else None
    )
    if not set(declared.task_columns) <= set(indices) or (
        declared.task_columns and declared.task_map is None
    ):
        said = ", ".join(declared.task_columns)
        yield Difference("columns of task indices", REPAIRS_PATH, str(indices), said)
    features = {*source.features, *declared.added_columns}
    features |= _stored(set(declared.declared_features) - features, source)
    unknown = set(declared.dropped_features) - features
    # A column that is not declared can be left out, too.
    unknown -= _stored(unknown, source)
    named = {*declared.computed_stats, *declared.unwrapped_columns, *declared.cast_columns}
    strange = sorted(unknown | (named - features))
    if strange:
        yield Difference("repaired features", REPAIRS_PATH, "the source's", ", ".join(strange))
    episodes = set(source.episodes.episode_index.tolist())
    dropped = [dropped.episode for dropped in declared.dropped_episodes]
    selected = declared.selected_episodes
    ends = [] if selected is None else [end for pair in selected.ranges for end in pair]
    trimmed = list(declared.trimmed_episodes)
    for what, numbers in (
        ("episodes left out", dropped),
        ("selected episodes", ends),
        ("trimmed episodes", trimmed),
    ):
        lost = [episode for episode in dict.fromkeys(numbers) if episode not in episodes]
        if lost:
            said = ", ".join(map(str, lost))
            yield Difference(what, REPAIRS_PATH, "some of the source", said)
    lengths = dict(
        zip(source.episodes.episode_index.tolist(), source.episodes.length.tolist(), strict=True)
        if trimmed
        else ()
    )
    for episode, (first, stop) in declared.trimmed_episodes.items():
        if stop > lengths.get(episode, stop):
            said, has = f"{first}:{stop}", f"frames of 0:{lengths[episode]}"
            yield Difference("trimmed episode", REPAIRS_PATH, has, said, episode)


def compare_provenance(result: Path, expected: Expected) -> Iterator[Difference]:
    """Yield where a result tells of other episodes of its sources than it must have.

    Nothing is said of one that has no such table: whether there must be one is for the comparison
    of files to say.
    """
    provenance = read_provenance(result)
    if provenance is None or not has_provenance(expected.sources):
        return
    told = [source.repairs for source in provenance.sources]
    for number, source in enumerate(expected.sources):
        found = told[number] if number < len(told) else None
        if found != source.repairs:
            what = f"repairs of source {number + 1}"
            yield Difference(what, PROVENANCE_PATH, str(source.repairs), str(found))
    columns = (
        ("episode_index", np.arange(len(expected)), provenance.episode_index),
        ("source", expected.number, provenance.source),
        ("source_episode_index", expected.index, provenance.source_episode_index),
    )
    for name, wanted, have in columns:
        if len(wanted) != len(have):
            yield Difference("rows", PROVENANCE_PATH, str(len(wanted)), str(len(have)))
            return
        for row in np.flatnonzero(wanted != have).tolist():
            episode = int(expected.index[row])
            yield Difference(name, PROVENANCE_PATH, str(wanted[row]), str(have[row]), episode)
    digests = itertools.chain.from_iterable(map(episode_digests, expected.sources))
    rows = zip(expected.index.tolist(), digests, provenance.sha256, strict=True)
    for episode, wanted_digest, digest in rows:
        if wanted_digest != digest:
            what = "what the source's tables say of the episode (SHA-256)"
            yield Difference(what, PROVENANCE_PATH, wanted_digest, digest, episode)


def _compare_reading(declared: Repairs, source: v2.Dataset) -> Iterator[Difference]:
    """Compare how the result says that a v2.x source was read with how it is to be read."""
    version = source.info.get("codebase_version")
    if (declared.assumed_version is None) != (version in SOURCE_VERSIONS):
        said = f"{said_version(version)[5:]}; read as {declared.assumed_version}"
        yield Difference("version", REPAIRS_PATH, "that of the source", said)
    for file in declared.located_files:
        # Only what is not where its template says is taken from elsewhere.
        template = source.paths.template_path(file.stream, file.episode)
        if (source.root / template).exists():
            yield Difference("place of a file", REPAIRS_PATH, template, file.path, file.episode)


def _first_schema(source: Dataset) -> pa.Schema | None:
    for path in _tables(source):
        with suppress(UnreadableSourceError):
            return tables.read_data_schema(path)
    return None


def _stored(names: Set[str], source: Dataset) -> set[str]:
    """Return which of some names are columns of the source's tables, mostly told by the first."""
    found: set[str] = set()
    for path in _tables(source):
        if found == names:
            break
        # Nothing is known of a table that cannot be read; that it cannot is said elsewhere.
        with suppress(UnreadableSourceError):
            found |= names & set(tables.read_data_schema(path).names)
    return found


def _tables(source: Dataset) -> Iterator[str]:
    return (f"{source.root}/{path}" for path in source.slices(DATA_STREAM).paths)
