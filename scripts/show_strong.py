"""Turn logs of bench_strong.py into a table, of which docs/scaling.md shows a part, and a plot.

    python scripts/show_strong.py bench_logs/2026-11-22-strong-scaling.jsonl \
        --plot docs/images/strong-scaling.svg

Every number is a median of raw rows; nothing is typed by hand.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from show_bench import logs_and_plot, pyplot, save

Rows = Mapping[int, Sequence[Mapping[str, Any]]]
WHOLE, WINDOW = "wall_seconds", "window_seconds"


def read_rows(paths: Sequence[Path]) -> Rows:
    """Return the rows of all logs by number of workers, ascending."""
    found: dict[int, list[Mapping[str, Any]]] = {}
    for path in paths:
        for row in map(json.loads, path.read_text("utf-8").splitlines()):
            if "format" in row:  # the header of what one command measured
                continue
            found.setdefault(row["workers"], []).append(row)
    return dict(sorted(found.items()))


def median(rows: Rows, workers: int, name: str) -> float:
    """Return the median of a column."""
    return statistics.median(float(row[name]) for row in rows[workers])


def efficiency(rows: Rows, workers: int, name: str) -> float:
    """Return m T(m) / (n T(n)) of medians, m being the least number of workers: 1, mostly."""
    least = min(rows)
    return least * median(rows, least, name) / (workers * median(rows, workers, name))


def table(rows: Rows) -> str:
    """Return the rows as a Markdown table."""
    lines = [
        "| workers | runs | first claim to last `done`, s | efficiency | whole conversion, s "
        "| efficiency | last worker began after, s | CPU s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for workers, taken in rows.items():
        lines.append(
            f"| {workers} | {len(taken)} | {_spread(taken, WINDOW)} "
            f"| {efficiency(rows, workers, WINDOW):.3f} | {_spread(taken, WHOLE)} "
            f"| {efficiency(rows, workers, WHOLE):.3f} "
            f"| {median(rows, workers, 'last_worker_began_after'):.2f} "
            f"| {median(rows, workers, 'cpu_seconds'):.1f} |"
        )
    return "\n".join(lines)


def _spread(taken: Sequence[Mapping[str, Any]], name: str) -> str:
    values = [row[name] for row in taken]
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def plot(rows: Rows, path: Path) -> None:
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
        base = least * median(rows, least, name)
        speedups = [base / median(rows, workers, name) for workers in counts]
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


def main() -> int:
    """Parse and run."""
    options = logs_and_plot(__doc__)
    rows = read_rows(options.logs)
    print(table(rows))
    if options.plot is not None:
        plot(rows, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
