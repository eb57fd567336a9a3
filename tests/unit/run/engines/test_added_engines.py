"""Engines of other packages: found by what the package says of itself, imported when asked for."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.program import Leconvert
from tests.trees import digest_of

from leconvert import convert
from leconvert.run.conversion import WorkerOptions
from leconvert.run.engines import BUILT_IN, Engine, EngineNames, make_engine, make_submitter
from leconvert.support.errors import EngineError, UsageError
from leconvert.workdir.run import OpenedRun

# Threads as workers; `Tiny(Staying)` can also leave a run behind, in a file.
_MODULE = """\
import json, pathlib, threading
from leconvert.api import run_worker
from leconvert.support.errors import UsageError

class Staying:
    def __init__(self, workers="2", note_in=""):
        if not workers.isdigit():
            raise UsageError(f"tiny: {workers} is no number.")
        self.workers = int(workers)
        self.threads, self.over, self.note_in = [], threading.Event(), note_in

    def start(self, count, arguments, paths):
        if self.note_in:
            pathlib.Path(self.note_in).write_text(json.dumps([count, *arguments]))
        for _ in range(count):
            thread = threading.Thread(target=run_worker, args=[arguments[0]], kwargs={"stop": self.over})
            thread.start()
            self.threads.append(thread)

    def running(self):
        return sum(thread.is_alive() for thread in self.threads)

    def failures(self):
        return []

    def stop(self):
        self.over.set()
        for thread in self.threads:
            thread.join()

class Tiny(Staying):
    def submit(self, handover, paths):
        pathlib.Path(self.note_in).write_text(self.script(handover, paths))
        return "t-1" if handover.workers else None, "t-2"

    def script(self, handover, paths):
        return f"{handover.workers} {' '.join(handover.work_arguments)}\\n"

class Half:
    workers = 1
    start = running = print

class Idle(Staying):
    def __init__(self):
        super().__init__("0")

def fails(queue="short"):
    raise RuntimeError(f"no queue {queue}.")

number = 7
"""  # noqa: E501

AddPackage = Callable[..., None]


@pytest.fixture
def add_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AddPackage]:
    """Install a package with engines, as an installer leaves it: a module and a dist-info."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)

    def add(package: str = "tiny_engines", module: str = _MODULE, **engines: str) -> None:
        about = site / f"{package}-1.2.dist-info"
        about.mkdir()
        named = package.replace("_", "-")
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {named}\nVersion: 1.2\n")
        lines = [f"{name} = {value}" for name, value in engines.items()]
        (about / "entry_points.txt").write_text("\n".join(["[leconvert.engines]", *lines, ""]))
        (site / f"{package}.py").write_text(module)

    yield add
    sys.modules.pop("tiny_engines", None)


def test_names_are_listed_without_an_import(
    add_package: AddPackage, leconvert_here: Leconvert
) -> None:
    add_package(tiny="tiny_engines:Tiny", local="tiny_engines:Tiny")
    # A name of leconvert's own cannot be taken.
    assert list(EngineNames(BUILT_IN)) == [*BUILT_IN, "tiny"]
    assert "tiny" in EngineNames(())
    assert "tinier" not in EngineNames(())
    for command in ("convert", "submit"):
        printed = leconvert_here(command, "--help", code=0)
        assert "ray, slurm, tiny" in " ".join(printed.stdout.split())
    assert "tiny_engines" not in sys.modules


def test_a_package_s_engine_converts_with_its_options(
    add_package: AddPackage,
    leconvert_here: Leconvert,
    small_source: Path,
    small_result: Path,
    tmp_path: Path,
) -> None:
    add_package(tiny="tiny_engines:Tiny")
    note, out = tmp_path / "note", tmp_path / "out"
    done = leconvert_here(
        "convert", "--root", small_source, "--output", out, "--episodes-per-batch", "1",
        "--engine", "tiny", "--engine-option", "workers=3", "--engine-option", f"note-in={note}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    count, work_dir, *arguments = json.loads(note.read_text())
    assert (count, Path(work_dir).parent) == (3, tmp_path)
    assert "--lease-seconds=60.0" in arguments
    assert digest_of(out) == digest_of(small_result)


def test_the_library_takes_the_same_engine_and_says_what_something_else_lacks(
    add_package: AddPackage, small_source: Path, tmp_path: Path
) -> None:
    nothing: Engine = object()  # type: ignore[assignment]
    with pytest.raises(EngineError, match="no start, running, failures, stop"):
        convert(small_source, output=tmp_path / "out", workers=WorkerOptions(engine=nothing))
    assert not (tmp_path / "out").exists()
    add_package(tiny="tiny_engines:Staying")
    note = tmp_path / "note"
    workers = WorkerOptions(engine=make_engine("tiny", {"note_in": str(note)}), num_workers=1)
    convert(small_source, output=tmp_path / "out", workers=workers)
    assert json.loads(note.read_text())[0] == 1


def test_a_run_is_left_with_a_package_s_engine(
    add_package: AddPackage, leconvert_here: Leconvert, planned: OpenedRun, tmp_path: Path
) -> None:
    add_package(tiny="tiny_engines:Tiny", staying="tiny_engines:Staying")
    note, work = tmp_path / "note", planned.work_dir.root
    options = ("--engine-option", "workers=9", "--engine-option", f"note-in={note}")
    shown = leconvert_here("submit", work, "--engine", "tiny", *options, "--dry-run")
    # Five batches are left: more workers would find nothing.
    assert shown.stdout.startswith(f"5 {work} --lease-seconds=60.0")
    assert not note.exists()
    sent = leconvert_here("submit", work, "--engine", "tiny", *options)
    assert sent.stdout.splitlines()[:2] == [
        "workers  5 as job t-1",
        "packer   job t-2, which starts when the workers have ended",
    ]
    assert note.read_text() == shown.stdout

    refused = leconvert_here("submit", work, "--engine", "staying", code=2)
    assert (
        "Engine staying of tiny-engines 1.2 cannot run jobs after this command has ended."
        in refused.stderr
    )
    assert "leconvert convert --engine staying" in refused.stderr


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("tiny_engines:Half", "is not an engine: Half has no failures, stop"),
        ("tiny_engines:Idle", "does not give a valid number of workers"),
        ("tiny_engines:fails", "could not be created: RuntimeError: no queue short"),
        ("tiny_engines:number", "has the entry point tiny_engines:number, which is not a class"),
        ("tiny_engines:Gone", "cannot be imported: AttributeError: module 'tiny_engines' has no"),
        ("tiny_gone:Tiny", "cannot be imported: ModuleNotFoundError: No module named 'tiny_gone'"),
    ],
)
def test_what_is_no_engine_is_an_error_that_names_the_package(
    add_package: AddPackage, value: str, said: str
) -> None:
    add_package(tiny=value)
    with pytest.raises(EngineError) as failed:
        make_engine("tiny")
    assert failed.value.message.startswith(f"Engine tiny of tiny-engines 1.2 {said}")
    assert failed.value.message.endswith(".")
    assert failed.value.next_step
    assert failed.value.exit_code == 18


def test_options_that_an_engine_does_not_know_are_refused(add_package: AddPackage) -> None:
    add_package(tiny="tiny_engines:Tiny", idle="tiny_engines:Idle")
    with pytest.raises(UsageError, match="got an unexpected keyword argument 'queue'") as refused:
        make_engine("tiny", {"queue": "long"})
    assert refused.value.next_step == "Its options are: workers, note_in."
    with pytest.raises(UsageError) as none_known:
        make_engine("idle", {"queue": "long"})
    assert none_known.value.next_step == "It has no options."
    with pytest.raises(UsageError, match=r"^tiny: many is no number"):
        make_engine("tiny", {"workers": "many"})


def test_a_name_that_nobody_or_everybody_adds_is_refused(add_package: AddPackage) -> None:
    with pytest.raises(UsageError, match="No installed package provides an engine"):
        make_engine("tiny")
    add_package(tiny="tiny_engines:Tiny")
    with pytest.raises(UsageError, match="No installed package provides an engine"):
        make_submitter("tyni")
    add_package("more_engines", tiny="more_engines:Tiny")
    with pytest.raises(
        UsageError, match="Several packages provide an engine tiny: more-engines, tiny"
    ):
        make_engine("tiny")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--engine-option queue=long", "works only with an engine that a separate Python package"),
        ("--engine local --engine-option a=b", "has its own options"),
        ("--engine tiny --engine-option queue", "queue is not of the form KEY=VALUE"),
        ("--engine tiny --engine-option =long", "=long is not of the form KEY=VALUE"),
        ("--engine tiny" + " --engine-option a=b" * 2, "--engine-option a is given twice"),
        ("--engine tiny --partition cpu", "works only with --engine slurm"),
        ("--engine tiny --max-workers 2", "--engine tiny starts worker processes"),
        ("--engine tiny --no-orchestrate", "--engine tiny and --no-orchestrate exclude"),
    ],
)
def test_options_that_do_not_go_with_an_engine_are_refused(
    add_package: AddPackage, leconvert_here: Leconvert, tmp_path: Path, words: str, said: str
) -> None:
    add_package(tiny="tiny_engines:Tiny")
    refused = leconvert_here("convert", "--root", tmp_path, *words.split(), code=2)
    assert said in refused.stderr
    assert "tiny_engines" not in sys.modules
