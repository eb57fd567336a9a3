"""The meaning of a batch's lease log: pure decisions, no clock, no disk.

A batch's lease log is a list of *generations*, numbered from 1. One worker claimed each of them,
and it may have an end: handed back, an error, or void (its result was found wrong later). A
generation without an end that is followed by another was lost: its worker died or froze.

Leases prevent workers from doing the same work. They do not decide whose result counts; the
exclusive publishing of ``done`` does. So a wrong guess here wastes work and changes nothing.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from leconvert.support.values import dataclass


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
    """One claim: its number, and how it ended; None if no end is known."""

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
        """Number of attempts that ended in an error."""
        return sum(entry.outcome is Outcome.ERROR for entry in self._counted())

    @property
    def losses(self) -> int:
        """Number of attempts that were silently lost or voided; an open latest one is left out."""
        latest = self.latest
        return sum(
            entry.outcome is Outcome.VOID or (entry.outcome is None and entry is not latest)
            for entry in self._counted()
        )

    def _counted(self) -> list[Generation]:
        return [entry for entry in self.generations if entry.number > self.reset_after]


class LeaseObservation(NamedTuple):
    """The last heartbeat that an observer saw."""

    generation: int  # its claim
    nonce: bytes  # the heartbeat's content
    # The observer's own monotonic clock, in seconds, read right *after* this content was first
    # read. Clocks of two hosts are never compared.
    first_seen_monotonic: float

    def expires_at(self, lease_seconds: float) -> float:
        """Return the time from which the observer may take over, on its own clock."""
        return self.first_seen_monotonic + lease_seconds


def observe(
    previous: LeaseObservation | None, generation: int, nonce: bytes, read_finished: float
) -> LeaseObservation:
    """Return the new observation after a heartbeat was read."""
    if previous and (previous.generation, previous.nonce) == (generation, nonce):
        return previous
    return LeaseObservation(generation, nonce, read_finished)


class Limits(NamedTuple):
    """The limits after which a lease expires and a batch is set aside."""

    lease_seconds: float = 60.0  # a heartbeat that is unchanged for this long has stopped
    max_attempts: int = 3  # errors after which a batch is set aside
    max_losses: int = 10  # silent losses after which a batch is set aside


@dataclass(frozen=True, slots=True)
class Claim:
    """The batch may be claimed, as this generation."""

    generation: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Another worker holds it; a look before this time, on the observer's clock, is useless."""

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
    """Return an observer's options for a batch that is neither done nor failed."""
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
    """Return the state of a batch: done before failed before leased before pending.

    A late ``done`` overrules ``failed``, because the result is there and right.
    """
    if done:
        return BatchState.DONE
    if failed:
        return BatchState.FAILED
    latest = log.latest
    if latest is not None and latest.outcome is None:
        return BatchState.LEASED
    return BatchState.PENDING
