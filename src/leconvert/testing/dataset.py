"""Write a LeRobot v2.x dataset as LeRobot itself would have recorded it.

The order of writing is: clips, then one parquet file an episode, then ``meta/``; so a folder
without ``meta/info.json`` is an unfinished one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from leconvert.errors import TargetError
from leconvert.media.encode import CODEC_NAMES
from leconvert.testing.clips import (
    VIDEO_PATH,
    encode_clips,
    noise_of,
    plan_clips,
    sampled_frames,
)
from leconvert.testing.pixels import FrameLabel, draw_frame, encode_png
from leconvert.testing.spec import DatasetSpec
from leconvert.testing.statistics import ImageHistogram, Stats, column_stats, pooled_stats

__all__ = ["make_dataset"]

_DATA_PATH = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
_IMAGE_TYPE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
_INDEX_COLUMNS = ("frame_index", "episode_index", "index", "task_index")

Progress = Callable[[int, int], None]


def make_dataset(root: str | Path, spec: DatasetSpec, *, progress: Progress | None = None) -> Path:
    """Write a dataset.

    Args:
        root: The dataset's folder, new or empty.
        spec: What to write. The same spec gives the same bytes with the same library versions.
        progress: Called with the steps done and the number of steps (clips and episodes).

    Returns:
        The folder.

    Raises:
        TargetError: The folder has something in it.
        UsageError: The spec asks for frames that cannot be drawn or encoded.
    """
    target = Path(root)
    if target.exists() and any(target.iterdir()):
        raise TargetError(
            f"{target} is not empty",
            path=str(target),
            next_step="Name a new folder.",
        )
    target.mkdir(parents=True, exist_ok=True)
    lengths = spec.lengths()
    clips = plan_clips(spec, lengths)
    steps = _Steps(progress, len(clips) + len(lengths))
    clip_stats = encode_clips(target, spec, clips, steps.advance)
    stats = _write_episodes(target, spec, lengths, clip_stats, steps)
    _write_meta(target, spec, lengths, stats)
    return target


class _Steps:
    """Counts steps and reports each."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0

    def advance(self) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, self._total)


# --- tables -----------------------------------------------------------------------------------


def _write_episodes(
    root: Path,
    spec: DatasetSpec,
    lengths: list[int],
    clip_stats: Mapping[tuple[int, int], Stats],
    steps: _Steps,
) -> list[dict[str, Stats]]:
    """Write every parquet file; return the stats of each episode, in the features' order."""
    schema = _schema(spec)
    features = _features(spec)
    stats: list[dict[str, Stats]] = []
    start = 0
    for episode, length in enumerate(lengths):
        columns, image_stats = _columns(spec, episode, length, start)
        path = root / _DATA_PATH.format(
            episode_chunk=episode // spec.chunks_size, episode_index=episode
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        arrays = [_arrow_array(columns[field.name], field.type) for field in schema]
        table = pa.Table.from_arrays(arrays, schema=schema)
        pq.write_table(table, path, compression="snappy")
        found = dict(image_stats)
        for number, camera in enumerate(spec.cameras):
            found[camera.key] = clip_stats[number, episode]
        for key, values in columns.items():
            if isinstance(values, np.ndarray):
                found[key] = column_stats(values, quantiles=spec.quantiles)
        stats.append({key: found[key] for key in features})
        start += length
        steps.advance()
    return stats


def _columns(
    spec: DatasetSpec, episode: int, length: int, start: int
) -> tuple[dict[str, Any], dict[str, Stats]]:
    """Return an episode's columns, arrays or lists of PNG structs, and the stats of its images."""
    generator = np.random.default_rng([spec.seed, episode])
    frames = np.arange(length, dtype=np.int64)
    # As LeRobot does: divide in double precision, store in single.
    seconds = (frames / float(spec.rate)).astype(np.float32)
    columns: dict[str, Any] = {
        "observation.state": _trajectory(generator, length, spec.state_dim),
        "action": _trajectory(generator, length, spec.action_dim),
    }
    if spec.matrix_shape is not None:
        rows, width = spec.matrix_shape
        flat = _trajectory(generator, length, rows * width)
        columns["observation.matrix"] = flat.reshape(length, rows, width)
    image_stats: dict[str, Stats] = {}
    for number, key in enumerate(spec.image_keys, start=len(spec.cameras)):
        columns[key], image_stats[key] = _images(spec, episode, length, number)
    if spec.has_done:
        columns["next.done"] = frames == length - 1
    columns["timestamp"] = seconds
    columns["frame_index"] = frames
    columns["episode_index"] = np.full(length, episode, dtype=np.int64)
    columns["index"] = frames + start
    columns["task_index"] = np.array(spec.task_indices(episode, length), dtype=np.int64)
    return columns, image_stats


def _trajectory(generator: np.random.Generator, length: int, width: int) -> npt.NDArray[np.float32]:
    steps = generator.normal(0, 0.02, (length, width))
    path: npt.NDArray[np.float64] = generator.uniform(-1, 1, width) + steps.cumsum(axis=0)
    return path.astype(np.float32).reshape((length, width) if width > 1 else length)


def _images(
    spec: DatasetSpec, episode: int, length: int, number: int
) -> tuple[list[dict[str, Any]], Stats]:
    height, width = spec.image_size
    noise = noise_of(spec, number, spec.image_size, spec.image_noise_amplitude)
    sampled = sampled_frames(length, spec.stats_samples)
    histogram = ImageHistogram()
    structs = []
    for frame in range(length):
        image = draw_frame(FrameLabel(number, episode, frame), height, width, noise=noise)
        if frame in sampled:
            histogram.add(image)
        structs.append({"bytes": encode_png(image), "path": f"frame_{frame:06d}.png"})
    return structs, histogram.stats(quantiles=spec.quantiles)


def _arrow_array(values: Any, kind: pa.DataType) -> pa.Array:
    if not isinstance(values, np.ndarray) or values.ndim == 1:
        return pa.array(values, type=kind)
    if values.ndim == 2:
        return pa.FixedSizeListArray.from_arrays(
            pa.array(values.ravel(), type=kind.value_type), type=kind
        )
    return pa.array(values.tolist(), type=kind)


def _schema(spec: DatasetSpec) -> pa.Schema:
    """Build the schema that ``datasets`` wrote for LeRobot v2.1, with its metadata."""
    fields: list[pa.Field] = []
    described: dict[str, Any] = {}
    for key, feature in _features(spec).items():
        kind, shape = feature["dtype"], feature["shape"]
        if kind == "video":
            continue
        if kind == "image":
            fields.append(pa.field(key, _IMAGE_TYPE))
            described[key] = {"_type": "Image"}
            continue
        scalar = pa.bool_() if kind == "bool" else pa.type_for_alias(kind)
        value = {"dtype": kind, "_type": "Value"}
        if shape == [1]:
            fields.append(pa.field(key, scalar))
            described[key] = value
        elif len(shape) == 1:
            fields.append(pa.field(key, pa.list_(scalar, shape[0])))
            described[key] = {"feature": value, "length": shape[0], "_type": "Sequence"}
        else:
            # ``datasets`` stores matrices under an extension type of its own.
            extension = {
                "ARROW:extension:name": "datasets.features.features.Array2DExtensionType",
                "ARROW:extension:metadata": json.dumps([shape, kind]),
            }
            fields.append(pa.field(key, pa.list_(pa.list_(scalar)), metadata=extension))
            described[key] = {"shape": shape, "dtype": kind, "_type": "Array2D"}
    text = json.dumps({"info": {"features": described}})
    return pa.schema(fields, metadata={"huggingface": text})


# --- meta -------------------------------------------------------------------------------------


def _write_meta(
    root: Path, spec: DatasetSpec, lengths: list[int], stats: list[dict[str, Stats]]
) -> None:
    meta = root / "meta"
    meta.mkdir()
    _write_json_lines(
        meta / "tasks.jsonl",
        ({"task_index": index, "task": task} for index, task in enumerate(spec.tasks)),
    )
    _write_json_lines(
        meta / "episodes.jsonl",
        (_episode_record(spec, episode, length) for episode, length in enumerate(lengths)),
    )
    if spec.codebase_version == "v2.1":
        _write_json_lines(
            meta / "episodes_stats.jsonl",
            ({"episode_index": episode, "stats": found} for episode, found in enumerate(stats)),
        )
    else:
        _write_json(meta / "stats.json", pooled_stats(stats))
    for name, content in sorted(spec.extra_files.items()):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    _write_json(meta / "info.json", _info(spec, lengths))


def _episode_record(spec: DatasetSpec, episode: int, length: int) -> dict[str, Any]:
    used = dict.fromkeys(spec.task_indices(episode, length))
    record: dict[str, Any] = {
        "episode_index": episode,
        "tasks": [spec.tasks[index] for index in used],
        "length": length,
    }
    for key, values in spec.extra_episode_keys.items():
        record[key] = values[episode % len(values)]
    return record


def _info(spec: DatasetSpec, lengths: list[int]) -> dict[str, Any]:
    info: dict[str, Any] = {
        "codebase_version": spec.codebase_version,
        "robot_type": spec.robot_type,
        "total_episodes": len(lengths),
        "total_frames": sum(lengths),
        "total_tasks": len(spec.tasks),
        "total_videos": len(lengths) * len(spec.cameras),
        "total_chunks": (len(lengths) - 1) // spec.chunks_size + 1,
        "chunks_size": spec.chunks_size,
        "fps": _fps_number(spec),
        "splits": {"train": f"0:{len(lengths)}"},
        "data_path": _DATA_PATH,
        "video_path": VIDEO_PATH if spec.cameras else None,
        "features": _features(spec),
    }
    return info | dict(spec.extra_info)


def _fps_number(spec: DatasetSpec) -> int | float:
    return spec.rate.numerator if spec.rate.denominator == 1 else float(spec.rate)


def _features(spec: DatasetSpec) -> dict[str, Any]:
    features: dict[str, Any] = {
        "observation.state": _vector_feature("state", spec.state_dim, spec),
        "action": _vector_feature("motor", spec.action_dim, spec),
    }
    if spec.matrix_shape is not None:
        features["observation.matrix"] = {
            "dtype": "float32",
            "shape": list(spec.matrix_shape),
            "names": None,
        }
    for camera in spec.cameras:
        features[camera.key] = {
            "dtype": "video",
            "shape": [camera.height, camera.width, 3],
            "names": ["height", "width", "channels"],
            "info": {
                "video.height": camera.height,
                "video.width": camera.width,
                "video.codec": CODEC_NAMES.get(camera.codec, camera.codec),
                "video.pix_fmt": camera.pixel_format,
                "video.is_depth_map": False,
                "video.fps": _fps_number(spec),
                "video.channels": 3,
                "has_audio": False,
            },
        }
    for key in spec.image_keys:
        features[key] = {
            "dtype": "image",
            "shape": [*spec.image_size, 3],
            "names": ["height", "width", "channels"],
        }
    if spec.has_done:
        features["next.done"] = {"dtype": "bool", "shape": [1], "names": None}
    features["timestamp"] = {"dtype": "float32", "shape": [1], "names": None}
    for key in _INDEX_COLUMNS:
        features[key] = {"dtype": "int64", "shape": [1], "names": None}
    return features


def _vector_feature(word: str, width: int, spec: DatasetSpec) -> dict[str, Any]:
    names = [f"{word}_{number}" for number in range(width)]
    return {
        "dtype": "float32",
        "shape": [width],
        "names": [names] if spec.nested_names else names,
    }


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=4, ensure_ascii=False) + "\n", encoding="utf-8")


def _write_json_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
