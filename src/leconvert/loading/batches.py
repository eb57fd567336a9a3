"""Assembles samples: rows, windows and frames of a batch, each written to its final place."""

from __future__ import annotations

import math
import os
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from leconvert.loading.episodes import (
    EpisodePool,
    EpisodeRows,
    FrameReader,
    FrameRequest,
    Trouble,
    Writer,
)
from leconvert.loading.metadata import PAD_SUFFIX, DatasetMeta, Window
from leconvert.loading.order import OrderBlock
from leconvert.loading.tensors import Memory, TensorPlan, UnreadablePlace, WorkerCounters, allocate
from leconvert.media import decode_image
from leconvert.model.values import IntArray, depth_facts, is_in_metres
from leconvert.support.errors import LeconvertError, UnreadableSourceError
from leconvert.support.values import dataclass

# Distances from the values that a depth camera stores.
#
# A depth video holds 12-bit codes c of distances d between a least and a largest distance, in
# metres. The codes are spaced evenly or, by default, evenly in log(d + shift). LeRobot computes d
# with torch for samples, and with NumPy for statistics. With its own defaults the two round three
# codes to different millimetres. So `leconvert.dataset.statistics` has a formula of its own.


_LARGEST_CODE = 4095
_MM_PER_METRE = 1000.0
_LARGEST_MM = 65535.0


class DepthScale:
    """The distances of the codes of a depth video.

    Args:
        least: Distance of code 0, metres.
        largest: Distance of code 4095, metres.
        shift: Added before the logarithm, metres.
        use_log: Whether codes are spaced evenly in the logarithm.
    """

    def __init__(self, *, least: float, largest: float, shift: float, use_log: bool) -> None:
        begin, end = (math.log(x + shift) if use_log else x for x in (least, largest))
        codes = torch.arange(_LARGEST_CODE + 1, dtype=torch.float32)
        distances = codes.mul_((end - begin) / _LARGEST_CODE).add_(begin)
        if use_log:
            distances.exp_().sub_(shift)
        distances.clamp_(least, largest)
        self._millimetres = distances.mul_(_MM_PER_METRE).round_().clamp_(0.0, _LARGEST_MM).numpy()

    @classmethod
    def of_feature(cls, feature: Mapping[str, Any]) -> DepthScale:
        """Return the scale in a feature's ``info``, with LeRobot's defaults."""
        least, largest, shift, use_log = depth_facts(feature).values()
        return cls(least=least, largest=largest, shift=shift, use_log=bool(use_log))

    def millimetres(self, codes: torch.Tensor) -> torch.Tensor:
        """Return distances in whole millimetres, float32, in the shape of ``codes``."""
        # A look into a table takes a seventh of the time of the formula.
        return torch.from_numpy(self._millimetres.take(codes.numpy(), mode="clip"))


# The assembly of samples.


Batch = dict[str, Any]


def _stop(pool: EpisodePool, process: int) -> None:
    # A forked child has no such threads, and their locks may be locked for ever.
    if process == os.getpid():
        pool.stop()


@dataclass(frozen=True, slots=True, eq=False)
class SampleFormat:
    """The format of a sample."""

    windows: Mapping[str, Window]  # by feature
    return_uint8: bool  # images as uint8 instead of float32 between 0 and 1
    # A transform of the images of each camera except depth; None for no change.
    image_transforms: Callable[[torch.Tensor], torch.Tensor] | None
    count_unreadable: bool  # black images for frames that cannot be decoded, instead of an error


class BatchMaker:
    """Makes batches of samples, in the order and with the types of LeRobot's dataset.

    It holds the files and decoders that a process has opened for one dataset. Images are written as
    (height, width, channels), as decoders return them, and yielded as (channels, height, width)
    without a copy.
    """

    def __init__(
        self,
        meta: DatasetMeta,
        places: IntArray,
        sample: SampleFormat,
        pool: EpisodePool,
        reader: FrameReader,
        *,
        device: str,
        counters: WorkerCounters,
    ) -> None:
        self.process = os.getpid()
        self.pool = pool
        self._meta = meta
        self._places = places  # of the order's episodes in the dataset
        self._sample = sample
        self._reader = reader
        self._device = torch.device(device)
        self._counters = counters
        self._image_shapes: dict[str, tuple[int, ...]] = {}
        self._depth_keys = frozenset(meta.depth_keys)
        self._depth_scales = {
            key: DepthScale.of_feature(meta.features[key])
            for key in meta.video_keys
            if key in self._depth_keys
        }
        self._camera_numbers = {key: number for number, key in enumerate(meta.camera_keys)}
        # Not at exit: by then Python has ended the threads and begins to remove its modules.
        weakref.finalize(self, _stop, pool, self.process).atexit = False

    def expect(self, episodes: list[int]) -> None:
        """Receive the next episodes of the order, to prepare them."""
        self.pool.expect(self._places[episodes].tolist())

    def make(self, block: OrderBlock, memory: Memory) -> Batch:
        """Return a batch.

        Args:
            block: The frames of B samples.
            memory: Provides the memory for the batch.

        Returns:
            Tensors by feature with B as the first dimension, lists of values that are not numbers,
            and ``task``.

        Raises:
            UnreadableSourceError: Rows or frames cannot be read or decoded.
        """
        self.pool.leave_before(int(block.numbers[0]))
        places = self._places[block.episodes]
        batch = self._make(places, block.frames, memory)
        self.pool.keep_until(places, block.last_numbers)
        return batch

    def clear(self) -> None:
        """Release all episodes."""
        self.pool.clear()

    def _make(self, places: IntArray, frames: IntArray, memory: Memory) -> Batch:
        begin = time.perf_counter_ns()
        lengths = self._meta.table.length[places]
        chosen = {
            key: window.frames(frames, lengths) for key, window in self._sample.windows.items()
        }
        wanted = {key: chosen.get(key, frames[:, None]) for key in self._meta.video_keys}
        self.pool.bring(places, wanted)
        rows = [self.pool.rows(place) for place in places.tolist()]
        read = time.perf_counter_ns()
        self._learn_image_shapes(rows, places, frames, chosen)
        batch = self._allocate(rows[0], len(places), memory)
        decode_begin = time.perf_counter_ns()
        self._fill_videos(batch, places, wanted)
        decoded = time.perf_counter_ns()
        result: Batch = {key: _channels_first(batch[key]) for key in self._meta.video_keys}
        for key in self._meta.features:
            if key in result:
                continue
            if key in rows[0].images:
                self._fill_images(batch[key], key, rows, places, chosen.get(key, frames[:, None]))
                result[key] = _channels_first(batch[key])
            elif key in rows[0].arrays:
                _fill_numbers(batch[key], key, rows, chosen.get(key, frames))
                result[key] = batch[key]
            else:
                result[key] = _python_values(key, rows, frames)
        change = self._sample.image_transforms
        if change is not None:
            for key in self._meta.camera_keys:
                if key not in self._depth_keys:
                    result[key] = torch.stack([change(pictures) for pictures in result[key]])
        for key, window in self._sample.windows.items():
            batch[key + PAD_SUFFIX].numpy()[:] = window.is_pad(frames, lengths)
            result[key + PAD_SUFFIX] = batch[key + PAD_SUFFIX]
        result["task"] = [
            self._meta.task_texts[int(found.arrays["task_index"][frame])]
            for found, frame in zip(rows, frames.tolist(), strict=True)
        ]
        end = time.perf_counter_ns()
        self._counters.add("samples", len(places))
        self._counters.add("rows_ns", read - begin)
        self._counters.add("decode_ns", decoded - decode_begin)
        self._counters.add("assemble_ns", end - decoded + decode_begin - read)
        return result

    def _allocate(self, rows: EpisodeRows, size: int, memory: Memory) -> dict[str, torch.Tensor]:
        plans = []
        tensors = {}
        for key in self._meta.features:
            steps = self._sample.windows[key].steps if key in self._sample.windows else None
            if key in self._camera_numbers:
                plan = self._image_plan(key, size, steps)
                if self._device.type != "cpu" and key in self._meta.video_keys:
                    tensors[key] = torch.empty(plan.shape, dtype=plan.dtype, device=self._device)
                    continue
                plans.append(plan)
            elif key in rows.arrays:
                values = rows.arrays[key]
                lead = (size,) if steps is None else (size, steps)
                kind = torch.from_numpy(values[:0]).dtype
                plans.append(TensorPlan(key, kind, lead + values.shape[1:]))
        plans += [
            TensorPlan(key + PAD_SUFFIX, torch.bool, (size, window.steps))
            for key, window in self._sample.windows.items()
        ]
        return tensors | allocate(plans, memory)

    def _image_plan(self, key: str, size: int, steps: int | None) -> TensorPlan:
        # For a window of one step, LeRobot's dataset drops the axis of time, but only for videos.
        dropped = steps is None or (steps == 1 and key in self._meta.video_keys)
        lead = (size,) if dropped else (size, steps or 1)
        is_float = key in self._depth_keys or not self._sample.return_uint8
        kind = torch.float32 if is_float else torch.uint8
        return TensorPlan(key, kind, lead + self._image_shapes[key])

    # --- frames of videos ---------------------------------------------------------------------

    def _learn_image_shapes(
        self,
        rows: list[EpisodeRows],
        places: IntArray,
        frames: IntArray,
        chosen: Mapping[str, IntArray],
    ) -> None:
        """Learn each camera's image size from one image, before memory is allocated."""
        for key in self._camera_numbers:
            if key in self._image_shapes:
                continue
            if key in self._meta.video_keys:
                wanted = chosen.get(key, frames).reshape(len(frames), -1)[:1, 0]
                self._image_shapes[key] = self._frame_shape(key, places[:1], wanted)
            else:
                picture = self._picture(key, rows[0], int(frames[0]))
                self._image_shapes[key] = tuple(picture.shape)

    def _frame_shape(self, key: str, places: IntArray, frames: IntArray) -> tuple[int, ...]:
        shapes: list[tuple[int, ...]] = []

        def write(_: IntArray, pictures: torch.Tensor) -> None:
            shapes.append(tuple(pictures.shape[1:]))

        def trouble(_: IntArray, error: UnreadableSourceError) -> None:
            self._accept(error, key, int(places[0]), int(frames[0]))

        self._reader.read([FrameRequest(key, places, frames, write, trouble)])
        # The declared shape may be wrong, but nothing else is known if no image can be decoded.
        return shapes[0] if shapes else _declared_shape(self._meta.features[key])

    def _fill_videos(
        self,
        batch: Mapping[str, torch.Tensor],
        places: IntArray,
        wanted: Mapping[str, IntArray],
    ) -> None:
        requests = []
        for key, of_samples in wanted.items():
            places_of_frames = np.repeat(places, of_samples.shape[1])
            frames = of_samples.reshape(-1)
            target = batch[key].reshape(-1, *self._image_shapes[key])
            write, trouble = (
                self._writer(key, target),
                self._trouble(key, places_of_frames, frames, target),
            )
            requests.append(FrameRequest(key, places_of_frames, frames, write, trouble))
            self._counters.add("frames", len(frames))
        self._reader.read(requests)

    def _writer(self, key: str, target: torch.Tensor) -> Writer:
        scale = self._depth_scales.get(key)

        def write(members: IntArray, pictures: torch.Tensor) -> None:
            if pictures.shape[1:] != target.shape[1:]:
                raise LeconvertError(
                    f"{key} has frames of different sizes, {tuple(target.shape[1:3])} and "
                    f"{tuple(pictures.shape[1:3])}. Such frames cannot be in one batch.",
                    next_step="Load the episodes with different sizes separately (episodes=...).",
                )
            if scale is not None:
                pictures = scale.millimetres(pictures)
            elif target.dtype == torch.float32:
                if len(members) == 1 and target.device.type == "cpu":
                    # Written in place and by this thread alone, in contrast to torch.
                    out = target.numpy()[int(members[0])]
                    np.divide(pictures[0].numpy(), np.float32(255), out=out)
                    return
                pictures = pictures / 255
            if target.device.type == "cpu":
                # This costs one copy per image; torch's index_put_ costs several.
                target.numpy()[members] = pictures.numpy()
            else:
                target[torch.from_numpy(members).to(target.device)] = pictures

        return write

    def _trouble(
        self, key: str, places: IntArray, frames: IntArray, target: torch.Tensor
    ) -> Trouble:
        def trouble(members: IntArray, error: UnreadableSourceError) -> None:
            target[torch.from_numpy(members).to(target.device)] = 0
            for place, frame in zip(
                places[members].tolist(), frames[members].tolist(), strict=True
            ):
                self._give_up(error, key, place, frame)

        return trouble

    def _give_up(self, error: UnreadableSourceError, key: str, place: int, frame: int) -> None:
        """Count a frame that cannot be decoded, or raise its error."""
        self._accept(error, key, place, frame)
        camera = self._camera_numbers[key]
        self._counters.name_unreadable(UnreadablePlace(camera, place, frame))

    def _accept(self, error: UnreadableSourceError, camera: str, place: int, frame: int) -> None:
        """Raise the error of a frame, with its episode and camera, unless such frames count."""
        if self._sample.count_unreadable:
            return
        episode = int(self._meta.table.index[place])
        raise UnreadableSourceError(
            f"{error.message.rstrip('.')} (episode {episode}, frame {frame} of {camera}).",
            path=error.path,
            next_step=error.next_step,
        ) from error

    # --- images of tables ---------------------------------------------------------------------

    def _fill_images(
        self,
        target: torch.Tensor,
        key: str,
        rows: list[EpisodeRows],
        places: IntArray,
        wanted: IntArray,
    ) -> None:
        pictures = target.numpy().reshape(*wanted.shape, *self._image_shapes[key])
        for sample, found in enumerate(rows):
            for step, frame in enumerate(wanted[sample].tolist()):
                try:
                    pictures[sample, step] = self._picture(key, found, frame)
                except UnreadableSourceError as error:
                    pictures[sample, step] = 0
                    self._give_up(error, key, int(places[sample]), frame)
        self._counters.add("frames", wanted.size)

    def _picture(self, key: str, rows: EpisodeRows, frame: int) -> npt.NDArray[Any]:
        feature = self._meta.features[key]
        is_depth = key in self._depth_keys
        picture: npt.NDArray[Any] = decode_image(
            memoryview(rows.images[key][frame]), is_depth=is_depth
        )
        if is_depth:
            factor = _MM_PER_METRE if is_in_metres(feature) else 1.0
            return picture.astype(np.float32) * np.float32(factor)
        if _declared_shape(feature)[2] == 1:
            picture = picture[..., :1]
        if self._sample.return_uint8:
            return picture
        return picture / np.float32(255)


def _declared_shape(feature: Mapping[str, Any]) -> tuple[int, int, int]:
    """Return height, width and channels of a camera's images, from its feature."""
    shape = tuple(int(size) for size in feature["shape"])
    names = feature.get("names")
    if isinstance(names, list) and names and str(names[0]).startswith("channel"):
        return shape[1], shape[2], shape[0]
    return shape[0], shape[1], shape[2]


def _channels_first(pictures: torch.Tensor) -> torch.Tensor:
    return pictures.movedim(-1, -3)


def _fill_numbers(
    target: torch.Tensor, key: str, rows: list[EpisodeRows], frames: IntArray
) -> None:
    values = target.numpy()
    for sample, found in enumerate(rows):
        values[sample] = found.arrays[key][frames[sample]]


def _python_values(key: str, rows: list[EpisodeRows], frames: IntArray) -> list[Any]:
    return [found.objects[key][frame] for found, frame in zip(rows, frames.tolist(), strict=True)]
