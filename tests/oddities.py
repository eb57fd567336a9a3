"""Small v2.1 datasets with one oddity each, as they are met or might be: bytes of our own.

Each is written by a function of `ODDITIES` into a new folder. Whatever its clips say of their
frames' times or orientation, and however frames are coded, each frame says which it is
(`leconvert.testing.read_label`).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from leconvert.testing import (
    CameraSpec,
    DatasetSpec,
    edit_info,
    edit_lines,
    edit_table,
    make_dataset,
    with_column,
)
from tests.mp4_boxes import Box, changed, edit_list

__all__ = [
    "CAMERA",
    "IMAGE",
    "IN_THE_WILD",
    "LENGTHS",
    "ODDITIES",
    "declare_absent_feature",
    "each_table",
    "embed_images",
    "forget_version",
    "list_task_twice",
    "lose_clips",
    "rotate",
]

CAMERA, IMAGE = "observation.images.top", "observation.images.wrist"
LENGTHS = (8, 5, 9)
_PLAIN = CameraSpec(key=CAMERA, width=64, height=48)
_SPEC = DatasetSpec(episodes=len(LENGTHS), frames=LENGTHS, cameras=(_PLAIN,))

ODDITIES: dict[str, Callable[[Path], object]] = {}
"""Writes each oddity that was never met, by its name."""
IN_THE_WILD: dict[str, Callable[[Path], object]] = {}
"""Writes each oddity that public datasets have, by its name."""


def _oddity(make: Callable[[Path], object]) -> Callable[[Path], object]:
    ODDITIES[make.__name__.strip("_").replace("_", " ")] = make
    return make


def _clips(root: Path) -> list[Path]:
    return sorted(root.glob("videos/**/*.mp4"))


# --- how frames are coded ---------------------------------------------------------------------


def _coded(name: str, codec: str, pixel_format: str) -> None:
    camera = replace(_PLAIN, codec=codec, pixel_format=pixel_format)
    spec = replace(_SPEC, cameras=(camera,))
    ODDITIES[name] = lambda root: make_dataset(root, spec)


_coded("HEVC", "libx265", "yuv420p")
_coded("HEVC 10 bit", "libx265", "yuv420p10le")
_coded("HEVC 4:4:4 12 bit", "libx265", "yuv444p12le")
_coded("H.264 4:4:4", "libx264", "yuv444p")
_coded("H.264 4:2:2", "libx264", "yuv422p")
_coded("H.264 10 bit", "libx264", "yuv420p10le")
_coded("AV1 10 bit", "libsvtav1", "yuv420p10le")


@_oddity
def _4_4_4_in_some_clips(root: Path) -> None:
    make_dataset(root, _SPEC)
    other = root.with_name(f"{root.name}-other")
    ODDITIES["H.264 4:4:4"](other)
    _clips(other)[1].replace(_clips(root)[1])


# --- when and how frames are shown ------------------------------------------------------------


def _remux(path: Path, *, late: Callable[[int], float] = lambda _: 0, audio: bool = False) -> None:
    """Write a clip anew with each frame so many frames later, and perhaps with sound."""
    new = path.with_suffix(".new.mp4")
    with av.open(str(path)) as source, av.open(str(new), "w") as target:
        stream = source.streams.video[0]
        copied = target.add_stream_from_template(stream)
        assert stream.average_rate is not None
        assert stream.time_base is not None
        ticks = int(1 / (stream.average_rate * stream.time_base))
        sound: Any = target.add_stream("aac", rate=16000, layout="mono") if audio else None
        for number, packet in enumerate(p for p in source.demux(stream) if p.dts is not None):
            assert packet.pts is not None
            assert packet.dts is not None
            packet.stream = copied
            packet.pts += int(late(number) * ticks)
            packet.dts += int(late(number) * ticks)
            target.mux(packet)
        if sound is not None:
            for number in range(4):
                silence = np.zeros((1, 1024), np.float32)
                frame = av.AudioFrame.from_ndarray(silence, format="fltp", layout="mono")
                frame.sample_rate, frame.pts = 16000, 1024 * number
                target.mux(sound.encode(frame))
            target.mux(sound.encode(None))
    new.replace(path)


def _without_reordering(root: Path) -> list[Path]:
    """Write the dataset with frames coded in the order in which they are shown."""
    options = {"x264-params": "bframes=0"}
    make_dataset(root, replace(_SPEC, cameras=(replace(_PLAIN, options=options),)))
    return _clips(root)


@_oddity
def _times_that_jitter(root: Path) -> None:
    for path in _without_reordering(root):
        _remux(path, late=lambda number: 0.4 if number % 3 == 1 else 0)


@_oddity
def _variable_frame_rate(root: Path) -> None:
    for path in _without_reordering(root):
        _remux(path, late=lambda number: 3 if number >= 4 else 0)


@_oddity
def _late_start(root: Path) -> None:
    make_dataset(root, _SPEC)
    for path in _clips(root):
        _remux(path, late=lambda _: 15)


@_oddity
def _late_start_in_some_clips(root: Path) -> None:
    make_dataset(root, _SPEC)
    _remux(_clips(root)[1], late=lambda _: 15)


@_oddity
def _late_start_by_an_empty_edit(root: Path) -> None:
    make_dataset(root, _SPEC)

    def delay(top: Box) -> None:
        scale, duration = struct.unpack_from(">II", top.find("moov/mvhd").payload, 12)
        edits = top.find("moov/trak/edts/elst")
        begin = struct.unpack_from(">i", edits.payload, 12)[0]
        edits.payload = edit_list((scale // 2, -1, 0x10000), (duration, begin, 0x10000))

    for path in _clips(root):
        path.write_bytes(changed(path.read_bytes(), delay))


@_oddity
def _audio_in_some_clips(root: Path) -> None:
    make_dataset(root, _SPEC)
    _remux(_clips(root)[1], audio=True)


def rotate(path: Path, a: int, b: int, c: int, d: int) -> None:
    """Let a clip be shown turned: right becomes (a, b), and down (c, d)."""

    def turn(top: Box) -> None:
        header = top.find("moov/trak/tkhd")
        one = 0x10000
        matrix = struct.pack(">9i", a * one, b * one, 0, c * one, d * one, 0, 0, 0, 0x40000000)
        header.payload = header.payload[:40] + matrix + header.payload[76:]

    path.write_bytes(changed(path.read_bytes(), turn))


@_oddity
def _rotated(root: Path) -> None:
    make_dataset(root, _SPEC)
    for path in _clips(root):
        rotate(path, 0, 1, -1, 0)


@_oddity
def _rotated_in_some_clips(root: Path) -> None:
    make_dataset(root, _SPEC)
    rotate(_clips(root)[1], -1, 0, 0, -1)


# --- what an episode has ----------------------------------------------------------------------


@_oddity
def _empty_episode(root: Path) -> None:
    make_dataset(root, _SPEC)
    edit_lines(root, "episodes", lambda lines: lines[1].update(length=0))
    edit_table(root, 1, lambda table: table.slice(0, 0))
    _clips(root)[1].unlink()
    first, length = LENGTHS[0], LENGTHS[2]
    numbers = pa.array(range(first, first + length), pa.int64())
    edit_table(root, 2, lambda table: with_column(table, "index", numbers))
    edit_info(root, lambda info: info.update(total_frames=first + length))


@_oddity
def _empty_episode_without_files(root: Path) -> None:
    _empty_episode(root)
    sorted(root.glob("data/*/*.parquet"))[1].unlink()


# --- images -----------------------------------------------------------------------------------


def _images(name: str, kind: pa.DataType | None, value: Callable[[bytes, Path, str], Any]) -> None:
    def make(root: Path) -> None:
        spec = replace(_SPEC, cameras=(), image_keys=(IMAGE,), image_size=(32, 32))
        make_dataset(root, spec)
        for episode in range(len(LENGTHS)):

            def change(table: pa.Table, episode: int = episode) -> pa.Table:
                values = []
                for frame, image in enumerate(table.column(IMAGE).to_pylist()):
                    path = f"images/{IMAGE}/episode_{episode:06d}/frame_{frame:06d}.png"
                    (root / path).parent.mkdir(parents=True, exist_ok=True)
                    (root / path).write_bytes(image["bytes"])
                    values.append(value(image["bytes"], root, path))
                column = pa.array(values, kind or table.schema.field(IMAGE).type)
                changed_table = with_column(table, IMAGE, column)
                return changed_table.replace_schema_metadata(table.schema.metadata)

            edit_table(root, episode, change)

    ODDITIES[name] = make


_images("images as paths", None, lambda _, __, path: {"bytes": None, "path": path})
_images(
    "images as paths of this machine",
    None,
    lambda _, root, path: {"bytes": None, "path": str(root / path)},
)
_images("images as paths in a text column", pa.string(), lambda _, __, path: path)
_images("images as plain bytes", pa.binary(), lambda content, _, __: content)


def embed_images(root: Path, name: str) -> None:
    """Do what docs/howto/broken-datasets.md does about images as paths."""
    for table_path in root.glob("data/*/*.parquet"):
        table = pq.read_table(table_path)
        images = []
        for value in table[name].to_pylist():
            path = value["path"] if isinstance(value, dict) else value
            images.append({"bytes": (root / path).read_bytes(), "path": Path(path).name})
        place = table.schema.get_field_index(name)
        pq.write_table(table.set_column(place, name, pa.array(images)), table_path)


# --- how features are called ------------------------------------------------------------------


@_oddity
def _numbers_called_image(root: Path) -> None:
    """LeRobot takes the statistics of whatever has "image" in its name for an image's."""
    make_dataset(root, _SPEC)
    name = "extra.image_embedding"
    for episode, length in enumerate(LENGTHS):
        zeros = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(length * 3, np.float32)), 3)
        edit_table(root, episode, partial(with_column, name=name, values=zeros))
    feature = {"dtype": "float32", "shape": [3], "names": None}
    edit_info(root, lambda info: info["features"].update({name: feature}))
    stats = {key: [0.0] * 3 for key in ("min", "max", "mean", "std")}

    def add_stats(lines: list[dict[str, Any]]) -> None:
        for line, length in zip(lines, LENGTHS, strict=True):
            line["stats"][name] = stats | {"count": [length]}

    edit_lines(root, "episodes_stats", add_stats)


# --- what public datasets have ----------------------------------------------------------------


def _wild(name: str, **changes: Any) -> Callable[[Callable[[Path], object]], None]:
    """Note a function that changes a sound dataset of this specification."""

    def note(change: Callable[[Path], object]) -> None:
        def make(root: Path) -> None:
            make_dataset(root, replace(_SPEC, **changes))
            change(root)

        IN_THE_WILD[name] = make

    return note


def each_table(root: Path, change: Callable[[int, pa.Table], pa.Table]) -> None:
    """Change the table of each episode, which has that number."""
    for episode in range(len(list(root.glob("data/*/*.parquet")))):
        edit_table(root, episode, partial(change, episode))


def lose_clips(root: Path, camera: str, *episodes: int) -> None:
    """Remove clips of a camera, as far as they are there."""
    for episode in episodes:
        for path in root.glob(f"videos/*/{camera}/episode_{episode:06d}.mp4"):
            path.unlink()


def forget_version(root: Path) -> None:
    """Say nowhere which version it is."""
    edit_info(root, lambda info: info.pop("codebase_version"))


def declare_absent_feature(root: Path) -> None:
    """Declare a column ``force`` that is in no table."""
    force = {"dtype": "float32", "shape": [3], "names": None}
    _features(root, lambda features: features.update(force=force))


def list_task_twice(root: Path) -> None:
    """Give the first task a second index, which no row has."""
    edit_lines(
        root, "tasks", lambda lines: lines.append({"task_index": 2, "task": lines[0]["task"]})
    )


def _features(root: Path, change: Callable[[dict[str, Any]], object]) -> None:
    edit_info(root, lambda info: change(info["features"]))


@_wild("Git LFS pointers instead of files")
def _(root: Path) -> None:
    for path in [*root.glob("data/**/*.parquet"), *_clips(root)]:
        path.write_text(
            "version https://git-lfs.github.com/spec/v1\n"
            f"oid sha256:{0:064x}\nsize {path.stat().st_size}\n"
        )


@_wild("no statistics of default columns")
def _(root: Path) -> None:
    def forget(lines: list[dict[str, Any]]) -> None:
        for line in lines:
            for name in ("timestamp", "frame_index", "episode_index", "index", "task_index"):
                del line["stats"][name]

    edit_lines(root, "episodes_stats", forget)


@_wild("no statistics at all")
def _(root: Path) -> None:
    (root / "meta/episodes_stats.jsonl").unlink()


@_wild("wall-clock timestamps")
def _(root: Path) -> None:
    def stamp(episode: int, table: pa.Table) -> pa.Table:
        times = pa.array(1.7e9 + episode * 60 + np.arange(table.num_rows) / 29.7)
        return with_column(table, "timestamp", times)

    each_table(root, stamp)


@_wild("state and action are not declared")
def _(root: Path) -> None:
    _features(root, lambda features: [features.pop(n) for n in ("observation.state", "action")])


_wild("a declared column is in no table")(declare_absent_feature)


@_wild("numbers in lists of one", has_done=True)
def _(root: Path) -> None:
    def wrap(_: int, table: pa.Table) -> pa.Table:
        for name in ("next.done", "timestamp"):
            kind = pa.list_(pa.float64() if name == "timestamp" else pa.bool_())
            values = [[value] for value in table[name].to_pylist()]
            table = with_column(table, name, pa.array(values, kind))
        return table

    each_table(root, wrap)


@_wild("a binary column")
def _(root: Path) -> None:
    each_table(
        root,
        lambda _, table: with_column(table, "raw", pa.array([b"frame"] * table.num_rows)),
    )
    _features(root, lambda features: features.update(raw={"dtype": "binary", "shape": [1]}))


@_wild("files in other chunks than the template says")
def _(root: Path) -> None:
    for episode in (1, 2):
        for path in [
            *root.glob(f"data/*/*{episode}.parquet"),
            *root.glob(f"videos/*/*/*{episode}.mp4"),
        ]:
            moved = Path(str(path).replace("chunk-000", f"chunk-{episode:03d}"))
            moved.parent.mkdir(parents=True, exist_ok=True)
            path.rename(moved)


@_wild(
    "a camera that most episodes lack",
    cameras=(_PLAIN, CameraSpec(key="observation.images.side", width=32, height=32)),
)
def _(root: Path) -> None:
    lose_clips(root, "observation.images.side", 0, 2)


_wild("a task listed twice")(list_task_twice)


@_wild("instructions only in episodes.jsonl")
def _(root: Path) -> None:
    each_table(
        root,
        lambda _, table: with_column(
            table, "task_index", pa.array([0] * table.num_rows, pa.int64())
        ),
    )


@_wild("annotations that index tasks, one listed twice")
def _(root: Path) -> None:
    name = "annotation.human.action.task_description"
    each_table(
        root, lambda _, table: with_column(table, name, table["task_index"].combine_chunks())
    )
    feature = {"dtype": "int64", "shape": [1], "names": None}
    _features(root, lambda features: features.update({name: feature}))
    edit_lines(
        root,
        "episodes_stats",
        lambda lines: [line["stats"].update({name: line["stats"]["task_index"]}) for line in lines],
    )
    modality = {"annotation": {"human.action.task_description": {"original_key": name}}}
    (root / "meta/modality.json").write_text(json.dumps(modality))
    edit_lines(
        root, "tasks", lambda lines: lines.insert(1, {"task_index": 2, "task": lines[0]["task"]})
    )


@_wild("modality.json names a feature without data")
def _(root: Path) -> None:
    force = {"dtype": "float32", "shape": [3], "names": None}
    _features(root, lambda features: features.update({"observation.force": force}))
    state = {"arm": {"start": 0, "end": 6}}
    modality = {
        "state": state | {"force": {"start": 0, "end": 3, "original_key": "observation.force"}}
    }
    (root / "meta/modality.json").write_text(json.dumps(modality))


@_wild("{chunk_index} in the templates")
def _(root: Path) -> None:
    def rename(info: dict[str, Any]) -> None:
        for key in ("data_path", "video_path"):
            info[key] = info[key].replace("{episode_chunk", "{chunk_index")

    edit_info(root, rename)


_wild("no codebase_version")(forget_version)


@_wild("version instead of codebase_version")
def _(root: Path) -> None:
    edit_info(root, lambda info: info.update(version=info.pop("codebase_version")[1:]))


@_wild("says v3.0, lies in the files of v2.1")
def _(root: Path) -> None:
    edit_info(root, lambda info: info.update(codebase_version="v3.0"))


@_wild("h264 declared, is mpeg4", cameras=(replace(_PLAIN, codec="mpeg4"),))
def _(root: Path) -> None:
    _features(root, lambda features: features[CAMERA]["info"].update({"video.codec": "h264"}))


@_wild("float32 declared, is double")
def _(root: Path) -> None:
    def widen(_: int, table: pa.Table) -> pa.Table:
        return with_column(
            table, "action", table["action"].combine_chunks().cast(pa.list_(pa.float64(), 6))
        )

    each_table(root, widen)


@_wild("one name for all values, or for two")
def _(root: Path) -> None:
    def rename(features: dict[str, Any]) -> None:
        features["action"]["names"] = ["action"]
        features["observation.state"]["names"] = ["x", "y", "z", "x", "y", "z"]

    _features(root, rename)
