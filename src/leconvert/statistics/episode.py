"""Statistics of the features of one episode: of its table, and of its clips."""

from __future__ import annotations

import itertools
import os
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from leconvert.errors import UnreadableSourceError
from leconvert.media import decode_image, decode_shown
from leconvert.statistics.columns import ImageStats, column_stats, sample_indices

__all__ = ["clip_stats", "is_depth_map", "table_stats"]

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
            stats = (
                _image_stats(column, is_depth=is_depth_map(feature), quantiles=quantiles)
                if kind == "image"
                else column_stats(column, quantiles=quantiles)
            )
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
) -> Iterator[dict[str, Any]]:
    """Compute the statistics of one camera in some episodes of one file, in one pass over it.

    They are those of sampled frames; memory is that of one frame.

    Args:
        episodes: First frame of each in the order of presentation, and its number of frames; in
            the order of the file.

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
    pictures = decode_shown(path, itertools.chain.from_iterable(samples), is_depth=is_depth)
    for wanted in samples:
        stats = ImageStats(quantiles=quantiles, is_depth=is_depth)
        for _, picture in itertools.islice(pictures, len(wanted)):
            stats.add(picture)
        yield stats.result()


def _image_stats(column: pa.ChunkedArray, *, is_depth: bool, quantiles: bool) -> dict[str, Any]:
    stats = ImageStats(quantiles=quantiles, is_depth=is_depth)
    for row in sample_indices(len(column)):
        try:
            data = _image_file(column.slice(row, 1).chunk(0))
            stats.add(decode_image(memoryview(data), is_depth=is_depth))
        except ValueError as error:
            raise ValueError(f"row {row}: {error}") from error
        except UnreadableSourceError as error:
            raise ValueError(f"row {row}: {error.message[:-1]}") from error
    return stats.result()


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
        next_step=f"Restore the file from its origin, or leave the feature out "
        f"(--drop-feature {shlex.quote(name)}).",
    )
