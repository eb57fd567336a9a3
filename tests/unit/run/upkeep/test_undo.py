"""Undo: the source back and the result beside it, from whatever an undo that died left."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.faults.faulty_files import KINDS, CrashError, FaultyFileSystem, MakeFs, nfs
from tests.plans import open_or_plan
from tests.trees import digest_of, snapshot

import leconvert
from leconvert.model.repairs import RepairOptions
from leconvert.model.selection import EpisodeSelection
from leconvert.run import upkeep
from leconvert.run.proof import Difference, VerificationReport
from leconvert.run.upkeep import UndoReport, undo_conversion
from leconvert.support.errors import (
    BusyError,
    InterruptedRunError,
    LeconvertError,
    TargetError,
    VerificationError,
)
from leconvert.workdir.locks import target_lock
from leconvert.workdir.records import default_work_dir
from leconvert.workdir.swap import TREE_RECORD, codebase_version, is_converted, removed_old_dir


def names(target: Path) -> list[str]:
    return sorted(path.name for path in target.parent.iterdir())


@pytest.mark.parametrize("make_fs", KINDS)
def test_a_round_trip_gives_the_source_as_it_was_and_keeps_the_result(
    source_copy: Path, make_fs: MakeFs
) -> None:
    source = snapshot(source_copy)
    leconvert.convert(source_copy)
    result = snapshot(source_copy)
    report = undo_conversion(source_copy, fs=make_fs(None))
    assert (report.episodes, report.rows, report.camera_frames) == (5, 44, 88)
    assert snapshot(source_copy) == source
    assert snapshot(report.result) == result
    assert names(source_copy) == ["small", "small_v30"]
    assert undo_conversion(source_copy) == UndoReport(source_copy, report.result, False, True)
    shutil.rmtree(report.result)
    leconvert.convert(source_copy)
    assert {name: facts[2] for name, facts in snapshot(source_copy).items()} == {
        name: facts[2] for name, facts in result.items()
    }


@pytest.mark.parametrize("make_fs", KINDS)
def test_a_conversion_from_v30_to_v30_is_undone(source_copy: Path, make_fs: MakeFs) -> None:
    leconvert.convert(source_copy)
    shutil.rmtree(source_copy.with_name("small_old"))
    source = snapshot(source_copy)
    leconvert.convert(source_copy, selection=EpisodeSelection(exclude_episodes="2"))
    result = snapshot(source_copy)
    report = undo_conversion(source_copy, fs=make_fs(None))
    assert report.episodes == 4
    assert snapshot(source_copy) == source
    assert snapshot(report.result) == result
    assert names(source_copy) == ["small", "small_v30"]
    assert undo_conversion(source_copy) == UndoReport(source_copy, report.result, False, True)


def test_a_dry_run_compares_and_moves_nothing(converted: Path) -> None:
    before = snapshot(converted.parent)
    report = undo_conversion(converted, dry_run=True)
    assert (report.dry_run, report.episodes) == (True, 5)
    assert snapshot(converted.parent) == before


@pytest.fixture(params=["v2.1-v3.0", "v3.0-v3.0", "v3.0-v2.1", "v2.0-v2.1"])
def told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Callable[[str], Path]:
    """Make a pair of small trees that compare as equal unless the source says ``damaged``.

    Their versions do not tell which of them is the source.
    """
    versions = dict(zip(("source", "result"), request.param.split("-"), strict=True))

    def verify(result: Path, source: Path, **_: Any) -> VerificationReport:
        assert codebase_version(result) == versions["result"]
        assert (result / "data").read_text() == "result"
        damaged = (source / "data").read_text() == "damaged"
        differences = (Difference("bytes", "data", "these", "others"),) if damaged else ()
        return VerificationReport("bytes", differences, 1, 1, 1, 1)

    def make(name: str) -> Path:
        target = tmp_path / name / "small"
        old = target.with_name("small_old")
        for tree, held in ((target, "result"), (old, "source")):
            (tree / "meta").mkdir(parents=True)
            (tree / "meta/info.json").write_text(json.dumps({"codebase_version": versions[held]}))
            (tree / "data").write_text(held)
            if versions[held] != "v3.0":
                (tree / "meta/episodes.jsonl").write_text("")
        return target

    monkeypatch.setattr(upkeep, "verify_pair", verify)
    return make


def is_result(tree: Path) -> bool:
    return tree.exists() and (tree / "data").read_text() == "result"


def unmarked(tree: Path) -> str:
    """Return a tree's digest without the mark of an undo under way."""
    copy = shutil.copytree(tree, tree.with_name("copy"))
    (copy / TREE_RECORD).unlink(missing_ok=True)
    try:
        return digest_of(copy)
    finally:
        shutil.rmtree(copy)


def points_that_differ(target: Path, make_fs: MakeFs) -> list[int]:
    """Return after which points a death of an undo leaves what no death at another leaves."""
    fs = make_fs(None)
    return fs.points_that_differ(target.parent, lambda: undo_conversion(target, fs=fs))


@pytest.mark.parametrize("make_fs", KINDS)
def test_a_death_at_any_point_is_ended_by_the_same_command(
    told_apart: Callable[[str], Path], make_fs: MakeFs
) -> None:
    gaps = 0
    points = points_that_differ(told_apart("quiet"), make_fs)
    for point in [*points, None]:
        target = told_apart(str(point))
        result, source = digest_of(target), digest_of(target.with_name("small_old"))
        died, version = False, codebase_version(target)
        try:
            undo_conversion(target, fs=make_fs(point))
        except CrashError:
            died = True
            trees = [path for path in target.parent.iterdir() if path.name.startswith("small")]
            assert {unmarked(tree) for tree in trees} == {result, source}, "whole at any moment"
            assert len(trees) == 2
            gaps += not target.exists()
            undo_conversion(target, fs=make_fs(None))
        assert digest_of(target) == source
        (aside,) = set(names(target)) - {"small"}
        assert aside == {"v3.0": "small_v30", "v2.1": "small_v21"}[version]
        assert digest_of(target.with_name(aside)) == result
        assert died == (point is not None)
    assert len(points) > 4
    assert (gaps > 0) == (make_fs is nfs), "only two renames leave a moment without a dataset"


@pytest.mark.parametrize("make_fs", KINDS)
def test_a_source_damaged_after_a_death_gives_the_result_its_place_again(
    told_apart: Callable[[str], Path], make_fs: MakeFs
) -> None:
    taken_back = 0
    for point in points_that_differ(told_apart("quiet"), make_fs):
        target = told_apart(str(point))
        old, result = target.with_name("small_old"), digest_of(target)
        with pytest.raises(CrashError):
            undo_conversion(target, fs=make_fs(point))
        moved = not is_result(target)
        if moved and target.exists() and not old.exists():
            continue  # it was done
        ((target if moved and target.exists() else old) / "data").write_text("damaged")
        with pytest.raises(VerificationError):
            undo_conversion(target, fs=make_fs(None))
        assert digest_of(target) == result
        assert names(target) == ["small", "small_old"]
        taken_back += moved
    assert taken_back > 0


@pytest.mark.parametrize("where", ["packet", "row", "kept source"])
def test_what_was_changed_since_stops_it_with_nothing_moved(converted: Path, where: str) -> None:
    old = converted.with_name("small_old")
    if where == "row":
        lines = (old / "meta/episodes.jsonl").read_text().splitlines()
        first = json.loads(lines[0]) | {"tasks": ["another task"]}
        (old / "meta/episodes.jsonl").write_text("\n".join([json.dumps(first), *lines[1:]]))
    else:
        video = next((converted if where == "packet" else old).glob("videos/**/*.mp4"))
        content = bytearray(video.read_bytes())
        content[content.index(b"mdat") + 40] ^= 1
        video.write_bytes(content)
    before = snapshot(converted.parent)
    with pytest.raises(VerificationError, match="one of them was changed or damaged"):
        undo_conversion(converted)
    assert snapshot(converted.parent) == before


def test_a_missing_file_of_the_kept_source_stops_it(converted: Path) -> None:
    next(converted.with_name("small_old").glob("data/**/*.parquet")).unlink()
    before = snapshot(converted.parent)
    with pytest.raises(LeconvertError):
        undo_conversion(converted)
    assert snapshot(converted.parent) == before


@pytest.mark.parametrize("when", ["compared", "moved"])
def test_a_change_while_they_are_compared_or_moved_stops_it(
    converted: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    result = digest_of(converted)
    fs = FaultyFileSystem()
    clip = next(converted.glob("videos/**/*.mp4"))
    if when == "compared":
        real = upkeep.verify_pair

        def verify(*arguments: Any, **options: Any) -> Any:
            report = real(*arguments, **options)
            os.utime(clip)
            return report

        monkeypatch.setattr(upkeep, "verify_pair", verify)
    else:
        fs.before("exchange", lambda: os.utime(clip))
    with pytest.raises(TargetError, match="or its source was changed during the comparison"):
        undo_conversion(converted, fs=fs)
    assert digest_of(converted) == result
    assert names(converted) == ["small", "small_old"]


def refused(target: Path) -> str:
    before = snapshot(target.parent)
    with pytest.raises(TargetError) as caught:
        undo_conversion(target)
    assert snapshot(target.parent) == before
    assert caught.value.next_step
    return caught.value.message


def test_names_that_are_taken_or_missing_are_refused(converted: Path, tmp_path: Path) -> None:
    (tmp_path / "small_v30").mkdir()
    assert "small_v30 exists already" in refused(converted)
    (tmp_path / "small_v30").rmdir()
    (tmp_path / "small_old").rename(removed_old_dir(converted))
    assert "its removal has begun" in refused(converted)
    shutil.rmtree(removed_old_dir(converted))
    assert "but no kept source" in refused(converted)
    assert "does not exist" in refused(tmp_path / "other")
    (tmp_path / "empty").mkdir()
    assert "is not the result of a conversion in place" in refused(tmp_path / "empty")


def test_another_v30_dataset_that_was_kept_is_not_put_back(converted: Path) -> None:
    old = converted.with_name("small_old")
    shutil.rmtree(old)
    shutil.copytree(converted, old)
    video = next(old.glob("videos/**/*.mp4"))
    content = bytearray(video.read_bytes())
    content[content.index(b"mdat") + 40] ^= 1
    video.write_bytes(content)
    before = snapshot(converted.parent)
    with pytest.raises(VerificationError, match="one of them was changed or damaged"):
        undo_conversion(converted)
    assert snapshot(converted.parent) == before


def test_a_source_that_was_never_converted_is_refused(source_copy: Path) -> None:
    assert "is a v2.x dataset, but no kept source" in refused(source_copy)


def test_every_move_is_synced_and_no_file_is_made_in_the_source(converted: Path) -> None:
    """It may be one that its owner alone may change."""
    fs = FaultyFileSystem()
    undo_conversion(converted, fs=fs)
    names = [name for name, _ in fs.operations]
    moves = [at for at, name in enumerate(names) if name in {"exchange", "rename_no_replace"}]
    assert [names[at] for at in moves] == ["exchange", "rename_no_replace"]
    for at in moves:
        assert ("sync_dir", converted.parent) in fs.operations[at + 1 : at + 4]
    changes = {"make_dir", "write_new", "remove_file", "replace"}
    for place, done in (
        (converted.with_name("small_old"), fs.operations[: moves[0]]),
        (converted, fs.operations[moves[0] :]),
    ):
        assert done
        assert not [path for name, path in done if name in changes and path.parent == place]


def test_a_run_under_way_is_not_undone(converted: Path, tmp_path: Path) -> None:
    spare = shutil.copytree(converted, tmp_path / "spare")
    shutil.rmtree(converted)
    (tmp_path / "small_old").rename(converted)
    open_or_plan(converted, converted, default_work_dir(converted))
    converted.rename(tmp_path / "small_old")
    spare.rename(converted)
    with pytest.raises(BusyError, match="is not finished") as caught:
        undo_conversion(converted)
    assert "--give-up" in str(caught.value.next_step)


def test_a_swap_of_another_run_at_the_same_place_is_waited_for(converted: Path) -> None:
    with target_lock(converted, "r1"), pytest.raises(BusyError):
        undo_conversion(converted)
    assert is_converted(converted)


def test_it_stops_on_request(converted: Path) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(InterruptedRunError):
        undo_conversion(converted, stop=stop)
    assert names(converted) == ["small", "small_old"]


def test_a_repaired_conversion_is_undone_too(
    source_copy: Path, edit_json: Callable[..., None]
) -> None:
    next(source_copy.glob("videos/**/episode_000002.mp4")).write_bytes(b"no clip")
    before = digest_of(source_copy)
    leconvert.convert(source_copy, repairs=RepairOptions(on_bad_episode="drop"))
    assert undo_conversion(source_copy).episodes == 4
    assert digest_of(source_copy) == before
