"""A resampling result as one HTML file that needs no other."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape
from io import BytesIO
from pathlib import Path
from typing import Any

from leconvert.probe import require_matplotlib
from leconvert.resampling.benchmark import STAGES
from leconvert.workdir.fs import replace_record
from leconvert.workdir.storage_errors import storage_errors

__all__ = [
    "csv_rows",
    "draw_resampling",
    "loader_table",
    "result_table",
    "speedup_table",
    "training_table",
    "write_report",
]


# ------------------------------------------------------------------------------------------------
# The tables of a resampling result, for a terminal, a CSV file and the report.


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
    """Return what each way did, the head first."""
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
    """Return how each way compares with the baseline, the head first."""
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


# ------------------------------------------------------------------------------------------------
# A resampling result as one HTML file that needs no other.


_STYLE = """\
body { font: 15px/1.5 sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em; }
table { border-collapse: collapse; margin: 1em 0; }
td, th { border: 1px solid #ccc; padding: 0.2em 0.6em; text-align: right; }
img { max-width: 100%; }
"""


def write_report(document: Mapping[str, Any], path: Path, *, command: str) -> None:
    """Write the report."""
    replace_record(path, report_html(document, command=command).encode())


def report_html(document: Mapping[str, Any], *, command: str) -> str:
    """Return the report's text."""
    host, versions, found = document["host"], document["versions"], document["set"]
    gpu = document["gpu"]
    facts = [
        ("command", command),
        ("started", document["started"]),
        ("machine", f"{host['cpu']}, {host['cores']} cores"),
        ("torch threads", document["torch_threads"]),
        ("GPU", "none" if gpu is None else gpu["name"]),
        ("versions", ", ".join(f"{k} {versions[k]}" for k in ("leconvert", "torch", "numpy"))),
        ("set", f"{found['source']}: {found['trajectories']} trajectories, "
                f"{found['samples']} samples"),
        ("rates", _spread(found["rate_hz"], "Hz")),
        ("durations", _spread(found["duration_s"], "s")),
        ("target", f"{document['options']['hz']:g} Hz"),
        ("baseline", f"NumPy, {document['baseline']}"),
    ]  # fmt: skip
    parts = [
        "<h1>Resampling</h1>",
        _table([[escape(name), escape(str(value))] for name, value in facts], head=False),
        "<h2>Ways, side by side</h2>",
        "<p>Medians over repeats. <em>batched</em> copies the trajectories of a batch together "
        "first, <em>table</em> takes them from a table that was packed once. The error is against "
        "numpy.interp in float64.</p>",
        _table(result_table(document)),
        "<h2>Times as fast as the baseline</h2>",
        "<p><em>with packing</em> compares everything that is timed on both sides, <em>kernel "
        "alone</em> the resampling without packing, copies and collation.</p>",
        _table(speedup_table(document)),
    ]
    for title, rows in (
        ("Loaders", loader_table(document)),
        ("Training a small diffusion policy", training_table(document)),
    ):
        if rows[1:]:
            parts += [f"<h2>{title}</h2>", _table(rows)]
    for name, content in pictures(document).items():
        data = base64.b64encode(content).decode()
        parts.append(f'<h2>{name}</h2><img alt="{name}" src="data:image/png;base64,{data}">')
    return (
        "<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'><title>Resampling</title>"
        f"<style>{_STYLE}</style></head><body>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def _table(rows: Sequence[Sequence[str]], *, head: bool = True) -> str:
    lines = []
    for number, row in enumerate(rows):
        cell = "th" if head and number == 0 else "td"
        lines.append("<tr>" + "".join(f"<{cell}>{value}</{cell}>" for value in row) + "</tr>")
    return "<table>" + "".join(lines) + "</table>"


def _spread(numbers: Mapping[str, float] | None, unit: str) -> str:
    if numbers is None:
        return "unknown"
    return f"{numbers['min']:.3g} to {numbers['max']:.3g} {unit}, median {numbers['median']:.3g}"
