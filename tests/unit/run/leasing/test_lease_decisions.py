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


def test_a_batch_without_claims_may_be_claimed() -> None:
    assert decide(LeaseLog(), None, now=0, limits=LIMITS) == Claim(1)


def test_a_claim_that_was_never_observed_must_be_waited_for() -> None:
    assert decide(log(None), None, now=5, limits=LIMITS) == Wait(until=65)


@pytest.mark.parametrize(("now", "expected"), [(69.9, Wait(70)), (70, Claim(2)), (1e9, Claim(2))])
def test_a_claim_expires_when_its_heartbeat_stood_still_for_the_lease(
    now: float, expected: object
) -> None:
    seen = LeaseObservation(1, b"n", 10)
    assert decide(log(None), seen, now=now, limits=LIMITS) == expected


def test_an_observation_of_an_older_claim_says_nothing_about_the_newest() -> None:
    seen = LeaseObservation(1, b"n", 0)
    assert decide(log(None, None), seen, now=1000, limits=LIMITS) == Wait(until=1060)


def test_a_new_nonce_or_claim_starts_the_time_anew_and_the_same_one_does_not() -> None:
    first = observe(None, 1, b"a", 10)
    assert observe(first, 1, b"a", 20) is first
    assert observe(first, 1, b"b", 20).first_seen_monotonic == 20
    assert observe(first, 2, b"a", 20).first_seen_monotonic == 20


def test_a_holder_that_is_certainly_gone_needs_no_waiting() -> None:
    assert decide(log(None), None, now=0, limits=LIMITS, holder_is_gone=True) == Claim(2)


def test_handed_back_claims_never_use_up_attempts() -> None:
    many = log(*[Outcome.HANDED_BACK] * 50)
    assert decide(many, None, now=0, limits=LIMITS) == Claim(51)


def test_errors_and_silent_losses_are_counted_apart() -> None:
    mixed = log(*[None] * 9, Outcome.ERROR, Outcome.ERROR)
    assert (mixed.errors, mixed.losses) == (2, 9)
    assert decide(mixed, None, now=0, limits=LIMITS) == Claim(12)


def test_the_third_error_gives_the_batch_up() -> None:
    used_up = log(Outcome.ERROR, Outcome.HANDED_BACK, Outcome.ERROR, Outcome.ERROR)
    assert decide(used_up, None, now=0, limits=LIMITS) == GiveUp(errors=3, losses=0)


def test_the_tenth_loss_gives_the_batch_up_only_once_it_is_certain() -> None:
    ten = log(*[None] * 10)
    seen = LeaseObservation(10, b"n", 0)
    assert decide(ten, seen, now=59, limits=LIMITS) == Wait(60)
    assert decide(ten, seen, now=60, limits=LIMITS) == GiveUp(errors=0, losses=10)


def test_voided_results_count_as_losses_so_that_a_bad_disk_ends() -> None:
    voided = log(*[Outcome.VOID] * 10)
    assert decide(voided, None, now=0, limits=LIMITS) == GiveUp(errors=0, losses=10)


def test_a_released_batch_starts_with_a_clean_slate() -> None:
    released = log(*[Outcome.ERROR] * 3, reset_after=3)
    assert decide(released, None, now=0, limits=LIMITS) == Claim(4)
    again = log(*[Outcome.ERROR] * 6, reset_after=3)
    assert decide(again, None, now=0, limits=LIMITS) == GiveUp(errors=3, losses=0)


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
