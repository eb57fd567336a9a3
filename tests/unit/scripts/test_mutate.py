"""Mutants of a toy package: which there are, which a seed chooses, and which a suite notices."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from types import ModuleType

import pytest
from coverage import CoverageData

SCRIPT = "mutate"

MODULE = '''\
"""Numbers: 1 < 2."""

import sys
from typing import TYPE_CHECKING, Literal

__all__ = ["limited", "total"][0:2]

if TYPE_CHECKING:
    from collections import Counter

type One = Literal[1]
MOST = 10


def limited(value: int, most: Literal[10] = 10) -> int:
    """Return at most 10."""
    if value < 0:
        raise ValueError(f"{value:5} is < 0")
    return most if value > most else value


def total(values: list[int], seen: list[int]) -> int:
    seen.clear()
    add = dict(help=1 < 2)
    while values:
        print("one", 1)
        seen.append(values.pop())
    return sum(v for v in seen if v is not None) or sorted(values)[MOST]


def unused() -> int:
    return 3


def in_a_child() -> None:
    sys.exit(MOST + 4)
'''


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("project")
    for name, content in {
        "src/toy/__init__.py": "",
        "src/toy/run/__init__.py": "",
        "src/toy/run/numbers.py": MODULE,
        "src/toy/other.py": "def half(n: int) -> int:\n    return n // 2 if n > 1 else 0\n",
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, "utf-8")
    return root


def test_code_is_mutated_and_words_types_and_exports_are_not(
    script: ModuleType, project: Path
) -> None:
    found = script.mutants_of(project / "src", "toy/run/numbers")
    assert [(m.line, m.kind, m.before, m.after) for m in found] == [
        (12, "constant", "10", "11"),
        (12, "constant", "10", "9"),
        (15, "constant", "10", "11"),
        (15, "constant", "10", "9"),
        (17, "condition", "value < 0", "not value < 0"),
        (17, "comparison", "value < 0", "value <= 0"),
        (17, "constant", "0", "1"),
        (17, "constant", "0", "-1"),
        (19, "condition", "value > most", "not value > most"),
        (19, "comparison", "value > most", "value >= most"),
        (23, "call", "seen.clear()", "None"),
        (25, "condition", "values", "not values"),
        (27, "call", "seen.append(values.pop())", "None"),
        (28, "condition", "for v in seen if v is not None", "for v in seen if not v is not None"),
        (28, "comparison", "v is not None", "v is None"),
        (28, "call", "sorted(values)", "(lambda value: value)(values)"),
        (32, "constant", "3", "4"),
        (32, "constant", "3", "2"),
        (36, "call", "sys.exit(MOST + 4)", "None"),
        (36, "constant", "4", "5"),
        (36, "constant", "4", "3"),
    ]
    for mutant in found:
        assert mutant.applied(MODULE) != ast.unparse(ast.parse(MODULE))


def test_a_seed_chooses_the_same_mutants_every_time_half_of_them_in_the_core(
    script: ModuleType, project: Path
) -> None:
    candidates = script.mutants_of(project / "src")
    first = script.chosen(candidates, 7, 8)
    assert first == script.chosen(script.mutants_of(project / "src"), 7, 8)
    assert first != script.chosen(candidates, 8, 8)
    assert [m.file for m in first] == ["toy/run/numbers.py", "toy/other.py"] * 4
    everything = script.chosen(candidates, 7, 1000)
    assert len(everything) == len(set(everything)) == len(candidates)


def test_a_map_of_equal_sources_in_another_folder_is_refused(
    script: ModuleType, project: Path, tmp_path: Path
) -> None:
    source = project / "src"
    facts = {"sources": script.digest_of(source), "seconds": {}, "uses": {}}
    (tmp_path / script.TESTS).write_text(json.dumps(facts), "utf-8")
    data = CoverageData(str(tmp_path / script.DATA))
    data.add_lines({str(tmp_path / "src/toy/other.py"): [1]})
    data.write()
    with pytest.raises(SystemExit, match="another folder"):
        script.TestMap(tmp_path, source)
