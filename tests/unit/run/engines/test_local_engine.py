"""Workers as processes of this machine: how they are started, and what becomes of one that dies."""

from __future__ import annotations

import re
import sys
import threading
from pathlib import Path

import pytest
from tests.trees import digest_of

from leconvert import convert
from leconvert.model.values import LayoutOptions
from leconvert.run.conversion import WorkerOptions
from leconvert.run.engines import LocalEngine
from leconvert.run.leasing.leases import LeaseLogFiles
from leconvert.support.errors import EngineError, IncompleteError, UsageError
from leconvert.workdir.run import OpenedRun, open_run

# `leconvert work`, but whoever can make a mark first is killed with a batch in its hands.
_MORTAL = """\
import os, signal, sys
from pathlib import Path
marks, limit, *arguments = sys.argv[1:]
from leconvert.run.worker import ShardWriter
write = ShardWriter.write
def mortal(self, *shard, **options):
    for number in range(int(limit)):
        try:
            Path(marks, str(number)).touch(exist_ok=False)
        except FileExistsError:
            continue
        print("about to die", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    return write(self, *shard, **options)
ShardWriter.write = mortal
from leconvert.cli import main
sys.exit(main(["work", *arguments]))
"""


def mortal_engine(folder: Path, deaths: int) -> LocalEngine:
    (folder / "marks").mkdir()
    (folder / "mortal.py").write_text(_MORTAL)
    program = (sys.executable, folder / "mortal.py", folder / "marks", str(deaths))
    return LocalEngine(2, program=program)


EACH = LayoutOptions(episodes_per_batch=1)


def test_a_worker_that_crashes_does_not_end_the_run(
    small_source: Path, small_result: Path, tmp_path: Path
) -> None:
    engine, out, work = mortal_engine(tmp_path, deaths=1), tmp_path / "out", tmp_path / "work"
    workers = WorkerOptions(engine=engine)
    convert(
        small_source, output=out, work_dir=work, workers=workers, layout=EACH, keep_work_dir=True
    )
    assert digest_of(out) == digest_of(small_result)
    # The other one was asked to end if it had not yet seen that nothing is left: no failure.
    (failure,) = engine.failures()
    assert re.fullmatch(r"worker \d+ was killed by signal 9: about to die", failure)
    # One batch was claimed twice: by the worker that died, and by the one that took over.
    run = open_run(work)
    log = LeaseLogFiles(run.paths)
    claims = sorted(log.newest_claim(batch_id) for batch_id in range(run.manifest.num_batches))
    assert claims == [1, 1, 1, 1, 2]


def test_when_all_workers_crash_the_run_goes_on_later(small_source: Path, tmp_path: Path) -> None:
    crashing = WorkerOptions(engine=mortal_engine(tmp_path, deaths=2))
    with pytest.raises(IncompleteError) as failed:
        convert(small_source, output=tmp_path / "out", workers=crashing, layout=EACH)
    killed = [line for line in failed.value.details if "was killed by signal 9" in line]
    assert len(killed) == 2
    one = WorkerOptions(max_workers=1)
    again = convert(small_source, output=tmp_path / "out", workers=one, layout=EACH)
    assert again.episodes == 5


def test_what_cannot_be_started_is_an_error(planned: OpenedRun) -> None:
    engine = LocalEngine(2, program=(planned.paths.root / "nowhere",))
    with pytest.raises(EngineError, match="nowhere cannot start a worker: No such file") as failed:
        engine.start(2, [str(planned.work_dir.root)], planned.paths)
    assert failed.value.exit_code == 18
    assert engine.running() == 0
    with pytest.raises(UsageError, match="workers must be at least 1, not 0"):
        LocalEngine(0)
    with pytest.raises(UsageError, match="Give the command that starts a worker"):
        LocalEngine(program=())


def test_the_library_starts_as_many_as_it_is_told(
    small_source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leconvert.run.worker_pool.auto_workers", lambda _run: 2)
    started: list[int] = []
    start = LocalEngine.start

    def noted(engine: LocalEngine, number: int, *rest: object) -> None:
        started.append(number)
        start(engine, 1, *rest)  # type: ignore[arg-type]  # one does the work, too

    monkeypatch.setattr(LocalEngine, "start", noted)
    workers = WorkerOptions(engine=LocalEngine(), num_workers="auto")
    report = convert(small_source, output=tmp_path / "out", workers=workers, layout=EACH)
    assert started == [2]
    assert report.batches == 5


def test_a_second_run_knows_nothing_of_the_first(planned: OpenedRun, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    engine = LocalEngine(1, program=("sh", "-c", f"test -e {mark} || {{ touch {mark}; exit 3; }}"))
    pause = threading.Event()
    told = []
    for _ in range(2):
        engine.start(1, ["WORK"], planned.paths)
        while engine.running():
            pause.wait(0.01)  # for another process
        told.append(len(engine.failures()))
    assert told == [1, 0]
