"""What may be removed after a run, and what never is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.faults.faulty_files import CrashError
from tests.plans import open_or_plan
from tests.trees import digest_of, snapshot

import leconvert
from leconvert.api import run_worker
from leconvert.cli.main import main
from leconvert.model.values import LayoutOptions
from leconvert.run import upkeep
from leconvert.run.conversion import Conversion, PlanOptions
from leconvert.run.leasing import LeaseStore
from leconvert.run.leasing.state import Outcome
from leconvert.run.packer import pack_run, removal
from leconvert.run.upkeep import CleanReport, clean_kept_source, clean_work_dir
from leconvert.support.errors import BusyError, StorageError, WorkDirError
from leconvert.workdir.fs import remove_tree
from leconvert.workdir.locks import packer_lock, planner_lock, target_lock
from leconvert.workdir.records import (
    Journal,
    PackStep,
    RunPaths,
    WorkDir,
    default_work_dir,
    encode_record,
    removed_folder,
)
from leconvert.workdir.run import OpenedRun, open_run
from leconvert.workdir.swap import TREE_RECORD, removed_old_dir, staging_dir

WorkerOn = Callable[..., LeaseStore]


@pytest.fixture
def restarted(planned: OpenedRun, small_source: Path, tmp_path: Path) -> OpenedRun:
    """A run that took the place of ``planned``."""
    options = LayoutOptions(episodes_per_batch=1)
    return open_or_plan(
        small_source,
        tmp_path / "out",
        planned.work_dir.root,
        Conversion(layout=options, plan=PlanOptions(restart=True)),
    )


def removed(report: CleanReport) -> set[Path]:
    return {row.path for row in report.removed}


def kept(report: CleanReport) -> set[Path]:
    return {row.path for row in report.kept}


def begin_packing(run: OpenedRun) -> Path:
    """Let a packer begin, and die with half a tree; return the tree."""
    journal = Journal(run.paths)
    journal.begin()
    tree = staging_dir(Path(run.manifest.target), run.paths.run_id, journal.generation)
    make_tree(tree, run.paths.run_id)
    return tree


def make_tree(tree: Path, run_id: str) -> None:
    (tree / "data").mkdir(parents=True)
    (tree / TREE_RECORD).write_bytes(encode_record("tree", 1, run_id, {}))


def test_a_run_that_was_given_up_goes_with_its_tree_and_the_new_one_goes_on(
    planned: OpenedRun, restarted: OpenedRun, tmp_path: Path
) -> None:
    tree = begin_packing(planned)
    before, whole = snapshot(restarted.paths.root), snapshot(tmp_path)
    dry = clean_work_dir(planned.work_dir.root, dry_run=True)
    assert snapshot(tmp_path) == whole
    report = clean_work_dir(planned.work_dir.root)
    assert (dry.removed, dry.kept) == (report.removed, report.kept)
    assert removed(report) == {planned.paths.root, tree}
    assert kept(report) == {restarted.paths.root}
    assert not planned.paths.root.exists()
    assert not tree.exists()
    after = snapshot(restarted.paths.root)
    assert {path: after[path] for path in before} == before
    run_worker(planned.work_dir.root)
    pack_run(open_run(planned.work_dir.root))
    assert (tmp_path / "out/meta/info.json").exists()


def test_a_run_under_way_loses_only_attempts_that_lost(
    planned: OpenedRun, worker_on: WorkerOn
) -> None:
    first = worker_on("far").claim(2)
    (first.attempt_dir / "half").write_bytes(b"x")
    second = worker_on("far", 8).claim(3)
    run_worker(planned.work_dir.root, max_batches=2)
    log = worker_on("near").log
    log.write_end(2, 1, Outcome.HANDED_BACK, {"reason": "released"})
    run_worker(planned.work_dir.root, max_batches=2)
    winner = worker_on("near").claim(2)
    assert winner is None, "it is done by now"
    report = clean_work_dir(planned.work_dir.root)
    assert removed(report) == {first.attempt_dir}
    assert not first.attempt_dir.exists()
    assert second.attempt_dir.exists(), "its batch is not done yet"
    second.hand_back("end of the test")
    run_worker(planned.work_dir.root)
    pack_run(planned)


def test_an_attempt_that_won_since_it_was_looked_at_stays(
    planned: OpenedRun, worker_on: WorkerOn, monkeypatch: pytest.MonkeyPatch
) -> None:
    loser = worker_on("far").claim(2)
    worker_on("near").log.write_end(2, 1, Outcome.HANDED_BACK, {"reason": "released"})
    run_worker(planned.work_dir.root)

    def voided_meanwhile(*_: object) -> list[object]:
        planned.paths.done(2).unlink()
        assert loser.publish_done({"shards": []}) == "won"
        return []

    monkeypatch.setattr(upkeep, "_outlines", voided_meanwhile)
    with pytest.raises(BusyError, match="during this command") as caught:
        clean_work_dir(planned.work_dir.root)
    assert caught.value.path == str(loser.attempt_dir)
    assert loser.attempt_dir.exists()


def test_a_tree_stays_where_a_packer_began_since_it_was_looked_at(
    planned: OpenedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock may be lost over NFS; the journal's number is not."""
    older, newer = begin_packing(planned), begin_packing(planned)

    def begun_meanwhile(*_: object) -> list[object]:
        Journal(planned.paths).begin()
        return []

    monkeypatch.setattr(upkeep, "_outlines", begun_meanwhile)
    with pytest.raises(BusyError, match=r"A packer of run .* started during this command"):
        clean_work_dir(planned.work_dir.root)
    assert older.exists()
    assert newer.exists()


def test_an_attempt_whose_worker_may_still_write_stays(
    planned: OpenedRun, worker_on: WorkerOn
) -> None:
    zombie = worker_on("far").claim(0)
    worker_on("near").log.write_end(0, 1, Outcome.HANDED_BACK, {"reason": "x"})
    winner = worker_on("near").claim(0)
    assert zombie.publish_done({"shards": []}) == "won"
    assert removed(clean_work_dir(planned.work_dir.root)) == set()
    assert winner.attempt_dir.exists(), "the newest claim has no end"
    winner.abandon()


def test_a_finished_run_goes_and_its_work_dir_is_empty_and_can_be_planned_in_again(
    planned: OpenedRun, small_source: Path, tmp_path: Path
) -> None:
    run_worker(planned.work_dir.root)
    pack_run(planned)
    digest, root = digest_of(tmp_path / "out"), planned.work_dir.root
    planned.work_dir.outlines_dir.mkdir()
    clean_work_dir(root, dry_run=True)
    assert planned.work_dir.outlines_dir.is_dir()
    assert removed(clean_work_dir(root)) == {planned.paths.root}
    assert list(root.iterdir()) == []
    assert digest_of(tmp_path / "out") == digest
    assert clean_work_dir(root) == CleanReport(dry_run=False, removed=(), kept=())
    again = open_or_plan(small_source, tmp_path / "again", root)
    assert planned.work_dir.current_run_id() == again.paths.run_id


def test_what_is_not_ours_stays_in_an_emptied_work_dir(planned: OpenedRun) -> None:
    root = planned.work_dir.root
    (root / "notes.txt").write_text("mine")
    (planned.work_dir.runs_dir / ".mine").touch()
    clean_work_dir(root, give_up=True)
    names = {path.relative_to(root).as_posix() for path in root.rglob("*")}
    # Where the folder of the runs stays, this is still a work dir, and its lock stays with it.
    locks = {"planner.lock", "planner.lock.holder"}
    assert names == {"notes.txt", "runs", "runs/.mine", *locks}


def test_the_lock_of_somebody_who_plans_meanwhile_stays(
    planned: OpenedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = planned.work_dir
    with ExitStack() as planner:
        remove = upkeep.remove_tree

        def plan_after(path: Path, **options: Path) -> bool:
            done = remove(path, **options)
            planner.enter_context(planner_lock(work))
            return done

        monkeypatch.setattr(upkeep, "remove_tree", plan_after)
        clean_work_dir(work.root, give_up=True)
        assert work.planner_lock.exists()
        assert work.runs_dir.is_dir()
        with pytest.raises(BusyError), planner_lock(work):
            pass


def test_a_default_work_dir_goes_as_a_whole(source_copy: Path) -> None:
    leconvert.convert(source_copy, keep_work_dir=True)
    root = default_work_dir(source_copy)
    assert removed(clean_work_dir(root, target=source_copy)) == {root}
    assert sorted(path.name for path in source_copy.parent.iterdir()) == ["small", "small_old"]


def test_a_work_dir_in_which_somebody_planned_meanwhile_stays(
    source_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over NFS a frozen host loses its lock."""
    leconvert.convert(source_copy, keep_work_dir=True)
    work = WorkDir(default_work_dir(source_copy))

    def frozen_meanwhile(*_: object) -> list[object]:
        work.run("r2").ensure()
        work.set_current("r2")
        return []

    monkeypatch.setattr(upkeep, "_outlines", frozen_meanwhile)
    with pytest.raises(BusyError, match="planned"):
        clean_work_dir(work.root)
    assert work.current_run_id() == "r2"


def test_a_finished_run_whose_result_is_not_known_to_be_there_stays(
    planned: OpenedRun, tmp_path: Path
) -> None:
    run_worker(planned.work_dir.root)
    pack_run(planned)
    (tmp_path / "out").rename(tmp_path / "elsewhere")
    report = clean_work_dir(planned.work_dir.root)
    assert report.removed == ()
    assert "is not a v3.0 dataset" in report.kept[0].reason
    (tmp_path / "elsewhere").rename(tmp_path / "out")
    planned.paths.manifest.write_text("{")
    (row,) = clean_work_dir(planned.work_dir.root).kept
    assert row.path == planned.paths.root
    assert "manifest.json cannot be read" in row.reason


def test_a_run_that_was_interrupted_in_the_middle_of_its_swap_stays_with_its_trees(
    planned: OpenedRun, restarted: OpenedRun, small_source: Path
) -> None:
    target = Path(planned.manifest.target)
    journal = Journal(planned.paths)
    journal.begin()
    # The exchange happened, and the old tree bears the new tree's name.
    tree = staging_dir(target, planned.paths.run_id, journal.generation)
    shutil.copytree(small_source, tree)
    journal.write(PackStep.SWAPPING, swap={"target": str(target), "old": f"{target}_old"})
    before = snapshot(tree)
    report = clean_work_dir(planned.work_dir.root, give_up=True)
    assert planned.paths.root in kept(report)
    assert snapshot(tree) == before
    assert planned.paths.root.exists()


@pytest.mark.parametrize("version", ["v2.1", "v3.0", None])
def test_a_tree_that_holds_a_source_dataset_stays_whatever_the_records_say(
    planned: OpenedRun,
    restarted: OpenedRun,
    small_source: Path,
    edit_json: Callable[..., None],
    version: str | None,
) -> None:
    tree = staging_dir(Path(planned.manifest.target), planned.paths.run_id, 1)
    shutil.copytree(small_source, tree)
    edit_json(tree / "meta/info.json", codebase_version=version)
    before = snapshot(tree)
    report = clean_work_dir(planned.work_dir.root)
    assert {tree, planned.paths.root} <= kept(report)
    assert snapshot(tree) == before


def test_a_tree_of_an_unknown_run_is_named_and_stays(planned: OpenedRun, tmp_path: Path) -> None:
    strange = tmp_path / ".out.leconvert-20200101T000000-abcdef.1"
    strange.mkdir()
    report = clean_work_dir(planned.work_dir.root, target=tmp_path / "out")
    assert strange in kept(report)
    alone = clean_work_dir(tmp_path / ".out.leconvert-work", target=tmp_path / "out")
    assert kept(alone) == {strange}
    assert strange.exists()


@pytest.mark.parametrize("give_up", [False, True])
def test_what_others_put_beside_the_runs_is_none_and_stays(
    planned: OpenedRun, capsys: pytest.CaptureFixture[str], give_up: bool
) -> None:
    """A folder of one's own may have been named as work dir, with runs of TensorBoard in it."""
    runs = planned.work_dir.runs_dir
    (runs / "README").write_text("mine")
    (runs / "Nov25_12-00-00_host/logs").mkdir(parents=True)
    (runs / "Nov25_12-00-00_host/logs/events").write_text("mine")
    given = ["--give-up"] if give_up else []
    assert main(["clean", str(planned.work_dir.root), "--dry-run", *given]) == 0
    assert main(["clean", str(planned.work_dir.root), *given]) == 0
    assert "Nov25" not in capsys.readouterr().out
    assert planned.paths.root.exists() is not give_up
    assert (runs / "README").read_text() == "mine"
    assert (runs / "Nov25_12-00-00_host/logs/events").read_text() == "mine"


@pytest.mark.parametrize("holds_source", [False, True])
def test_what_a_packer_replaced_goes_unless_it_holds_a_source_dataset(
    planned: OpenedRun, small_source: Path, holds_source: bool
) -> None:
    older, newer = begin_packing(planned), begin_packing(planned)
    assert older != newer
    if holds_source:
        shutil.rmtree(older)
        shutil.copytree(small_source, older)
    assert removed(clean_work_dir(planned.work_dir.root)) == (set() if holds_source else {older})
    assert older.exists() is holds_source
    assert newer.exists()


def test_a_tree_whose_removal_was_interrupted_goes_whoever_began_it(planned: OpenedRun) -> None:
    target = Path(planned.manifest.target)
    own, strange = (
        removed_folder(staging_dir(target, run_id, 1))
        for run_id in (planned.paths.run_id, "20200101T000000-abcdef")
    )
    newest = begin_packing(planned)
    make_tree(own, planned.paths.run_id)
    make_tree(strange, "20200101T000000-abcdef")
    assert removed(clean_work_dir(planned.work_dir.root)) == {own}
    assert removed(clean_work_dir(planned.work_dir.root, target=target)) == {strange}
    assert [own.exists(), strange.exists(), newest.exists()] == [False, False, True]


def test_no_lock_of_a_run_is_held_while_its_folder_goes(
    planned: OpenedRun, restarted: OpenedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over NFS a file that is open stays, and keeps its folder."""
    freed = []

    def remove(path: Path, *, inside: Path) -> bool:
        with packer_lock(RunPaths(path)):
            freed.append(path)
        return remove_tree(path, inside=inside)

    monkeypatch.setattr(upkeep, "remove_tree", remove)
    clean_work_dir(planned.work_dir.root)
    assert freed == [planned.paths.root]
    assert not planned.paths.root.exists()


def test_nothing_is_removed_while_somebody_plans_or_packs(
    planned: OpenedRun, restarted: OpenedRun
) -> None:
    with planner_lock(planned.work_dir), pytest.raises(BusyError):
        clean_work_dir(planned.work_dir.root)
    with packer_lock(planned.paths):
        report = clean_work_dir(planned.work_dir.root)
    assert report.removed == ()
    assert planned.paths.root.exists()


def test_giving_up_needs_that_nobody_holds_a_batch(
    planned: OpenedRun, worker_on: WorkerOn, tmp_path: Path
) -> None:
    lease = worker_on("far").claim(1)
    tree = begin_packing(planned)
    with pytest.raises(BusyError) as caught:
        clean_work_dir(planned.work_dir.root, give_up=True)
    assert "process 7 on far" in caught.value.details[0]
    lease.hand_back("done with it")
    report = clean_work_dir(planned.work_dir.root, give_up=True)
    assert removed(report) == {tree, planned.paths.root}
    assert planned.work_dir.current_run_id() is None
    assert not tree.exists()


def outlines_of(run: OpenedRun) -> list[Path]:
    """Make two outlines of sources on the Hub, of which the run's manifest names neither."""
    folders = [run.work_dir.outlines_dir / name for name in ("0a", "1b")]
    for folder in folders:
        (folder / "source/meta").mkdir(parents=True)
    return folders


def test_outlines_that_no_run_needs_go_and_those_of_a_run_stay(planned: OpenedRun) -> None:
    first, second = outlines_of(planned)
    manifest = json.loads(planned.paths.manifest.read_bytes())
    manifest["sources"][0]["source"] = str(second / "source")
    planned.paths.manifest.write_text(json.dumps(manifest))
    dry = clean_work_dir(planned.work_dir.root, dry_run=True)
    assert removed(dry) == {first}
    report = clean_work_dir(planned.work_dir.root)
    assert (removed(report), report.removed[0].reason) == ({first}, "no run needs it")
    assert [first.exists(), second.exists()] == [False, True]
    gone = clean_work_dir(planned.work_dir.root, give_up=True)
    assert removed(gone) == {planned.paths.root, second}
    assert not second.exists()


def test_outlines_stay_while_it_cannot_be_told_which_one_a_run_needs(planned: OpenedRun) -> None:
    outlines = outlines_of(planned)
    planned.paths.manifest.write_text('{"format": "leconvert/manifest", "version": 99}')
    assert clean_work_dir(planned.work_dir.root).removed == ()
    assert all(outline.exists() for outline in outlines)


def test_a_run_that_was_never_planned_to_the_end_needs_no_outline(
    planned: OpenedRun, restarted: OpenedRun
) -> None:
    outlines = outlines_of(planned)
    restarted.paths.manifest.unlink()
    report = clean_work_dir(planned.work_dir.root)
    assert removed(report) == {planned.paths.root, *outlines}
    assert kept(report) == {restarted.paths.root}


def test_a_run_whose_target_lies_in_no_folder_any_more_is_given_up_without_trees(
    planned: OpenedRun, restarted: OpenedRun
) -> None:
    manifest = json.loads(planned.paths.manifest.read_bytes())
    manifest["target"] = str(planned.work_dir.root / "no such folder/out")
    planned.paths.manifest.write_text(json.dumps(manifest))
    report = clean_work_dir(planned.work_dir.root)
    assert removed(report) == {planned.paths.root}


def test_a_done_batch_that_cannot_be_judged_keeps_its_attempts(
    planned: OpenedRun, worker_on: WorkerOn
) -> None:
    """Who may write where is for the packer to say once the record is whole."""
    lost = worker_on("far").claim(0)
    worker_on("near").log.write_end(0, 1, Outcome.HANDED_BACK, {"reason": "x"})
    run_worker(planned.work_dir.root)
    done = planned.paths.done(0)
    record = json.loads(done.read_bytes())
    for change in ({"attempt": "attempts/000000/0099-gone"}, {"attempt": None}):
        done.write_text(json.dumps({**record, **change}))
        assert removed(clean_work_dir(planned.work_dir.root, dry_run=True)) == set()
    done.write_text("{")
    assert removed(clean_work_dir(planned.work_dir.root, dry_run=True)) == set()
    done.write_text(json.dumps(record))
    assert removed(clean_work_dir(planned.work_dir.root)) == {lost.attempt_dir}


def test_a_batch_that_was_handed_back_or_whose_holder_died_holds_no_run(
    planned: OpenedRun, worker_on: WorkerOn, holder_here: subprocess.Popen[str]
) -> None:
    lease = worker_on("far").claim(1)
    lease.hand_back("enough")
    with pytest.raises(BusyError) as caught:
        clean_work_dir(planned.work_dir.root, give_up=True)
    assert len(caught.value.details) == 1
    assert caught.value.details[0].startswith(f"batch 0: process {holder_here.pid} on ")
    holder_here.kill()
    holder_here.wait()
    assert planned.paths.root in removed(clean_work_dir(planned.work_dir.root, give_up=True))


def test_a_work_dir_that_cannot_be_removed_is_told(
    source_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leconvert.convert(source_copy, keep_work_dir=True)
    root = default_work_dir(source_copy)
    monkeypatch.setattr(upkeep, "remove_leftovers", lambda _: False)
    with pytest.raises(StorageError, match="could not be removed"):
        clean_work_dir(root)


def test_what_is_no_work_dir_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"x")
    with pytest.raises(WorkDirError):
        clean_work_dir(tmp_path)
    assert (tmp_path / "precious").exists()


def test_the_kept_source_goes_only_with_proof(converted: Path) -> None:
    old = converted.with_name("small_old")
    dry = clean_kept_source(converted, dry_run=True)
    assert removed(dry) == {old}
    assert old.exists()
    assert removed(clean_kept_source(converted)) == {old}
    assert not old.exists()
    assert "does not exist" in clean_kept_source(converted).kept[0].reason


def test_the_kept_source_stays_while_another_process_may_put_it_back(converted: Path) -> None:
    old = converted.with_name("small_old")
    with target_lock(converted, "-"):
        report = clean_kept_source(converted)
    assert [row.path for row in report.kept] == [old]
    assert "another process" in report.kept[0].reason
    assert old.is_dir()
    assert [row.path for row in clean_kept_source(converted).removed] == [old]
    assert not old.exists()


@pytest.mark.parametrize("half", [False, True], ids=["before it began", "half way"])
def test_what_an_interrupted_removal_left_goes_only_where_it_can_be_compared(
    converted: Path, monkeypatch: pytest.MonkeyPatch, half: bool
) -> None:
    old = converted.with_name("small_old")

    def die(tree: Path) -> None:
        if half:
            next(tree.glob("videos/**/*.mp4")).unlink()
        raise CrashError

    with monkeypatch.context() as patch:
        patch.setattr(removal, "remove_tree", die)
        with pytest.raises(CrashError):
            clean_kept_source(converted)
    assert not old.exists(), "never half of it under its own name"
    doomed = removed_old_dir(converted)
    before = snapshot(doomed)
    dry, wet = clean_kept_source(converted, dry_run=True), clean_kept_source(converted)
    if half:
        (row,) = wet.kept
        assert (row.path, removed(dry), removed(wet)) == (doomed, set(), set())
        assert f"the remaining part {doomed}" in row.reason
        assert snapshot(doomed) == before
        shutil.rmtree(doomed)
    else:
        assert removed(dry) == removed(wet) == {doomed}
    assert sorted(path.name for path in converted.parent.iterdir()) == ["small"]


@pytest.mark.parametrize("whose", ["its", "the result's"])
def test_a_kept_source_is_not_removed_if_a_file_is_overwritten_while_it_is_compared(
    converted: Path, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    """Also where the file gets its times back, as by `cp -p`."""
    old = converted.with_name("small_old")
    tree = old if whose == "its" else converted
    clip = next(tree.rglob("*.mp4"))
    real = upkeep.verify_pair

    def verify(*arguments: Any, **options: Any) -> Any:
        report = real(*arguments, **options)
        times, content = clip.stat(), bytearray(clip.read_bytes())
        content[content.index(b"mdat") + 5] ^= 1
        clip.write_bytes(content)
        os.utime(clip, ns=(times.st_atime_ns, times.st_mtime_ns))
        return report

    monkeypatch.setattr(upkeep, "verify_pair", verify)
    (row,) = clean_kept_source(converted).kept
    name = clip.relative_to(tree)
    assert row.reason == f"{whose} {name} was changed during the comparison"
    assert row.path == old
    assert old.is_dir()
    assert not removed_old_dir(converted).exists()


def other_task(old: Path, _: Path) -> None:
    lines = (old / "meta/episodes.jsonl").read_text().splitlines()
    first = json.loads(lines[0]) | {"tasks": ["another task"]}
    (old / "meta/episodes.jsonl").write_text("\n".join([json.dumps(first), *lines[1:]]))


def other_packet(_: Path, result: Path) -> None:
    video = next(result.glob("videos/**/*.mp4"))
    content = bytearray(video.read_bytes())
    content[-1] ^= 1
    video.write_bytes(content)


def other_version(old: Path, _: Path) -> None:
    info = json.loads((old / "meta/info.json").read_bytes())
    (old / "meta/info.json").write_text(json.dumps({**info, "codebase_version": "v2.0"}))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (other_task, ""),
        (lambda old, _: (old / "README.md").write_text("more"), ""),
        (lambda old, _: (old / "videos/chunk-000/stray.mp4").write_bytes(b"of no episode"), ""),
        (other_packet, ""),
        (other_version, "the two are v2.0 and v3.0"),
        (lambda old, _: (old / "meta/tasks.jsonl").unlink(), "small_old/meta/tasks.jsonl"),
    ],
)
def test_a_kept_source_that_is_not_all_in_the_result_stays(
    converted: Path, damage: Callable[[Path, Path], object], said: str
) -> None:
    old = converted.with_name("small_old")
    damage(old, converted)
    before = snapshot(old)
    report = clean_kept_source(converted)
    assert report.removed == ()
    (row,) = report.kept
    assert row.path == old
    assert said in row.reason
    assert snapshot(old) == before


def test_a_kept_source_stays_while_what_a_removal_left_is_in_its_way(converted: Path) -> None:
    old, doomed = converted.with_name("small_old"), removed_old_dir(converted)
    doomed.mkdir()
    report = clean_kept_source(converted)
    assert report.removed == ()
    assert [row.path for row in report.kept] == [doomed, old]
    assert f"the remaining part {doomed}" in report.kept[0].reason
    assert report.kept[1].reason.startswith(str(doomed))
    assert "move it elsewhere" in report.kept[1].reason
    doomed.rename(converted.with_name("elsewhere"))
    assert removed(clean_kept_source(converted)) == {old}
    assert not old.exists()
