"""One data file of a v3.0 dataset: schema, row groups, and the five columns that place a row."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from leconvert.dataset.findings import found
from leconvert.dataset.formats.v3 import (
    Declared,
    EpisodeTable,
    Feature,
    OtherTasks,
    Ranges,
    RoutedFile,
    RowCheck,
    rows_by_column,
)
from leconvert.model.repairs import DEFAULT_COLUMNS
from leconvert.model.values import DATA_STREAM, Finding, IntArray
from leconvert.tables.schemas import (
    HUGGINGFACE_KEY,
    NUMBER_DTYPES,
    dtype_name,
    is_image_entry,
    read_by_lerobot,
)

# The schema of a data file against what info.json declares.


def check_schema(schema: pa.Schema, declared: Declared, path: str) -> Iterator[Finding]:
    """Yield columns that are missing, too many, or of another type.

    What LeRobot casts without a word (another width of number, a list of any length) is a warning
    or nothing, the rest an error: its loader passes the declared types to `datasets`, which raises.
    """

    def wrong(code: str, message: str, *, severity: str | None = None) -> Finding:
        return found(code, message, stream=DATA_STREAM, path=path, severity=severity)

    features = declared.features
    stored = {key: feature for key, feature in features.items() if feature.dtype != "video"}
    missing = sorted(stored.keys() - set(schema.names))
    extra = sorted(set(schema.names) - declared.names | set(schema.names) & set(declared.cameras))
    if missing:
        yield wrong("data-columns", f"There is no column {', '.join(map(repr, missing))}.")
    if extra:
        yield wrong("data-columns", f"info.json does not declare {', '.join(map(repr, extra))}.")
    if len(set(schema.names)) < len(schema.names):
        yield wrong("data-columns", "Two columns have the same name.")
        return
    entries = _dataset_entries(schema)
    for name in schema.names:
        if name not in stored:
            continue
        feature, kind = stored[name], schema.field(name).type
        reading = read_by_lerobot(name, feature.raw, kind)
        if feature.dtype == "image":
            if reading.verdict != "exact":
                yield wrong("data-types", f"The image {name!r} is stored as {kind}.")
            elif not is_image_entry(entries.get(name)):
                yield wrong("image-metadata", f"The entry of {name!r} is {entries.get(name)!r}.")
        elif reading.verdict != "exact" and not _is_seen_in_rows(name, feature, kind):
            # Texts that happen to be numbers, and numbers as texts, are cast too; nobody means it.
            is_alike = {feature.dtype, dtype_name(kind)} <= NUMBER_DTYPES
            declared_as = f"{feature.dtype} of shape {list(feature.shape)}"
            yield wrong(
                "data-types",
                f"{name!r} is declared as {declared_as} and stored as {plain_type(kind)}.",
                severity="warning" if is_alike and reading.verdict == "cast" else "error",
            )


def _is_seen_in_rows(name: str, feature: Feature, kind: pa.DataType) -> bool:
    """Whether `RowCheck` says what is wrong: LeRobot's own columns are numbers, integers whole."""
    if name not in DEFAULT_COLUMNS or tuple(feature.shape) != (1,):
        return False
    if pa.types.is_floating(kind):
        return DEFAULT_COLUMNS[name] == feature.dtype == "int64"
    return not pa.types.is_integer(kind) and feature.dtype in NUMBER_DTYPES


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the storage type of an extension type, and other types as they are."""
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _dataset_entries(schema: pa.Schema) -> Mapping[str, Any]:
    """Return what the file tells `datasets` about its columns."""
    try:
        entries = json.loads((schema.metadata or {})[HUGGINGFACE_KEY])["info"]["features"]
    except (KeyError, ValueError, TypeError, RecursionError):
        return {}
    return entries if isinstance(entries, dict) else {}


# One data file of a v3.0 dataset: schema, row groups, and the five columns that place a row.


@dataclass(slots=True)
class DataFileReport:
    """What a look at one data file gives.

    Attributes:
        findings: What is wrong with it.
        columns: Names and types of its columns; None where it could not be read, or they are a
            finding of their own.
        untimed: Episodes whose timestamps are wrong, so that nothing can be said of their video
            frames; None where rows were not compared.
        other_tasks: Episodes for which ``meta/episodes`` lists other tasks than their rows have.
    """

    findings: list[Finding] = field(default_factory=list)
    columns: tuple[tuple[str, str], ...] | None = None
    untimed: IntArray | None = None
    other_tasks: Mapping[int, OtherTasks] = field(default_factory=dict)


def check_data_file(
    root: Path,
    routed: RoutedFile,
    table: EpisodeTable,
    ranges: Ranges,
    declared: Declared,
    num_tasks: int | None,
    task_numbers: IntArray | None = None,
) -> DataFileReport:
    """Check one data file; memory is bounded by a block of rows of five columns, and its footer."""
    report = DataFileReport()
    path = routed.path
    if not (root / path).exists():
        first = int(routed.episodes[0])
        message = f"{path} is not there; {len(routed.episodes):,} episodes are in it."
        report.findings.append(
            found("missing-file", message, episode=first, stream=DATA_STREAM, path=path)
        )
        return report
    try:
        with pq.ParquetFile(root / path) as file:
            schema = file.schema_arrow
            report.findings += check_schema(schema, declared, path)
            if not report.findings:
                report.columns = tuple((item.name, str(plain_type(item.type))) for item in schema)
            lengths = ranges.length[routed.episodes]
            if file.metadata.num_rows == int(lengths.sum()):
                report.findings += _row_group_findings(file, routed, lengths)
                rows = RowCheck(
                    routed, table, ranges, declared, num_tasks, task_numbers=task_numbers
                )
                report.findings += rows.check(file)
                report.untimed = rows.untimed
                report.other_tasks = rows.other_tasks
            else:
                report.findings.append(_wrong_rows(file, routed, lengths))
    except (OSError, ValueError, pa.ArrowException) as error:
        message = f"{path} cannot be read: {error}"
        report.findings.append(found("unreadable-file", message, stream=DATA_STREAM, path=path))
    return report


def _row_group_findings(
    file: pq.ParquetFile, routed: RoutedFile, lengths: IntArray
) -> Iterator[Finding]:
    groups = [file.metadata.row_group(group) for group in range(file.num_row_groups)]
    if [group.num_rows for group in groups] == lengths.tolist():
        return
    largest = max(groups, key=lambda group: group.total_byte_size)
    message = (
        f"{routed.path} has {len(lengths):,} episodes of {lengths.mean():,.0f} rows on average, "
        f"and row groups of up to {largest.num_rows:,} rows, "
        f"{largest.total_byte_size / 2**20:,.1f} MiB ({len(groups):,} in all)."
    )
    yield found("row-groups", message, stream=DATA_STREAM, path=routed.path)


def _wrong_rows(file: pq.ParquetFile, routed: RoutedFile, lengths: IntArray) -> Finding:
    """Say which episode has another number of rows, as far as its column tells."""
    rows, wanted = file.metadata.num_rows, int(lengths.sum())
    episode, detail = None, ""
    _, counts = rows_by_column(file, routed.episodes)
    if counts.any() and not np.array_equal(counts, lengths):
        first = int(np.argmax(counts != lengths))
        episode = int(routed.episodes[first])
        detail = f"; episode {episode} has {counts[first]:,} of {lengths[first]:,}"
    message = f"{routed.path} has {rows:,} rows, its episodes have {wanted:,}{detail}."
    return found("rows", message, episode=episode, stream=DATA_STREAM, path=routed.path)
