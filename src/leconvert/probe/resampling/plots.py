"""Three pictures of a resampling result: throughput, latency, speed-up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from leconvert.probe.plots import require_matplotlib
from leconvert.workdir.trouble import storage_errors

__all__ = ["PLOTS", "draw_resampling", "pictures"]

PLOTS = ("throughput", "latency", "speedup")
"""The pictures' names, each ``STEM-NAME.png``."""

_SIZE_INCHES = (7.5, 4.5)
_EMPTY = "nothing to compare"
_LABELS = ("way", "dtype", "device")

Row = Mapping[str, Any]


def draw_resampling(document: Mapping[str, Any], out_dir: Path, stem: str) -> list[Path]:
    """Draw all pictures into a folder.

    Returns:
        Their paths, in the order of `PLOTS`.

    Raises:
        InstallationError: matplotlib is not installed.
        StorageError: They cannot be written.
    """
    paths = []
    drawn = pictures(document)
    with storage_errors(out_dir):
        out_dir.mkdir(parents=True, exist_ok=True)
        for name, content in drawn.items():
            path = out_dir / f"{stem}-{name}.png"
            path.write_bytes(content)
            paths.append(path)
    return paths


def pictures(document: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the pictures as PNG, by name.

    Raises:
        InstallationError: matplotlib is not installed.
    """
    require_matplotlib()
    results = document["results"]
    compared = document["speedups"]
    return {
        "throughput": _lines(
            _series(results, {"": "trajectories_per_s"}), "trajectories/s", log=True
        ),
        "latency": _lines(
            _series(results, {"p50": "p50_batch_ms", "p95": "p95_batch_ms"}), "ms a batch", log=True
        ),
        "speedup": _lines(
            _series(compared, {"with packing": "with_packing", "kernel": "kernel"}),
            "times as fast as the baseline",
            mark=1.0,
        ),
    }


def _series(
    rows: Sequence[Row], keys: Mapping[str, str]
) -> dict[str, tuple[list[int], list[float]]]:
    found: dict[str, tuple[list[int], list[float]]] = {}
    for row in rows:
        for suffix, key in keys.items():
            label = " ".join([*(str(row[name]) for name in _LABELS), suffix]).strip()
            places, values = found.setdefault(label, ([], []))
            places.append(row["batch_size"])
            values.append(row[key])
    return found


def _lines(
    series: Mapping[str, tuple[Sequence[int], Sequence[float]]],
    title: str,
    *,
    log: bool = False,
    mark: float | None = None,
) -> bytes:
    """Return a picture with a line a series over the batch size."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
    axes = figure.subplots()
    for label, (places, values) in series.items():
        axes.plot(places, values, marker="o", label=label)
    if series:
        sizes = sorted({place for places, _ in series.values() for place in places})
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.legend(fontsize=8)
    else:
        axes.text(0.5, 0.5, _EMPTY, transform=axes.transAxes, ha="center")
    if log and series:
        axes.set_yscale("log")
    if mark is not None and series:
        axes.axhline(mark, color="black", linewidth=1, linestyle="--")
        axes.set_ylim(bottom=0)
    axes.set_xlabel("trajectories in a batch")
    axes.set_ylabel(title)
    axes.grid(visible=True, alpha=0.3)
    content = BytesIO()
    figure.savefig(content, dpi=120, format="png")
    return content.getvalue()
