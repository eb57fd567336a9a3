"""``meta/episodes`` equals what LeRobot's converter writes through `datasets`."""

import json
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lerobot.datasets.io_utils import cast_stats_to_numpy, load_episodes
from lerobot.datasets.io_utils import write_episodes as reference_write_episodes
from lerobot.scripts.convert_dataset_v21_to_v30 import generate_episode_metadata_dict
from tests.episode_records import EpisodeRecord, VideoSpan, write_episodes

FPS = Fraction(30)
FIRST_FILE = "meta/episodes/chunk-000/file-000.parquet"


def records(legacy: list[dict[str, Any]], stats: list[dict[str, Any]]) -> list[EpisodeRecord]:
    made: list[EpisodeRecord] = []
    start = 0
    for index, (line, values) in enumerate(zip(legacy, stats, strict=True)):
        length = line["length"]
        spans = tuple(
            VideoSpan(key, 1001 + index, 30 * index, 30 * index + length)
            for key in ("observation.images.left", "observation.images.right")
        )
        made.append(EpisodeRecord(index, index // 2, start, length, spans, line, values))
        start += length
    return made


def write_reference(root: Path, episodes: list[EpisodeRecord]) -> None:
    """Feed the converter's own row generator and writer with the same facts."""
    data, videos = [], []
    for record in episodes:
        index = record.episode_index
        data.append(
            {
                "episode_index": index,
                "data/chunk_index": record.data_file // 1000,
                "data/file_index": record.data_file % 1000,
                "dataset_from_index": record.dataset_from_index,
                "dataset_to_index": record.dataset_from_index + record.length,
            }
        )
        row: dict[str, Any] = {}
        for span in record.videos:
            row["episode_index"] = index
            row[f"videos/{span.key}/chunk_index"] = span.file // 1000
            row[f"videos/{span.key}/file_index"] = span.file % 1000
            row[f"videos/{span.key}/from_timestamp"] = span.from_frame / 30
            row[f"videos/{span.key}/to_timestamp"] = span.to_frame / 30
        videos.append(row)

    def rows() -> Iterator[dict[str, Any]]:
        yield from generate_episode_metadata_dict(
            {record.episode_index: dict(record.legacy) for record in episodes},
            data,
            {r.episode_index: cast_stats_to_numpy(dict(r.stats or {})) for r in episodes},
            videos,
        )

    made = datasets.Dataset.from_generator(rows, cache_dir=str(root / "cache"))
    reference_write_episodes(made, root)


def feature(length: int, *, kind: type = float, quantiles: bool = False) -> dict[str, Any]:
    values: dict[str, Any] = {
        "min": [kind(0)] * length,
        "max": [kind(1)] * length,
        "mean": [0.25] * length,
        "std": [0.5] * length,
        "count": [60],
    }
    if quantiles:
        values |= {"q01": [0.01] * length, "q99": [0.99] * length}
    return values


def image_feature(value: float) -> dict[str, Any]:
    channel = [[[value]], [[value / 2]], [[0]]]
    return {"min": channel, "max": channel, "mean": channel, "std": channel, "count": [100]}


def plain_stats() -> dict[str, Any]:
    return {
        "observation.state": feature(3, quantiles=True),
        "observation.images.left": image_feature(0.75),
        "timestamp": feature(1),
        "frame_index": feature(1, kind=int),
        "next.done": feature(1, kind=bool),
    }


CASES: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    "plain": (
        [{"episode_index": i, "tasks": ["a", "b"][: 1 + i % 2], "length": 3 + i} for i in range(5)],
        [plain_stats() for _ in range(5)],
    ),
    "other keys, in another order": (
        [
            {
                "length": 4,
                "success": bool(i % 2),
                "episode_index": i,
                "score": 0.5 * i,
                "tasks": [],
                "operator": "ä",
                "note": None,
                "trial": {"id": i, "tags": ["x"], "weight": 1.5},
                "events": [{"at": 1, "what": "grasp"}],
                "nested": [[1, 2], [3]],
            }
            for i in range(4)
        ],
        [plain_stats() for _ in range(4)],
    ),
    "integers and fractions mixed": (
        [{"episode_index": i, "tasks": ["t"], "length": 2, "x": [1, 2.5][i % 2]} for i in range(4)],
        [{"timestamp": feature(1) | {"max": [0, 0.5]}} for _ in range(4)],
    ),
    "numbers for arrays of one": (
        [{"episode_index": 0, "tasks": ["t"], "length": 2}],
        [{"timestamp": {"min": 0.0, "max": 1.0, "mean": 0.5, "std": 0.1, "count": 2}}],
    ),
}


@pytest.mark.parametrize("case", sorted(CASES))
def test_schema_metadata_and_values_are_the_references(case: str, tmp_path: Path) -> None:
    episodes = records(*CASES[case])
    write_reference(tmp_path / "reference", episodes)
    (tmp_path / "ours").mkdir()
    assert write_episodes(tmp_path / "ours", lambda: episodes, fps=FPS) == [FIRST_FILE]

    ours = pq.read_table(tmp_path / "ours" / FIRST_FILE)
    reference = pq.read_table(tmp_path / "reference" / FIRST_FILE)
    assert ours.schema.names == reference.schema.names
    assert ours.schema.equals(reference.schema, check_metadata=False)
    assert ours.schema.metadata == reference.schema.metadata
    assert ours.to_pylist() == reference.to_pylist()


def test_lerobot_loads_the_rows_of_several_files_in_order(tmp_path: Path) -> None:
    legacy, stats = CASES["plain"]
    episodes = records(legacy, stats)
    paths = write_episodes(tmp_path, lambda: episodes, fps=FPS, file_size_limit_bytes=1500)
    assert len(paths) > 1
    loaded = load_episodes(tmp_path)
    assert loaded["episode_index"][:] == [0, 1, 2, 3, 4]
    assert loaded["meta/episodes/file_index"][:] == sorted(loaded["meta/episodes/file_index"])
    assert [row["tasks"] for row in loaded] == [line["tasks"] for line in legacy]


def test_features_in_the_metadata_are_those_that_the_columns_have(tmp_path: Path) -> None:
    episodes = records(*CASES["other keys, in another order"])
    write_episodes(tmp_path, lambda: episodes, fps=FPS)
    schema = pq.read_schema(tmp_path / FIRST_FILE)
    described = datasets.Features.from_dict(
        json.loads(schema.metadata[b"huggingface"])["info"]["features"]
    )
    assert described.arrow_schema.equals(schema, check_metadata=False)
    assert isinstance(schema, pa.Schema)
