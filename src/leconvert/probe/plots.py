"""Four pictures of a summary: throughput, latency, randomness, and the distance to the limit."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from leconvert.errors import InstallationError
from leconvert.probe.summarize import TARGET_FRAMES_PER_S, SummaryLine
from leconvert.workdir.trouble import storage_errors

__all__ = ["PLOTS", "draw_plots", "require_matplotlib"]

PLOTS = ("throughput", "latency", "randomness", "limit")
"""The pictures' names, each ``STEM-NAME.png``."""

_BAR_INCHES = 0.28
_WIDTH_INCHES = 9.0
_EMPTY = "nothing was measured"


def require_matplotlib() -> None:
    """Fail before anything is measured if plots could not be drawn.

    Raises:
        InstallationError: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise InstallationError(
            "Plots need matplotlib, which is not installed.",
            next_step="Run `pip install 'leconvert[plots]'`, or leave --plots out.",
        )


def draw_plots(lines: Sequence[SummaryLine], out_dir: Path, stem: str) -> list[Path]:
    """Draw all pictures.

    Args:
        lines: What to show, from top to bottom.
        out_dir: Where they go.
        stem: What their names begin with.

    Returns:
        Their paths, in the order of `PLOTS`.

    Raises:
        InstallationError: matplotlib is not installed.
        StorageError: They cannot be written.
    """
    require_matplotlib()
    figures = {
        "throughput": _bars(
            lines,
            "decoded camera frames a second on a node",
            {"frames/s": [line.frames_per_s_node for line in lines]},
            marks={
                f"target of {mode}": target
                for mode, target in TARGET_FRAMES_PER_S.items()
                if any(line.mode == mode for line in lines)
            },
        ),
        "latency": _bars(
            lines,
            "latency of a sample in ms",
            {
                "p50": [line.p50_sample_latency_ms for line in lines],
                "p95": [line.p95_sample_latency_ms for line in lines],
                "p99": [line.p99_sample_latency_ms for line in lines],
            },
        ),
        "randomness": _bars(
            lines,
            "distinct episodes in a batch / batch size",
            {"randomness": [line.shuffle_randomness_frac for line in lines]},
        ),
        "limit": _bars(
            lines,
            "% of the random-access decode limit",
            {"% of the limit": [line.pct_of_limit for line in lines]},
            marks={"limit": 100.0},
        ),
    }
    paths = []
    with storage_errors(out_dir):
        out_dir.mkdir(parents=True, exist_ok=True)
        for name in PLOTS:
            path = out_dir / f"{stem}-{name}.png"
            figures[name].savefig(path, dpi=120)
            paths.append(path)
    return paths


def _bars(
    lines: Sequence[SummaryLine],
    title: str,
    series: Mapping[str, Sequence[float | None]],
    marks: Mapping[str, float] | None = None,
) -> Any:
    """Return a figure of horizontal bars, a group a line and a bar a series."""
    from matplotlib.figure import Figure

    bars = len(lines) * len(series)
    figure = Figure(figsize=(_WIDTH_INCHES, 1.4 + _BAR_INCHES * max(bars, 4)), layout="constrained")
    axes = figure.subplots()
    thickness = 0.8 / len(series)
    for number, (name, values) in enumerate(series.items()):
        shift = (number - (len(series) - 1) / 2) * thickness
        places = [place + shift for place, value in enumerate(values) if value is not None]
        drawn = axes.barh(
            places, [value for value in values if value is not None], thickness, label=name
        )
        axes.bar_label(drawn, fmt="%.4g", padding=3, fontsize=7)
    for name, value in (marks or {}).items():
        axes.axvline(value, color="black", linewidth=1, linestyle="--")
        axes.annotate(name, (value, 1), xycoords=("data", "axes fraction"), fontsize=7)
    if not any(value is not None for values in series.values() for value in values):
        axes.text(0.5, 0.5, _EMPTY, transform=axes.transAxes, ha="center")
    axes.set_yticks(range(len(lines)), [line.label for line in lines], fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel(title)
    if len(series) > 1:
        axes.legend(fontsize=8)
    return figure
