"""Parts that `storm.py` and `storm_fleet.py` share: processes that die at random, rounds, and rows.

Processes are forked from one that has the program loaded, so that they die at work and not while
Python starts.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from benches import kit
from leconvert.cli import main as leconvert_main
from leconvert.cli import work  # loaded here, so that a forked process has it

LEASE_SECONDS = 0.5
_ = work


@dataclass
class Member:
    """One process.

    Attributes:
        role: The command that it runs, such as ``work``.
        log: The file of its output.
        continues_at: When it is continued, on the monotonic clock; None unless it is stopped.
    """

    role: str
    log: Path
    continues_at: float | None = None


class Storm(ABC):
    """Processes that are killed and replaced until their work is done.

    Attributes:
        kills: Processes killed.
        troubles: Events that should not have happened.
        members: The living processes by their ids.
        end_signal: The signal that ends the remaining members when the work is done.

    Args:
        logs: A folder for what they say.
        chance: Decides who, what and when.
        kills: Kills at most.
        pace_seconds: Mean time between two blows.
        most_seconds: It is given up after so long.
        really_exec: Start a new Python for each process.
    """

    end_signal: ClassVar[signal.Signals] = signal.SIGKILL

    def __init__(
        self,
        logs: Path,
        chance: random.Random,
        *,
        kills: int,
        pace_seconds: float,
        most_seconds: float,
        really_exec: bool = False,
    ) -> None:
        self.kills = 0
        self.troubles: list[str] = []
        self.members: dict[int, Member] = {}
        self.chance = chance
        self._logs = logs
        self._most_kills = kills
        self._pace_seconds = pace_seconds
        self._most_seconds = most_seconds
        self._really_exec = really_exec
        logs.mkdir(exist_ok=True)

    def begin(self) -> None:  # noqa: B027 - a storm may have nothing to begin
        """Start what everything else waits for."""

    @abstractmethod
    def is_over(self) -> bool:
        """Tell whether the work is done."""

    @abstractmethod
    def fill_up(self) -> None:
        """Start processes in the places of the dead."""

    @abstractmethod
    def strike(self) -> None:
        """Do harm to one process."""

    @abstractmethod
    def ended(self, member: Member, code: int) -> bool:
        """Learn how a process ended by itself; tell whether it may end like that."""

    def may_strike(self) -> bool:
        """Tell whether there is still something to harm."""
        return True

    def rage(self) -> None:
        """Run until the work is done; nobody outlives it."""
        try:
            self.begin()
            self._blow()
        finally:
            # In sessions of their own no Ctrl-C reaches them, and some of them are stopped.
            for pid in self.members:
                os.kill(pid, self.end_signal)
                os.waitpid(pid, 0)

    def _blow(self) -> None:
        deadline = time.monotonic() + self._most_seconds
        next_blow = time.monotonic()
        while not self.is_over():
            now = time.monotonic()
            if now > deadline:
                self.troubles.append(f"no end after {self._most_seconds:.0f} s: {self.members}")
                break
            self._reap()
            if self.is_over():
                break
            self.fill_up()
            self._continue_those_due(now)
            if self.kills < self._most_kills and now >= next_blow and self.may_strike():
                self.strike()
                next_blow = now + self.chance.expovariate(1 / self._pace_seconds)
            # Until the next blow, or a death: processes of other kinds end, and nothing else tells.
            time.sleep(0.002)

    def start(self, role: str, *arguments: str) -> int:
        """Start ``leconvert ROLE ARGUMENTS``; return its process id."""
        log = self._logs / f"{role}-{time.monotonic_ns()}.log"
        pid = os.fork()
        if pid == 0:
            code = 70
            try:
                os.setsid()
                output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
                os.dup2(output, 1)
                os.dup2(output, 2)
                if self._really_exec:
                    os.execv(kit.LECONVERT[0], [*kit.LECONVERT, role, *arguments])
                code = leconvert_main([role, *arguments])
                sys.stderr.flush()
            finally:
                os._exit(code)
        self.members[pid] = Member(role, log)
        return pid

    def kill(self, pid: int) -> None:
        """Kill a process; it is gone at the next look."""
        os.kill(pid, signal.SIGKILL)
        self.kills += 1

    def _reap(self) -> None:
        for pid in list(self.members):
            done, status = os.waitpid(pid, os.WNOHANG)
            if not done:
                continue
            member = self.members.pop(pid)
            code = os.waitstatus_to_exitcode(status)
            if code != -signal.SIGKILL and not self.ended(member, code):
                said = member.log.read_text(errors="replace").strip()
                self.troubles.append(f"{member.role} ended with {code}: {said[-600:]}")

    def _continue_those_due(self, now: float) -> None:
        for pid, member in self.members.items():
            if member.continues_at is not None and now >= member.continues_at:
                member.continues_at = None
                os.kill(pid, signal.SIGCONT)


def rounds_until(
    kills: int,
    seed: int,
    one_round: Callable[[random.Random, int, int], Mapping[str, Any] | None],
) -> int:
    """Let rounds follow each other until enough were killed; tell each, and return the exit code.

    Args:
        kills: How many are enough.
        seed: Each round's chance follows from it.
        one_round: Takes its chance, its number from 1, and the kills that are left. Returns a row
            with its ``kills`` and ``troubles``, whose numbers are added up; None if nothing was to
            do.
    """
    totals: Counter[str] = Counter()
    while totals["kills"] < kills:
        began = time.monotonic()
        totals["rounds"] += 1
        number = totals["rounds"]
        row = one_round(random.Random(f"{seed}/{number}"), number, kills - totals["kills"])
        if row is None:
            totals["nothing_to_do"] += 1
            continue
        totals.update({name: count for name, count in row.items() if isinstance(count, int)})
        totals["bad_rounds"] += bool(row["troubles"])
        seconds, is_good = round(time.monotonic() - began, 2), not row["troubles"]
        tell({"round": number, **row, "seconds": seconds, "ok": is_good})
    tell(dict(totals))
    return int(bool(totals["bad_rounds"]))


def header(
    script: str, arguments: Sequence[str], folder: Path, **facts: object
) -> Mapping[str, Any]:
    """Return the first row: the format is that of the script, and what it runs on."""
    name = script.removesuffix(".py").replace("_", "-")
    machine = kit.machine(script, arguments, folder)
    return {"format": f"leconvert-{name}", "version": 1, **machine, **facts}


def tell(row: Mapping[str, Any]) -> None:
    """Print a row."""
    print(json.dumps(row), flush=True)
