"""``leconvert repair`` as a user gives it."""

from __future__ import annotations

import math
import re
import shlex
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from leconvert.testing import edit_info
from tests.drift import drift_in_place
from tests.program import Leconvert
from tests.trees import snapshot


@pytest.fixture
def drifted(result_copy: Path) -> Path:
    """A v3.0 dataset whose frames are off their times."""
    drift_in_place(result_copy)
    return result_copy


def test_check_names_the_command_that_repairs_and_undo_goes_back(
    leconvert_here: Leconvert, drifted: Path
) -> None:
    before = snapshot(drifted)
    checked = leconvert_here("check", drifted, code=3)
    told = (
        f"`leconvert check {drifted} --plan-repairs` prints one command that repairs all that can "
        "be repaired."
    )
    assert told in " ".join(checked.stderr.split())
    planned = leconvert_here("check", drifted, "--plan-repairs")
    assert planned.stdout.splitlines() == [
        f"leconvert repair {drifted}",
        "  keeps everything",
        "  new times in the index of 2 video files (88 frames)",
    ]
    dry = leconvert_here("repair", drifted, "--dry-run", code=0)
    assert "would change: new times in the index of 2 video files (88 frames)" in dry.stdout
    assert snapshot(drifted) == before
    done = leconvert_here("repair", drifted, code=0)
    assert f"  kept     {drifted}_old" in done.stdout
    assert leconvert_here("check", drifted, "--strict").returncode == 0
    again = leconvert_here("repair", drifted, code=0)
    assert again.stdout == f"{drifted} has nothing to repair.\n"
    assert leconvert_here("undo", drifted).returncode == 0
    assert snapshot(drifted) == before


def test_rows_are_put_in_order_before_a_repair_that_writes_anew(
    leconvert_here: Leconvert, drifted: Path
) -> None:
    """A conversion goes by the row: it would give rows the wrong tasks, for good."""
    tasks = drifted / "meta/tasks.parquet"
    right = pq.read_table(tasks)
    pq.write_table(right.take([1, 0]), tasks)
    refused = leconvert_here("repair", drifted, "--quantiles", code=3)
    assert "tasks-order: Row 0 has task_index 1." in refused.stderr
    told = "` puts the rows in order"
    assert told in " ".join(refused.stderr.split())
    done = leconvert_here("repair", drifted, "--output", f"{drifted}_ordered", code=0)
    changed = [line for line in done.stdout.splitlines() if line.startswith("changed: ")]
    assert changed == [
        "changed: new times in the index of 2 video files (88 frames)",
        "changed: the order and numbers of the rows of meta/tasks.parquet",
    ]
    assert pq.read_table(f"{drifted}_ordered/meta/tasks.parquet") == right
    assert leconvert_here("repair", f"{drifted}_ordered", "--quantiles").returncode == 0


def test_links_keep_their_text_and_an_undo_knows_them_again(
    leconvert_here: Leconvert, drifted: Path, tmp_path: Path
) -> None:
    (drifted / "checkpoints/003").mkdir(parents=True)
    (drifted / "checkpoints/003/weights").write_text("w")
    (tmp_path / "models").mkdir()
    texts = {"latest": "checkpoints/003", "gone": "nowhere", "models": "../models"}
    for name, text in texts.items():
        (drifted / name).symlink_to(text)
    elsewhere = tmp_path / "other/place"
    elsewhere.parent.mkdir()
    leconvert_here("repair", drifted, "--output", elsewhere, code=0)
    assert (elsewhere / "latest").resolve() == elsewhere / "checkpoints/003"
    assert (elsewhere / "models").resolve() == tmp_path / "models"
    assert str((elsewhere / "gone").readlink()) == "nowhere"
    assert leconvert_here("repair", drifted).returncode == 0
    assert {name: str((drifted / name).readlink()) for name in texts} == texts
    (drifted / "latest").unlink()
    (drifted / "latest").symlink_to("checkpoints")
    refused = leconvert_here("undo", drifted, code=10)
    assert "latest leads elsewhere" in refused.stderr
    (drifted / "latest").unlink()
    (drifted / "latest").symlink_to("checkpoints/003")
    leconvert_here("undo", drifted, code=0)


def test_an_undo_tells_values_apart_by_their_bits(leconvert_here: Leconvert, drifted: Path) -> None:
    table = drifted / "data/chunk-000/file-000.parquet"
    numbers = pq.read_table(table)["index"].to_pylist()

    def write(first: float, index: list[int]) -> None:
        rows = pq.read_table(table)
        action, state = rows["action"].to_pylist(), rows["observation.state"].to_pylist()
        action[0][0], state[0][0] = first, math.nan
        changed = {"action": action, "observation.state": state, "index": index}
        for name, column in changed.items():
            at = rows.schema.get_field_index(name)
            kind = rows.schema.field(at).type
            rows = rows.set_column(at, rows.schema.field(at), pa.array(column, kind))
        pq.write_table(rows, table)

    write(0.0, [9, *numbers[1:]])
    assert leconvert_here("repair", drifted).returncode == 0
    write(-0.0, numbers)
    refused = leconvert_here("undo", drifted, code=10)
    assert "other values of action" in refused.stderr
    write(0.0, numbers)
    leconvert_here("undo", drifted, code=0)


def test_a_v21_dataset_is_refused_with_what_helps(
    leconvert_here: Leconvert, source_copy: Path
) -> None:
    refused = leconvert_here("repair", source_copy, code=3)
    assert "works only on v3.0 datasets" in refused.stderr
    (advice,) = re.findall(r"`leconvert (convert [^`]*)`", refused.stderr)
    assert leconvert_here(*shlex.split(advice)).returncode == 0
    assert leconvert_here("repair", source_copy).returncode == 0


def test_a_v21_dataset_without_a_frame_rate_is_refused_for_its_version(
    leconvert_here: Leconvert, source_copy: Path
) -> None:
    edit_info(source_copy, lambda info: info.update(fps=None))
    refused = leconvert_here("repair", source_copy, "--assume-fps", "30", code=3)
    assert "works only on v3.0 datasets" in refused.stderr
    (advice,) = re.findall(r"`leconvert (convert [^`]*)`", refused.stderr)
    assert leconvert_here(*shlex.split(advice), "--assume-fps", "30").returncode == 0
