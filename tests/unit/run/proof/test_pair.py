"""A result that was damaged on purpose is found out, and the message says where."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from mutations_of_videos import exchange

from leconvert import media
from leconvert.model.values import Slice
from leconvert.run.proof import verify_pair
from leconvert.run.proof.difference import first_differing_row, same_values
from leconvert.run.proof.expected import Routes
from leconvert.run.proof.pieces import cut_pieces
from leconvert.support.errors import InterruptedRunError
from leconvert.support.parallel import Spread
from leconvert.testing import DatasetSpec, make_dataset

DATA = "data/chunk-000/file-000.parquet"
TOP = "videos/observation.images.top/chunk-000/file-000.mp4"
WRIST = "videos/observation.images.wrist/chunk-000/file-000.mp4"
EPISODES = "meta/episodes/chunk-000/file-000.parquet"

Damage = Callable[[Path], None]


@pytest.mark.parametrize("depth", ["structure", "bytes"])
def test_a_good_result_has_no_differences(converted: Path, small_source: Path, depth: str) -> None:
    report = verify_pair(converted, small_source, depth=depth)
    assert report.ok
    assert (report.files, report.episodes, report.rows, report.video_frames) == (3, 5, 44, 88)


def test_row_groups_that_were_copied_are_not_decoded(tmp_path: Path) -> None:
    source = make_dataset(tmp_path / "set", DatasetSpec(episodes=3, frames=[5, 4, 6], cameras=()))
    code = """
import sys
from pathlib import Path
import pyarrow.parquet as pq
import leconvert
from leconvert.run.proof import verify_pair

def decodes(*_, **__):
    raise AssertionError("a copied row group was decoded")

source, out = map(Path, sys.argv[1:])
leconvert.convert(source, output=out)
pq.ParquetFile.read_row_group = decodes
assert verify_pair(out, source, depth="bytes").ok
"""
    # In a process of its own, which no other test has changed.
    program = [sys.executable, "-c", code, str(source), str(tmp_path / "out")]
    ran = subprocess.run(program, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def test_differences_come_in_one_order_whoever_finds_them(
    converted: Path, small_source: Path, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(converted, tmp_path / "out"))
    for path, sample in ((WRIST, 40), (TOP, 3), (TOP, 20), (WRIST, 2)):
        flip_bit_in_sample(path, sample)(root)
    rewrite(DATA, set_cell("timestamp", 14, 0.05))(root)
    alone, threads, processes = (
        verify_pair(root, small_source, depth="bytes", spread=spread).differences
        for spread in (Spread(), Spread(threads=4), Spread(processes=2))
    )
    assert alone == threads == processes
    found = [(d.stream, d.episode) for d in alone]
    top, wrist = "videos/observation.images.top", "videos/observation.images.wrist"
    assert found == [("data", 1), (top, 0), (top, 3), (wrist, 0), (wrist, 4)]


def test_a_clip_that_lacks_frames_is_told_from_one_that_differs(
    converted: Path, source_copy: Path
) -> None:
    clips = source_copy / "videos/chunk-000/observation.images.top"
    shutil.copy(clips / "episode_000001.mp4", clips / "episode_000000.mp4")
    (found,) = verify_pair(converted, source_copy).differences
    assert (found.what, found.episode) == ("frames of its clip", 0)
    assert (found.expected, found.found) == ("7", "12")


def test_it_stops_after_the_piece_in_hand(converted: Path, small_source: Path) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(InterruptedRunError) as caught:
        verify_pair(converted, small_source, stop=stop)
    assert caught.value.exit_code == 130


def rewrite(path: str, change: Callable[[pa.Table], pa.Table]) -> Damage:
    """Change a parquet table, keeping one row group an episode where it had that."""

    def damage(root: Path) -> None:
        with pq.ParquetFile(root / path) as file:
            groups = [file.read_row_group(n) for n in range(file.num_row_groups)]
        sizes = [group.num_rows for group in groups]
        table = change(pa.concat_tables(groups))
        with pq.ParquetWriter(root / path, table.schema) as writer:
            start = 0
            for size in sizes:
                writer.write_table(table.slice(start, size))
                start += size

    return damage


def set_cell(column: str, row: int, value: object) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        values = table.column(column).to_pylist()
        values[row] = value
        place = table.column_names.index(column)
        field = table.schema.field(place)
        return table.set_column(place, field, pa.array(values, field.type))

    return change


def edit_info(**changes: object) -> Damage:
    def damage(root: Path) -> None:
        path = root / "meta/info.json"
        path.write_text(json.dumps({**json.loads(path.read_bytes()), **changes}))

    return damage


def flip_bit_in_sample(path: str, sample: int) -> Damage:
    def damage(root: Path) -> None:
        place = int(media.read_clip_index(root / path).offsets[sample]) + 1
        content = bytearray((root / path).read_bytes())
        content[place] ^= 4
        (root / path).write_bytes(content)

    return damage


def flip_bit_in_page(root: Path) -> None:
    """Change the last byte of a column of the first episode: a value, not a header."""
    with pq.ParquetFile(root / DATA) as file:
        chunk = file.metadata.row_group(0).column(0)
    begin = chunk.dictionary_page_offset or chunk.data_page_offset
    content = bytearray((root / DATA).read_bytes())
    content[begin + chunk.total_compressed_size - 1] ^= 1
    (root / DATA).write_bytes(content)


def damage_page_of_statistic(root: Path) -> None:
    """Overwrite the pages of one column of statistics."""
    with pq.ParquetFile(root / EPISODES) as file:
        group = file.metadata.row_group(0)
        chunks = [group.column(number) for number in range(group.num_columns)]
    chunk = next(c for c in chunks if c.path_in_schema.startswith("stats/timestamp/max"))
    begin = chunk.dictionary_page_offset or chunk.data_page_offset
    content = bytearray((root / EPISODES).read_bytes())
    content[begin : begin + 8] = b"\xff" * 8
    (root / EPISODES).write_bytes(content)


def edit_box(path: str, box: bytes, place: int) -> Damage:
    """Change one byte of a box's content; ``place`` counts from behind its type."""

    def damage(root: Path) -> None:
        content = bytearray((root / path).read_bytes())
        content[content.index(box) + 4 + place] ^= 1
        (root / path).write_bytes(content)

    return damage


def merge_row_groups(root: Path) -> None:
    table = pq.read_table(root / DATA)
    pq.write_table(table, root / DATA)


def drop_last_frame(root: Path) -> None:
    path = root / TOP
    index = media.read_clip_index(path)
    shorter = root / "shorter.mp4"
    media.join_clips([Slice(str(path), 0, index.num_samples - 1)], shorter, fps=leconvert_fps(root))
    shorter.replace(path)


def leconvert_fps(root: Path):  # type: ignore[no-untyped-def]
    from fractions import Fraction

    return Fraction(json.loads((root / "meta/info.json").read_bytes())["fps"])


STRUCTURE: dict[str, tuple[Damage, str, str]] = {
    "a stray file": (lambda root: (root / "data/x").write_bytes(b""), "data/x", "no such file"),
    "a missing video": (lambda root: (root / TOP).unlink(), TOP, "an index"),
    "a truncated video": (
        lambda root: (root / TOP).write_bytes((root / TOP).read_bytes()[:-1]), TOP, "index",
    ),
    "two cameras exchanged": (exchange(TOP, WRIST), TOP, "packet sizes"),
    "the last frame dropped": (drop_last_frame, TOP, "number of frames"),
    "a frame duration": (edit_box(TOP, b"stts", 15), TOP, "presentation time"),
    "the timescale": (edit_box(TOP, b"mdhd", 15), TOP, "timescale"),
    "a keyframe flag": (edit_box(TOP, b"stss", 11), TOP, "keyframe"),
    "a truncated table": (
        lambda root: (root / DATA).write_bytes((root / DATA).read_bytes()[:-1]), DATA, "parquet",
    ),
    "merged row groups": (merge_row_groups, DATA, "row groups"),
    "a wrong episode length": (
        rewrite(EPISODES, set_cell("length", 1, 8)), "meta/episodes", "length",
    ),
    "a wrong start in the dataset": (
        rewrite(EPISODES, set_cell("dataset_from_index", 3, 21)), "meta/episodes", "from_index",
    ),
    "a wrong start in a video": (
        rewrite(EPISODES, set_cell("videos/observation.images.top/from_timestamp", 2, 0.65)),
        TOP, "from_timestamp",
    ),
    "an end that is off by a rounding": (
        rewrite(
            EPISODES,
            set_cell("videos/observation.images.wrist/to_timestamp", 4, 44 / 30 + 1e-12),
        ),
        WRIST, "to_timestamp",
    ),
    "a wrong file number": (
        rewrite(EPISODES, set_cell("data/file_index", 4, 1)), "data/chunk-000/file-001", "file",
    ),
    "a wrong task of an episode": (
        rewrite(EPISODES, set_cell("tasks", 0, ["Dance."])), "meta/episodes", "tasks",
    ),
    "a changed task": (
        rewrite("meta/tasks.parquet", set_cell("task", 0, "Dance.")), "meta/tasks", "tasks",
    ),
    "a wrong total": (edit_info(total_frames=43), "meta/info.json", "total_frames"),
    "a wrong rate": (edit_info(fps=29), "meta/info.json", "fps"),
    "a lost feature": (edit_info(features={}), "meta/info.json", "features"),
    "no episodes table": (lambda root: (root / EPISODES).unlink(), "meta/", "metadata"),
}  # fmt: skip

BYTES: dict[str, tuple[Damage, str, str]] = {
    "a bit of a packet": (flip_bit_in_sample(TOP, 20), TOP, "coded bytes"),
    "a bit of a page": (flip_bit_in_page, DATA, "episode 0"),
    "one value of a row": (
        rewrite(DATA, set_cell("timestamp", 14, 0.05)), DATA, "column 'timestamp', row 2",
    ),
    "two rows exchanged": (
        rewrite(DATA, lambda t: t.take(pa.array([1, 0, *range(2, t.num_rows)]))), DATA, "row 0",
    ),
    "one statistic": (
        rewrite(EPISODES, set_cell("stats/timestamp/max", 1, [0.25])), "meta/episodes", "max",
    ),
    "a page of a statistic": (damage_page_of_statistic, "meta/episodes", "statistics"),
    "the aggregate": (
        lambda root: (root / "meta/stats.json").write_text("{}"), "meta/stats.json", "aggregate",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", [*STRUCTURE, *BYTES])
def test_damage_is_found_and_named(
    converted: Path, small_source: Path, tmp_path: Path, name: str
) -> None:
    damage, path, word = (STRUCTURE | BYTES)[name]
    root = Path(shutil.copytree(converted, tmp_path / "out"))
    damage(root)
    report = verify_pair(root, small_source, depth="structure" if name in STRUCTURE else "bytes")
    assert not report.ok
    said = [str(difference) for difference in report.differences]
    assert any(line.startswith(path) and word in line for line in said), said


class Extension(pa.ExtensionType):  # type: ignore[misc]
    """Columns are of such types where `datasets` is imported, too."""

    def __init__(self) -> None:
        super().__init__(pa.float64(), "tests.extension")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""


def extended(values: list[float]) -> pa.Array:
    return pa.ExtensionArray.from_storage(Extension(), pa.array(values, pa.float64()))


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        (pa.array([1.0, float("nan")]), pa.array([1.0, float("nan")]), True),
        (pa.array([0.0]), pa.array([-0.0]), False),
        (pa.array([1, None]), pa.array([1, None]), True),
        (pa.array([1, None]), pa.array([None, 1]), False),
        (pa.array([1]), pa.array([1.0]), False),
        (pa.array([[1.0, 2.0]]), pa.array([[1.0, 2.0]], pa.list_(pa.float64(), 2)), True),
        (pa.array([[1.0], [2.0]]), pa.array([[1.0, 2.0], []]), False),
        (pa.array([{"a": 1}]), pa.array([{"a": 1}]), True),
        (pa.array([{"a": 1}]), pa.array([{"b": 1}]), False),
        (pa.array([[1.0], None]), pa.array([[1.0], None]), True),
        (pa.array(["x"]), pa.array(["y"]), False),
        (extended([math.nan, 0.0]), extended([math.nan, 0.0]), True),
        (extended([math.nan, 0.0]), extended([math.nan, -0.0]), False),
    ],
)
def test_values_are_the_same_bit_by_bit(left: pa.Array, right: pa.Array, same: bool) -> None:
    assert same_values(left, right) is same
    assert same_values(right, left) is same


def test_comparison_knows_where_a_column_begins_to_differ() -> None:
    values = pa.array(list(range(100)))
    for place in (0, 1, 57, 99):
        changed = pc.if_else(pc.equal(values, place), -1, values)
        assert first_differing_row(values, changed) == place


def test_small_files_share_a_piece_and_large_ones_are_cut() -> None:
    many = np.arange(300), np.arange(300) // 2, np.zeros(300, np.int64)
    routes = Routes(dict(zip(("data", "videos/a", "videos/b"), many, strict=True)), {}, {})
    pieces = cut_pieces(routes, [0, 31, 300])
    for stream, numbers in routes.file_number.items():
        own = [piece for piece in pieces if piece.stream == stream]
        assert [piece.first for piece in own[1:]] == [piece.stop for piece in own[:-1]]
        assert (own[0].first, own[-1].stop) == (0, 300)
        for _, file_first, file_stop, first, stop in own:
            assert not first < 31 < stop
            assert stop - first <= 28
            is_whole = (first, stop) == (file_first, file_stop)
            assert is_whole or len(set(numbers[file_first:file_stop])) == 1
            assert file_first in (0, *(np.flatnonzero(np.diff(numbers)) + 1))
    assert [(piece.first, piece.stop) for piece in pieces[:3]] == [(0, 28), (28, 31), (31, 59)]
