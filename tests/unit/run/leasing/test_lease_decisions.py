"""The pure part: what a lease log and a heartbeat allow."""

from __future__ import annotations

import pytest

from leconvert.run.leasing.state import (
    BatchState,
    Claim,
    Generation,
    GiveUp,
    LeaseLog,
    LeaseObservation,
    Limits,
    Outcome,
    Wait,
    decide,
    derive_state,
    observe,
)

LIMITS = Limits(lease_seconds=60, max_attempts=3, max_losses=10)


def log(*outcomes: Outcome | None, reset_after: int = 0) -> LeaseLog:
    return LeaseLog(
        tuple(Generation(number, end) for number, end in enumerate(outcomes, 1)), reset_after
    )


def seen(number: int, since: float) -> LeaseObservation:
    return LeaseObservation(number, b"n", since)


ERROR, VOID, BACK = Outcome.ERROR, Outcome.VOID, Outcome.HANDED_BACK


@pytest.mark.parametrize(
    ("entries", "observed", "now", "expected"),
    [
        (LeaseLog(), None, 0, Claim(1)),
        # A claim that was never observed must be waited for.
        (log(None), None, 5, Wait(until=65)),
        (log(None), seen(1, 10), 69.9, Wait(70)),
        (log(None), seen(1, 10), 70, Claim(2)),
        # An observation of an older claim says nothing about the newest.
        (log(None, None), seen(1, 0), 1000, Wait(until=1060)),
        (log(*[BACK] * 50), None, 0, Claim(51)),
        # Errors and losses count apart; the third error and the tenth loss give the batch up.
        (log(*[None] * 9, ERROR, ERROR), None, 0, Claim(12)),
        (log(ERROR, BACK, ERROR, ERROR), None, 0, GiveUp(errors=3, losses=0)),
        (log(*[None] * 10), seen(10, 0), 59, Wait(60)),
        (log(*[None] * 10), seen(10, 0), 60, GiveUp(errors=0, losses=10)),
        # So that a bad disk ends.
        (log(*[VOID] * 10), None, 0, GiveUp(errors=0, losses=10)),
        (log(*[ERROR] * 3, reset_after=3), None, 0, Claim(4)),
        (log(*[ERROR] * 6, reset_after=3), None, 0, GiveUp(errors=3, losses=0)),
    ],
)
def test_what_a_log_and_an_observation_allow(
    entries: LeaseLog, observed: LeaseObservation | None, now: float, expected: object
) -> None:
    assert decide(entries, observed, now=now, limits=LIMITS) == expected


def test_a_holder_that_is_certainly_gone_needs_no_waiting() -> None:
    assert decide(log(None), None, now=0, limits=LIMITS, holder_is_gone=True) == Claim(2)


def test_a_new_nonce_or_claim_starts_the_time_anew_and_the_same_one_does_not() -> None:
    first = observe(None, 1, b"a", 10)
    assert observe(first, 1, b"a", 20) is first
    assert observe(first, 1, b"b", 20).first_seen_monotonic == 20
    assert observe(first, 2, b"a", 20).first_seen_monotonic == 20


@pytest.mark.parametrize(
    ("reset_after", "expected"), [(1, Claim(3)), (2, Claim(3)), (0, GiveUp(errors=0, losses=2))]
)
def test_a_silent_holder_counts_unless_its_claim_was_released_with_the_others(
    reset_after: int, expected: object
) -> None:
    limits = Limits(lease_seconds=60, max_attempts=3, max_losses=2 - (reset_after == 2))
    silent = log(None, None, reset_after=reset_after)
    seen = LeaseObservation(2, b"n", 0)
    assert decide(silent, seen, now=60, limits=limits) == expected


@pytest.mark.parametrize(
    ("done", "failed", "entries", "state"),
    [
        (True, True, log(None), BatchState.DONE),
        (False, True, log(None), BatchState.FAILED),
        (False, False, log(Outcome.ERROR, None), BatchState.LEASED),
        (False, False, log(None, Outcome.ERROR), BatchState.PENDING),
        (False, False, log(), BatchState.PENDING),
    ],
)
def test_done_beats_failed_beats_leased_beats_pending(
    done: bool, failed: bool, entries: LeaseLog, state: BatchState
) -> None:
    assert derive_state(done=done, failed=failed, log=entries) is state
