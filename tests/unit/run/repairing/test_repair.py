"""`leconvert.run.repairing`: what is broken is made right, and nothing else is changed."""

from __future__ import annotations

import errno
import json
import os
import shlex
import shutil
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from fractions import Fraction
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.dataset_damage import DATA, EPISODES, TASKS, TOP, Damage, edit_info, edit_stat, rewrite
from tests.dataset_damage import set_cells as changed_cells
from tests.drift import drift_in_place, drifted, other_timescale, with_sound
from tests.mp4_boxes import Box, changed, stbl_of
from tests.trees import snapshot

import leconvert
from leconvert import media
from leconvert.dataset.check import check_dataset
from leconvert.dataset.check import meta as check_meta
from leconvert.dataset.formats import v3
from leconvert.model.repairs import RepairOptions
from leconvert.run.proof import verify_pair
from leconvert.run.repairing import (
    RepairReport,
    apply,
    choose_repairs,
    compare_trees,
    plan_anew,
    read_changes,
    repair_dataset,
    repairs_of,
)
from leconvert.run.repairing.plan import DataRepair
from leconvert.run.upkeep import undo_conversion
from leconvert.support.errors import (
    BusyError,
    InterruptedRunError,
    LeconvertError,
    SourceChangedError,
    SourceError,
    StorageError,
    TargetError,
    UsageError,
    VerificationError,
)
from leconvert.tables.join import frame_times
from leconvert.workdir.locks import target_lock

WRIST = "videos/observation.images.wrist/chunk-000/file-000.mp4"
LENGTHS = [12, 7, 1, 9, 15]


@pytest.fixture
def broken(small_result: Path, tmp_path: Path) -> Path:
    """A copy that a test may break."""
    return Path(shutil.copytree(small_result, tmp_path / "dätä set 'ö'"))


def edit_stats(root: Path) -> None:
    for name, more in (("mean", 10), ("max", 30)):
        edit_stat("observation.state", name, lambda v, more=more: [v[0] + more, *v[1:]])(root)


def set_cells(path: str, column: str, **cells: object) -> Damage:
    """Set cells of a column: ``r3=7`` sets row 3."""
    return rewrite(path, changed_cells(column, **cells))


def reorder(path: str, *rows: int) -> Damage:
    """Write the rows of a table in another order."""
    return lambda root: pq.write_table(pq.read_table(root / path).take(list(rows)), root / path)


def leave_a_gap(root: Path) -> None:
    """Call the second task 5, in the table and in the rows."""
    set_cells(TASKS, "task_index", r1=5)(root)
    tasks = pq.read_table(root / DATA).column("task_index").to_pylist()
    cells = {f"r{row}": 5 for row, task in enumerate(tasks) if task == 1}
    set_cells(DATA, "task_index", **cells)(root)


def camera(name: str) -> str:
    return f"videos/observation.images.top/{name}"


DAMAGES: dict[str, tuple[Damage, set[str]]] = {
    "drifted times": (drift_in_place, {"frame-times"}),
    "an end that is off": (set_cells(EPISODES, camera("to_timestamp"), r1=9.0), {"video-end"}),
    "begins that are off by a frame": (
        set_cells(EPISODES, camera("from_timestamp"), r1=11 / 30, r3=19 / 30),
        {"shared-frames"},
    ),
    "stale-total": (edit_info(total_episodes=7, total_frames=1, total_tasks=9), {"stale-total"}),
    "a range": (set_cells(EPISODES, "dataset_from_index", r2=3), {"episode-range"}),
    "a location": (
        set_cells(EPISODES, "meta/episodes/file_index", r0=4), {"episodes-location"}
    ),
    "index": (set_cells(DATA, "index", r3=99), {"global-index"}),
    "episode_index": (set_cells(DATA, "episode_index", r3=4), {"episode-index"}),
    "frame_index": (set_cells(DATA, "frame_index", r3=4), {"frame-index"}),
    "numbers of episodes": (
        set_cells(EPISODES, "episode_index", r1=2, r2=1, r4=9), {"episode-order"}
    ),
    "tasks in another order": (reorder(TASKS, 1, 0), {"tasks-order"}),
    "tasks with a gap": (leave_a_gap, {"tasks-order", "task-index"}),
    "a task that is not listed": (set_cells(EPISODES, "tasks", r1=[]), {"task-mismatch"}),
    "statistics": (edit_stats, {"stats-aggregate"}),
    "no statistics": (lambda root: (root / "meta/stats.json").unlink(), {"stats-missing"}),
}  # fmt: skip


def tables_of(root: Path) -> list[pa.Table]:
    return [pq.read_table(root / path) for path in (DATA, EPISODES, "meta/tasks.parquet")]


def times_of(root: Path) -> list[list[float]]:
    indices = [media.read_clip_index(root / path) for path in (TOP, WRIST)]
    return [(np.sort(i.presentation_times) / i.timescale).tolist() for i in indices]


def codes(report: RepairReport) -> set[str]:
    return {finding.code for finding in report.plan.mended}


def compared(source: Path, result: Path) -> list[str]:
    """Compare a result with its source by the changes on its record."""
    changes = read_changes(result)
    assert changes is not None
    return compare_trees(source, result, changes)


@contextmanager
def nothing_done(root: Path) -> Iterator[None]:
    """Leave a dataset, and the folder around it, as they are."""
    before = snapshot(root)
    yield
    assert snapshot(root) == before
    assert [path.name for path in root.parent.iterdir()] == [root.name]


@pytest.mark.parametrize("name", DAMAGES)
def test_what_broke_is_mended(small_result: Path, broken: Path, tmp_path: Path, name: str) -> None:
    damage, expected = DAMAGES[name]
    damage(broken)
    before = snapshot(broken)
    report = repair_dataset(broken, output=tmp_path / "out")
    assert codes(report) == expected
    assert report.plan.as_record()["orders_tasks"] is ("tasks-order" in expected)
    assert report.plan.left == ()
    assert check_dataset(tmp_path / "out").findings == ()
    assert snapshot(broken) == before
    assert [t.schema.metadata for t in tables_of(tmp_path / "out")] == [
        t.schema.metadata for t in tables_of(broken)
    ]
    assert tables_of(tmp_path / "out") == tables_of(small_result)
    assert times_of(tmp_path / "out") == times_of(small_result)
    (info, stats), (wanted, wanted_stats) = (
        [json.loads((root / f"meta/{name}.json").read_bytes()) for name in ("info", "stats")]
        for root in (tmp_path / "out", small_result)
    )
    assert info == wanted
    assert {key: [*each] for key, each in stats.items()} == {
        key: [*each] for key, each in wanted_stats.items()
    }
    for key, each in stats.items():
        for statistic in each:
            np.testing.assert_allclose(each[statistic], wanted_stats[key][statistic])
    assert (tmp_path / "out/README.md").read_bytes() == (small_result / "README.md").read_bytes()


def split_episodes(root: Path, first: list[int], second: list[int]) -> None:
    """Put rows of ``meta/episodes`` into two files; each says in which file it is."""
    table = pq.read_table(root / EPISODES)
    at = table.schema.get_field_index("meta/episodes/file_index")
    for number, rows in enumerate((first, second)):
        part = table.take(rows).set_column(
            at, table.schema.field(at), pa.array([number] * len(rows), pa.int64())
        )
        pq.write_table(part, root / EPISODES.replace("file-000", f"file-{number:03}"))


def test_episodes_are_sorted_over_all_files(
    small_result: Path, broken: Path, tmp_path: Path
) -> None:
    split_episodes(broken, [3, 2, 0], [1, 4])
    reorder(TASKS, 1, 0)(broken)
    report = repair_dataset(broken, output=tmp_path / "out")
    assert {"episode-order", "tasks-order"} <= codes(report)
    assert report.plan.left == ()
    assert check_dataset(tmp_path / "out").findings == ()
    split_episodes(wanted := Path(shutil.copytree(small_result, tmp_path / "w")), [0, 1, 2], [3, 4])
    for path in (EPISODES, EPISODES.replace("0.parquet", "1.parquet"), DATA, TASKS):
        assert pq.read_table(tmp_path / "out" / path) == pq.read_table(wanted / path)


@pytest.mark.parametrize(
    ("damages", "code"),
    [
        # The rows that an episode says are its, and its number, are both of another one.
        (
            [
                set_cells(EPISODES, "episode_index", r1=3),
                set_cells(EPISODES, "dataset_from_index", r1=20, r2=12),
            ],
            "episode-order",
        ),
        # No row has what is listed, by neither reading.
        ([reorder(TASKS, 1, 0), set_cells(EPISODES, "tasks", r1=["Dance."])], "tasks-order"),
        ([reorder(TASKS, 1, 0), set_cells(TASKS, "task", r1="Put it down.")], "tasks-order"),
        # Somebody may have known better what the episode shows.
        ([set_cells(EPISODES, "tasks", r1=["Dance."])], "task-mismatch"),
        ([set_cells(EPISODES, "tasks", r1=["Pick up the cube.", "Put it down."])], "task-mismatch"),
    ],
)
def test_what_nobody_can_know_stays(broken: Path, damages: list[Damage], code: str) -> None:
    for damage in damages:
        damage(broken)
    plan = repair_dataset(broken, dry_run=True).plan
    assert plan.episode_rows is None
    assert plan.task_rows is None
    assert not {"tasks", "episode_index"} & plan.episodes.keys()
    assert code in {finding.code for finding in plan.left}
    assert code not in {finding.code for finding in plan.mended}


@pytest.mark.parametrize("damage", [reorder(EPISODES, 3, 2, 0, 1, 4), reorder(TASKS, 1, 0)])
def test_a_table_that_cannot_be_written_is_not_called_one_that_cannot_be_read(
    broken: Path, monkeypatch: pytest.MonkeyPatch, damage: Damage
) -> None:
    damage(broken)
    full = Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    monkeypatch.setattr(pq.ParquetWriter, "write_table", full)
    with nothing_done(broken), pytest.raises(StorageError, match="there is no space") as caught:
        repair_dataset(broken)
    assert str(caught.value.next_step).startswith("Free disk space there")


def test_of_several_episodes_those_are_mended_that_lack_a_task(broken: Path) -> None:
    set_cells(EPISODES, "tasks", r1=[], r2=["Dance."])(broken)
    report = repair_dataset(broken)
    (left,) = report.plan.left
    assert left.message.startswith("1 episode, first episode 2: ")
    (found,) = check_dataset(broken).findings
    assert found.message == left.message
    assert not repair_dataset(broken).plan


@pytest.mark.parametrize(
    ("damage", "spoiled", "said"),
    [
        (reorder(EPISODES, 3, 2, 0, 1, 4), reorder(EPISODES, 0, 1, 2, 4, 3), "other values of"),
        (reorder(TASKS, 1, 0), reorder(TASKS, 1, 0), "other values of"),
        (reorder(TASKS, 1, 0), set_cells(TASKS, "task_index", r0=7), "not numbered by row"),
        (leave_a_gap, set_cells(DATA, "task_index", r0=1), "rows of another task"),
    ],
)
def test_an_order_is_put_back_and_another_one_is_noticed(
    broken: Path, damage: Damage, spoiled: Damage, said: str
) -> None:
    damage(broken)
    before = snapshot(broken)
    repair_dataset(broken)
    old, other = broken.with_name(f"{broken.name}_old"), broken.with_name("other")
    assert compared(old, broken) == []
    spoiled(Path(shutil.copytree(broken, other)))
    assert any(said in each for each in compared(old, other))
    assert not undo_conversion(broken).was_undone
    assert snapshot(broken) == before


def test_a_file_that_cannot_hold_the_times_is_joined_again(
    small_result: Path, broken: Path, tmp_path: Path
) -> None:
    (broken / TOP).write_bytes(other_timescale((broken / TOP).read_bytes()))
    report = repair_dataset(broken, output=tmp_path / "out")
    assert [(video.path, video.how) for video in report.plan.videos] == [(TOP, "join")]
    assert check_dataset(tmp_path / "out").findings == ()
    assert times_of(tmp_path / "out") == times_of(small_result)
    before, after = (media.read_clip_index(root / TOP) for root in (broken, tmp_path / "out"))
    assert media.samples_sha256(after) == media.samples_sha256(before)


def test_timestamps_of_rows_are_set_where_that_is_asked_for(
    small_result: Path, broken: Path, tmp_path: Path
) -> None:
    set_cells(DATA, "timestamp", r1=7.0)(broken)
    untouched = repair_dataset(broken, output=tmp_path / "out")
    assert not untouched.plan
    assert [finding.code for finding in untouched.plan.errors_left] == ["timestamps"]
    assert not (tmp_path / "out").exists()
    report = repair_dataset(broken, output=tmp_path / "out", retime=True)
    assert codes(report) == {"timestamps"}
    assert tables_of(tmp_path / "out") == tables_of(small_result)


@pytest.mark.parametrize("fps", [Fraction(2997, 100), Fraction(50, 3)])
def test_timestamps_are_those_of_a_conversion_to_the_last_bit(fps: Fraction) -> None:
    lengths = np.array([3_000, 5])
    repair = DataRepair(DATA, ("timestamp",), np.arange(2), np.cumsum(lengths) - lengths, lengths)
    times = [frame_times(length, fps, pa.float64()) for length in lengths.tolist()]
    assert (
        repair.values(fps, Path(DATA))["timestamp"].tolist() == pa.concat_arrays(times).to_pylist()
    )


def test_a_data_file_that_is_written_again_has_a_row_group_an_episode(
    small_result: Path, broken: Path, tmp_path: Path
) -> None:
    table = pq.read_table(broken / DATA)
    pq.write_table(table, broken / DATA)
    set_cells(DATA, "index", r0=5)(broken)
    assert codes(repair_dataset(broken, output=tmp_path / "out")) == {"global-index", "row-groups"}
    with pq.ParquetFile(tmp_path / "out" / DATA) as file:
        sizes = [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)]
    assert sizes == LENGTHS
    assert tables_of(tmp_path / "out") == tables_of(small_result)


def test_in_place_the_dataset_is_kept_and_undo_puts_it_back(broken: Path) -> None:
    drift_in_place(broken)
    before, content = snapshot(broken), (broken / TOP).read_bytes()
    old, aside = (broken.with_name(broken.name + end) for end in ("_old", "_repaired"))
    with nothing_done(broken):
        assert codes(repair_dataset(broken, dry_run=True)) == {"frame-times"}
    with (broken / TOP).open("rb") as reader:
        report = repair_dataset(broken)
        assert reader.read() == content  # who has it open goes on with what it opened
    assert report.kept == old
    assert snapshot(old) == before
    assert check_dataset(broken).findings == ()
    inodes = [
        {path.stat().st_ino for path in root.rglob("*") if path.is_file()} for root in (broken, old)
    ]
    assert not inodes[0] & inodes[1]
    repaired = snapshot(broken)
    assert sorted(path.name for path in broken.parent.iterdir()) == [broken.name, old.name]
    undo = undo_conversion(broken, dry_run=True)
    assert (undo.result, undo.rows, undo.camera_frames) == (aside, 44, 88)
    assert snapshot(broken) == repaired
    assert not undo_conversion(broken).was_undone
    assert snapshot(broken) == before
    assert snapshot(aside) == repaired
    assert not old.exists()
    assert undo_conversion(broken).was_undone


def test_a_dataset_that_was_repaired_before_can_be_repaired_and_undone(broken: Path) -> None:
    drift_in_place(broken)
    repair_dataset(broken)
    shutil.rmtree(f"{broken}_old")
    edit_info(total_frames=1)(broken)
    before = snapshot(broken)
    repair_dataset(broken)
    assert repairs_of(broken) == 2
    assert repairs_of(Path(f"{broken}_old")) == 1
    undo_conversion(broken)
    assert snapshot(broken) == before


def test_samples_lie_so_that_blocks_can_be_shared_and_times_are_proven(
    broken: Path, tmp_path: Path
) -> None:
    drift_in_place(broken)
    out = tmp_path / "out"
    report = repair_dataset(broken, output=out)
    assert [video.path for video in report.plan.videos] == [TOP, WRIST]
    for path in (TOP, WRIST):
        before, after = (media.read_clip_index(root / path) for root in (broken, out))
        assert not ((after.offsets - before.offsets) % 4096).any()
        assert media.samples_sha256(after) == media.samples_sha256(before)
    (out / TOP).write_bytes((broken / TOP).read_bytes())
    assert compared(broken, out) == [f"{TOP} has frames that are not at their exact time."]


@pytest.mark.parametrize("damage", [drifted, other_timescale])
def test_sound_comes_along(broken: Path, tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    (broken / TOP).write_bytes(damage(with_sound(broken / TOP)))
    before = media.other_tracks_sha256(broken / TOP)
    report = repair_dataset(broken, output=tmp_path / "out")
    assert [(video.path, video.how) for video in report.plan.videos] == [(TOP, "remux")]
    assert report.plan.left == ()
    assert report.plan.remarks == ()
    assert len(before) == 1
    assert media.other_tracks_sha256(tmp_path / "out" / TOP) == before
    assert compared(broken, tmp_path / "out") == []
    (tmp_path / "out" / TOP).write_bytes(with_sound(tmp_path / "out" / TOP, volume=0.1))
    assert any("is no video" in each for each in compared(broken, tmp_path / "out"))


def test_a_track_that_cannot_come_along_is_named(broken: Path) -> None:
    content = with_sound(broken / TOP).replace(b"soun", b"meta").replace(b"mp4a", b"mett")
    (broken / TOP).write_bytes(drifted(content))
    report = repair_dataset(broken)
    assert report.plan.remarks == (
        f"1 further track of {TOP} cannot be copied. The kept dataset still has all tracks.",
    )
    assert check_dataset(broken).findings == ()


@pytest.mark.parametrize("has_sound", [False, True])
def test_a_file_that_begins_with_no_keyframe_is_mended_unless_it_has_sound(
    broken: Path, tmp_path: Path, has_sound: bool
) -> None:
    def no_keyframe(top: Box) -> None:
        table = stbl_of(top).find("stss")
        numbers = table.payload[12:]
        table.payload = struct.pack(">II", 0, len(numbers) // 4) + numbers

    drift_in_place(broken)
    content = with_sound(broken / TOP) if has_sound else (broken / TOP).read_bytes()
    (broken / TOP).write_bytes(changed(drifted(content), no_keyframe))
    report = repair_dataset(broken, output=tmp_path / "out")
    assert [video.path for video in report.plan.videos] == [TOP, WRIST][has_sound:]
    assert {finding.path for finding in report.plan.errors_left} == ({TOP} if has_sound else set())
    assert len(report.plan.remarks) == has_sound
    before, after = (media.read_clip_index(root / TOP) for root in (broken, tmp_path / "out"))
    assert not after.keyframes[0]
    assert media.samples_sha256(after) == media.samples_sha256(before)
    assert media.has_exact_times(after, Fraction(30)) != has_sound


def test_the_function_takes_names_of_folders(broken: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edit_info(total_frames=1)(broken)
    monkeypatch.chdir(broken.parent)
    report = leconvert.repair(broken.name, output="out")
    assert isinstance(report, leconvert.RepairReport)
    assert report.target == broken.with_name("out")
    assert check_dataset(report.target).findings == ()


def test_episodes_at_no_certain_frames_are_left_alone(broken: Path) -> None:
    """Begins in an order that neither the numbers nor the times of most of them confirm."""
    set_cells(EPISODES, camera("from_timestamp"), r0=1.1, r1=0.9, r2=0.5, r3=0.2, r4=0.01)(broken)
    report = repair_dataset(broken)
    assert not report.plan
    assert any("episodes are unknown" in remark for remark in report.plan.remarks)
    assert report.plan.errors_left


def test_frames_of_no_episode_stay(small_result: Path, broken: Path, tmp_path: Path) -> None:
    """The last episode was dropped from the tables, as by who trims a dataset."""
    for path, rows in ((DATA, 29), (EPISODES, 4)):
        table = pq.read_table(broken / path).slice(0, rows)
        with pq.ParquetWriter(broken / path, table.schema) as writer:
            start = 0
            for size in LENGTHS[:4] if path == DATA else [4]:
                writer.write_table(table.slice(start, size))
                start += size
    edit_info(total_episodes=4, total_frames=29)(broken)
    drift_in_place(broken)
    report = repair_dataset(broken, output=tmp_path / "out")
    assert "frame-times" in codes(report)
    grave = [finding for finding in report.plan.left if finding.severity != "info"]
    assert {finding.code for finding in grave} == {"video-neighbours"}
    assert "stats-aggregate" in codes(report)  # the fifth episode counts no more
    assert times_of(tmp_path / "out") == times_of(small_result)
    left = check_dataset(tmp_path / "out").findings
    assert {f.code for f in left if f.severity != "info"} == {"video-neighbours"}


def test_what_no_repair_can_mend_is_left_with_what_helps(broken: Path) -> None:
    (broken / WRIST).unlink()
    drift_in_place(broken)
    report = repair_dataset(broken)
    assert codes(report) == {"frame-times"}
    assert [finding.code for finding in report.plan.errors_left] == ["missing-file"]
    assert report.plan.errors_left[0].remedy


@pytest.mark.parametrize(
    ("column", "kind", "flags"),
    [
        ("index", pa.string(), "--reindex"),
        ("timestamp", pa.int16(), "--retime --declare-features"),
    ],
)
def test_a_column_whose_type_cannot_hold_the_numbers_is_left_to_a_conversion(
    broken: Path, column: str, kind: pa.DataType, flags: str
) -> None:
    def cast(table: pa.Table) -> pa.Table:
        at = table.schema.get_field_index(column)
        return table.set_column(at, column, table.column(column).cast(kind, safe=False))

    rewrite(DATA, cast)(broken)
    plan = repair_dataset(broken, retime=True, dry_run=True).plan
    (error,) = plan.errors_left
    assert (plan.data, error.code) == ((), v3.ROW_CODES[column])
    assert f"leconvert repair {shlex.quote(str(broken))} {flags}`" in str(error.remedy)
    assert choose_repairs(broken).flags == tuple(flags.split())
    leconvert.convert(broken, repairs=RepairOptions.of_flags(flags.split()))
    assert [f for f in check_dataset(broken).findings if f.severity == "error"] == []


@pytest.mark.parametrize(
    "damages",
    [
        [drift_in_place],
        [edit_info(total_frames=1), lambda root: (root / "meta/stats.json").unlink()],
        [set_cells(DATA, "index", r0=7)],
    ],
    ids=["times", "meta", "row-count"],
)
def test_a_conversion_that_was_repaired_is_proven_against_its_source(
    broken: Path, small_source: Path, damages: list[Damage]
) -> None:
    for damage in damages:
        damage(broken)
    assert not verify_pair(broken, small_source).ok
    assert repair_dataset(broken).plan
    report = verify_pair(broken, small_source, depth="bytes")
    assert report.ok, report.differences


def test_a_disk_that_fails_for_a_moment_makes_no_statistics_anew(
    broken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drift_in_place(broken)
    read, failed = check_meta.v3.read_json_object, []

    def fails_once(path: Path) -> dict[str, Any]:
        if path.name == "stats.json" and not failed:
            failed.append(path)
            raise OSError(errno.EIO, "Input/output error", str(path))
        return read(path)

    monkeypatch.setattr(check_meta.v3, "read_json_object", fails_once)
    with nothing_done(broken), pytest.raises(StorageError, match="could not be read at first"):
        repair_dataset(broken)
    assert set(codes(repair_dataset(broken))) == {"frame-times"}


def test_places_that_are_taken_are_refused_and_a_kept_dataset_is_in_the_way_in_place_alone(
    broken: Path, tmp_path: Path
) -> None:
    drift_in_place(broken)
    (tmp_path / "taken").mkdir()
    for output, error, said in (
        (broken, UsageError, "."),
        (broken / "out", UsageError, "lies inside"),
        (tmp_path / "taken", TargetError, "exists already"),
        (tmp_path / "no" / "where", TargetError, "does not exist"),
    ):
        with pytest.raises(error, match=said):
            repair_dataset(broken, output=output)
    Path(f"{broken}_old").mkdir()
    with pytest.raises(TargetError, match="_old exists already"):
        repair_dataset(broken)
    assert choose_repairs(broken).command == shlex.join(["leconvert", "repair", str(broken)])
    assert plan_anew(broken, RepairOptions(quantiles=True)).options.quantiles


def test_a_repair_elsewhere_that_is_repeated_is_proven(broken: Path, tmp_path: Path) -> None:
    drift_in_place(broken)
    out = tmp_path / "out"
    assert not repair_dataset(broken, output=out).was_repaired
    before = snapshot(out)
    again = repair_dataset(broken, output=out)
    assert again.was_repaired
    assert again.as_record()["was_repaired"]
    edit_stats(out)
    with pytest.raises(TargetError, match="exists already"):
        repair_dataset(broken, output=out)
    shutil.rmtree(out)
    repair_dataset(broken, output=out)
    assert {path: entry[2] for path, entry in snapshot(out).items()} == {
        path: entry[2] for path, entry in before.items()
    }
    drift_in_place(broken)
    assert not repair_dataset(broken, output=tmp_path / "other").was_repaired


@pytest.mark.parametrize("step", ["write", "prove"])
def test_a_repair_that_lost_its_lock_says_that_another_took_over(
    broken: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Over NFS the lock of a host that stood still is given away."""
    drift_in_place(broken)
    before, real, calls = snapshot(broken), getattr(apply._Repair, step), []

    def meanwhile(*arguments: Any) -> None:
        calls.append(step)
        if len(calls) == 1:
            repair_dataset(broken)
        real(*arguments)

    monkeypatch.setattr(apply, "target_lock", lambda *_: nullcontext())
    monkeypatch.setattr(apply._Repair, step, meanwhile)
    with pytest.raises(BusyError, match="took over"):
        repair_dataset(broken)
    assert snapshot(Path(f"{broken}_old")) == before
    assert check_dataset(broken).findings == ()
    assert len(list(broken.parent.iterdir())) == 2


def test_two_repairs_exclude_each_other_and_what_is_kept_of_a_dataset_stays(broken: Path) -> None:
    with target_lock(broken, "repair"), pytest.raises(BusyError):
        repair_dataset(broken)
    # Only a tree of ours beside it says that a repair moved the dataset away.
    old = Path(f"{broken}_old")
    broken.rename(old)
    before = snapshot(old)
    with pytest.raises(SourceError):
        repair_dataset(broken)
    assert snapshot(old) == before
    assert [path.name for path in broken.parent.iterdir()] == [old.name]
    with pytest.raises(TargetError, match="does not exist"):
        repair_dataset(broken / "no" / "where")
    assert not broken.exists()


def test_a_dataset_changed_meanwhile_stays(broken: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drift_in_place(broken)
    real = apply.try_renames

    def change_once_more(*arguments: object, **options: object) -> None:
        (broken / "README.md").write_text("written meanwhile")
        real(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(apply, "try_renames", change_once_more)
    with pytest.raises(SourceChangedError, match="was changed during the repair"):
        repair_dataset(broken)
    assert [path.name for path in broken.parent.iterdir()] == [broken.name]


@pytest.mark.parametrize("error", [InterruptedRunError, VerificationError])
def test_a_repair_that_is_stopped_or_refused_by_the_proof_leaves_nothing(
    broken: Path, monkeypatch: pytest.MonkeyPatch, error: type[LeconvertError]
) -> None:
    drift_in_place(broken)
    stop = threading.Event()
    if error is InterruptedRunError:
        stop.set()
    else:
        monkeypatch.setattr(apply, "compare_trees", lambda *_a, **_o: ["it differs."])
    with nothing_done(broken), pytest.raises(error):
        repair_dataset(broken, stop=stop)


@pytest.mark.parametrize(
    "damage",
    [
        lambda root: (root / "README.md").write_text("other"),
        lambda root: (root / TOP).write_bytes((root / TOP).read_bytes()[:-1] + b"?"),
        set_cells(DATA, "action", r0=[0.25] * 6),
        set_cells(EPISODES, "length", r0=3),
        edit_info(robot_type="another"),
        edit_stats,
        lambda root: (root / "more.txt").write_text("x"),
        lambda root: (root / "README.md").unlink(),
    ],
)
def test_the_proof_sees_what_no_repair_named(broken: Path, tmp_path: Path, damage: Damage) -> None:
    drift_in_place(broken)
    set_cells(DATA, "index", r0=3)(broken)
    repair_dataset(broken, output=tmp_path / "out")
    assert compared(broken, tmp_path / "out") == []
    damage(tmp_path / "out")
    assert len(compared(broken, tmp_path / "out")) == 1


def test_images_in_tables_are_carried_over(picture_result: Path, tmp_path: Path) -> None:
    broken = Path(shutil.copytree(picture_result, tmp_path / "broken"))
    set_cells(DATA, "index", r0=9)(broken)
    repair_dataset(broken, output=tmp_path / "out")
    assert pq.read_table(tmp_path / "out" / DATA) == pq.read_table(picture_result / DATA)
