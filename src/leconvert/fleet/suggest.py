"""The policy with which most of the datasets that were set aside would convert, and nothing lost.

Each is planned as a worker would: what the fleet's policy allows first, then for every error the
first flag that keeps every frame and value. Where that comes to a plan, the flags become rules: for
a finding, whatever the dataset, so that they hold for the next datasets too. At last each is
planned by the policy itself, which is what the suggestion counts.

Nothing lost means: every row and frame of the source is in the result, every column that a table
has, and every camera that is declared, since clips that are absent may be somewhere else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from glob import escape
from typing import Any

from leconvert.dataset.findings import DROP, TASKS_FROM_EPISODES
from leconvert.fleet.advice import errors_of, message_of, next_step_of
from leconvert.fleet.lists import FleetDataset, Policy, PolicyRule, as_word
from leconvert.fleet.overview import DatasetStatus, FleetStatus
from leconvert.fleet.work import Fleet, draft_dataset
from leconvert.model.repairs import RepairOptions
from leconvert.model.values import camera_of
from leconvert.support.errors import FindingsError, LeconvertError
from leconvert.support.flags import flags_of
from leconvert.support.parallel import parallel_map
from leconvert.workdir.records import WorkDir

# What is said of flags whose help says less than is known of the case.
_CHANGES = {
    "--assume-fps {fps}": "take the frames a second of the timestamps, where info.json has others",
    "--drop-feature {column}": "leave out features that are declared and that no table has",
    DROP: "number the episodes anew, without those that have no frame",
    TASKS_FROM_EPISODES: "give the rows of an episode the task that episodes.jsonl lists for it",
}


@dataclass(frozen=True, slots=True)
class SuggestedRule:
    """A rule, and what it does.

    Attributes:
        rule: The rule.
        changes: What it changes about a dataset.
        datasets: Names of the datasets that need it.
    """

    rule: PolicyRule
    changes: str
    datasets: Sequence[str]


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A policy, and what becomes of the datasets that were set aside.

    Attributes:
        policy: The rules of the fleet's policy, and the suggested ones.
        rules: The suggested ones, the one first that most datasets need.
        converts: Names of the datasets that would convert.
        stays: The others, each with the first error that the policy leaves.
        stays_alike: The same, together where what helps is the same: names, why, and what helps.
    """

    policy: Policy
    rules: Sequence[SuggestedRule]
    converts: Sequence[str]
    stays: Sequence[DatasetStatus]
    stays_alike: Sequence[tuple[str, str, str]]

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-serialisable mapping."""
        return {
            "policy": self.policy.as_record(),
            "rules": [asdict(one) for one in self.rules],
            "converts": list(self.converts),
            "stays": [asdict(one) for one in self.stays],
        }


def suggest_policy(fleet: Fleet, status: FleetStatus) -> Suggestion:
    """Return the policy with which most of what was set aside converts, and nothing is lost.

    The sources are read as for a dry run, and nothing is written. Datasets on the Hub are not
    fetched for it: they stay set aside.
    """
    known = {dataset.name: dataset for dataset in fleet.datasets}
    tried = [
        known[one.name]
        for one in status.set_aside
        if one.error == FindingsError.__name__ and not known[one.name].needs_scratch
    ]
    folders = [fleet.work_dir.dataset(dataset.name) for dataset in tried]
    pieces = [
        (dataset, fleet.policy, folder) for dataset, folder in zip(tried, folders, strict=True)
    ]
    needed: defaultdict[tuple[str, bool], dict[str, set[str]]] = defaultdict(dict)
    ways = dict(zip((dataset.name for dataset in tried), parallel_map(_way, pieces), strict=True))
    for name, way in ways.items():
        for code, word in way or ():
            # Where episodes may be left out, a bad one that is found later would be, too.
            needed[word, word == DROP].setdefault(code, set()).add(name)
    rules = [
        SuggestedRule(
            PolicyRule(
                (word,),
                tuple(map(escape, sorted(set().union(*codes.values())))) if by_name else ("*",),
                tuple(sorted(codes)),
            ),
            _changes(word),
            sorted(set().union(*codes.values())),
        )
        for (word, by_name), codes in needed.items()
    ]
    rules.sort(key=lambda one: (-len(one.datasets), one.rule.findings))
    policy = Policy((*fleet.policy.rules, *(one.rule for one in rules)))
    wrong = parallel_map(_wrong, [(dataset, policy, folder) for dataset, _, folder in pieces])
    errors = {one.name: error for one, error in zip(tried, wrong, strict=True)}
    converts = sorted(name for name, way in ways.items() if way is not None and not errors[name])
    stays = [
        _told_anew(one, errors.get(one.name))
        for one in status.set_aside
        if one.name not in set(converts)
    ]
    alike = replace(status, datasets=stays).alike(most=3)
    return Suggestion(policy, rules, converts, stays, alike)


def _wrong(dataset: FleetDataset, policy: Policy, folder: WorkDir) -> dict[str, Any] | None:
    """Return the record of the error that is left with a policy; None where a plan comes out."""
    try:
        draft_dataset(dataset, policy, folder)
    except LeconvertError as error:
        return error.as_record()
    return None


def _told_anew(one: DatasetStatus, error: Mapping[str, Any] | None) -> DatasetStatus:
    if error is None:
        return one
    return replace(one, message=message_of(error, one.source), next_step=next_step_of(error))


def _way(
    dataset: FleetDataset, policy: Policy, folder: WorkDir
) -> Sequence[tuple[str, str]] | None:
    """Return which flag each code needs, as a policy has it, for a plan that loses nothing."""
    way: dict[tuple[str, str], None] = {}
    frames: int | None = None
    while True:
        rules = [PolicyRule((word,), findings=(code,)) for code, word in way]
        try:
            _, plan = draft_dataset(dataset, Policy((*policy.rules, *rules)), folder)
        except FindingsError as error:
            errors = errors_of(error.findings)
            found = [_lossless(one) for one in errors]
            if not all(found) or way.keys() >= set(found):
                return None
            frames = frames or max(one["remedies"][0]["of"]["frames"] for one in errors)
            way |= dict.fromkeys(pair for pair in found if pair is not None)
        except LeconvertError:
            return None
        else:
            return tuple(way) if frames in (None, plan.frames) else None


def _lossless(error: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return an error's code, and the flag that repairs it and loses nothing; None for none."""
    for remedy in error["remedies"]:
        keeps, of = remedy["keeps"], remedy["of"]
        is_empty = error["code"] == "phantom-feature" and camera_of(error["stream"] or "") is None
        if keeps["frames"] == of["frames"] and (keeps["features"] == of["features"] or is_empty):
            return error["code"], as_word(remedy["flag"], error)
    return None


def _changes(word: str) -> str:
    """Return what a flag changes, as its help says."""
    name = word.partition(" ")[0]
    helps = {told.name: told.help for told in flags_of(RepairOptions)}
    return _CHANGES.get(word, helps[name])
