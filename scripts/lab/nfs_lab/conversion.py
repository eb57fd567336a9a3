"""One conversion on the share: plan on one host, work on some, pack on another, and look at it."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tree_digest
from lab_kit import ScenarioFailedError, demand, wait_until

from nfs_lab.guest import INSIDE, LOOK_SECONDS, MAILBOX, Finished, Guest, GuestCommand
from nfs_lab.lab import MOUNT, NfsLab

_EVENT_SECONDS = 120.0
_FIRST_SHARD = "leconvert.run.worker:ShardWriter.write#1"
BUSY = 12
"""Exit code: another process plans or packs this run."""


def events_of(log: Path, event: str, **fields: object) -> list[dict[str, Any]]:
    """Return the events of one kind, with these fields, that an observed leconvert told so far.

    A line that is not complete yet is left out.
    """
    wanted = {"event": event, **fields}
    lines = log.read_text().splitlines(True) if log.exists() else []
    entries = [json.loads(line) for line in lines if line.endswith("\n")]
    return [entry for entry in entries if wanted.items() <= entry.items()]


class Observed:
    """leconvert under way on a host, telling what its leases do.

    Attributes:
        guest: The host.
    """

    def __init__(self, guest: Guest, command: GuestCommand, name: str) -> None:
        self.guest = guest
        self._command = command
        self._name = name

    def told(self, event: str, **fields: object) -> list[dict[str, Any]]:
        """Return the events of one kind, with these fields."""
        return events_of(self._command.events / f"{self._name}.jsonl", event, **fields)

    def wait_for(self, event: str, count: int = 1, **fields: object) -> None:
        """Wait until it told so ``count`` times.

        Raises:
            LabError: It does not in time.
        """
        wait_until(
            lambda: len(self.told(event, **fields)) >= count or self._command.ended,
            _EVENT_SECONDS,
            f"`{event}` on {self.guest.name}",
            alive=lambda: self.guest.is_on,
            look_seconds=LOOK_SECONDS,
        )
        if len(self.told(event, **fields)) < count:
            done = self._command.wait()
            raise ScenarioFailedError(
                f"leconvert on {self.guest.name} ended ({done.code}) before `{event}`:"
                f" {done.err[-600:]}"
            )

    def go_on(self) -> None:
        """Let it go on from where it halted (once its host runs)."""
        (self._command.events / f"{self._name}.go").touch()

    def finish(self, *codes: int) -> Finished:
        """Wait for its end.

        Raises:
            ScenarioFailedError: Its exit code is none of ``codes`` (0 if none are given), or it
                left a traceback.
        """
        done = self._command.wait()
        wanted = codes or (0,)
        demand(
            done.code in wanted and "Traceback" not in done.err,
            f"leconvert on {self.guest.name} ended with {done.code}, not {wanted}:"
            f" {done.err[-1500:]}",
        )
        return done


@dataclass
class Conversion:
    """One conversion on the share.

    Attributes:
        lab: The lab.
        name: Its folder on the share.
        source: The dataset, as the guests see it.
        lease_seconds: The lease time of its workers.
        batches: Batches of the plan, once there is one.
        observed: Every worker that was started, dead or alive.
    """

    lab: NfsLab
    name: str
    source: str
    lease_seconds: float = 4.0
    batches: int = 0
    observed: list[Observed] = field(default_factory=list)

    @property
    def folder(self) -> str:
        """Its folder, the same on every host."""
        return f"{MOUNT}/{self.name}"

    @property
    def work_dir(self) -> str:
        """The work dir."""
        return f"{self.folder}/work"

    def plan(self, guest: Guest, *options: str, in_place: bool = False) -> None:
        """Plan on a host, a batch an episode unless the options say otherwise.

        Args:
            guest: The host.
            options: For ``leconvert plan``.
            in_place: Convert a copy of the source on the share, at its place.
        """
        guest.shell(f"mkdir -p {self.folder}")
        if in_place:
            guest.shell(f"cp -r {self.source} {self.target(in_place=True)}")
            self.source = self.target(in_place=True)
        output = [] if in_place else ["--output", self.target()]
        cut = options or ("--episodes-per-batch", "1")
        done = self.leconvert(
            guest, "plan", "--root", self.source, *output, "--work-dir", self.work_dir, "--json",
            *cut,
        )  # fmt: skip
        self.batches = json.loads(done.out)["batches"]

    def target(self, *, in_place: bool = False) -> str:
        """The path of the result."""
        return f"{self.folder}/{'dataset' if in_place else 'out'}"

    def leconvert(self, guest: Guest, *arguments: str, codes: Sequence[int] = (0,)) -> Finished:
        """Run leconvert to its end on a host.

        Raises:
            ScenarioFailedError: Its exit code is none of ``codes``.
        """
        command = [sys.executable, "-m", "leconvert", *arguments]
        done = guest.run(command, environment=self.lab.environment())
        demand(
            done.code in codes and "Traceback" not in done.err,
            f"`leconvert {arguments[0]}` on {guest.name} ended with {done.code}:"
            f" {done.err[-1500:]}",
        )
        return done

    def work(self, guest: Guest, *, halt: str | None = None) -> Observed:
        """Start a worker on a host, and have it halt where a place is given."""
        seconds = f"--lease-seconds={self.lease_seconds}"
        return self._start(guest, halt, "work", self.work_dir, seconds, "--json")

    def work_together(self, guests: Sequence[Guest]) -> list[Observed]:
        """Start a worker on each host; none begins before all hold a batch.

        Otherwise the first to wake up does everything.
        """
        workers = [self.work(guest, halt=_FIRST_SHARD) for guest in guests]
        for worker in workers:
            worker.wait_for("halted")
        for worker in workers:
            worker.go_on()
        return workers

    def pack(self, guest: Guest, *options: str, halt: str | None = None) -> Observed:
        """Start the packer on a host, likewise."""
        return self._start(guest, halt, "pack", self.work_dir, "--json", *options)

    def pack_after_silence(self, guest: Guest) -> str:
        """Pack on a host while a silent one holds the packer's lock: one command, which waits.

        Returns:
            How long it took, and whether the user was told.

        Raises:
            ScenarioFailedError: It fails.
        """
        began = time.monotonic()
        done = self.leconvert(guest, "pack", self.work_dir)
        seconds = time.monotonic() - began
        told = "says for whom it waits" if "no sign of life" in done.err else "need not wait long"
        return f"{told}, goes on by itself and is done after {seconds:.1f} s"

    def pack_beside_a_living_packer(self, guest: Guest) -> float:
        """Demand that a second packer is refused while the first lives.

        Returns:
            Seconds after which it was.

        Raises:
            ScenarioFailedError: It is not.
        """
        began = time.monotonic()
        self.leconvert(guest, "pack", self.work_dir, codes=(BUSY,))
        return time.monotonic() - began

    def clean(self, guest: Guest) -> None:
        """Remove the finished run on a host.

        Raises:
            ScenarioFailedError: The work dir still holds files.
        """
        self.leconvert(guest, "clean", self.work_dir)
        left = guest.shell(f"find {self.work_dir} -mindepth 1 2>/dev/null || true").split()
        demand(not left, f"`clean` left {left}")

    def digest(self, guest: Guest, path: str | None = None) -> str:
        """Return the digest of the result as one host sees it."""
        command = self.lab.python(tree_digest.__file__, path or self.target())
        done = guest.run(command)
        demand(done.code == 0, f"{guest.name} cannot read the result: {done.err[-300:]}")
        return done.out.strip()

    def wait_for_published(self, count: int) -> None:
        """Wait until so many batches are published.

        Raises:
            LabError: It does not come to that.
        """
        wait_until(
            lambda: self.won().total() >= count,
            _EVENT_SECONDS,
            f"Publication number {count}",
            look_seconds=LOOK_SECONDS,
        )

    def won(self) -> Counter[int]:
        """Return how often each batch was published by those who said that they won."""
        return Counter(
            entry["batch"]
            for worker in self.observed
            for entry in worker.told("published", outcome="won")
        )

    def check_published_once(self) -> None:
        """Demand that every batch was published, and only once.

        Raises:
            ScenarioFailedError: One was not, or twice.
        """
        won = self.won()
        demand(
            won == Counter(range(self.batches)),
            f"Of {self.batches} batches these were published more or less than once: "
            f"{[batch for batch in range(self.batches) if won[batch] != 1]}",
        )

    def remove(self) -> None:
        """Free the room on the share; what a dead host held open may linger."""
        with suppress(OSError):
            self.lab.server.shell(f"rm -rf /mnt/disk/export/{self.name}")

    def _start(self, guest: Guest, halt: str | None, *arguments: str) -> Observed:
        name = f"{arguments[0]}-{len(self.observed)}-{self.name}"
        halting = [] if halt is None else ["--halt", halt]
        command = self.lab.python(
            INSIDE / "observed_leconvert.py",
            "--events", f"{MAILBOX}/events", "--name", name, *halting, "--", *arguments,
        )  # fmt: skip
        started = guest.start(command, environment=self.lab.environment())
        observed = Observed(guest, started, name)
        self.observed.append(observed)
        return observed
