"""Tables and plots of logs."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from benches import kit, loaders, probe
from benches.conversions import COPY, REFERENCE

WHOLE, WINDOW = "wall_seconds", "window_seconds"
_GRID = re.compile(r"batch-(\w+) workers-(\d+)")
_BLUE, _GREY, _RED = "#2a6fb0", "#888888", "#c05a1c"

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
    r"""Turn logs of ``bench.py`` into tables and plots.

        python scripts/bench.py show bench_logs/2026-11-21-{small,mid,big,images}-tmpfs.jsonl \
            bench_logs/2026-11-24-many-tmpfs.jsonl \
            --plot docs/images/benchmarks.svg
        python scripts/bench.py show bench_logs/*-grid.jsonl --plot docs/images/grid.svg
        python scripts/bench.py show bench_logs/2026-11-22-strong-scaling.jsonl \
            --plot docs/images/strong-scaling.svg
        python scripts/bench.py show bench_logs/*-probe-*.jsonl

    The kind of a log is told by its rows. Every number is a median of raw rows; nothing is typed by
    hand. Logs of ``strong`` are shown together, all others one by one; those of ``probe`` and of
    ``loaders`` have no plot.
    """
    case.parser.add_argument("logs", nargs="+", type=Path)
    case.parser.add_argument("--plot", type=Path, metavar="SVG")
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
    if options.plot is not None and conversions:
        is_grid = all(any(map(_GRID.fullmatch, log.walls)) for log in conversions)
        (plot_grids if is_grid else plot)(conversions, options.plot)
    elif options.plot is not None and scaling:
        plot_scaling(scaling, options.plot)


def table(log: Log) -> str:
    """Return a log as a Markdown table, one row a runner."""
    shape = log.header["dataset"]
    synced = ", `sync -f` in each time" if log.header["synced"] else ""
    medians = kit.conversions_table(log.rows, (REFERENCE, COPY))
    return (
        f"**{log.name}**: {shape['episodes']:,} episodes, {shape['frames']:,} frames, "
        f"{shape['cameras']} cameras, {shape['bytes'] / 1e6:,.0f} MB{synced}\n\n{medians}"
    )


def pyplot() -> Any:
    """Return matplotlib's pyplot, which draws the same file for the same rows."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "leconvert"
    import matplotlib.pyplot as plt

    return plt


def save(figure: Any, path: Path) -> None:
    """Write a figure without the date."""
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def plot(logs: Sequence[Log], path: Path) -> None:
    """Draw one panel a log: bars of medians, with every single run as a dot."""
    heights = [0.6 + 0.28 * len(log.walls) for log in logs]
    figure, axes = pyplot().subplots(
        len(logs), 1, figsize=(8, 0.5 + sum(heights)), height_ratios=heights, squeeze=False
    )
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
    save(figure, path)


def plot_grids(logs: Sequence[Log], path: Path) -> None:
    """Draw one panel a grid log: a line a batch size, workers to the right."""
    figure, axes = pyplot().subplots(1, len(logs), figsize=(4.5 * len(logs), 3.5), squeeze=False)
    for axis, log in zip(axes[0], logs, strict=True):
        found = [name for name in map(_GRID.fullmatch, log.walls) if name]
        for size, names in groupby(found, lambda name: name[1]):
            points = sorted((int(name[2]), log.median(name[0])) for name in names)
            axis.plot(*zip(*points, strict=True), marker="o", label=f"{size} episodes")
        axis.axhline(log.median(COPY), color=_GREY, linestyle="--", label=COPY)
        axis.set(title=log.name, xlabel="workers", ylabel="seconds", ylim=(0, None))
        axis.legend(fontsize=7)
    save(figure, path)


def seconds_by_workers(rows: Rows, column: str) -> dict[int, list[float]]:
    """Return the values of a column by number of workers, ascending."""
    counts = sorted({row["workers"] for row in rows})
    return {n: [row[column] for row in rows if row["workers"] == n] for n in counts}


def speedups(rows: Rows, column: str) -> dict[int, float]:
    """Return m T(m) / T(n) of medians by n, m being the least number of workers: 1, mostly."""
    times = seconds_by_workers(rows, column)
    base = min(times) * statistics.median(times[min(times)])
    return {n: base / statistics.median(values) for n, values in times.items()}


def scaling_table(rows: Rows) -> str:
    """Return the rows as a Markdown table, with the efficiency, which is the speed-up a worker."""
    gains = {name: speedups(rows, name) for name in (WINDOW, WHOLE)}
    known = []
    for row in sorted(rows, key=lambda row: row["workers"]):
        n = row["workers"]
        known.append({**row, **{f"efficiency, {name}": gains[name][n] / n for name in gains}})
    columns = {WINDOW: ".2f", f"efficiency, {WINDOW}": ".3f", WHOLE: ".2f",
               f"efficiency, {WHOLE}": ".3f", "cpu_seconds": ".1f"}  # fmt: skip
    return kit.table(known, ("workers",), columns)


def plot_scaling(rows: Rows, path: Path) -> None:
    """Draw speed-up over workers, each run as a dot, and the ideal."""
    figure, axis = pyplot().subplots(figsize=(5.5, 4))
    counts = [*seconds_by_workers(rows, WHOLE)]
    axis.plot(counts, counts, color=_GREY, linestyle="--", label="n times as fast")
    for column, label, color in (
        (WINDOW, "first claim to last done", _BLUE),
        (WHOLE, "whole conversion", _RED),
    ):
        gains = speedups(rows, column)
        axis.plot(counts, [*gains.values()], color=color, marker="o", label=label)
        times = seconds_by_workers(rows, column)
        base = min(counts) * statistics.median(times[min(counts)])
        for workers, walls in times.items():
            dots = [base / wall for wall in walls]
            axis.plot([workers] * len(dots), dots, ".", color=color, markersize=3)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=2)
    for axle in (axis.xaxis, axis.yaxis):
        axle.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_xticks(counts)
    axis.set_yticks(counts)
    axis.set(xlabel="workers", ylabel="times as fast as one worker")
    axis.legend(fontsize=8)
    save(figure, path)
