"""Several datasets made one: what must be alike, what is numbered anew, and what is proven."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.dataset_damage import rewrite, set_cells
from tests.plans import open_or_plan
from tests.trees import digest_of

import leconvert
from leconvert import LayoutOptions, ProofOptions, RepairOptions
from leconvert.cli.main import main
from leconvert.dataset.check import check_dataset
from leconvert.dataset.formats import PROVENANCE_PATH, open_dataset, read_provenance, v3
from leconvert.model.selection import EpisodeSelection
from leconvert.run.conversion import Places
from leconvert.run.planner import check_all_places
from leconvert.run.proof import verify_pair
from leconvert.support.errors import FindingsError, SourceChangedError, SourceError, UsageError
from leconvert.testing import CameraSpec, DatasetSpec, edit_info, edit_lines, make_dataset
from leconvert.testing import with_column as column_set

BYTES = ProofOptions(verify="bytes")
CAMERA = CameraSpec(key="observation.images.top", width=64, height=48)
FIRST = DatasetSpec(
    episodes=3, frames=[7, 5, 9], cameras=(CAMERA,), tasks=("lift", "place"), seed=1
)
SECOND = DatasetSpec(episodes=2, frames=[6, 8], cameras=(CAMERA,), tasks=("push", "lift"), seed=2)
Make = Callable[..., list[Path]]


def made_in(folder: Path, *specs: DatasetSpec) -> list[Path]:
    """Make datasets, each in a folder of its own."""
    return [make_dataset(folder / f"source{n}", spec) for n, spec in enumerate(specs)]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return partial(made_in, tmp_path)


@pytest.fixture(scope="module")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return made_in(tmp_path_factory.mktemp("two"), FIRST, SECOND)


@pytest.fixture
def two(made_once: list[Path], tmp_path: Path) -> list[Path]:
    """Two datasets whose tasks stand in another order."""
    return [Path(shutil.copytree(root, tmp_path / root.name)) for root in made_once]


def texts_of_rows(root: Path) -> list[str]:
    """Return the text of each row's task."""
    dataset = open_dataset(root)
    texts = dict(dataset.task_table)
    paths = sorted(set(dataset.slices("data").paths))
    rows = [pq.read_table(root / path, columns=["task_index"]) for path in paths]
    return [texts[task] for table in rows for task in table["task_index"].to_pylist()]


@pytest.mark.parametrize("to", ["v3.0", "v2.1"])
def test_a_merge_has_all_episodes_in_order_with_their_own_tasks(
    two: list[Path], tmp_path: Path, to: str
) -> None:
    report = leconvert.merge(two, output=tmp_path / "out", layout=LayoutOptions(to=to), proof=BYTES)
    assert (report.episodes, report.frames, report.findings) == (5, 35, [])
    dataset = open_dataset(tmp_path / "out")
    assert dataset.version == to
    assert dataset.episodes.length.tolist() == [7, 5, 9, 6, 8]
    assert [text for _, text in dataset.task_table] == ["lift", "place", "push"]
    assert texts_of_rows(tmp_path / "out") == [*texts_of_rows(two[0]), *texts_of_rows(two[1])]
    assert dataset.info["splits"] == {"train": "0:5"}
    assert dataset.stats["index"]["max"].tolist() == [34]
    assert dataset.stats["task_index"]["max"].tolist() == [2]
    assert leconvert.verify_pair(tmp_path / "out", two[::-1], depth="bytes").ok


def test_rows_without_a_task_get_the_only_task_of_their_source(make: Make, tmp_path: Path) -> None:
    first, second = make(FIRST, replace(SECOND, tasks=("push",)))
    for path in sorted(second.rglob("*.parquet")):
        pq.write_table(pq.read_table(path).drop_columns(["task_index"]), path)
    report = leconvert.merge([first, second], output=tmp_path / "out", proof=BYTES)
    assert "missing-column" in [finding.code for finding in report.findings]
    assert texts_of_rows(tmp_path / "out") == [*texts_of_rows(first), *(["push"] * 14)]
    stats = open_dataset(tmp_path / "out").stats["task_index"]
    assert (stats["min"].tolist(), stats["max"].tolist()) == ([0], [2])


def test_a_trimmed_source_is_merged_with_its_frames(two: list[Path], tmp_path: Path) -> None:
    trimmed = tmp_path / "trimmed"
    leconvert.trim(two[0], output=trimmed, frames={0: (3, 6)}, proof=BYTES)
    sources = [two[1], trimmed]
    leconvert.merge(sources, output=tmp_path / "out", proof=BYTES)
    dataset = open_dataset(tmp_path / "out")
    assert dataset.episodes.length.tolist() == [6, 8, 3, 5, 9]
    assert [f for f in check_dataset(tmp_path / "out").findings if f.severity == "error"] == []


def test_all_that_differs_stands_in_one_table(make: Make, tmp_path: Path) -> None:
    sources = make(FIRST, replace(SECOND, state_dim=7, has_done=True, fps=10, robot_type="arm"))
    with pytest.raises(SourceError, match="they differ in 4 points") as caught:
        leconvert.merge(sources, output=tmp_path / "out")
    assert caught.value.details[:2] == (f"1: {sources[0]}", f"2: {sources[1]}")
    rows = [line.split() for line in caught.value.details[3:]]
    assert rows == [
        ["fps", "30", "10"],
        ["robot_type", "generated", "arm"],
        ["observation.state", "float32", "6", "float32", "7"],
        ["next.done", "-", "bool", "1"],
    ]
    assert "--accept robot-type" in str(caught.value.next_step)
    assert not (tmp_path / "out").exists()


def test_features_that_differ_can_go_and_robots_be_accepted(make: Make, tmp_path: Path) -> None:
    sources = make(FIRST, replace(SECOND, state_dim=7, has_done=True, robot_type="arm"))
    allowed = RepairOptions(
        drop_features=("observation.state", "next.done"), accept=("robot-type",)
    )
    report = leconvert.merge(sources, output=tmp_path / "out", repairs=allowed, proof=BYTES)
    assert [finding.code for finding in report.findings] == ["robot-type"]
    dataset = open_dataset(tmp_path / "out")
    assert not {"observation.state", "next.done"} & dataset.features.keys()
    assert dataset.info["robot_type"] == "generated"
    assert leconvert.verify_pair(tmp_path / "out", sources, depth="bytes").ok


def test_names_of_values_must_match_where_both_have_them(two: list[Path], tmp_path: Path) -> None:
    joints = [f"joint{number}" for number in range(6)]
    edit_info(two[1], lambda info: info["features"]["action"].update(names=joints))
    with pytest.raises(SourceError) as caught:
        leconvert.merge(two, output=tmp_path / "out")
    assert caught.value.details[3].startswith("action ")
    edit_info(two[1], lambda info: info["features"]["action"].update(names=None))
    leconvert.merge(two, output=tmp_path / "out", proof=BYTES)


@pytest.mark.parametrize("places", [(0, 1), (1, 0)])
def test_lerobots_own_columns_may_have_other_types_of_numbers(
    two: list[Path], tmp_path: Path, places: tuple[int, int]
) -> None:
    """Nobody can leave such a column out; the result has the type that holds all values."""
    others = {"timestamp": pa.float64(), "index": pa.int32(), "task_index": pa.uint8()}
    for path in (two[1] / "data").rglob("*.parquet"):
        table = pq.read_table(path)
        for name, kind in others.items():
            table = column_set(table, name, table[name].cast(kind))
        pq.write_table(table, path)
    sources = [two[place] for place in places]
    leconvert.merge(sources, output=tmp_path / "out", proof=BYTES)
    (path,) = (tmp_path / "out/data").rglob("*.parquet")
    stored, features = pq.read_schema(path), open_dataset(tmp_path / "out").features
    wanted = {"timestamp": "float64", "index": "int64", "task_index": "int64"}
    assert {name: features[name]["dtype"] for name in wanted} == wanted
    assert [stored.field(name).type for name in wanted] == [pa.float64(), pa.int64(), pa.int64()]
    assert check_dataset(tmp_path / "out").findings == ()


def test_another_codec_begins_another_file(make: Make, tmp_path: Path) -> None:
    sources = make(FIRST, replace(SECOND, cameras=(replace(CAMERA, codec="hevc"),)))
    leconvert.merge(sources, output=tmp_path / "out", proof=BYTES)
    slices = open_dataset(tmp_path / "out").slices("videos/observation.images.top")
    assert slices.file.tolist() == [0, 0, 0, 1, 1]
    declared = open_dataset(tmp_path / "out").features[CAMERA.key]["info"]["video.codec"]
    assert declared == "h264", "as most episodes are"


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ({}, {"video.depth_max": 5.0}, "depth_max 5, "),
        ({"depth_unit": "mm"}, {"depth_unit": "m"}, "depth in m, "),
        ({"depth_unit": "mm"}, {"video.depth_max": 10, "video.shift": 3.5}, None),
    ],
)
def test_depth_cameras_that_store_other_distances_are_not_merged(
    two: list[Path], tmp_path: Path, first: dict[str, Any], second: dict[str, Any], said: str | None
) -> None:
    for root, facts in zip(two, (first, second), strict=True):
        told = {"video.is_depth_map": True, **facts}
        edit_info(root, lambda info, t=told: info["features"][CAMERA.key]["info"].update(t))
    if said is None:
        leconvert.merge(two, output=tmp_path / "out")
        return
    with pytest.raises(SourceError, match="they differ in 1 point") as caught:
        leconvert.merge(two, output=tmp_path / "out")
    assert said in caught.value.details[3]
    assert "--drop-feature NAME" in str(caught.value.next_step)


def test_senseless_places_are_refused_and_faults_told_with_their_source(
    two: list[Path], tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="lies inside"):
        leconvert.merge([*two, two[1] / ".."], output=tmp_path / "out")
    for inside in (two[0], two[1] / "out", tmp_path):
        with pytest.raises(UsageError):
            leconvert.merge(two, output=inside)
    with pytest.raises(TypeError, match="selection"):
        leconvert.merge(two, output=tmp_path / "out", selection="0-3")  # type: ignore[call-arg]
    for root in two:
        next(root.rglob("*.mp4")).unlink()
    with pytest.raises(FindingsError, match="2 of 2 datasets cannot be converted") as caught:
        leconvert.merge(two, output=tmp_path / "out")
    assert [finding["message"].split(":")[0] for finding in caught.value.findings] == [
        str(root) for root in two
    ]


def test_two_mounts_of_one_export_are_one_dataset_and_a_copy_is_not(
    two: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mount of its own may have a device number of its own."""
    mount, real = tmp_path / "mount", Path.stat
    mount.symlink_to(two[0])
    copy = shutil.copytree(two[0], tmp_path / "copy")

    def stat(path: Path, **options: Any) -> os.stat_result:
        found = real(path, **options)
        if path != mount:
            return found
        return os.stat_result([*found[:2], found.st_dev + 1, *found[3:]])

    monkeypatch.setattr(Path, "stat", stat)
    with pytest.raises(UsageError, match=f"{mount} is given twice, as {two[0]} too"):
        check_all_places(Places([two[0], mount], tmp_path / "out", tmp_path / "work"))
    check_all_places(Places([two[0], two[1], copy], tmp_path / "out", tmp_path / "work"))


# --- provenance -----------------------------------------------------------------------------------


def test_each_episode_names_its_source_and_a_plain_conversion_none(
    two: list[Path], tmp_path: Path
) -> None:
    leconvert.merge(two, output=tmp_path / "out", repairs=RepairOptions(reindex=True))
    found = read_provenance(tmp_path / "out")
    assert [source.name for source in found.sources] == ["source0", "source1"]
    assert found.episode_index.tolist() == [0, 1, 2, 3, 4]
    assert found.source.tolist() == [0, 0, 0, 1, 1]
    assert found.source_episode_index.tolist() == [0, 1, 2, 0, 1]
    assert len(set(found.sha256)) == 5
    selection = EpisodeSelection(episodes="0,2")
    leconvert.convert(two[0], output=tmp_path / "part", selection=selection)
    found = read_provenance(tmp_path / "part")
    assert found.source_episode_index.tolist() == [0, 2]
    assert leconvert.verify_pair(tmp_path / "part", two[0], depth="bytes").ok
    # As a result from before there was a provenance.
    (tmp_path / "part" / PROVENANCE_PATH).unlink()
    assert leconvert.verify_pair(tmp_path / "part", two[0], depth="bytes").ok
    leconvert.convert(two[0], output=tmp_path / "whole")
    assert not (tmp_path / "whole" / PROVENANCE_PATH).exists()


def rewrite_column(root: Path, column: str, values: list[object]) -> None:
    """Replace a column of the table of provenance."""
    cells = {f"r{row}": value for row, value in enumerate(values)}
    rewrite(PROVENANCE_PATH, set_cells(column, **cells))(root)


@pytest.fixture
def merged(two: list[Path], tmp_path: Path) -> Path:
    leconvert.merge(two, output=tmp_path / "out")
    return tmp_path / "out"


def test_verify_finds_a_wrong_torn_or_missing_provenance(two: list[Path], merged: Path) -> None:
    right = (merged / PROVENANCE_PATH).read_bytes()
    wrong: tuple[tuple[str, list[object]], ...] = (
        ("episode_index", [0, 1, 2, 4, 3]),
        ("source", [0, 0, 1, 1, 1]),
        ("source_episode_index", [0, 2, 1, 0, 1]),
        ("sha256", ["0" * 64] * 5),
    )
    for column, values in wrong:
        rewrite_column(merged, column, values)
        found = leconvert.verify_pair(merged, two).differences
        assert {difference.path for difference in found} == {PROVENANCE_PATH}, column
        (merged / PROVENANCE_PATH).write_bytes(right)
    (merged / PROVENANCE_PATH).write_bytes(b"PAR1")
    with pytest.raises(SourceError, match="cannot be used"):
        leconvert.verify_pair(merged, two)
    (merged / PROVENANCE_PATH).unlink()
    with pytest.raises(UsageError, match="was made from 1 dataset, not from 2"):
        leconvert.verify_pair(merged, two)


def test_verify_wants_all_sources_and_knows_them_by_their_tables_wherever_they_are(
    two: list[Path], merged: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="was made from 2 datasets, not from 1") as caught:
        leconvert.verify_pair(merged, two[0])
    assert "source0, source1" in str(caught.value.next_step)
    moved = [tmp_path / "b", tmp_path / "a"]
    for old, new in zip(two, moved, strict=True):
        shutil.move(old, new)
    assert leconvert.verify_pair(merged, moved[::-1], depth="bytes").ok


def test_an_episode_that_changed_in_its_source_is_named(two: list[Path], merged: Path) -> None:
    edit_lines(two[1], "episodes_stats", lambda lines: lines[1]["stats"]["action"].update(mean=[9]))
    found = leconvert.verify_pair(merged, two).differences
    assert [(one.path, one.episode) for one in found] == [(PROVENANCE_PATH, 1)]


def test_check_says_where_the_provenance_is_of_other_episodes(merged: Path, tmp_path: Path) -> None:
    right = (merged / PROVENANCE_PATH).read_bytes()
    assert check_dataset(merged).findings == ()
    wrong: tuple[tuple[str, list[object], str], ...] = (
        ("episode_index", [0, 1, 2, 4, 3], "row 3 is episode 4"),
        ("source", [0, 0, 0, 1, 2], "names source 2 for episode 4"),
    )
    for column, values, said in wrong:
        rewrite_column(merged, column, values)
        (finding,) = check_dataset(merged).findings
        assert (finding.code, finding.severity) == ("provenance", "warning")
        assert said in finding.message
        assert f"`leconvert convert {merged} NEW`" in str(finding.remedy)
        (merged / PROVENANCE_PATH).write_bytes(right)
    (merged / PROVENANCE_PATH).write_bytes(b"PAR1")
    assert [finding.code for finding in check_dataset(merged).findings] == ["provenance"]
    leconvert.convert(merged, output=tmp_path / "new")
    assert check_dataset(tmp_path / "new").findings == ()


# --- a run of several sources ---------------------------------------------------------------------


def test_a_source_that_changed_after_the_plan_is_noticed(two: list[Path], tmp_path: Path) -> None:
    open_or_plan(two, tmp_path / "out", tmp_path / "work")
    changed = two[1] / "data/chunk-000/episode_000001.parquet"
    changed.write_bytes(changed.read_bytes() + b"\n")
    with pytest.raises(SourceChangedError) as caught:
        leconvert.merge(two, output=tmp_path / "out", work_dir=tmp_path / "work")
    assert caught.value.path == str(two[1])


def test_the_files_of_two_v3_sources_are_told_apart(make: Make, tmp_path: Path) -> None:
    """Both have a file of the same name, and so of the same key."""
    members = []
    for root in make(FIRST, SECOND):
        leconvert.convert(root, output=root.with_suffix(".v3"))
        members.append(root.with_suffix(".v3"))
    run = open_or_plan(members, tmp_path / "out", tmp_path / "work")
    files = run.scan.files("data")
    assert (files.source.tolist(), files.key.tolist()) == ([0, 1], [0, 0])
    scan, index = run.scan.stream("data", 2, 5)
    assert (scan.files.source[scan.file].tolist(), index.tolist()) == ([0, 1, 1], [2, 0, 1])
    leconvert.merge(members, output=tmp_path / "out", work_dir=tmp_path / "work", proof=BYTES)
    assert v3.Dataset(tmp_path / "out").episodes.length.tolist() == [7, 5, 9, 6, 8]


def test_results_do_not_depend_on_where_sources_lie(
    two: list[Path], merged: Path, tmp_path: Path
) -> None:
    elsewhere = [tmp_path / "elsewhere" / source.name for source in two]
    for source, copy in zip(two, elsewhere, strict=True):
        shutil.copytree(source, copy)
    leconvert.merge(elsewhere, output=tmp_path / "again")
    assert digest_of(merged) == digest_of(tmp_path / "again")
    assert str(tmp_path).encode() not in (merged / PROVENANCE_PATH).read_bytes()


# ------------------------------------------------------------------------------------------------
# Subtasks, as LeRobot 0.4.4 to 0.5.1 kept them: a row names the row of a table of texts.


SUBTASKS = "meta/subtasks.parquet"


def with_subtasks(root: Path, texts: list[str] | None) -> Path:
    """Give the rows of a v2.1 dataset a ``subtask_index``, and the dataset the table of texts."""
    for path in sorted(root.glob("data/*/*.parquet")):
        table = pq.read_table(path)
        numbers = pa.array([row % 2 for row in range(len(table))], pa.int64())
        pq.write_table(column_set(table, "subtask_index", numbers), path)
    feature = {"dtype": "int64", "shape": [1], "names": None}
    edit_info(root, lambda info: info["features"].update(subtask_index=feature))
    if texts is not None:
        index = json.dumps({"index_columns": ["subtask"], "columns": []})
        columns = {"subtask_index": list(range(len(texts))), "subtask": texts}
        table = pa.table(columns).replace_schema_metadata({"pandas": index})
        pq.write_table(table, root / SUBTASKS)
    return root


FILLED = RepairOptions(fill_stats=True)


def test_rows_that_name_subtasks_of_different_tables_are_not_merged(
    two: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_subtasks(two[0], ["reach", "grasp"])
    with_subtasks(two[1], ["reach", "grasp", "lift"])
    out = tmp_path / "out"
    command = ["merge", *map(str, two), "-o", str(out), "--fill-stats", "--verify", "bytes"]
    assert main(command) == 3
    said = capsys.readouterr().err
    assert f"{SUBTASKS}, row 2" in said
    assert "--drop-feature subtask_index" in said
    assert not out.exists()
    assert main([*command, "--drop-feature", "subtask_index"]) == 0
    assert "subtask_index" not in open_dataset(out).features


def test_equal_subtasks_are_merged_and_verify_finds_others(two: list[Path], tmp_path: Path) -> None:
    texts = ["reach", "grasp"]
    for root in two:
        with_subtasks(root, texts)
    rewritten = pq.read_table(two[1] / SUBTASKS)
    pq.write_table(rewritten, two[1] / SUBTASKS, compression="zstd")  # other bytes, same texts
    out = tmp_path / "out"
    leconvert.merge(two, output=out, repairs=FILLED, proof=BYTES)
    assert v3.read_subtasks(out) == texts
    with_texts = pq.read_table(two[1] / SUBTASKS).set_column(1, "subtask", pa.array(texts[::-1]))
    pq.write_table(with_texts, two[1] / SUBTASKS)
    report = verify_pair(out, two, depth="bytes")
    assert [(each.path, each.found) for each in report.differences] == [(SUBTASKS, "reach, grasp")]


def test_the_table_of_subtasks_comes_along_as_it_is(two: list[Path], tmp_path: Path) -> None:
    source = with_subtasks(two[0], ["reach", "grasp"])
    table = (source / SUBTASKS).read_bytes()
    whole, part, older = tmp_path / "whole", tmp_path / "part", tmp_path / "older"
    leconvert.convert(source, output=whole, repairs=FILLED, proof=BYTES)
    chosen = EpisodeSelection(episodes="1-2")
    leconvert.convert(whole, output=part, selection=chosen, proof=BYTES)
    leconvert.convert(whole, output=older, layout=LayoutOptions(to="v2.1"), proof=BYTES)
    leconvert.split(whole, output_dir=tmp_path / "parts", into={"a": "0", "b": "1-2"}, proof=BYTES)
    for result in (whole, part, older, tmp_path / "parts/a", tmp_path / "parts/b"):
        assert (result / SUBTASKS).read_bytes() == table, result
        paths = sorted(result.glob("data/*/*.parquet"))
        numbers = [pq.read_table(path)["subtask_index"].to_pylist() for path in paths]
        lengths = open_dataset(result).episodes.length.tolist()
        wanted = [row % 2 for length in lengths for row in range(length)]
        assert list(itertools.chain.from_iterable(numbers)) == wanted, result
