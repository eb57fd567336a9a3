"""What is odd about types, shapes and statistics: a conversion that succeeds, LeRobot loads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lerobot.datasets import LeRobotDataset

import leconvert
from leconvert.dataset.check import check_dataset
from leconvert.model.repairs import RepairOptions
from leconvert.run.conversion import ProofOptions
from leconvert.run.proof import verify_pair
from leconvert.support.errors import FindingsError
from leconvert.testing import (
    CameraSpec,
    DatasetSpec,
    edit_info,
    edit_table,
    make_dataset,
    with_column,
)

LENGTHS = (4, 3, 5)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    spec = DatasetSpec(episodes=3, frames=LENGTHS, cameras=())
    return make_dataset(tmp_path / "source", spec)


def add_column(
    root: Path, row: Any, kind: pa.DataType, declared: dict[str, Any], name: str = "x"
) -> None:
    """Add a column that has the same value in each row, and no statistics."""
    for episode, length in enumerate(LENGTHS):
        values = pa.array([row] * length, kind)
        edit_table(root, episode, lambda table, v=values: with_column(table, name, v))
    edit_info(root, lambda info: info["features"].update({name: {"names": None, **declared}}))


def loaded(root: Path) -> Any:
    """Return the last item of a dataset in which nothing is found amiss."""
    assert check_dataset(root).findings == ()
    dataset = LeRobotDataset("test/dataset", root=root)
    assert len(dataset) == sum(LENGTHS)
    return dataset[len(dataset) - 1]


def test_lists_of_one_value_are_refused_and_load_once_they_are_unwrapped(
    source: Path, tmp_path: Path
) -> None:
    add_column(source, [2.5], pa.list_(pa.float64()), {"dtype": "float32", "shape": [1]})
    with pytest.raises(FindingsError) as stopped:
        leconvert.convert(source, output=tmp_path / "out")
    assert "--unwrap-scalars" in str(stopped.value.next_step)
    repairs = RepairOptions(unwrap_scalars=True, fill_stats=True)
    report = leconvert.convert(
        source, output=tmp_path / "out", repairs=repairs, proof=ProofOptions(verify="bytes")
    )
    assert report.repairs["unwrapped_columns"] == ["x"]
    assert report.repairs["computed_stats"] == ["x"]
    assert loaded(tmp_path / "out")["x"].item() == 2.5
    info = json.loads((tmp_path / "out/meta/info.json").read_text())
    assert info["features"]["x"]["dtype"] == "float64"


STORED: list[tuple[Any, pa.DataType, str, list[int], tuple[str, list[int]]]] = [
    # A value, its type, as what it is declared, and as what it is stored.
    (1.5, pa.float64(), "float32", [1], ("float64", [1])),
    (7, pa.int16(), "float32", [1], ("int16", [1])),
    (True, pa.bool_(), "int64", [1], ("bool", [1])),
    ([1.5, 2.5], pa.list_(pa.float64()), "float32", [3], ("float64", [2])),
    ([[1, 2, 3]] * 2, pa.list_(pa.list_(pa.int8())), "int8", [3, 2], ("int8", [2, 3])),
    ([[1.5]], pa.list_(pa.list_(pa.float32())), "float32", [1], ("float32", [1, 1])),
    (1.5, pa.float32(), "float32", [], ("float32", [1])),
    ("red", pa.string(), "float32", [1], ("string", [1])),
]


def test_the_result_declares_what_is_stored_and_loads(source: Path, tmp_path: Path) -> None:
    for number, (row, kind, dtype, shape, _) in enumerate(STORED):
        add_column(source, row, kind, {"dtype": dtype, "shape": shape}, f"x{number}")
    repairs = RepairOptions(fill_stats=True)
    report = leconvert.convert(
        source, output=tmp_path / "out", repairs=repairs, proof=ProofOptions(verify="bytes")
    )
    declared = report.repairs["declared_features"]
    item = loaded(tmp_path / "out")
    for number, (row, *_, as_stored) in enumerate(STORED):
        name = f"x{number}"
        assert (declared[name]["dtype"], declared[name]["shape"]) == as_stored
        warned = [f for f in report.findings if f" {name} " in f" {f.message}"]
        assert {f.code for f in warned if f.severity == "warning"} & {
            "dtype-mismatch", "shape-mismatch",
        }, name  # fmt: skip
        assert (item[name] if isinstance(row, str) else item[name].tolist()) == row


TOP = "observation.images.top"


@pytest.mark.parametrize(
    ("place", "codec", "facts", "shape", "expected"),
    [
        ("info", "mpeg4", {"video.codec": "h264", "video.fps": 25}, [32, 48, 3],
         {"video.codec": "mpeg4", "video.fps": 30}),
        ("video_info", "h264",
         {"video.pix_fmt": "yuv444p", "video.height": 48, "video.width": 32, "video.channels": 1},
         [48, 32, 3],
         {"video.pix_fmt": "yuv420p", "video.height": 32, "video.width": 48, "video.channels": 3}),
        ("info", "h264", {"has_audio": True, "audio.codec": "aac"}, [3, 32, 48],
         {"has_audio": False}),
        ("video_info", "h264", {}, [32, 48, 4], {}),
    ],
)  # fmt: skip
def test_the_result_declares_what_the_clips_are(
    tmp_path: Path, place: str, codec: str, facts: dict[str, Any], shape: list[int],
    expected: dict[str, Any],
) -> None:  # fmt: skip
    camera = CameraSpec(key=TOP, width=48, height=32, codec=codec)
    spec = DatasetSpec(episodes=3, frames=LENGTHS, cameras=(camera,))
    source = make_dataset(tmp_path / "source", spec)

    def declare(info: dict[str, Any]) -> None:
        feature = info["features"][TOP]
        feature[place] = {**feature.pop("info"), **facts}
        feature["shape"] = shape

    edit_info(source, declare)
    out = tmp_path / "out"
    report = leconvert.convert(source, output=out, proof=ProofOptions(verify="bytes"))
    warned = {f.code for f in report.findings if f.severity == "warning"}
    assert warned & {"codec-mismatch", "shape-mismatch"}
    feature = json.loads((out / "meta/info.json").read_text())["features"][TOP]
    declared = report.repairs["declared_features"][TOP]
    assert (declared["shape"], declared[place]) == (feature["shape"], feature["info"])
    assert feature["shape"] == [32, 48, 3]
    assert feature["names"][2].startswith("channel")
    assert expected.items() <= feature["info"].items()
    assert "audio.codec" not in feature["info"]
    assert check_dataset(out).findings == ()
    assert LeRobotDataset("test/dataset", root=out)[0][TOP].shape == (3, 32, 48)

    edit_info(out, lambda info: info["features"][TOP].update(shape=[9, 9, 3]))
    said = [difference.what for difference in verify_pair(out, source).differences]
    assert f"shape of feature {TOP!r}" in said


def test_a_wrong_declaration_of_a_camera_is_no_result_though_the_record_has_it(
    tmp_path: Path,
) -> None:
    spec = DatasetSpec(episodes=3, frames=LENGTHS, cameras=(CameraSpec(key=TOP),))
    source = make_dataset(tmp_path / "source", spec)
    edit_info(source, lambda info: info["features"][TOP]["info"].update({"video.codec": "av1"}))
    out = tmp_path / "out"
    leconvert.convert(source, output=out)
    record = json.loads((out / "meta/repairs.json").read_text())
    feature = record["declared_features"][TOP]
    feature["info"]["video.codec"] = "vp9"
    (out / "meta/repairs.json").write_text(json.dumps(record))
    edit_info(out, lambda info: info["features"].update({TOP: feature}))
    [difference] = verify_pair(out, source).differences
    assert difference.what == f"info of camera {TOP!r}, whose files differ"


def test_a_result_that_lerobot_refuses_does_not_take_its_place(
    source: Path, tmp_path: Path
) -> None:
    add_column(source, [2.5], pa.list_(pa.float64()), {"dtype": "float64", "shape": [1]})
    repairs = RepairOptions(unwrap_scalars=True, fill_stats=True)
    out = tmp_path / "out"
    leconvert.convert(source, output=out, repairs=repairs)
    [path] = out.glob("data/*/*.parquet")
    table = pq.read_table(path)
    wrapped = pa.array([[2.5]] * table.num_rows)
    at = table.schema.get_field_index("x")
    pq.write_table(table.set_column(at, "x", wrapped), path)
    said = [difference.what for difference in verify_pair(out, source).differences]
    assert "column 'x' that LeRobot reads" in said
