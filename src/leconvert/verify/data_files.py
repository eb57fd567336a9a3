"""One data file of a v3.0 dataset: schema, row groups, and the five columns that place a row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from leconvert.model import DATA_STREAM, Finding, IntArray
from leconvert.verify.catalogue import found
from leconvert.verify.columns import integers
from leconvert.verify.data_rows import ROWS_AT_A_TIME, RowCheck
from leconvert.verify.data_types import check_schema, plain_type
from leconvert.verify.dataset_routes import Ranges, RoutedFile
from leconvert.verify.declared import Declared
from leconvert.verify.episode_rows import EpisodeTable

__all__ = ["DataFileReport", "check_data_file"]


@dataclass(slots=True)
class DataFileReport:
    """What a look at one data file gives.

    Attributes:
        findings: What is wrong with it.
        columns: Names and types of its columns; None where it could not be read, or they are a
            finding of their own.
        untimed: Episodes whose timestamps are wrong, so that nothing can be said of their video
            frames; None where rows were not compared.
    """

    findings: list[Finding] = field(default_factory=list)
    columns: tuple[tuple[str, str], ...] | None = None
    untimed: IntArray | None = None


def check_data_file(
    root: Path,
    routed: RoutedFile,
    table: EpisodeTable,
    ranges: Ranges,
    declared: Declared,
    num_tasks: int | None,
) -> DataFileReport:
    """Check one data file; memory is bounded by a block of rows of five columns, and its footer.

    Args:
        root: The dataset.
        routed: The file and its episodes.
        table: What meta/episodes says.
        ranges: The rows of each episode.
        declared: What info.json declares.
        num_tasks: Number of tasks, None where unknown.
    """
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
                rows = RowCheck(routed, table, ranges, declared, num_tasks)
                report.findings += rows.check(file)
                report.untimed = rows.untimed
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
    counts = _rows_of_episodes(file, routed)
    if counts is not None and not np.array_equal(counts, lengths):
        first = int(np.argmax(counts != lengths))
        episode = int(routed.episodes[first])
        detail = f"; episode {episode} has {counts[first]:,} of {lengths[first]:,}"
    message = f"{routed.path} has {rows:,} rows, its episodes have {wanted:,}{detail}."
    return found("rows", message, episode=episode, stream=DATA_STREAM, path=routed.path)


def _rows_of_episodes(file: pq.ParquetFile, routed: RoutedFile) -> IntArray | None:
    """Count each episode's rows by their column; None where it does not tell of every row."""
    if "episode_index" not in file.schema_arrow.names:
        return None
    counts = np.zeros(len(routed.episodes), np.int64)
    for batch in file.iter_batches(ROWS_AT_A_TIME, columns=["episode_index"], use_threads=False):
        values = integers(batch.column(0))
        if values is None:
            return None
        at = np.searchsorted(routed.episodes, values)
        at[at == len(counts)] = 0
        counts += np.bincount(at[routed.episodes[at] == values], minlength=len(counts))
    return counts
