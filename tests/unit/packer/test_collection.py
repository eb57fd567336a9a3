"""A result that is not what its worker described is never taken: its batch opens again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import leconvert
from leconvert.conversion import run_worker
from leconvert.errors import BatchesFailedError, IncompleteError
from leconvert.leasing import list_batches, read_done
from leconvert.model import LayoutOptions
from leconvert.packer import pack_run
from leconvert.packer.collection import Collector
from leconvert.planner import open_or_plan
from leconvert.repairs import RepairOptions
from leconvert.testing import DatasetSpec, edit_table, make_dataset, with_column
from leconvert.workdir.opened import OpenedRun


@pytest.fixture
def worked(small_source: Path, tmp_path: Path) -> OpenedRun:
    """A run of two batches that are done, with statistics that workers computed."""
    run = open_or_plan(
        small_source,
        tmp_path / "out",
        tmp_path / "work",
        LayoutOptions(episodes_per_batch=3),
        RepairOptions(retime=True),
    )
    run_worker(run.work_dir.root)
    return run


def edit_done(run: OpenedRun, batch_id: int, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the record of a result: a program that is not this one wrote it."""
    path = run.paths.done(batch_id)
    record = json.loads(path.read_bytes())
    change(record)
    path.unlink()  # a name of the attempt's own record, too
    path.write_text(json.dumps(record) + "\n")


def attempt_of(run: OpenedRun, batch_id: int) -> Path:
    record = read_done(run.paths, run.manifest.run_id, batch_id)
    return run.paths.root / record["attempt"]


def truncate_video(run: OpenedRun) -> None:
    path = next(attempt_of(run, 0).glob("videos*.mp4"))
    path.write_bytes(path.read_bytes()[:-1])


def remove_table(run: OpenedRun) -> None:
    next(attempt_of(run, 0).glob("data*.parquet")).unlink()


def forget_table(run: OpenedRun) -> None:
    edit_done(run, 0, lambda record: record["shards"].pop(0))


def forget_digest(run: OpenedRun) -> None:
    edit_done(run, 0, lambda record: record["shards"][-1]["clip_digests"].pop())


def remove_stats(run: OpenedRun) -> None:
    next(attempt_of(run, 0).glob("*.stats.jsonl")).unlink()


def change_stats(run: OpenedRun) -> None:
    path = next(attempt_of(run, 0).glob("*.stats.jsonl"))
    path.write_bytes(path.read_bytes().replace(b"1", b"2", 1))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (truncate_video, " bytes instead of "),
        (remove_table, ".parquet is gone"),
        (forget_table, " bytes instead of None"),
        (forget_digest, " is described for another number of episodes"),
        (remove_stats, ".stats.jsonl is gone"),
        (change_stats, ".stats.jsonl is not what its worker wrote"),
    ],
)
def test_a_damaged_result_opens_its_batch_again_and_the_next_worker_does_it_anew(
    worked: OpenedRun, damage: Callable[[OpenedRun], None], said: str
) -> None:
    damage(worked)
    with pytest.raises(IncompleteError) as caught:
        list(Collector(worked).take([0, 1]))
    assert caught.value.message.startswith("1 batches lost what their workers wrote")
    [detail] = caught.value.details
    assert detail.startswith(f"batch 0: {worked.paths.root}")
    assert said in detail
    assert list_batches(worked.paths.done_dir) == {1}
    assert run_worker(worked.work_dir.root).batches_done == 1
    assert pack_run(worked).verified == "structure"


def test_what_helps_a_batch_that_was_set_aside_is_said_with_it(tmp_path: Path) -> None:
    source = make_dataset(tmp_path / "source", DatasetSpec(episodes=1, frames=3, cameras=()))
    lists = pa.array([[1.0], [2.0, 3.0], [4.0, 5.0, 6.0]], pa.list_(pa.float32()))
    edit_table(source, 0, lambda table: with_column(table, "action", lists))
    with pytest.raises(BatchesFailedError) as caught:
        leconvert.convert(
            source, output=tmp_path / "out", repairs=RepairOptions(recompute_stats=True)
        )
    [detail] = caught.value.details
    assert detail.startswith("batch 0: The statistics of action in ")
    assert "episode_000000.parquet" in detail
    assert "(--drop-feature action)" in detail
