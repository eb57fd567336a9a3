"""What the user allows decides what becomes of what was seen; nothing here touches a disk."""

from __future__ import annotations

import numpy as np
import pytest

from leconvert.dataset.findings import (
    SOURCE_CATALOGUE,
    Observation,
    RepeatedObservations,
    ResolvedRepairs,
    SourceFacts,
    check_accepted,
    check_dropped_features,
    resolve_repairs,
    task_map_of,
)
from leconvert.model.repairs import DroppedEpisode, RepairOptions
from leconvert.support.errors import SourceError, UsageError
from leconvert.support.text import shown

FEATURES = {
    "action": {"dtype": "float32"},
    "note": {"dtype": "string"},
    "top": {"dtype": "video"},
    "timestamp": {"dtype": "float32"},
    "index": {"dtype": "int64"},
}
TIMES = Observation("timestamps", "Times are off.", episode=2)
MISSING = Observation("missing-file", "A file is missing.", episode=1)


def settled(
    *remarks: Observation, missing: tuple[str, ...] = (), **options: object
) -> ResolvedRepairs:
    facts = SourceFacts(
        episode_index=np.arange(4),
        length=np.full(4, 10),
        features=FEATURES,
        tasks=[(0, "a"), (1, "b")],
        missing_columns=missing,
        has_episode_stats=True,
    )
    return resolve_repairs(remarks, RepairOptions(**options), facts)  # type: ignore[arg-type]


def test_an_error_stays_one_where_nothing_is_allowed() -> None:
    result = settled(TIMES, MISSING)
    assert [(f.episode, f.severity) for f in result.findings] == [(1, "error"), (2, "error")]
    assert [f.remedy for f in result.findings] == ["--on-bad-episode drop", "--retime"]
    assert not result.repairs
    assert result.kept.all()


WRONG_INDEX = Observation("global-index", "Counts from 1.")
NO_STATS = Observation("missing-stats", "Not there.", feature="action")
OF_FEATURES = [
    Observation("dtype-mismatch", "Wider.", feature="action"),
    Observation("stale-stats", "Stale.", feature="action"),
    Observation("dtype-mismatch", "Wider.", feature="index"),
]
STALE = [Observation("stale-stats", "Stale.", feature=name) for name in ("action", "timestamp")]


@pytest.mark.parametrize(
    ("remarks", "options", "severities"),
    [
        # A flag of its own comes before acceptance, and acceptance before dropping.
        ([TIMES], {"retime": True, "accept": ("timestamps",), "on_bad_episode": "drop"},
         ["repaired"]),
        ([TIMES], {"accept": ("timestamps",), "on_bad_episode": "drop"}, ["warning"]),
        ([WRONG_INDEX], {}, ["error"]),
        ([WRONG_INDEX, MISSING], {"on_bad_episode": "drop"}, ["repaired", "repaired"]),
        ([NO_STATS], {}, ["error"]),
        ([NO_STATS], {"quantiles": True}, ["repaired"]),
        (OF_FEATURES, {"drop_features": ("action",)}, ["repaired", "warning", "repaired"]),
        (STALE, {"retime": True}, ["warning", "repaired"]),
    ],
)  # fmt: skip
def test_what_options_make_of_what_was_seen(
    remarks: list[Observation], options: dict[str, object], severities: list[str]
) -> None:
    assert [f.severity for f in settled(*remarks, **options).findings] == severities  # type: ignore[arg-type]


def test_only_dropping_leaves_an_episode_out() -> None:
    assert settled(TIMES, accept=("timestamps",), on_bad_episode="drop").kept.all()
    assert not settled(TIMES, on_bad_episode="drop").kept[2]


def test_all_that_is_said_of_a_dropped_episode_is_mended_with_it() -> None:
    warning = Observation("timestamps", "Off.", episode=1, severity="warning")
    result = settled(MISSING, warning, on_bad_episode="drop")
    assert {f.severity for f in result.findings} == {"repaired"}
    assert result.repairs.dropped_episodes == (DroppedEpisode(1, "missing-file"),)
    assert result.kept.tolist() == [True, False, True, True]


def test_dropping_changes_nothing_where_no_episode_is_bad() -> None:
    assert not settled(on_bad_episode="drop").repairs


def test_a_flag_repairs_only_the_feature_that_it_names() -> None:
    phantoms = [
        Observation("phantom-feature", "No data.", feature=name) for name in ("top", "action")
    ]
    result = settled(*phantoms, drop_features=("top",))
    assert {f.remedy: f.severity for f in result.findings} == {
        None: "repaired",
        "--drop-feature action": "error",
    }


def test_statistics_are_computed_of_what_is_computed_and_of_nothing_that_is_left_out() -> None:
    assert settled(retime=True).repairs.computed_stats == ("timestamp",)
    assert settled(missing=("frame_index",)).repairs.computed_stats == ("frame_index",)
    assert settled(recompute_stats=True, drop_features=("top",)).repairs.computed_stats == (
        "action",
        "index",
        "timestamp",
    )


def test_a_name_with_spaces_is_quoted_in_what_helps() -> None:
    phantom = Observation("phantom-feature", "No data.", feature="left arm")
    assert settled(phantom).findings[0].remedy == "--drop-feature 'left arm'"


def test_nobody_is_left_and_of_many_reasons_twenty_are_shown() -> None:
    all_bad = [Observation("missing-file", "Missing.", episode=episode) for episode in range(4)]
    with pytest.raises(SourceError, match="Every episode would be left out"):
        settled(*all_bad, on_bad_episode="drop")
    bad = [
        Observation("missing-file", f"File {n} is missing.", episode=episode)
        for episode in range(4)
        for n in range(6)
    ]
    with pytest.raises(SourceError, match="Every episode would be left out") as caught:
        settled(*bad, on_bad_episode="drop")
    assert len(caught.value.details) == 21
    assert caught.value.details[-1] == "... and 4 more"


@pytest.mark.parametrize(
    ("tasks", "expected"),
    [
        ([], None),
        ([(0, "a"), (1, "b")], None),
        ([(0, "a"), (2, "b")], {0: 0, 2: 1}),
        ([(3, "a"), (5, "b"), (9, "a")], {3: 0, 5: 1, 9: 0}),
        ([(0, "a"), (0, "a")], {0: 0}),
        ([(1, "a"), (0, "b")], None),
        ([(-1, "a"), (0, "b")], {-1: 0, 0: 1}),
    ],
)
def test_tasks_are_numbered_densely_in_the_order_of_their_first_index(
    tasks: list[tuple[int, str]], expected: dict[int, int] | None
) -> None:
    assert task_map_of(tasks) == expected


def test_only_known_codes_can_be_accepted_and_only_features_dropped_that_exist() -> None:
    check_accepted(["timestamps", "frame-index", "stray-file"])
    with pytest.raises(UsageError, match="There is no finding timestamp") as caught:
        check_accepted(["timestamp"])
    assert all(code in str(caught.value.next_step) for code in SOURCE_CATALOGUE)
    with pytest.raises(UsageError, match="cannot be converted") as caught:
        check_accepted(["task-index"])
    assert "timestamps" in str(caught.value.next_step)
    check_dropped_features(["top"], list(FEATURES))
    with pytest.raises(UsageError, match="no feature bottom") as caught:
        check_dropped_features(["bottom"], [*FEATURES, *FEATURES])
    assert caught.value.next_step == "Its features are action, note, top."
    with pytest.raises(UsageError, match="has this column"):
        check_dropped_features(["timestamp"], list(FEATURES))


def test_the_same_thing_in_many_episodes_is_one_remark_with_the_first_as_example() -> None:
    early, late = RepeatedObservations(), RepeatedObservations()
    for sightings, episodes in ((late, (7, 8)), (early, (2,))):
        for episode in episodes:
            said = f"Statistics of action are stale in {episode}."
            sightings.add(Observation("stale-stats", said, episode, feature="action"))
    early.merge(late)
    [remark] = early.remarks()
    assert remark.message == (
        "Statistics of action are stale in 2. The same holds for 3 episodes in all."
    )
    assert remark.episode is None


def test_names_are_shown_so_that_a_line_stays_a_line() -> None:
    assert shown('the "left" é') == 'the "left" é'
    assert shown("a\nb\udcff") == r"'a\nb\udcff'"
    assert len(shown("x" * 1000)) == 200
    assert shown(None) == "None"


def test_rows_without_a_task_index_get_the_only_task_wherever_it_stood() -> None:
    facts = SourceFacts(
        episode_index=np.arange(2),
        length=np.full(2, 10),
        features=FEATURES,
        tasks=[(3, "a"), (5, "a")],
        missing_columns=("task_index",),
        has_episode_stats=True,
    )
    repairs = resolve_repairs([], RepairOptions(remap_tasks=True), facts).repairs
    assert repairs.task_map == {3: 0, 5: 0}
    assert repairs.computed_columns == repairs.added_columns == ("task_index",)
    assert repairs.tasks([(3, "a"), (5, "a")]) == [(0, "a")]


@pytest.mark.parametrize("feature", [None, "index"])
def test_what_no_flag_can_leave_out_has_no_remedy(feature: str | None) -> None:
    helps = ("--drop-feature",)
    undeclared = Observation("undeclared-column", "Not declared.", feature=feature, helps=helps)
    [finding] = settled(undeclared).findings
    assert (finding.severity, finding.remedy) == ("error", None)
