"""What a generated dataset looks like: plain values, no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from leconvert.errors import UsageError

__all__ = ["CameraSpec", "DatasetSpec", "RandomLengths"]


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
        noise_amplitude: How far the noise in the lower half goes from mid-grey, up to 127; 0 for
            a gradient, which codes into few bytes.
        target_clip_bytes: Size of a clip of mean length, as a bit rate. libx264 keeps it within a
            tenth where there is noise to spend the bits on; other encoders are better told by
            ``options``.
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
        fps: Frames a second, as a whole number or a decimal in text such as ``"29.97"``.
        cameras: The video features.
        image_keys: Image features, stored as PNG in the parquet files.
        image_size: Height and width of the image features.
        image_noise_amplitude: As ``CameraSpec.noise_amplitude``; PNG can hardly compress it.
        state_dim: Length of ``observation.state``; LeRobot stores a length of 1 as a scalar.
        action_dim: Length of ``action``, likewise.
        matrix_shape: Shape of a two-dimensional feature ``observation.matrix``, or None.
        has_done: Add the boolean scalar ``next.done``.
        nested_names: Write the names of vector features as a list in a list, as some robots do.
        tasks: All tasks; episode *e* uses ``tasks_per_episode`` of them, beginning with the *e*-th.
        tasks_per_episode: Tasks that an episode goes through, one after the other.
        quantiles: Add ``q01`` … ``q99`` to the stats.
        extra_episode_keys: Further keys of ``episodes.jsonl``; episode *e* takes the *e*-th value
            of the sequence, modulo its length.
        extra_info: Further keys of ``info.json``; they also override the generated ones.
        extra_files: Further files by relative path, such as ``README.md``.
        codebase_version: ``v2.1``, or ``v2.0``, which has no stats per episode.
        robot_type: Goes into ``info.json``.
        chunks_size: Episodes in one ``chunk-XXX`` folder.
        distinct_clips: Clips a camera (and episode length) that are really encoded; episodes share
            them in turn, each with a copy of its own. The label in a frame then names the clip.
            None encodes every episode.
        stats_samples: Frames of an episode that image stats are computed from, at most.
        seed: Selects the numeric content and the noise.
    """

    episodes: int = 5
    frames: int | Sequence[int] | RandomLengths = 20
    fps: int | str = 30
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
        if len(set(keys)) < len(keys):
            raise UsageError("two cameras or images share a key")

    @property
    def rate(self) -> Fraction:
        """Frames a second as the exact fraction of the decimal."""
        return Fraction(self.fps)

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
