"""``meta/episodes`` of a v3.0 dataset as it stands on disk: one row an episode."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path

import pyarrow as pa

from leconvert.formats.v3.info import EPISODES_DIR, episodes_path
from leconvert.tables.footers import open_parquet, row_group_rows, unreadable

__all__ = ["EpisodesReader", "read_episodes"]

_STATS_PREFIX = "stats/"


class EpisodesReader:
    """The rows of ``meta/episodes`` below a folder: all files in text order, rows in order.

    Nothing of them is kept. Files that do not go together show in the types of what is read.

    Args:
        root: A v3.0 dataset's folder.

    Raises:
        UnreadableSourceError: A file is missing or damaged.

    Attributes:
        num_rows: Rows of all files.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        folder = Path(root) / EPISODES_DIR
        paths = sorted(folder.glob("*/*.parquet"), key=str) or [Path(root) / episodes_path(0)]
        self._groups = [
            (path, group, rows)
            for path in paths
            for group, rows in enumerate(row_group_rows(path))
            if rows
        ]
        self._ends = list(accumulate(rows for _, _, rows in self._groups))
        self.num_rows = self._ends[-1] if self._ends else 0

    def blocks(self, wanted: Callable[[str], bool]) -> Iterator[pa.Table]:
        """Yield all rows, those of a row group at a time.

        Args:
            wanted: Whether to read a column, by its name.
        """
        return self._read(0, len(self._groups), wanted)

    def rows(self, first: int, stop: int, wanted: Callable[[str], bool]) -> Iterator[pa.Table]:
        """Yield rows ``first`` to ``stop``, in one table or several.

        Args:
            wanted: As for `blocks`.
        """
        group = bisect_right(self._ends, first)
        last = bisect_right(self._ends, stop - 1)
        begin = self._ends[group - 1] if group else 0
        for table in self._read(group, last + 1, wanted):
            skipped = max(0, first - begin)
            yield table.slice(skipped, stop - begin - skipped)
            begin += table.num_rows

    def _read(self, group: int, stop: int, wanted: Callable[[str], bool]) -> Iterator[pa.Table]:
        reader, opened = None, None
        try:
            for path, number, _ in self._groups[group:stop]:
                if reader is None or opened != path:
                    if reader is not None:
                        reader.close()
                    reader, opened = open_parquet(path), path
                try:
                    leaves = [
                        leaf for leaf, names in enumerate(reader.column_paths) if wanted(names[0])
                    ]
                    rows = reader.read_row_group(number, column_indices=leaves, use_threads=False)
                    rows.validate(full=True)  # texts are texts, lists lie within their values
                except (OSError, pa.ArrowException) as error:
                    raise unreadable(path, error) from error
                yield rows
        finally:
            if reader is not None:
                reader.close()


def read_episodes(root: str | os.PathLike[str], *, stats: bool = False) -> pa.Table:
    """Read ``meta/episodes`` below ``root``: all files in text order, rows in order."""
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
