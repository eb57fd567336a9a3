#!/usr/bin/env python3
"""Break the package in many small ways, one at a time, and see whether the tests notice.

    mutate.py map --out /elsewhere/map -- -n 2 tests/unit
    mutate.py run --map /elsewhere/map --seed 7 --count 200 > rows.jsonl

``map`` runs the tests once and records which test reaches which line, in a folder with coverage's
data and a list of the tests; what a test starts or forks counts for the test. ``run`` chooses
mutants by the seed alone: the same seed on the same sources gives the same mutants, whatever the
map, so two suites can be compared (``--suite``, with a map of each). Each mutant is written into a
copy of the sources, and the tests that reach its line run against the copy, the cheapest first,
until one fails.

A mutant is one of: a comparison flipped, a constant off by one, a call left out, a condition
negated. Half of the mutants are in the core (`CORE`). A row says ``caught``, ``survived``,
``timeout`` (a test did not end, which a person would notice), or ``not covered``. A survivor is
not always a fault of the tests: some mutants do the same as the original.

Mutants run with the rights of the caller, and a broken program may delete what it can reach: use a
container or an account that owns nothing of value.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from bisect import bisect
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
CORE = ("run", "workdir", "tables", "media", "dataset", "model")

FLIPPED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
# Calls with one argument that the program may run without, so that a test has to notice the value.
WRAPPERS = {"sorted", "reversed", "abs"}
# Texts for people are not tested word by word.
WORDS_FOR_PEOPLE = {"help", "metavar", "description", "epilog", "title"}
TELLING = {"print", "debug", "info", "warning", "warn", "exception", "log"}

# How a process that runs tests is told what to do; inherited by every process that a test starts.
CONTEXT, WANTED, REPORT = "MUTATE_CONTEXT", "MUTATE_WANTED", "MUTATE_REPORT"
DATA, TESTS = "coverage", "tests.json"  # the files of a map

MOST_SECONDS = 60.0  # of tests that a mutant may meet, as recorded
FIRST_SECONDS = 3.0  # of tests: many mutants are caught by one of them, before others are imported
START_SECONDS = 60.0  # of imports, on a busy machine
SLOWER = 5  # a mutant may take as many times the time of its tests as recorded
ADDRESS_SPACE = 16 * 2**30  # a loop that appends for ever ends here


type Tests = Sequence[tuple[str, float]]  # names and seconds

# --- mutants ---


class Change(NamedTuple):
    """One attribute of a node in a module's tree, and what it becomes."""

    kind: str
    line: int  # the first line of the innermost statement
    in_function: bool
    node: ast.AST
    name: str
    value: Any

    def make(self) -> tuple[str, str]:
        """Change the tree; return what is changed, before and after."""
        whole = isinstance(self.node, ast.expr | ast.comprehension)
        shown = self.node if whole and self.name != "test" else getattr(self.node, self.name)
        before = ast.unparse(shown).strip()
        setattr(self.node, self.name, self.value)
        return before, ast.unparse(shown if shown is self.node else self.value).strip()


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one file."""

    file: str
    line: int
    kind: str
    before: str
    after: str
    number: int  # of the file's changes
    in_function: bool

    def applied(self, text: str) -> str:
        """Return the source of the file with the change; comments are gone."""
        tree = ast.parse(text)
        list(changes_of(tree))[self.number].make()
        return ast.unparse(tree)


def changes_of(tree: ast.AST, line: int = 1, *, in_function: bool = False) -> Iterator[Change]:
    """Yield all changes of a tree, in the order of the source, that a test should notice."""
    line = tree.lineno if isinstance(tree, ast.stmt) else line
    if isinstance(tree, ast.If) and _names(tree.test) & {"TYPE_CHECKING", "__name__"}:
        return
    for kind, name, value in _own_changes(tree):
        yield Change(kind, line, in_function, tree, name, value)
    for part in _parts(tree):
        is_inside = isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef) and part in tree.body
        yield from changes_of(part, line, in_function=in_function or is_inside)


def _own_changes(node: ast.AST) -> Iterator[tuple[str, str, Any]]:
    match node:
        case ast.Expr(ast.Call(function)) if not _is_telling(function):
            yield "call", "value", ast.Constant(None)
        case ast.Call(ast.Name(name), [inner], []) if name in WRAPPERS and not isinstance(
            inner, ast.Starred | ast.GeneratorExp
        ):
            yield "call", "func", ast.parse("lambda value: value", mode="eval").body
        case ast.Compare(ops=operators):
            for n, operator in enumerate(operators):
                flipped = FLIPPED[type(operator)]()
                yield "comparison", "ops", [*operators[:n], flipped, *operators[n + 1 :]]
        case ast.Constant(int() as value) if not isinstance(value, bool):
            yield "constant", "value", value + 1
            yield "constant", "value", value - 1
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) if not isinstance(
            test, ast.Constant
        ):
            yield "condition", "test", ast.UnaryOp(ast.Not(), test)
        case ast.comprehension(ifs=tests):
            for n, test in enumerate(tests):
                negated = ast.UnaryOp(ast.Not(), test)
                yield "condition", "ifs", [*tests[:n], negated, *tests[n + 1 :]]


def _names(test: ast.expr) -> set[str]:
    return {name.id for name in ast.walk(test) if isinstance(name, ast.Name)}


def _is_telling(function: ast.expr) -> bool:
    return getattr(function, "id", getattr(function, "attr", "")) in TELLING


def _parts(node: ast.AST) -> list[ast.AST]:
    """Return the parts of a node that are code; types, exports and words for people are not."""
    match node:
        case ast.FunctionDef(args=args) | ast.AsyncFunctionDef(args=args):
            defaults = (*args.defaults, *args.kw_defaults)
            return [*(default for default in defaults if default is not None), *node.body]
        case ast.ClassDef(body=body):
            return [*body]
        case ast.Assign([ast.Name("__all__")]) | ast.TypeAlias() | ast.JoinedStr() | ast.Assert():
            return []
        case ast.AnnAssign(value=value):
            return [value] if value is not None else []
        case ast.keyword(arg) if arg in WORDS_FOR_PEOPLE:
            return []
        case ast.Expr(ast.Call(function)) if _is_telling(function):
            return []
    return [*ast.iter_child_nodes(node)]


def mutants_of(source: Path, only: str = "") -> list[Mutant]:
    """Return every mutant of the Python files below a folder, in order of path and place.

    Files whose path does not begin with ``only`` are left out.
    """
    found = []
    for path in sorted(source.rglob("*.py")):
        file = path.relative_to(source).as_posix()
        if file.startswith(only):
            for number, change in enumerate(changes_of(ast.parse(path.read_text("utf-8")))):
                kept = getattr(change.node, change.name)
                before, after = change.make()
                setattr(change.node, change.name, kept)
                about = (file, change.line, change.kind, before, after, number)
                found.append(Mutant(*about, change.in_function))
    return found


def chosen(candidates: Sequence[Mutant], seed: int, count: int) -> list[Mutant]:
    """Return mutants chosen by a seed: in the core and elsewhere by turns, each kind as often."""
    chance = random.Random(seed)
    pools: dict[tuple[bool, str], list[Mutant]] = {}
    for mutant in candidates:
        in_core = mutant.file.partition("/")[2].split("/")[0] in CORE
        pools.setdefault((in_core, mutant.kind), []).append(mutant)
    for key in sorted(pools):
        chance.shuffle(pools[key])
    found: list[Mutant] = []
    while len(found) < count and any(pools.values()):
        in_core = len(found) % 2 == 0
        keys = sorted(key for key, pool in pools.items() if pool)
        wanted = [key for key in keys if key[0] is in_core] or keys
        found.append(pools[chance.choice(wanted)].pop())
    return found


def digest_of(source: Path) -> str:
    """Return a digest of the Python files below a folder."""
    digest = hashlib.sha256()
    for path in sorted(source.rglob("*.py")):
        digest.update(f"{path.relative_to(source)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


# --- inside the processes that run tests: this file is a plugin of coverage and of pytest ---


def coverage_init(registry: Any, _options: object) -> None:
    """Register the plugin that says for which test a line runs."""
    from coverage import CoveragePlugin

    class Context(CoveragePlugin):
        """Names the context by the environment, which processes of a test inherit."""

        def dynamic_context(self, frame: Any) -> str | None:
            # Only frames of the package: a process that was forked from a server gets the
            # environment of its test after the fork, and before it calls the package.
            if frame.f_globals.get("__name__", "").split(".")[0] in packages:
                return os.environ.get(CONTEXT)
            return None

    packages = set(os.environ.get("MUTATE_PACKAGES", "").split())
    registry.add_dynamic_context(Context())


def _note(kind: str, *facts: object) -> None:
    """Add a line to the report; whole lines of several processes do not mix."""
    if report := os.environ.get(REPORT):
        with open(report, "ab", buffering=0) as file:  # noqa: PTH123 - unbuffered: one write
            file.write(json.dumps([kind, *facts]).encode() + b"\n")


def pytest_configure() -> None:
    """Bound the memory of a mutant's tests."""
    if WANTED in os.environ:
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the wanted tests, in the wanted order."""
    if wanted := os.environ.get(WANTED):
        order = {name: at for at, name in enumerate(json.loads(Path(wanted).read_text("utf-8")))}
        items[:] = sorted(
            (item for item in items if item.nodeid in order), key=lambda item: order[item.nodeid]
        )


def pytest_runtest_logstart(nodeid: str) -> None:
    """Note which test runs."""
    if WANTED in os.environ:
        _note("started", nodeid)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let lines count for this test from here on."""
    os.environ[CONTEXT] = item.nodeid


def pytest_fixture_setup(fixturedef: Any, request: Any) -> None:
    """Let what makes a shared fixture count for every test that uses the fixture."""
    is_shared = fixturedef.scope != "function"
    os.environ[CONTEXT] = _fixture(fixturedef) if is_shared else request.node.nodeid


def pytest_runtest_call(item: pytest.Item) -> None:
    """Let lines count for the test again, after its fixtures."""
    os.environ[CONTEXT] = item.nodeid


def _fixture(definition: Any) -> str:
    return f"fixture {definition.baseid} {definition.argname}"


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Note the shared fixtures that a test used."""
    if WANTED not in os.environ and hasattr(item, "_fixtureinfo"):
        known = item._fixtureinfo.name2fixturedefs.values()  # noqa: SLF001 - pytest offers no other
        shared = [_fixture(found[-1]) for found in known if found[-1].scope != "function"]
        _note("uses", item.nodeid, shared)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note how each part of a test ended; under xdist, once for all workers."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        _note("ended", report.nodeid, report.outcome, report.duration)


# --- the map ---

SETTINGS = """\
[run]
branch = false
core = ctrace
parallel = true
data_file = {data}
source_pkgs = {packages}
patch = _exit, fork, subprocess
plugins = mutate
"""


def make_map(source: Path, suite: Path, out: Path, arguments: Sequence[str]) -> None:
    """Run a suite once and keep which of its tests reach which line.

    Tests that fail or are skipped are left out: they say nothing about a mutant.
    """
    packages = sorted(path.parent.name for path in source.glob("*/__init__.py"))
    with tempfile.TemporaryDirectory(prefix="leconvert-mutate-") as name:
        folder = Path(name)
        settings = folder / "coveragerc"
        settings.write_text(
            SETTINGS.format(data=folder / DATA, packages=", ".join(packages)), "utf-8"
        )
        variables = {
            **_environment(source, folder),
            REPORT: str(folder / "report"),
            "MUTATE_PACKAGES": " ".join(packages),
        }
        coverage = [sys.executable, "-m", "coverage"]
        paths = list(arguments) or [suite.name]
        pytest = ["-m", "pytest", "-p", "mutate", "-p", "no:cacheprovider", "-q", *paths]
        command = [*coverage, "run", f"--rcfile={settings}", *pytest]
        subprocess.run(command, cwd=suite.parent, env=variables, check=False)
        seconds, uses = _told(folder / "report")
        if not seconds:
            raise SystemExit("No test passed, so there is no map.")
        out.mkdir(parents=True, exist_ok=True)
        quietly = ["combine", "--quiet", f"--rcfile={settings}", str(folder)]
        subprocess.run([*coverage, *quietly], cwd=folder, env=variables, check=True)
        shutil.move(folder / DATA, out / DATA)
        facts = {"sources": digest_of(source), "seconds": seconds, "uses": uses}
        (out / TESTS).write_text(json.dumps(facts), "utf-8")
        print(f"{out}: {len(seconds)} tests", file=sys.stderr)


def _environment(source: Path, scratch: Path) -> dict[str, str]:
    path = f"{source}{os.pathsep}{Path(__file__).parent}"
    # A worker of a parallel run that starts this one must not pass for a worker of this one.
    ours = {name: said for name, said in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    return ours | {"PYTHONPATH": path, "PYTEST_DEBUG_TEMPROOT": str(scratch)}


def _told(report: Path) -> tuple[dict[str, float], dict[str, list[str]]]:
    """Return the seconds of each test that passed, and the shared fixtures that a test uses."""
    seconds: dict[str, float] = {}
    outcomes: dict[str, set[str]] = {}
    uses: dict[str, list[str]] = {}
    for line in report.read_text("utf-8").splitlines() if report.exists() else ():
        match json.loads(line):
            case ["ended", name, outcome, duration]:
                seconds[name] = seconds.get(name, 0) + duration
                outcomes.setdefault(name, set()).add(outcome)
            case ["uses", name, fixtures]:
                uses[name] = fixtures
    passed = {name: seconds[name] for name, found in outcomes.items() if found == {"passed"}}
    return passed, uses


class TestMap:
    """The tests that reach each line.

    Attributes:
        tests: Every test and its seconds, the cheapest first.
    """

    def __init__(self, folder: Path, source: Path) -> None:
        """Read a map, which must be of these sources in this folder."""
        from coverage import CoverageData

        facts = json.loads((folder / TESTS).read_bytes())
        if facts["sources"] != digest_of(source):
            raise SystemExit(f"{folder} is the map of other sources: make it again.")
        cost = {name: (round(seconds, 2), name) for name, seconds in facts["seconds"].items()}
        self.tests = [(name, facts["seconds"][name]) for name in sorted(cost, key=cost.__getitem__)]
        self._uses: dict[str, list[str]] = facts["uses"]
        self._source = source
        self._data = CoverageData(str(folder / DATA))
        self._data.read()
        if not any(Path(file).is_relative_to(source) for file in self._data.measured_files()):
            raise SystemExit(f"{folder} is the map of sources in another folder: make it again.")

    def covering(self, mutant: Mutant) -> list[tuple[str, float]]:
        """Return the tests that reach a mutant and their seconds, the cheapest first.

        Code that runs at the import of its module is reached by all tests that reach the module.
        """
        lines = self._data.contexts_by_lineno(str(self._source / mutant.file))
        if mutant.in_function:
            reached = set(lines.get(mutant.line) or ())
        else:
            reached = {context for contexts in lines.values() for context in contexts or ()}
        return [
            (name, seconds)
            for name, seconds in self.tests
            if name in reached or not reached.isdisjoint(self._uses.get(name, ()))
        ]


# --- trying mutants ---


class Tree:
    """A copy of the sources that mutants are written into, one after another."""

    def __init__(self, source: Path, folder: Path) -> None:
        self.source = Path(shutil.copytree(source, folder / "src"))
        self.folder = folder
        self._time = 1_000_000_000

    def write(self, file: str, text: str) -> None:
        """Write a module; Python compiles again what has another time, in whole seconds."""
        path = self.source / file
        path.write_text(text, "utf-8")
        self._time += 2
        os.utime(path, (self._time, self._time))


def tried(mutant: Mutant, tests: Tests, suite: Path, tree: Tree) -> dict[str, Any]:
    """Run tests against a mutant and return its row."""
    row: dict[str, Any] = {
        "file": mutant.file, "line": mutant.line, "kind": mutant.kind,
        "before": mutant.before, "after": mutant.after,
        "tests": 0, "outcome": "survived" if tests else "not covered", "test": None,
    }  # fmt: skip
    original = (tree.source / mutant.file).read_text("utf-8")
    tree.write(mutant.file, mutant.applied(original))
    try:
        for batch in _batches(tests):
            outcome, ran, last = _run_tests(batch, suite, tree)
            row["tests"] += ran
            if outcome != "survived":
                return row | {"outcome": outcome, "test": last}
    finally:
        tree.write(mutant.file, original)
    return row


def _batches(tests: Tests) -> Iterator[Tests]:
    """Yield the tests of the first seconds, then the others."""
    seconds = 0.0
    for at, (_, cost) in enumerate(tests):
        seconds += cost
        if seconds > FIRST_SECONDS and at:
            yield tests[:at]
            yield tests[at:]
            return
    if tests:
        yield tests


def _run_tests(tests: Tests, suite: Path, tree: Tree) -> tuple[str, int, str | None]:
    """Return what some tests say, how many ran, and the last of them."""
    with tempfile.TemporaryDirectory(dir=tree.folder, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        names = [name for name, _ in tests]
        (folder / "wanted").write_text(json.dumps(names), "utf-8")
        files = sorted({name.split("::")[0] for name in names})
        variables = _environment(tree.source, folder) | {
            WANTED: str(folder / "wanted"), REPORT: str(folder / "report")
        }  # fmt: skip
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "mutate"]
        command += ["-p", "no:cacheprovider", *files]
        with (folder / "out").open("wb") as out:
            process = subprocess.Popen(
                command, cwd=suite.parent, env=variables, stdin=subprocess.DEVNULL, stdout=out,
                stderr=out, start_new_session=True,
            )  # fmt: skip
            try:
                code = process.wait(START_SECONDS + SLOWER * sum(cost for _, cost in tests))
            except subprocess.TimeoutExpired:
                code = None
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # what its tests left behind as well
                process.wait()
        report = folder / "report"
        lines = report.read_text("utf-8").splitlines() if report.exists() else []
        started = [name for kind, name, *_ in map(json.loads, lines) if kind == "started"]
        last = started[-1] if started else None
        if code is None:
            return "timeout", len(started), last
        if code == 0:
            return "survived", len(started), last
        return "caught", len(started), last or "collection"


def try_all(
    mutants: Sequence[Mutant], map_: TestMap, source: Path, suite: Path
) -> Iterator[dict[str, Any]]:
    """Try mutants one after another, and yield their rows; the sources stay as they are."""
    with tempfile.TemporaryDirectory(prefix="leconvert-mutate-") as name:
        tree = Tree(source, Path(name))
        if _run_tests(map_.tests[:1], suite, tree)[0] != "survived":
            raise SystemExit(f"{map_.tests[0][0]} fails without a mutant.")
        for mutant in mutants:
            covering = map_.covering(mutant)
            costs = accumulate(seconds for _, seconds in covering)
            few = max(1, bisect(list(costs), MOST_SECONDS))
            yield tried(mutant, covering[:few], suite, tree) | {"covering": len(covering)}


def main(arguments: Sequence[str]) -> int:
    """Make a map, or try mutants."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    both = argparse.ArgumentParser(add_help=False)
    both.add_argument(
        "--suite", type=Path, default=REPOSITORY / "tests", metavar="DIR",
        help="the folder of the tests, perhaps of another checkout",
    )  # fmt: skip
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("map", parents=[both], help="record what each test reaches")
    command.add_argument("--out", type=Path, required=True, metavar="DIR")
    command.add_argument("pytest", nargs="*", help="arguments of pytest, after --")
    command = commands.add_parser("run", parents=[both], help="try mutants")
    command.add_argument("--map", type=Path, required=True, metavar="DIR")
    command.add_argument("--seed", type=int, default=1)
    command.add_argument("--count", type=int, default=200)
    command.add_argument(
        "--only", default="", metavar="PATH", help="such as leconvert/run/leasing/"
    )
    given = parser.parse_args(arguments)
    source, suite = REPOSITORY / "src", given.suite.resolve()
    if given.command == "map":
        make_map(source, suite, given.out.resolve(), given.pytest)
        return 0
    map_ = TestMap(given.map, source)
    mutants = chosen(mutants_of(source, given.only), given.seed, given.count)
    counts: Counter[str] = Counter()
    for row in try_all(mutants, map_, source, suite):
        print(json.dumps(row), flush=True)
        counts[row["outcome"]] += 1
    print(", ".join(f"{count} {name}" for name, count in counts.most_common()), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
