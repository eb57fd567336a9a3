"""The meaning of the log of a batch's leases: pure decisions, no clock, no disk.

A batch's lease log is a list of *generations*, numbered from 1. Each was claimed by one worker and
may have an end: handed back, an error, or void (its result was found wrong later). A generation
that was followed by another without an end was lost: its worker died or froze.

Leases keep workers from doing the same work. They do not decide whose result counts; the exclusive
publish of ``done`` does. So a wrong guess here wastes work and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class BatchState(StrEnum):
    """The state of a batch; derived from files, stored nowhere."""

    PENDING = "pending"
    LEASED = "leased"
    DONE = "done"
    FAILED = "failed"


class Outcome(StrEnum):
    """How a generation ended."""

    HANDED_BACK = "handed-back"
    ERROR = "error"
    VOID = "void"


class Generation(NamedTuple):
    """One claim: its number, and how it ended, or None while nothing says so."""

    number: int
    outcome: Outcome | None = None


class LeaseLog(NamedTuple):
    """All claims of a batch, ascending."""

    generations: tuple[Generation, ...] = ()  # the claims
    # Claims up to this number no longer count as attempts (the batch was released).
    reset_after: int = 0

    @property
    def latest(self) -> Generation | None:
        """The newest claim, or None."""
        return self.generations[-1] if self.generations else None

    @property
    def errors(self) -> int:
        """Attempts that ended in an error."""
        return sum(entry.outcome is Outcome.ERROR for entry in self._counted())

    @property
    def losses(self) -> int:
        """Attempts that were silently lost, and results that were voided; not the latest's own."""
        latest = self.latest
        return sum(
            entry.outcome is Outcome.VOID or (entry.outcome is None and entry is not latest)
            for entry in self._counted()
        )

    def _counted(self) -> list[Generation]:
        return [entry for entry in self.generations if entry.number > self.reset_after]


class LeaseObservation(NamedTuple):
    """The heartbeat that an observer saw last."""

    generation: int  # the claim that it belongs to
    nonce: bytes  # the heartbeat's content
    # The observer's own monotonic clock, in seconds, read right *after* this content was first
    # read. No two hosts' clocks are ever compared.
    first_seen_monotonic: float

    def expires_at(self, lease_seconds: float) -> float:
        """Return when the observer may take over, on its own clock."""
        return self.first_seen_monotonic + lease_seconds


def observe(
    previous: LeaseObservation | None, generation: int, nonce: bytes, read_finished: float
) -> LeaseObservation:
    """Return the new observation after a heartbeat was read."""
    if previous and (previous.generation, previous.nonce) == (generation, nonce):
        return previous
    return LeaseObservation(generation, nonce, read_finished)


class Limits(NamedTuple):
    """When a lease expires and when a batch is given up."""

    lease_seconds: float = 60.0  # a heartbeat that does not change for so long has stopped
    max_attempts: int = 3  # errors after which a batch is set aside
    max_losses: int = 10  # silent losses after which it is


@dataclass(frozen=True, slots=True)
class Claim:
    """The batch may be claimed, as this generation."""

    generation: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Somebody holds it; looking again before this time, on the observer's clock, is in vain."""

    until: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The batch used up its attempts."""

    errors: int
    losses: int


Decision = Claim | Wait | GiveUp


def decide(
    log: LeaseLog,
    observation: LeaseObservation | None,
    *,
    now: float,
    limits: Limits,
    holder_is_gone: bool = False,
) -> Decision:
    """Say what an observer may do with a batch that is neither done nor failed."""
    latest = log.latest
    if latest is None:
        return Claim(1)
    losses = log.losses
    if latest.outcome is None:
        if not holder_is_gone:
            if observation is None or observation.generation != latest.number:
                return Wait(until=now + limits.lease_seconds)
            expires_at = observation.expires_at(limits.lease_seconds)
            if now < expires_at:
                return Wait(until=expires_at)
        losses += latest.number > log.reset_after
    if log.errors >= limits.max_attempts or losses >= limits.max_losses:
        return GiveUp(errors=log.errors, losses=losses)
    return Claim(latest.number + 1)


def derive_state(*, done: bool, failed: bool, log: LeaseLog) -> BatchState:
    """Return what a batch is: done before failed before leased before pending.

    A late ``done`` cures ``failed``: the result is there and right.
    """
    if done:
        return BatchState.DONE
    if failed:
        return BatchState.FAILED
    latest = log.latest
    if latest is not None and latest.outcome is None:
        return BatchState.LEASED
    return BatchState.PENDING
