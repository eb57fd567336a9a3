"""Suggests a policy with which most of the set-aside datasets convert without loss.

Each dataset is planned as a worker would plan it: with the repairs of the fleet's policy, then for
every error with the first flag that keeps every frame and value. If this gives a plan, the flags
become rules. Rules are for a finding, not for a dataset, so that they hold for later datasets too.
Finally each dataset is planned with the suggested policy itself; the suggestion counts these plans.

Without loss means: the result has every row and frame of the source, every column that a table has,
and every declared camera, since missing clips may exist elsewhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from glob import escape
from typing import Any

from leconvert.dataset.findings import DROP, TASKS_FROM_EPISODES, TRIM
from leconvert.fleet.lists import FleetDataset, Policy, PolicyRule, as_word, errors_of
from leconvert.fleet.overview import DatasetStatus, FleetStatus, message_of, next_step_of
from leconvert.fleet.work import Fleet, draft_dataset
from leconvert.model.repairs import RepairOptions
from leconvert.model.values import camera_of
from leconvert.support.errors import FindingsError, LeconvertError
from leconvert.support.flags import flags_of
from leconvert.support.parallel import parallel_map
from leconvert.support.values import dataclass
from leconvert.workdir.records import WorkDir

# Descriptions of flags that say more about the case than the flag's help.
_CHANGES = {
    "--assume-fps {fps}": "use the frames per second of the timestamps if info.json has another "
    "number",
    "--drop-feature {column}": "leave out declared features that no table contains",
    DROP: "leave out episodes without frames; the others get new numbers",
    TASKS_FROM_EPISODES: "take the task of every row from episodes.jsonl",
}
_LOSES = {
    "--drop-feature {column}": "leave out the columns that the findings name",
    "--drop-feature {camera}": "leave out the cameras that the findings name",
    DROP: "leave out damaged episodes; the others get new numbers",
    TRIM: "keep only the first frames of damaged episodes, as far as rows and frames agree; leave "
    "out an episode without such frames",
}


@dataclass(frozen=True, slots=True)
class SuggestedRule:
    """A suggested rule and its effect."""

    rule: PolicyRule  # the rule
    changes: str  # the changes that the rule makes to a dataset
    datasets: Sequence[str]  # names of the datasets that need it


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A suggested policy, and its outcome for the datasets that were set aside."""

    policy: Policy  # the rules of the fleet's policy, and the suggested ones
    # The suggested rules; the one that most datasets need comes first.
    rules: Sequence[SuggestedRule]
    converts: Sequence[str]  # names of the datasets that would convert
    stays: Sequence[DatasetStatus]  # the others, each with the first error that the policy leaves
    # Rules for the others that convert if data are left out; not in the policy.
    lossy: Sequence[SuggestedRule]

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-serialisable mapping."""
        return {
            "policy": self.policy.as_record(),
            "rules": [asdict(one) for one in self.rules],
            "converts": list(self.converts),
            "stays": [asdict(one) for one in self.stays],
            "lossy": [asdict(one) for one in self.lossy],
        }


def suggest_policy(fleet: Fleet, status: FleetStatus) -> Suggestion:
    """Return the policy with which most of the set-aside datasets convert without loss.

    The sources are read as for a dry run, and nothing is written. Datasets on the Hub are not
    downloaded for it; they stay set aside.
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
    ways = dict(zip((dataset.name for dataset in tried), parallel_map(_way, pieces), strict=True))
    rules = _rules((name, *pair) for name, way in ways.items() for pair in way or ())
    policy = Policy((*fleet.policy.rules, *(one.rule for one in rules)))
    wrong = parallel_map(_wrong, [(dataset, policy, folder) for dataset, _, folder in pieces])
    errors = {one.name: error for one, error in zip(tried, wrong, strict=True)}
    converts = {name for name, way in ways.items() if way is not None and not errors[name]}
    stays = [
        _told_anew(one, errors.get(one.name))
        for one in status.set_aside
        if one.name not in converts
    ]
    left = {name: errors_of((error or {}).get("findings") or ()) for name, error in errors.items()}
    lossy = _rules(
        (
            (name, one["code"], as_word(one["remedy"], one))
            for name, found in left.items()
            for one in found
            if all(each["remedy"] for each in found)
        ),
        _LOSES,
    )
    return Suggestion(policy, rules, sorted(converts), stays, lossy)


def _rules(
    needed: Iterable[tuple[str, str, str]], loses: Mapping[str, str] | None = None
) -> list[SuggestedRule]:
    """Return rules that give datasets the flags that they need, the most frequent first.

    Each need is a dataset's name, the code of an error, and the flag for it, as a policy writes it.
    ``loses`` tells the data that flags leave out; None if nothing is lost.
    """
    found: defaultdict[str, dict[str, None]] = defaultdict(dict)
    words: defaultdict[str, set[str]] = defaultdict(set)
    names: defaultdict[str, set[str]] = defaultdict(set)
    for name, code, word in needed:
        found[word][code] = None
        words[code].add(word)
        names[word].add(name)
    rules = []
    for word, codes in found.items():
        # A flag that leaves data out is given to named datasets only, not to one that another flag
        # would mend. The flag that drops episodes is always limited to named datasets, since bad
        # episodes may be found in others later.
        by_name = word in (DROP, TRIM) or (
            loses is not None and any(len(words[code]) > 1 for code in codes)
        )
        named = sorted(names[word])
        datasets = tuple(map(escape, named)) if by_name else ("*",)
        rule = PolicyRule((word,), datasets, tuple(sorted(codes)))
        rules.append(SuggestedRule(rule, (loses or {}).get(word) or _changes(word), named))
    return sorted(rules, key=lambda one: (-len(one.datasets), one.rule.findings))


def _wrong(dataset: FleetDataset, policy: Policy, folder: WorkDir) -> dict[str, Any] | None:
    """Return the record of the error that is left with a policy; None if there is a plan."""
    try:
        draft_dataset(dataset, policy, folder)
    except LeconvertError as error:
        return error.as_record()
    return None


def _told_anew(one: DatasetStatus, error: Mapping[str, Any] | None) -> DatasetStatus:
    if error is None:
        return one
    return replace(
        one, message=message_of(error, one.source), next_step=next_step_of(error, one.source)
    )


def _way(
    dataset: FleetDataset, policy: Policy, folder: WorkDir
) -> Sequence[tuple[str, str]] | None:
    """Return the flag that each code needs for a plan without loss; None without a plan."""
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
    """Return an error's code and a flag that repairs it without loss; None if there is none."""
    for remedy in error["remedies"]:
        if remedy["flag"] == TRIM:  # it leaves frames behind that have no rows
            continue
        keeps, of = remedy["keeps"], remedy["of"]
        is_empty = error["code"] == "phantom-feature" and camera_of(error["stream"] or "") is None
        if keeps["frames"] == of["frames"] and (keeps["features"] == of["features"] or is_empty):
            return error["code"], as_word(remedy["flag"], error)
    return None


def _changes(word: str) -> str:
    """Return what a flag changes, according to its help."""
    name = word.partition(" ")[0]
    helps = {told.name: told.help for told in flags_of(RepairOptions)}
    return _CHANGES.get(word, helps[name])
