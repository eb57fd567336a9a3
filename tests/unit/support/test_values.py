"""Our data classes behave as the standard library's."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import itertools
import pickle
import sys
from dataclasses import field
from types import ModuleType
from typing import Any, ClassVar

import pytest

from leconvert.support.values import dataclass

FORMS = {
    "frozen": (False, True),
    "slots": (False, True),
    "eq": (False, True),
    "kw_only": (False, True),
}
OPTIONS = [dict(zip(FORMS, form, strict=True)) for form in itertools.product(*FORMS.values())]


def made(decorate: Any, options: dict[str, bool]) -> tuple[type, type, type]:
    """Return a class with every kind of field, one that inherits from it, and an empty one."""

    class Shape:
        """A shape."""

        sides: int
        name: str = "square"
        tags: list[str] = field(default_factory=list)
        token: str = field(default="", repr=False, compare=False)
        area: float = field(init=False)
        corners: dict[int, str] = field(default_factory=dict, init=False)
        unit: str = field(default="m", kw_only=True)
        count: ClassVar[int] = 0

        def __post_init__(self) -> None:
            object.__setattr__(self, "area", self.sides * 2.0)

    shape = decorate(**options)(Shape)

    class Solid(shape):  # type: ignore[misc, valid-type]
        """A solid."""

        depth: int = 3

    class Nothing:
        """Nothing."""

    return shape, decorate(**options)(Solid), decorate(**options)(Nothing)


@pytest.fixture(params=OPTIONS, ids=str)
def both(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The same classes by both decorators; they can be pickled."""
    pairs = [made(decorate, request.param) for decorate in (dataclass, dataclasses.dataclass)]
    for name, kinds in zip(("ours", "theirs"), pairs, strict=True):
        module = ModuleType(name)
        for kind in kinds:
            kind.__module__ = name
            kind.__qualname__ = kind.__name__
            setattr(module, kind.__name__, kind)
        monkeypatch.setitem(sys.modules, name, module)
    return request.param, *zip(*pairs, strict=True)


def outcome(act: Any) -> Any:
    """Return what a call gives, or its error."""
    try:
        return act()
    except (TypeError, AttributeError) as error:
        return type(error), str(error)


def hashed(value: Any) -> Any:
    """Return the hash; or that it is one of identity."""
    return "by identity" if type(value).__hash__ is object.__hash__ else hash(value)


def test_values_are_made_compared_and_shown_alike(both: Any) -> None:
    options, shapes, solids, empty = both
    calls = [
        lambda kind: kind(sides=4),
        lambda kind: kind(4, "oblong"),
        lambda kind: kind(sides=4, name="oblong", tags=("a",), unit="mm", token="x"),
        lambda kind: kind(),
        lambda kind: kind(sides=4, area=2.0),
        lambda kind: kind(sides=4, more=1),
    ]
    for ours, theirs in (shapes, solids):
        left, right = ([outcome(lambda c=c, k=k: c(k)) for c in calls] for k in (ours, theirs))
        assert list(map(repr, left)) == list(map(repr, right))
        assert (
            inspect.signature(ours).parameters.keys() == inspect.signature(theirs).parameters.keys()
        )
        values = [(a, b) for a, b in zip(left, right, strict=True) if isinstance(a, ours)]
        assert len(values) == (2 if options["kw_only"] else 3)
        for (a, b), (c, d) in itertools.product(values, repeat=2):
            assert (a == c, a != c) == (b == d, b != d)
        hashable = [kind(sides=4, tags=()) for kind in (ours, theirs)]
        assert outcome(lambda h=hashable: hashed(h[0])) == outcome(lambda h=hashable: hashed(h[1]))
    ours, theirs = empty
    assert (repr(ours()), ours() == ours()) == (repr(theirs()), theirs() == theirs())


def test_values_are_changed_copied_and_pickled_alike(both: Any) -> None:
    _, *kinds = both
    for ours, theirs in kinds[:2]:
        left, right = ours(sides=4, tags=["a"]), theirs(sides=4, tags=["a"])
        for change in (
            lambda v: setattr(v, "name", "x"),
            lambda v: setattr(v, "area", 7.0),
            lambda v: delattr(v, "token"),
        ):
            assert outcome(lambda c=change, v=left: c(v)) == outcome(lambda c=change, v=right: c(v))
        left, right = ours(sides=4, tags=["a"]), theirs(sides=4, tags=["a"])
        for again in (copy.copy, copy.deepcopy, lambda v: pickle.loads(pickle.dumps(v))):
            assert repr(again(left)) == repr(again(right)) == repr(left)
        assert repr(dataclasses.replace(left, sides=5)) == repr(dataclasses.replace(right, sides=5))
        assert dataclasses.asdict(left) == dataclasses.asdict(right)
        assert ours(sides=1).tags is not ours(sides=1).tags


def test_methods_of_the_class_itself_stay() -> None:
    @dataclass(frozen=True)
    class Own:  # noqa: PLW1641 - the decorator gives it one
        """A value that is equal to all of its kind."""

        number: int

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Own)

        def __repr__(self) -> str:
            return "own"

    assert Own(1) == Own(2)
    assert repr(Own(1)) == "own"
    assert hash(Own(1)) == hash(Own(1))
