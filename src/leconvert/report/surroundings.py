"""Where and how the run was made: hosts, versions, and the exact commands, without secrets."""

from __future__ import annotations

import shlex
from collections import Counter

from leconvert.report.attempts import moment
from leconvert.report.markup import Content, Markup, element
from leconvert.report.parts import MOST_ROWS, name, note, section, table, when
from leconvert.report.values import Story
from leconvert.text import count
from leconvert.workdir.invocation import Invocation
from leconvert.workdir.secrets import without_secrets

__all__ = ["environment_section"]


def environment_section(story: Story) -> Markup | None:
    """Return commands, hosts and versions, or None where no run is known."""
    if story.work_dir is None:
        return None
    parts: list[Content] = []
    if not story.invocations:
        parts.append(note("Commands and hosts of this run are not on record."))
    else:
        parts += [_commands(story), _hosts(story)]
    parts.append(_versions(story))
    return section("environment", "Commands and environment", parts)


def _commands(story: Story) -> Content:
    """Return each command once, with how often and where it ran: workers are started alike."""
    groups: dict[tuple[str, str], list[Invocation]] = {}
    for entry in story.invocations:
        groups.setdefault((_command_line(entry), entry.folder), []).append(entry)
    rows = []
    for (line, folder), own in groups.items():
        hosts = sorted({entry.host for entry in own})
        where = hosts[0] if len(hosts) == 1 else count(len(hosts), "host")
        place = name(folder) if folder else ""
        rows.append([name(line), place, f"{len(own):,}", where, when(moment(own[0].at))])
    head = ["Command", "In folder", "Times", "Host", "First at"]
    return [
        element("h3", "Commands"),
        table(
            "Every command of the run, secrets hidden",
            head,
            rows,
            numbers=[2],
            long=[0, 1],
            most=MOST_ROWS,
        ),
    ]


def _command_line(entry: Invocation) -> str:
    if entry.command is None:
        return f"leconvert.{entry.called}(…) in Python"
    # Records were written without secrets; once more costs nothing and covers those of others.
    return shlex.join(without_secrets(entry.command)).replace("'***'", "***")


def _hosts(story: Story) -> Content:
    rows = []
    by_host: dict[str, list[Invocation]] = {}
    for entry in story.invocations:
        by_host.setdefault(entry.host, []).append(entry)
    for host, own in sorted(by_host.items()):
        system = Counter(entry.system for entry in own).most_common(1)[0][0]
        cpus = max(entry.cpus for entry in own)
        ahead = story.clocks.get(host)
        clock = "–" if ahead is None else ("agrees" if not ahead else f"{-ahead:+.1f} s")
        rows.append([host, system, f"{cpus:,}", f"{len(own):,}", clock])
    head = ["Host", "System", "Cores", "Processes", "Clock against the work dir's"]
    return [
        element("h3", "Hosts"),
        table("Hosts", head, rows, numbers=[2, 3, 4], most=MOST_ROWS, quiet=True),
    ]


def _versions(story: Story) -> Content:
    seen: dict[str, Counter[str]] = {}
    for entry in story.invocations:
        for library, version in entry.versions.items():
            seen.setdefault(library, Counter())[version] += 1
    for library, version in story.planned_versions.items():
        seen.setdefault(library, Counter())[version] += 0
    rows = [
        [library, story.planned_versions.get(library, "–"), ", ".join(sorted(versions))]
        for library, versions in sorted(seen.items())
    ]
    mixed = [library for library, versions in sorted(seen.items()) if len(versions) > 1]
    warning = (
        note(
            f"Not everybody had the same {', '.join(mixed)}: the result is equal in content, but "
            "perhaps not byte for byte to one made with one version."
        )
        if mixed
        else None
    )
    return [
        element("h3", "Versions"),
        table("Versions of what writes bytes", ["Library", "Planned with", "Seen"], rows),
        warning,
    ]
