"""``meta/provenance.parquet``: the source of each episode of a result.

It exists if the episodes are not simply those of one source: if sources were merged, or episodes
selected. The table's metadata name the sources, and each row has the rest about an episode.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from leconvert.dataset.formats.sources import Sources, SourceView
from leconvert.dataset.formats.stats import rows_of
from leconvert.model.repairs import Repairs
from leconvert.model.values import IntArray, Source
from leconvert.support.errors import UnreadableSourceError
from leconvert.tables.arrow import array_of, int64_array, int64_values
from leconvert.workdir.fs import is_there

PROVENANCE_PATH = "meta/provenance.parquet"
_FORMAT = "leconvert/provenance"
_VERSION = 1
_KEY = b"leconvert"
_SCHEMA = pa.schema(
    [
        pa.field("episode_index", pa.int64(), nullable=False),
        pa.field("source", pa.int64(), nullable=False),
        pa.field("source_episode_index", pa.int64(), nullable=False),
        pa.field("sha256", pa.string(), nullable=False),
    ]
)
_ROWS_AT_A_TIME = 1024


class SourceRecord(NamedTuple):
    """One source in a result's record.

    Attributes:
        name: The name of its folder, or the URL of a source on the Hub.
        codebase_version: The format of its files.
        meta_digest: SHA-256 over its tables, see `Source`.
        repairs: The changes to the source.
    """

    name: str
    codebase_version: str
    meta_digest: str
    repairs: Repairs


class Provenance(NamedTuple):
    """The sources of a result's episodes; arrays have shape (E,).

    Attributes:
        sources: The sources by their numbers.
        episode_index: Index of the episode in the result.
        source: Number of its source.
        source_episode_index: Its index in the source.
        sha256: See `episode_digests`.
    """

    sources: Sequence[SourceRecord]
    episode_index: IntArray
    source: IntArray
    source_episode_index: IntArray
    sha256: Sequence[str]


def has_provenance(sources: Sources) -> bool:
    """Return whether a result of some sources has this table."""
    return len(sources) > 1 or sources[0].repairs.selected_episodes is not None


def episode_digests(source: SourceView) -> Iterator[str]:
    """Yield a SHA-256 of the source's table entries for each episode that the result has.

    It covers the JSON, with sorted keys, of the episode's line in the table of episodes and of its
    statistics there. If the conversion computes all statistics, these are not read and count as
    none.
    """
    for line, stats in zip(source.lines(), rows_of(source.stats_blocks()), strict=True):
        text = json.dumps([line, stats or {}], sort_keys=True, default=_plain)
        yield hashlib.sha256(text.encode()).hexdigest()


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)


def write_provenance(
    root: str | os.PathLike[str],
    sources: Sources,
    planned: Sequence[Source],
    *,
    url: str | None = None,
) -> None:
    """Write the table below ``root``, whose ``meta`` folder exists, block by block.

    The table holds names of folders without their paths. So equal sources give equal results in any
    folder, and a published dataset reveals nothing about the machine.
    """
    told = [
        {
            "source": url or Path(source.root).name,
            "codebase_version": source.codebase_version,
            "meta_digest": source.meta_digest,
            "repairs": source.repairs.as_record() if source.repairs else None,
        }
        for source in planned
    ]
    head = {"format": _FORMAT, "version": _VERSION, "sources": told}
    schema = _SCHEMA.with_metadata({_KEY: json.dumps(head).encode()})
    position = 0
    with pq.ParquetWriter(Path(root) / PROVENANCE_PATH, schema, compression="snappy") as writer:
        for number, source in enumerate(sources):
            digests, first = episode_digests(source), 0
            while block := list(islice(digests, _ROWS_AT_A_TIME)):
                rows = len(block)
                columns = [
                    int64_array(np.arange(position, position + rows)),
                    int64_array(np.full(rows, number)),
                    int64_array(np.ascontiguousarray(source.index[first : first + rows])),
                    array_of(block, pa.string()),
                ]
                writer.write_table(pa.Table.from_arrays(columns, schema=schema))
                position, first = position + rows, first + rows


def read_provenance(root: str | os.PathLike[str]) -> Provenance | None:
    """Return the table of the dataset below ``root``; None if it has none.

    Raises:
        UnreadableSourceError: The table is damaged or of an unknown version.
    """
    path = Path(root) / PROVENANCE_PATH
    if not is_there(path):
        return None
    try:
        with pq.ParquetFile(path) as file:
            table = file.read(use_threads=False)
        head: Mapping[str, Any] = json.loads((table.schema.metadata or {})[_KEY])
        if (head["format"], head["version"]) != (_FORMAT, _VERSION):
            raise ValueError(f"it is {head['format']} version {head['version']}")
        sources = [
            SourceRecord(
                str(entry["source"]),
                str(entry["codebase_version"]),
                str(entry["meta_digest"]),
                Repairs.from_record(entry["repairs"]),
            )
            for entry in head["sources"]
        ]
        if not sources:
            raise ValueError("it has no source")
        columns = [table.column(field.name).cast(field.type) for field in _SCHEMA]
        if any(column.null_count for column in columns):
            raise ValueError("values are missing")
        index, source, source_index = map(int64_values, columns[:3])
        return Provenance(sources, index, source, source_index, columns[3].to_pylist())
    except (
        OSError,
        KeyError,
        ValueError,
        TypeError,
        AttributeError,
        RecursionError,
        pa.ArrowException,
    ) as error:
        raise UnreadableSourceError(
            f"{path} cannot be used: {error}.",
            path=str(path),
            next_step="Convert again, or use the version of leconvert that wrote it.",
        ) from error
