"""One process of the decode limit: decodes frames as fast as it can, alone or beside others."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from multiprocessing.connection import Connection
from pathlib import Path
from threading import BrokenBarrierError
from typing import Literal, Protocol

import numpy as np

from leconvert.probe.clips import open_clip
from leconvert.probe.decoders import open_decoder
from leconvert.probe.files import dataset_files

__all__ = ["ACCESSES", "Access", "Assignment", "Stretch", "decode_stretches", "timed_decoding"]

Access = Literal["sequential", "random"]

ACCESSES: tuple[Access, ...] = ("sequential", "random")
"""Runs of neighbouring frames, as a player reads them; or one frame anywhere, then another."""

# How long a process waits for the others, importing torch included.
_PATIENCE_SECONDS = 300.0
_RUN_FRAMES = 32


class Barrier(Protocol):
    """What all processes wait at together."""

    def wait(self, timeout: float | None = None) -> int:
        """Return when everyone is here."""
        ...

    def abort(self) -> None:
        """Let everyone go with an error."""
        ...


@dataclass(frozen=True, slots=True)
class Assignment:
    """What one process does.

    Attributes:
        number: The process, from 0.
        paths: Video files to decode from.
        backend: ``torchcodec`` or ``pyav``.
        device: ``cpu``, ``cuda`` or ``cuda:N``.
        stretches: Access, and how many processes take part, in order.
        seconds: Length of each stretch.
        seed: Of random access.
    """

    number: int
    paths: Sequence[str]
    backend: str
    device: str
    stretches: Sequence[tuple[Access, int]]
    seconds: float
    seed: int


@dataclass(frozen=True, slots=True)
class Stretch:
    """What one process did in one stretch.

    Attributes:
        frames: Frames decoded.
        seconds: What they took.
    """

    frames: int
    seconds: float


class _Clip(Protocol):
    num_frames: int

    def frame(self, number: int) -> object: ...

    def run(self, first: int, stop: int) -> object: ...


class _TorchcodecClip:
    def __init__(self, path: str, device: str) -> None:
        from torchcodec.decoders import VideoDecoder

        # Opening in the other mode reads the whole file, which is no decoding; and frames as the
        # decoder lays them out are the cheapest.
        self._decoder = VideoDecoder(
            path,
            dimension_order="NHWC",
            num_ffmpeg_threads=1,
            device=device,
            seek_mode="approximate",
        )
        self.num_frames = int(self._decoder.metadata.num_frames or 0)

    def frame(self, number: int) -> object:
        return self._decoder.get_frame_at(number)

    def run(self, first: int, stop: int) -> object:
        return self._decoder.get_frames_in_range(first, stop)


class _PyavClip:
    """What `EpisodeStream` decodes with on the CPU."""

    def __init__(self, path: str) -> None:
        clip = open_clip(dataset_files(Path(path).parent).open(Path(path).name), keep_index=True)
        self._decoder = open_decoder(clip, "pyav")
        self.num_frames = clip.num_frames or 0

    def frame(self, number: int) -> object:
        return self.run(number, number + 1)

    def run(self, first: int, stop: int) -> object:
        return [picture for _, picture in self._decoder.decode(np.arange(first, stop))]


def decode_stretches(assignment: Assignment, barrier: Barrier, answer: Connection) -> None:
    """Run a process: open the files, then decode in step with the others.

    Sends a list of `Stretch` (None where it only waited), or a sentence that says what failed.
    """
    try:
        clips = _opened(assignment)
        done: list[Stretch | None] = []
        for access, processes in assignment.stretches:
            calls = _calls(clips, access, assignment.seed + assignment.number)
            frames, warm = next(calls)
            warm()  # the first frame of a decoder costs more than any other
            del frames
            barrier.wait(_PATIENCE_SECONDS)
            takes_part = assignment.number < processes
            done.append(timed_decoding(calls, assignment.seconds) if takes_part else None)
            barrier.wait(_PATIENCE_SECONDS + assignment.seconds)
        answer.send(done)
    except BrokenBarrierError:
        answer.send("another process gave up")
    except Exception as error:  # noqa: BLE001 - whatever it is, the others must not wait for ever
        barrier.abort()
        answer.send(str(error).partition("\n")[0] or repr(error))


def timed_decoding(
    calls: Iterator[tuple[int, Callable[[], object]]],
    seconds: float,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> Stretch:
    """Make calls until the time is over; whole calls count.

    Args:
        calls: How many frames a call gives, and the call; endless.
        seconds: How long at least.
        clock: Seconds, ascending.
    """
    began = now = clock()
    frames = 0
    for count, call in calls:
        call()
        frames += count
        now = clock()
        if now - began >= seconds:
            break
    return Stretch(frames, now - began)


def _opened(assignment: Assignment) -> list[_Clip]:
    clips: list[_Clip] = []
    for path in assignment.paths:
        clip: _Clip = (
            _PyavClip(path)
            if assignment.backend == "pyav"
            else _TorchcodecClip(path, assignment.device)
        )
        if clip.num_frames:
            clips.append(clip)
    if not clips:
        raise ValueError("no video file holds a frame")
    return clips


def _calls(
    clips: Sequence[_Clip], access: Access, seed: int
) -> Iterator[tuple[int, Callable[[], object]]]:
    if access == "random":
        generator = np.random.default_rng(seed)
        ends = np.cumsum([clip.num_frames for clip in clips])
        while True:
            for place in generator.integers(0, ends[-1], 1024).tolist():
                number = int(np.searchsorted(ends, place, side="right"))
                clip = clips[number]
                frame = place - (int(ends[number]) - clip.num_frames)
                yield 1, partial(clip.frame, frame)
    # Processes begin with different files, as workers would.
    for clip in cycle([*clips[seed % len(clips) :], *clips[: seed % len(clips)]]):
        for first in range(0, clip.num_frames, _RUN_FRAMES):
            stop = min(first + _RUN_FRAMES, clip.num_frames)
            yield stop - first, partial(clip.run, first, stop)
