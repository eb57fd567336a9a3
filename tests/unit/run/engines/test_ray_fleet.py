"""Which workers a cluster should have, whatever happens to its nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from leconvert.run.engines.ray import Fleet, Limits

if TYPE_CHECKING:
    from conftest import TurnedClock as Clock

A, B, C = ("a", "b", "c")


def fleet_of(clock: Clock, total: int, per_node: int | None) -> Fleet:
    return Fleet(Limits(total, per_node, node_wait_seconds=60.0), clock=clock)


def nodes(*ids: str) -> dict[str, str]:
    return {one: f"host-{one}" for one in ids}


def started_on(fleet: Fleet) -> list[str | None]:
    return [place.node for place in fleet.due()]


def test_every_node_gets_its_share_and_a_node_that_joins_too(clock: Clock) -> None:
    fleet = fleet_of(clock, 100, 2)
    assert fleet.see_nodes(nodes(A, B)) == []
    assert sorted(map(str, started_on(fleet))) == [A, A, B, B]
    fleet.see_nodes(nodes(A, B, C))
    assert started_on(fleet) == [C, C]
    assert started_on(fleet) == []
    assert fleet.running() == 6


def test_no_more_than_the_total_start_and_nodes_are_filled_evenly(clock: Clock) -> None:
    fleet = fleet_of(clock, 4, 2)
    fleet.see_nodes(nodes(A, B, C))
    assert sorted(map(str, started_on(fleet))) == [A, A, B, C]


def test_the_workers_of_a_lost_node_start_where_there_is_room(clock: Clock) -> None:
    fleet = fleet_of(clock, 4, 2)
    fleet.see_nodes(nodes(A, B, C))
    on_b = next(place.number for place in fleet.due() if place.node == B)
    assert fleet.see_nodes(nodes(A, C)) == [on_b]
    assert started_on(fleet) == [C]
    fleet.see_nodes(nodes(A, C))
    assert started_on(fleet) == []
    assert fleet.running() == 4


def test_a_loss_that_is_heard_before_the_nodes_end_is_tried_once_and_moved(clock: Clock) -> None:
    fleet = fleet_of(clock, 1, 1)
    fleet.see_nodes(nodes(A))
    (place,) = fleet.due()
    fleet.lost(place.number)
    assert (fleet.running(), started_on(fleet)) == (1, [])
    assert fleet.see_nodes(nodes(B)) == []  # nobody runs there any more
    assert started_on(fleet) == [B]
    assert fleet.failures() == []


def test_without_a_limit_a_node_ray_decides_and_losses_are_replaced(clock: Clock) -> None:
    fleet = fleet_of(clock, 3, None)
    fleet.see_nodes(nodes(A))
    places = fleet.due()
    assert [place.node for place in places] == [None, None, None]
    assert fleet.see_nodes(nodes(B)) == []
    fleet.lost(places[1].number)
    assert fleet.due() == []
    clock.seconds += 2.0
    (again,) = fleet.due()
    assert (again.number, again.tries) == (places[1].number, 2)


def test_a_worker_that_finds_nothing_left_ends_the_search_for_more(clock: Clock) -> None:
    fleet = fleet_of(clock, 10, 1)
    fleet.see_nodes(nodes(A, B))
    first, second = fleet.due()
    fleet.ended(first.number, 0, "host-a", "Did 3 batches.")
    assert fleet.running() == 1
    fleet.lost(second.number)
    fleet.see_nodes(nodes(A, B, C))
    clock.seconds += 100.0
    assert (fleet.running(), fleet.due(), fleet.failures()) == (0, [], [])


@pytest.mark.parametrize("code", [130, -15])
def test_a_worker_that_handed_back_is_not_replaced(clock: Clock, code: int) -> None:
    fleet = fleet_of(clock, 2, 1)
    fleet.see_nodes(nodes(A, B))
    first, _ = fleet.due()
    fleet.ended(first.number, code, "host-a", "interrupted")
    clock.seconds += 100.0
    fleet.see_nodes(nodes(A, B, C))
    assert (fleet.running(), fleet.due(), fleet.failures()) == (1, [], [])


def test_a_worker_that_fails_is_started_again_twice_with_growing_pauses(clock: Clock) -> None:
    fleet = fleet_of(clock, 1, 1)
    fleet.see_nodes(nodes(A))
    for pause in (5.0, 10.0):
        (place,) = fleet.due()
        fleet.ended(place.number, 11, "host-a", "disk full")
        clock.seconds += pause - 0.1
        assert (fleet.running(), fleet.due()) == (1, [])
        clock.seconds += 0.2
    (place,) = fleet.due()
    fleet.ended(place.number, -9, "host-a", "no output")
    clock.seconds += 1000.0
    fleet.see_nodes(nodes(A))
    assert (fleet.running(), fleet.due()) == (0, [])
    assert fleet.failures() == [
        "worker on host-a ended with code 11: disk full",
        "worker on host-a ended with code 11: disk full",
        "worker on host-a was killed by signal 9: no output (not started again after 3 failures)",
    ]


def test_a_place_that_was_given_up_frees_its_worker_for_another_node(clock: Clock) -> None:
    fleet = fleet_of(clock, 1, 1)
    fleet.see_nodes(nodes(A))
    for _ in range(3):
        (place,) = fleet.due()
        fleet.failed(place.number, "it cannot be started")
        clock.seconds += 60.0
    fleet.see_nodes(nodes(A, B))
    assert started_on(fleet) == [B]


def test_a_failure_after_long_good_work_counts_as_the_first(clock: Clock) -> None:
    fleet = fleet_of(clock, 1, 1)
    fleet.see_nodes(nodes(A))
    for _ in range(5):
        (place,) = fleet.due()
        clock.seconds += 700.0
        fleet.failed(place.number, "it crashed")
        clock.seconds += 6.0
    assert place.failures == 1
    assert fleet.running() == 1


def test_only_the_last_failures_are_told_apart(clock: Clock) -> None:
    fleet = fleet_of(clock, 12, 12)
    fleet.see_nodes(nodes(A))
    for place in fleet.due():
        fleet.failed(place.number, f"failure {place.number}")
    assert fleet.failures() == ["2 more failed before", *(f"failure {n}" for n in range(3, 13))]


def test_a_cluster_without_a_node_is_waited_for_but_not_for_ever(clock: Clock) -> None:
    fleet = fleet_of(clock, 2, 1)
    fleet.see_nodes(nodes(A))
    assert len(fleet.due()) == 1
    assert len(fleet.see_nodes({})) == 1
    clock.seconds += 59.0
    assert (fleet.running(), fleet.is_hopeless) == (1, False)
    clock.seconds += 2.0
    assert fleet.is_hopeless
    fleet.see_nodes(nodes(B))
    assert (fleet.is_hopeless, started_on(fleet)) == (False, [B])
