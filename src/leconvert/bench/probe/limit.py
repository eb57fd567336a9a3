"""How fast the files of a dataset decode without any loader: what no loader can exceed.

The videos are decoded on one core and on all of them, a process a core with one thread each, in two
ways: frames one after the other, and single frames at random places, which is what training asks
for. Files are opened, and read into the page cache as far as they are touched, before the clock
starts. Rows, windows, shuffling and collation cost nothing here.

The limit that loaders are held against is random access with all processes. A loader can pass it
only where it decodes something cheaper than single random frames, such as the repeated frames of a
window at an episode's end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from itertools import cycle
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from threading import BrokenBarrierError
from typing import Any, Literal, Protocol

import numpy as np

from leconvert.bench.environment import (
    PACKETS_LOOKED_AT,
    cores,
    host_record,
    versions_record,
    video_facts,
)
from leconvert.bench.probe.options import RunOptions
from leconvert.bench.results import begin_document, read_results
from leconvert.loading import (
    Backend,
    DatasetMeta,
    Files,
    OpenFile,
    choose_backend,
    files_at,
    load_meta,
    open_clip,
    open_decoder,
)
from leconvert.support.errors import LeconvertError, ProbeError, UnreadableSourceError

__all__ = [
    "LimitPlan",
    "dataset_record",
    "failure_of",
    "find_limit",
    "known_limit",
    "limit_of",
    "measure_limit",
    "run_limit",
    "timed_decoding",
    "videos_to_decode",
]


# ------------------------------------------------------------------------------------------------
# One process of the decode limit: decodes frames as fast as it can, alone or beside others.


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
    """What one process does."""

    number: int  # the process, from 0
    paths: Sequence[str]  # video files to decode from
    backend: Backend
    device: str  # ``cpu``, ``cuda`` or ``cuda:N``
    stretches: Sequence[tuple[Access, int]]  # access, and how many processes take part, in order
    seconds: float  # length of each stretch
    seed: int  # of random access


@dataclass(frozen=True, slots=True)
class Stretch:
    """What one process did in one stretch."""

    frames: int  # frames decoded
    seconds: float  # what they took


class _Clip:
    """A file, and what `EpisodeStream` decodes it with."""

    def __init__(self, path: str, backend: Backend, device: str) -> None:
        opened = files_at(Path(path).parent).open(Path(path).name)
        clip = open_clip(opened, keep_index=backend == "pyav")
        self._decoder = open_decoder(clip, backend, device=device)
        self.num_frames = clip.num_frames or 0

    def run(self, first: int, stop: int) -> list[object]:
        return [frames for _, frames in self._decoder.decode(np.arange(first, stop))]


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
    """Make calls until the time is over; whole calls count."""
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
    opened = [_Clip(path, assignment.backend, assignment.device) for path in assignment.paths]
    clips = [clip for clip in opened if clip.num_frames]
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
                yield 1, partial(clip.run, frame, frame + 1)
    # Processes begin with different files, as workers would.
    for clip in cycle([*clips[seed % len(clips) :], *clips[: seed % len(clips)]]):
        for first in range(0, clip.num_frames, _RUN_FRAMES):
            stop = min(first + _RUN_FRAMES, clip.num_frames)
            yield stop - first, partial(clip.run, first, stop)


# ------------------------------------------------------------------------------------------------
# How fast the files of a dataset decode without any loader: what no loader can exceed.


# Each open decoder costs memory in each process.
_MOST_FILES = 48


@dataclass(frozen=True, slots=True)
class LimitPlan:
    """How the limit is measured."""

    processes: int  # how many decode at once; one process is measured too
    seconds: float  # length of each of the stretches
    backend: Backend
    device: str = "cpu"  # what decodes
    seed: int = 0  # of random access

    def stretches(self) -> list[tuple[Access, int]]:
        """Return access and number of processes of each stretch."""
        numbers = sorted({1, self.processes})
        return [(access, number) for number in numbers for access in ACCESSES]


@dataclass(frozen=True, slots=True)
class DecodeRate:
    """How fast one way of decoding is."""

    access: Access  # ``sequential`` or ``random``
    processes: int  # processes that decoded
    frames: int  # frames of all of them
    seconds: float  # the longest of their times
    frames_per_s: float  # sum of their rates

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-serialisable mapping."""
        return asdict(self)


def videos_to_decode(meta: DatasetMeta, most: int = _MOST_FILES) -> list[str]:
    """Return relative paths of video files: of every camera in turn, spread over its files."""
    cameras = [files.paths for files in meta.episodes.cameras.values() if files.paths]
    if not cameras:
        raise ProbeError(
            f"{meta.root} has no videos, so nothing limits it that could be measured.",
            path=meta.root,
            next_step="Measure a loader instead: leconvert probe run.",
        )
    each = max(1, most // len(cameras))
    return [path for paths in cameras for path in paths[:: -(-len(paths) // each)]]


def measure_limit(files: Files, paths: Sequence[str], plan: LimitPlan) -> list[DecodeRate]:
    """Measure every stretch of a plan.

    Of remote datasets the files are fetched whole first.
    """
    context = get_context("forkserver")
    # One process imports torch, and the others are forked from it: many would wait for the disk.
    context.set_forkserver_preload([decode_stretches.__module__])
    barrier = context.Barrier(plan.processes)
    with ExitStack() as at_the_end:
        local = []
        for path in paths:
            opened = files.open(path)
            at_the_end.callback(opened.close)
            opened.need([(0, opened.size_bytes)])
            local.append(opened.path)
        answers: list[Connection] = []
        for number in range(plan.processes):
            answer, sender = context.Pipe(duplex=False)
            assignment = Assignment(
                number, local, plan.backend, plan.device, plan.stretches(), plan.seconds, plan.seed
            )
            process = context.Process(
                target=decode_stretches, args=(assignment, barrier, sender), daemon=True
            )
            process.start()
            sender.close()
            at_the_end.callback(process.join)
            # Only where something went wrong here is a process left that has not ended by itself.
            at_the_end.callback(barrier.abort)
            answers.append(answer)
        done = _answers(answers)
    return [
        _rate(access, [stretches[place] for stretches in done])
        for place, (access, _) in enumerate(plan.stretches())
    ]


def _answers(answers: Sequence[Connection]) -> list[list[Stretch | None]]:
    """Return what each process says; the first that fails ends it, whoever it is."""
    waiting = dict.fromkeys(answers)
    done = []
    while waiting:
        for answer in wait(waiting):
            assert isinstance(answer, Connection)
            done.append(_answer(answer))
            del waiting[answer]
    return done


def _answer(answer: Connection) -> list[Stretch | None]:
    try:
        said: list[Stretch | None] | str = answer.recv()
    except EOFError:
        said = "it ended without a word, perhaps for lack of memory"
    if isinstance(said, str):
        raise ProbeError(
            f"A decoding process failed: {said}.", next_step="Try: leconvert probe diagnose."
        )
    return said


def _rate(access: Access, stretches: Sequence[Stretch | None]) -> DecodeRate:
    took_part = [stretch for stretch in stretches if stretch is not None]
    return DecodeRate(
        access=access,
        processes=len(took_part),
        frames=sum(stretch.frames for stretch in took_part),
        seconds=max(stretch.seconds for stretch in took_part),
        frames_per_s=sum(stretch.frames / stretch.seconds for stretch in took_part),
    )


def limit_of(rates: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the limit in frames a second: random access with the most processes."""
    random = [rate for rate in rates if rate["access"] == "random"]
    best = max(random, key=lambda rate: rate["processes"], default=None)
    return None if best is None else float(best["frames_per_s"])


# ------------------------------------------------------------------------------------------------
# What a result is held against: the decode limit, and the frames that should have come out.


_NAMED = 20


@dataclass(frozen=True, slots=True)
class KnownLimit:
    """How fast the files decode at most."""

    frames_per_s: float  # random access, all processes
    origin: str  # ``measured`` for now, or the result's file
    # Every rate as `leconvert.bench.probe.limit.DecodeRate.as_record` gives it.
    rates: Sequence[Mapping[str, Any]]

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-serialisable mapping."""
        return {
            "frames_per_s": self.frames_per_s,
            "origin": self.origin,
            "rates": [dict(rate) for rate in self.rates],
        }


def known_limit(
    options: RunOptions,
    meta: DatasetMeta,
    files: Files,
    results_dir: Path | None,
    *,
    backend: Backend,
) -> KnownLimit | None:
    """Return the limit of a run: measured now if asked for, else from a result at hand."""
    if not meta.video_keys:
        return None
    if not options.with_limit:
        return find_limit(results_dir, meta, options.decode_device) if results_dir else None
    plan = LimitPlan(
        cores(), options.limit_duration_s, backend, options.decode_device, options.seed
    )
    rates = [rate.as_record() for rate in measure_limit(files, videos_to_decode(meta), plan)]
    frames_per_s = limit_of(rates)
    return None if frames_per_s is None else KnownLimit(frames_per_s, "measured", rates)


def find_limit(folder: Path, meta: DatasetMeta, device: str) -> KnownLimit | None:
    """Return the newest limit in a folder that was measured on this host, data set and device.

    Fewer processes than cores decode less than the host could: they are no limit.
    """
    import platform

    fitting = [
        (document["started"], path.name, document["rates"])
        for path, document in read_results(folder.glob("*.json"))
        if document["kind"] == "limit"
        and document["host"]["name"] == platform.node()
        and document["dataset"]["fingerprint"] == meta.fingerprint()
        and document["options"]["decode_device"] == device
        and document["options"]["processes"] >= cores()
    ]
    if not fitting:
        return None
    _, name, rates = max(fitting, key=lambda found: found[:2])
    frames_per_s = limit_of(rates)
    return None if frames_per_s is None else KnownLimit(frames_per_s, name, rates)


def dataset_record(meta: DatasetMeta, files: Files) -> dict[str, Any]:
    """Return what is known about a dataset, with how each camera's first video is coded."""
    table = meta.episodes
    videos: dict[str, Any] = {}
    for key, camera in table.cameras.items():
        # All files of a camera are coded alike: players could not follow otherwise.
        try:
            videos[key] = _facts_of(files, camera.paths[0]) if camera.paths else None
        except LeconvertError:
            videos[key] = None
    first: Mapping[str, Any] = next((facts for facts in videos.values() if facts), {})
    return {
        "root": meta.root,
        "fingerprint": meta.fingerprint(),
        "codebase_version": str(meta.info["codebase_version"]),
        "episodes": len(table),
        "frames": int(table.length.sum()),
        "fps": meta.fps,
        "cameras": list(meta.camera_keys),
        "data_files": len(table.data_paths),
        "video_files": sum(len(camera.paths) for camera in table.cameras.values()),
        "codec": first.get("codec"),
        "gop": first.get("gop"),
        "videos": videos,
    }


def _facts_of(files: Files, path: str) -> dict[str, Any]:
    import av

    opened = files.open(path)
    try:
        if not files.is_local:
            _fetch_beginning(opened)
        with Path(opened.path).open("rb") as file:
            return video_facts(file).as_record()
    except (av.error.FFmpegError, OSError, IndexError) as error:
        raise UnreadableSourceError(f"{opened.name} is no video: {error}.") from error
    finally:
        opened.close()


def _fetch_beginning(opened: OpenFile) -> None:
    """Fetch what tells how a video is coded; a whole one may have hundreds of megabytes."""
    index = open_clip(opened, keep_index=True).index
    if index is not None:
        runs = index.byte_runs(0, min(PACKETS_LOOKED_AT, index.num_samples))
        opened.need([(start, start + length) for start, length in runs])


def failure_of(document: Mapping[str, Any]) -> ProbeError | None:
    """Return what is wrong with the frames of a result; None where nothing was found.

    Without ``--check`` unreadable frames are only counted.
    """
    check = document["check"]
    if check is None:
        return None
    if not check["samples"]:
        return ProbeError(
            f"Nothing was compared: LeRobot could load none of {check['refused_by_map']} samples.",
            path=document["dataset"]["root"],
            next_step="Convert the dataset again with leconvert; its times are exact.",
            details=check["named"][:_NAMED],
        )
    wrong, unreadable = check["wrong_frames"], check["unreadable_frames"]
    others = check["wrong_values"] + check["wrong_pad_flags"]
    in_batches = document["unreadable_frames"]
    if not (wrong or unreadable or others or in_batches):
        return None
    return ProbeError(
        f"In {check['samples']} samples compared {wrong} frames are wrong, {unreadable} cannot be "
        f"read and {others} values or pad flags are wrong; in the batches {in_batches} frames "
        "could not be read.",
        path=document["dataset"]["root"],
        next_step="See `check` in the result for the places.",
        details=check["named"][:_NAMED],
    )


# ------------------------------------------------------------------------------------------------
# The decode limit of a dataset as a result of its own.


def run_limit(
    root: str,
    *,
    data_files_root: str | None = None,
    revision: str | None = None,
    processes: int | None = None,
    duration_s: float = 10.0,
    decode_device: str = "cpu",
    seed: int = 0,
) -> dict[str, Any]:
    """Measure how fast the videos of a dataset decode.

    Returns:
        The result, as ``docs/formats/probe-result.schema.json`` describes it.
    """
    document = begin_document("limit")
    backend = choose_backend("auto", decode_device)
    files = files_at(root, revision=revision)
    meta = load_meta(files)
    if data_files_root is not None:
        files = files_at(data_files_root)
    paths = videos_to_decode(meta)
    plan = LimitPlan(processes or cores(), duration_s, backend, decode_device, seed)
    rates = [rate.as_record() for rate in measure_limit(files, paths, plan)]
    return document | {
        "limit_frames_per_s": limit_of(rates),
        "rates": rates,
        "files_decoded": len(paths),
        "decoder": {"backend": backend},
        "dataset": dataset_record(meta, files),
        "options": {
            "root": root,
            "data_files_root": data_files_root,
            "revision": revision,
            "processes": plan.processes,
            "duration_s": duration_s,
            "decode_device": decode_device,
            "seed": seed,
        },
        "host": host_record(),
        "versions": versions_record(),
    }
