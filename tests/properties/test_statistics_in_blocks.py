"""Statistics of a block of episodes at once are those of one episode after the other."""

import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import numpy as np
import pytest

from leconvert.dataset.formats import StatsBlock, joined, rows_of
from leconvert.dataset.formats.v3 import StatsAggregator
from leconvert.support.errors import SourceError

ODD_NUMBERS = [0.0, -0.0, 1e-4, 9.999e-5, 1e-5, 1e15, 1e16, 9.007199254740993e15, 5e-324]
ODD_NUMBERS += [float("nan"), float("inf"), -1.7e308]
SHAPES = {"action": (3,), "image": (3, 1, 1), "grid": (2, 2), "index": (1,), "done": (1,)}
KINDS: dict[str, Callable[[Random], Any]] = {
    "index": lambda dice: dice.choice([dice.randint(-5, 5), dice.randint(-(2**63), 2**63 - 1)]),
    "done": lambda dice: dice.random() < 0.5,
}
Rows = list[dict[str, Any]]


def fraction(dice: Random) -> float:
    return dice.choice([dice.uniform(-10, 10), dice.choice(ODD_NUMBERS)])


def nested(shape: tuple[int, ...], one: Callable[[], Any]) -> Any:
    return [nested(shape[1:], one) for _ in range(shape[0])] if shape else one()


def rows_of_statistics(dice: Random, number: int) -> Rows:
    """Statistics as most datasets have them, each with other values."""
    return [
        {
            feature: {
                **{
                    name: nested(shape, lambda f=feature: KINDS.get(f, fraction)(dice))
                    for name in ("min", "max")
                },
                **{name: nested(shape, lambda: fraction(dice)) for name in ("mean", "std")},
                "count": [dice.randint(0, 1000)],
            }
            for feature, shape in SHAPES.items()
        }
        for _ in range(number)
    ]


# What makes one of many episodes unlike the others.
ODDITIES: dict[str, Callable[[dict[str, Any]], object]] = {
    "a whole number": lambda stats: stats["action"]["mean"].__setitem__(1, 2),
    "whole numbers": lambda stats: stats["index"].update(mean=[2]),
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
    "two statistics exchanged": lambda stats: stats.update(
        grid={name: stats["grid"][name] for name in ("max", "min", "mean", "std", "count")}
    ),
    "nothing of a feature": lambda stats: stats.update(grid={}),
    "nothing at all": lambda stats: stats.clear(),
    "no table": lambda stats: stats.update(action=[1.5]),
}
SEEDS = pytest.mark.parametrize("seed", range(3))


def with_each_oddity(seed: int, number: int) -> Iterator[tuple[str | None, Rows]]:
    """Yield so many rows as they are, and with each oddity in one of them."""
    dice = Random(seed)
    yield None, rows_of_statistics(dice, number)
    for oddity, make in ODDITIES.items():
        rows = rows_of_statistics(dice, number)
        make(rows[(-1, 0, 3)[seed]])  # the last one may be a block of its own
        yield oddity, rows


def same(a: object, b: object) -> bool:
    """Whether two values are the same to the last bit, and of the same types."""
    return json.dumps(a) == json.dumps(b)


@SEEDS
def test_columns_have_the_types_and_bits_that_numpy_gives_the_lists_or_there_are_none(
    seed: int,
) -> None:
    for oddity, rows in with_each_oddity(seed, 4):
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


@SEEDS
def test_no_value_changes_on_the_way_through_columns(seed: int) -> None:
    for oddity, rows in with_each_oddity(seed, 7):
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


@SEEDS
def test_adding_a_block_up_is_adding_its_episodes_up(seed: int) -> None:
    for _, rows in with_each_oddity(seed, 9):
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
