"""How a verification goes about it: in which order, in which pieces, and what is the same."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from mutation import DATA, TOP, WRIST, bytes_of
from tests.dataset_damage import Damage, rewrite, set_cells

import leconvert
from leconvert import media
from leconvert.model.values import IntArray
from leconvert.run.proof import Sampling, verify_pair
from leconvert.run.proof.difference import first_differing_row, same_values
from leconvert.run.proof.expected import Expected
from leconvert.run.proof.pair import Place, chosen
from leconvert.support.errors import InterruptedRunError, UsageError
from leconvert.support.parallel import Spread
from leconvert.testing import DatasetSpec, make_dataset


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
    small_result: Path, small_source: Path, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(small_result, tmp_path / "out"))
    for path, sample in ((WRIST, 40), (TOP, 3), (TOP, 20), (WRIST, 2)):
        flip_bit_in_sample(path, sample)(root)
    rewrite(DATA, set_cells("timestamp", r14=0.05))(root)
    alone, threads, processes = (
        verify_pair(root, small_source, depth="bytes", spread=spread).differences
        for spread in (Spread(), Spread(threads=4), Spread(processes=2))
    )
    assert alone == threads == processes
    found = [(d.stream, d.episode) for d in alone]
    top, wrist = "videos/observation.images.top", "videos/observation.images.wrist"
    assert found == [("data", 1), (top, 0), (top, 3), (wrist, 0), (wrist, 4)]


def test_a_clip_without_frames_is_told_apart(small_result: Path, source_copy: Path) -> None:
    clips = source_copy / "videos/chunk-000/observation.images.top"
    shutil.copy(clips / "episode_000001.mp4", clips / "episode_000000.mp4")
    (found,) = verify_pair(small_result, source_copy).differences
    assert (found.what, found.episode) == ("frames of its clip", 0)
    assert (found.expected, found.found) == ("7", "12")


def test_it_stops_after_a_piece_and_folders_may_be_texts(
    small_result: Path, small_source: Path
) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(InterruptedRunError) as caught:
        verify_pair(small_result, small_source, stop=stop)
    assert caught.value.exit_code == 130
    whole = verify_pair(small_result, small_source)
    assert verify_pair(str(small_result), str(small_source)) == whole
    assert verify_pair(str(small_result), [str(small_source)]) == whole


def flip_bit_in_sample(path: str, sample: int) -> Damage:
    def damage(root: Path) -> None:
        place = int(media.read_clip_index(root / path).offsets[sample]) + 1
        with bytes_of(root / path) as content:
            content[place] ^= 4

    return damage


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


def test_a_piece_does_not_look_at_the_whole_of_a_large_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, result, episodes = tmp_path / "source", tmp_path / "result", 40
    make_dataset(source, DatasetSpec(episodes=episodes, frames=2, distinct_clips=1))
    leconvert.convert(source, output=result)
    asked = [0]

    def noting(self: Expected, stream: str, positions: IntArray) -> IntArray:
        asked[0] += len(positions)
        return samples(self, stream, positions)

    samples = Expected.samples
    monkeypatch.setattr(Expected, "samples", noting)
    report = verify_pair(result, source, spread=Spread())
    assert (report.ok, report.files) == (True, 2), "all episodes are in one file a stream"
    assert asked[0] == 3 * episodes  # once for each stream, and once for the clips


@pytest.mark.parametrize("depth", ["byte", "none", "", None])
def test_a_senseless_depth_is_refused(small_result: Path, small_source: Path, depth: Any) -> None:
    with pytest.raises(UsageError, match="depth must be structure or bytes, not"):
        verify_pair(small_result, small_source, depth=depth)


def test_equal_seeds_choose_the_same_and_where_there_are_fewer_all_are_chosen() -> None:
    assert chosen(1000, 5, 7).tolist() == [154, 331, 404, 666, 970]
    assert chosen(1000, 5, 8).tolist() != chosen(1000, 5, 7).tolist()
    assert chosen(3, 10, 0).tolist() == [0, 1, 2]
    assert chosen(0, 10, 0).tolist() == []


@pytest.mark.parametrize(("share", "episodes", "count"), [(0.5, 10, 5), (0.001, 10, 1), (1, 4, 4)])
def test_a_share_is_rounded_and_never_nothing(share: float, episodes: int, count: int) -> None:
    is_chosen = Sampling(share=share).episodes(episodes)
    assert (episodes if is_chosen is None else int(is_chosen.sum())) == count


def test_frames_are_found_in_their_episodes() -> None:
    lengths = np.array([3, 0, 2])
    everything = Sampling().frames(99, lengths, ["top", "wrist"])
    assert everything == [
        (camera, Place(*place))
        for camera in ("top", "wrist")
        for place in [(0, 0), (0, 1), (0, 2), (2, 0), (2, 1)]
    ]
    assert Sampling().frames(2, np.zeros(3, np.int64)) == []
    assert Sampling().frames(2, lengths, []) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"share": 0.0}, "sample must be above 0 and at most 1, not 0."),
        ({"share": 1.5}, "not 1.5"),
        ({"share": float("nan")}, "not nan"),
        ({"decode": -1}, "--decode takes 0 or more, not -1."),
        ({"deep": -2}, "--deep takes 0 or more, not -2."),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Sampling(**options)  # type: ignore[arg-type]


def converted(root: Path, episodes: int) -> tuple[Path, Path]:
    source, result = root / f"source-{episodes}", root / f"result-{episodes}"
    make_dataset(source, DatasetSpec(episodes=episodes, frames=10, distinct_clips=1))
    leconvert.convert(source, output=result)
    return result, source


def test_an_episode_adds_less_than_a_kilobyte_to_a_proof(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The footers of this test are small, and so are the pieces in which they are read.
    monkeypatch.setattr("leconvert.tables.footers._PIECE_BYTES", 16 * 1024)
    monkeypatch.setattr("leconvert.tables.footers._MOST_PART_BYTES", 8 * 1024)
    few, many, peaks = 50, 200, dict[int, int]()
    for episodes in (few, many):
        result, source = converted(tmp_path, episodes)
        for _ in range(2):  # the first proof learns what is common to all files
            tracemalloc.start()
            report = verify_pair(result, source, spread=Spread())
            _, peaks[episodes] = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        assert (report.ok, report.files) == (True, 2), "all episodes are in one file a stream"
    assert (peaks[many] - peaks[few]) / (many - few) < 1000
