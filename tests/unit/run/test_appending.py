"""Episodes appended to a result: what is added, what stays, and what is refused."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from tests import dataset_damage as damage
from tests.dataset_damage import edit_feature, rewrite, set_cells
from tests.plans import draft_plan, open_or_plan
from tests.trees import digest_of, former_of, snapshot

import leconvert
from leconvert import (
    EpisodeSelection,
    LayoutOptions,
    PlanOptions,
    ProofOptions,
    RepairOptions,
    WorkerOptions,
)
from leconvert.cli import main
from leconvert.dataset.check import check_dataset
from leconvert.dataset.formats import PROVENANCE_PATH, v3
from leconvert.run import planner
from leconvert.run.appending import what_is_lost
from leconvert.run.conversion import Conversion
from leconvert.run.packer import pack_run
from leconvert.run.packer import run as packing
from leconvert.run.proof import verify_pair
from leconvert.run.proof.files import CARD_BEGIN
from leconvert.run.upkeep import clean_kept_source, undo_conversion
from leconvert.support.errors import (
    BusyError,
    InterruptedRunError,
    LeconvertError,
    StorageError,
    TargetError,
    UsageError,
    VerificationError,
)
from leconvert.testing import (
    CameraSpec,
    DatasetSpec,
    edit_info,
    edit_lines,
    edit_table,
    make_dataset,
)
from leconvert.workdir import fs

LENGTHS = [12, 7, 9, 15, 8]
TOP, WRIST = "observation.images.top", "observation.images.wrist"
APPEND = LayoutOptions(append=True)
DATA = "data/chunk-000/file-000.parquet"


def spec_of(episodes: int, **changed: Any) -> DatasetSpec:
    """Return a dataset of which one with fewer episodes is the beginning."""
    spec = DatasetSpec(
        episodes=episodes,
        frames=LENGTHS[:episodes],
        cameras=tuple(CameraSpec(key=key, width=32, height=32) for key in (TOP, WRIST)),
        tasks=[f"Task {number}." for number in range(episodes)],
        extra_files={"README.md": "A card.\n", "meta/modality.json": "{}"},
    )
    return replace(spec, **changed)


Grow = Callable[[int], Path]


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> Mapping[int, Path]:
    """The same dataset when it had 3, 4 and 5 episodes."""
    folder = tmp_path_factory.mktemp("states")
    return {number: make_dataset(folder / str(number), spec_of(number)) for number in (3, 4, 5)}


@pytest.fixture
def grow(states: Mapping[int, Path], tmp_path: Path) -> Grow:
    """Make the source one with so many episodes; return its folder."""

    def grown(episodes: int) -> Path:
        source = tmp_path / "source"
        if source.exists():
            shutil.rmtree(source)
        return Path(shutil.copytree(states[episodes], source))

    return grown


@pytest.fixture(scope="module")
def converted(states: Mapping[int, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The result of three episodes; do not change it."""
    return leconvert.convert(states[3], output=tmp_path_factory.mktemp("three") / "out").output


@pytest.fixture
def result(converted: Path, grow: Grow, tmp_path: Path) -> Path:
    """A copy of the result of three episodes; the source has four by now."""
    grow(4)
    return Path(shutil.copytree(converted, tmp_path / "out"))


def append(result: Path, layout: LayoutOptions = APPEND, **options: Any) -> Any:
    source = result.with_name("source")
    return leconvert.convert(source, output=result, layout=layout, **options)


def assert_is_result(result: Path) -> None:
    source = result.with_name("source")
    assert list(verify_pair(result, source, depth="bytes").differences) == []
    assert [f for f in check_dataset(result).findings if f.severity in {"error", "warning"}] == []


def files_of(result: Path, folder: str) -> list[str]:
    return sorted(path.name for path in (result / folder).rglob("*") if path.is_file())


def test_new_episodes_get_files_of_their_own_and_all_else_is_as_converted_anew(
    result: Path, tmp_path: Path
) -> None:
    before = snapshot(result)
    inodes = {name: (result / name).stat().st_ino for name in before}
    report = append(result)
    assert (report.kept_episodes, report.episodes, report.files) == (3, 4, 6)
    assert report.source_bytes < sum(map(os.path.getsize, result.with_name("source").rglob("*")))
    after = snapshot(result)
    for name, facts in before.items():
        if name.startswith(("data/", "videos/")):
            assert after[name] == facts
            assert (result / name).stat().st_ino == inodes[name]
    assert files_of(result, "data") == ["file-000.parquet", "file-001.parquet"]
    assert files_of(result, f"videos/{TOP}") == ["file-000.mp4", "file-001.mp4"]
    assert [text for _, text in v3.read_tasks(result)] == [f"Task {n}." for n in range(4)]
    assert_is_result(result)
    # What it was is whole, and no part of it was written.
    assert snapshot(report.kept_source) == before
    fresh = leconvert.convert(tmp_path / "source", output=tmp_path / "fresh").output
    for name in ("meta/info.json", "meta/stats.json", "meta/tasks.parquet"):
        assert (result / name).read_bytes() == (fresh / name).read_bytes()
    assert list(rows(result)) == list(rows(fresh))
    assert digest_of(result / "data") != digest_of(fresh / "data")


def test_the_record_of_a_selection_goes_with_the_episodes_that_complete_it(
    result: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A result of the first episodes has a table of them, which is none of the user's files."""
    shutil.rmtree(result)
    source, selection = result.with_name("source"), EpisodeSelection(episodes="0-2")
    leconvert.convert(source, output=result, selection=selection)
    assert (result / PROVENANCE_PATH).is_file()
    report = append(result)
    assert not (result / PROVENANCE_PATH).exists()
    assert_is_result(result)
    assert main(["convert", str(source), str(result), "--append"]) == 0
    assert "There is nothing to do." in capsys.readouterr().out
    (row,) = clean_kept_source(result).removed
    assert row.path == report.kept_source


def rows(root: Path) -> Iterator[dict[str, Any]]:
    """Yield what is said of each episode, but for where it is."""
    places = v3.placing_columns(v3.Dataset(root).streams)
    for block in v3.EpisodesReader(root).blocks(
        lambda name: name in {"length", "episode_index"} or name not in places
    ):
        yield from block.to_pylist()


def test_it_is_appended_again_and_again_and_every_state_is_kept(result: Path, grow: Grow) -> None:
    kept = [snapshot(result)]
    append(result)
    kept.insert(0, snapshot(result))
    grow(5)
    append(result)
    assert files_of(result, "data") == ["file-000.parquet", "file-001.parquet", "file-002.parquet"]
    assert_is_result(result)
    places = former_of(result)
    assert [snapshot(place) for place in places] == kept
    names = {"out", "source", *(path.name for path in places)}
    names |= {f".{path.name}" for path in places}
    assert {path.name for path in result.parent.iterdir()} == names
    # A former state is removed by whoever asks for it, after comparing.
    report = clean_kept_source(result)
    assert [row.path for row in report.removed] == places
    assert {path.name for path in result.parent.iterdir()} == {"out", "source"}
    assert_is_result(result)


def test_undo_gives_the_old_result_back_and_it_can_be_appended_anew(
    result: Path, states: Mapping[int, Path]
) -> None:
    before = snapshot(result)
    append(result)
    done = undo_conversion(result)
    assert (done.episodes, done.rows, done.camera_frames) == (3, 28, 56)
    assert snapshot(result) == before
    assert undo_conversion(result).was_undone
    assert {path.name for path in result.parent.iterdir()} == {"out", "out_v30", "source"}
    assert_is_result(result.with_name("out_v30"))
    append(result)
    assert_is_result(result)


def test_an_undo_that_is_to_stop_moves_nothing(result: Path) -> None:
    append(result)
    names, stop = {path.name for path in result.parent.iterdir()}, threading.Event()
    stop.set()
    with pytest.raises(InterruptedRunError):
        undo_conversion(result, stop=stop)
    assert {path.name for path in result.parent.iterdir()} == names
    assert_is_result(result)


def test_undo_refuses_a_former_state_that_was_changed(result: Path) -> None:
    append(result)
    (old,) = former_of(result)
    edit_info(old, lambda info: info.update(fps=15))
    with pytest.raises(VerificationError, match="one of them was changed or damaged"):
        undo_conversion(result)
    assert v3.EpisodesReader(result).num_rows == 4


def test_a_former_state_that_the_user_changed_stays_until_it_is_as_it_was(
    result: Path, grow: Grow
) -> None:
    append(result)
    (old,) = former_of(result)
    (old / "notes.txt").write_text("mine")
    before = snapshot(old)
    (row,) = clean_kept_source(result).kept
    assert row.reason == "it was changed after the run kept it"
    grow(5)
    append(result)
    assert snapshot(old) == before
    assert former_of(result)[1:] == [old]
    (old / "notes.txt").unlink()
    assert clean_kept_source(result).kept == ()
    assert not old.exists()
    assert_is_result(result)


def own_card(result: Path) -> None:
    (result / "README.md").write_text("My card.")


def own_key(result: Path) -> None:
    edit_info(result, lambda info: info.update(license="mine"))


# After an append, a record of how it left the result decides, too.
@pytest.mark.parametrize(
    ("again", "change", "said"),
    [
        (False, own_card, "README.md"),
        (False, own_key, "license in meta/info.json"),
        (False, damage.edit_info(splits={"train": "0:2", "val": "2:3"}), "splits in meta/info"),
        (False, damage.set_stat("action", "max", [9.0] * 6), "meta/stats.json"),
        (True, own_card, "README.md"),
    ],
)
def test_what_the_user_changed_in_a_result_is_refused_before_any_work_and_stays(
    result: Path, grow: Grow, change: Callable[[Path], None], said: str, again: bool
) -> None:
    if again:
        append(result)
        grow(5)
    change(result)
    before = snapshot(result.parent)
    with pytest.raises(TargetError, match=re.escape(said)) as refused:
        append(result)
    assert snapshot(result.parent) == before
    # The advice leads on: with the same in both, or with all of it converted anew.
    assert "change" in str(refused.value.next_step)
    assert "--force-conversion" in str(refused.value.next_step)
    source = result.with_name("source")
    if change is own_card:
        shutil.copy(source / "README.md", result / "README.md")
    elif change is own_key:
        own_key(source)
    else:
        return
    append(result)
    assert_is_result(result)
    assert ("license" in v3.Dataset(result).info) == (change is own_key)


def test_a_further_file_stays_and_the_command_can_be_repeated(
    result: Path, grow: Grow, capsys: pytest.CaptureFixture[str]
) -> None:
    (result / "notes.txt").write_text("mine")
    (result / "meta/labels.json").write_text("{}")
    for episodes in (4, 5):
        grow(episodes)
        append(result)
        assert (result / "notes.txt").read_text() == "mine"
        assert (result / "meta/labels.json").read_text() == "{}"
    words = ["convert", str(result.with_name("source")), str(result), "--append"]
    assert main(words) == 0
    assert "There is nothing to do" in capsys.readouterr().out
    assert v3.EpisodesReader(result).num_rows == 5


def test_a_card_that_a_push_wrote_stays(result: Path) -> None:
    """Nothing of it is held against the source, so it could be lost without a word."""
    card = f"Mine.\n{CARD_BEGIN}\nOf the push.\n"
    (result / "README.md").write_text(card)
    append(result)
    assert (result / "README.md").read_text() == card
    assert_is_result(result)


def test_a_card_that_changed_in_the_source_is_taken_where_nobody_changed_the_result(
    result: Path, grow: Grow
) -> None:
    """The record of the former state tells how the last append left the result."""
    append(result)
    source = grow(5)
    (source / "README.md").write_text("A newer card.\n")
    append(result)
    assert (result / "README.md").read_text() == "A newer card.\n"
    assert_is_result(result)


def test_where_nothing_is_there_all_is_converted(grow: Grow, tmp_path: Path) -> None:
    source = grow(3)
    report = leconvert.convert(source, output=tmp_path / "out", layout=APPEND)
    assert report.kept_episodes == 0
    leconvert.convert(source, output=tmp_path / "plain")
    assert digest_of(tmp_path / "out") == digest_of(tmp_path / "plain")
    with pytest.raises(TargetError, match="already has all 3 episodes") as refused:
        leconvert.convert(source, output=tmp_path / "out", layout=APPEND)
    assert "nothing to append" in str(refused.value.next_step)


@pytest.mark.parametrize(
    ("layout", "batch"),
    [("reference", 1), ("streaming", None), ("episode-files", 1)],
)
def test_every_layout_but_overlay(
    grow: Grow, tmp_path: Path, layout: str, batch: int | None
) -> None:
    options = LayoutOptions(layout=layout, append=True, episodes_per_batch=batch)
    leconvert.convert(grow(3), output=tmp_path / "out", layout=options)
    grow(5)
    report = append(tmp_path / "out", options, workers=WorkerOptions(max_workers=2))
    new_files = 2 if layout == "episode-files" else 1
    assert len(files_of(tmp_path / "out", f"videos/{TOP}")) == new_files + {
        "reference": 1, "streaming": 3, "episode-files": 3
    }[layout]  # fmt: skip
    assert (report.kept_files is None) == (layout != "episode-files")
    assert_is_result(tmp_path / "out")


def test_computed_statistics_of_old_episodes_stay(tmp_path: Path) -> None:
    quantiles = RepairOptions(quantiles=True)
    spec = spec_of(3, codebase_version="v2.0", cameras=(CameraSpec(width=32, height=32),))
    source = make_dataset(tmp_path / "source", spec)
    leconvert.convert(source, output=tmp_path / "out", repairs=quantiles)
    shutil.rmtree(source)
    make_dataset(source, replace(spec_of(4), codebase_version="v2.0", cameras=spec.cameras))
    append(tmp_path / "out", repairs=quantiles)
    assert_is_result(tmp_path / "out")
    fresh = leconvert.convert(source, output=tmp_path / "fresh", repairs=quantiles).output
    stats = [v3.Dataset(root).stats for root in (tmp_path / "out", fresh)]
    for name in ("action", "observation.state", "timestamp", "task_index"):
        for kind, value in stats[1][name].items():
            assert (stats[0][name][kind] == value).all(), (name, kind)
    assert "q01" in stats[0][TOP]


def test_other_options_than_before_are_refused_with_what_differs(result: Path) -> None:
    before = snapshot(result)
    with pytest.raises(TargetError, match="its table of episodes differs at episode"):
        append(result, repairs=RepairOptions(quantiles=True))
    assert snapshot(result) == before
    assert former_of(result) == []


def test_a_grown_v30_dataset(grow: Grow, tmp_path: Path) -> None:
    source = tmp_path / "source"
    for episodes in (3, 5):
        older = grow(episodes).rename(tmp_path / f"v21-{episodes}")
        leconvert.convert(older, output=source)
        leconvert.convert(source, output=tmp_path / "out", layout=APPEND)
        if episodes == 3:
            shutil.rmtree(source)
    assert_is_result(tmp_path / "out")
    assert v3.EpisodesReader(tmp_path / "out").num_rows == 5


def renamed_file(source: Path, result: Path) -> None:
    path = "data/chunk-{chunk_index:03d}/part-{file_index:03d}.parquet"
    edit_info(result, lambda info: info.update(data_path=path))
    (result / DATA).rename(result / DATA.replace("file", "part"))


def changed_row(source: Path, result: Path) -> None:
    """Which nothing but a comparison of the rows tells: the statistics are as they were."""

    def changed(table: pa.Table) -> pa.Table:
        first, *rest = table["action"][0].as_py()
        return set_cells("action", r0=[first + 0.001, *rest])(table)

    edit_table(source, 1, changed)


def changed_clip(source: Path, result: Path) -> None:
    clips = (source / f"videos/chunk-000/{key}/episode_000001.mp4" for key in (WRIST, TOP))
    shutil.copy(*clips)


def result_in_v21(source: Path, result: Path) -> None:
    shutil.rmtree(result)
    shutil.copytree(source, result)


def changed_length(source: Path, result: Path) -> None:
    shutil.rmtree(source)
    make_dataset(source, spec_of(4, frames=[12, 8, 9, 15]))


def grown_result(source: Path, result: Path) -> None:
    """As by LeRobot's recorder, or by another run."""
    shutil.rmtree(result)
    more = make_dataset(source.with_name("more"), spec_of(5))
    leconvert.convert(more, output=result)


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (changed_length, TargetError, "its episode 1 has 7 frames, but 8 in .*"),
        (grown_result, TargetError, r"it has 5 episodes, but .* has only 4"),
        (
            lambda source, _: edit_lines(source, "tasks", lambda t: t[1].update(task="Another.")),
            *(TargetError, "its tasks are not the first tasks"),
        ),
        (
            lambda _, result: edit_info(result, lambda info: info.update(fps=15)),
            *(TargetError, "does not write them: fps in meta/info.json"),
        ),
        (
            lambda _, result: edit_feature("action", names=["a"] * 6)(result),
            *(TargetError, "does not write them: names of feature 'action'"),
        ),
        (renamed_file, TargetError, "does not write them: data_path in meta/info.json"),
        (
            lambda source, _: edit_lines(
                source, "episodes_stats", lambda s: s[0]["stats"]["action"].update(max=[9.0] * 6)
            ),
            *(TargetError, "does not write them: meta/episodes"),
        ),
        (changed_row, VerificationError, "does not match its source .* Nothing was replaced"),
        (changed_clip, LeconvertError, "does not match its source .* Nothing was replaced"),
        (
            lambda _, result: rewrite(DATA, lambda table: table.slice(0, 27), row_groups=False)(
                result
            ),
            *(LeconvertError, "."),
        ),
        (
            lambda _, result: (result / "data/notes.txt").write_text("mine"),
            *(TargetError, "notes.txt does not belong to an episode"),
        ),
        (result_in_v21, TargetError, "is not a v3.0 dataset"),
    ],
)
def test_what_is_not_its_beginning_is_refused_and_stays(
    result: Path, change: Callable[[Path, Path], None], error: type[LeconvertError], said: str
) -> None:
    change(result.with_name("source"), result)
    before = snapshot(result)
    with pytest.raises(error, match=said) as refused:
        append(result)
    assert refused.value.next_step
    assert snapshot(result) == before
    assert former_of(result) == []


@pytest.mark.parametrize(
    ("layout", "options", "said"),
    [
        ({}, {"selection": EpisodeSelection(episodes="0-3")}, "a selection of episodes"),
        ({"layout": "overlay"}, {}, "--layout overlay"),
        ({}, {"proof": ProofOptions(force_conversion=True)}, "--force-conversion replaces them"),
        ({}, {"output": None}, "give --output"),
        ({"to": "v2.1"}, {}, r"--to v2.1"),
    ],
)
def test_what_has_no_end_to_append_to_is_refused(
    result: Path, layout: dict[str, str], options: dict[str, Any], said: str
) -> None:
    source, given = result.with_name("source"), {"output": result, **options}
    with pytest.raises(UsageError, match=said):
        leconvert.convert(source, layout=replace(APPEND, **layout), **given)


def test_a_result_that_changes_while_it_is_appended_to_is_left_alone(
    result: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recorder writes into it at the last moment: what came out of the target goes back."""
    swap = packing.swap_into_place

    def recorded(*arguments: Any, **options: Any) -> None:
        (result / "data/chunk-000/file-001.parquet").write_bytes(b"new")
        swap(*arguments, **options)

    monkeypatch.setattr(packing, "swap_into_place", recorded)
    with pytest.raises(TargetError, match="it was changed meanwhile"):
        append(result)
    assert (result / "data/chunk-000/file-001.parquet").read_bytes() == b"new"
    assert former_of(result) == []


def test_a_result_that_grew_since_the_plan_is_refused(result: Path, grow: Grow) -> None:
    source, work = result.with_name("source"), result.with_name("work")
    run = open_or_plan(source, result, work, Conversion(layout=APPEND))
    assert run.manifest.kept_episodes == 3
    shutil.rmtree(result)
    leconvert.convert(source, output=result)
    with pytest.raises(TargetError, match="it had 3 episodes in the plan, but has 4 now") as caught:
        pack_run(run)
    assert "with --restart" in (caught.value.next_step or "")
    grow(5)
    append(result, work_dir=work, plan=PlanOptions(restart=True))
    assert_is_result(result)


@pytest.mark.parametrize("is_there", [True, False], ids=["appended to", "made"])
def test_a_result_that_another_process_finished_before_the_plan_is_written_is_no_longer_planned_for(
    result: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    if not is_there:
        shutil.rmtree(result)
    draft, drafts = planner.draft_plan, []

    def drafted(*arguments: Any, **options: Any) -> Any:
        mine = draft(*arguments, **options)
        drafts.append(mine)
        if len(drafts) == 1:
            append(result)
        return mine

    monkeypatch.setattr(planner, "draft_plan", drafted)
    with pytest.raises(BusyError, match="Another process"):
        append(result)
    assert_is_result(result)
    former = former_of(result)
    assert len(former) == is_there
    left = {
        path.name for path in result.parent.iterdir() if not path.name.startswith(".out.former")
    }
    assert left == {"source", "out", *(path.name for path in former)}


def test_the_plan_says_what_is_new(
    result: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    before = snapshot(tmp_path)
    draft = draft_plan(tmp_path / "source", result, tmp_path / "work", Conversion(layout=APPEND))
    assert (draft.summary.kept_episodes, draft.summary.episodes) == (3, 4)
    assert {s.first for b in draft.batches for s in b.shards} == {3}
    words = ["convert", str(tmp_path / "source"), str(result), "--append", "--dry-run"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "New: 1 of 4 episodes" in out
    assert "episodes stay in their files" in out
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kept_episodes"] == 3
    assert snapshot(tmp_path) == before


def test_the_command_is_repeated_whether_there_is_something_new_or_not(
    result: Path, grow: Grow, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["convert", str(result.with_name("source")), str(result), "--append", "--quiet"]
    assert main([*words[:-1]]) == 0
    assert "Appended 1 episode" in capsys.readouterr().out
    assert main(words[:-1]) == 0
    assert "There is nothing to do" in capsys.readouterr().out
    grow(5)
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kept_episodes"] == 4
    assert main([*words, "--on-bad-episode", "drop"]) == 0
    assert_is_result(result)


def test_a_cluster_plans_works_and_packs_it(result: Path) -> None:
    work, source = result.with_name("work"), result.with_name("source")
    assert main(["plan", str(source), str(result), "--append", "--work-dir", str(work)]) == 0
    assert main(["work", str(work)]) == 0
    assert main(["pack", str(work)]) == 0
    assert_is_result(result)
    assert main(["pack", str(work)]) == 0


def test_a_work_dir_that_is_kept_serves_again_once_the_source_has_grown(
    result: Path, grow: Grow
) -> None:
    work = result.with_name("work")
    append(result, work_dir=work)
    assert append(result, work_dir=work).kept_episodes == 3  # the same run, finished
    grow(5)
    assert append(result, work_dir=work).kept_episodes == 4
    assert_is_result(result)


def test_a_fleet_brings_grown_datasets_up_to_date(
    grow: Grow, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grow(3)
    (tmp_path / "list.txt").write_text("source --name out\n")
    words = ["fleet", str(tmp_path / "list.txt"), "-o", str(tmp_path), "--append", "--json"]
    words += ["--work-dir", str(tmp_path / "fleet")]
    for episodes in (3, 4, 5):
        grow(episodes)
        assert main(words) == 0
        (row,) = json.loads(capsys.readouterr().out)["datasets"]
        assert row["state"] == "converted"
    assert files_of(tmp_path / "out", "data") == [f"file-00{n}.parquet" for n in range(3)]
    assert_is_result(tmp_path / "out")
    assert main(words) == 0
    (row,) = json.loads(capsys.readouterr().out)["datasets"]
    assert row["state"] == "finished before"
    assert main([*words, "--dry-run"]) == 0
    assert json.loads(capsys.readouterr().out)["datasets"][0]["is_finished"]


def test_without_hard_links_old_files_are_copied(
    result: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = OSError(errno.EPERM, "Operation not permitted")
    monkeypatch.setattr(fs.os, "link", Mock(side_effect=refused))
    append(result, plan=PlanOptions(one_host=True))
    monkeypatch.undo()
    assert (result / DATA).stat().st_nlink == 1
    assert what_is_lost(result, former_of(result)[0]) is None
    assert_is_result(result)


@pytest.mark.parametrize(
    ("call", "name", "code"),
    [
        ("stat", "meta/info.json", errno.EIO),
        ("lstat", "", errno.ESTALE),
        ("listdir", "meta/episodes", errno.EIO),
        ("listdir", "meta/episodes/chunk-000", errno.ESTALE),
    ],
)
def test_a_disk_that_does_not_show_the_result_says_nothing_about_it(
    result: Path, monkeypatch: pytest.MonkeyPatch, call: str, name: str, code: int
) -> None:
    """Neither that there is none, nor that another dataset stands there."""
    before, broken, real = snapshot(result), str(result / name), getattr(os, call)

    def failing(path: Any, *rest: Any, **named: Any) -> Any:
        if os.fspath(path) == broken:
            raise OSError(code, os.strerror(code), broken)
        return real(path, *rest, **named)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing)
        with pytest.raises(StorageError, match=re.escape(broken)):
            append(result)
    assert snapshot(result) == before
    append(result)
    assert v3.EpisodesReader(result).num_rows == 4
