"""Records, names and identities: what is accepted and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from leconvert.support.errors import BusyError, UsageError, WorkDirError
from leconvert.workdir.locks import planner_lock
from leconvert.workdir.records import (
    Journal,
    WorkDir,
    decode_record,
    default_work_dir,
    encode_record,
    new_run_id,
    read_record,
)
from leconvert.workdir.swap import staging_dir, staging_generations, staging_trees, trees_of_run

PATH = Path("runs/r1/done/000001.json")


def test_a_record_is_a_line_that_begins_with_format_and_version_and_older_ones_are_read() -> None:
    raw = encode_record("done", 1, "r1", {"shards": [{"path": "a\nb"}], "size_bytes": 7})
    assert raw.startswith(b'{"format": "leconvert/done", "version": 1, "run_id": "r1", ')
    assert raw.count(b"\n") == 1
    assert decode_record(raw, "done", version=1, path=PATH, run_id="r1")["size_bytes"] == 7
    raw = encode_record("done", 1, "r1", {"of a later release": True})
    assert decode_record(raw, "done", version=3, path=PATH)["of a later release"] is True


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "The record"),
        (encode_record("done", 1, "r1", {})[:-9], "The record"),
        (b"\xff\xfe\x00", "The record"),
        (b"[]", "is not a done record of leconvert"),
        (b"{}", "is not a done record of leconvert"),
        (encode_record("lease", 1, "r1", {}), "is not a done record of leconvert"),
        (encode_record("done", 2, "r1", {}), "This leconvert knows versions up to"),
        (b'{"format": "leconvert/done", "version": true}', "version True"),
        (b'{"format": "leconvert/done", "version": 0}', "version 0"),
        (b'{"format": "leconvert/done"}', "version None"),
        (encode_record("done", 1, "r2", {}), "belongs to run r2, not to r1"),
    ],
)
def test_what_is_not_our_record_is_refused_with_path_and_step(raw: bytes, said: str) -> None:
    with pytest.raises(WorkDirError, match=said) as caught:
        decode_record(raw, "done", version=1, path=PATH, run_id="r1")
    assert caught.value.path == str(PATH)
    assert caught.value.next_step


def test_the_current_run_is_none_at_first_and_not_ignored_when_damaged(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_record(tmp_path / "none", "done", version=1)
    work = WorkDir(tmp_path / "work")
    assert work.current_run_id() is None
    assert work.list_runs() == []
    work.run("r2").ensure()
    work.run("r1").ensure()
    work.set_current("r2")
    assert WorkDir(tmp_path / "work").current_run_id() == "r2"
    assert work.list_runs() == ["r1", "r2"]
    work.current.write_bytes(b"")
    with pytest.raises(WorkDirError):
        work.current_run_id()


def test_the_work_dir_and_the_new_tree_are_siblings_of_the_real_target(tmp_path: Path) -> None:
    (tmp_path / "disk" / "set").mkdir(parents=True)
    link = tmp_path / "set"
    link.symlink_to(tmp_path / "disk" / "set")
    assert default_work_dir(link) == tmp_path / "disk" / ".set.leconvert-work"
    assert staging_dir(link, "r1", 3) == tmp_path / "disk" / ".set.leconvert-r1.3"


def test_staging_trees_of_other_targets_and_runs_are_not_taken_for_ours(tmp_path: Path) -> None:
    target = tmp_path / "a.b"
    for name in (
        ".a.b.leconvert-r1.2",
        ".a.b.leconvert-r1.10",
        ".a.b.leconvert-r10.3",
        ".axb.leconvert-r1.4",
        ".a.b.leconvert-r1.5.tmp",
        ".a.b.leconvert-work",
    ):
        (tmp_path / name).mkdir()
    run = WorkDir(tmp_path / "work").run("r1")
    run.ensure()
    for generation in range(1, 12):
        run.journal_record(generation).touch()
    (tmp_path / ".a.b.leconvert-r1.7.removed").mkdir()
    journal = Journal(run)
    assert staging_generations(target, journal) == [2, 10]
    found = {(owner, tree) for owner, tree in staging_trees(target) if owner == "r1"}
    assert {("r1", tree) for tree in trees_of_run(target, journal)} == found
    assert {tree.name[len(".a.b.leconvert-") :] for _, tree in found} == {
        "r1.2",
        "r1.10",
        "r1.7.removed",
    }


def test_run_ids_sort_by_time_and_batch_numbers_beyond_six_digits_widen(tmp_path: Path) -> None:
    early = datetime(2025, 1, 31, 23, 0, tzinfo=timezone(timedelta(hours=9)))
    late = datetime(2025, 1, 31, 15, 0, tzinfo=UTC)
    first, second = new_run_id(early, bytes), new_run_id(late, bytes)
    assert first == "20250131T140000-000000"
    assert first < second
    run = WorkDir(tmp_path).run("r1")
    assert run.done(42).name == "000042.json"
    assert run.done(1_234_567).name == "1234567.json"
    assert run.attempt(42, 3, "h-1-ff") == run.root / "attempts" / "000042" / "0003-h-1-ff"


@pytest.mark.parametrize("run_id", ["", ".", "..", "a/b", "-x", "a b", "a\n"])
def test_what_could_leave_the_work_dir_is_no_run_id(tmp_path: Path, run_id: str) -> None:
    with pytest.raises(UsageError):
        WorkDir(tmp_path).run(run_id)


def test_a_holder_that_has_not_said_who_it_is_still_holds(tmp_path: Path) -> None:
    work = WorkDir(tmp_path / "new")
    with planner_lock(work):
        (work.root / "planner.lock.holder").write_bytes(b"")
        with pytest.raises(BusyError, match="another process"), planner_lock(work):
            pass
