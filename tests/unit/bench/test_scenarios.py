"""The named set-ups of the benchmark."""

from __future__ import annotations

import pytest

from leconvert.bench.options import SCENARIOS, parse_scenarios
from leconvert.support.errors import UsageError


def test_the_five_scenarios_are_sent_in_this_order() -> None:
    assert list(SCENARIOS) == [
        "mmap_local",
        "mmap_local_maxworkers",
        "stream_hub",
        "stream_bucket",
        "stream_bucket_2node",
    ]
    assert [(s.loader, s.source, s.resources.nodes) for s in SCENARIOS.values()] == [
        ("map", "local", 1),
        ("map", "local", 1),
        ("stream", "hub", 1),
        ("stream", "bucket", 1),
        ("stream", "bucket", 2),
    ]


@pytest.mark.parametrize(
    ("cores", "cameras", "workers"), [(48, 3, 16), (8, 3, 2), (2, 3, 1), (8, 0, 8)]
)
def test_the_most_workers_are_cores_over_cameras(cores: int, cameras: int, workers: int) -> None:
    scenario = SCENARIOS["mmap_local_maxworkers"]
    assert scenario.num_workers(cores=cores, cameras=cameras) == workers


def test_other_scenarios_have_workers_of_their_own_whatever_the_machine() -> None:
    assert {
        s.num_workers(cores=cores, cameras=3)
        for s in SCENARIOS.values()
        if s.workers is not None
        for cores in (2, 64)
    } == {4}


def test_a_list_keeps_its_order_and_takes_hyphens_and_spaces() -> None:
    named = parse_scenarios("stream-hub, mmap_local,")
    assert [scenario.name for scenario in named] == ["stream_hub", "mmap_local"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("stream_moon", "no scenario stream_moon"),
        (",", "No scenario is named"),
        ("mmap_local,mmap-local", "named twice"),
    ],
)
def test_a_list_that_makes_no_sense_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_scenarios(text)
