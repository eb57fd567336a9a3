"""A resampling result as one HTML file that needs no other."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from leconvert.probe.resampling.plots import pictures
from leconvert.probe.resampling.tables import (
    loader_table,
    result_table,
    speedup_table,
    training_table,
)
from leconvert.workdir.durable import replace_record

__all__ = ["report_html", "write_report"]

_STYLE = """\
body { font: 15px/1.5 sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em; }
table { border-collapse: collapse; margin: 1em 0; }
td, th { border: 1px solid #ccc; padding: 0.2em 0.6em; text-align: right; }
img { max-width: 100%; }
"""


def write_report(document: Mapping[str, Any], path: Path, *, command: str) -> None:
    """Write the report.

    Args:
        document: The result.
        path: Where it goes; an older one is replaced.
        command: What was run.

    Raises:
        InstallationError: matplotlib is not installed.
        StorageError: It cannot be written.
    """
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
