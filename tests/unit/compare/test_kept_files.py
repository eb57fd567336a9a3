"""Files of a result that are the source's as they are, and what is wrong with some of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from tests.oddities import ODDITIES

import leconvert
from leconvert.compare import verify_pair
from leconvert.model import LayoutOptions
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset
from leconvert.testing.defects import edit_table, with_column

SPEC = DatasetSpec(episodes=3, frames=(8, 5, 9), cameras=(CameraSpec("top", 32, 32),))
CLIP = "videos/chunk-000/top/episode_000001.mp4"
KEPT_CLIP = "videos/top/chunk-000/file-001.mp4"
KEPT_TABLE = "data/chunk-000/file-001.parquet"


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    source, result = make_dataset(tmp_path / "source", SPEC), tmp_path / "result"
    leconvert.convert(source, output=result, layout=LayoutOptions(layout="episode-files"))
    return source, result


def differences(result: Path, source: Path, depth: str = "bytes") -> list[str]:
    found = verify_pair(result, source, depth=depth).differences
    return [f"{each.path}: {each.what}" for each in found]


def test_files_that_are_kept_match(pair: tuple[Path, Path]) -> None:
    assert differences(pair[1], pair[0]) == []
    assert differences(pair[1], pair[0], "structure") == []


@pytest.mark.parametrize("path", [KEPT_CLIP, KEPT_TABLE])
def test_a_byte_that_differs_is_found(pair: tuple[Path, Path], path: str) -> None:
    source, result = pair
    content = bytearray((result / path).read_bytes())
    content[len(content) // 2 if path == KEPT_CLIP else 40] ^= 1
    (result / path).write_bytes(content)
    assert any(each.startswith(path) for each in differences(result, source))


def put_into_both(source: Path, result: Path, change: Callable[[], object]) -> None:
    """Change a file of the source, and let the result hold it as it is then."""
    change()
    table = "data/chunk-000/episode_000001.parquet"
    for ours, theirs in ((KEPT_CLIP, CLIP), (KEPT_TABLE, table)):
        (result / ours).write_bytes((source / theirs).read_bytes())


def test_a_kept_clip_that_lerobot_cannot_read_is_found(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    source, result = pair
    ODDITIES["late start in some clips"](tmp_path / "late")
    (late,) = (tmp_path / "late").glob("videos/**/*_000001.mp4")
    put_into_both(source, result, lambda: (source / CLIP).write_bytes(late.read_bytes()))
    what = "a file that LeRobot reads as it is"
    assert f"{KEPT_CLIP}: {what}" in differences(result, source, "structure")


def test_kept_rows_that_count_otherwise_are_found(pair: tuple[Path, Path]) -> None:
    source, result = pair
    wrong = pa.array(range(100, 105), pa.int64())
    put_into_both(
        source,
        result,
        lambda: edit_table(source, 1, lambda table: with_column(table, "index", wrong)),
    )
    assert f"{KEPT_TABLE}: column 'index', row 0" in differences(result, source, "structure")


def test_a_kept_column_that_is_not_declared_is_found(pair: tuple[Path, Path]) -> None:
    source, result = pair
    more = pa.array(range(5), pa.int64())
    put_into_both(
        source,
        result,
        lambda: edit_table(source, 1, lambda table: with_column(table, "more", more)),
    )
    assert f"{KEPT_TABLE}: column 'more'" in differences(result, source, "structure")
