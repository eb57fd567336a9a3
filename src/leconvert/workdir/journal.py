"""How far a run's packer has come: one record a packer, the highest number counts.

    journal/0001.json    written and replaced by the first packer only
    journal/0002.json    comes into being by an exclusive link when another packer takes over

A packer that was frozen and comes back can rewrite its own record, which nobody reads any more; so
it can never undo what its successor noted.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from leconvert.support.errors import BusyError, LeconvertError, WorkDirError
from leconvert.support.storage_errors import storage_errors
from leconvert.workdir.fs import (
    LOCAL,
    AlreadyPublishedError,
    FileSystem,
    publish_exclusively,
    write_durably,
)
from leconvert.workdir.records import RunPaths, encode_record, read_record

JOURNAL_VERSION = 1
_RECORD = re.compile(r"([0-9]{4,})\.json\Z")


class PackStep(StrEnum):
    """How far packing has come."""

    PACKING = "packing"
    SWAPPING = "swapping"
    SWAPPED = "swapped"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class JournalState:
    """What the newest packer noted.

    Attributes:
        generation: The packer's number, from 1; 0 if there was none.
        step: How far it came.
        swap: Target and old folder of a swap that was begun, absolute paths, or None.
        notes: What else the packer wants its successor to know, JSON-serialisable.
        host: Where it ran; ``?`` where its record does not say.
        pid: Its process there, or 0.
        times: When it came to each step, by its host's wall clock, ISO 8601 in UTC.
    """

    generation: int = 0
    step: PackStep = PackStep.PACKING
    swap: Mapping[str, Any] | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)
    host: str = "?"
    pid: int = 0
    times: Mapping[str, Any] = field(default_factory=dict)


class Journal:
    """The journal of one run.

    Guaranteed: each generation has one packer, and what ``write`` wrote is on the disk. Not
    guaranteed: that the packer of an older generation knows that it was superseded; ``write`` says
    so when it sees it.
    """

    def __init__(
        self,
        run: RunPaths,
        run_id: str,
        *,
        fs: FileSystem = LOCAL,
        randomness: Callable[[int], bytes] = os.urandom,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.run = run
        self.run_id = run_id
        self.fs = fs
        self.generation = 0
        self._randomness = randomness
        self._nonce = randomness(8).hex()
        self._now = now
        self._times: dict[str, str] = {}

    def read(self) -> JournalState:
        """Return what the newest packer noted."""
        generations = self.generations()
        return self._read(generations[-1]) if generations else JournalState()

    def last_swap(self) -> Mapping[str, Any] | None:
        """Return the swap that a packer noted last; None where none ever began one.

        A packer that was superseded in the moment in which it wrote noted it in a record that is no
        longer the newest.
        """
        swaps = (self._read(generation).swap for generation in reversed(self.generations()))
        return next((swap for swap in swaps if swap is not None), None)

    def history(self) -> list[JournalState]:
        """Return what every packer noted, the oldest first; what cannot be read is left out."""
        states = []
        for generation in self.generations():
            with suppress(OSError, LeconvertError):  # an older packer's, which nobody goes by
                states.append(self._read(generation))
        return states

    def _read(self, generation: int) -> JournalState:
        path = self.run.journal_record(generation)
        record = read_record(
            path, "journal", version=JOURNAL_VERSION, run_id=self.run_id, fs=self.fs
        )
        try:
            step = PackStep(record.get("step", ""))
        except ValueError as error:
            raise WorkDirError(
                f"{path} names a step that this program does not know.",
                path=str(path),
                next_step="Use the leconvert version that wrote it.",
            ) from error
        pid, times = record.get("pid"), record.get("times")
        return JournalState(
            generation,
            step,
            record.get("swap"),
            record.get("notes") or {},
            host=str(record.get("host") or "?"),
            pid=pid if isinstance(pid, int) else 0,
            times=times if isinstance(times, Mapping) else {},
        )

    def begin(self) -> JournalState:
        """Become the newest packer, with what the last one noted.

        Call it under the packer's lock, once.
        """
        state = self.read()
        generation = state.generation + 1
        path = self.run.journal_record(generation)
        source = path.with_name(f".{path.name}.{self._nonce}")
        self._times = {"began": self._wall_clock()}
        raw = self._encode(state.step, state.swap, state.notes, generation)
        write_durably(source, raw, fs=self.fs, randomness=self._randomness)
        try:
            publish_exclusively(source, path, fs=self.fs)
        except AlreadyPublishedError:
            raise self._superseded(generation) from None
        finally:
            with suppress(OSError):
                self.fs.remove_file(source)
        self.generation = generation
        return JournalState(generation, state.step, state.swap, state.notes)

    def write(
        self,
        step: PackStep,
        *,
        swap: Mapping[str, Any] | None = None,
        notes: Mapping[str, Any] | None = None,
    ) -> None:
        """Note how far this packer came; what is not given stays as it was."""
        if self.generation == 0:
            raise RuntimeError("only a packer that began may write the journal")
        before = self.read()
        if before.generation != self.generation:
            raise self._superseded(before.generation)
        self._times.setdefault(step.value, self._wall_clock())
        raw = self._encode(
            step,
            before.swap if swap is None else swap,
            before.notes if notes is None else notes,
            self.generation,
        )
        write_durably(
            self.run.journal_record(self.generation), raw, fs=self.fs, randomness=self._randomness
        )

    def _encode(
        self,
        step: PackStep,
        swap: Mapping[str, Any] | None,
        notes: Mapping[str, Any],
        generation: int,
    ) -> bytes:
        fields = {
            "generation": generation,
            "nonce": self._nonce,
            "step": step.value,
            "swap": swap,
            "notes": notes,
            "host": os.uname().nodename,
            "pid": os.getpid(),
            "times": self._times,
        }
        return encode_record("journal", JOURNAL_VERSION, self.run_id, fields)

    def generations(self) -> list[int]:
        """Return the numbers of all packers that ever began, ascending."""
        try:
            with storage_errors(self.run.journal):
                names = self.fs.list_names(self.run.journal)
        except FileNotFoundError:
            return []
        return sorted(int(found[1]) for name in names if (found := _RECORD.match(name)))

    def _wall_clock(self) -> str:
        return self._now().astimezone(UTC).isoformat(timespec="milliseconds")

    def _superseded(self, generation: int) -> BusyError:
        path: Path = self.run.journal_record(generation)
        return BusyError(
            f"Another packer (number {generation}) took over this run: see {path}.",
            path=str(path),
            next_step="Let it finish; `leconvert status` shows how far it is.",
        )
