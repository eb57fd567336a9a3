"""Statistics of the features of one episode, of its table and its clips; quantiles of all."""

from __future__ import annotations

import itertools
import os
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from leconvert import media, tables
from leconvert.dataset.statistics.columns import (
    QUANTILES,
    ImageStats,
    QuantileCheck,
    QuantileSearch,
    column_stats,
    sample_indices,
)
from leconvert.support.errors import UnreadableSourceError
from leconvert.support.text import GET_AGAIN

# Kinds of features that LeRobot computes no statistics for.
_WITHOUT_STATS = ("string", "language")


def is_depth_map(feature: Mapping[str, Any]) -> bool:
    """Return whether a feature of ``info.json`` holds distances and not colours.

    LeRobot's mark is ``is_depth_map`` in ``info``; older datasets have ``video.is_depth_map`` there
    or in ``video_info``.
    """
    infos = (feature.get("info"), feature.get("video_info"))
    return any(
        bool(info.get(key))
        for info in infos
        if isinstance(info, Mapping)
        for key in ("is_depth_map", "video.is_depth_map")
    )


def table_stats(
    table: pa.Table,
    features: Mapping[str, Mapping[str, Any]],
    *,
    names: Collection[str],
    quantiles: bool,
    path: str | None = None,
    levels: dict[str, Any] | None = None,
) -> dict[str, dict[str, Any]]:
    """Compute the statistics of the features that an episode's table holds.

    Numbers are taken whole; images are sampled, and only sampled ones are decoded.

    Returns:
        Feature to statistics, in the order of ``features``.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, feature in features.items():
        kind = feature.get("dtype")
        if name not in names or kind == "video" or kind in _WITHOUT_STATS:
            continue
        try:
            if table.schema.get_field_index(name) < 0:
                raise ValueError("it has no column")
            column = table.column(name)
            if kind == "image":
                images = _image_stats(column, is_depth=is_depth_map(feature), quantiles=quantiles)
                stats: dict[str, Any] | None = images.result()
                if levels is not None:
                    levels[name] = images.levels()
            else:
                stats = column_stats(column, quantiles=quantiles)
        except (ValueError, UnreadableSourceError) as error:
            reason = error.message[:-1] if isinstance(error, UnreadableSourceError) else str(error)
            raise _not_computed(name, path, reason) from error
        if stats is not None:
            found[name] = stats
    return found


def clip_stats(
    path: str | os.PathLike[str],
    episodes: Sequence[tuple[int, int]],
    *,
    is_depth: bool = False,
    quantiles: bool,
    levels: list[Any] | None = None,
) -> Iterator[dict[str, Any]]:
    """Compute the statistics of one camera in some episodes of one file, in one pass over it.

    They are those of sampled frames; memory is that of one frame.

    Args:
        episodes: First frame of each in the order of presentation, and its number of frames; in
            the order of the file.
        levels: Gets `ImageStats.levels` of each episode just before its statistics.

    Yields:
        Statistics of each episode, of shape (3, 1, 1) in 0..1, or (1, 1, 1) in stored values for
        depth.
    """
    if any(length < 1 for _, length in episodes):
        raise UnreadableSourceError(
            f"The statistics of {path} cannot be computed: its episode has no frames.",
            path=os.fspath(path),
            next_step="Drop the episode (--on-bad-episode drop).",
        )
    samples = [[first + rank for rank in sample_indices(length)] for first, length in episodes]
    pictures = media.decode_shown(path, itertools.chain.from_iterable(samples), is_depth=is_depth)
    for wanted in samples:
        stats = ImageStats(quantiles=quantiles, is_depth=is_depth)
        for _, picture in itertools.islice(pictures, len(wanted)):
            stats.add(picture)
        if levels is not None:
            levels.append(stats.levels())
        yield stats.result()


# Quantiles of a whole dataset, from its rows.


def columns_with_quantiles(
    stats: Mapping[str, Mapping[str, Any]], features: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """Return the columns of numbers among the features whose statistics have quantiles."""
    others = ("image", "video", *_WITHOUT_STATS)
    return [
        name
        for name, found in stats.items()
        if QUANTILES.keys() <= found.keys()
        and name in features
        and features[name].get("dtype") not in others
    ]


def dataset_quantiles(
    paths: Sequence[str], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, dict[str, Any]]:
    """Compute the quantiles of columns over all rows of some tables.

    The tables are read several times; memory is that of a few rows and of 32 MiB a column.

    Returns:
        Column to quantiles; nothing of columns that no such statistics are of.
    """
    searches = {name: QuantileSearch(shape) for name, shape in shapes.items()}
    found: dict[str, dict[str, Any]] = {}
    while searches:
        _over_rows(paths, searches)
        for name, search in list(searches.items()):
            search.end_pass()
            if search.is_done:
                found[name] = searches.pop(name).result()
    return found


def wrong_quantiles(
    paths: Sequence[str], stats: Mapping[str, Mapping[str, Any]]
) -> dict[str, list[str]]:
    """Tell which quantiles of columns are not those of all rows of some tables, in one pass.

    Returns:
        Column to the names of quantiles; nothing of columns that no such statistics are of.
    """
    checks: dict[str, QuantileCheck] = {}
    for name, found in stats.items():
        with suppress(ValueError, TypeError):
            checks[name] = QuantileCheck(found)
    if checks:
        _over_rows(paths, checks)
    return {name: check.wrong() for name, check in checks.items()}


def _over_rows[Column: (QuantileSearch, QuantileCheck)](
    paths: Sequence[str], columns: dict[str, Column]
) -> None:
    """Add all rows; a column that is no such one is taken out."""
    for path in paths:
        for rows in tables.read_columns(path, columns):
            for name, column in list(columns.items()):
                try:
                    column.add(rows.column(name))
                except (ValueError, KeyError):
                    del columns[name]


def _image_stats(column: pa.ChunkedArray, *, is_depth: bool, quantiles: bool) -> ImageStats:
    stats = ImageStats(quantiles=quantiles, is_depth=is_depth)
    for row in sample_indices(len(column)):
        try:
            data = _image_file(column.slice(row, 1).chunk(0))
            stats.add(media.decode_image(memoryview(data), is_depth=is_depth))
        except ValueError as error:
            raise ValueError(f"row {row}: {error}") from error
        except UnreadableSourceError as error:
            raise ValueError(f"row {row}: {error.message[:-1]}") from error
    return stats


def _image_file(chunk: pa.Array) -> pa.Buffer:
    """Return the encoded bytes in the first cell of an image column, which are not copied."""
    while isinstance(chunk.type, pa.BaseExtensionType):
        chunk = chunk.storage
    if pa.types.is_struct(chunk.type):
        if not chunk[0].is_valid:
            raise ValueError("there is no image")
        if chunk.type.get_field_index("bytes") < 0:
            raise ValueError("an image has no bytes")
        chunk = chunk.field("bytes")
    if not (pa.types.is_binary(chunk.type) or pa.types.is_large_binary(chunk.type)):
        raise ValueError(f"the column holds {chunk.type} and no image files")
    cell = chunk[0]
    if not cell.is_valid:
        raise ValueError("there is no image, or only the path of one")
    return cell.as_buffer()


def _not_computed(name: str, path: str | None, reason: str) -> UnreadableSourceError:
    place = f" in {path}" if path else ""
    return UnreadableSourceError(
        f"The statistics of {name}{place} cannot be computed: {reason}.",
        path=path,
        next_step=f"{GET_AGAIN}. Otherwise leave the feature out "
        f"(--drop-feature {shlex.quote(name)}).",
    )
