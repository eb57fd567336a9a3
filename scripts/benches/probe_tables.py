"""Tables of what ``bench.py probe`` measured; docs/benchmarks.md shows a part of them.

Every number is a median of raw rows; samples a second also have the least and the most. The share
of the limit is that of the limit which was measured in the same repeat, where there is one.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from benches import kit

Row = Mapping[str, Any]

STREAM, MAP, RELEASED, LIMIT = "stream", "map", "stream-lerobot", "limit"
REFERENCE = "reference"


class Run(NamedTuple):
    """One thing that was measured; ``loader`` is ``limit`` for the decode limit.

    Attributes:
        conversion: Who converted the dataset, and how its files are laid out.
        loader: Its name.
        mode: The kind of a sample; empty for the limit.
        workers: Processes of the loader.
    """

    conversion: str
    loader: str
    mode: str = ""
    workers: int = 0

    @property
    def name(self) -> str:
        """Its name in a line of text."""
        parts = [self.conversion, self.loader]
        return " ".join([*parts, *([self.mode, f"w{self.workers}"] if self.mode else [])])


@dataclass(frozen=True)
class Log:
    """One log.

    Attributes:
        header: Its first line.
        runs: Rows that were timed by what they measured, in a fixed order.
        checks: Rows that compare frames.
    """

    header: Row
    runs: Mapping[Run, Sequence[Row]]
    checks: Sequence[Row]

    @property
    def name(self) -> str:
        """Codec and file system."""
        return f"{self.header['dataset']['profile']}, {self.header['file_system']}"

    def loaders(self) -> dict[Run, Sequence[Row]]:
        """Return the runs of loaders, without the decode limits."""
        return {run: rows for run, rows in self.runs.items() if run.loader != LIMIT}

    def share_of_limit(self, run: Run) -> float | None:
        """Return the median share of the decode limit in percent; None where nothing says it."""
        limits = self.runs.get(Run(run.conversion, LIMIT), ())
        usual = median(limits, "frames_per_s")
        of_repeat = {row.get("repeat"): row["frames_per_s"] for row in sound(limits)}
        shares = [
            100 * row["frames_per_s_node"] / limit
            for row in sound(self.runs[run])
            if (limit := of_repeat.get(row.get("repeat"), usual))
        ]
        return statistics.median(shares) if shares else None


def sound(rows: Iterable[Row]) -> list[Row]:
    """Return the rows that did not fail."""
    return [row for row in rows if "error" not in row]


def median(rows: Iterable[Row], key: str) -> float | None:
    """Return the median of what is known; None where nothing is."""
    values = [row[key] for row in sound(rows) if row.get(key) is not None]
    return statistics.median(values) if values else None


def grouped(header: Row, rows: Iterable[Row]) -> Log:
    """Return rows as a log; runs by conversion, mode and loader, as they first appear."""
    timed: dict[Run, list[Row]] = {}
    checks = []
    for row in rows:
        if row.get("kind") == "check":
            checks.append(row)
            continue
        run = Run(row["conversion"], row["loader"], row.get("mode", ""), row.get("workers", 0))
        timed.setdefault(run, []).append(row)
    firsts = [list(dict.fromkeys(getattr(run, part) for run in timed)) for part in Run._fields]
    order = [dict(zip(values, range(len(values)), strict=True)) for values in firsts]
    conversion, loader, mode, workers = order
    placed = sorted(
        timed,
        key=lambda run: (
            mode[run.mode], conversion[run.conversion], loader[run.loader], workers[run.workers],
        ),
    )  # fmt: skip
    return Log(header, {run: timed[run] for run in placed}, checks)


def tables(log: Log) -> str:
    """Return everything that a log says, as Markdown."""
    shape = log.header["dataset"]
    head = (
        f"**{log.name}**: {shape['episodes']:,} episodes, {shape['frames']:,} frames, "
        f"{shape['cameras'] or shape['images']} cameras, {shape['bytes'] / 1e6:,.0f} MB"
    )
    return "\n\n".join([head, loader_table(log), *check_tables(log)])


def loader_table(log: Log) -> str:
    """Return a row a loader, mode, conversion and number of workers."""
    lines = [
        ["mode", "files", "loader", "workers", "runs", "samples/s (least to most)", "frames/s",
         "% of limit", "first batch s", "p99 wait ms", "PSS MB", "randomness"],
    ]  # fmt: skip
    for run, every in log.loaders().items():
        begin = [run.mode, run.conversion, run.loader, str(run.workers)]
        rows = sound(every)
        if not rows:
            fails = f"fails: {_cell(every[0]['error'])}"
            lines.append([*begin, str(len(every)), fails, *[""] * 6])
            continue
        rates = [row["samples_per_s"] for row in rows]
        pss = median(rows, "peak_pss_gb")
        lines.append(
            [
                *begin,
                str(len(rows)),
                f"{statistics.median(rates):,.1f} ({min(rates):.1f}-{max(rates):.1f})",
                _number(median(rows, "frames_per_s_node")),
                _number(log.share_of_limit(run)),
                _number(median(rows, "first_batch_latency_s"), 2),
                _number(median(rows, "p99_batch_wait_ms")),
                _number(None if pss is None else 1000 * pss),
                _number(median(rows, "shuffle_randomness_frac"), 2),
            ]
        )
    return kit.markdown(lines)


def check_tables(log: Log) -> Iterator[str]:
    """Yield the comparison of frames with those of LeRobot's map-style loader."""
    if not log.checks:
        return
    lines = [
        ["frames compared with `map`", "mode", "files", "samples", "wrong frames",
         "unreadable frames", "wrong flags or values"],
    ]  # fmt: skip
    for row in log.checks:
        found = row.get("check")
        counts = [f"fails: {_cell(row['error'])}", "", "", ""] if found is None else [
            str(found["samples"]), str(found["wrong_frames"]), str(found["unreadable_frames"]),
            str(found["wrong_pad_flags"] + found["wrong_values"]),
        ]  # fmt: skip
        lines.append([row["loader"], row["mode"], row["conversion"], *counts])
    yield kit.markdown(lines)


def _number(value: float | None, digits: int = 0) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def _cell(text: str) -> str:
    """Return text that does not end a table's cell."""
    return " ".join(text.split()).replace("|", "\\|")
