"""Encode the clips of a generated dataset, each once, and copy those that episodes share."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import numpy.typing as npt

from leconvert.media.encode import encode_clip
from leconvert.testing.pixels import FrameLabel, NoiseField, draw_frame
from leconvert.testing.spec import CameraSpec, DatasetSpec
from leconvert.testing.statistics import ImageHistogram, Stats

__all__ = ["VIDEO_PATH", "Clip", "encode_clips", "noise_of", "plan_clips", "sampled_frames"]

VIDEO_PATH = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"


@dataclass(frozen=True, slots=True)
class Clip:
    """One clip that is encoded once: for ``episodes[0]``; the other episodes get copies."""

    camera_number: int
    number: int
    length: int
    episodes: tuple[int, ...]


def plan_clips(spec: DatasetSpec, lengths: list[int]) -> list[Clip]:
    """Say which clips are encoded and which episodes use each.

    Args:
        spec: The dataset.
        lengths: Frames of each episode; episodes share a clip only if these are equal.
    """
    users: dict[tuple[int, int, int], list[int]] = {}
    for camera_number in range(len(spec.cameras)):
        for episode, length in enumerate(lengths):
            number = episode if spec.distinct_clips is None else episode % spec.distinct_clips
            users.setdefault((camera_number, number, length), []).append(episode)
    return [
        Clip(camera_number, number, length, tuple(episodes))
        for (camera_number, number, length), episodes in users.items()
    ]


def encode_clips(
    root: Path, spec: DatasetSpec, clips: list[Clip], on_clip: Callable[[], None]
) -> dict[tuple[int, int], Stats]:
    """Encode and copy all clips; return the stats of each (camera number, episode)."""
    for chunk in range((spec.episodes - 1) // spec.chunks_size + 1):
        for camera in spec.cameras:
            _video_path(root, spec, camera, chunk * spec.chunks_size).parent.mkdir(parents=True)
    stats: dict[tuple[int, int], Stats] = {}
    # One encoder thread a clip keeps the bytes the same everywhere; several clips at a time keep
    # the cores busy, as encoders let go of the interpreter's lock.
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        encoded = pool.map(lambda clip: _encode_one(root, spec, clip), clips)
        for clip, found in zip(clips, encoded, strict=True):
            camera = spec.cameras[clip.camera_number]
            first = _video_path(root, spec, camera, clip.episodes[0])
            for episode in clip.episodes:
                stats[clip.camera_number, episode] = found
                if episode != clip.episodes[0]:
                    shutil.copyfile(first, _video_path(root, spec, camera, episode))
            on_clip()
    return stats


def _encode_one(root: Path, spec: DatasetSpec, clip: Clip) -> Stats:
    camera = spec.cameras[clip.camera_number]
    options = dict(camera.options)
    if camera.target_clip_bytes is not None:
        # One rate for all clips of a camera: the decoder configuration names a level that follows
        # from it, and clips that differ in that cannot share a file.
        mean_length = Fraction(sum(spec.lengths()), spec.episodes)
        bits_per_second = int(camera.target_clip_bytes * 8 * spec.rate / mean_length)
        options["b"] = options["maxrate"] = str(bits_per_second)
        options["bufsize"] = str(bits_per_second // 4)  # small, as clips are short
    noise = noise_of(
        spec, clip.camera_number, (camera.height, camera.width), camera.noise_amplitude
    )
    sampled = sampled_frames(clip.length, spec.stats_samples)
    histogram = ImageHistogram()

    def frames() -> Iterator[npt.NDArray[np.uint8]]:
        for number in range(clip.length):
            label = FrameLabel(clip.camera_number, clip.number, number)
            image = draw_frame(label, camera.height, camera.width, noise=noise)
            if number in sampled:
                histogram.add(image)
            yield image

    encode_clip(
        _video_path(root, spec, camera, clip.episodes[0]),
        frames(),
        fps=spec.rate,
        codec=camera.codec,
        gop_size=camera.gop_size,
        options=options,
        pixel_format=camera.pixel_format,
    )
    return histogram.stats(quantiles=spec.quantiles)


def noise_of(
    spec: DatasetSpec, number: int, size: tuple[int, int], amplitude: int
) -> NoiseField | None:
    """Return the noise of one camera or image feature, for the lower half of its frames."""
    if amplitude == 0:
        return None
    height, width = size
    return NoiseField(spec.seed * 1000 + number, height - height // 2, width, amplitude)


def sampled_frames(length: int, samples: int) -> frozenset[int]:
    """Return the frames, at most ``samples`` and evenly spread, that image stats are made of."""
    places = np.linspace(0, length - 1, min(length, samples)).round()
    return frozenset(int(place) for place in places)


def _video_path(root: Path, spec: DatasetSpec, camera: CameraSpec, episode: int) -> Path:
    return root / VIDEO_PATH.format(
        episode_chunk=episode // spec.chunks_size, video_key=camera.key, episode_index=episode
    )
