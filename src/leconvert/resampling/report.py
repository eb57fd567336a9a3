"""A resampling result as one HTML file that needs no other."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape
from io import BytesIO
from pathlib import Path
from typing import Any

from leconvert.probe import require_matplotlib
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


_RATIOS = ("with_packing", "without_copies", "kernel", "cpu_time")

Rows = list[list[str]]
Document = Mapping[str, Any]

_SHOWN_STAGES = ("load", "pack", "copy_in", "kernel", "copy_out", "resample", "collate")


def result_table(document: Document) -> Rows:
    """Return what each way did, the head first."""
    results = document["results"]
    stages = [
        name for name in _SHOWN_STAGES if any(row["stages_ms"][name] is not None for row in results)
    ]
    head = ["batch", "way", "dtype", "device", "trajectories/s", "ms/batch", "p95 ms"]
    return [
        [*head, *(f"{name} ms" for name in stages), "max error", "GPU %"],
        *(
            [
                str(row["batch_size"]),
                row["way"],
                row["dtype"],
                row["device"],
                f"{row['trajectories_per_s']:.0f}",
                f"{row['ms_per_batch']:.3f}",
                f"{row['p95_batch_ms']:.3f}",
                *(_shown(row["stages_ms"][name], ".3f") for name in stages),
                f"{row['max_abs_error']:.1e}",
                _shown(row["gpu_use_pct"], ".0f"),
            ]
            for row in results
        ),
    ]


def speedup_table(document: Document) -> Rows:
    """Return how each way compares with the baseline, the head first."""
    return [
        [
            "batch",
            "way",
            "dtype",
            "device",
            "with packing",
            "without copies",
            "kernel alone",
            "CPU time",
        ],
        *(
            [
                str(row["batch_size"]),
                row["way"],
                row["dtype"],
                row["device"],
                *(f"{row[key]:.2f}×" for key in _RATIOS),
            ]
            for row in document["speedups"]
        ),
    ]


def loader_table(document: Document) -> Rows:
    """Return how loaders with workers compare, the head first."""
    return [
        ["path", "workers", "batch", "trajectories/s", "first batch s"],
        *(
            [
                row["path"],
                str(row["num_workers"]),
                str(row["batch_size"]),
                f"{row['trajectories_per_s']:.0f}",
                f"{row['first_batch_s']:.3f}",
            ]
            for row in document["loaders"] or ()
        ),
    ]


def training_table(document: Document) -> Rows:
    """Return where the time of the training went, the head first."""
    return [
        ["path", "workers", "device", "batch", "steps/s", "data s", "model s", "data %",
         "loss first", "loss last"],
        *(
            [
                row["path"],
                str(row["num_workers"]),
                row["device"],
                str(row["batch_size"]),
                _shown(row["steps_per_s"], ".1f"),
                f"{row['data_s']:.3f}",
                f"{row['model_s']:.3f}",
                _shown(row["data_pct"], ".1f"),
                f"{row['first_epoch_loss']:.4f}",
                f"{row['last_epoch_loss']:.4f}",
            ]
            for row in document["end_to_end"] or ()
        ),
    ]  # fmt: skip


def csv_rows(document: Document) -> list[dict[str, Any]]:
    """Return the results as flat rows, each with its ratios where there are any."""
    keys = ("way", "dtype", "device", "batch_size")
    compared = {tuple(row[key] for key in keys): row for row in document["speedups"]}
    rows: Sequence[Mapping[str, Any]] = document["results"]
    return [
        {key: value for key, value in row.items() if key != "raw"}
        | {
            f"speedup_{name}": compared.get(tuple(row[key] for key in keys), {}).get(name)
            for name in _RATIOS
        }
        for row in rows
    ]


def _shown(value: float | None, pattern: str) -> str:
    return "-" if value is None else format(value, pattern)


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
