"""``verify --deep``: samples as LeRobot's own dataset loads them, against the source."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import leconvert
from leconvert.repairs import RepairOptions
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset
from leconvert.verify import Sampling, verify_pair

DATA = "data/chunk-000/file-000.parquet"
CAMERA, IMAGE = "observation.images.top", "observation.images.wrist"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = DatasetSpec(
        episodes=4,
        frames=[8, 5, 9, 6],
        cameras=(CameraSpec(key=CAMERA, width=64, height=48),),
        image_keys=(IMAGE,),
        image_size=(32, 32),
    )
    return make_dataset(tmp_path_factory.mktemp("source") / "pictures", spec)


@pytest.fixture(scope="module")
def converted(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("converted") / "out"
    leconvert.convert(source, output=out)
    return out


def rewrite(root: Path, column: str, moved: list[int]) -> None:
    """Give a column's values in the first episode other rows; row groups stay."""
    with pq.ParquetFile(root / DATA) as file:
        groups = [file.read_row_group(n) for n in range(file.num_row_groups)]
    place = groups[0].column_names.index(column)
    values = groups[0].column(column).take(pa.array(moved))
    groups[0] = groups[0].set_column(place, groups[0].schema.field(place), values)
    with pq.ParquetWriter(root / DATA, groups[0].schema) as writer:
        for group in groups:
            writer.write_table(group)


def test_samples_load_in_lerobot_as_the_source_says(converted: Path, source: Path) -> None:
    report = verify_pair(converted, source, sampling=Sampling(deep=12))
    assert report.differences == ()
    assert report.samples == 12


def test_repaired_rows_are_expected_in_samples(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    leconvert.convert(
        source, output=out, repairs=RepairOptions(retime=True, drop_features=(IMAGE,))
    )
    report = verify_pair(out, source, sampling=Sampling(decode=4, deep=4))
    assert report.ok
    assert (report.pictures, report.samples) == (4, 4)


def test_what_lerobot_loads_from_a_wrong_row_is_found(
    converted: Path, source: Path, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(converted, tmp_path / "out"))
    rewrite(root, "observation.state", [1, 0, 2, 3, 4, 5, 6, 7])
    found = verify_pair(root, source, sampling=Sampling(deep=1000)).differences
    assert [(each.what, each.path, each.episode) for each in found] == [
        (f"'observation.state' of sample {n} in LeRobot", DATA, 0) for n in (0, 1)
    ]
