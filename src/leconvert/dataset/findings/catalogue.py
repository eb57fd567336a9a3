"""Every kind of finding: its code, its severity, and its remedies.

``catalogue.json`` lists them, and ``docs/reference/findings.md`` shows them to users.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields as dataclass_fields
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from leconvert.model.values import CountedFinding, Finding
from leconvert.support.errors import UsageError
from leconvert.support.text import GET_AGAIN

DROP = "--on-bad-episode drop"
TRIM = "--on-bad-episode trim"
TASKS_FROM_EPISODES = "--tasks-from episodes"
_SHOWN_A_KIND_AND_STREAM = 20
_FURTHER = "Further findings of this kind."
# Paths, and numbers that are not part of a name.
_NUMBERS = re.compile(r"\S*/\S*|(?<![\w.])[0-9][0-9.,]*(?!\w)")


class Kind(NamedTuple):
    """A kind of finding.

    Attributes:
        code: Its stable name.
        severity: ``error``, ``warning`` or ``info``, unless the case says otherwise. An error of a
            v3.0 dataset makes LeRobot's loader raise or return wrong data. A warning costs time or
            space, or makes one of LeRobot's tools fail.
        meaning: The fault, or its effect for users, in one line.
        repairs: The flags that repair it; those that lose nothing come first. Errors of single
            episodes can always be left out with the episode (`DROP`), errors of a camera with the
            camera.
        acceptable: Whether ``--accept`` turns the error into a warning: the conversion is possible
            without the repair, and the result is as good or bad as the source.
        remedy: A remedy that loses nothing: the message names it before the flags.
            tests/unit/dataset/check tries its commands, finding by finding.
        remedy_below: Other remedies, by the beginning of the file's path; the first match counts.
    """

    code: str
    severity: str
    meaning: str
    repairs: tuple[str, ...] = ()
    acceptable: bool = False
    remedy: str | None = None
    remedy_below: Mapping[str, str] = MappingProxyType({})


def _catalogues() -> Iterable[Mapping[str, Kind]]:
    """Yield the findings of the scan in a source, and of `check` in a v3.0 dataset.

    A remedy names shared texts in braces. Such a text may name earlier ones.
    """
    listed = json.loads(Path(__file__).with_name("catalogue.json").read_bytes())
    texts = {"get_again": GET_AGAIN}
    for name, text in listed["texts"].items():
        texts[name] = text.format_map(texts)

    def kind(code: str, facts: dict[str, Any]) -> Kind:
        facts["repairs"] = tuple(facts.get("repairs", ()))
        if "remedy" in facts:
            facts["remedy"] = facts["remedy"].format_map(texts)
        if "remedy_below" in facts:
            below = facts["remedy_below"].items()
            facts["remedy_below"] = {begin: text.format_map(texts) for begin, text in below}
        return Kind(code, **facts)

    for version in ("source", "v3.0"):
        groups = listed[version].values()
        yield MappingProxyType(
            {code: kind(code, facts) for group in groups for code, facts in group.items()}
        )


SOURCE_CATALOGUE, V3_CATALOGUE = _catalogues()


def check_accepted(codes: Sequence[str]) -> None:
    """Refuse codes that cannot be accepted."""
    acceptable = [kind.code for kind in SOURCE_CATALOGUE.values() if kind.acceptable]
    for code in codes:
        kind = SOURCE_CATALOGUE.get(code)
        if kind is None:
            raise UsageError(
                f"There is no finding {code} (--accept).",
                next_step=f"The findings are {', '.join(sorted(SOURCE_CATALOGUE))}.",
            )
        if kind.severity == "error" and not kind.acceptable:
            raise UsageError(
                f"A dataset with the finding {code} cannot be converted, so --accept does "
                "not help.",
                next_step=f"Use {' or '.join(kind.repairs) or 'another copy of the dataset'}. "
                f"--accept works only for {', '.join(acceptable)}.",
            )


def found(
    code: str,
    message: str,
    *,
    episode: int | None = None,
    stream: str | None = None,
    path: str | None = None,
    severity: str | None = None,
) -> Finding:
    """Return a finding of a kind; a given severity takes precedence."""
    kind = V3_CATALOGUE[code]
    below = [text for begin, text in kind.remedy_below.items() if (path or "").startswith(begin)]
    return Finding(
        code,
        severity or kind.severity,
        message,
        episode=episode,
        stream=stream,
        path=path,
        remedy=next(iter(below), kind.remedy),
    )


def source_finding(
    code: str,
    message: str,
    *,
    stream: str | None = None,
    path: str | None = None,
    severity: str | None = None,
    remedy: str | None = None,
) -> Finding:
    """Return a finding in a source that no option decides about."""
    severity = severity or SOURCE_CATALOGUE[code].severity
    return Finding(code, severity, message, stream=stream, path=path, remedy=remedy)


def lossless_remedy(code: str, remedy: str | None = None) -> str | None:
    """Return the remedy that loses nothing, which is told before any flag; None if there is none.

    Args:
        code: The code of an error in a source.
        remedy: Its remedy: a flag, or a sentence of `check`, which itself says what loses nothing.
    """
    is_sentence = remedy is not None and not remedy.startswith("--")
    kind = SOURCE_CATALOGUE.get(code)
    return None if kind is None or is_sentence else kind.remedy


def named(text: str, root: object) -> str:
    """Return the remedy with the path of its dataset instead of ``DATASET``."""
    return text.replace(" DATASET", f" {shlex.quote(str(root))}")


def all_named[Each: Finding](findings: Iterable[Each], root: object) -> tuple[Each, ...]:
    """Return findings whose remedies name their dataset."""
    return tuple(
        replace(
            each, message=named(each.message, root), remedy=each.remedy and named(each.remedy, root)
        )
        for each in findings
    )


def all_remedies(code: str, remedy: str | None) -> str:
    """Return both in one line; empty if nothing helps."""
    return " Or ".join(filter(None, (lossless_remedy(code, remedy), remedy)))


def grouped(findings: Iterable[Finding]) -> tuple[CountedFinding, ...]:
    """Return one finding, with a count, for all that differ only in file, episode and numbers.

    A hundred thousand broken files are one fault, not a hundred thousand. Memory is bounded by the
    result.
    """
    first: dict[tuple[object, ...], Finding] = {}
    counts: Counter[tuple[object, ...]] = Counter()
    kinds: Counter[tuple[str, str, str | None]] = Counter()
    for finding in findings:
        kind = (finding.code, finding.severity, finding.stream)
        said = finding.message.replace(finding.path, "") if finding.path else finding.message
        said = _NUMBERS.sub("0", said)
        key: tuple[object, ...] = (*kind, finding.remedy, said)
        if key not in first:
            kinds[kind] += 1
            if kinds[kind] > _SHOWN_A_KIND_AND_STREAM:
                key = kind
            kept = replace(finding, message=_FURTHER) if key == kind else finding
            first.setdefault(key, kept)
        counts[key] += finding.count if isinstance(finding, CountedFinding) else 1
    return tuple(_counted(finding, counts[key]) for key, finding in first.items())


def _counted(finding: Finding, number: int) -> CountedFinding:
    if isinstance(finding, CountedFinding):
        return replace(finding, count=number)
    message = (
        f"{finding.message} The same holds for {number:,} findings in all." if number > 1 else None
    )
    fields = {each.name: getattr(finding, each.name) for each in dataclass_fields(finding)}
    return CountedFinding(**fields | {"message": message or finding.message}, count=number)
