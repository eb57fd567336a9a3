"""``meta/episodes``: one row an episode, in as many files as the size limit asks for.

Columns are the routing columns, those of each camera, the source's own line of ``episodes.jsonl``,
the episode's statistics and, last, the file that the row itself is in. The types of the source's
values are found while writing: the writer goes by the first block of rows and, where a later row
needs more (an integer column gets a fraction, a new key appears), takes the types of all rows and
starts over. So the types never depend on where blocks end.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from leconvert.errors import SourceError
from leconvert.model import FILES_PER_CHUNK
from leconvert.tables.arrays import int64_array
from leconvert.tables.columns import RowBlock, storable, widened
from leconvert.tables.footers import open_parquet, unreadable
from leconvert.tables.paths import EPISODES_DIR, episodes_path
from leconvert.tables.schemas import feature_of_type, huggingface_metadata
from leconvert.workdir.trees import make_folders_below

__all__ = ["EpisodeRecord", "VideoSpan", "read_episodes", "write_episodes"]

# Rows of a row group.
_GROUP_ROWS = 1000
# Rows that are held as Python's values before they become columns; those take ten times the room.
_BLOCK_ROWS = 125
_STATS_PREFIX = "stats/"
_FILE_COLUMNS = ("meta/episodes/chunk_index", "meta/episodes/file_index")


@dataclass(frozen=True, slots=True)
class VideoSpan:
    """Where one camera's frames of an episode are.

    Attributes:
        key: The video feature.
        file: Number of the camera's output file, from 0.
        from_frame: First frame of the episode within that file.
        to_frame: Frame after the last.
    """

    key: str
    file: int
    from_frame: int
    to_frame: int


@dataclass(frozen=True, slots=True)
class EpisodeRecord:
    """All that ``meta/episodes`` says about one episode.

    Attributes:
        episode_index: Its index in the result.
        data_file: Number of the data file that holds its rows, from 0.
        dataset_from_index: First of its rows in the whole dataset.
        length: Number of its rows.
        videos: One span a camera, sorted by key.
        legacy: Its line of ``episodes.jsonl``; keys keep their order. ``episode_index`` and
            ``length`` above take precedence over what it says.
        stats: Its statistics, feature to statistic to value; None where the source has none.
    """

    episode_index: int
    data_file: int
    dataset_from_index: int
    length: int
    videos: tuple[VideoSpan, ...]
    legacy: Mapping[str, Any]
    stats: Mapping[str, Any] | None


def write_episodes(
    root: str | os.PathLike[str],
    episodes: Callable[[], Iterable[EpisodeRecord]],
    *,
    fps: Fraction,
    file_size_limit_bytes: int = 100 * 1024**2,
) -> list[str]:
    """Write ``meta/episodes`` below ``root``.

    Memory is bounded by one block of rows and one file's footer, not by the number of episodes.

    Args:
        root: The new dataset's folder.
        episodes: Gives the records in order, the same ones each time; called once, or three times
            where a later record needs wider types than the first hundred or so.
        fps: Frames a second; a span starts at ``from_frame / fps`` seconds, rounded once.
        file_size_limit_bytes: A new file starts where the rows of one would take more than this in
            memory, as Arrow counts it. A file has one row at least.

    Returns:
        The files written, relative to ``root``, in row order.

    Raises:
        SourceError: There is no episode, or the values of a statistic do not go together.
    """
    writer = _EpisodesWriter(Path(root), file_size_limit_bytes)
    if not writer.write(_blocks(episodes(), fps), None):
        schema: pa.Schema | None = None
        for block in _blocks(episodes(), fps):
            schema = widened(schema, block.schema())
        writer.discard()
        complete = writer.write(_blocks(episodes(), fps), schema)
        assert complete, "the schema of all rows holds every row"
    if not writer.paths:
        raise SourceError(
            f"There is no episode to write below {os.fspath(root)}.",
            path=os.fspath(root),
            next_step="Convert a dataset that has episodes.",
        )
    return writer.paths


def read_episodes(root: str | os.PathLike[str], *, stats: bool = False) -> pa.Table:
    """Read ``meta/episodes`` below ``root``: all files in text order, rows in order.

    Args:
        root: A v3.0 dataset's folder.
        stats: Whether to read the ``stats/`` columns too; they are most of the bytes.

    Raises:
        UnreadableSourceError: A file is missing or damaged, or files do not go together.
    """
    folder = Path(root) / EPISODES_DIR
    paths = sorted(folder.glob("*/*.parquet"), key=str) or [Path(root) / episodes_path(0)]
    tables: list[pa.Table] = []
    for path in paths:
        reader = open_parquet(path)
        try:
            leaves = [
                number
                for number, leaf in enumerate(reader.column_paths)
                if stats or not leaf[0].startswith(_STATS_PREFIX)
            ]
            tables.append(reader.read_all(column_indices=leaves, use_threads=False))
            tables[-1].validate(full=True)  # texts are texts, lists lie within their values
        except (OSError, pa.ArrowException) as error:
            raise unreadable(path, error) from error
        finally:
            reader.close()
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        raise unreadable(folder, error) from error


def _blocks(episodes: Iterable[EpisodeRecord], fps: Fraction) -> Iterator[RowBlock]:
    remaining = iter(episodes)
    while records := list(islice(remaining, _BLOCK_ROWS)):
        yield _block(records, fps)


def _block(records: Sequence[EpisodeRecord], fps: Fraction) -> RowBlock:
    block = RowBlock()
    for record in records:
        # Plain integers: numbers that come out of NumPy arrays are of another type.
        start = int(record.dataset_from_index)
        row: dict[str, Any] = {
            "episode_index": int(record.episode_index),
            "data/chunk_index": int(record.data_file // FILES_PER_CHUNK),
            "data/file_index": int(record.data_file % FILES_PER_CHUNK),
            "dataset_from_index": start,
            "dataset_to_index": start + int(record.length),
        }
        for span in record.videos:
            prefix = f"videos/{span.key}/"
            row[prefix + "chunk_index"] = int(span.file // FILES_PER_CHUNK)
            row[prefix + "file_index"] = int(span.file % FILES_PER_CHUNK)
            row[prefix + "from_timestamp"] = _seconds(span.from_frame, fps)
            row[prefix + "to_timestamp"] = _seconds(span.to_frame, fps)
        row |= {key: value for key, value in record.legacy.items() if key not in row}
        row["length"] = int(record.length)
        block.add(row, record.stats)
    return block


def _seconds(frame: int, fps: Fraction) -> float:
    # Python divides integers exactly and rounds once; NumPy's operands would be rounded before.
    return int(frame) * fps.denominator / fps.numerator


class _EpisodesWriter:
    """Writes blocks of rows and starts new files.

    ``write`` says False as soon as a block does not fit the types it goes by; what it wrote until
    then is void and ``discard`` removes it.
    """

    def __init__(self, root: Path, file_size_limit_bytes: int) -> None:
        self._root = root
        self._limit_bytes = file_size_limit_bytes
        self._file_bytes = 0
        self._writer: pq.ParquetWriter | None = None
        self.paths: list[str] = []

    def write(self, blocks: Iterable[RowBlock], schema: pa.Schema | None) -> bool:
        group: list[pa.Table] = []
        rows = 0
        try:
            for block in blocks:
                found = block.schema()
                if schema is None:
                    schema = found
                elif widened(schema, found) != schema:
                    return False
                group.append(block.table(storable(schema)))
                rows += group[-1].num_rows
                if rows >= _GROUP_ROWS:
                    self._append(pa.concat_tables(group).combine_chunks())
                    group.clear()
                    rows = 0
            if group:
                self._append(pa.concat_tables(group).combine_chunks())
        finally:
            self._close()
            # The writer held a page for each of a hundred columns; what comes next has none.
            pa.default_memory_pool().release_unused()
        return True

    def discard(self) -> None:
        for path in self.paths:
            (self._root / path).unlink()
        self.paths.clear()

    def _append(self, rows: pa.Table) -> None:
        done = 0
        # The file columns add two integers to each row.
        row_bytes = max(1, -(-rows.nbytes // rows.num_rows)) + 2 * 8
        while done < rows.num_rows:
            fitting = (self._limit_bytes - self._file_bytes) // row_bytes
            if self._writer is not None and fitting < 1:
                self._close()
                continue
            count = min(rows.num_rows - done, max(1, fitting))
            self._write_rows(rows.slice(done, count))
            self._file_bytes += count * row_bytes
            done += count

    def _write_rows(self, rows: pa.Table) -> None:
        if self._writer is None:
            self.paths.append(episodes_path(len(self.paths)))
        chunk, file = divmod(len(self.paths) - 1, FILES_PER_CHUNK)
        for name, number in zip(_FILE_COLUMNS, (chunk, file), strict=True):
            rows = rows.append_column(
                pa.field(name, pa.int64()), int64_array(number, rows.num_rows)
            )
        if self._writer is None:
            features = {field.name: feature_of_type(field.type) for field in rows.schema}
            entries = {name: entry for name, entry in features.items() if entry is not None}
            schema = rows.schema.with_metadata(huggingface_metadata(entries))
            path = self._root / self.paths[-1]
            make_folders_below(self._root, path.parent)
            self._writer = pq.ParquetWriter(str(path), schema, compression="snappy")
        self._writer.write_table(rows.combine_chunks())

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = None
        self._file_bytes = 0
