"""Tables and plots of logs."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benches import kit, loaders, probe
from benches.conversions import COPY, REFERENCE

WHOLE, WINDOW = "wall_seconds", "window_seconds"
_BLUE, _GREY = "#2a6fb0", "#888888"

type Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Log:
    """A log: its header, and its rows; further headers were written where commands appended."""

    header: Mapping[str, Any]
    rows: Rows

    @classmethod
    def read(cls, path: Path) -> Log:
        """Read a log."""
        header, *rows = map(json.loads, path.read_text("utf-8").splitlines())
        return cls(header, [row for row in rows if "format" not in row])

    @property
    def name(self) -> str:
        """Profile and file system."""
        return f"{self.header['dataset']['profile']}, {self.header['file_system']}"

    @property
    def walls(self) -> dict[str, list[float]]:
        """The seconds of each runner, in order of first appearance."""
        found: dict[str, list[float]] = {}
        for row in self.rows:
            found.setdefault(row["runner"], []).append(row[WHOLE])
        return found

    def median(self, runner: str) -> float:
        """Return the median wall clock of a runner in seconds."""
        return statistics.median(self.walls[runner])


def show(case: kit.Case) -> None:
    r"""Turn logs of ``bench.py`` into tables, and those of conversions into a plot.

        python scripts/bench.py show bench_logs/2026-11-21-{small,mid,big,images}-tmpfs.jsonl \
            bench_logs/2026-11-24-many-tmpfs.jsonl --plot docs/images/benchmarks.svg
        python scripts/bench.py show bench_logs/2026-11-22-strong-scaling.jsonl
        python scripts/bench.py show bench_logs/*-probe-*.jsonl

    The kind of a log is told by its rows. Every number is a median of raw rows; nothing is typed by
    hand. Logs of ``strong`` are shown together, all others one by one.
    """
    case.parser.add_argument("logs", nargs="+", type=Path)
    case.parser.add_argument("--plot", type=Path, metavar="SVG", help="of conversions")
    options = case.parse()
    logs = [Log.read(path) for path in options.logs]
    scaling = [row for log in logs if WINDOW in log.rows[0] for row in log.rows]
    conversions = []
    for log in logs:
        if "where" in log.rows[0]:
            print(kit.table(log.rows, loaders.KEYS, loaders.COLUMNS), end="\n\n")
        elif "loader" in log.rows[0]:
            print(f"**{log.name}**\n\n{probe.table(log.rows)}", end="\n\n")
        elif WINDOW not in log.rows[0]:
            conversions.append(log)
            print(table(log), end="\n\n")
    if scaling:
        print(scaling_table(scaling))
    if options.plot is not None:
        plot(conversions, options.plot)


def table(log: Log) -> str:
    """Return a log as a Markdown table, one row a runner."""
    shape = log.header["dataset"]
    synced = ", `sync -f` in each time" if log.header["synced"] else ""
    medians = kit.conversions_table(log.rows, (REFERENCE, COPY))
    return (
        f"**{log.name}**: {shape['episodes']:,} episodes, {shape['frames']:,} frames, "
        f"{shape['cameras']} cameras, {shape['bytes'] / 1e6:,.0f} MB{synced}\n\n{medians}"
    )


def scaling_table(rows: Rows) -> str:
    """Return the rows as a Markdown table, with the efficiency: the speed-up by the workers."""
    least = min(row["workers"] for row in rows)
    alone = [row for row in rows if row["workers"] == least]
    base = {name: least * kit.median(alone, name) for name in (WINDOW, WHOLE)}
    known = []
    for row in sorted(rows, key=lambda row: row["workers"]):
        gains = {f"efficiency, {n}": base[n] / (row["workers"] * row[n]) for n in base}
        known.append({**row, **gains})
    columns = {WINDOW: ".2f", f"efficiency, {WINDOW}": ".3f", WHOLE: ".2f",
               f"efficiency, {WHOLE}": ".3f", "cpu_seconds": ".1f"}  # fmt: skip
    return kit.table(known, ("workers",), columns)


def plot(logs: Sequence[Log], path: Path) -> None:
    """Draw one panel a log: bars of medians, with every single run as a dot."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "leconvert"  # the same file for the same rows
    heights = [0.6 + 0.28 * len(log.walls) for log in logs]
    figure = Figure(figsize=(8, 0.5 + sum(heights)))
    axes = figure.subplots(len(logs), 1, height_ratios=heights, squeeze=False)
    for axis, log in zip(axes[:, 0], logs, strict=True):
        colors = [_GREY if name in {REFERENCE, COPY} else _BLUE for name in log.walls]
        medians = [log.median(name) for name in log.walls]
        axis.barh([*log.walls], medians, color=colors, alpha=0.75)
        for place, walls in enumerate(log.walls.values()):
            axis.plot(walls, [place] * len(walls), "k.", markersize=3)
            axis.annotate(f" {medians[place]:.2f} s", (max(walls), place), va="center", fontsize=7)
        axis.invert_yaxis()
        axis.set_xscale("log")
        axis.tick_params(which="both", labelsize=7)
        axis.set_title(log.name, fontsize=9, loc="left")
        axis.margins(x=0.12)
    axes[-1, 0].set_xlabel("seconds, process start to end (dots: single runs)", fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
