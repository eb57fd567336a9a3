"""Whatever a v3.0 dataset is made of, checking it ends in findings or one clear error."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import leconvert
from leconvert.dataset.check import check_dataset
from leconvert.dataset.check.dataset import DatasetReport
from leconvert.dataset.findings import V3_CATALOGUE
from leconvert.support.errors import LeconvertError
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset

SPEC = DatasetSpec(
    episodes=3,
    frames=[4, 1, 5],
    cameras=(CameraSpec(key="observation.images.töp \"'", width=32, height=32),),
    image_keys=("observation.images.still",),
    image_size=(16, 16),
    tasks=("Nimm's!\n", "放下 🍎"),
)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound dataset; whoever changes it puts it back."""
    folder = tmp_path_factory.mktemp("malformed names \n'\"")
    leconvert.convert(make_dataset(folder / "source", SPEC), output=folder / "v3")
    return folder / "v3"


def assert_reported(root: Path) -> None:
    """Check a dataset; anything but findings and errors of our own fails the test."""
    outcome = outcome_of(root)
    if isinstance(outcome, LeconvertError):
        assert outcome.message
        return
    for finding in outcome.findings:
        assert finding.code in V3_CATALOGUE
        assert finding.message
    json.dumps(outcome.as_record())


def outcome_of(root: Path) -> DatasetReport | LeconvertError:
    try:
        return check_dataset(root)
    except LeconvertError as error:
        return error


@contextmanager
def changed(path: Path) -> Iterator[None]:
    kept = path.read_bytes()
    try:
        yield
    finally:
        path.write_bytes(kept)


def test_names_of_all_kinds_are_no_finding(dataset: Path) -> None:
    assert check_dataset(dataset).findings == ()


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=True)
    | st.text(max_size=8)
    | st.sampled_from(["v3.0", "video", "image", "{chunk_index}", "{0}", "{", "../x", "data"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=5,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path to every value within a JSON document."""
    yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from places(inner, (*path, index))


def replaced(value: Any, path: tuple[Any, ...], other: Any) -> Any:
    if not path:
        return other
    copy = value.copy()
    copy[path[0]] = replaced(value[path[0]], path[1:], other)
    return copy


@pytest.mark.parametrize("name", ["meta/info.json", "meta/stats.json"])
@settings(max_examples=40)
@given(data=st.data())
def test_any_value_anywhere_in_a_json_file(dataset: Path, name: str, data: st.DataObject) -> None:
    path = dataset / name
    content = json.loads(path.read_bytes())
    place = data.draw(st.sampled_from(list(places(content))))
    with changed(path):
        path.write_text(json.dumps(replaced(content, place, data.draw(JSON))))
        assert_reported(dataset)


@pytest.mark.parametrize(
    "pattern",
    ["data/*/*", "videos/*/*/*", "meta/tasks.parquet", "meta/episodes/*/*", "meta/*.json"],
)
@settings(max_examples=15)
@given(data=st.data())
def test_any_bytes_anywhere_in_a_file(dataset: Path, pattern: str, data: st.DataObject) -> None:
    path = sorted(dataset.glob(pattern))[0]
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, max(0, len(content) - 1)))
        content[at : at + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=9))
    with changed(path):
        path.write_bytes(content)
        assert_reported(dataset)


COLUMNS: dict[str, pa.Array] = {
    "nulls": pa.nulls(3),
    "texts": pa.array(["a", "b", "c"]),
    "no texts": pa.array([b"a", b"\xcf(", b"c"]).view(pa.string()),
    "nested": pa.array([[[1]], [[2], []], None]),
    "structs": pa.array([{"a": 1}, None, {"a": 3}]),
    "beyond 64 bits": pa.array([2**64 - 1, 0, 1], pa.uint64()),
    "times": pa.array([0, 1, 2], pa.timestamp("us")),
    "negative": pa.array([-1, -(2**63), 2**63 - 1]),
    "not finite": pa.array([float("nan"), float("inf"), -1.0]),
    "decimals": pa.array([1, 2, 3]).cast(pa.decimal128(22, 2)),
}


@pytest.mark.parametrize("kind", COLUMNS)
@pytest.mark.parametrize("path", ["meta/episodes/chunk-000/file-000.parquet", "meta/tasks.parquet"])
@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_any_type_of_any_column(dataset: Path, path: str, kind: str, every: int) -> None:
    """Each column gets every so-manieth kind; those of statistics, read alike, fewer."""
    with changed(dataset / path):
        table = pq.read_table(dataset / path)
        for at, name in enumerate(table.column_names):
            step = every * (7 if name.startswith("stats/") else 1)
            if (at - list(COLUMNS).index(kind)) % step:
                continue
            column = COLUMNS[kind].slice(0, table.num_rows)
            pq.write_table(table.set_column(at, name, column), dataset / path)
            assert_reported(dataset)


@pytest.mark.parametrize("kind", COLUMNS)
@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_any_type_of_any_data_column(dataset: Path, kind: str, every: int) -> None:
    path = dataset / "data/chunk-000/file-000.parquet"
    with changed(path):
        table = pq.read_table(path)
        column = pa.concat_arrays([COLUMNS[kind]] * 4).slice(0, table.num_rows)
        for at, name in enumerate(table.column_names):
            if (at - list(COLUMNS).index(kind)) % every:
                continue
            pq.write_table(table.set_column(at, name, column), path)
            assert check_dataset(dataset).count("error") > 0


def circle(root: Path) -> None:
    shutil.rmtree(root / "videos")
    (root / "videos").symlink_to(root, target_is_directory=True)


def link_to_itself(root: Path) -> None:
    path = root / "data/chunk-000/file-000.parquet"
    path.unlink()
    path.symlink_to(path)


def file_for_folder(name: str) -> Callable[[Path], None]:
    def damage(root: Path) -> None:
        shutil.rmtree(root / name)
        (root / name).write_text("a file")

    return damage


TREES: dict[str, Callable[[Path], object]] = {
    "a circle of folders": circle,
    "a link to itself": link_to_itself,
    "a file for data": file_for_folder("data"),
    "a file for videos": file_for_folder("videos"),
    "a file for the episodes": file_for_folder("meta/episodes"),
    "a file for meta": file_for_folder("meta"),
    "a folder for info.json": lambda root: (
        (root / "meta/info.json").unlink(), (root / "meta/info.json").mkdir(),
    ),
    "no data": lambda root: shutil.rmtree(root / "data"),
    "no videos": lambda root: shutil.rmtree(root / "videos"),
    "nothing": lambda root: (shutil.rmtree(root), root.mkdir()),
}  # fmt: skip


@pytest.mark.parametrize("tree", TREES)
def test_folders_and_links_in_the_wrong_place(dataset: Path, tmp_path: Path, tree: str) -> None:
    root = Path(shutil.copytree(dataset, tmp_path / "copy"))
    TREES[tree](root)
    outcome = outcome_of(root)
    if isinstance(outcome, LeconvertError):
        assert str(root) in outcome.message
        return
    errors = {finding.code for finding in outcome.findings if finding.severity == "error"}
    assert errors
    assert errors <= {"missing-file", "unreadable-file"}
