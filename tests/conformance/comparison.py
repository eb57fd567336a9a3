"""Compare a result with the reference's, and its frames with the source's.

Equality is that of what a reader sees. It is not that of bytes: the reference collapses the rows of
a file into one row group, lets its times drift, floors the frame rate and drops what it does not
know. Each of these is compared by what is right instead.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, batched
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

Pixels = npt.NDArray[np.uint8]

DECODERS = ("pyav", "torchcodec")  # of LeRobot, as it calls them

# Written by the reference from what it knows, not from the source; see V30_FORMAT's info.json.
_REFERENCE_INFO_KEYS = frozenset(
    {
        "codebase_version", "fps", "features", "total_episodes", "total_frames", "total_tasks",
        "chunks_size", "data_files_size_in_mb", "video_files_size_in_mb", "data_path",
        "video_path", "robot_type", "splits", "tools",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class V21Source:
    """The v2.x dataset that converters read, or what a repair leaves of it.

    Attributes:
        root: Its folder.
        info: Its ``info.json``.
        lengths: Frames of each episode that is kept.
        indices: Indices of these episodes.
        dropped_features: Features that are left out.
    """

    root: Path
    info: dict[str, Any]
    lengths: list[int]
    indices: list[int]
    dropped_features: frozenset[str] = frozenset()

    @classmethod
    def open(
        cls,
        root: Path,
        *,
        dropped_episodes: Sequence[int] = (),
        dropped_features: Sequence[str] = (),
    ) -> V21Source:
        """Read the metadata."""
        info = json.loads((root / "meta/info.json").read_text("utf-8"))
        lines = (root / "meta/episodes.jsonl").read_text("utf-8").splitlines()
        lengths = {line["episode_index"]: line["length"] for line in map(json.loads, lines)}
        for episode in dropped_episodes:
            del lengths[episode]
        return cls(root, info, list(lengths.values()), list(lengths), frozenset(dropped_features))

    @property
    def fps(self) -> Fraction:
        """The frame rate as the exact fraction of the decimal that is written."""
        return Fraction(str(self.info["fps"]))

    @property
    def camera_keys(self) -> list[str]:
        """Video features, sorted."""
        features = self.info["features"]
        return sorted(
            key
            for key, value in features.items()
            if value["dtype"] == "video" and key not in self.dropped_features
        )

    def _path(self, template: str, episode: int, **names: str) -> Path:
        chunk = episode // self.info["chunks_size"]
        place = self.info[template].format(episode_chunk=chunk, episode_index=episode, **names)
        return self.root / place

    def clip_path(self, camera_key: str, episode: int) -> Path:
        """The MP4 of one episode and camera."""
        return self._path("video_path", episode, video_key=camera_key)

    def data_path(self, episode: int) -> Path:
        """The parquet file of one episode."""
        return self._path("data_path", episode)


# --- files and metadata -----------------------------------------------------------------------


def files_of(root: Path) -> list[str]:
    """Every file below a folder, as sorted relative paths."""
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def load_json(root: Path, name: str) -> Any:
    """Read one JSON file of a dataset."""
    return json.loads((root / name).read_text("utf-8"))


def assert_same_files(ours: Path, reference: Path, extra_files: set[str]) -> None:
    """The same data, video and metadata files; ours also has what came along from the source."""
    assert set(files_of(ours)) - extra_files == set(files_of(reference))
    assert extra_files <= set(files_of(ours))


def assert_same_info(ours: Path, reference: Path, source: V21Source) -> None:
    """The same keys, order and values, but the frame rate is exact and unknown keys survive."""
    found, expected = load_json(ours, "meta/info.json"), load_json(reference, "meta/info.json")
    fps = int(source.fps) if source.fps.denominator == 1 else float(source.fps)
    expected["fps"] = fps
    for feature in expected["features"].values():
        if "fps" in feature:
            feature["fps"] = fps
    legacy = {"total_chunks", "total_videos"}
    unknown = {
        key: value
        for key, value in source.info.items()
        if key not in _REFERENCE_INFO_KEYS and key not in legacy
    }
    assert found == expected | unknown
    assert [key for key in found if key not in unknown] == list(expected)
    assert type(found["fps"]) is type(fps)


def assert_same_tasks(ours: Path, reference: Path) -> None:
    """The same frame to pandas, index and column types included."""
    import pandas as pd

    name = "meta/tasks.parquet"
    pd.testing.assert_frame_equal(pd.read_parquet(ours / name), pd.read_parquet(reference / name))
    assert pq.read_schema(ours / name).names == pq.read_schema(reference / name).names


def assert_same_stats(ours: Path, reference: Path) -> None:
    """The same numbers to the last bit; keys sorted in ours.

    But for quantiles, of which the reference takes means: tests/unit/dataset/statistics has ours.
    """
    found, expected = (load_json(root, "meta/stats.json") for root in (ours, reference))
    assert list(found) == sorted(found)
    for feature, of in expected.items():
        assert found[feature].keys() == of.keys()
    for stats in (*found.values(), *expected.values()):
        for name in ("q01", "q10", "q50", "q90", "q99"):
            stats.pop(name, None)
    assert found == expected


def episodes_table(root: Path) -> pa.Table:
    """All of ``meta/episodes``, in the order of the files' names."""
    paths = sorted((root / "meta/episodes").glob("*/*.parquet"))
    return pa.concat_tables([pq.read_table(path) for path in paths])


def assert_same_episodes(ours: Path, reference: Path, source: V21Source) -> None:
    """The same columns, order, types and values; ours has exact times where the other drifts."""
    found, expected = episodes_table(ours), episodes_table(reference)
    assert found.column_names == expected.column_names
    assert found.schema.types == expected.schema.types
    huggingface = [table.schema.metadata[b"huggingface"] for table in (found, expected)]
    assert json.loads(huggingface[0]) == json.loads(huggingface[1])
    times = [name for name in found.column_names if name.endswith(("from_timestamp", "_timestamp"))]
    for name in found.column_names:
        if name in times:
            drift = np.abs(found[name].to_numpy() - expected[name].to_numpy())
            assert drift.max() < 1e-3, f"{name} is {drift.max()} s off the reference"
        else:
            assert found[name].to_pylist() == expected[name].to_pylist(), name
    assert_exact_times(found, source)


def assert_exact_times(episodes: pa.Table, source: V21Source) -> None:
    """Every episode starts where the one before it in the file ended, at frames/fps exactly."""
    for key in source.camera_keys:
        place = None
        frames = 0
        for row in episodes.select(
            ["length", *(f"videos/{key}/{name}" for name in (
                "chunk_index", "file_index", "from_timestamp", "to_timestamp"))]
        ).to_pylist():  # fmt: skip
            length, chunk, file, start, end = row.values()
            if (chunk, file) != place:
                place, frames = (chunk, file), 0
            assert start == float(frames / source.fps)
            frames += length
            assert end == float(frames / source.fps)


# --- rows -------------------------------------------------------------------------------------


def data_files(root: Path) -> list[Path]:
    """The data files in the order of their names."""
    return sorted((root / "data").glob("*/*.parquet"))


def assert_same_rows(ours: Path, reference: Path) -> None:
    """File by file the same rows, and one schema and content to ``datasets`` as LeRobot loads."""
    from lerobot.datasets.feature_utils import get_hf_features_from_features
    from lerobot.datasets.io_utils import load_info, load_nested_dataset

    for mine, theirs in zip(data_files(ours), data_files(reference), strict=True):
        found, expected = pq.read_table(mine), pq.read_table(theirs)
        assert found.column_names == expected.column_names
        # pandas knows no lists of fixed length, so the reference's are of any length.
        assert found.cast(expected.schema).equals(expected), mine
    loaded = [
        load_nested_dataset(
            root / "data", features=get_hf_features_from_features(load_info(root).features)
        )
        for root in (ours, reference)
    ]
    assert loaded[0].features == loaded[1].features
    assert loaded[0].data.table.equals(loaded[1].data.table)


def assert_rows_are_the_sources(ours: Path, source: V21Source) -> None:
    """Every row group is one episode: the source file's rows, types included."""
    episode = 0
    for path in data_files(ours):
        file = pq.ParquetFile(path)
        for group in range(file.num_row_groups):
            expected = pq.read_table(source.data_path(episode))
            found = file.read_row_group(group)
            assert found.schema.equals(expected.schema), path
            assert found.equals(expected), (path, episode)
            episode += 1
    assert episode == len(source.lengths)


# --- videos -----------------------------------------------------------------------------------


def video_files(root: Path) -> list[Path]:
    """The MP4 files in the order of their names."""
    return sorted((root / "videos").glob("*/*/*.mp4"))


def coded_packets(path: Path) -> tuple[list[tuple[bytes, bool]], list[Fraction]]:
    """Return FFmpeg's view of a clip: packets and keyframes in decode order, times in seconds."""
    packets, times = [], []
    with av.open(str(path)) as container:
        for packet in container.demux(video=0):
            if packet.size:
                packets.append((bytes(packet), bool(packet.is_keyframe)))
                times.append(packet.pts * packet.time_base)
    return packets, times


def without_parameter_sets(packet: bytes, codec: str) -> bytes:
    """Drop the parameter sets that FFmpeg's concat demuxer repeats in front of keyframes.

    It takes H.264 and HEVC through their Annex B form, which has no header beside the packets;
    the reference's packets keep what that adds. The same sets are in the sample entry already.
    """
    if codec not in ("h264", "hevc"):
        return packet
    kept, place = [], 0
    while place < len(packet):
        stop = place + 4 + int.from_bytes(packet[place : place + 4])
        first = packet[place + 4]
        if codec == "h264":
            is_parameter_set = first & 0x1F in (7, 8)
        else:
            is_parameter_set = first >> 1 & 0x3F in (32, 33, 34)
        if not is_parameter_set:
            kept.append(packet[place:stop])
        place = stop
    return b"".join(kept)


def assert_packets_are_the_sources(ours: Path, source: V21Source) -> None:
    """Camera by camera the source's coded bytes, unchanged; frame *i* of a file is at *i*/fps."""
    for key in source.camera_keys:
        expected: list[tuple[bytes, bool]] = []
        for episode in range(len(source.lengths)):
            expected += coded_packets(source.clip_path(key, episode))[0]
        found: list[tuple[bytes, bool]] = []
        for path in sorted((ours / "videos" / key).glob("*/*.mp4")):
            packets, times = coded_packets(path)
            found += packets
            assert sorted(times) == [number / source.fps for number in range(len(times))], path
            with av.open(str(path)) as container:
                assert container.streams.video[0].average_rate == source.fps
        assert found == expected, key


def assert_same_packets(ours: Path, reference: Path) -> None:
    """The same coded frames and keyframes, file by file."""
    for mine, theirs in zip(video_files(ours), video_files(reference), strict=True):
        with av.open(str(mine)) as container:
            codec = container.streams.video[0].codec_context.codec.canonical_name
        found, expected = (
            [(without_parameter_sets(coded, codec), is_key) for coded, is_key in packets]
            for packets, _ in (coded_packets(mine), coded_packets(theirs))
        )
        assert found == expected, mine


def source_windows(
    path: Path, backend: str, window: int, firsts: Iterable[int]
) -> Iterator[Pixels]:
    """Decode a clip with the library that a backend uses, in presentation order.

    Yields:
        The frames of each wanted window, of shape (at most ``window``, 3, H, W).
    """
    if backend == "torchcodec":
        from torchcodec.decoders import VideoDecoder

        decoder = VideoDecoder(str(path), seek_mode="exact")
        for first in firsts:
            stop = min(first + window, len(decoder))
            yield decoder.get_frames_in_range(first, stop).data.numpy()
        return
    with av.open(str(path)) as container:
        for number, frames in enumerate(batched(container.decode(video=0), window)):
            if number * window not in firsts:
                continue
            images = [frame.to_ndarray(format="rgb24").transpose(2, 0, 1) for frame in frames]
            yield np.stack(images)


def loaded_windows(
    root: Path, source: V21Source, backend: str, window: int
) -> Iterator[tuple[int, int, dict[str, Pixels]]]:
    """Load frames through ``LeRobotDataset``, ``window`` frames of an episode at a time.

    Yields:
        Episode, its first frame in the window, and each camera's frames of shape
        (at most ``window``, 3, H, W).
    """
    from lerobot.datasets import LeRobotDataset

    deltas = [float(step / source.fps) for step in range(window)]
    dataset = LeRobotDataset(
        "ours/dataset",
        root=root,
        video_backend=backend,
        return_uint8=True,
        delta_timestamps=dict.fromkeys(source.camera_keys, deltas) if window > 1 else None,
    )
    assert len(dataset) == sum(source.lengths)
    starts = [0, *accumulate(source.lengths)]
    for episode, length in enumerate(source.lengths):
        for first in range(0, length, window):
            item = dataset[starts[episode] + first]
            assert int(item["episode_index"]) == episode
            assert int(item["frame_index"]) == first
            frames = {}
            for key in source.camera_keys:
                stacked = item[key] if window > 1 else item[key][None]
                frames[key] = stacked[: length - first].numpy()  # the rest is padding
            yield episode, first, frames


def assert_every_frame_is_the_sources(
    root: Path, source: V21Source, backend: str, *, window: int = 1
) -> int:
    """Load every frame of every camera; each must equal the source's frame of the same index.

    Returns:
        The number of frames compared.
    """
    compared = 0
    clips: dict[str, Iterator[Pixels]] = {}
    for episode, first, frames in loaded_windows(root, source, backend, window):
        for key, images in frames.items():
            if first == 0:
                assert next(clips.get(key, iter(())), None) is None, "the source has more frames"
                clip = source.clip_path(key, source.indices[episode])
                wanted = range(0, source.lengths[episode], window)
                clips[key] = source_windows(clip, backend, window, wanted)
            expected = next(clips[key])
            assert np.array_equal(images, expected), (backend, key, episode, first)
            compared += len(images)
    return compared
