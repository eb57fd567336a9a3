"""Statistics of a block of episodes at once are those of one episode after the other."""

import json
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from tests.episode_records import EpisodeRecord, write_episodes

from leconvert.dataset.findings import ObservationLog
from leconvert.dataset.formats import StatsBlock, joined, rows_of
from leconvert.dataset.formats.v3 import EpisodesReader, StatsAggregator, stats_of_rows
from leconvert.dataset.scan.file_checks import StatsCheck
from leconvert.support.errors import SourceError

NUMBERS = st.one_of(
    st.floats(),
    st.floats(-10, 10),
    st.sampled_from([0.0, -0.0, 1e-4, 9.999e-5, 1e-5, 1e15, 1e16, 9.007199254740993e15, 5e-324]),
)
WHOLE = st.one_of(st.integers(-5, 5), st.integers(-(2**63), 2**63 - 1))
SHAPES = {"action": (3,), "image": (3, 1, 1), "grid": (2, 2), "index": (1,), "done": (1,)}


def values(shape: tuple[int, ...], numbers: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    for size in reversed(shape):
        numbers = st.lists(numbers, min_size=size, max_size=size)
    return numbers


def in_order(stats: dict[str, Any]) -> dict[str, Any]:
    return {
        name: {key: stats[name][key] for key in ("min", "max", "mean", "std", "count")}
        for name in SHAPES
    }


def statistics() -> st.SearchStrategy[dict[str, Any]]:
    """Statistics as most datasets have them."""
    kinds = {"index": WHOLE, "done": st.booleans()}
    features = {}
    for name, shape in SHAPES.items():
        of_kind = values(shape, kinds.get(name, NUMBERS))
        fractions = values(shape, NUMBERS)
        features[name] = st.fixed_dictionaries(
            {
                "min": of_kind,
                "max": of_kind,
                "mean": fractions,
                "std": fractions,
                "count": values((1,), st.integers(0, 1000)),
            }
        )
    return st.fixed_dictionaries(features).map(in_order)


# What makes one of many episodes unlike the others.
ODDITIES: dict[str, Callable[[dict[str, Any]], object]] = {
    "a whole number": lambda stats: stats["action"]["mean"].__setitem__(1, 2),
    "a fraction": lambda stats: stats["index"]["min"].__setitem__(0, 0.5),
    "a truth value": lambda stats: stats["action"]["std"].__setitem__(0, True),
    "a number beside truth": lambda stats: stats["done"]["max"].__setitem__(0, 3),
    "a huge number": lambda stats: stats["action"]["max"].__setitem__(0, 2**64),
    "an unsigned number": lambda stats: stats["index"]["max"].__setitem__(0, 2**63),
    "no number": lambda stats: stats["action"]["min"].__setitem__(2, None),
    "text": lambda stats: stats["action"].update(min=["1", "2", "3"]),
    "a text": lambda stats: stats["action"].update(min="123"),
    "a table": lambda stats: stats["action"].update(min={"1": 1, "2": 2, "3": 3}),
    "one value": lambda stats: stats["index"].update(mean=0.5),
    "another length": lambda stats: stats["action"]["min"].append(0.5),
    "another depth": lambda stats: stats["index"].update(min=[[1]]),
    "a flat picture": lambda stats: stats["image"].update(mean=[0.1, 0.2, 0.3]),
    "an empty list": lambda stats: stats["action"].update(min=[]),
    "another statistic": lambda stats: stats["action"].update(q50=[0.1, 0.2, 0.3]),
    "another feature": lambda stats: stats.update(other={"min": [1]}),
    "no statistic": lambda stats: stats["grid"].pop("std"),
    "no feature": lambda stats: stats.pop("grid"),
    "another name": lambda stats: stats.update(griddle=stats.pop("grid")),
    "names with a slash": lambda stats: stats.update({"a": {"b": stats.pop("grid")}}),
    "a negative count": lambda stats: stats["action"].update(count=[-1]),
    "two counts": lambda stats: stats["action"].update(count=[1, 2]),
    "another order": lambda stats: stats.update(grid=stats.pop("grid")),
    "another order of statistics": lambda stats: stats["grid"].update(min=stats["grid"].pop("min")),
    "nothing of a feature": lambda stats: stats.update(grid={}),
    "nothing at all": lambda stats: stats.clear(),
    "no table": lambda stats: stats.update(action=[1.5]),
}
Rows = list[dict[str, Any]]
Drawn = tuple[Rows, int]


def drawn_rows(min_size: int, max_size: int) -> st.SearchStrategy[Drawn]:
    """Rows without any oddity, and which of them is to have one."""
    rows = st.lists(statistics(), min_size=min_size, max_size=max_size)
    return st.tuples(rows, st.integers(0, max_size - 1))


BLOCKS = drawn_rows(1, 5)
SETTINGS = settings(max_examples=2, suppress_health_check=[HealthCheck.function_scoped_fixture])


def with_each_oddity(drawn: Drawn) -> Iterator[tuple[str | None, Rows]]:
    """Yield the rows as they are, and with each oddity in one of them.

    To draw rows takes longer than to look at them, so that all oddities share them.
    """
    rows, place = drawn
    yield None, rows
    for oddity, make in ODDITIES.items():
        note(oddity)
        copied = json.loads(json.dumps(rows))  # the generator may share lists between rows
        make(copied[place % len(rows)])
        yield oddity, copied


def same(a: object, b: object) -> bool:
    """Whether two values are the same to the last bit, and of the same types."""
    return json.dumps(a) == json.dumps(b)


@SETTINGS
@given(drawn=BLOCKS)
def test_columns_have_the_types_and_bits_that_numpy_gives_the_lists_or_there_are_none(
    drawn: Drawn,
) -> None:
    for oddity, rows in with_each_oddity(drawn):
        columns = StatsBlock(rows).columns
        assert columns is not None or oddity is not None
        assert columns is None or columns.keys() == rows[0].keys()
        for feature, statistics in (columns or {}).items():
            assert statistics.keys() == rows[0][feature].keys()
            for name, found in statistics.items():
                expected = np.array([row[feature][name] for row in rows])
                assert found.dtype == expected.dtype
                assert found.shape == expected.shape
                assert found.tobytes() == expected.tobytes()


@SETTINGS
@given(drawn=drawn_rows(2, 9))
def test_no_value_changes_on_the_way_through_columns(drawn: Drawn) -> None:
    for oddity, rows in with_each_oddity(drawn):
        blocks = [StatsBlock(rows[first : first + 2]) for first in range(0, len(rows), 2)]
        together = list(joined(blocks))
        assert sum(map(len, together)) == len(rows)
        assert len(together) == 1 or oddity is not None
        for block in blocks, together:
            assert same(list(rows_of(block)), rows)
            fewer = [{name: row[name] for name in row if name != "action"} for row in rows]
            assert same(list(rows_of(each.without({"action"}) for each in block)), fewer)
            named = [{"a" if name == "action" else name: row[name] for name in row} for row in rows]
            assert same(list(rows_of(each.renamed({"action": "a"}) for each in block)), named)
            chosen = np.arange(len(rows)) % 2 == 0
            edges = np.cumsum([len(each) for each in block])
            parts = zip(block, np.split(chosen, edges[:-1]), strict=True)
            some = [each[part] for each, part in parts if part.any()]
            assert same(list(rows_of(some)), rows[::2])


@SETTINGS
@given(drawn=drawn_rows(3, 9))
def test_adding_a_block_up_is_adding_its_episodes_up(drawn: Drawn) -> None:
    for _, rows in with_each_oddity(drawn):
        results: list[object] = []
        for by_block in (True, False):
            aggregate = StatsAggregator(block_episodes=4)
            try:
                with np.errstate(all="ignore"):
                    if by_block:
                        aggregate.update_block(StatsBlock(rows[:2]), [0, 1])
                        aggregate.update_block(StatsBlock(rows[2:]), range(2, len(rows)))
                    else:
                        for episode, stats in enumerate(rows):
                            aggregate.update(stats, episode_index=episode)
                    result = aggregate.result()
            except SourceError:
                results.append("refused")
                continue
            results.append(
                {f: {n: (a.dtype, a.tobytes()) for n, a in s.items()} for f, s in result.items()}
            )
        assert results[0] == results[1]


@SETTINGS
@given(drawn=BLOCKS)
def test_columns_of_the_table_are_those_of_rows_that_are_looked_at_one_by_one(
    drawn: Drawn, tmp_path_factory: Any
) -> None:
    for _, rows in with_each_oddity(drawn):
        results: list[object] = []
        for one_by_one in (False, True):
            root: Path = tmp_path_factory.mktemp("written")
            with pytest.MonkeyPatch.context() as patch:
                if one_by_one:
                    patch.setattr(StatsBlock, "columns", None)
                records = [
                    EpisodeRecord(i, 0, i, 1, (), {"tasks": []}, row) for i, row in enumerate(rows)
                ]
                try:
                    (path,) = write_episodes(root, lambda: records, fps=Fraction(30))  # noqa: B023
                except SourceError as error:
                    results.append(error.message)
                    continue
            results.append((pq.read_schema(root / path), (root / path).read_bytes()))
            if one_by_one:
                (table,) = EpisodesReader(root).blocks(bool)
                block = stats_of_rows(table)
                slowly = [
                    {
                        name.removeprefix("stats/"): value
                        for name, value in row.items()
                        if name.startswith("stats/") and value is not None
                    }
                    for row in table.to_pylist()
                ]
                found = [
                    {
                        f"{f}/{s}".removeprefix("/"): value
                        for f, own in (row or {}).items()
                        for s, value in own.items()
                    }
                    for row in block.rows
                ]
                assert [*map(sorted, found)] == [*map(sorted, slowly)]
                assert all(
                    same(a[name], b[name]) for a, b in zip(found, slowly, strict=True) for name in a
                )
        assert results[0] == results[1]


DECLARED: dict[str, dict[str, Any]] = {
    "action": {"dtype": "float32", "shape": [3]},
    "image": {"dtype": "video", "shape": [4, 4, 3]},
    "index": {"dtype": "int64", "shape": [1]},
    "done": {"dtype": "bool", "shape": [1]},
    "text": {"dtype": "string", "shape": [1]},
}


@SETTINGS
@given(
    drawn=BLOCKS,
    declared=st.sampled_from(
        [
            {},
            {"action": {"dtype": "float32", "shape": [4]}},
            {"image": {"dtype": "float32", "shape": [3]}},
            {"done": {"dtype": "image", "shape": [4, 4, 3]}},
            {"other": {"dtype": "float32", "shape": [1]}},
        ]
    ),
)
def test_a_block_of_which_nothing_is_said_has_no_episode_of_which_something_is_said(
    drawn: Drawn, declared: dict[str, Any]
) -> None:
    for oddity, rows in with_each_oddity(drawn):
        check = StatsCheck(DECLARED | declared)
        notes = ObservationLog()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(StatsCheck, "finds_nothing", lambda *_: False)
            missing, _ = check(StatsBlock(rows), range(len(rows)), notes)
        said = [*notes.sightings.remarks(), *missing]
        finds_nothing = check.finds_nothing(StatsBlock(rows))
        assert not (finds_nothing and said)
        if oddity is None:
            assert finds_nothing is not bool(said)
