"""Results as files: one JSON document a measurement, and the same flattened to CSV.

Every document begins with format and version, and says by ``kind`` what it is: ``run``, ``limit``,
``diagnose`` or ``resample``. ``docs/formats/probe-result.schema.json`` describes them all. Readers
pass over keys that they do not know, and over documents of a later version.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from leconvert.errors import StorageError, UsageError
from leconvert.workdir.durable import replace_record
from leconvert.workdir.trouble import storage_errors

__all__ = [
    "FORMAT",
    "VERSION",
    "begin_document",
    "csv_text",
    "flattened",
    "read_results",
    "results_below",
    "run_name",
    "write_document",
    "write_table",
]

FORMAT = "leconvert/probe"
VERSION = 1

Document = Mapping[str, Any]


def begin_document(kind: str, *, now: datetime | None = None) -> dict[str, Any]:
    """Return the keys that every document begins with."""
    started = now or datetime.now(UTC)
    return {
        "format": FORMAT,
        "version": VERSION,
        "kind": kind,
        "started": started.isoformat(timespec="seconds"),
    }


def run_name(options: Mapping[str, Any]) -> str:
    """Return the stem of a run's files, from its options."""
    scenario = options["scenario"] or "probe"
    device = options["decode_device"]
    if options["device"] != device:
        device = f"{device}-to-{options['device']}"
    return (
        f"{scenario}-{options['loader']}-{options['mode']}-b{options['batch_size']}"
        f"-w{options['num_workers']}-{str(device).replace(':', '')}"
        f"-r{options['rank']}of{options['world_size']}"
    )


def flattened(document: Document) -> dict[str, Any]:
    """Return a document as one row: nested keys joined by dots, lists as JSON text."""
    return dict(_leaves(document, ""))


def _leaves(node: Document, prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{name}.")
        elif isinstance(value, list | tuple):
            yield name, json.dumps(value)
        else:
            yield name, value


def csv_text(documents: Sequence[Document]) -> str:
    """Return documents as CSV: a column a key in the order of first appearance, a row each."""
    rows = [flattened(document) for document in documents]
    columns = dict.fromkeys(key for row in rows for key in row)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def write_document(document: Document, out_dir: Path, stem: str) -> Path:
    """Write ``STEM.json`` and ``STEM.csv``; a number is added where the name is taken.

    Returns:
        The path of the JSON file.

    Raises:
        StorageError: The folder cannot be made or written.
    """
    with storage_errors(out_dir):
        out_dir.mkdir(parents=True, exist_ok=True)
        path = _claimed(out_dir, stem)
    replace_record(path, (json.dumps(document, indent=2) + "\n").encode())
    write_table([document], path.with_suffix(".csv"))
    return path


def write_table(documents: Sequence[Document], path: Path) -> None:
    """Write documents as one CSV file.

    Raises:
        StorageError: It cannot be written.
    """
    replace_record(path, csv_text(documents).encode())


def _claimed(out_dir: Path, stem: str) -> Path:
    """Take a name that no other process has: ranks on several hosts may write to one folder."""
    number = 1
    while True:
        path = out_dir / (f"{stem}.json" if number == 1 else f"{stem}-{number}.json")
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            number += 1
        else:
            return path


def read_results(paths: Iterable[Path]) -> Iterator[tuple[Path, Document]]:
    """Yield the documents among some JSON files, in order of path.

    Files of another format, unfinished ones and later versions are passed over.

    Raises:
        StorageError: A file cannot be read.
    """
    for path in sorted(paths):
        try:
            content = json.loads(path.read_bytes())
        except ValueError:
            continue
        except OSError as error:
            raise StorageError(
                f"{path} cannot be read: {error.strerror}.", path=str(path)
            ) from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            continue
        if content.get("version") == VERSION:
            yield path, content


def results_below(folder: Path) -> list[tuple[Path, Document]]:
    """Return all documents in a folder and the folders below it.

    Raises:
        UsageError: There is no such folder.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder.", path=str(folder))
    return list(read_results(folder.rglob("*.json")))
