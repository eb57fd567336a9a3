"""What `leconvert check --plan-repairs` prints ends well, and loses what it says."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import leconvert as library
from leconvert.model.values import LayoutOptions
from leconvert.testing import (
    CameraSpec,
    DatasetSpec,
    edit_info,
    edit_lines,
    edit_table,
    make_dataset,
    with_column,
)
from tests.oddities import declare_absent_feature, forget_version, list_task_twice, lose_clips
from tests.program import Leconvert
from tests.trees import snapshot

TOP, WRIST = "observation.images.top", "observation.images.wrist"
LENGTHS = (6, 4, 5, 7)


def _cut_table(root: Path) -> None:
    path = root / "data/chunk-000/episode_000001.parquet"
    path.write_bytes(path.read_bytes()[:200])


def _shift_times(root: Path) -> None:
    times = pa.array([0.5 + frame / 30 for frame in range(LENGTHS[0])], pa.float32())
    edit_table(root, 0, lambda table: with_column(table, "timestamp", times))


def _count_rows_from_one(root: Path) -> None:
    numbers = pa.array(range(1, LENGTHS[3] + 1), pa.int64())
    edit_table(root, 3, lambda table: with_column(table, "frame_index", numbers))


def _count_rows_undeclared(root: Path) -> None:
    edit_info(root, lambda info: info["features"].pop("index"))
    numbers = pa.array(range(7, 7 + LENGTHS[2]), pa.int64())
    edit_table(root, 2, lambda table: with_column(table, "index", numbers))


def _add_a_column(root: Path) -> None:
    for path in sorted(root.glob("data/*/*.parquet")):
        try:
            table = pq.read_table(path)
        except pa.ArrowInvalid:  # cut
            continue
        pq.write_table(table.append_column("torque", pa.array([1.5] * table.num_rows)), path)


def _lose_statistics(root: Path) -> None:
    edit_lines(root, "episodes_stats", lambda lines: lines[2]["stats"].pop("action"))


def _empty_an_episode(root: Path) -> None:
    edit_lines(root, "episodes", lambda lines: lines[1].update(length=0))


DEFECTS: dict[str, Callable[[Path], None]] = {
    "a clip is missing": lambda root: lose_clips(root, WRIST, 2),
    "most clips of a camera are missing": lambda root: lose_clips(root, WRIST, 0, 1, 2),
    "a table is cut": _cut_table,
    "times are shifted": _shift_times,
    "rows are counted from one": _count_rows_from_one,
    "a column is not declared": _add_a_column,
    "a task is listed twice": list_task_twice,
    "statistics are missing": _lose_statistics,
    "a feature has no data": declare_absent_feature,
    "an episode is empty": _empty_an_episode,
    "the version is not told": forget_version,
    "wrong indices are not declared": _count_rows_undeclared,
}
# Each comes with three others; alone, in pairs and all at once they are slow.
_NAMES = tuple(DEFECTS)
CASES: list[Any] = [
    *(_NAMES[first::3] for first in range(3)),
    *(
        pytest.param(names, marks=pytest.mark.slow, id=", ".join(names))
        for names in (_NAMES, *combinations(_NAMES, 1), *list(combinations(_NAMES, 2))[::13])
    ),
]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = DatasetSpec(
        episodes=len(LENGTHS),
        frames=LENGTHS,
        cameras=(CameraSpec(TOP, 32, 32), CameraSpec(WRIST, 32, 32)),
        state_dim=2,
        action_dim=2,
    )
    return make_dataset(tmp_path_factory.mktemp("plan-repairs") / "sound", spec)


@pytest.mark.parametrize("defects", CASES, ids=", ".join)
def test_the_command_ends_well_and_loses_exactly_what_was_said(
    leconvert_here: Leconvert, sound: Path, tmp_path: Path, defects: tuple[str, ...]
) -> None:
    source = Path(shutil.copytree(sound, tmp_path / "a source"))
    for defect in defects:
        DEFECTS[defect](source)
    planned = leconvert_here("check", source, "--plan-repairs", "--json", code=0)
    plan = json.loads(planned.stdout)
    program, *arguments = shlex.split(plan["command"])
    assert program == "leconvert"
    result = tmp_path / "result"
    done = leconvert_here(*arguments, "--output", result, "--json", code=0)
    report = json.loads(done.stdout)
    assert (report["episodes"], report["frames"]) == (
        plan["keeps"]["episodes"],
        plan["keeps"]["frames"],
    )
    features = json.loads((result / "meta/info.json").read_bytes())["features"]
    assert len(features) == plan["keeps"]["features"]
    assert not set(plan["left_out"]["features"]) & set(features)
    dropped = {entry["episode"] for entry in report["repairs"].get("dropped_episodes", ())}
    assert dropped == set(plan["left_out"]["episodes"])
    assert plan["keeps"]["episodes"] + len(dropped) == plan["of"]["episodes"] == len(LENGTHS)
    assert leconvert_here("verify", result, "--source", source, "--bytes").returncode == 0


def test_a_flag_that_others_make_superfluous_is_not_given(
    leconvert_here: Leconvert, sound: Path, tmp_path: Path
) -> None:
    """An episode that lacks a table and a clip has to go: then the camera need not."""
    source = Path(shutil.copytree(sound, tmp_path / "source"))
    _cut_table(source)
    lose_clips(source, WRIST, 1)
    planned = leconvert_here("check", source, "--plan-repairs", code=0)
    command, *said = planned.stdout.splitlines()
    assert command == f"leconvert convert --root {source} --on-bad-episode drop"
    assert said[0] == "  keeps 3 of 4 episodes, 18 of 22 frames, 9 of 9 features"


def _say_two_frames_each(root: Path) -> None:
    edit_lines(root, "episodes", lambda lines: [line.update(length=2) for line in lines])


def _lose_frames_of_most_clips_and_a_row(root: Path) -> None:
    clips = sorted(root.glob(f"videos/*/{TOP}/*.mp4"))
    short = make_dataset(
        root.with_name("short"),
        DatasetSpec(episodes=1, frames=1, cameras=(CameraSpec(TOP, 32, 32),)),
    )
    for clip in clips[:3]:
        shutil.copy(next(short.glob("videos/*/*/*.mp4")), clip)
    edit_table(root, 3, lambda table: table.slice(0, LENGTHS[3] - 1))


@pytest.mark.parametrize(
    ("damage", "flags", "keeps"),
    [
        (_say_two_frames_each, "--on-bad-episode trim", (4, sum(LENGTHS), 9)),
        (
            _lose_frames_of_most_clips_and_a_row,
            f"--drop-feature {TOP} --on-bad-episode trim",
            (4, sum(LENGTHS) - 1, 8),
        ),
    ],
)
def test_a_flag_is_given_where_others_help_too_but_lose_more(
    leconvert_here: Leconvert, sound: Path, tmp_path: Path, damage: Callable[[Path], None],
    flags: str, keeps: tuple[int, ...],
) -> None:  # fmt: skip
    source = Path(shutil.copytree(sound, tmp_path / "source"))
    damage(source)
    plan = json.loads(leconvert_here("check", source, "--plan-repairs", "--json", code=0).stdout)
    assert plan["command"] == f"leconvert convert --root {source} {flags}"
    assert tuple(plan["keeps"].values()) == keeps
    refused = json.loads(leconvert_here("convert", source, tmp_path / "r", "--json").stdout)
    assert f"again with {flags}; nothing was written." in refused["next_step"]
    done = leconvert_here("convert", source, tmp_path / "r", *shlex.split(flags), "--json", code=0)
    assert json.loads(done.stdout)["frames"] == keeps[1]


def test_what_only_a_remedy_brings_to_light_is_told_at_the_first_try(
    leconvert_here: Leconvert, sound: Path, tmp_path: Path
) -> None:
    """Rows of tables that lie elsewhere are looked at as `--locate-files` finds them."""
    source = Path(shutil.copytree(sound, tmp_path / "source"))
    for path in source.glob("data/*/*.parquet"):
        table = pq.read_table(path)
        again = pa.array(range(len(table)), pa.int64())
        pq.write_table(with_column(table, "index", again), path)
    (source / "data/chunk-000").rename(source / "data/chunk-007")
    refused = leconvert_here("convert", source, tmp_path / "result", "--json")
    record = json.loads(refused.stdout)
    errors = {each["code"] for each in record["findings"] if each["severity"] == "error"}
    assert errors == {"misplaced-file", "global-index"}
    assert "again with --locate-files --reindex; nothing was written." in record["next_step"]
    done = leconvert_here("convert", source, tmp_path / "result", "--locate-files", "--reindex")
    assert done.returncode == 0, done.stderr


def test_a_sound_dataset_needs_nothing(leconvert_here: Leconvert, sound: Path) -> None:
    planned = leconvert_here("check", sound, "--plan-repairs")
    assert planned.stdout == f"leconvert convert --root {sound}\n  keeps everything\n"


def test_what_no_flag_repairs_is_refused(
    leconvert_here: Leconvert, sound: Path, tmp_path: Path
) -> None:
    source = Path(shutil.copytree(sound, tmp_path / "source"))
    (source / "meta/tasks.jsonl").unlink()
    edit_lines(source, "episodes", lambda lines: lines[0].update(tasks=[]))
    planned = leconvert_here("check", source, "--plan-repairs", code=3)
    assert planned.stdout == ""
    assert "missing-tasks" in planned.stderr
    assert "Then run the command again; nothing was written." in planned.stderr


# ------------------------------------------------------------------------------------------------
# Of a v3.0 dataset: `repair`, with the options that it takes from a conversion.


@pytest.fixture
def converted(sound: Path, tmp_path: Path) -> Path:
    """A v3.0 dataset with a file an episode and stream."""
    layout = LayoutOptions(data_file_size_in_mb=0.0001, video_file_size_in_mb=0.0001)
    library.convert(sound, output=tmp_path / "result", layout=layout)
    return tmp_path / "result"


def test_where_episodes_have_to_go_that_is_said_first_and_the_rest_is_kept(
    leconvert_here: Leconvert, converted: Path
) -> None:
    """A clip is gone, and a column counts wrongly, which the same command makes right."""
    (converted / f"videos/{WRIST}/chunk-000/file-002.mp4").unlink()
    path = converted / "data/chunk-000/file-003.parquet"
    table = pq.read_table(path)
    pq.write_table(with_column(table, "frame_index", pa.array([7] * len(table), pa.int64())), path)
    before = snapshot(converted)
    planned = leconvert_here("check", converted, "--plan-repairs", code=0)
    command, keeps, *changes = planned.stdout.splitlines()
    assert command == f"leconvert repair {converted} --on-bad-episode drop --reindex"
    assert keeps == "  keeps 3 of 4 episodes, 17 of 22 frames, 9 of 9 features"
    assert "  1 episode left out" in changes
    asked = ["repair", converted, "--on-bad-episode", "drop"]
    dry = leconvert_here(*asked, "--dry-run")
    assert (dry.returncode, dry.stdout) == (0, planned.stdout)
    assert snapshot(converted) == before
    done = leconvert_here(*asked, code=0)
    assert done.stdout.startswith(f"{command}\n{keeps}\n")
    leconvert_here("check", converted, code=0)
    assert json.loads((converted / "meta/info.json").read_bytes())["total_frames"] == 17
    assert snapshot(Path(f"{converted}_old")) == before
    compared = leconvert_here("verify", converted, "--source", f"{converted}_old", "--bytes")
    assert compared.returncode == 0, compared.stderr


def _add_rows_of_nobody(root: Path) -> None:
    path = root / "data/chunk-000/file-001.parquet"
    table = pq.read_table(path)
    rows = with_column(table.slice(0, 2), "episode_index", pa.array([9, 9], pa.int64()))
    pq.write_table(pa.concat_tables([table, rows]), path)


def test_a_dataset_that_only_has_to_be_written_again_is_not_called_sound(
    leconvert_here: Leconvert, converted: Path
) -> None:
    _add_rows_of_nobody(converted)
    leconvert_here("check", converted, code=3)
    planned = leconvert_here("check", converted, "--plan-repairs", code=0).stdout
    command, *told = planned.splitlines()
    assert command == f"leconvert repair {converted} --declare-features"
    assert told == ["  keeps everything", "  every file written again"]
    assert leconvert_here(*shlex.split(command)[1:], "--dry-run", code=0).stdout == planned
    leconvert_here(*shlex.split(command)[1:], code=0)
    leconvert_here("check", converted, code=0)


def test_what_a_repair_cannot_make_right_is_refused_with_what_helps(
    leconvert_here: Leconvert, converted: Path
) -> None:
    (converted / "meta/tasks.parquet").unlink()
    planned = leconvert_here("check", converted, "--plan-repairs", code=3)
    assert "missing-tasks" in planned.stderr
    assert "--plan-repairs" not in planned.stderr
