"""The episodes table: columns, widening, roll-over; the tasks table."""

import hashlib
import json
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.episode_records import EpisodeRecord, VideoSpan, write_episodes
from tests.trees import read_episodes

from leconvert.dataset.formats.v3 import (
    DATA_PATH_TEMPLATE,
    Dataset,
    EpisodesReader,
    episodes_path,
    read_tasks,
    write_tasks,
)
from leconvert.support.errors import SourceError, UnreadableSourceError

FPS = Fraction(30)


def record(index: int, *, stats: Any = None, **legacy: Any) -> EpisodeRecord:
    line = {"episode_index": index, "tasks": ["t"], "length": 10} | legacy
    return EpisodeRecord(index, 0, index * 10, 10, (), line, stats)


def tree_digest(root: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.parquet")):
        digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return digest.hexdigest()


def test_times_are_frames_over_rate_rounded_once(tmp_path: Path) -> None:
    fps = Fraction(2997, 100)
    start, stop = 3_000_001, 3_000_302
    spans = (VideoSpan("cam", 2345, start, stop),)
    episode = EpisodeRecord(0, 1999, 0, 301, spans, {"tasks": ["t"]}, None)
    write_episodes(tmp_path, lambda: [episode], fps=fps)
    (row,) = read_episodes(tmp_path).to_pylist()
    assert row["videos/cam/from_timestamp"] == float(Fraction(start) / fps)
    assert row["videos/cam/to_timestamp"] == float(Fraction(stop) / fps)
    assert (row["videos/cam/chunk_index"], row["videos/cam/file_index"]) == (2, 345)
    assert (row["data/chunk_index"], row["data/file_index"]) == (1, 999)
    assert row["dataset_to_index"] == row["length"] == 301
    write_episodes(tmp_path, lambda: [record(0, episode_index=17, length=99)], fps=FPS)
    (row,) = read_episodes(tmp_path).to_pylist()
    assert (row["episode_index"], row["length"]) == (0, 10), "not those of the source's line"


def test_columns_that_only_later_rows_have_are_null_before(tmp_path: Path) -> None:
    calls = 0

    def episodes() -> Iterator[EpisodeRecord]:
        nonlocal calls
        calls += 1
        for index in range(2500):
            late: dict[str, Any] = (
                {"note": "late", "weight": 0.5} if index >= 2400 else {"weight": 1}
            )
            stats = {"a": {"min": [0], "max": [1 if index < 1200 else 1.5]}}
            if index == 2000:
                stats["b"] = {"inner": {"min": [[1]]}}
            yield record(index, stats=stats, **late)

    write_episodes(tmp_path, episodes, fps=FPS)
    assert calls == 3
    table = read_episodes(tmp_path)
    assert table.schema.names == [
        "episode_index",
        "data/chunk_index",
        "data/file_index",
        "dataset_from_index",
        "dataset_to_index",
        "tasks",
        "length",
        "weight",
        "note",
        "stats/a/min",
        "stats/a/max",
        "stats/b/inner/min",
        "meta/episodes/chunk_index",
        "meta/episodes/file_index",
    ]
    assert table["note"].to_pylist() == [None] * 2400 + ["late"] * 100
    assert table["weight"].to_pylist() == [1.0] * 2400 + [0.5] * 100
    assert table.schema.field("stats/a/max").type == pa.list_(pa.float64())
    assert table.schema.field("stats/a/min").type == pa.list_(pa.int64())
    assert table["stats/b/inner/min"].to_pylist()[2000] == [[1]]
    assert table["stats/b/inner/min"].null_count == 2499
    assert table["episode_index"].to_pylist() == list(range(2500))


def test_the_common_case_reads_the_records_once(tmp_path: Path) -> None:
    calls = 0

    def episodes() -> list[EpisodeRecord]:
        nonlocal calls
        calls += 1
        return [record(index, stats={"a": {"min": [0.5]}}) for index in range(1500)]

    write_episodes(tmp_path, episodes, fps=FPS)
    assert calls == 1


def test_the_table_rolls_over_and_rows_name_their_own_file(tmp_path: Path) -> None:
    episodes = [record(index, stats={"a": {"min": [0.5] * 20}}) for index in range(1200)]
    limit = 100_000
    paths = write_episodes(tmp_path, lambda: episodes, fps=FPS, file_size_limit_bytes=limit)
    assert paths == [episodes_path(number) for number in range(len(paths))]
    assert len(paths) > 2
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*.parquet")) == paths
    rows = 0
    for number, path in enumerate(paths):
        table = pq.read_table(tmp_path / path)
        assert set(table["meta/episodes/file_index"].to_pylist()) == {number}
        assert table["episode_index"].to_pylist() == list(range(rows, rows + table.num_rows))
        # Rounding up to whole bytes weighs more in a file than in a block.
        assert 0.5 * limit < table.nbytes < 1.05 * limit or number == len(paths) - 1
        assert b"huggingface" in table.schema.metadata
        rows += table.num_rows
    assert rows == 1200
    assert read_episodes(tmp_path)["episode_index"].to_pylist() == list(range(1200))


def test_files_beyond_a_thousand_go_to_the_next_chunk(tmp_path: Path) -> None:
    episodes = [record(index) for index in range(1003)]
    paths = write_episodes(tmp_path, lambda: episodes, fps=FPS, file_size_limit_bytes=1)
    assert paths[999:1001] == [
        "meta/episodes/chunk-000/file-999.parquet",
        "meta/episodes/chunk-001/file-000.parquet",
    ]
    row = pq.read_table(tmp_path / paths[1002]).to_pylist()[0]
    assert row["episode_index"] == 1002
    assert (row["meta/episodes/chunk_index"], row["meta/episodes/file_index"]) == (1, 2)


def test_widening_gives_the_bytes_of_knowing_beforehand(tmp_path: Path) -> None:
    def episodes(first_weight: float) -> list[EpisodeRecord]:
        weights = [first_weight] + [2] * 1500 + [0.5]
        return [record(index, weight=weight) for index, weight in enumerate(weights)]

    for name, first in (("widened", 3), ("known", 3.0)):
        (tmp_path / name).mkdir()
        write_episodes(
            tmp_path / name,
            lambda first=first: episodes(first),
            fps=FPS,
            file_size_limit_bytes=20_000,
        )
    assert tree_digest(tmp_path / "widened") == tree_digest(tmp_path / "known")


def test_values_of_mixed_kinds_become_json_text_wherever_blocks_end(tmp_path: Path) -> None:
    for name, position in (("same", 1), ("other", 1400)):
        (tmp_path / name).mkdir()

        def episodes(position: int = position) -> list[EpisodeRecord]:
            return [
                record(i, mark="x" if i == position else i, empty={}, pair=[i, "y"])
                for i in range(1500)
            ]

        write_episodes(tmp_path / name, episodes, fps=FPS)
        table = read_episodes(tmp_path / name)
        for column in ("mark", "empty", "pair"):
            assert table.schema.field(column).type == pa.string()
        marks = table["mark"].to_pylist()
        assert marks[position] == "x"
        assert json.loads(marks[7]) == 7
        assert json.loads(table["pair"].to_pylist()[3]) == [3, "y"]


@pytest.mark.parametrize("odd", [[[0.5]], ["a"]], ids=str)
@pytest.mark.parametrize("first_odd", [1, 125, 240])
def test_statistics_that_do_not_go_together_are_refused_by_name(
    tmp_path: Path, odd: list[Any], first_odd: int
) -> None:
    episodes = [
        record(i, stats={"a": {"min": odd if i >= first_odd else [0.5]}}) for i in range(250)
    ]
    with pytest.raises(SourceError, match="values of stats/a/min have no common type"):
        write_episodes(tmp_path, lambda: episodes, fps=FPS)


@pytest.mark.parametrize("first_number", [1, 124, 125, 126, 250])
@pytest.mark.parametrize("number", [0, 0.5])
@pytest.mark.parametrize("lacking", [True, False])
def test_truth_values_beside_numbers_are_numbers_wherever_blocks_end(
    tmp_path: Path, first_number: int, number: float, lacking: bool
) -> None:
    values = [[[index < first_number or number]] for index in range(260)]
    episodes = [record(i, stats={"done": {"max": value}}) for i, value in enumerate(values)]
    if lacking:
        episodes[130] = record(130)
    write_episodes(tmp_path, lambda: episodes, fps=FPS)
    found = read_episodes(tmp_path)["stats/done/max"]
    kind = pa.int64() if number == 0 else pa.float64()
    assert found.type == pa.list_(pa.list_(kind))
    expected = [None if lacking and i == 130 else value for i, value in enumerate(values)]
    assert found.to_pylist() == expected


def test_no_episode_at_all_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError):
        write_episodes(tmp_path, list, fps=FPS)


def test_a_missing_or_damaged_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnreadableSourceError, match="file-000"):
        read_episodes(tmp_path)
    (path,) = write_episodes(tmp_path, lambda: [record(i) for i in range(9)], fps=FPS)
    content = (tmp_path / path).read_bytes()
    for damaged in (b"PAR1", content[:4] + bytes(196) + content[200:]):
        (tmp_path / path).write_bytes(damaged)
        with pytest.raises(UnreadableSourceError, match="file-000") as caught:
            read_episodes(tmp_path)
        assert caught.value.path == str(tmp_path / path)


def test_tasks_are_written_by_index_and_read_back(tmp_path: Path) -> None:
    write_tasks(tmp_path, [(1, "b"), (0, "a"), (2, "a")])
    assert read_tasks(tmp_path) == [(0, "a"), (1, "b"), (2, "a")]
    first = (tmp_path / "meta/tasks.parquet").read_bytes()
    write_tasks(tmp_path, [(0, "a"), (1, "b"), (2, "a")])
    assert (tmp_path / "meta/tasks.parquet").read_bytes() == first


@pytest.mark.parametrize("indices", [[0, 2], [1, 2], [0, 0, 1], [-1, 0]])
def test_tasks_whose_row_would_not_be_their_index_are_refused(
    tmp_path: Path, indices: list[int]
) -> None:
    with pytest.raises(SourceError, match="gap"):
        write_tasks(tmp_path, [(index, f"task {index}") for index in indices])


def _no_texts(rows: int) -> pa.Array:
    return pa.array([b"\xcf("] * rows).view(pa.string())


def test_texts_that_are_none_are_a_damage_of_their_file(tmp_path: Path) -> None:
    write_tasks(tmp_path, [(0, "pick"), (1, "place")])
    path = tmp_path / "meta/tasks.parquet"
    table = pq.read_table(path)
    column = table.column_names.index("task")
    pq.write_table(table.set_column(column, "task", _no_texts(2)), path)
    with pytest.raises(UnreadableSourceError, match="Invalid UTF8") as caught:
        read_tasks(tmp_path)
    assert caught.value.path == str(path)

    write_episodes(tmp_path, lambda: iter([record(0), record(1)]), fps=FPS)
    path = tmp_path / episodes_path(0)
    table = pq.read_table(path)
    tasks = pa.ListArray.from_arrays([0, 1, 2], _no_texts(2))
    pq.write_table(table.set_column(table.column_names.index("tasks"), "tasks", tasks), path)
    with pytest.raises(UnreadableSourceError, match="Invalid UTF8") as caught:
        read_episodes(tmp_path)
    assert caught.value.path == str(path)
    with pytest.raises(UnreadableSourceError, match="Invalid UTF8") as caught:
        list(EpisodesReader(tmp_path).blocks(bool))
    assert caught.value.path == str(path)


def test_tasks_are_read_from_an_index_that_has_no_name(tmp_path: Path) -> None:
    # LeRobot's first converter and recorder wrote them so.
    (tmp_path / "meta").mkdir()
    table = pa.table({"task_index": [0, 1], "__index_level_0__": ["a", "b"]})
    pq.write_table(table, tmp_path / "meta/tasks.parquet")
    assert read_tasks(tmp_path) == [(0, "a"), (1, "b")]


@pytest.mark.parametrize("columns", [["task_index"], ["task"], ["task", "index"]])
def test_a_table_of_tasks_that_lacks_a_column_is_named_with_it(
    tmp_path: Path, columns: list[str]
) -> None:
    (tmp_path / "meta").mkdir()
    path = tmp_path / "meta/tasks.parquet"
    pq.write_table(pa.table({name: ["0"] for name in columns}), path)
    lacking = "task" if "task_index" in columns else "task_index"
    with pytest.raises(UnreadableSourceError, match=f'"{lacking}" does not exist') as caught:
        read_tasks(tmp_path)
    assert caught.value.path == str(path)


def test_a_text_that_is_no_unicode_is_refused_with_its_column(tmp_path: Path) -> None:
    # JSON has a notation for half a surrogate pair; parquet has none.
    with pytest.raises(SourceError, match="values of note have no common type") as caught:
        write_episodes(tmp_path, lambda: [record(0, note="\ud800")], fps=FPS)
    assert "Correct these values in the metadata of the source" in str(caught.value.next_step)


@pytest.mark.parametrize(
    "odd",
    [
        {"a": {"min": 0.5, "max": [1.0]}},
        {"a": {"min": np.array([0.5]), "max": [1.0]}},
        {"a": {"min": np.float64(0.5), "max": np.array([1.0])}},
        {"a": {"max": [1.0], "min": [0.5]}, "b": {}},
        {"a": MappingProxyType({"min": [0.5], "max": [1.0]})},
    ],
    ids=str,
)
def test_one_number_and_arrays_are_statistics_like_lists(tmp_path: Path, odd: Any) -> None:
    usual = {"a": {"min": [0.5], "max": [1.0]}}
    write_episodes(tmp_path, lambda: [record(0, stats=usual), record(1, stats=odd)], fps=FPS)
    table = read_episodes(tmp_path)
    assert table["stats/a/min"].to_pylist() == [[0.5]] * 2
    assert table["stats/a/max"].to_pylist() == [[1.0]] * 2


def test_a_missing_statistic_is_null_and_a_feature_without_any_has_no_column(
    tmp_path: Path,
) -> None:
    stats: list[Any] = [
        None,
        {"a": {"min": [1], "mean": []}, "b": {}},
        {"a": {"min": [2], "max": [3]}, "b": {}},
    ]
    write_episodes(tmp_path, lambda: [record(i, stats=s) for i, s in enumerate(stats)], fps=FPS)
    table = read_episodes(tmp_path)
    assert table["stats/a/min"].to_pylist() == [None, [1], [2]]
    assert table["stats/a/max"].to_pylist() == [None, None, [3]]
    assert table.schema.field("stats/a/mean").type == pa.list_(pa.float64())
    assert {name for name in table.column_names if name.startswith("stats/")} == {
        f"stats/a/{name}" for name in ("min", "mean", "max")
    }


def test_files_whose_columns_do_not_go_together_are_named_by_their_folder(tmp_path: Path) -> None:
    (path,) = write_episodes(tmp_path, lambda: [record(0), record(1)], fps=FPS)
    table = pq.read_table(tmp_path / path)
    texts = table.set_column(table.column_names.index("length"), "length", pa.array(["a", "b"]))
    pq.write_table(texts, (tmp_path / path).with_name("file-001.parquet"))
    info = {"fps": 30, "features": {}, "data_path": DATA_PATH_TEMPLATE}
    with pytest.raises(SourceError, match="length") as caught:
        _ = Dataset(tmp_path, info=info).episodes
    assert caught.value.path == str(tmp_path / "meta/episodes")
