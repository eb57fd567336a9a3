"""The tables of a resampling result, for a terminal, a CSV file and the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["csv_rows", "loader_table", "result_table", "speedup_table", "training_table"]

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
