"""Findings, repairs, what was proven, and how fast the result loads."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping
from typing import Any

from leconvert.model import Finding
from leconvert.report.markup import Content, Markup, element
from leconvert.report.parts import MOST_ROWS, facts, folded, name, note, section, table
from leconvert.report.values import Story, StoryState
from leconvert.text import count, duration

__all__ = ["findings_section", "loading_section", "verification_section"]

_NO_PROOF = {
    StoryState.UNFINISHED: "It has not come to that: the result is compared when it is whole.",
    StoryState.TO_PACK: "It has not come to that: the packer compares the result.",
    StoryState.FAILED: "It has not come to that: the result is compared when it is whole.",
}
_SEVERITIES = ("error", "repaired", "warning", "info")
_COUNTED = {
    "files": "Files",
    "episodes": "Episodes",
    "rows": "Rows",
    "video_frames": "Camera frames",
}


def findings_section(story: Story) -> Markup:
    """Return what the scan found and what was repaired."""
    parts: list[Content] = []
    if story.findings is None:
        parts.append(note("What the scan found is recorded in the work dir, which is not here."))
    elif not story.findings:
        parts.append(element("p", "The scan found nothing wrong with the source."))
    else:
        parts.append(_finding_kinds(story.findings))
        rows = [
            [f.code, f.severity, "" if f.episode is None else f"{f.episode:,}",
             name(f.stream) if f.stream else "", f.message]
            for f in sorted(story.findings, key=_weight)
        ]  # fmt: skip
        head = ["Finding", "Severity", "Episode", "Stream", "What was seen"]
        each = table("Every finding", head, rows, numbers=[2], long=[4], most=MOST_ROWS)
        parts.append(folded(f"Every finding ({len(story.findings):,})", each))
    parts.append(element("h3", "Repairs"))
    changes = story.repairs.summary()
    if not changes:
        parts.append(element("p", "Nothing was changed beside the format."))
    else:
        parts.append(element("ul", [element("li", change) for change in changes]))
        parts.append(_repairs(story))
    return section("findings", "Findings and repairs", parts)


def _weight(finding: Finding) -> tuple[int, str, int]:
    known = finding.severity in _SEVERITIES
    rank = _SEVERITIES.index(finding.severity) if known else len(_SEVERITIES)
    return rank, finding.code, -1 if finding.episode is None else finding.episode


def _finding_kinds(findings: Any) -> Markup:
    kinds: dict[tuple[str, str], list[Finding]] = {}
    for finding in sorted(findings, key=_weight):
        kinds.setdefault((finding.code, finding.severity), []).append(finding)
    rows = [
        [code, severity, f"{len(own):,}", own[0].message, own[0].remedy or ""]
        for (code, severity), own in kinds.items()
    ]
    head = ["Finding", "Severity", "Times", "The first", "What helps"]
    return table("What the scan found, by kind", head, rows, numbers=[2], long=[3, 4])


def _repairs(story: Story) -> Content:
    repairs = story.repairs
    parts: list[Content] = []
    if repairs.dropped_episodes:
        why = Counter(entry.code for entry in repairs.dropped_episodes)
        reasons = ", ".join(f"{number:,} for {code}" for code, number in sorted(why.items()))
        rows = [[f"{entry.episode:,}", entry.code] for entry in repairs.dropped_episodes]
        each = table(f"Episodes left out: {reasons}", ["Episode", "Why"], rows, most=MOST_ROWS)
        parts.append(folded("Episodes left out", each))
    if repairs.task_map:
        moved = [[old, new] for old, new in sorted(repairs.task_map.items())]
        each = table("Task indices", ["Before", "After"], moved, most=MOST_ROWS)
        parts.append(folded("Tasks numbered anew", each))
    if repairs.computed_stats:
        names = [element("li", name(feature)) for feature in repairs.computed_stats]
        parts.append(folded("Statistics computed from the data", element("ul", names)))
    return parts


def verification_section(story: Story) -> Markup:
    """Return what was proven before the result took its place."""
    proof = story.verification
    if proof is None:
        words = (
            f"leconvert verify {shlex.quote(story.target)} --source SOURCE --bytes"
            if story.state is StoryState.RESULT_ONLY
            else None
        )
        parts: list[Content] = [
            element("p", _NO_PROOF.get(story.state, "No verification is on record.")),
            None if words is None else element("p", "This proves the result: ", name(words)),
        ]
        return section("verification", "Verification", parts)
    if proof.depth == "none":
        outcome: Content = "The result was not compared with its source: it was asked not to be."
    elif proof.ok:
        outcome = "✓ The new tree matched its source in everything that was compared."
    elif proof.ok is False:
        outcome = f"✕ {count(proof.differences, 'difference')} from the source."
    else:
        outcome = "It is not known how it ended."
    rows: list[tuple[str, Content]] = [
        ("Depth", proof.depth),
        ("Outcome", outcome),
        *((f"{_COUNTED[key]} compared", f"{value:,}") for key, value in proof.counts.items()),
        ("Took", None if proof.seconds is None else _took(proof.seconds)),
    ]
    parts = [facts("What was proven before the swap", rows)]
    if proof.shown:
        lines = [element("li", name(line)) for line in proof.shown]
        parts.append(element("h3", "The first differences"))
        parts.append(element("ul", lines))
    return section("verification", "Verification", parts)


def _took(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds < 10 else duration(seconds)


def loading_section(story: Story) -> Markup | None:
    """Return how fast the result loads, or None where nobody measured."""
    probe = story.probe
    if probe is None:
        return None
    if "error" in probe:
        words = element("p", "It could not be measured: ", str(probe.get("message", "")))
        return section("loading", "Loading", words)
    figures: list[tuple[str, Content]] = [
        ("Samples a second", _number(probe, "samples_per_s")),
        ("Decoded frames a second", _number(probe, "frames_per_s_node")),
        ("First batch after", _number(probe, "first_batch_latency_s", " s")),
    ]
    options = probe.get("options")
    if isinstance(options, Mapping):
        figures += [
            (words, str(options[key]))
            for key, words in (
                ("loader", "Loader"), ("mode", "Mode"), ("batch_size", "Samples a batch"),
                ("num_workers", "Workers"), ("duration_s", "Seconds measured"),
            )
            if options.get(key) is not None
        ]  # fmt: skip
    return section("loading", "Loading", facts("How fast the result loads here", figures))


def _number(probe: Mapping[str, Any], key: str, unit: str = "") -> str | None:
    value = probe.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return f"{value:,.0f}{unit}" if abs(value) >= 100 else f"{value:,.2f}{unit}"
