"""Datasets as robots recorded them: made ones always, real ones where a variable names them.

The variable ``LECONVERT_RECORDINGS`` names a folder of three public datasets, each under its name
here. The project does not hold them, so that nothing may rest on them alone: a test of a recording
is written once and runs twice, on a small dataset that is made like the recording (`LIKE`), and on
the recording itself, under the mark ``recordings``. `each` gives both to `pytest.mark.parametrize`,
`twins` gives their names. The fixtures ``recording`` and ``recordings`` open them.

A made dataset has the oddities of its recording, not its contents: its frames are small and few,
and say which they are (`leconvert.testing.read_label`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from leconvert.testing import CameraSpec, DatasetSpec, edit_info, edit_lines, make_dataset
from tests.oddities import each_table

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["FOLDER", "LIKE", "VARIABLE", "each", "marks_of", "opened", "twins"]

VARIABLE = "LECONVERT_RECORDINGS"
FOLDER = Path(os.environ[VARIABLE]).resolve() if os.environ.get(VARIABLE) else None
"""The folder of the real recordings, if the variable names one."""

_LIKE = "like_"


def twins(name: str) -> tuple[str, str]:
    """Return the name of the made dataset and that of the recording."""
    return _LIKE + name, name


def marks_of(name: str, *marks: pytest.MarkDecorator) -> list[pytest.MarkDecorator]:
    """Return what a test of this dataset is marked with: a made one, which is small, with nothing.

    Args:
        name: Of a made dataset or of a recording.
        marks: Further ones for a recording.
    """
    return [] if name in LIKE else [pytest.mark.recordings, *marks]


def each(*cases: Any, slow: bool = False) -> list[Any]:
    """Return each case twice for `pytest.mark.parametrize`: of a made dataset, of the recording.

    Args:
        cases: The name of a recording, or several values of which that is the first. The marks of a
            ``pytest.param`` are for the recording alone.
        slow: Whether recordings run with the slow tests alone, as made datasets show enough in CI.
    """
    found = []
    for case in cases:
        values, marks = case, ()
        if hasattr(case, "marks"):
            values, marks = case.values, case.marks
        name, *others = [values] if isinstance(values, str) else values
        for one in twins(name):
            words = "-".join([one, *(other for other in others if isinstance(other, str))])
            more = (*marks, pytest.mark.slow) if slow else marks
            found.append(pytest.param(one, *others, id=words, marks=marks_of(one, *more)))
    return found


def opened(name: str, made: Path) -> Path:
    """Return the folder of a recording, or of a made dataset, which is made if it is not there.

    Args:
        name: Of either.
        made: The folder of those that are made.
    """
    if name in LIKE:
        if not (made / name).exists():
            LIKE[name](made / name)
        return made / name
    assert FOLDER is not None, f"a test of {name} lacks the mark `recordings`"
    if not (FOLDER / name / "meta/info.json").is_file():
        pytest.fail(f"{VARIABLE} names {FOLDER}, which holds no dataset {name}", pytrace=False)
    return FOLDER / name


# --- datasets like the recordings -------------------------------------------------------------


def _call_channels_channel(root: Path) -> None:
    """Call the third axis of pictures as these recordings call it."""

    def rename(info: dict[str, Any]) -> None:
        for feature in info["features"].values():
            if feature["dtype"] == "video":
                feature["names"] = ["height", "width", "channel"]

    edit_info(root, rename)


def _av1(key: str, width: int, height: int, crf: int) -> CameraSpec:
    """Return a camera whose clips are larger than the tables, as those of robots are."""
    options = {"preset": "12", "crf": str(crf)}
    return CameraSpec(key, width, height, "libsvtav1", options=options, noise_amplitude=40)


def _like_g1(root: Path) -> None:
    """AV1 and names of vectors as a list in a list."""
    camera = _av1("observation.images.cam_high", 128, 96, crf=10)
    lengths = (130, 75, 40, 22, 25, 31, 19, 24, 28, 35, 21, 27)
    spec = DatasetSpec(
        episodes=len(lengths),
        frames=lengths,
        cameras=(camera,),
        state_dim=26,
        action_dim=26,
        nested_names=True,
        tasks=("Pick up the yellow bottle on the table.",),
        robot_type="Unitree_G1_Inspire",
    )
    make_dataset(root, spec)
    _call_channels_channel(root)


def _like_cr5(root: Path) -> None:
    """AV1 at 10 frames a second; stored statistics of timestamps are those of the wall clock.

    Pictures have 300 columns and more, so that their statistics are of every second pixel.
    """
    camera = _av1("observation.images.top", 320, 240, crf=40)
    spec = DatasetSpec(
        episodes=5,
        frames=(50, 75, 40, 22, 31),
        fps=10,
        cameras=(camera,),
        action_dim=7,
        tasks=("grasp_cube",),
        robot_type="cr5",
        stats_samples=100,
    )
    make_dataset(root, spec)
    _call_channels_channel(root)

    def measure_by_the_clock(lines: list[dict[str, Any]]) -> None:
        for line in lines:
            stats, late, slow = line["stats"]["timestamp"], 0.056, 1.0136
            for name in ("min", "max", "mean"):
                stats[name] = [late + slow * value for value in stats[name]]
            stats["std"] = [slow * value for value in stats["std"]]

    edit_lines(root, "episodes_stats", measure_by_the_clock)

    def describe_for_pandas(_: int, table: pa.Table) -> pa.Table:
        described = pa.Table.from_pandas(table.to_pandas(), preserve_index=False).schema.metadata
        return table.replace_schema_metadata(described | table.schema.metadata)

    each_table(root, describe_for_pandas)


def _like_robot_sim(root: Path) -> None:
    """v2.0 as GR00T's demonstration has it: tables by pandas, and much that LeRobot never wrote.

    H.264 has B-frames and an edit list; the declared rate is a float; there is no ``frame_index``;
    vectors are doubles; times begin at 0.05 s and fall behind; an episode has two tasks; a camera
    has no files; ``total_chunks`` is 0.
    """
    camera = CameraSpec(
        "observation.images.ego_view",
        width=64,
        height=64,
        gop_size=50,
        options={"x264-params": "bframes=3:b-adapt=0"},
    )
    fruits = ("pear", "sweet potato", "meat", "salt", "cupcake")
    texts = [f"pick the {fruit} from the counter and place it in the plate" for fruit in fruits]
    texts.insert(1, "valid")
    parts = {"left_arm": {"start": 0, "end": 7}, "left_hand": {"start": 7, "end": 13}}
    modality = {
        "state": parts,
        "action": parts,
        "video": {"ego_view": {"original_key": camera.key}},
        "annotation": {"human.action.task_description": {}, "human.validity": {}},
    }
    spec = DatasetSpec(
        episodes=5,
        frames=(130, 75, 40, 22, 31),
        fps=20,
        cameras=(camera,),
        state_dim=44,
        action_dim=44,
        tasks=texts,
        codebase_version="v2.0",
        robot_type="GR1ArmsOnly",
        extra_files={"meta/modality.json": json.dumps(modality)},
    )
    make_dataset(root, spec)
    import pandas as pd  # here, as it takes a while, and most tests do without it

    own = [texts.index(text) for text in texts if text != "valid"]
    frames = [
        _rewritten_as_in_simulation(path, task)
        for path, task in zip(sorted(root.glob("data/*/*.parquet")), own, strict=True)
    ]
    rows = pd.concat(frames)
    stats = {name: _stats_of_gr00t(rows[name].to_numpy()) for name in rows.columns}
    (root / "meta/stats.json").write_text(json.dumps(stats))
    edit_lines(
        root,
        "episodes",
        lambda lines: [
            line.update(tasks=[texts[task], "valid"]) for line, task in zip(lines, own, strict=True)
        ],
    )

    def declare(info: dict[str, Any]) -> None:
        info.update(fps=20.0, total_chunks=0, total_videos=2, splits={"train": "0:100"})
        made = info["features"]
        seen = made[camera.key]
        described = {"video.fps": 20.0, "video.codec": "h264", "video.pix_fmt": "yuv420p"}
        video = {"dtype": "video", "names": ["height", "width", "channel"]} | {
            "video_info": described | {"video.is_depth_map": False, "has_audio": False}
        }
        features = {
            "observation.images.egoview": video | {"shape": [800, 1280, 3]},
            camera.key: video | {"shape": seen["shape"]},
        }
        for name in rows.columns:
            if name in ("observation.state", "action"):
                features[name] = made[name] | {"dtype": "float64"}
            else:
                features[name] = {"dtype": str(rows[name].dtype), "shape": [1]}
        info["features"] = features

    edit_info(root, declare)


def _rewritten_as_in_simulation(path: Path, task: int) -> pd.DataFrame:
    import pandas as pd

    rows = pq.read_table(path)
    number = np.arange(rows.num_rows)
    is_last = number == number[-1]
    frame = pd.DataFrame(
        {
            **{
                name: [np.array(row, np.float64) for row in rows[name].to_pylist()]
                for name in ("observation.state", "action")
            },
            "timestamp": (number + 1) * 0.04999995231628418,
            "annotation.human.action.task_description": task,
            "task_index": task,
            "annotation.human.validity": 1,
            "episode_index": rows["episode_index"].to_numpy(),
            "index": rows["index"].to_numpy(),
            "next.reward": is_last.astype(np.float64),
            "next.done": is_last,
        }
    )
    frame.to_parquet(path)
    return frame


def _stats_of_gr00t(column: np.ndarray[Any, Any]) -> dict[str, list[float]]:
    values = np.stack([np.atleast_1d(value) for value in column]).astype(np.float64)
    found = {
        "mean": values.mean(axis=0),
        "std": values.std(axis=0),
        "min": values.min(axis=0),
        "max": values.max(axis=0),
        "q01": np.quantile(values, 0.01, axis=0),
        "q99": np.quantile(values, 0.99, axis=0),
    }
    return {name: value.tolist() for name, value in found.items()}


LIKE: Mapping[str, Callable[[Path], object]] = {
    twins(name)[0]: make
    for name, make in {
        "g1_inspire_12ep": _like_g1,
        "cr5_5ep": _like_cr5,
        "robot_sim_picknplace_v20": _like_robot_sim,
    }.items()
}
"""Makes a dataset like each recording in a new folder."""
