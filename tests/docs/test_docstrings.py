"""Docstrings of the Python interface say what the signatures say."""

from __future__ import annotations

import builtins
from typing import Any

import griffe
import pytest

from leconvert.support import errors
from tests.docs.pages import ROOT
from tests.scripts import loaded_script


def _named() -> dict[str, griffe.Object]:
    """Return what is public by its dotted name: functions, classes, their methods."""
    with loaded_script("make_reference") as script:
        public = script.PUBLIC
    loader = griffe.GriffeLoader(search_paths=[ROOT / "src"], allow_inspection=False)
    loader.load("leconvert")
    found: dict[str, griffe.Object] = {}
    for name, chosen in public.items():
        module = loader.modules_collection[name]
        for member in chosen or [str(export) for export in module.exports or ()]:
            if member.startswith("__"):
                continue
            target = _target(module[member])
            found[f"{name}.{member}"] = target
            if isinstance(target, griffe.Class):
                for method in target.members.values():
                    if not method.is_alias and not method.name.startswith("_"):
                        found[f"{name}.{member}.{method.name}"] = _target(method)
    return found


def _target(found: griffe.Object | griffe.Alias) -> griffe.Object:
    return found.final_target if isinstance(found, griffe.Alias) else found


def _section(found: griffe.Object, kind: str) -> list[Any] | None:
    assert found.docstring is not None
    for section in found.docstring.parse("google", warnings=False):
        if section.kind.value == kind:
            return list(section.value)
    return None


def _parameters(function: griffe.Function) -> list[str]:
    return [each.name for each in function.parameters if each.name not in ("self", "cls")]


def _fields(found: griffe.Class) -> list[str]:
    return [
        member.name
        for member in found.members.values()
        if isinstance(member, griffe.Attribute)
        and member.annotation is not None
        and not member.name.startswith("_")
        and "property" not in member.labels
        and "ClassVar" not in str(member.annotation)
    ]


Named = dict[str, griffe.Object]


@pytest.fixture(scope="module")
def named() -> Named:
    return _named()


@pytest.fixture(scope="module")
def functions(named: Named) -> dict[str, griffe.Function]:
    found = {name: it for name, it in named.items() if isinstance(it, griffe.Function)}
    assert "leconvert.convert" in found
    return found


@pytest.fixture(scope="module")
def classes(named: Named) -> dict[str, griffe.Class]:
    found = {name: it for name, it in named.items() if isinstance(it, griffe.Class)}
    assert "leconvert.ConversionReport" in found
    return found


def test_arguments_are_those_of_the_signature(functions: dict[str, griffe.Function]) -> None:
    wrong = {}
    for name, function in functions.items():
        wanted, told = _parameters(function), _section(function, "parameters")
        if told is None and (len(wanted) < 2 or isinstance(function.parent, griffe.Class)):
            continue
        said = [each.name.lstrip("*") for each in told or ()]
        if said != wanted:
            wrong[name] = (said, wanted)
    assert wrong == {}


def test_attributes_are_those_of_the_class(classes: dict[str, griffe.Class]) -> None:
    wrong = {}
    for name, found in classes.items():
        if "dataclass" in found.labels:
            wanted, told = _fields(found), _section(found, "attributes")
        elif isinstance(own := found.members.get("__init__"), griffe.Function):
            wanted, told = _parameters(own), _section(found, "parameters")
        else:
            continue
        said = [each.name.lstrip("*") for each in told or ()]
        if sorted(said) != sorted(wanted):
            wrong[name] = (said, wanted)
    assert wrong == {}


def test_errors_that_are_named_exist(named: Named) -> None:
    unknown = []
    for name, found in named.items():
        for each in _section(found, "raises") or () if found.docstring is not None else ():
            error = str(each.annotation)
            kind = getattr(errors, error, None) or getattr(builtins, error, None)
            if not (isinstance(kind, type) and issubclass(kind, Exception)):
                unknown.append((name, error))
    assert unknown == []
