"""``open`` and pyarrow's parquet writer, as a watcher sees them."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import Any

import pyarrow.parquet as pq

from leconvert.testing.watcher import Watcher, half_of, where_of

__all__ = ["watched_open", "watched_parquet_writer"]


def watched_open(watcher: Watcher) -> Callable[..., Any]:
    """Return an ``open`` whose files are watched while they are written."""
    real = io.open

    class File(io.FileIO):
        """An unbuffered file whose opening and writing are watched."""

        def __init__(self, path: Any, mode: str, opener: Any) -> None:
            def begin() -> None:
                super(File, self).__init__(path, mode, opener=opener)

            if opener is not None or isinstance(path, int):
                begin()  # the opener is watched
            else:
                where = where_of(watcher, path)
                watcher.do("open", (where,), begin, changes=mode != "r+")
                watcher.descriptors.opened(self.fileno(), where)

        def write(self, data: Any) -> int:
            view, write = memoryview(data).cast("B"), super().write
            return watcher.do(
                "write",
                (where_of(watcher, self.fileno()),),
                lambda: int(write(view) or 0),
                half=lambda: int(write(view[: half_of(len(view))]) or 0),
                counts_bytes=True,
            )

        def truncate(self, size: int | None = None) -> int:
            truncate = super().truncate
            return watcher.do(
                "ftruncate", (where_of(watcher, self.fileno()),), lambda: truncate(size)
            )

    def call(
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        options = (buffering, encoding, errors, newline, closefd, opener)
        if isinstance(file, int) or not watcher.watches((where := where_of(watcher, file),)):
            return real(file, mode, *options)
        if not set(mode) & set("wax+"):
            looked = watcher.do("open", (where,), lambda: real(file, mode, *options), changes=False)
            watcher.descriptors.opened(looked.fileno(), where)
            return looked
        raw = File(file, mode.replace("b", "").replace("t", ""), opener)
        if buffering == 0:
            return raw
        buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding, errors, newline)

    return call


def watched_parquet_writer(opened: Callable[..., Any]) -> type[Any]:
    """Return a parquet writer that writes into a file which ``opened`` opened."""

    class ParquetWriter(pq.ParquetWriter):  # type: ignore[misc]
        """Writes into a file that Python opened."""

        def __init__(self, where: Any, schema: Any, *rest: Any, **options: Any) -> None:
            file = opened(where, "wb") if isinstance(where, str | os.PathLike) else None
            try:
                super().__init__(where if file is None else file, schema, *rest, **options)
            finally:
                self.file_handle = file

    return ParquetWriter
