"""A result that is not what its worker described is never taken: its batch opens again."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.plans import open_or_plan
from tests.trees import digest_of

import leconvert
from leconvert.api import run_worker
from leconvert.cli.main import main
from leconvert.model.repairs import RepairOptions
from leconvert.model.values import LayoutOptions
from leconvert.run.conversion import Conversion
from leconvert.run.leasing import list_batches, read_done
from leconvert.run.packer import pack_run
from leconvert.run.packer.assembly import Collector
from leconvert.support.errors import BatchesFailedError, IncompleteError
from leconvert.testing import DatasetSpec, edit_info, edit_table, make_dataset, with_column
from leconvert.workdir.run import OpenedRun


@pytest.fixture
def worked(small_source: Path, tmp_path: Path) -> OpenedRun:
    """A run of two batches that are done, with statistics that workers computed."""
    places = small_source, tmp_path / "out", tmp_path / "work"
    run = open_or_plan(*places, Conversion(**OPTIONS))
    run_worker(run.work_dir.root)
    return run


def attempt_of(run: OpenedRun, batch_id: int) -> Path:
    record = read_done(run.paths, batch_id)
    return run.paths.root / record["attempt"]


Damage = Callable[[OpenedRun], object]


OPTIONS: dict[str, Any] = {
    "layout": LayoutOptions(episodes_per_batch=3),
    "repairs": RepairOptions(retime=True),
}


def removed(pattern: str) -> Damage:
    return lambda run: next(attempt_of(run, 0).glob(pattern)).unlink()


def edited(change: Callable[[dict[str, Any]], object]) -> Damage:
    """Change the record of a result: a program that is not this one wrote it."""

    def damage(run: OpenedRun) -> None:
        record = json.loads(run.paths.done(0).read_bytes())
        change(record)
        replace_done(run, json.dumps(record).encode() + b"\n")

    return damage


def rewritten(pattern: str, change: Callable[[bytes], bytes]) -> Damage:
    def damage(run: OpenedRun) -> None:
        path = next(attempt_of(run, 0).glob(pattern))
        path.write_bytes(change(path.read_bytes()))

    return damage


def replace_done(run: OpenedRun, content: bytes) -> None:
    run.paths.done(0).unlink()  # a name of the attempt's own record, too
    run.paths.done(0).write_bytes(content)


def test_names_asked_for_too_early_are_found(
    worked: OpenedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An NFS client goes on believing that there is no such name until the folder is opened."""
    absent = {
        path
        for attempt in (attempt_of(worked, 0), attempt_of(worked, 1))
        for path in (attempt, attempt.parent, *attempt.iterdir())
    }
    real_stat, real_open = os.stat, os.open

    def check(path: Any) -> None:
        if any(missing in absent for missing in (Path(path), *Path(path).parents)):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))

    def stat(path: Any, **options: Any) -> os.stat_result:
        check(path)
        return real_stat(path, **options)

    def open_(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        check(path)
        if flags & os.O_DIRECTORY:
            absent.difference_update([one for one in absent if one.parent == Path(path)])
        return real_open(path, flags, *arguments, **options)

    monkeypatch.setattr(os, "stat", stat)
    monkeypatch.setattr(os, "open", open_)
    report = pack_run(worked)
    assert report.joined > 0


def test_a_size_that_the_client_remembers_from_an_earlier_look_does_not_count(
    worked: OpenedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.stat
    attempts = worked.paths.attempts_dir

    def stat(path: Any, **options: Any) -> os.stat_result:
        found = real(path, **options)
        if Path(path).is_relative_to(attempts) and Path(path).suffix:
            return os.stat_result([*found[:6], 0, *found[7:]])  # as when it was being written
        return found

    monkeypatch.setattr(os, "stat", stat)
    assert pack_run(worked).joined > 0


def test_a_damaged_result_opens_its_batch_again_for_the_next_worker(worked: OpenedRun) -> None:
    damages: tuple[tuple[Damage, str], ...] = (
        (rewritten("videos*.mp4", lambda content: content[:-1]), " bytes instead of "),
        (removed("data*.parquet"), ".parquet does not exist"),
        (edited(lambda record: record["shards"].pop(0)), " bytes instead of None"),
        (
            edited(lambda record: record["shards"][-1]["clip_digests"].pop()),
            "was recorded with another number of episodes",
        ),
        (removed("*.stats.jsonl"), ".stats.jsonl does not exist"),
        (
            rewritten("*.stats.jsonl", lambda content: content.replace(b"1", b"2", 1)),
            ".stats.jsonl was changed after its worker wrote it",
        ),
    )
    for damage, said in damages:
        damage(worked)
        with pytest.raises(IncompleteError) as caught:
            list(Collector(worked).take([0, 1]))
        assert caught.value.message.startswith("1 batch must be done again")
        [detail] = caught.value.details
        assert detail.startswith(f"batch 0: {worked.paths.root}")
        assert said in detail
        assert list_batches(worked.paths.done_dir) == {1}
        assert run_worker(worked.work_dir.root).batches_done == 1
    assert pack_run(worked).verified == "structure"


def test_a_batch_whose_record_is_damaged_is_done_anew_by_the_commands_that_are_named(
    worked: OpenedRun,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    work = str(worked.work_dir.root)
    replace_done(worked, worked.paths.done(0).read_bytes()[:100])
    before = worked.paths.done(0).read_bytes()
    assert main(["pack", work]) == 9
    said = capsys.readouterr().err
    assert "1 batch must be done again: files of the workers are gone or damaged." in said
    assert "--restart" not in said
    assert worked.paths.voided(0, 1).read_bytes() == before
    assert f"`leconvert work {work}`" in said
    # The claim that won is open, and its process, this one, is alive.
    assert main(["work", work, "--lease-seconds", "0.5"]) == 0
    assert main(["pack", work, "--verify", "bytes"]) == 0
    leconvert.convert(worked.manifest.source, output=tmp_path / "other", **OPTIONS)
    assert digest_of(Path(worked.manifest.target)) == digest_of(tmp_path / "other")


def test_a_record_that_lacks_anything_opens_its_batch_again(worked: OpenedRun) -> None:
    whole, path = worked.paths.done(0).read_bytes(), worked.paths.done(0)

    def changed(change: Callable[[dict[str, Any]], object]) -> bytes:
        record = json.loads(whole)
        change(record)
        return json.dumps(record).encode()

    for number, content in enumerate(
        [
            b"",
            b"[]",
            changed(lambda record: record.update(run_id="another")),
            changed(lambda record: record.update(attempt="../../source")),
            changed(lambda record: record.update(attempt="attempts/000000/..")),
            changed(lambda record: record.pop("shards")),
            changed(lambda record: record.update(shards=[1])),
            changed(lambda record: record["shards"][0].pop("size_bytes")),
            changed(lambda record: record["shards"][0]["stats"].pop("path")),
            changed(lambda record: record["shards"][-1].pop("clip_digests")),
            changed(lambda record: record["shards"][-1].update(copied_bytes="1")),
        ],
        start=1,
    ):
        replace_done(worked, content)
        with pytest.raises(IncompleteError) as caught:
            list(Collector(worked).take([0, 1]))
        detail = caught.value.details[0]
        assert detail.startswith("batch 0: "), content
        assert f"{path} " in detail, content
        assert worked.paths.voided(0, number).read_bytes() == content
        path.write_bytes(whole)


def test_a_torn_record_of_a_failure_still_sets_its_batch_aside(
    worked: OpenedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    work, paths = str(worked.work_dir.root), worked.paths
    paths.done(0).unlink()
    paths.failed(0).write_bytes(b'{"format": "leconv')
    assert main(["pack", work]) == 8
    assert f"`leconvert release {work} --failed`" in capsys.readouterr().err
    assert main(["release", work, "--failed"]) == 0
    assert main(["work", work, "--lease-seconds", "0.5"]) == 0
    assert main(["pack", work]) == 0


def test_a_record_of_a_newer_version_is_left_to_that_version(
    worked: OpenedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    edited(lambda record: record.update(version=99))(worked)
    assert main(["pack", str(worked.work_dir.root)]) == 7
    assert "Use the version of leconvert that began this run" in capsys.readouterr().err
    assert list_batches(worked.paths.done_dir) == {0, 1}


def test_what_helps_a_batch_that_was_set_aside_is_said_with_it(tmp_path: Path) -> None:
    source = make_dataset(tmp_path / "source", DatasetSpec(episodes=1, frames=3, cameras=()))
    images = pa.array([b"no picture"] * 3)
    edit_table(source, 0, lambda table: with_column(table, "front", images))
    edit_info(
        source, lambda info: info["features"].update(front={"dtype": "image", "shape": [8, 8, 3]})
    )
    computed = RepairOptions(recompute_stats=True)
    with pytest.raises(BatchesFailedError) as caught:
        leconvert.convert(source, output=tmp_path / "out", repairs=computed)
    [detail] = caught.value.details
    assert detail.startswith("batch 0: The statistics of front in ")
    assert "episode_000000.parquet" in detail
    assert "--drop-feature front" in detail
