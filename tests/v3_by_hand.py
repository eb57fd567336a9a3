"""v3.0 datasets as people make and break them by hand: ways to alter a sound one, one thing each.

The sound one has a file an episode and stream (`make_sound`), so that files can be exchanged.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq

import leconvert
from leconvert.model.values import LayoutOptions
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset
from tests.dataset_damage import EPISODES, TASKS, Damage, edit_info, rewrite, set_cells

__all__ = ["CAMERA", "DERIVED", "LOCATED", "make_sound"]

CAMERA = "observation.images.top"
_LENGTHS = (6, 5, 4, 7, 6, 6)
_VIDEO_FILE = f"videos/{CAMERA}/file_index"
_ROWS_FILE = "data/file_index"


def make_sound(folder: Path) -> Path:
    """Write a dataset of six episodes, a file each, and its v2.1 source beside it."""
    spec = DatasetSpec(
        episodes=len(_LENGTHS),
        frames=_LENGTHS,
        cameras=(CameraSpec(key=CAMERA, width=32, height=32),),
        state_dim=2,
        action_dim=2,
    )
    source = make_dataset(folder / "v21", spec)
    layout = LayoutOptions(layout="episode-files")
    leconvert.convert(source, output=folder / "sound", layout=layout)
    return folder / "sound"


def _all(*damages: Damage) -> Damage:
    def damage(root: Path) -> None:
        for each in damages:
            each(root)

    return damage


def _numbered(column: str, numbers: Callable[[int], int]) -> Damage:
    cells = {f"r{row}": numbers(row) for row in range(len(_LENGTHS))}
    return rewrite(EPISODES, set_cells(column, **cells))


def _swapped(column: str, *pairs: tuple[int, int]) -> Damage:
    other = dict(pairs) | {two: one for one, two in pairs}
    return _numbered(column, lambda row: other.get(row, row))


def _move(path: str, to: str) -> Damage:
    def damage(root: Path) -> None:
        (root / to).parent.mkdir(parents=True, exist_ok=True)
        (root / path).rename(root / to)

    return damage


def _four_digits(root: Path) -> None:
    for path in root.glob("videos/*/*/*.mp4"):
        path.rename(path.with_name(path.name.replace("file-", "file-0")))


LOCATED: dict[str, Damage] = {
    "every episode points at the first video": _numbered(_VIDEO_FILE, lambda _: 0),
    "every episode points at the first table": _numbered(_ROWS_FILE, lambda _: 0),
    "the videos of two pairs of episodes are swapped": _swapped(_VIDEO_FILE, (0, 3), (1, 2)),
    "the tables of two episodes are swapped": _swapped(_ROWS_FILE, (4, 5)),
    "tables and videos are counted from one": _all(
        _numbered(_ROWS_FILE, lambda row: row + 1), _numbered(_VIDEO_FILE, lambda row: row + 1)
    ),
    "videos lie in another folder": _move("videos", "video"),
    "videos lie two folders down": _move("videos", "media/clips/videos"),
    "names of videos have four digits": _four_digits,
    "the template of videos is of v2.1": edit_info(
        video_path="videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
    ),
    "the template of tables is of v2.1": edit_info(
        data_path="data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
    ),
    "the template is missing of videos": edit_info(video_path=None),
}
"""Files that are named wrongly, where the right ones are there."""


def _without_index(root: Path) -> None:
    path = root / TASKS
    pq.write_table(pq.read_table(path).replace_schema_metadata(None), path)


def _tasks_as_lines(root: Path) -> None:
    rows = pq.read_table(root / TASKS).to_pylist()
    (root / "meta/tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (root / TASKS).unlink()


def _no_episodes(root: Path) -> None:
    shutil.rmtree(root / "meta/episodes")


_OF_V2 = {
    "codebase_version": "v2.1",
    "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
    "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
}

DERIVED: dict[str, Damage] = {
    "tasks have no index": _without_index,
    "tasks have no index and stand in another order": _all(
        _without_index, rewrite(TASKS, lambda table: table.take([1, 0]))
    ),
    "tasks are lines": _tasks_as_lines,
    "there is no table of episodes": _no_episodes,
    "there is no table of episodes, and tasks have no index": _all(_no_episodes, _without_index),
    "there is no table of episodes, tasks are lines, and both templates are of v2.1": _all(
        _no_episodes,
        _tasks_as_lines,
        LOCATED["the template of videos is of v2.1"],
        LOCATED["the template of tables is of v2.1"],
    ),
    "files of v3.0 under the version of v2.1": edit_info(codebase_version="v2.1"),
    "files of v3.0 under the description of v2.1": edit_info(**_OF_V2),
    "files of v3.0 without a version": edit_info(codebase_version=None),
}
"""Tables that follow from rows and files."""
