"""Gray and depth videos, text and language columns: they pass through as they stand.

The converter has no code for any of these. So the same bytes, types and values must come out, and
LeRobot must make of them what it makes of the source's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import av
import comparison
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from comparison import V21Source

import leconvert
from leconvert.run.conversion import ProofOptions
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset

_KEY = "observation.images.depth"
_HEIGHT, _WIDTH = 48, 64
_LENGTHS = (7, 1, 12, 5)


@dataclass(frozen=True)
class GrayVideo:
    """How the frames of one camera are stored.

    Attributes:
        encoder: FFmpeg's name of it.
        pixel_format: FFmpeg's name of it; one channel.
        bits: Of a pixel.
        options: Of the encoder.
        is_depth: Whether ``info.json`` calls it a depth map.
    """

    encoder: str
    pixel_format: str
    bits: int
    options: dict[str, str] = field(default_factory=dict)
    is_depth: bool = False


_LOSSLESS_HEVC = {"x265-params": "lossless=1:log-level=error:pools=none:frame-threads=1"}
_FAST_AV1 = {"cpu-used": "8", "crf": "20", "threads": "1"}
_CODECS = {"libx264": "h264", "libx265": "hevc", "libaom-av1": "av1"}
VIDEOS = {
    "h264_10_bits": GrayVideo("libx264", "gray10le", 10),
    "hevc_12_bits_depth": GrayVideo("libx265", "gray12le", 12, _LOSSLESS_HEVC, is_depth=True),
    # LeRobot 0.6.1 opens no dataset whose info calls AV1 of 12 bits a depth map.
    "av1_12_bits": GrayVideo("libaom-av1", "gray12le", 12, _FAST_AV1),
}


def _edit_json(path: Path, edit: Callable[[Any], None]) -> None:
    content = json.loads(path.read_text("utf-8"))
    edit(content)
    path.write_text(json.dumps(content), "utf-8")


def _make_gray_dataset(root: Path, video: GrayVideo) -> V21Source:
    camera = CameraSpec(
        _KEY, _WIDTH, _HEIGHT, video.encoder, pixel_format=video.pixel_format, gop_size=2,
        options={"bf": "0", **video.options},
    )  # fmt: skip
    make_dataset(root, DatasetSpec(episodes=len(_LENGTHS), frames=_LENGTHS, cameras=(camera,)))

    def describe(info: dict[str, Any]) -> None:
        feature = info["features"][_KEY]
        feature["shape"] = [_HEIGHT, _WIDTH, 1]
        feature["info"] |= {
            "video.codec": _CODECS[video.encoder],
            "video.pix_fmt": video.pixel_format,
            "video.channels": 1,
            "video.is_depth_map": video.is_depth,
        }
        if video.is_depth:
            feature["info"] |= {
                "depth_unit": "mm",
                "video.depth_min": 0.02,
                "video.depth_max": 4.0,
                "video.shift": 1.5,
                "video.use_log": True,
            }

    _edit_json(root / "meta/info.json", describe)
    lines = []
    for line in (root / "meta/episodes_stats.jsonl").read_text("utf-8").splitlines():
        record = json.loads(line)
        stats = record["stats"][_KEY]
        record["stats"][_KEY] = {
            name: value if name == "count" else value[:1] for name, value in stats.items()
        }
        lines.append(json.dumps(record))
    (root / "meta/episodes_stats.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    return V21Source.open(root)


def _decoded_depth(path: Path) -> Iterable[np.ndarray[Any, Any]]:
    with av.open(str(path)) as container:
        for frame in container.decode(video=0):
            yield frame.to_ndarray(format="gray12le")


def _decoded_format(path: Path) -> str:
    """Return FFmpeg's name of the first frame's pixel format: H.264's of gray has empty chroma."""
    with av.open(str(path)) as container:
        return next(container.decode(video=0)).format.name


@pytest.mark.parametrize("video", VIDEOS.values(), ids=VIDEOS)
def test_gray_videos_pass_through_and_load(video: GrayVideo, tmp_path: Path) -> None:
    source, ours = _make_gray_dataset(tmp_path / "source", video), tmp_path / "ours"
    leconvert.convert(source.root, output=ours, proof=ProofOptions(verify="bytes"))
    comparison.assert_packets_are_the_sources(ours, source)
    (path,) = comparison.video_files(ours)
    assert _decoded_format(path) == _decoded_format(source.clip_path(_KEY, 0))
    assert str(video.bits) in _decoded_format(path)
    features = comparison.load_json(ours, "meta/info.json")["features"]
    assert features[_KEY] == source.info["features"][_KEY]
    assert np.shape(comparison.load_json(ours, "meta/stats.json")[_KEY]["mean"]) == (1, 1, 1)
    assert np.shape(comparison.episodes_table(ours)[f"stats/{_KEY}/max"][0].as_py()) == (1, 1, 1)
    if video.is_depth:
        _assert_every_depth_map_is_the_sources(ours, source)
        return
    for backend in ("pyav", "torchcodec"):
        compared = comparison.assert_every_frame_is_the_sources(ours, source, backend)
        assert compared == sum(_LENGTHS)


def _assert_every_depth_map_is_the_sources(ours: Path, source: V21Source) -> None:
    import torch
    from lerobot.datasets import LeRobotDataset
    from lerobot.datasets.depth_utils import dequantize_depth

    dataset = LeRobotDataset("ours/dataset", root=ours)
    assert dataset.meta.depth_keys == [_KEY]
    place = 0
    for episode, length in enumerate(_LENGTHS):
        codes = list(_decoded_depth(source.clip_path(_KEY, episode)))
        assert len(codes) == length
        for number, code in enumerate(codes):
            expected = dequantize_depth(
                torch.from_numpy(code)[None, None],
                depth_min=0.02,
                depth_max=4.0,
                shift=1.5,
                use_log=True,
                output_unit="mm",
            ).squeeze(0)
            item = dataset[place]
            assert (int(item["episode_index"]), int(item["frame_index"])) == (episode, number)
            assert torch.equal(item[_KEY], expected)
            place += 1


# --- text ---------------------------------------------------------------------------------------

# As LeRobot's annotator stores them: types are those that Arrow infers from the values.
_SPEECH = [{"type": "function", "function": {"name": "say", "arguments": {"text": "Grüße"}}}]


def _persistent(episode: int) -> list[dict[str, Any]]:
    def row(style: str, content: str, timestamp: float) -> dict[str, Any]:
        return {
            "role": "assistant",
            "content": content,
            "style": style,
            "timestamp": timestamp,
            "camera": None,
            "tool_calls": None,
        }

    return [row("plan", f"Plan {episode}", 0.0), row("subtask", "Reach für den Würfel", 0.125)]


def _events(frame: int) -> list[dict[str, Any]]:
    question = {
        "role": "user",
        "content": "Where is it?",
        "style": "vqa",
        "camera": "observation.images.top",
        "tool_calls": None,
    }
    speech = {
        "role": "assistant",
        "content": None,
        "style": None,
        "camera": None,
        "tool_calls": _SPEECH,
    }
    return [[], [question], [speech], [question, speech]][frame % 4]


def _text_columns(episode: int, length: int) -> dict[str, list[Any]]:
    return {
        "instruction": [f"step {frame} of „{episode}“" for frame in range(length)],
        "language_persistent": [_persistent(episode)] * length,
        "language_events": [_events(frame) for frame in range(length)],
    }


def _make_dataset_with_text(root: Path, lengths: tuple[int, ...]) -> V21Source:
    camera = CameraSpec(width=32, height=32, options={"bf": "0"})
    spec = DatasetSpec(episodes=len(lengths), frames=lengths, cameras=(camera,))
    make_dataset(root, spec)
    source = V21Source.open(root)
    types = pa.Table.from_pydict(_text_columns(0, 4)).schema
    for episode, length in enumerate(lengths):
        path = source.data_path(episode)
        table = pq.read_table(path)
        for name, values in _text_columns(episode, length).items():
            table = table.append_column(types.field(name), pa.array(values, types.field(name).type))
        pq.write_table(table.replace_schema_metadata(None), path, compression="snappy")

    def declare(info: dict[str, Any]) -> None:
        info["features"]["instruction"] = {"dtype": "string", "shape": [1], "names": None}
        for name in ("language_persistent", "language_events"):
            info["features"][name] = {"dtype": "language", "shape": [1], "names": None}

    _edit_json(root / "meta/info.json", declare)
    return V21Source.open(root)


def test_text_and_language_columns_pass_through_and_load(tmp_path: Path) -> None:
    from lerobot.datasets import LeRobotDataset

    lengths = (6, 1, 9)
    source = _make_dataset_with_text(tmp_path / "source", lengths)

    leconvert.convert(source.root, output=tmp_path / "ours", proof=ProofOptions(verify="bytes"))

    comparison.assert_rows_are_the_sources(tmp_path / "ours", source)
    features = comparison.load_json(tmp_path / "ours", "meta/info.json")["features"]
    for name in ("instruction", "language_persistent", "language_events"):
        expected = source.info["features"][name]
        assert {key: features[name][key] for key in expected} == expected
    dataset = LeRobotDataset("ours/dataset", root=tmp_path / "ours", video_backend="pyav")
    place = 0
    for episode, length in enumerate(lengths):
        columns = _text_columns(episode, length)
        for frame in range(length):
            item = dataset[place]
            for name, values in columns.items():
                assert item[name] == values[frame], (name, episode, frame)
            place += 1
    assert dataset.meta.has_language_columns
