"""``meta/episodes`` by row groups: the rows that one read of everything gives."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.episode_records import EpisodeRecord, write_episodes

from leconvert.dataset.formats.v3 import EpisodesReader
from leconvert.support.errors import UnreadableSourceError

EPISODES = 2300


def records() -> Iterator[EpisodeRecord]:
    for number in range(EPISODES):
        yield EpisodeRecord(
            number, 0, 3 * number, 3, (), {"tasks": [f"task {number}"]}, {"x": {"max": [number]}}
        )


@pytest.fixture(scope="module", params=[100 * 1024**2, 150_000], ids=["one file", "several"])
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("episodes")
    files = write_episodes(root, records, fps=Fraction(30), file_size_limit_bytes=request.param)
    assert (len(files) > 1) is (request.param == 150_000)
    return root


def test_blocks_are_all_rows_in_order(dataset: Path) -> None:
    reader = EpisodesReader(dataset)
    blocks = list(reader.blocks(lambda name: name in {"episode_index", "stats/x/max"}))
    assert reader.num_rows == EPISODES
    assert len(blocks) > 2
    assert max(block.num_rows for block in blocks) <= 1000
    whole = pa.concat_tables(blocks)
    assert whole.column("episode_index").to_pylist() == list(range(EPISODES))
    assert whole.column("stats/x/max").to_pylist() == [[number] for number in range(EPISODES)]


@pytest.mark.parametrize(
    ("first", "stop"), [(0, 1), (999, 1000), (999, 1001), (1000, 1001), (5, 2298), (2299, 2300)]
)
def test_rows_are_those_asked_for(dataset: Path, first: int, stop: int) -> None:
    tables = list(EpisodesReader(dataset).rows(first, stop, {"stats/x/max"}.__contains__))
    values = [value for table in tables for value in table.column("stats/x/max").to_pylist()]
    assert values == [[number] for number in range(first, stop)]


def test_a_damaged_file_is_named(dataset: Path, tmp_path: Path) -> None:
    with pytest.raises(UnreadableSourceError, match="does not exist") as caught:
        _ = EpisodesReader(tmp_path).num_rows
    assert caught.value.path == str(tmp_path / "meta/episodes/chunk-000/file-000.parquet")


def test_a_table_without_episodes_has_no_blocks(tmp_path: Path) -> None:
    path = tmp_path / "meta/episodes/chunk-000/file-000.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.table({"episode_index": pa.array([], pa.int64())}), path)
    reader = EpisodesReader(tmp_path)
    assert reader.num_rows == 0
    assert list(reader.blocks(lambda _name: True)) == []


def test_a_page_that_was_damaged_is_named_when_its_rows_are_read(tmp_path: Path) -> None:
    path = tmp_path / "meta/episodes/chunk-000/file-000.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.table({"a": list(range(100)), "b": [0] * 100}), path, row_group_size=50)
    content = bytearray(path.read_bytes())
    content[4:40] = bytes(36)
    path.write_bytes(content)
    reader = EpisodesReader(tmp_path)
    assert reader.num_rows == 100
    with pytest.raises(UnreadableSourceError, match="cannot be read") as caught:
        list(reader.rows(0, 1, {"a"}.__contains__))
    assert caught.value.path == str(path)
    # Other columns, and other row groups, are as they were.
    assert [block.num_rows for block in reader.blocks({"b"}.__contains__)] == [100]
    assert next(reader.rows(60, 61, {"a"}.__contains__)).column("a").to_pylist() == [60]
