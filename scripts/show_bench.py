"""Turn logs of bench_convert.py into tables of all runners, and into plots.

    python scripts/show_bench.py bench_logs/*-tmpfs.jsonl
    python scripts/show_bench.py bench_logs/*-tmpfs.jsonl --plot docs/images/benchmarks.svg
    python scripts/show_bench.py bench_logs/*-grid.jsonl --plot docs/images/grid.svg

Every number is a median of raw rows, with the least and the most; nothing is typed by hand.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REFERENCE = "reference"
COPY = "cp -r"
_GRID = re.compile(r"batch-(\w+) workers-(\d+)")


@dataclass(frozen=True)
class Log:
    """One log: its header, and its rows by runner in order of first appearance."""

    header: Mapping[str, Any]
    rows: Mapping[str, Sequence[Mapping[str, Any]]]

    @property
    def name(self) -> str:
        """Profile and file system."""
        return f"{self.header['dataset']['profile']}, {self.header['file_system']}"

    def median(self, runner: str) -> float:
        """Return the median wall clock of a runner in seconds."""
        return float(statistics.median(row["wall_seconds"] for row in self.rows[runner]))

    def best(self) -> str:
        """Return our fastest runner."""
        ours = [name for name in self.rows if name not in {REFERENCE, COPY}]
        return min(ours, key=self.median)


def read_log(path: Path) -> Log:
    """Read one log."""
    with path.open(encoding="utf-8") as file:
        header = json.loads(file.readline())
        rows: dict[str, list[Mapping[str, Any]]] = {}
        for line in file:
            row = json.loads(line)
            rows.setdefault(row["runner"], []).append(row)
    return Log(header, rows)


def table(log: Log) -> str:
    """Return a log as a Markdown table, one row a runner."""
    shape = log.header["dataset"]
    lines = [
        f"**{log.name}**: {shape['episodes']:,} episodes, {shape['frames']:,} frames, "
        f"{shape['cameras']} cameras, {shape['bytes'] / 1e6:,.0f} MB"
        + (", `sync -f` in each time" if log.header["synced"] else ""),
        "",
        "| | runs | s (least to most) | plan, work, pack s | CPU s | peak MB | reference / it "
        "| it / `cp -r` |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, rows in log.rows.items():
        walls = [row["wall_seconds"] for row in rows]
        cpu = statistics.median(row["user_seconds"] + row["system_seconds"] for row in rows)
        peak = max(row["peak_rss_bytes"] for row in rows) / 2**20
        faster = f"{log.median(REFERENCE) / log.median(name):.1f}" if REFERENCE in log.rows else ""
        slower = f"{log.median(name) / log.median(COPY):.2f}" if COPY in log.rows else ""
        stages = [row["stage_seconds"] for row in rows if "stage_seconds" in row]
        parts = ", ".join(
            f"{statistics.median(stage[part] for stage in stages):.2f}"
            for part in ("plan", "work", "pack")
            if stages
        )
        shown = f"**{name}**" if name == log.best() else name
        lines.append(
            f"| {shown} | {len(rows)} | {log.median(name):.2f} ({min(walls):.2f}-{max(walls):.2f}) "
            f"| {parts} | {cpu:.2f} | {peak:.0f} | {faster} | {slower} |"
        )
    return "\n".join(lines)


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


def logs_and_plot(about: str | None) -> argparse.Namespace:
    """Return which logs to show, and where to draw them; ``about`` is the script's docstring."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("logs", nargs="+", type=Path)
    parser.add_argument("--plot", type=Path, metavar="SVG")
    return parser.parse_args()


def main() -> int:
    """Parse and run."""
    options = logs_and_plot(__doc__)
    logs = [read_log(path) for path in options.logs]
    for log in logs:
        print(table(log), end="\n\n")
    if options.plot is not None:
        grids = all(any(map(_GRID.fullmatch, log.rows)) for log in logs)
        (plot_grids if grids else plot)(logs, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
