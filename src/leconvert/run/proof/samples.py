"""Random images and samples of a result against its source: each must be the right frame.

A frame of the source is found by its rank within its episode's clip. A frame of the result is found
as a loader does it: by the episode's start in the file and the timestamp of its row. So a result
whose times lead to a neighbouring frame is noticed, however similar the files are. Samples are
loaded as LeRobot's own dataset loads them; no other module of the proof uses LeRobot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from leconvert import media
from leconvert.model.values import DATA_STREAM, is_depth_map, stream_of_camera
from leconvert.run.proof.difference import Difference
from leconvert.run.proof.pair import Comparer, Place, Sampling
from leconvert.run.proof.rows import SourceRows, expected_rows
from leconvert.support.errors import InstallationError, UnreadableSourceError
from leconvert.support.extras import command_for_extra
from leconvert.support.storage_errors import raise_storage_trouble

Picture = npt.NDArray[np.uint8] | npt.NDArray[np.uint16]


def picture_features(compare: Comparer) -> list[str]:
    """Return the features that are images, videos first, without dropped ones."""
    features = compare.expected.sources.features
    images = (key for key in sorted(features) if features[key]["dtype"] == "image")
    return [*compare.expected.cameras, *images]


def compare_pictures(
    compare: Comparer, sampling: Sampling, advance: Callable[[int], None]
) -> Iterator[Difference]:
    """Decode random frames on both sides and yield frames whose pixels differ."""
    features = picture_features(compare)
    wanted = sampling.frames(sampling.decode, compare.compared_lengths, features)
    for (key, position), places in groupby(wanted, lambda each: (each[0], each[1].position)):
        frames = [place.frame for _, place in places]
        expected = source_pictures(compare, key, position, frames)
        path, pictures = _found(compare, key, position, frames)
        stream = _stream_of(compare, key)
        episode = int(compare.expected.index[position])
        for frame, theirs, ours in zip(frames, expected, pictures, strict=True):
            if isinstance(ours, Exception):
                what = f"picture of frame {frame} of {key!r}"
                yield Difference(what, path, "a picture", str(ours), episode, stream)
            elif theirs.shape != ours.shape or not np.array_equal(theirs, ours):
                what = f"pixels of frame {frame} of {key!r}"
                yield Difference(what, path, _shown(theirs), _shown(ours), episode, stream)
            advance(1)


def source_pictures(compare: Comparer, key: str, position: int, frames: list[int]) -> list[Picture]:
    """Decode images of one episode of the source for some ascending ranks; return them in order."""
    expected, stream = compare.expected, _stream_of(compare, key)
    depth = is_depth_map(expected.sources.features[key])
    path = expected.path(stream, position)
    (first,) = expected.first_in_file(stream, np.array([position]))
    if stream != DATA_STREAM:
        begin = (first or 0) + int(expected.lead(stream, np.array([position]))[0])
        shown = [begin + frame for frame in frames]
        return [picture for _, picture in media.decode_shown(path, shown, is_depth=depth)]
    try:
        rows = SourceRows([key]).read(path, first, int(expected.length[position]))
        return _decoded_rows(rows, key, frames, depth)
    except (UnreadableSourceError, KeyError, TypeError) as error:
        raise UnreadableSourceError(
            f"The images {key!r} of {path} cannot be read: {error}.", path=path
        ) from error


def _stream_of(compare: Comparer, key: str) -> str:
    """Return the stream that holds a feature's images."""
    return stream_of_camera(key) if key in compare.expected.cameras else DATA_STREAM


def _found(
    compare: Comparer, key: str, position: int, frames: list[int]
) -> tuple[str, list[Picture | Exception]]:
    """Return the path of the result's file with an episode's images, and the images or an error."""
    depth = is_depth_map(compare.expected.sources.features[key])
    data_path = compare.path_of(DATA_STREAM, position)
    is_video = key in compare.expected.cameras
    path = compare.path_of(stream_of_camera(key), position) if is_video else data_path
    try:
        with pq.ParquetFile(compare.result / data_path) as file:
            group = compare.place_in_data_file(position)
            wanted = ["timestamp"] if is_video else [key]
            rows = file.read_row_group(group, wanted, use_threads=False)
        if not is_video:
            return path, list(_decoded_rows(rows, key, frames, depth))
        seconds = np.array(rows.column("timestamp").to_pylist(), np.float64)[frames]
        begins = compare.routes.from_timestamp.get(stream_of_camera(key))
        begin = 0.0 if begins is None else begins[position]
        return path, list(_decoded_at(compare.result / path, begin + seconds, depth))
    except (
        UnreadableSourceError,
        OSError,
        KeyError,
        IndexError,
        TypeError,
        ValueError,
        pa.ArrowException,
    ) as error:
        raise_storage_trouble(error, compare.result / path)
        return path, [error for _ in frames]


def _decoded_at(path: Path, seconds: npt.NDArray[np.float64], depth: bool) -> Iterator[Picture]:
    """Decode the frames of a file with the nearest times."""
    index = media.read_clip_index(path)
    times = np.sort(index.presentation_times) / index.timescale
    after = np.clip(np.searchsorted(times, seconds), 1, max(1, len(times) - 1))
    before = after - 1
    after = np.minimum(after, len(times) - 1)
    is_before = seconds - times[before] <= times[after] - seconds
    ranks = np.where(is_before, before, after).tolist()
    decoded = dict(media.decode_shown(path, ranks, is_depth=depth))
    return (decoded[rank] for rank in ranks)


def _decoded_rows(rows: pa.Table, key: str, frames: list[int], depth: bool) -> list[Picture]:
    column = rows.column(key)
    return [media.decode_image(column[frame].as_py()["bytes"], is_depth=depth) for frame in frames]


def _shown(picture: Picture) -> str:
    mean = float(picture.mean()) if picture.size else 0.0
    return f"{'x'.join(map(str, picture.shape))}, mean {mean:.3f}"


def check_lerobot() -> None:
    """Check that LeRobot's dataset can be imported.

    Raises:
        InstallationError: It cannot be imported.
    """
    try:
        import lerobot.datasets.lerobot_dataset  # noqa: F401
    except ImportError as error:
        raise InstallationError(
            f"--deep needs lerobot, which cannot be imported: {error}.",
            next_step=f"Install it with `{command_for_extra('deep')}`, or leave --deep out.",
        ) from error


def compare_samples(
    compare: Comparer, sampling: Sampling, advance: Callable[[int], None]
) -> Iterator[Difference]:
    """Load random samples through ``LeRobotDataset`` and yield differences from the source."""
    check_lerobot()
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    try:
        dataset: Any = LeRobotDataset(
            f"local/{compare.result.name}", root=str(compare.result), return_uint8=True
        )
    except Exception as error:  # noqa: BLE001 - LeRobot's errors are of many kinds
        yield Difference("loads in LeRobot", "meta/", "a dataset", _first_line(error))
        return
    begins = compare.expected.begins
    tasks = dict(compare.expected.sources.tasks)
    for _, place in sampling.frames(sampling.deep, compare.compared_lengths):
        number = int(begins[place.position]) + place.frame
        path = compare.path_of(DATA_STREAM, place.position)
        episode = int(compare.expected.index[place.position])
        try:
            sample: Mapping[str, Any] = dataset[number]
        except Exception as error:  # noqa: BLE001 - see above
            said = _first_line(error)
            yield Difference(f"sample {number} in LeRobot", path, "a sample", said, episode)
        else:
            for key, expected in _expected(compare, place, tasks):
                if not _same(expected, sample.get(key)):
                    what = f"{key!r} of sample {number} in LeRobot"
                    found = _shown_value(sample.get(key))
                    yield Difference(what, path, _shown_value(expected), found, episode)
        advance(1)


def _expected(
    compare: Comparer, place: Place, tasks: Mapping[int, str]
) -> Iterator[tuple[str, Any]]:
    """Yield the values that a sample must hold: images, other columns, and the task's text."""
    pictures = picture_features(compare)
    for key in pictures:
        (picture,) = source_pictures(compare, key, place.position, [place.frame])
        yield key, np.moveaxis(picture, -1, 0)
    rules = compare.row_rules(place.position)
    rows = expected_rows(compare.row_span(place.position), rules, SourceRows())
    for name in rows.column_names:
        if name not in pictures:
            yield name, rows.column(name)[place.frame].as_py()
    # LeRobot does not load samples without task_index.
    yield "task", tasks.get(rows.column("task_index")[place.frame].as_py())


def _same(expected: Any, found: Any) -> bool:
    if not hasattr(found, "numpy"):
        # Only texts are no arrays in a sample; a missing image equals nothing.
        return not hasattr(expected, "shape") and bool(expected == found)
    have, wanted = found.numpy(), np.asarray(expected)
    if wanted.dtype == np.uint8 and have.dtype != np.uint8:
        # LeRobot returns images of tables as numbers up to 1, whatever the options are.
        have = np.round(have * 255)
    if wanted.size != have.size:
        return False
    are_floats = wanted.dtype.kind == have.dtype.kind == "f"
    if are_floats:  # a row's double may be a single there
        wanted = wanted.astype(have.dtype)
    return bool(np.array_equal(wanted.reshape(have.shape), have, equal_nan=are_floats))


def _shown_value(value: Any) -> str:
    if hasattr(value, "shape"):
        values = np.asarray(value)
        return f"{'x'.join(map(str, values.shape))}, mean {float(values.mean()):.6g}"
    return str(value)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
