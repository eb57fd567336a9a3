"""Whatever stops a run, the same command finishes it with the same bytes."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.faults.faulty_files import CrashError
from tests.flat_options import as_objects
from tests.trees import digest_of, snapshot

import leconvert
from leconvert.api import run_worker
from leconvert.cli.main import main
from leconvert.model.values import Slice
from leconvert.run import worker
from leconvert.run.conversion import LeaseOptions, PlanOptions
from leconvert.run.leasing import read_done
from leconvert.run.packer import pack_run
from leconvert.run.planner import open_or_plan
from leconvert.support.errors import (
    IncompleteError,
    InterruptedRunError,
    SourceChangedError,
    TargetError,
    VerificationError,
)
from leconvert.support.progress import SilentProgress, Stage
from leconvert.workdir.fs import FileSystem
from leconvert.workdir.records import default_work_dir
from leconvert.workdir.run import OpenedRun


def patched_leconvert(*lines: str) -> list[str]:
    """Return a command of leconvert with ``ShardWriter.write`` replaced by ``write``.

    ``lines`` are the body of ``write``, in which ``original`` is the real one.
    """
    code = ["import os, shutil, signal, sys, time", "from leconvert.cli import main"]
    code += ["from leconvert.run.worker import ShardWriter", "original = ShardWriter.write"]
    code += ["def write(self, *arguments, **options):", *(f"    {line}" for line in lines)]
    code += ["    return original(self, *arguments, **options)", "ShardWriter.write = write"]
    return [sys.executable, "-c", "\n".join([*code, "sys.exit(main())"])]


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


@pytest.mark.parametrize(("stage", "advances"), [("work", 9), ("pack", 1)])
def test_a_run_that_was_asked_to_stop_is_resumed(
    small_source: Path, tmp_path: Path, quiet_digest: str, stage: str, advances: int
) -> None:
    stop = threading.Event()
    options = as_objects({"output": tmp_path / "out", "episodes_per_batch": 1, "max_workers": 1})
    with pytest.raises(InterruptedRunError):
        leconvert.convert(
            small_source, **options, stop=stop, progress=StopAfter(stage, advances, stop)
        )
    assert not (tmp_path / "out").exists()
    leconvert.convert(small_source, **options)
    assert digest_of(tmp_path / "out") == quiet_digest
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_ctrl_c_hands_back_and_says_so(small_source: Path, tmp_path: Path) -> None:
    """A signal that comes while the program starts is the shell's affair; this one comes later."""
    command = patched_leconvert(
        "os.kill(os.getpid(), signal.SIGINT)",
        # A second SIGINT would mean impatience: until the main thread has taken this one, of which
        # nothing but this function tells, no shard is written.
        "while not options['should_stop']():",
        "    time.sleep(0.001)",
    )
    arguments = ["convert", "--root", str(small_source), "--output", str(tmp_path / "out")]
    arguments += ["--max-workers", "1"]  # each worker would send one
    stopped = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, check=False, timeout=120
    )
    assert stopped.returncode == 130, stopped.stderr
    assert "same command" in stopped.stderr
    assert "Traceback" not in stopped.stderr
    ends = list(tmp_path.glob(".out.leconvert-work/runs/*/leases/*/*.end"))
    assert ends
    assert all("handed" in end.read_text() for end in ends)


def test_a_source_file_that_is_replaced_before_it_is_read_stops_the_run(
    source_copy: Path, tmp_path: Path
) -> None:
    run = open_or_plan(source_copy, tmp_path / "out", tmp_path / "work")
    table = source_copy / "data/chunk-000/episode_000002.parquet"
    replacement = table.with_suffix(".new")
    replacement.write_bytes(table.read_bytes())
    replacement.replace(table)
    with pytest.raises(SourceChangedError) as caught:
        run_worker(run.work_dir.root)
    assert "episode_000002.parquet" in caught.value.details[0]


@pytest.mark.parametrize("suffix", [".parquet", ".mp4"])
def test_a_source_file_written_while_its_batch_is_read_stops_the_swap(
    source_copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    run = open_or_plan(source_copy, tmp_path / "out", tmp_path / "work")
    path = next(source_copy.rglob(f"episode_000002{suffix}"))
    other = next(source_copy.rglob(f"episode_000003{suffix}"))
    write = worker.ShardWriter.write

    def write_and_change(self: worker.ShardWriter, *arguments: Any, **options: Any) -> Any:
        written = write(self, *arguments, **options)
        path.write_bytes(other.read_bytes())
        return written

    monkeypatch.setattr(worker.ShardWriter, "write", write_and_change)
    run_worker(run.work_dir.root, max_batches=1)
    monkeypatch.undo()

    def go_on() -> None:
        # A file of the batches that are left is looked at before it is read, others by the packer.
        run_worker(run.work_dir.root)
        pack_run(run)

    with pytest.raises(SourceChangedError) as caught:
        go_on()
    assert path.name in caught.value.details[0]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("change", ["removed", "added"])
def test_a_file_beside_the_episodes_that_goes_or_comes_after_the_plan_stops_the_run(
    source_copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: str
) -> None:
    notes = source_copy / "notes.txt"
    if change == "removed":
        notes.write_text("about the arm")
    work = str(tmp_path / "work")
    convert = ["convert", "--root", str(source_copy), "--output", str(tmp_path / "out")]
    assert main(["plan", *convert[1:], "--work-dir", work]) == 0
    assert main(["work", work]) == 0
    if change == "removed":
        notes.unlink()
    else:
        notes.write_text("about the arm")
    capsys.readouterr()
    assert main(["pack", work]) == 4
    said = capsys.readouterr().err
    assert (
        "  notes.txt: " + ("missing now" if change == "removed" else "new since the plan") in said
    )
    assert "run the command again with --restart" in said
    assert main([*convert, "--no-push", "--work-dir", work, "--restart"]) == 0
    assert (tmp_path / "out/notes.txt").exists() == (change == "added")


@pytest.mark.parametrize("changed", ["meta/tasks.jsonl", "data/chunk-000/episode_000000.parquet"])
def test_a_source_that_changes_after_the_work_stops_the_swap(
    source_copy: Path, tmp_path: Path, changed: str
) -> None:
    run = open_or_plan(source_copy, tmp_path / "out", tmp_path / "work")
    run_worker(run.work_dir.root)
    path = source_copy / changed
    if changed.endswith("parquet"):
        os.utime(path)
    else:
        path.write_text(path.read_text().replace("cube", "ball"))
    with pytest.raises(SourceChangedError):
        pack_run(run)
    assert not (tmp_path / "out").exists()
    with pytest.raises(SourceChangedError):
        leconvert.convert(source_copy, output=tmp_path / "out", work_dir=tmp_path / "work")
    leconvert.convert(
        source_copy,
        output=tmp_path / "out",
        work_dir=tmp_path / "work",
        plan=PlanOptions(restart=True),
    )
    assert (tmp_path / "out").is_dir()


@pytest.mark.parametrize("damage", ["remove", "truncate"])
def test_a_done_batch_without_its_shards_opens_again(
    planned: OpenedRun, tmp_path: Path, quiet_digest: str, damage: str
) -> None:
    run_worker(planned.work_dir.root)
    record = read_done(planned.paths, planned.manifest.run_id, 1)
    shard = planned.paths.root / record["attempt"] / record["shards"][0]["path"]
    if damage == "remove":
        shard.unlink()
    else:
        shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(IncompleteError, match="must be done again"):
        pack_run(planned)
    assert run_worker(planned.work_dir.root).batches_done == 1
    pack_run(planned)
    assert digest_of(tmp_path / "out") == quiet_digest


def test_a_tree_that_fails_its_check_is_not_swapped_in(
    planned: OpenedRun, source_copy: Path, tmp_path: Path
) -> None:
    run_worker(planned.work_dir.root)
    record = read_done(planned.paths, planned.manifest.run_id, 0)
    video = next(entry["path"] for entry in record["shards"] if entry["path"].endswith(".mp4"))
    shard = planned.paths.root / record["attempt"] / video
    content = bytearray(shard.read_bytes())
    place = content.index(b"stts") + 15  # the first frame duration
    content[place] ^= 1
    shard.write_bytes(content)
    with pytest.raises((VerificationError, leconvert.LeconvertError)):
        pack_run(planned)
    assert not (tmp_path / "out").exists()


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


def test_after_a_failed_exchange_a_run_can_be_given_up(
    source_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = snapshot(source_copy)

    def fail(_fs: FileSystem, one: Path, _other: Path) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(one))

    with monkeypatch.context() as patched:
        patched.setattr("leconvert.run.planner.try_renames", lambda _: None)
        patched.setattr(FileSystem, "exchange", fail)
        with pytest.raises(TargetError, match="cannot be renamed"):
            leconvert.convert(source_copy)
    assert main(["clean", "--of", str(source_copy), "--give-up"]) == 0
    work = default_work_dir(source_copy)
    assert {*source_copy.parent.iterdir()} == {source_copy, work}
    assert not any(work.iterdir())
    assert snapshot(source_copy) == before


def test_a_crash_after_the_swap_only_leaves_tidying_up(
    source_copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_arguments: object, **_options: object) -> None:
        raise KeyboardInterrupt

    before = snapshot(source_copy)
    with monkeypatch.context() as patch:
        patch.setattr("leconvert.run.packer.run._finish", die)
        with pytest.raises(KeyboardInterrupt):
            leconvert.convert(source_copy)
    info = json.loads((source_copy / "meta/info.json").read_bytes())
    assert info["codebase_version"] == "v3.0"
    report = leconvert.convert(source_copy)
    assert report.kept_source == tmp_path / "small_old"
    assert snapshot(tmp_path / "small_old") == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small", "small_old"]


def test_a_batch_that_keeps_failing_is_set_aside_and_the_others_are_done(
    planned: OpenedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    from leconvert import media
    from leconvert.support.errors import BatchesFailedError, UnreadableSourceError

    real_join = media.join_clips

    def join(clips: list[Slice], *rest: object, **options: object) -> object:
        if "episode_000003" in clips[0].path:
            raise UnreadableSourceError(f"{clips[0].path} is broken.", path=clips[0].path)
        return real_join(clips, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(media, "join_clips", join)
    summary = run_worker(planned.work_dir.root, leases=LeaseOptions(max_attempts=2))
    assert (summary.batches_done, summary.batches_failed) == (4, 2)
    with pytest.raises(BatchesFailedError) as caught:
        pack_run(planned)
    assert "episode_000003" in caught.value.details[0]


def test_a_work_dir_that_is_removed_under_a_worker_is_a_sentence(
    planned: OpenedRun,
) -> None:
    work_dir = str(planned.work_dir.root)
    command = patched_leconvert(f"shutil.rmtree({work_dir!r})")
    stopped = subprocess.run(
        [*command, "work", "--max-trouble-seconds=2", work_dir],
        capture_output=True,
        text=True,
        check=False,
    )
    assert stopped.returncode in {7, 11}, stopped.stderr
    assert "Traceback" not in stopped.stderr
    assert work_dir in stopped.stderr


def test_a_bug_says_that_it_is_one(small_source: Path, tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "import leconvert.run.packer.run\n"
        "from leconvert.cli import main\n"
        "def broken(*arguments):\n"
        "    raise ZeroDivisionError('surprise')\n"
        "leconvert.run.packer.run._assemble = broken\n"
        "sys.exit(main())"
    )
    arguments = ["convert", "--root", str(small_source), "--output", str(tmp_path / "out")]
    stopped = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )
    assert stopped.returncode == 70
    assert "surprise" in stopped.stderr
    assert "This is a bug" in stopped.stderr
