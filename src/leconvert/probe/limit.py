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

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

from leconvert.errors import ProbeError
from leconvert.probe.decode_worker import (
    ACCESSES,
    Access,
    Assignment,
    Stretch,
    decode_stretches,
)
from leconvert.probe.files import Files
from leconvert.probe.metadata import DatasetMeta

__all__ = ["DecodeRate", "LimitPlan", "limit_of", "measure_limit", "videos_to_decode"]

# Each open decoder costs memory in each process.
_MOST_FILES = 48


@dataclass(frozen=True, slots=True)
class LimitPlan:
    """How the limit is measured.

    Attributes:
        processes: How many decode at once; one process is measured too.
        seconds: Length of each of the stretches.
        backend: ``torchcodec`` or ``pyav``.
        device: What decodes.
        seed: Of random access.
    """

    processes: int
    seconds: float
    backend: str
    device: str = "cpu"
    seed: int = 0

    def stretches(self) -> list[tuple[Access, int]]:
        """Return access and number of processes of each stretch."""
        numbers = sorted({1, self.processes})
        return [(access, number) for number in numbers for access in ACCESSES]


@dataclass(frozen=True, slots=True)
class DecodeRate:
    """How fast one way of decoding is.

    Attributes:
        access: ``sequential`` or ``random``.
        processes: Processes that decoded.
        frames: Frames of all of them.
        seconds: The longest of their times.
        frames_per_s: Sum of their rates.
    """

    access: Access
    processes: int
    frames: int
    seconds: float
    frames_per_s: float

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-serialisable mapping."""
        return asdict(self)


def videos_to_decode(meta: DatasetMeta, most: int = _MOST_FILES) -> list[str]:
    """Return video files, relative to the dataset: of every camera in turn, spread over its files.

    Raises:
        ProbeError: The dataset has no videos.
    """
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

    Raises:
        ProbeError: A process could not decode.
        UnreadableSourceError: A file cannot be fetched.
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
