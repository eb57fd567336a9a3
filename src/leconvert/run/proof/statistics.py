"""The statistics of a result: each episode's, and the dataset's with their aggregate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from leconvert.dataset.formats import (
    SourceView,
    StatsBlock,
    v2,
    v3,
)
from leconvert.dataset.formats.v3 import (
    STATS_PATH,
    read_json_object,
)
from leconvert.model.repairs import VISUAL_DTYPES, Repairs
from leconvert.model.values import (
    FloatArray,
)
from leconvert.run.proof.difference import Difference, same_statistic
from leconvert.run.proof.expected import Expected
from leconvert.support.errors import SourceError, UnreadableSourceError
from leconvert.support.storage_errors import raise_storage_trouble


class ResultStats(NamedTuple):
    """The statistics of some episodes of a result, by column ``stats/<feature>/<name>``.

    Attributes:
        length: Number of episodes.
        columns: All columns as arrays; None if they are not regular.
        rows: Returns the statistics of each episode.
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

    Statistics that the conversion computed are compared with their rows elsewhere; those of videos
    are not checked.
    """
    try:
        yield from _compare_stats(result, path, expected, found, data_files)
    except SourceError as error:
        computes = any(source.repairs.computed_stats for source in expected.sources)
        if isinstance(error, UnreadableSourceError) or not computes:
            raise
        # The source's own could be aggregated when the conversion began; the result's cannot.
        yield Difference(
            "computed statistics", path, "statistics that can be aggregated", str(error)
        )


def _compare_stats(
    result: Path,
    path: str,
    expected: Expected,
    found: Iterable[ResultStats],
    data_files: Callable[[], Sequence[str]],
) -> Iterator[Difference]:
    aggregate = v3.StatsAggregator(expected.sources.features)
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
        is_picture = expected.sources.features[feature]["dtype"] in VISUAL_DTYPES
        if not is_picture or times_computed[feature] < len(expected):
            return None
        return aggregate.bounds(feature, quantile)

    yield from _compare_aggregate(result, total, expected.sources.features, data_files, bounds)


def _stats_rows(
    aggregate: v3.StatsAggregator,
    expected: Iterable[tuple[SourceView, list[int], StatsBlock]],
    found: Iterable[ResultStats],
) -> Iterator[tuple[Mapping[str, Any], tuple[Repairs, int, dict[str, Any]]]]:
    """Yield episodes that must be compared one by one; equal blocks are aggregated here.

    Each episode comes with the result's columns, and with the repairs, index and statistics of the
    source, for features that are kept and not computed.
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


def _check_computed(source: SourceView, episode: int) -> None:
    """Check that a source has statistics of an episode, if they are needed.

    Raises:
        SourceError: They are missing.
    """
    repairs = source.repairs
    if not any(repairs.computes_stats(name, episode) for name in repairs.computed_stats):
        raise SourceError(
            f"{v2.STATS_PATH} of the source has no statistics for episode {episode}.",
            path=str(source.root / v2.STATS_PATH),
            next_step="Correct the line of this episode, or restore the file from another copy of "
            "the dataset.",
        )


def _same_columns(
    block: StatsBlock, found: Mapping[str, npt.NDArray[Any]] | None, part: slice
) -> bool:
    """Return whether statistics certainly equal a part of the result's; NaN counts as unequal."""
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
    """Yield a difference if ``stats.json`` cannot be read; its content is not compared."""
    found = _read_aggregate(result)
    if isinstance(found, Difference):
        yield found


def _read_aggregate(result: Path) -> dict[str, Any] | Difference:
    return read_object(result, STATS_PATH, "aggregate", "readable statistics")


def read_object(result: Path, path: str, what: str, wanted: str) -> dict[str, Any] | Difference:
    """Return the content of a JSON file, or the difference that it cannot be read."""
    try:
        return read_json_object(result / path)
    except (OSError, ValueError) as error:
        raise_storage_trouble(error, result / path)
        return Difference(what, path, wanted, str(error))


def _compare_aggregate(
    result: Path,
    expected: Mapping[str, Any],
    features: Mapping[str, Any],
    data_files: Callable[[], Sequence[str]],
    bounds: Callable[[str, str], tuple[Any, Any] | None],
) -> Iterator[Difference]:
    """Compare the statistics over all episodes."""
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
    # The comparison of a data file reports its errors.
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


def _stats_of(row: Mapping[str, Any], feature: str) -> dict[str, Any]:
    """Return one feature's statistics, from columns ``stats/<feature>/<name>``."""
    prefix = f"stats/{feature}/"
    return {
        column.removeprefix(prefix): value
        for column, value in row.items()
        if column.startswith(prefix) and value is not None
    }


def flattened(value: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield the values of nested mappings, under names ``<prefix>/<key>/...``."""
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
