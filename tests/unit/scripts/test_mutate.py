"""Mutants of a toy package: which there are, which a seed chooses, and which a suite notices."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

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
    return sum(v for v in seen if v is not None)


def unused() -> int:
    return 3


def in_a_child() -> None:
    sys.exit(MOST + 4)
'''
CONFTEST = """\
import pytest
from toy.run.numbers import limited

@pytest.fixture(scope="session")
def made():
    return limited(7)
"""
TESTS = """\
import subprocess, sys
import pytest
from toy.run.numbers import limited, total

def test_total():
    seen = [1]
    assert total([1, 2], seen) == 3
    assert seen == [2, 1]

def test_limited(made):
    assert (made, limited(11), limited(10)) == (7, 10, 10)

def test_negative(made):
    with pytest.raises(ValueError):
        limited(-1)

def test_child():
    code = "from toy.run.numbers import in_a_child; in_a_child()"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 14

def test_that_fails():
    assert limited(1) == 2
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("project")
    for name, content in {
        "src/toy/__init__.py": "",
        "src/toy/run/__init__.py": "",
        "src/toy/run/numbers.py": MODULE,
        "src/toy/other.py": "def half(n: int) -> int:\n    return n // 2 if n > 1 else 0\n",
        "tests/conftest.py": CONFTEST,
        "tests/test_toy.py": TESTS,
        "weak/test_weak.py": "from toy.run.numbers import limited\n"
        "def test_weak():\n    assert limited(3) == 3\n",
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, "utf-8")
    return root


@pytest.fixture(scope="module")
def map_of_all(script: ModuleType, project: Path) -> Path:
    path = project / "all.map"
    script.make_map(project / "src", project / "tests", path, [])
    return path


def test_code_is_mutated_and_words_types_and_exports_are_not(
    script: ModuleType, project: Path
) -> None:
    found = script.mutants_of(project / "src", "toy/run/numbers")
    assert [(m.line, m.kind, m.before, m.after) for m in found] == [
        (12, "constant", "10", "11"),
        (12, "constant", "10", "9"),
        (15, "constant", "10", "11"),
        (15, "constant", "10", "9"),
        (17, "condition", "value < 0", "(not (value < 0))"),
        (17, "comparison", "<", "<="),
        (17, "constant", "0", "1"),
        (17, "constant", "0", "(-1)"),
        (19, "condition", "value > most", "(not (value > most))"),
        (19, "comparison", ">", ">="),
        (23, "call", "seen.clear()", "pass"),
        (25, "condition", "values", "(not (values))"),
        (27, "call", "seen.append(values.pop())", "pass"),
        (28, "condition", "v is not None", "(not (v is not None))"),
        (28, "comparison", "is not", "is"),
        (32, "constant", "3", "4"),
        (32, "constant", "3", "2"),
        (36, "call", "sys.exit(MOST + 4)", "pass"),
        (36, "constant", "4", "5"),
        (36, "constant", "4", "3"),
    ]
    for mutant in found:
        compile(mutant.applied(MODULE), "numbers.py", "exec")


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


@pytest.mark.slow  # it runs a suite
def test_the_map_knows_children_and_shared_fixtures_and_leaves_failing_tests_out(
    script: ModuleType, project: Path, map_of_all: Path
) -> None:
    known = script.TestMap(map_of_all, project / "src")
    reached = {
        (m.line, m.before): {name.split("::")[1] for name, _ in known.covering(m)}
        for m in script.mutants_of(project / "src", "toy/run/numbers")
    }
    by_fixture = {"test_limited", "test_negative"}
    assert reached[17, "0"] == reached[19, ">"] == by_fixture
    assert reached[23, "seen.clear()"] == {"test_total"}
    assert reached[36, "4"] == {"test_child"}
    assert reached[32, "3"] == set()
    assert reached[12, "10"] == by_fixture | {"test_total", "test_child"}


@pytest.mark.slow
def test_two_suites_meet_the_same_mutants_and_the_stronger_catches_more(
    script: ModuleType, project: Path, map_of_all: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weak = project / "weak.map"
    script.make_map(project / "src", project / "weak", weak, [])
    capsys.readouterr()
    rows = {}
    for suite, map_ in (("tests", map_of_all), ("weak", weak)):
        words = ["run", f"--map={map_}", "--seed=1", "--count=5", "--only=toy/run/numbers"]
        words += [f"--suite={project / suite}", f"--src={project / 'src'}"]
        assert script.main(words) == 0
        rows[suite] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    mutants = [
        [(row["line"], row["kind"], row["before"], row["after"]) for row in found]
        for found in rows.values()
    ]
    assert mutants[0] == mutants[1]
    caught = {
        suite: {row["line"] for row in found if row["outcome"] == "caught"}
        for suite, found in rows.items()
    }
    assert caught["weak"] < caught["tests"]
    for row in rows["tests"]:
        assert (row["test"] is not None) == (row["outcome"] in {"caught", "timeout"}), row
        assert (row["outcome"] == "not covered") == (row["line"] == 32), row
    assert (project / "src/toy/run/numbers.py").read_text("utf-8") == MODULE


@pytest.mark.slow  # it waits for a test that does not end
def test_a_mutant_that_never_ends_is_a_timeout(
    script: ModuleType, project: Path, map_of_all: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "START_SECONDS", 15)
    known = script.TestMap(map_of_all, project / "src")
    (endless,) = (
        m
        for m in script.mutants_of(project / "src", "toy/run/numbers")
        if m.before == "seen.append(values.pop())"
    )
    (row,) = script.try_all([endless], known, project / "src", project / "tests")
    assert (row["outcome"], row["test"]) == ("timeout", "tests/test_toy.py::test_total")
