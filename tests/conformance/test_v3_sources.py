"""v3.0 datasets of any writer as sources: LeRobot loads the result, every frame the source's."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from lerobot.datasets import LeRobotDataset
from reference import convert_with_reference, record_with_reference

import leconvert
from leconvert.dataset.check import check_dataset
from leconvert.model.repairs import RepairOptions
from leconvert.model.selection import EpisodeSelection
from leconvert.model.values import LayoutOptions
from leconvert.run.conversion import ProofOptions
from leconvert.testing import CameraSpec, DatasetSpec, edit_info, make_dataset

LENGTHS = [6, 4, 15, 9, 7, 10, 4]
TOP, WRIST = "observation.images.top", "observation.images.wrist"
SMALL = LayoutOptions(data_file_size_in_mb=0.004, video_file_size_in_mb=0.007)
ANEW = LayoutOptions(data_file_size_in_mb=0.006, video_file_size_in_mb=0.012)
INDICES = {"episode_index", "index", "task_index"}


def make_v21(folder: Path) -> Path:
    spec = DatasetSpec(
        episodes=len(LENGTHS),
        frames=LENGTHS,
        cameras=(
            CameraSpec(key=TOP, width=64, height=48),
            CameraSpec(key=WRIST, width=64, height=48),
        ),
        tasks=("Pick up the cube.", "Put it down."),
    )
    return make_dataset(folder, spec)


def by_us(folder: Path) -> Path:
    source = make_v21(folder / "v21")
    leconvert.convert(source, output=folder / "v30", layout=SMALL)
    return folder / "v30"


def by_the_reference(folder: Path) -> Path:
    return convert_with_reference(
        make_v21(folder / "v21"),
        folder / "v30",
        data_file_size_in_mb=SMALL.data_file_size_in_mb,
        video_file_size_in_mb=SMALL.video_file_size_in_mb,
    )


def recorded(folder: Path, **options: Any) -> Path:
    tasks = [["Pick up the cube." if n % 2 else "Put it down."] * n for n in LENGTHS]
    tasks[3][4:] = ["Wait."] * 5
    return record_with_reference(folder / "v30", tasks, **options)


def streamed(folder: Path) -> Path:
    return recorded(folder, streaming_encoding=True)


def of_images(folder: Path) -> Path:
    return recorded(folder, use_videos=False)


def trimmed(folder: Path) -> Path:
    """Take rows from the ends of episodes, and leave their frames in the videos."""
    root = recorded(folder)
    (data,) = (root / "data").rglob("*.parquet")
    (episodes,) = (root / "meta/episodes").rglob("*.parquet")
    table = pq.read_table(data)
    stays = np.concatenate([np.arange(n) < max(1, n - 3) for n in LENGTHS])
    lengths = [max(1, n - 3) for n in LENGTHS]
    table = table.filter(pa.array(stays))
    table = replaced(table, "index", np.arange(len(table)))
    pq.write_table(table, data)
    rows = pq.read_table(episodes)
    ends = np.array(list(accumulate(lengths)))
    rows = replaced(rows, "length", np.array(lengths))
    rows = replaced(rows, "dataset_from_index", ends - lengths)
    pq.write_table(replaced(rows, "dataset_to_index", ends), episodes)
    edit_info(root, lambda info: info.update(total_frames=int(ends[-1])))
    return root


def replaced(table: pa.Table, name: str, values: Any) -> pa.Table:
    at = table.schema.get_field_index(name)
    return table.set_column(at, table.schema.field(at), pa.array(values))


Maker = Callable[[Path], Path]
MAKERS: dict[str, Maker] = {
    "ours": by_us,
    "reference": by_the_reference,
    "recorded": recorded,
    "streamed": streamed,
    "images": of_images,
    "trimmed": trimmed,
}


def assert_items_are_the_sources(
    result: Path,
    source: Path,
    episodes: Sequence[int],
    *,
    dropped: frozenset[str] = frozenset(),
    every: int = 1,
) -> None:
    """Every item that LeRobot gives of the result is that of its episode and frame.

    With PyAV, which opens a file for each of them, those at the ends of episodes; with ``every``
    these and every so-manieth.
    """
    # Times of the source may have drifted: that is one reason to convert it again.
    original = LeRobotDataset(
        "v3/source", root=source, video_backend="torchcodec", tolerance_s=0.01
    )
    results = [
        LeRobotDataset("v3/result", root=result, video_backend=backend)
        for backend in ("torchcodec", "pyav")
    ]
    row = -1
    for position, episode in enumerate(episodes):
        begin, end = (
            original.meta.episodes[episode][f"dataset_{to}_index"] for to in ("from", "to")
        )
        for frame, number in enumerate(range(begin, end)):
            row += 1
            is_end = number in (begin, end - 1)
            if frame % every and not is_end:
                continue
            wanted = original[number]
            for have in (found[row] for found in results[: 1 + is_end]):
                assert set(have) == set(wanted) - dropped
                assert have["episode_index"].item() == position
                assert have["frame_index"].item() == frame
                assert have["index"].item() == row
                for name in set(have) - INDICES:
                    same = (
                        torch.equal(have[name], wanted[name])
                        if isinstance(wanted[name], torch.Tensor)
                        else have[name] == wanted[name]
                    )
                    assert same, (position, frame, name)
    for found in results:
        assert (found.num_episodes, len(found)) == (len(episodes), row + 1)


def lose_a_file(source: Path) -> None:
    sorted((source / "data").rglob("*.parquet"))[-1].unlink()


Options = dict[str, Any]
# The options, and the episodes that are kept; each writer once.
CUT: dict[str, tuple[Options, list[int]]] = {
    "ours": ({}, [*range(7)]),
    "reference": ({"repairs": RepairOptions(on_bad_episode="drop")}, [*range(6)]),
    "recorded": ({"repairs": RepairOptions(drop_features=(WRIST,))}, [*range(7)]),
    "streamed": ({}, [*range(7)]),
    "images": ({}, [*range(7)]),
    "trimmed": ({"selection": EpisodeSelection(episodes="1,3-4,6")}, [1, 3, 4, 6]),
}


@pytest.mark.parametrize(
    "maker", [pytest.param(name, marks=[pytest.mark.slow] * (name == "streamed")) for name in CUT]
)
def test_a_dataset_of_any_writer_is_cut_anew(maker: str, tmp_path: Path) -> None:
    whole = MAKERS[maker](tmp_path / "made")
    options, kept = CUT[maker]
    source = Path(shutil.copytree(whole, tmp_path / "source"))
    if maker == "reference":
        lose_a_file(source)
    report = leconvert.convert(
        source, output=tmp_path / "out", layout=ANEW, proof=ProofOptions(verify="bytes"), **options
    )
    if not options:
        assert {f.severity for f in report.findings} <= {"info"}
    assert [f for f in check_dataset(tmp_path / "out").findings if f.severity != "info"] == []
    dropped = frozenset({WRIST} if maker == "recorded" else ())
    every = 2 if maker == "trimmed" else 4
    assert_items_are_the_sources(tmp_path / "out", whole, kept, dropped=dropped, every=every)
