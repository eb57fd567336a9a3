"""Records and schemas equal those that LeRobot, pandas and `datasets` write."""

import copy
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lerobot.datasets.feature_utils import get_hf_features_from_features
from lerobot.datasets.io_utils import load_tasks
from lerobot.datasets.io_utils import write_info as reference_write_info
from lerobot.datasets.io_utils import write_tasks as reference_write_tasks
from lerobot.datasets.utils import DatasetInfo
from lerobot.scripts import convert_dataset_v21_to_v30 as reference_script
from tests.recordings import each

from leconvert.dataset.formats import Totals
from leconvert.dataset.formats.v3 import converted_info, read_tasks, write_info, write_tasks
from leconvert.model.values import Slice
from leconvert.tables import join_tables, output_schema, read_data_schema

FEATURES: dict[str, dict[str, Any]] = {
    "observation.state": {"dtype": "float32", "shape": (7,), "names": None},
    "observation.images.top": {"dtype": "video", "shape": (96, 96, 3), "names": None},
    "observation.images.still": {"dtype": "image", "shape": (4, 4, 3), "names": None},
    "grid": {"dtype": "float32", "shape": (2, 3), "names": None},
    "cube": {"dtype": "uint8", "shape": (2, 3, 4), "names": None},
    "next.done": {"dtype": "bool", "shape": (1,), "names": None},
    "next.reward": {"dtype": "float64", "shape": (1,), "names": None},
    "subtask": {"dtype": "string", "shape": (1,), "names": None},
    "timestamp": {"dtype": "float32", "shape": (1,), "names": None},
    "frame_index": {"dtype": "int64", "shape": (1,), "names": None},
    "index": {"dtype": "int64", "shape": (1,), "names": None},
}
# As info.json has them: JSON knows no tuples.
JSON_FEATURES = json.loads(json.dumps(FEATURES))


def stored_features(schema: pa.Schema) -> dict[str, Any]:
    return json.loads(schema.metadata[b"huggingface"])["info"]["features"]


def rows_of_every_kind() -> datasets.Dataset:
    features = get_hf_features_from_features(FEATURES)
    image = {"bytes": b"\x89PNG not really", "path": None}
    row = {
        "observation.state": np.arange(7, dtype=np.float32),
        "observation.images.still": image,
        "grid": np.ones((2, 3), np.float32),
        "cube": np.ones((2, 3, 4), np.uint8),
        "next.done": False,
        "next.reward": 0.5,
        "subtask": "reach",
        "timestamp": 0.1,
        "frame_index": 3,
        "index": 5,
    }
    return datasets.Dataset.from_list([row, row], features=features)


def test_generated_metadata_is_what_datasets_writes_for_lerobots_features(tmp_path: Path) -> None:
    path = tmp_path / "source.parquet"
    rows_of_every_kind().to_parquet(path)
    source = read_data_schema(path)
    reference = get_hf_features_from_features(FEATURES).arrow_schema

    generated = output_schema(source.remove_metadata(), JSON_FEATURES)
    assert stored_features(generated) == stored_features(reference)
    assert list(stored_features(generated)) == list(stored_features(reference))
    assert generated.metadata == reference.metadata


def test_datasets_sees_the_same_features_in_a_joined_file_as_in_its_source(tmp_path: Path) -> None:
    path = tmp_path / "source.parquet"
    rows_of_every_kind().to_parquet(path)
    schema = output_schema(read_data_schema(path), JSON_FEATURES)
    joined = tmp_path / "joined.parquet"
    join_tables([Slice(str(path), frames=2), Slice(str(path), frames=2)], joined, schema=schema)

    seen = datasets.Features.from_arrow_schema(pq.read_schema(joined))
    assert seen == get_hf_features_from_features(FEATURES)
    loaded = datasets.Dataset.from_parquet(str(joined), cache_dir=str(tmp_path / "cache"))
    assert loaded.features == seen
    assert loaded.with_format("arrow")[:].num_rows == 4
    np.testing.assert_array_equal(
        loaded.select_columns("grid").with_format("numpy")[3]["grid"], np.ones((2, 3))
    )


def test_images_written_by_pandas_become_datasets_images(tmp_path: Path) -> None:
    # pandas types a path that is always None as null, which is no image for `datasets`.
    path = tmp_path / "source.parquet"
    frame = pd.DataFrame({"still": [{"bytes": b"png", "path": None}] * 3, "index": [0, 1, 2]})
    frame.to_parquet(path)
    features = {"still": {"dtype": "image"}, "index": {"dtype": "int64", "shape": [1]}}
    schema = output_schema(read_data_schema(path), features)
    joined = tmp_path / "joined.parquet"
    join_tables([Slice(str(path), frames=3)], joined, schema=schema)

    seen = datasets.Features.from_arrow_schema(pq.read_schema(joined))
    assert seen == {"still": datasets.Image(), "index": datasets.Value("int64")}
    assert pq.read_table(joined)["still"].to_pylist() == [{"bytes": b"png", "path": None}] * 3
    assert b"pandas" not in pq.read_schema(joined).metadata


def test_the_tasks_table_is_pandas_own(tmp_path: Path) -> None:
    texts = ["pick the cube", "Würfel ablegen", "second"]
    frame = pd.DataFrame({"task_index": range(len(texts))}, index=pd.Index(texts, name="task"))
    reference_write_tasks(frame, tmp_path / "reference")
    (tmp_path / "ours").mkdir()
    write_tasks(tmp_path / "ours", list(reversed(list(enumerate(texts)))))

    ours, reference = load_tasks(tmp_path / "ours"), load_tasks(tmp_path / "reference")
    pd.testing.assert_frame_equal(ours, reference)
    assert ours.iloc[1].name == texts[1]
    ours_schema = pq.read_schema(tmp_path / "ours/meta/tasks.parquet")
    reference_schema = pq.read_schema(tmp_path / "reference/meta/tasks.parquet")
    assert ours_schema.equals(reference_schema, check_metadata=False)
    described = json.loads(reference_schema.metadata[b"pandas"])
    # Which pandas wrote the file: none did.
    del described["pandas_version"]
    assert json.loads(ours_schema.metadata[b"pandas"]) == described
    assert read_tasks(tmp_path / "reference") == list(enumerate(texts))


def reference_info(source: dict[str, Any], folder: Path) -> str:
    (folder / "old").mkdir(parents=True)
    write_info(folder / "old", source)
    reference_script.convert_info(folder / "old", folder / "new", 100, 200)
    return (folder / "new/meta/info.json").read_text()


@pytest.mark.parametrize("recording", each("cr5_5ep"), indirect=True)
@pytest.mark.parametrize("extra", [{}, {"tools": [{"name": "say"}]}, {"video_path": None}])
def test_info_is_the_references_byte_for_byte(
    recording: Path, extra: dict[str, Any], tmp_path: Path
) -> None:
    source = json.loads((recording / "meta/info.json").read_text()) | extra
    expected = reference_info(copy.deepcopy(source), tmp_path)
    before = copy.deepcopy(source)
    info = converted_info(
        source,
        Totals(
            fps=Fraction(str(source["fps"])),
            episodes=source["total_episodes"],
            frames=source["total_frames"],
            tasks=source["total_tasks"],
        ),
        data_file_size_in_mb=100,
        video_file_size_in_mb=200,
        has_videos=source["video_path"] is not None,
    )
    (tmp_path / "ours").mkdir()
    write_info(tmp_path / "ours", info)
    assert (tmp_path / "ours/meta/info.json").read_text() == expected
    assert source == before


def test_the_formatting_of_info_is_lerobots_also_for_other_scripts(tmp_path: Path) -> None:
    info = {"codebase_version": "v3.0", "fps": 30, "features": {"näme": {"dtype": "string"}}}
    reference_write_info(DatasetInfo.from_dict(copy.deepcopy(info)), tmp_path / "reference")
    expected = json.loads((tmp_path / "reference/meta/info.json").read_text())
    (tmp_path / "ours").mkdir()
    write_info(tmp_path / "ours", expected)
    ours = (tmp_path / "ours/meta/info.json").read_bytes()
    assert ours == (tmp_path / "reference/meta/info.json").read_bytes()
