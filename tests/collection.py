"""A collection of datasets as people have them: sound and unsound, v2.x and v3.0, some unreadable.

`make_collection` writes one from a seed, with bytes of our own. What is wrong with each is what was
met in public datasets; `tests.oddities` has most of it. Each frame says which it is.
"""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import leconvert
from leconvert.model.values import LayoutOptions
from leconvert.testing import (
    CameraSpec,
    DatasetSpec,
    edit_info,
    edit_lines,
    make_dataset,
    with_column,
)
from tests.oddities import CAMERA, IN_THE_WILD, ODDITIES, each_table, lose_clips

__all__ = ["KINDS", "make_collection"]

Make = Callable[[Path, random.Random], object]

KINDS: dict[str, Make] = {}
"""Writes each kind of dataset, by its name."""

_SMALL = CameraSpec(key=CAMERA, width=64, height=48)


def _kind(name: str) -> Callable[[Make], Make]:
    def note(make: Make) -> Make:
        KINDS[name] = make
        return make

    return note


def _sound(name: str, **changes: Any) -> None:
    def make(root: Path, chance: random.Random) -> None:
        lengths = [chance.randrange(3, 12) for _ in range(chance.randrange(2, 6))]
        spec = DatasetSpec(
            episodes=len(lengths), frames=lengths, cameras=(_SMALL,), seed=chance.randrange(1000)
        )
        make_dataset(root, replace(spec, **changes))

    KINDS[name] = make


_sound("sound")
_sound("sound, two cameras", cameras=(_SMALL, replace(_SMALL, key="observation.images.side")))
_sound("sound, v2.0", codebase_version="v2.0")
_sound("sound, no camera", cameras=())
_sound("sound, images", cameras=(), image_keys=("observation.images.png",), image_size=(32, 32))
_sound("sound, 29.97 frames a second", fps="29.97")
_sound("sound, AV1", cameras=(replace(_SMALL, codec="libsvtav1"),))
_sound("sound, several tasks an episode", tasks_per_episode=2)


def _alike(make: Callable[[Path], object]) -> Make:
    return lambda root, _: make(root)


for _name, _make in {
    **IN_THE_WILD,
    **{
        name: ODDITIES[name]
        for name in (
            "HEVC 10 bit",
            "audio in some clips",
            "empty episode",
            "images as paths",
            "late start",
            "times that jitter",
        )
    },
}.items():
    KINDS[_name] = _alike(_make)


def _spoiled(name: str) -> Callable[[Callable[[Path], object]], None]:
    """Note a function that damages a sound v2.1 dataset."""

    def note(spoil: Callable[[Path], object]) -> None:
        def make(root: Path, chance: random.Random) -> None:
            KINDS["sound"](root, chance)
            spoil(root)

        KINDS[name] = make

    return note


def _cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def _first(root: Path, pattern: str) -> Path:
    return min(root.rglob(pattern))


_spoiled("a clip is missing")(lambda root: lose_clips(root, CAMERA, 1))
_spoiled("a clip is torn")(lambda root: _cut(_first(root, "*.mp4"), 600))
_spoiled("a table is torn")(lambda root: _cut(_first(root, "*.parquet"), 200))
_spoiled("info.json is empty")(lambda root: _cut(root / "meta/info.json", 0))
_spoiled("info.json is torn")(lambda root: _cut(root / "meta/info.json", 50))
_spoiled("no info.json")(lambda root: (root / "meta/info.json").unlink())
_spoiled("no meta/")(lambda root: shutil.rmtree(root / "meta"))
_spoiled("no tasks.jsonl")(lambda root: (root / "meta/tasks.jsonl").unlink())
_spoiled("no video at all")(lambda root: shutil.rmtree(root / "videos"))
_spoiled("another table format")(
    lambda root: edit_info(root, lambda info: info.update(storage_format="lance"))
)
_spoiled("a task has two texts")(
    lambda root: edit_lines(
        root, "tasks", lambda lines: lines.append({"task_index": 0, "task": "Else."})
    )
)
_spoiled("an episode is listed too long")(
    lambda root: edit_lines(
        root, "episodes", lambda lines: lines[0].update(length=lines[0]["length"] + 1)
    )
)
_spoiled("half the frame rate is declared")(
    lambda root: edit_info(root, lambda info: info.update(fps=15))
)


@_spoiled("off the grid, and a column is not declared")
def _(root: Path) -> None:
    def change(_: int, table: pa.Table) -> pa.Table:
        times = pa.array([value + 0.011 for value in table["timestamp"].to_pylist()], pa.float32())
        table = with_column(table, "timestamp", times)
        return with_column(table, "force", pa.array([0.5] * len(table), pa.float32()))

    each_table(root, change)


# --- v3.0 -------------------------------------------------------------------------------------


def _v30(name: str, layout: LayoutOptions = LayoutOptions()) -> Callable[..., None]:
    """Note a function that damages a sound v3.0 dataset."""

    def note(spoil: Callable[[Path], object]) -> None:
        def make(root: Path, chance: random.Random) -> None:
            source = root.with_name(f".{root.name}")
            KINDS["sound"](source, chance)
            leconvert.convert(source, output=root, layout=layout)
            shutil.rmtree(source)
            spoil(root)

        KINDS[name] = make

    return note


def _rewrite(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    pq.write_table(change(pq.read_table(path)), path)


_EPISODES = "meta/episodes/chunk-000/file-000.parquet"

_v30("v3.0")(lambda _: None)
_v30("v3.0, a file an episode", LayoutOptions(layout="episode-files"))(lambda _: None)
_v30("v3.0, wrong totals")(
    lambda root: edit_info(root, lambda info: info.update(total_frames=7, total_episodes=1))
)
_v30("v3.0, no statistics")(lambda root: (root / "meta/stats.json").unlink())
_v30("v3.0, a left-over episodes.jsonl")(
    lambda root: (root / "meta/episodes.jsonl").write_text('{"episode_index": 0, "length": 3}\n')
)
_v30("v3.0, no meta/episodes")(lambda root: shutil.rmtree(root / "meta/episodes"))
_v30("v3.0, videos in video/")(lambda root: (root / "videos").rename(root / "video"))
_v30("v3.0, a video is missing")(lambda root: _first(root, "*.mp4").unlink())
_v30("v3.0, a data file is missing")(lambda root: _first(root / "data", "*.parquet").unlink())
_v30("v3.0, called v2.1")(
    lambda root: edit_info(root, lambda info: info.update(codebase_version="v2.1"))
)
_v30("v3.0, task texts in a column")(
    lambda root: _rewrite(
        root / "meta/tasks.parquet",
        lambda table: pa.table(
            {name: table[name] for name in ("task_index", "task")}
            if "task" in table.column_names
            else {"task_index": table["task_index"], "task": table["__index_level_0__"]}
        ),
    )
)


@_v30("v3.0, all episodes point at one video", LayoutOptions(layout="episode-files"))
def _(root: Path) -> None:
    name = f"videos/{CAMERA}/file_index"
    _rewrite(
        root / _EPISODES,
        lambda table: with_column(table, name, pa.array([0] * len(table), pa.int64())),
    )


def make_collection(
    root: Path, number: int, seed: int, kinds: Sequence[str] | None = None
) -> dict[str, str]:
    """Write so many datasets below a folder; return the kind of each by its path below it.

    Each kind is there once before one is there twice, and then the sound ones come.
    """
    chance = random.Random(seed)
    chosen = list(KINDS if kinds is None else kinds)
    chance.shuffle(chosen)
    sound = [name for name in chosen if name.startswith("sound")]
    while len(chosen) < number:
        chosen.append(chance.choice(sound))
    made = {}
    for place, kind in enumerate(chosen[:number]):
        words = "_".join(re.findall(r"\w+", kind))[:40]
        name = f"lab{chance.randrange(4)}/{place:02d}_{words}"
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        KINDS[kind](root / name, chance)
        made[name] = kind
    return made
