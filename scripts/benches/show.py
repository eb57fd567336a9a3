r"""Turn logs of ``bench.py`` into tables and plots.

    python scripts/bench.py show bench_logs/2026-11-21-{small,mid,big,images}-tmpfs.jsonl \
        bench_logs/2026-11-24-many-tmpfs.jsonl \
        --plot docs/images/benchmarks.svg
    python scripts/bench.py show bench_logs/*-grid.jsonl --plot docs/images/grid.svg
    python scripts/bench.py show bench_logs/2026-11-22-strong-scaling.jsonl \
        --plot docs/images/strong-scaling.svg
    python scripts/bench.py show bench_logs/*-probe-*.jsonl

The kind of a log is told by its rows. Every number is a median of raw rows; nothing is typed by
hand. Logs of ``strong`` are shown together, all others one by one; those of ``probe`` have no plot.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from benches import kit, probe
from benches.convert import COPY, RATIOS, REFERENCE

WHOLE, WINDOW = "wall_seconds", "window_seconds"
_GRID = re.compile(r"batch-(\w+) workers-(\d+)")

type Rows = Sequence[Mapping[str, Any]]
type Scaling = Mapping[int, Rows]


def read_log(path: Path) -> tuple[Mapping[str, Any], Rows]:
    """Return a log's header and its rows; further headers were written where commands appended."""
    header, *rows = map(json.loads, path.read_text("utf-8").splitlines())
    return header, [row for row in rows if "format" not in row]


@dataclass(frozen=True)
class Log:
    """One log of conversions: its header, and its rows by runner in order of first appearance."""

    header: Mapping[str, Any]
    rows: Mapping[str, Rows]

    @property
    def name(self) -> str:
        """Profile and file system."""
        return f"{self.header['dataset']['profile']}, {self.header['file_system']}"

    def median(self, runner: str) -> float:
        """Return the median wall clock of a runner in seconds."""
        return kit.median(self.rows[runner], kit.WALL)


def table(log: Log) -> str:
    """Return a log as a Markdown table, one row a runner."""
    shape = log.header["dataset"]
    head = (
        f"**{log.name}**: {shape['episodes']:,} episodes, {shape['frames']:,} frames, "
        f"{shape['cameras']} cameras, {shape['bytes'] / 1e6:,.0f} MB"
    )
    medians = kit.table(chain.from_iterable(log.rows.values()), **RATIOS)
    synced = ", `sync -f` in each time" if log.header["synced"] else ""
    return f"{head}{synced}\n\n{medians}"


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
    plt = pyplot()
    figure, axes = plt.subplots(
        len(logs), 1, figsize=(8, 0.5 + sum(0.6 + 0.28 * len(log.rows) for log in logs)),
        height_ratios=[0.6 + 0.28 * len(log.rows) for log in logs], squeeze=False,
    )  # fmt: skip
    for axis, log in zip(axes[:, 0], logs, strict=True):
        names = list(log.rows)
        colors = ["#888888" if n in {REFERENCE, COPY} else "#2a6fb0" for n in names]
        medians = [log.median(name) for name in names]
        axis.barh(names, medians, color=colors, alpha=0.75)
        for place, name in enumerate(names):
            walls = [row["wall_seconds"] for row in log.rows[name]]
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
    plt = pyplot()
    figure, axes = plt.subplots(1, len(logs), figsize=(4.5 * len(logs), 3.5), squeeze=False)
    for axis, log in zip(axes[0], logs, strict=True):
        lines: dict[str, list[tuple[int, float]]] = {}
        for name in log.rows:
            if found := _GRID.fullmatch(name):
                lines.setdefault(found[1], []).append((int(found[2]), log.median(name)))
        for size, points in lines.items():
            axis.plot(*zip(*sorted(points), strict=True), marker="o", label=f"{size} episodes")
        axis.axhline(log.median(COPY), color="#888888", linestyle="--", label=COPY)
        axis.set(title=log.name, xlabel="workers", ylabel="seconds", ylim=(0, None))
        axis.legend(fontsize=7)
    save(figure, path)


def scaling_of(logs: Iterable[Rows]) -> Scaling:
    """Return the rows of all logs by number of workers, ascending."""
    found: dict[int, list[Mapping[str, Any]]] = {}
    for row in chain.from_iterable(logs):
        found.setdefault(row["workers"], []).append(row)
    return dict(sorted(found.items()))


def efficiency(rows: Scaling, workers: int, name: str) -> float:
    """Return m T(m) / (n T(n)) of medians, m being the least number of workers: 1, mostly."""
    least = min(rows)
    return least * kit.median(rows[least], name) / (workers * kit.median(rows[workers], name))


def scaling_table(rows: Scaling) -> str:
    """Return the rows as a Markdown table."""
    lines = [
        ["workers", "runs", "first claim to last `done`, s", "efficiency", "whole conversion, s",
         "efficiency", "CPU s"],
    ]  # fmt: skip
    for workers, taken in rows.items():
        line = [str(workers), str(len(taken))]
        for name in (WINDOW, WHOLE):
            line += [_spread(taken, name), f"{efficiency(rows, workers, name):.3f}"]
        lines.append([*line, f"{kit.median(taken, 'cpu_seconds'):.1f}"])
    return kit.markdown(lines)


def _spread(taken: Rows, name: str) -> str:
    values = [row[name] for row in taken]
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def plot_scaling(rows: Scaling, path: Path) -> None:
    """Draw speed-up over workers, each run as a dot, and the ideal."""
    plt = pyplot()
    figure, axis = plt.subplots(figsize=(5.5, 4))
    counts = list(rows)
    least = min(counts)
    axis.plot(counts, counts, color="#888888", linestyle="--", label="n times as fast")
    for name, label, color in (
        (WINDOW, "first claim to last done", "#2a6fb0"),
        (WHOLE, "whole conversion", "#c05a1c"),
    ):
        base = least * kit.median(rows[least], name)
        speedups = [base / kit.median(rows[workers], name) for workers in counts]
        axis.plot(counts, speedups, color=color, marker="o", label=label)
        for workers in counts:
            dots = [base / row[name] for row in rows[workers]]
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


def main(arguments: Sequence[str]) -> int:
    """Print the tables of every log, and draw the plot that was asked for."""
    parser = kit.parser(__doc__, repeats=None)
    parser.add_argument("logs", nargs="+", type=Path)
    parser.add_argument("--plot", type=Path, metavar="SVG")
    options = parser.parse_args(arguments)
    conversions: list[Log] = []
    scaling: list[Rows] = []
    for header, rows in map(read_log, options.logs):
        if WINDOW in rows[0]:
            scaling.append(rows)
        elif "loader" in rows[0]:
            print(f"**{Log(header, {}).name}**\n\n{probe.table(rows)}", end="\n\n")
        else:
            conversions.append(Log(header, kit.by_runner(rows)))
            print(table(conversions[-1]), end="\n\n")
    known = scaling_of(scaling)
    if known:
        print(scaling_table(known))
    if options.plot is not None and conversions:
        grids = all(any(map(_GRID.fullmatch, log.rows)) for log in conversions)
        (plot_grids if grids else plot)(conversions, options.plot)
    elif options.plot is not None and known:
        plot_scaling(known, options.plot)
    return 0
