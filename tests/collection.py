"""Kinds of v2.x datasets as people have them: sound and unsound, some unreadable.

What is wrong with each is what was met in public datasets; `tests.oddities` has most of it. Each
frame says which it is. `scripts/storm.py fleet` makes a fleet of them.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from leconvert.testing import (
    CameraSpec,
    DatasetSpec,
    edit_info,
    edit_lines,
    make_dataset,
    with_column,
)
from tests.oddities import CAMERA, IN_THE_WILD, ODDITIES, each_table, lose_clips

__all__ = ["KINDS"]

Make = Callable[[Path, random.Random], object]

KINDS: dict[str, Make] = {}
"""Writes each kind of dataset, by its name."""

_SMALL = CameraSpec(key=CAMERA, width=64, height=48)


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
