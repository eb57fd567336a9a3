"""Tables and pictures of a resampling result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from leconvert.probe import require_matplotlib
from leconvert.resampling.benchmark import STAGES
from leconvert.workdir.storage_errors import storage_errors

__all__ = [
    "csv_rows",
    "draw_resampling",
    "loader_table",
    "result_table",
    "speedup_table",
    "training_table",
]


# ------------------------------------------------------------------------------------------------
# The tables of a resampling result, for a terminal, a CSV file and a page.


Rows = list[list[str]]
Document = Mapping[str, Any]

_RATIOS = {
    "with_packing": "with packing",
    "without_copies": "without copies",
    "kernel": "kernel alone",
    "cpu_time": "CPU time",
}
_WAY = {"batch_size": "batch", "way": "way", "dtype": "dtype", "device": "device"}
# Of each table: where its rows are, and by key what a column is called and how it is written.
_LOADERS = {
    "path": ("path", ""), "num_workers": ("workers", ""), "batch_size": ("batch", ""),
    "trajectories_per_s": ("trajectories/s", ".0f"), "first_batch_s": ("first batch s", ".3f"),
}  # fmt: skip
_TRAINING = {
    "path": ("path", ""), "num_workers": ("workers", ""), "device": ("device", ""),
    "batch_size": ("batch", ""), "steps_per_s": ("steps/s", ".1f"), "data_s": ("data s", ".3f"),
    "model_s": ("model s", ".3f"), "data_pct": ("data %", ".1f"),
    "first_epoch_loss": ("loss first", ".4f"), "last_epoch_loss": ("loss last", ".4f"),
}  # fmt: skip


def result_table(document: Document) -> Rows:
    """Return what each pipeline did, the head first."""
    rows = [
        row | {f"{name} ms": ms for name, ms in row["stages_ms"].items()}
        for row in document["results"]
    ]
    stages = [f"{name} ms" for name in STAGES]
    columns = {key: (title, "") for key, title in _WAY.items()} | {
        "trajectories_per_s": ("trajectories/s", ".0f"),
        "ms_per_batch": ("ms/batch", ".3f"),
        "p95_batch_ms": ("p95 ms", ".3f"),
        **{key: (key, ".3f") for key in stages if any(row[key] is not None for row in rows)},
        "max_abs_error": ("max error", ".1e"),
        "gpu_use_pct": ("GPU %", ".0f"),
    }
    return _written(rows, columns)


def speedup_table(document: Document) -> Rows:
    """Return how each pipeline compares with the baseline, the head first."""
    columns = {key: (title, "") for key, title in _WAY.items()}
    return _written(
        [row | {key: f"{row[key]:.2f}×" for key in _RATIOS} for row in document["speedups"]],
        columns | {key: (title, "") for key, title in _RATIOS.items()},
    )


def loader_table(document: Document) -> Rows:
    """Return how loaders with workers compare, the head first."""
    return _written(document["loaders"] or (), _LOADERS)


def training_table(document: Document) -> Rows:
    """Return where the time of the training went, the head first."""
    return _written(document["end_to_end"] or (), _TRAINING)


def csv_rows(document: Document) -> list[dict[str, Any]]:
    """Return the results as flat rows, each with its ratios where there are any."""
    compared = {tuple(row[key] for key in _WAY): row for row in document["speedups"]}
    return [
        {key: value for key, value in row.items() if key != "raw"}
        | {
            f"speedup_{name}": compared.get(tuple(row[key] for key in _WAY), {}).get(name)
            for name in _RATIOS
        }
        for row in document["results"]
    ]


def _written(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, tuple[str, str]]) -> Rows:
    return [
        [title for title, _ in columns.values()],
        *(
            [
                "-" if row[key] is None else format(row[key], how)
                for key, (_, how) in columns.items()
            ]
            for row in rows
        ),
    ]


# ------------------------------------------------------------------------------------------------
# Three pictures of a resampling result: throughput, latency, speed-up.


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
    """Return the pictures as PNG, by name."""
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
