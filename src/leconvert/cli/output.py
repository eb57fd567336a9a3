"""The output of a command: tables, sentences and findings, and the progress on stderr."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import textwrap
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Self, TextIO

from leconvert.support.progress import NO_PROGRESS, Progress, Stage
from leconvert.support.text import amount, count, duration

if TYPE_CHECKING:
    from leconvert.model.values import Extent, Finding
    from leconvert.run.planner import PlannedRepairs


def show(options: argparse.Namespace, record: object, lines: Iterable[str], code: int = 0) -> int:
    """Print the outcome of a command: its record with ``--json``, else its lines unless quiet.

    Returns:
        The exit code.
    """
    if options.json:
        print(json.dumps(record, indent=2))
    elif not getattr(options, "quiet", False):
        for line in lines:
            print(line)
    return code


def columns() -> int:
    """Return the width of the terminal; without one, the width of a page."""
    return shutil.get_terminal_size((100, 24)).columns


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return the lines of a table with aligned columns. Numbers are aligned on the right."""
    cells = [head, *([str(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if cell[:1].isdigit() else cell.ljust(width)
            for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in cells
    ]


# Sentences: broken to fit a terminal, on one line for `grep`.


# Users copy text in backticks. If the terminal itself folds a line, copying gives one line.
_WORD = re.compile(r"(?:[^\s`]|`[^`]*`|`)+")


def print_sentence(text: str, *, margin: str) -> None:
    """Print on stderr. On a terminal, break lines between words and indent all but the first.

    If stderr is not a terminal, every line stays whole for `grep`.
    """
    for line in text.splitlines():
        if not sys.stderr.isatty():
            print(line, file=sys.stderr)
            continue
        for piece in folded(line, shutil.get_terminal_size().columns, margin):
            print(piece, file=sys.stderr)


def folded(line: str, width: int, margin: str) -> list[str]:
    """Break a line into lines of at most ``width``. Only a longer word makes a longer line."""
    if len(line) <= width:
        return [line]
    pieces = [line[: len(line) - len(line.lstrip())]]
    is_empty = True
    for word in _WORD.findall(line):
        if not is_empty and len(pieces[-1]) + 1 + len(word) > width:
            pieces.append(margin)
            is_empty = True
        pieces[-1] += word if is_empty else f" {word}"
        is_empty = False
    return pieces


# Findings as a table that fits the terminal.


_SHOWN_OF_A_CODE = 5
_ORDER = ("error", "repaired", "warning", "info")
# Findings that answer an option.
_ALWAYS_SHOWN = frozenset({"rewritten-file"})
_HEADINGS = ("severity", "finding", "episode", "stream", "what is wrong, and what helps")
_NARROWEST_MESSAGE = 40


def print_findings(findings: Sequence[Finding], root: object = "DATASET") -> None:
    """Print the findings about a dataset on stderr, if there are any."""
    shown = [
        finding
        for finding in findings
        if finding.severity != "info" or finding.code in _ALWAYS_SHOWN
    ]
    for line in findings_lines(shown, columns(), root):
        print(line, file=sys.stderr)


def findings_lines(findings: Sequence[Finding], width: int, root: object = "DATASET") -> list[str]:
    """Return a table of findings, the gravest first; similar ones share a row with a count."""
    if not findings:
        return []
    from leconvert.dataset.findings import grouped  # `--help` does not need it

    ordered = sorted(grouped(findings), key=lambda finding: _ORDER.index(finding.severity))
    total: Counter[tuple[str, str]] = Counter()
    for finding in ordered:
        total[finding.severity, finding.code] += finding.count
    seen: Counter[tuple[str, str]] = Counter()
    told: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    rows: list[tuple[tuple[str, str, str, str], list[str]]] = []
    for finding in ordered:
        kind = (finding.severity, finding.code)
        seen[kind] += 1
        if seen[kind] > _SHOWN_OF_A_CODE:
            continue
        total[kind] -= finding.count
        said = [_with_short_path(finding)]
        if seen[kind] == _SHOWN_OF_A_CODE and total[kind]:
            said.append(f"... and {total[kind]:,} more of this kind")
        said += [line for line in _helping(finding, root) if line not in told[kind]]
        told[kind].update(said)
        episode = "" if finding.episode is None else str(finding.episode)
        rows.append(((finding.severity, finding.code, episode, finding.stream or ""), said))
    widths = [
        max(len(heading), *(len(cells[column]) for cells, _ in rows))
        for column, heading in enumerate(_HEADINGS[:-1])
    ]
    message_width = width - sum(widths) - 2 * len(widths)
    if message_width < _NARROWEST_MESSAGE:
        return _stacked(rows, width)
    lines = [_aligned(_HEADINGS[:-1], widths) + _HEADINGS[-1]]
    for cells, said in rows:
        margin = _aligned(cells, widths)
        for text in said:
            for piece in _wrapped(text, message_width):
                lines.append((margin + piece).rstrip())
                margin = " " * len(margin)
    return lines


def _helping(finding: Finding, root: object) -> list[str]:
    """Return the remedy that loses nothing, then a line for each flag, with what it keeps."""
    from leconvert.dataset.findings import lossless_remedy, named

    is_error = finding.severity == "error"
    first = lossless_remedy(finding.code, finding.remedy) if is_error else None
    flags = [f"{each.flag}: {said_extent(each.keeps, each.of)}" for each in finding.remedies]
    said = filter(None, (first, *(flags or (finding.remedy,))))
    return [f"→ {'or ' if place else ''}{named(text, root)}" for place, text in enumerate(said)]


def said_extent(keeps: Extent, of: Extent) -> str:
    """Return how much of a dataset is kept."""
    if keeps == of:
        return "keeps everything"
    from dataclasses import asdict  # `--help` does not need it

    left, total = asdict(keeps), asdict(of)
    parts = [
        f"{left[name]:,} of {count(total[name], name[:-1])}"
        for name in ("episodes", "frames", "features")
    ]
    return f"keeps {parts[0]}, {parts[1]}, {parts[2]}"


def print_planned_findings(plan: PlannedRepairs) -> None:
    """Print the findings that planned repairs are for, and remedies that lose no data."""
    print_findings(plan.findings, plan.root)
    if plan.lossless:
        said = (
            f"{' '.join(plan.lossless)} No data is lost then. Otherwise this command loses the "
            "least data:"
        )
        print_sentence(said, margin="")


def planned_lines(plan: PlannedRepairs) -> list[str]:
    """Return the command of planned repairs, what it keeps, and what it changes."""
    command = plan.command or f"{plan.root} has nothing to repair."
    return [command, *(f"  {said}" for said in (said_extent(plan.keeps, plan.of), *plan.changes))]


def _with_short_path(finding: Finding) -> str:
    """Write the path relative to the dataset, which the reader of the table knows."""
    if not finding.path:
        return finding.message
    return re.sub(r"/\S*" + re.escape("/" + finding.path), finding.path, finding.message)


def _stacked(rows: Sequence[tuple[tuple[str, str, str, str], list[str]]], width: int) -> list[str]:
    """Return the table for a narrow terminal: the message is below its head."""
    lines = []
    for (severity, code, episode, stream), said in rows:
        place = f", episode {episode}" if episode else ""
        lines.append(f"{severity}: {code}{place}{f', {stream}' if stream else ''}")
        for text in said:
            lines += ["  " + piece for piece in _wrapped(text, max(20, width - 2))]
    return lines


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "".join(f"{cell:<{width}}  " for cell, width in zip(cells, widths, strict=True))


def _wrapped(text: str, width: int) -> list[str]:
    if text.startswith("→"):  # commands stay whole, so that they can be copied
        return folded(text, width, "")
    # Paths stay whole where they fit.
    return textwrap.wrap(text, width, break_on_hyphens=False) or [""]


def former_line(number: int, size_bytes: int) -> str:
    """Return a line about former states and the disk space that they take."""
    return (
        f"{count(number, 'former state')} of the result are kept beside it, up to "
        f"{amount(size_bytes)}; `leconvert clean --old` removes those that the result "
        "contains."
    )


# Progress on stderr: bars on a terminal, otherwise a plain line now and then.
#
# The time left, shown once it is more than a guess.


_TELLING_SHARE = 0.1
_TELLING_SECONDS = 30.0


def _tells_time_left(done: int, total: int, seconds: float) -> bool:
    return done >= _TELLING_SHARE * total or (done > 0 and seconds >= _TELLING_SECONDS)


# A stage that shows itself again and again: otherwise one that takes minutes for a step looks dead.


class _Ticking(ABC):
    """A stage that a thread shows every few seconds, from the beginning of its block to the end."""

    def __init__(self, every_seconds: float) -> None:
        self._every_seconds = every_seconds
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="leconvert-progress", daemon=True)

    def _run(self) -> None:
        while not self._stopped.wait(self._every_seconds):
            self.advance(0)

    @abstractmethod
    def advance(self, amount: int) -> None:
        """Show that so much more is done."""

    @abstractmethod
    def close(self) -> None:
        """Show the end."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
        self.close()


# A stage as a bar with rate and time left, for a terminal.


_SHOW_EVERY_SECONDS = 1.0
_NAME_WIDTH = 6
_SHORTENED_FROM = 100_000
_WITHOUT_TIME_LEFT = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}, {rate_fmt}]"
_SHARE_ALONE = "{l_bar}{bar}| [{elapsed}<{remaining}]"
_SHARE_WITHOUT_TIME_LEFT = "{l_bar}{bar}| [{elapsed}]"
# Units whose rate nobody wants to know.
_WITHOUT_RATE = frozenset({"%", "s"})
_ROUNDED_FROM = 10


class _Bar(_Ticking):
    def __init__(self, stream: TextIO, name: str, total: int, unit: str) -> None:
        from tqdm import tqdm

        super().__init__(_SHOW_EVERY_SECONDS)
        shows_share = unit in _WITHOUT_RATE
        self._with_time_left = _SHARE_ALONE if shows_share else None
        self._bar = tqdm(
            desc=f"{name:<{_NAME_WIDTH}}",
            total=total,
            unit=unit if unit == "B" else f" {unit}",
            unit_scale=unit == "B" or total >= _SHORTENED_FROM,  # else 18 would read 18.0
            unit_divisor=1024 if unit == "B" else 1000,
            file=stream,
            bar_format=_SHARE_WITHOUT_TIME_LEFT if shows_share else _WITHOUT_TIME_LEFT,
            dynamic_ncols=True,
            disable=None,
        )

    def advance(self, amount: int) -> None:
        with self._lock:
            bar = self._bar
            if not amount:  # the clock
                bar.refresh()
                return
            if _tells_time_left(bar.n + amount, bar.total, bar.format_dict["elapsed"]):
                bar.bar_format = self._with_time_left
            bar.update(amount)

    def close(self) -> None:
        self._bar.close()


# A stage as plain lines now and then, for logs.


_LINE_EVERY_SECONDS = 5.0


class _Lines(_Ticking):
    def __init__(self, stream: TextIO, name: str, total: int, unit: str) -> None:
        super().__init__(_LINE_EVERY_SECONDS)
        self._stream = stream
        self._name = name
        self._total = total
        self._unit = unit
        self._done = 0
        self._started = self._said = time.monotonic()

    def advance(self, amount: int) -> None:
        with self._lock:
            self._done += amount
            now = time.monotonic()
            if now - self._said >= _LINE_EVERY_SECONDS and self._done < self._total:
                self._said = now
                self._print(now)

    def _print(self, now: float) -> None:
        seconds = now - self._started
        rate = self._done / seconds if seconds > 0 else 0.0
        of_share = self._unit == "%"
        line = f"{self._name}: "
        line += self._share() if of_share else _amount(self._done, self._unit)
        if self._done < self._total:
            line += "" if of_share else f" of {_amount(self._total, self._unit)}"
            if _tells_time_left(self._done, self._total, seconds):
                line += f", about {duration((self._total - self._done) / rate)} left"
        is_told = rate > 0 and self._unit not in _WITHOUT_RATE
        line += f" ({seconds:.1f} s{f', {_rate(rate, self._unit)}/s' if is_told else ''})"
        print(line, file=self._stream, flush=True)

    def _share(self) -> str:
        return f"{100 * self._done // max(1, self._total)} %"

    def close(self) -> None:
        with self._lock:
            self._print(time.monotonic())


def _rate(value: float, unit: str) -> str:
    is_whole = unit == "B" or value >= _ROUNDED_FROM
    return _amount(value, unit) if is_whole else f"{value:.2g} {unit}"


def _amount(value: float, unit: str) -> str:
    if unit == "B":
        return amount(value)
    return count(round(value), unit.removesuffix("s"), unit)


# The choice between both.


class ShownProgress:
    """Progress as bars on a terminal, as lines elsewhere."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def stage(self, name: str, total: int, unit: str) -> Stage:
        """Return a stage that is shown while its block runs."""
        kind = _Bar if self._stream.isatty() else _Lines
        return kind(self._stream, name, total, unit)

    def say(self, line: str) -> None:
        """Print a line, above the bars if there are any."""
        if self._stream.isatty():
            from tqdm import tqdm

            tqdm.write(line, file=self._stream)
        else:
            print(line, file=self._stream, flush=True)


def progress_for(options: argparse.Namespace) -> Progress:
    """Return progress on stderr; none for a command that is quiet or prints JSON."""
    is_quiet = options.json or getattr(options, "quiet", False)
    return NO_PROGRESS if is_quiet else ShownProgress(sys.stderr)
