"""Tables and plots of a resampling result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from leconvert.bench.probe import require_matplotlib
from leconvert.bench.resampling.benchmark import STAGES
from leconvert.support.storage_errors import storage_errors

__all__ = ["csv_rows", "draw_resampling", "result_tables"]

Rows = list[list[str]]
Document = Mapping[str, Any]

# By key, what a column is called and how it is written.
_WAY = {key: (key, "") for key in ("way", "dtype", "device")} | {"batch_size": ("batch", "")}
_RATIOS = {
    "with_packing": ("with packing", ".2f"), "without_copies": ("without copies", ".2f"),
    "kernel": ("kernel alone", ".2f"), "cpu_time": ("CPU time", ".2f"),
}  # fmt: skip
_LOADERS = {
    "path": ("path", ""), "device": ("device", ""), "num_workers": ("workers", ""),
    "batch_size": ("batch", ""), "trajectories_per_s": ("trajectories/s", ".0f"),
    "first_batch_s": ("first batch s", ".3f"),
}  # fmt: skip
_TRAINING = {
    "path": ("path", ""), "num_workers": ("workers", ""), "device": ("device", ""),
    "batch_size": ("batch", ""), "steps_per_s": ("steps/s", ".1f"), "data_s": ("data s", ".3f"),
    "model_s": ("model s", ".3f"), "total_s": ("total s", ".3f"), "data_pct": ("data %", ".1f"),
    "speedup": ("times as fast", ".2f"), "gpu_use_pct": ("GPU %", ".0f"),
    "first_epoch_loss": ("loss first", ".4f"), "last_epoch_loss": ("loss last", ".4f"),
}  # fmt: skip


def result_tables(document: Document) -> list[tuple[str, str, Rows]]:
    """Return the tables of a result that have rows: title, what they show, rows with the head."""
    rows = [
        row | {f"{name} ms": ms for name, ms in row["stages_ms"].items()}
        for row in document["results"]
    ]
    stages = [key for key in (f"{name} ms" for name in STAGES) if any(row[key] for row in rows)]
    results = _WAY | {
        "trajectories_per_s": ("trajectories/s", ".0f"),
        "ms_per_batch": ("ms/batch", ".3f"),
        "p95_batch_ms": ("p95 ms", ".3f"),
        **{key: (key, ".3f") for key in stages},
        "max_abs_error": ("max error", ".1e"),
        "gpu_use_pct": ("GPU %", ".0f"),
    }
    tables = (
        (
            "Pipelines, side by side",
            "Medians over repeats. batched copies the trajectories of a batch together first, "
            "table takes them from a table that was packed once. The error is against numpy.interp "
            "in float64.",
            _written(rows, results),
        ),
        (
            "Times as fast as the baseline",
            "with packing compares everything that is timed on both sides, kernel alone the "
            "resampling without packing, copies and collation.",
            _written(document["speedups"], _WAY | _RATIOS),
        ),
        (
            "Loaders",
            "In baseline and batched, workers of the processor resample; table has the set on the "
            "device and resamples there.",
            _written(document["loaders"] or (), _LOADERS),
        ),
        (
            "Training a small diffusion policy",
            "Times as fast is the total time against the first path with as many workers.",
            _written(document["end_to_end"] or (), _TRAINING),
        ),
    )
    return [table for table in tables if table[2][1:]]


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
# Three plots, each ``STEM-NAME.png``: throughput, latency, speed-up over the batch size.


_SIZE_INCHES = (7.5, 4.5)


def draw_resampling(document: Document, out_dir: Path, stem: str) -> list[Path]:
    """Draw all plots into a folder and return their paths."""
    require_matplotlib()
    results, compared = document["results"], document["speedups"]
    figures = {
        "throughput": _lines(results, {"": "trajectories_per_s"}, "trajectories/s"),
        "latency": _lines(results, {"p50": "p50_batch_ms", "p95": "p95_batch_ms"}, "ms a batch"),
        "speedup": _lines(
            compared,
            {"with packing": "with_packing", "kernel": "kernel"},
            "times as fast as the baseline",
            is_ratio=True,
        ),
    }
    paths = []
    with storage_errors(out_dir):
        out_dir.mkdir(parents=True, exist_ok=True)
        for name, figure in figures.items():
            path = out_dir / f"{stem}-{name}.png"
            figure.savefig(path, dpi=120)
            paths.append(path)
    return paths


def _lines(
    rows: Sequence[Mapping[str, Any]],
    keys: Mapping[str, str],
    title: str,
    *,
    is_ratio: bool = False,
) -> Any:
    """Return a figure with a line a pipeline and key over the batch size."""
    from matplotlib.figure import Figure

    series: dict[str, dict[int, float]] = {}
    for row in rows:
        for suffix, key in keys.items():
            label = f"{row['way']} {row['dtype']} {row['device']} {suffix}".strip()
            series.setdefault(label, {})[row["batch_size"]] = row[key]
    figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
    axes = figure.subplots()
    for label, values in series.items():
        axes.plot(list(values), list(values.values()), marker="o", label=label)
    if series:
        sizes = sorted({size for values in series.values() for size in values})
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.legend(fontsize=8)
        if is_ratio:
            axes.axhline(1, color="black", linewidth=1, linestyle="--")
            axes.set_ylim(bottom=0)
        else:
            axes.set_yscale("log")
    else:
        axes.text(0.5, 0.5, "nothing to compare", transform=axes.transAxes, ha="center")
    axes.set_xlabel("trajectories in a batch")
    axes.set_ylabel(title)
    axes.grid(visible=True, alpha=0.3)
    return figure
