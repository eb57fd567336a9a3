"""Conversions of v3.0 datasets: what the result holds, proven byte by byte before the swap."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.dataset_damage import DATA, EPISODES, edit_info, rewrite, set_cells
from tests.oddities import ODDITIES
from tests.plans import open_or_plan
from tests.trees import digest_of

import leconvert
from leconvert import media
from leconvert.api import ConversionReport
from leconvert.dataset.check import check_dataset
from leconvert.dataset.formats import v3
from leconvert.dataset.scan import check_source_unchanged
from leconvert.model.repairs import RepairOptions
from leconvert.model.selection import EpisodeSelection
from leconvert.model.values import LayoutOptions, Slice
from leconvert.run.conversion import Conversion, ProofOptions
from leconvert.support.errors import FindingsError, SourceChangedError
from leconvert.tables.schemas import feature_of_type, huggingface_metadata, stored_entries
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset

LENGTHS = [12, 7, 1, 9, 15, 20, 8]
TOP, WRIST = "observation.images.top", "observation.images.wrist"
FROM = f"videos/{TOP}/from_timestamp"
Damage = Callable[[pa.Table], pa.Table]
SMALL = LayoutOptions(data_file_size_in_mb=0.004, video_file_size_in_mb=0.008)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven episodes of two cameras and two tasks in one file a stream."""
    folder = tmp_path_factory.mktemp("v3")
    spec = DatasetSpec(
        episodes=len(LENGTHS),
        frames=LENGTHS,
        cameras=tuple(CameraSpec(key=key, width=64, height=48) for key in (TOP, WRIST)),
        tasks=("Pick up the cube.", "Put it down."),
    )
    leconvert.convert(make_dataset(folder / "v21", spec), output=folder / "v30")
    return folder / "v30"


@pytest.fixture
def source(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "source"))


def converted(source: Path, output: Path, **options: Any) -> ConversionReport:
    report = leconvert.convert(source, output=output, proof=ProofOptions(verify="bytes"), **options)
    assert [f for f in check_dataset(output).findings if f.severity != "info"] == []
    return report


def bytes_of(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def rows_of(root: Path) -> list[dict[str, Any]]:
    reader = v3.EpisodesReader(root)
    return [row for block in reader.blocks(lambda _: True) for row in block.to_pylist()]


def test_into_small_files_and_back_gives_the_same_bytes(source: Path, tmp_path: Path) -> None:
    converted(source, tmp_path / "small", layout=SMALL)
    assert len(list((tmp_path / "small/data").rglob("*.parquet"))) > 1
    converted(tmp_path / "small", tmp_path / "back")
    assert digest_of(source) == digest_of(tmp_path / "back")


def test_what_the_tables_say_beside_the_format_is_kept(source: Path, tmp_path: Path) -> None:
    with pq.ParquetFile(source / EPISODES) as file:
        table = file.read()
    first, second = table.slice(0, 3), table.slice(3)
    second = second.append_column("operator", pa.array(["Ada"] * second.num_rows))
    at = second.schema.get_field_index("meta/episodes/file_index")
    second = second.set_column(at, second.schema.field(at), pa.array([1] * second.num_rows))
    pq.write_table(first, source / EPISODES)
    pq.write_table(second, source / EPISODES.replace("file-000", "file-001"))
    tools = [{"type": "function", "function": {"name": "say"}}]
    edit_info(tools=tools, owner="the lab")(source)
    (source / "meta/notes.txt").write_text("left hand")
    converted(source, tmp_path / "out", layout=SMALL)
    assert [row["operator"] for row in rows_of(tmp_path / "out")] == [None] * 3 + ["Ada"] * 4
    info = json.loads((tmp_path / "out/meta/info.json").read_bytes())
    assert (info["tools"], info["owner"]) == (tools, "the lab")
    assert (tmp_path / "out/meta/notes.txt").read_text() == "left hand"
    before, after = rows_of(source), rows_of(tmp_path / "out")
    kept = [name for name in before[0] if name.startswith("stats/")]
    assert kept
    assert [{n: row[n] for n in kept} for row in after] == [
        {n: row[n] for n in kept} for row in before
    ]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_an_info_json_that_only_leconvert_reads_becomes_utf_8(
    source: Path, tmp_path: Path, encoding: str
) -> None:
    path = source / "meta/info.json"
    path.write_text(path.read_text("utf-8"), encoding)
    converted(source, tmp_path / "out")


def test_where_a_count_decides_the_proof_counts(source: Path, sound: Path, tmp_path: Path) -> None:
    rewrite(EPISODES, set_cells(FROM, r3=0.7))(source)
    with pq.ParquetFile(source / DATA) as file:
        table = file.read()
    at = table.schema.get_field_index("episode_index")
    strange = table.slice(0, 3).set_column(at, table.schema.field(at), pa.array([99] * 3))
    pq.write_table(pa.concat_tables([strange, table]), source / DATA)
    report = converted(source, tmp_path / "out", layout=SMALL)
    assert [f.code for f in report.findings] == ["stray-rows", "from-timestamp"]
    converted(sound, tmp_path / "right", layout=SMALL)
    found, wanted = bytes_of(tmp_path / "out"), bytes_of(tmp_path / "right")
    videos = [path for path in wanted if path.endswith(".mp4")]
    assert [path for path in videos if found[path] != wanted[path]] == []
    rows, right = rows_of(tmp_path / "out"), rows_of(tmp_path / "right")
    for name in (FROM, "dataset_from_index", "length", "tasks", "stats/action/mean"):
        assert [row[name] for row in rows] == [row[name] for row in right]


def test_dropped_episodes_leave_right_numbers_and_statistics(source: Path, tmp_path: Path) -> None:
    rewrite(DATA, lambda table: table.slice(0, 60), row_groups=False)(source)
    report = converted(source, tmp_path / "out", repairs=RepairOptions(on_bad_episode="drop"))
    assert report.episodes == 5
    rows = rows_of(tmp_path / "out")
    assert [row["stats/index/max"] for row in rows] == [[11], [18], [19], [28], [43]]
    assert [row["stats/episode_index/max"] for row in rows] == [[n] for n in range(5)]


def _wrong_length(table: pa.Table) -> pa.Table:
    return set_cells("length", r1=table["length"][1].as_py() + 1)(table)


@pytest.mark.parametrize(
    ("path", "damage", "code"),
    [
        ("meta/tasks.parquet", lambda table: table.take([1, 0]), "task-gap"),
        (EPISODES, lambda table: table.drop_columns(["tasks"]), "missing-tasks"),
        (EPISODES, _wrong_length, "episode-range"),
    ],
)
def test_what_tables_say_otherwise_is_named_and_the_result_is_as_lerobot_reads_the_source(
    source: Path, sound: Path, tmp_path: Path, path: str, damage: Damage, code: str
) -> None:
    table = pq.read_table(source / path)
    pq.write_table(damage(table), source / path)
    proof = ProofOptions(verify="bytes")
    report = leconvert.convert(source, output=tmp_path / "out", proof=proof)
    assert (code, "warning") in [(f.code, f.severity) for f in report.findings]
    result, before = v3.Dataset(tmp_path / "out"), v3.Dataset(sound)
    assert result.episodes.length.tolist() == before.episodes.length.tolist()
    rows = v3.read_tasks(source)
    assert [text for _, text in v3.read_tasks(tmp_path / "out")] == [text for _, text in rows]
    assert [index for index, _ in v3.read_tasks(tmp_path / "out")] == list(range(len(rows)))


@pytest.mark.parametrize(
    ("index", "beside"),
    [("instruction", []), ("instruction", ["task"]), ("task", ["__index_level_0__"])],
)
def test_the_texts_of_tasks_are_the_pandas_index_whatever_the_names_of_the_columns(
    source: Path, tmp_path: Path, index: str, beside: list[str]
) -> None:
    path = source / "meta/tasks.parquet"
    table = pq.read_table(path)
    texts = table.column("task").to_pylist()
    pandas = table.schema.metadata[b"pandas"].replace(b'"task"', f'"{index}"'.encode())
    columns = {"task_index": range(len(texts)), index: texts}
    columns |= {name: ["another text"] * len(texts) for name in beside}
    pq.write_table(pa.table(columns, metadata={"pandas": pandas}), path)
    assert not check_dataset(source).findings
    converted(source, tmp_path / "out")
    assert v3.read_tasks(tmp_path / "out") == list(enumerate(texts))
    assert list(v3.Dataset(source).tasks) == texts


def _with_frames_of_no_episode(source: Path) -> str:
    video = f"videos/{TOP}/chunk-000/file-000.mp4"
    parts = [Slice(str(source / video)), Slice(str(source / video), 0, LENGTHS[0])]
    media.join_clips(parts, source / "longer.mp4", fps=Fraction(30), block_align=0)
    (source / "longer.mp4").replace(source / video)
    return video


def _with_rows_of_no_episode(source: Path) -> str:
    def with_another_row(table: pa.Table) -> pa.Table:
        last = set_cells("episode_index", r0=len(LENGTHS))(table.slice(table.num_rows - 1))
        return pa.concat_tables([table, last])

    rewrite(DATA, with_another_row, row_groups=False)(source)
    return DATA


def _with_sound(source: Path) -> str:
    shutil.rmtree(source)
    ODDITIES["audio in some clips"](source)
    return "videos/"


@pytest.mark.parametrize(
    "add", [None, _with_frames_of_no_episode, _with_rows_of_no_episode, _with_sound]
)
def test_a_replaced_source_can_be_removed_unless_it_has_more_than_its_episodes(
    source: Path, add: Callable[[Path], str] | None
) -> None:
    path = add(source) if add else None
    before, old = bytes_of(source), source.with_name("source_old")
    report = leconvert.convert(source, layout=SMALL, proof=ProofOptions(delete_source=True))
    if path is None:
        assert (report.kept_source, report.removed_source, old.exists()) == (None, old, False)
        return
    assert (report.kept_source, report.removed_source) == (old, None)
    said = f"1 file is not completely in the result: {path}"
    assert str(report.kept_because).startswith(said)
    assert bytes_of(old) == before


def test_a_source_that_changes_after_the_plan_is_told(source: Path, tmp_path: Path) -> None:
    run = open_or_plan(source, tmp_path / "out", tmp_path / "work", Conversion(layout=SMALL))
    check_source_unchanged(run)
    (source / DATA).write_bytes((source / DATA).read_bytes() + b"\0")
    with pytest.raises(SourceChangedError) as told:
        check_source_unchanged(run)
    assert DATA in told.value.details[0]
    rewrite(EPISODES, lambda table: table)(source)
    with pytest.raises(SourceChangedError, match="changed after the conversion was planned"):
        check_source_unchanged(run)


@pytest.mark.parametrize(
    ("selection", "kept"),
    [
        (EpisodeSelection(episodes="1-2,5"), [1, 2, 5]),
        (EpisodeSelection(exclude_episodes="0,6"), [1, 2, 3, 4, 5]),
        (EpisodeSelection(exclude_tasks=("Put it down.",)), [0, 2, 4, 6]),
    ],
)
def test_selected_episodes_are_cut_out(
    source: Path, tmp_path: Path, selection: EpisodeSelection, kept: list[int]
) -> None:
    # What is wrong with others does not matter.
    rewrite(DATA, set_cells("frame_index", **{f"r{sum(LENGTHS[:3])}": 7}))(source)
    if 3 in kept:
        with pytest.raises(FindingsError):
            converted(source, tmp_path / "out", selection=selection)
        return
    report = converted(source, tmp_path / "out", selection=selection, layout=SMALL)
    assert report.repairs["selected_episodes"]
    rows = rows_of(tmp_path / "out")
    assert [row["length"] for row in rows] == [LENGTHS[episode] for episode in kept]
    before = rows_of(source)
    for name in ("tasks", "stats/action/mean", f"stats/{TOP}/max"):
        assert [row[name] for row in rows] == [before[episode][name] for episode in kept]
    assert [row["stats/episode_index/min"] for row in rows] == [[n] for n in range(len(kept))]


@pytest.mark.parametrize("is_told", [False, True])
def test_a_column_in_two_types_gets_the_wider_of_both(
    as_v21: Path, tmp_path: Path, is_told: bool
) -> None:
    """No file has the columns of the result: one has wider times, another wider actions.

    Each may tell `datasets` of its own types, as `datasets` itself writes it.
    """
    source = Path(shutil.copytree(as_v21, tmp_path / "v21"))
    tables = sorted((source / "data").rglob("*.parquet"))
    widen(tables[0], "timestamp", pa.float64(), is_told=is_told)
    widen(tables[1], "action", pa.list_(pa.float64()), is_told=is_told)
    widen(tables[2], "index", pa.int32(), is_told=is_told)
    report = converted(source, tmp_path / "result")
    assert {each.code for each in report.findings} - {"several-tasks"} == {"dtype-mismatch"}
    stored = pq.read_schema(tmp_path / "result" / DATA)
    kinds = [str(stored.field(name).type) for name in ("timestamp", "action", "index")]
    assert kinds == ["double", "list<element: double>", "int64"]
    rows = [row for path in tables for row in pq.read_table(path).to_pylist()]
    assert pq.read_table(tmp_path / "result" / DATA).to_pylist() == rows


@pytest.fixture(scope="module")
def as_v21(sound: Path) -> Path:
    """Those episodes in v2.1, with a file each; do not change them."""
    to = LayoutOptions(to="v2.1")
    return leconvert.convert(sound, output=sound.with_name("back"), layout=to).output


def test_statistics_of_parts_of_files_are_those_of_single_files(
    sound: Path, as_v21: Path, tmp_path: Path
) -> None:
    rows = []
    for source in (sound, as_v21):
        out = tmp_path / f"of {source.name}"
        converted(source, out, repairs=RepairOptions(quantiles=True))
        rows.append(rows_of(out))
    assert "stats/action/q01" in rows[0][0]
    assert rows[0] == rows[1]


def widen(path: Path, name: str, kind: pa.DataType, *, is_told: bool = False) -> None:
    table = pq.read_table(path)
    at = table.schema.get_field_index(name)
    values = table.column(name).combine_chunks().cast(kind, safe=False)
    table = table.set_column(at, name, values)
    if is_told:
        entries = {**stored_entries(table.schema), name: feature_of_type(kind)}
        table = table.replace_schema_metadata(huggingface_metadata(entries))
    pq.write_table(table, path)


def test_times_of_another_type_that_hold_no_fractions_are_computed(
    sound: Path, as_v21: Path, tmp_path: Path
) -> None:
    source = Path(shutil.copytree(as_v21, tmp_path / "v21"))
    widen(min((source / "data").rglob("*.parquet")), "timestamp", pa.int32())
    with pytest.raises(FindingsError) as refused:
        leconvert.convert(source, output=tmp_path / "result")
    errors = [each for each in refused.value.findings if each["severity"] == "error"]
    assert {each["code"] for each in errors} == {"schema-mismatch", "timestamps"}
    assert {each["remedy"] for each in errors} == {"--retime"}
    converted(source, tmp_path / "result", repairs=RepairOptions(retime=True))
    wanted = pq.read_table(sound / DATA).column("timestamp")
    assert pq.read_table(tmp_path / "result" / DATA).column("timestamp").equals(wanted)
