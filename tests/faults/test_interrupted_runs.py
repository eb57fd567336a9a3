"""Whatever stops a run, the same command finishes it with the same bytes."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from tests.faults.faulty_files import CrashError
from tests.flat_options import as_objects
from tests.plans import open_or_plan
from tests.program import Leconvert
from tests.trees import digest_of

import leconvert
from leconvert.api import run_worker
from leconvert.cli.main import main
from leconvert.run import worker
from leconvert.run.conversion import PlanOptions
from leconvert.run.packer import pack_run
from leconvert.support.errors import InterruptedRunError, SourceChangedError
from leconvert.support.progress import SilentProgress, Stage
from leconvert.testing import edit_lines
from leconvert.workdir.fs import FileSystem


class StopAfter(SilentProgress):
    """Sets an event once a stage has advanced a given number of times."""

    def __init__(self, stage: str, advances: int, stop: threading.Event) -> None:
        self._stage = stage
        self._left = advances
        self._stop = stop

    def stage(self, name: str, total: int, unit: str) -> Stage:
        """Return a stage; the one that is watched counts."""
        stage = super().stage(name, total, unit)
        if name == self._stage:
            stage.advance = self._count  # type: ignore[method-assign]
        return stage

    def _count(self, _amount: int) -> None:
        self._left -= 1
        if self._left == 0:
            self._stop.set()


def test_a_run_that_stopped_is_resumed(
    small_source: Path, tmp_path: Path, quiet_digest: str
) -> None:
    stop = threading.Event()
    options = as_objects({"output": tmp_path / "out", "episodes_per_batch": 1, "max_workers": 1})
    with pytest.raises(InterruptedRunError):
        leconvert.convert(small_source, **options, stop=stop, progress=StopAfter("work", 9, stop))
    assert not (tmp_path / "out").exists()
    leconvert.convert(small_source, **options)
    assert digest_of(tmp_path / "out") == quiet_digest
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_source_file_written_while_its_batch_is_read_stops_the_swap(
    source_copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = open_or_plan(source_copy, tmp_path / "out", tmp_path / "work")
    path = next(source_copy.rglob("episode_000002.mp4"))
    other = path.with_name("episode_000003.mp4").read_bytes()
    write = worker.ShardWriter.write

    def write_and_change(self: worker.ShardWriter, *arguments: Any, **options: Any) -> Any:
        written = write(self, *arguments, **options)
        path.write_bytes(other)
        return written

    with monkeypatch.context() as patch:
        patch.setattr(worker.ShardWriter, "write", write_and_change)
        run_worker(run.work_dir.root, max_batches=1)

    def go_on() -> None:
        # A file of the batches that are left is looked at before it is read, others by the packer.
        run_worker(run.work_dir.root)
        pack_run(run)

    with pytest.raises(SourceChangedError) as caught:
        go_on()
    assert path.name in caught.value.details[0]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "said"), [("removed", "missing now"), ("added", "new since the plan")]
)
def test_a_file_beside_the_episodes_that_goes_or_comes_after_the_plan_stops_the_run(
    source_copy: Path, tmp_path: Path, leconvert_here: Leconvert, change: str, said: str
) -> None:
    notes, work = source_copy / "notes.txt", tmp_path / "work"
    if change == "removed":
        notes.touch()
    places = ("--root", source_copy, "--output", tmp_path / "out", "--work-dir", work)
    leconvert_here("plan", *places, code=0)
    leconvert_here("work", work, code=0)
    if change == "removed":
        notes.unlink()
    else:
        notes.touch()
    refused = leconvert_here("pack", work, code=4).stderr
    assert f"  notes.txt: {said}" in refused
    assert "run the command again with --restart" in refused
    leconvert_here("convert", *places, "--no-push", "--restart", code=0)
    assert (tmp_path / "out/notes.txt").exists() == (change == "added")


def test_a_source_changed_after_the_work_stops_the_swap(source_copy: Path, tmp_path: Path) -> None:
    places = {"output": tmp_path / "out", "work_dir": tmp_path / "work"}
    run = open_or_plan(source_copy, *places.values())
    run_worker(run.work_dir.root)
    edit_lines(source_copy, "tasks", lambda lines: lines[0].update(task="Pick up the ball."))
    with pytest.raises(SourceChangedError):
        pack_run(run)
    assert not (tmp_path / "out").exists()
    with pytest.raises(SourceChangedError):
        leconvert.convert(source_copy, **places)
    leconvert.convert(source_copy, **places, plan=PlanOptions(restart=True))
    assert (tmp_path / "out").is_dir()


def test_restart_between_the_two_renames_of_a_swap_says_where_the_dataset_is(
    source_copy: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    old = source_copy.with_name(f"{source_copy.name}_old")
    real = FileSystem.rename_no_replace

    def refuse(_fs: FileSystem, one: Path, _other: Path) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), str(one))

    def rename_and_die(fs: FileSystem, one: Path, other: Path) -> None:
        real(fs, one, other)
        if other == old:
            raise CrashError

    with monkeypatch.context() as patched:
        patched.setattr(FileSystem, "exchange", refuse)
        patched.setattr(FileSystem, "rename_no_replace", rename_and_die)
        with pytest.raises(CrashError):
            leconvert.convert(source_copy)
    assert not source_copy.exists()
    capsys.readouterr()
    command = ["convert", "--root", str(source_copy), "--no-push"]
    assert main([*command, "--restart"]) == 3
    said = capsys.readouterr().err
    assert "a conversion in place was interrupted between two renames" in said
    assert "Run the same command, without --restart" in said
    assert f"`mv {old} {source_copy}`" in said
    old.rename(source_copy)
    assert main([*command, "--restart"]) == 0
    assert (source_copy / "meta/episodes").is_dir()
    assert (old / "meta/episodes.jsonl").is_file()


def test_a_bug_says_that_it_is_one(
    leconvert_here: Leconvert, small_source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Mock(side_effect=ZeroDivisionError("surprise"))
    monkeypatch.setattr("leconvert.run.packer.run._assemble", broken)
    stopped = leconvert_here("convert", small_source, tmp_path / "out", code=70)
    assert "surprise" in stopped.stderr
    assert "This is a bug" in stopped.stderr
