"""Write a LeRobot v2.x dataset as LeRobot itself would have recorded it.

Clips are written first, then one parquet file an episode, then ``meta/``. So a folder without
``meta/info.json`` is an unfinished dataset.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from leconvert.media import codec_of
from leconvert.support.errors import TargetError, UsageError
from leconvert.support.values import dataclass
from leconvert.testing.encode import encode_clip

# Statistics of generated episodes, in the shapes that LeRobot v2.1 stores.
#
# Numeric features are computed over all rows. Images are computed from the drawn frames (before
# encoding), over the pixels of the sampled ones; large frames are thinned, as LeRobot does it.


QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}

Stats = dict[str, Any]
_COUNTED_SIDE = 150


def column_stats(values: npt.NDArray[Any], *, quantiles: bool) -> Stats:
    """Compute the statistics of one feature of one episode.

    Args:
        values: The feature's values, shape (rows,) or (rows, ...).
        quantiles: Whether to add quantiles.

    Returns:
        ``min`` and ``max`` in the type of the values, ``mean`` and ``std`` (of the population) as
        floats, each in the feature's shape, which is (1,) for a scalar; ``count`` of shape (1,).
    """
    rows = values.reshape(len(values), 1) if values.ndim == 1 else values
    numbers = rows.astype(np.float64)
    stats: Stats = {
        "min": rows.min(axis=0).tolist(),
        "max": rows.max(axis=0).tolist(),
        "mean": numbers.mean(axis=0).tolist(),
        "std": numbers.std(axis=0).tolist(),
        "count": [len(rows)],
    }
    if quantiles:
        for name, level in QUANTILES.items():
            stats[name] = np.quantile(numbers, level, axis=0).tolist()
    return stats


def image_stats(images: Sequence[npt.NDArray[np.uint8]], *, quantiles: bool) -> Stats:
    """Compute the statistics of frames of shape (height, width, 3).

    Returns:
        As `column_stats`, in the shape (3, 1, 1), scaled to 0..1; ``count`` counts frames.
    """
    step = max(1, max(images[0].shape) // _COUNTED_SIDE)
    pixels = np.stack([image[::step, ::step] for image in images]).reshape(-1, 3)
    stats = column_stats(pixels, quantiles=quantiles)
    scaled = {name: np.reshape(value, (-1, 1, 1)) / 255 for name, value in stats.items()}
    return {name: value.tolist() for name, value in scaled.items()} | {"count": [len(images)]}


def pooled_stats(episodes: Sequence[Mapping[str, Stats]]) -> dict[str, Stats]:
    """Combine the statistics of episodes into a v2.0 dataset's ``stats.json``, without counts."""
    pooled = {}
    for feature in episodes[0]:
        counts, means, deviations, least, greatest = (
            np.array([stats[feature][name] for stats in episodes])
            for name in ("count", "mean", "std", "min", "max")
        )
        weights = (counts / counts.sum()).reshape(-1, *[1] * (means.ndim - 1))
        mean = (means * weights).sum(axis=0)
        variance = ((deviations**2 + (means - mean) ** 2) * weights).sum(axis=0)
        pooled[feature] = {
            "mean": mean.tolist(),
            "std": np.sqrt(variance).tolist(),
            "max": greatest.max(axis=0).tolist(),
            "min": least.min(axis=0).tolist(),
        }
    return pooled


# Frames with a label, and PNG files of frames.
#
# The upper half of a frame is a grid of 4 by 8 black and white blocks that spell 32 bits: 4 of the
# camera, 12 of the episode and 16 of the frame, each modulo its range. Blocks survive lossy coding,
# so the label of a decoded frame can still be read. The frame number is in it, so no frame equals
# its neighbour. The lower half is a moving gradient, or noise that costs an encoder a chosen number
# of bits.


Image = npt.NDArray[np.uint8]

_ROWS, _COLUMNS = 4, 8
_CAMERA_BITS, _EPISODE_BITS, _FRAME_BITS = 4, 12, 16
_DARK, _BRIGHT = 32, 224
MIN_SIDE = 16
"""Smallest height and width that the label fits into, in pixels."""


class FrameLabel(NamedTuple):
    """The label of a frame: numbers modulo 16, 4,096 and 65,536."""

    camera: int
    episode: int
    frame: int


class NoiseField:
    """Noise that is drawn once and shown at another offset in every frame.

    Equal seed and frame give the same pixels, and an encoder's motion search does not find the
    previous frame in the next. The noise is not always new: offsets repeat after many frames.
    """

    def __init__(self, seed: int, height: int, width: int, amplitude: int) -> None:
        generator = np.random.default_rng([seed, height, width])
        low, high = 128 - amplitude, 128 + amplitude
        self._noise = generator.integers(low, high, (height * 2, width * 2, 3), dtype=np.uint8)
        self._offsets = generator.integers(0, (height, width), (4096, 2))

    def window(self, frame: int, height: int, width: int) -> Image:
        """Return the noise of one frame, of shape (height, width, 3)."""
        top, left = self._offsets[frame % len(self._offsets)]
        return self._noise[top : top + height, left : left + width]


def draw_frame(
    label: FrameLabel, height: int, width: int, *, noise: NoiseField | None = None
) -> Image:
    """Draw one frame.

    Args:
        label: The frame's label.
        height: Rows, at least 16.
        width: Columns, at least 16.
        noise: Fills the lower half; without it there is a gradient that moves with the frame.

    Returns:
        RGB pixels of shape (height, width, 3).

    Raises:
        UsageError: The frame is too small for its label.
    """
    if height < MIN_SIDE or width < MIN_SIDE:
        raise UsageError(f"a frame of {width}x{height} pixels is too small for its label")
    image = np.empty((height, width, 3), dtype=np.uint8)
    upper = height // 2
    image[:upper] = _blocks(label, upper, width)[:, :, None]
    if noise is not None:
        image[upper:] = noise.window(label.frame, height - upper, width)
        return image
    rows = np.arange(height - upper, dtype=np.int64)[:, None]
    columns = np.arange(width, dtype=np.int64)[None, :]
    phase = 5 * label.frame + 31 * label.episode
    image[upper:, :, 0] = (columns * 128 // width + phase) % 192 + 32
    image[upper:, :, 1] = (rows * 128 // height + 2 * phase) % 192 + 32
    image[upper:, :, 2] = (rows + columns + 40 * label.camera) % 192 + 32
    return image


def read_label(image: npt.NDArray[np.generic]) -> FrameLabel:
    """Read a frame's label, also from a lossy copy.

    Args:
        image: RGB pixels of shape (height, width, 3), in 0..255.

    Returns:
        The camera, episode and frame that were given to `draw_frame`.
    """
    upper, width = image.shape[0] // 2, image.shape[1]
    value = 0
    for bit in range(_ROWS * _COLUMNS):
        top, bottom, left, right = _block(bit, upper, width)
        # The rim of a block may mix with its neighbours; its middle does not.
        rim_rows, rim_columns = (bottom - top) // 4, (right - left) // 4
        block = image[top + rim_rows : bottom - rim_rows, left + rim_columns : right - rim_columns]
        value = value << 1 | int(float(block.mean()) > (_DARK + _BRIGHT) / 2)
    return FrameLabel(
        camera=value >> (_EPISODE_BITS + _FRAME_BITS),
        episode=value >> _FRAME_BITS & (1 << _EPISODE_BITS) - 1,
        frame=value & (1 << _FRAME_BITS) - 1,
    )


def encode_png(image: Image) -> bytes:
    """Return RGB pixels, uint8 of shape (height, width, 3), as the bytes of a PNG file."""
    height, width = image.shape[:2]
    rows = np.zeros((height, 1 + width * 3), dtype=np.uint8)  # each row begins with filter type 0
    rows[:, 1:] = image.reshape(height, width * 3)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"".join(
        (
            b"\x89PNG\r\n\x1a\n",
            _png_chunk(b"IHDR", header),
            _png_chunk(b"IDAT", zlib.compress(rows.tobytes(), 1)),
            _png_chunk(b"IEND", b""),
        )
    )


def _png_chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def _blocks(label: FrameLabel, height: int, width: int) -> npt.NDArray[np.uint8]:
    value = (
        (label.camera % (1 << _CAMERA_BITS)) << (_EPISODE_BITS + _FRAME_BITS)
        | (label.episode % (1 << _EPISODE_BITS)) << _FRAME_BITS
        | label.frame % (1 << _FRAME_BITS)
    )
    area = np.empty((height, width), dtype=np.uint8)
    for bit in range(_ROWS * _COLUMNS):
        top, bottom, left, right = _block(bit, height, width)
        is_bright = value >> (_ROWS * _COLUMNS - 1 - bit) & 1
        area[top:bottom, left:right] = _BRIGHT if is_bright else _DARK
    return area


def _block(bit: int, height: int, width: int) -> tuple[int, int, int, int]:
    row, column = divmod(bit, _COLUMNS)
    return (
        row * height // _ROWS,
        (row + 1) * height // _ROWS,
        column * width // _COLUMNS,
        (column + 1) * width // _COLUMNS,
    )


# The specification of a generated dataset: plain values, no I/O.


@dataclass(frozen=True, slots=True)
class RandomLengths:
    """Episode lengths drawn uniformly, ``minimum`` and ``maximum`` included."""

    seed: int
    minimum: int
    maximum: int


@dataclass(frozen=True, slots=True)
class CameraSpec:
    """One video feature.

    Attributes:
        key: The feature's name.
        width: Columns, even and at least 16.
        height: Rows, even and at least 16.
        codec: FFmpeg's name of the encoder.
        gop_size: Frames from one keyframe to the next.
        options: Private options of the encoder.
        pixel_format: FFmpeg's name of the stored pixel format.
        noise_amplitude: Largest distance of the noise in the lower half from mid-grey, up to 127; 0
            for a gradient, which codes into few bytes.
        target_clip_bytes: Size of a clip of mean length, which sets the bit rate. With noise,
            libx264 keeps it within a tenth; for other encoders use ``options``.
    """

    key: str = "observation.images.top"
    width: int = 96
    height: int = 96
    codec: str = "libx264"
    gop_size: int = 2
    options: Mapping[str, str] = field(default_factory=dict)
    pixel_format: str = "yuv420p"
    noise_amplitude: int = 0
    target_clip_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class DatasetSpec:
    """A whole v2.x dataset; equal specs give equal bytes with the same libraries.

    Attributes:
        episodes: Number of episodes.
        frames: Frames of every episode: one number, one number an episode, or a random range.
        fps: Frames a second: a number, or a decimal in text such as ``"29.97"``.
        cameras: The video features.
        image_keys: Image features, stored as PNG in the parquet files.
        image_size: Height and width of the image features.
        image_noise_amplitude: As ``CameraSpec.noise_amplitude``; PNG can hardly compress noise.
        state_dim: Length of ``observation.state``; LeRobot stores a length of 1 as a scalar.
        action_dim: Length of ``action``; LeRobot stores a length of 1 as a scalar.
        matrix_shape: Shape of a two-dimensional feature ``observation.matrix``, or None.
        has_done: Add the boolean scalar ``next.done``.
        nested_names: Write the names of vector features as a list in a list, as some robots do.
        tasks: All tasks; episode *e* uses ``tasks_per_episode`` of them, beginning with the *e*-th.
        tasks_per_episode: Number of tasks of an episode, one after another.
        quantiles: Add ``q01`` … ``q99`` to the statistics.
        extra_episode_keys: Further keys of ``episodes.jsonl``; episode *e* takes the *e*-th value
            of the sequence, modulo its length.
        extra_info: Further keys of ``info.json``; they also override the generated ones.
        extra_files: Further files by relative path, such as ``README.md``.
        codebase_version: ``v2.1``, or ``v2.0``, which has no statistics per episode.
        robot_type: The robot in ``info.json``.
        chunks_size: Episodes in one ``chunk-XXX`` folder.
        distinct_clips: Number of clips per camera (and episode length) that are really encoded.
            Episodes get copies of them in turn, and the label in a frame then names the clip. None
            encodes every episode.
        stats_samples: Maximum of frames of an episode from which image statistics are computed.
        seed: Selects the numeric content and the noise.

    Raises:
        UsageError: An episode has no frame or no task, the rate is not positive, or two features
            share a name.
    """

    episodes: int = 5
    frames: int | Sequence[int] | RandomLengths = 20
    fps: float | str = 30
    cameras: Sequence[CameraSpec] = (CameraSpec(),)
    image_keys: Sequence[str] = ()
    image_size: tuple[int, int] = (96, 96)
    image_noise_amplitude: int = 0
    state_dim: int = 6
    action_dim: int = 6
    matrix_shape: tuple[int, int] | None = None
    has_done: bool = False
    nested_names: bool = False
    tasks: Sequence[str] = ("Pick up the cube.", "Put the cube into the bowl.")
    tasks_per_episode: int = 1
    quantiles: bool = False
    extra_episode_keys: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    extra_info: Mapping[str, Any] = field(default_factory=dict)
    extra_files: Mapping[str, str | bytes] = field(default_factory=dict)
    codebase_version: Literal["v2.1", "v2.0"] = "v2.1"
    robot_type: str = "generated"
    chunks_size: int = 1000
    distinct_clips: int | None = None
    stats_samples: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.lengths(), default=0) < 1:
            raise UsageError("a generated dataset needs episodes of at least one frame each")
        if self.rate <= 0:
            raise UsageError(f"{self.fps} frames a second make no sense")
        if not 1 <= self.tasks_per_episode <= len(self.tasks):
            raise UsageError("an episode has at least one task and at most all of them")
        keys = [camera.key for camera in self.cameras] + list(self.image_keys)
        others = _features(replace(self, cameras=(), image_keys=())) if keys else {}
        if len({*keys, *others}) < len(keys) + len(others):
            raise UsageError("two cameras, images or other features share a key")

    @property
    def rate(self) -> Fraction:
        """Frames a second as the exact fraction of the decimal."""
        return Fraction(str(self.fps))

    def lengths(self) -> list[int]:
        """Return the number of frames of each episode.

        Raises:
            UsageError: A list of lengths does not fit the number of episodes.
        """
        if isinstance(self.frames, RandomLengths):
            generator = np.random.default_rng(self.frames.seed)
            drawn = generator.integers(
                self.frames.minimum, self.frames.maximum, self.episodes, endpoint=True
            )
            return [int(length) for length in drawn]
        if isinstance(self.frames, int):
            return [self.frames] * self.episodes
        if len(self.frames) != self.episodes:
            raise UsageError(f"{len(self.frames)} lengths were given for {self.episodes} episodes")
        return list(self.frames)

    def task_indices(self, episode: int, length: int) -> list[int]:
        """Return the task of each frame of an episode: equal shares, in order."""
        return [
            (episode + frame * self.tasks_per_episode // length) % len(self.tasks)
            for frame in range(length)
        ]


# Encoding of the clips: each once, with copies for the episodes that share it.


VIDEO_PATH = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"


class _Clip(NamedTuple):
    """A clip that is encoded once; its episodes get copies."""

    camera_number: int
    number: int
    length: int


def _encode_clips(
    root: Path, spec: DatasetSpec, lengths: list[int]
) -> dict[tuple[int, int], Stats]:
    """Encode and copy all clips; return the statistics of each (camera number, episode)."""
    for chunk in range((spec.episodes - 1) // spec.chunks_size + 1):
        for camera in spec.cameras:
            _video_path(root, spec, camera, chunk * spec.chunks_size).parent.mkdir(parents=True)
    clips: dict[_Clip, list[Path]] = {}
    users: dict[tuple[int, int], _Clip] = {}
    for camera_number, camera in enumerate(spec.cameras):
        for episode, length in enumerate(lengths):
            number = episode if spec.distinct_clips is None else episode % spec.distinct_clips
            clip = users[camera_number, episode] = _Clip(camera_number, number, length)
            clips.setdefault(clip, []).append(_video_path(root, spec, camera, episode))
    # One encoder thread a clip gives the same bytes on every machine. Several clips at a time use
    # all cores, since encoders release the interpreter's lock.
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        encoded = pool.map(lambda clip: _encode_one(clips[clip][0], spec, clip), clips)
        stats = dict(zip(clips, encoded, strict=True))
    for first, *others in clips.values():
        for other in others:
            shutil.copyfile(first, other)
    return {user: stats[clip] for user, clip in users.items()}


def _encode_one(path: Path, spec: DatasetSpec, clip: _Clip) -> Stats:
    camera = spec.cameras[clip.camera_number]
    options = dict(camera.options)
    if camera.target_clip_bytes is not None:
        # All clips of a camera have one rate: the decoder configuration names a level that follows
        # from it, and clips with different levels cannot share a file.
        mean_length = Fraction(sum(spec.lengths()), spec.episodes)
        bits_per_second = int(camera.target_clip_bytes * 8 * spec.rate / mean_length)
        options["b"] = options["maxrate"] = str(bits_per_second)
        options["bufsize"] = str(bits_per_second // 4)  # small, as clips are short
    noise = noise_of(
        spec, clip.camera_number, (camera.height, camera.width), camera.noise_amplitude
    )
    sampled = sampled_frames(clip.length, spec.stats_samples)
    kept: list[Image] = []

    def frames() -> Iterator[npt.NDArray[np.uint8]]:
        for number in range(clip.length):
            label = FrameLabel(clip.camera_number, clip.number, number)
            image = draw_frame(label, camera.height, camera.width, noise=noise)
            if number in sampled:
                kept.append(image)
            yield image

    encode_clip(
        path,
        frames(),
        fps=spec.rate,
        codec=camera.codec,
        gop_size=camera.gop_size,
        options=options,
        pixel_format=camera.pixel_format,
    )
    return image_stats(kept, quantiles=spec.quantiles)


def noise_of(
    spec: DatasetSpec, number: int, size: tuple[int, int], amplitude: int
) -> NoiseField | None:
    """Return the noise for the lower half of one camera's or image feature's frames."""
    if amplitude == 0:
        return None
    height, width = size
    return NoiseField(spec.seed * 1000 + number, height - height // 2, width, amplitude)


def sampled_frames(length: int, samples: int) -> frozenset[int]:
    """Return the frames for image statistics: at most ``samples``, evenly spread."""
    places = np.linspace(0, length - 1, min(length, samples)).round()
    return frozenset(int(place) for place in places)


def _video_path(root: Path, spec: DatasetSpec, camera: CameraSpec, episode: int) -> Path:
    return root / VIDEO_PATH.format(
        episode_chunk=episode // spec.chunks_size, video_key=camera.key, episode_index=episode
    )


# The tables and ``meta/``.


_DATA_PATH = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
_IMAGE_TYPE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
_INDEX_COLUMNS = ("frame_index", "episode_index", "index", "task_index")


def make_dataset(root: str | Path, spec: DatasetSpec) -> Path:
    """Write a dataset.

    Args:
        root: The dataset's folder, new or empty.
        spec: The dataset. The same spec gives the same bytes with the same library versions.

    Returns:
        The folder.

    Raises:
        TargetError: The folder is not empty.
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
    clip_stats = _encode_clips(target, spec, lengths)
    stats = _write_episodes(target, spec, lengths, clip_stats)
    _write_meta(target, spec, lengths, stats)
    return target


def _write_episodes(
    root: Path,
    spec: DatasetSpec,
    lengths: list[int],
    clip_stats: Mapping[tuple[int, int], Stats],
) -> list[dict[str, Stats]]:
    """Write every parquet file; return the statistics of each episode, in the features' order."""
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
    return stats


def _columns(
    spec: DatasetSpec, episode: int, length: int, start: int
) -> tuple[dict[str, Any], dict[str, Stats]]:
    """Return an episode's columns, arrays or lists of PNG structs, and its images' statistics."""
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
    images = [
        draw_frame(FrameLabel(number, episode, frame), height, width, noise=noise)
        for frame in range(length)
    ]
    stats = image_stats([images[frame] for frame in sorted(sampled)], quantiles=spec.quantiles)
    structs = [
        {"bytes": encode_png(image), "path": f"frame_{frame:06d}.png"}
        for frame, image in enumerate(images)
    ]
    return structs, stats


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
                "video.codec": codec_of(camera.codec) or camera.codec,
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


# Damage on purpose, one thing at a time: tests of faulty datasets change a correct one.


def edit_info(root: str | Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change ``info.json`` in place.

    Args:
        root: The dataset's folder.
        change: Changes the parsed file in place.
    """
    path = Path(root) / "meta/info.json"
    info = json.loads(path.read_bytes())
    change(info)
    path.write_text(json.dumps(info), encoding="utf-8")


def edit_lines(
    root: str | Path, table: str, change: Callable[[list[dict[str, Any]]], object]
) -> None:
    """Change a JSON-lines table in place.

    Args:
        root: The dataset's folder.
        table: ``tasks``, ``episodes`` or ``episodes_stats``.
        change: Changes the list of records in place.
    """
    path = Path(root) / f"meta/{table}.jsonl"
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    change(records)
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def edit_table(root: str | Path, episode: int, change: Callable[[pa.Table], pa.Table]) -> None:
    """Replace the table of an episode in the first chunk.

    Args:
        root: The dataset's folder.
        episode: The episode's index.
        change: Returns the new table.
    """
    path = Path(root) / f"data/chunk-000/episode_{episode:06d}.parquet"
    pq.write_table(change(pq.read_table(path)), path)


def with_column(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
    """Return a table with new values in a column, or with one column more.

    Args:
        table: The table, which is not changed.
        name: The column.
        values: One value for each row.
    """
    place = table.schema.get_field_index(name)
    if place < 0:
        return table.append_column(name, values)
    return table.set_column(place, pa.field(name, values.type), values)


# The datasets of the benchmarks; each is generated in well under three minutes.


_H264 = {"preset": "ultrafast"}
_AV1 = {"preset": "12", "crf": "49"}


_THREE = ("front", "left_wrist", "right_wrist")


def _cameras(*names: str, **facts: Any) -> tuple[CameraSpec, ...]:
    return tuple(
        CameraSpec(key=f"observation.images.{name}", noise_amplitude=48, **facts) for name in names
    )


PROFILES: Mapping[str, DatasetSpec] = {
    "small": DatasetSpec(
        episodes=50,
        frames=300,
        cameras=_cameras("front", "wrist", width=640, height=480, codec="libsvtav1", options=_AV1),
        state_dim=14,
        action_dim=14,
        distinct_clips=2,
    ),
    "mid": DatasetSpec(
        episodes=100,
        frames=300,
        cameras=_cameras(
            *_THREE, width=640, height=480, options=_H264, target_clip_bytes=7_000_000
        ),
        state_dim=14,
        action_dim=14,
        distinct_clips=3,
    ),
    "big": DatasetSpec(
        episodes=300,
        frames=300,
        cameras=_cameras(
            *_THREE, width=640, height=480, options=_H264, target_clip_bytes=6_780_000
        ),
        state_dim=14,
        action_dim=14,
        distinct_clips=3,
    ),
    "many": DatasetSpec(
        episodes=4000,
        frames=RandomLengths(seed=0, minimum=57, maximum=63),
        cameras=_cameras("front", "wrist", options=_H264, target_clip_bytes=37_000),
        state_dim=7,
        action_dim=7,
        distinct_clips=4,
    ),
    "images": DatasetSpec(
        episodes=60,
        frames=100,
        cameras=(),
        image_keys=("observation.images.front", "observation.images.wrist"),
        image_noise_amplitude=127,
        state_dim=14,
        action_dim=14,
    ),
}
"""``small``, ``mid``, ``big``, ``many`` and ``images``: about 310 MB, 2.1 GB, 6.1 GB, 0.36 GB and
0.2 GB.
"""
