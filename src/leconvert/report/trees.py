"""What a result alone tells: sizes and numbers of its files, its tables, what was repaired."""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from leconvert.errors import UnreadableSourceError
from leconvert.report.values import Story, StoryState, StreamFigures
from leconvert.tables import read_repairs
from leconvert.workdir.trouble import storage_errors

__all__ = ["TreeFigures", "measure_tree", "story_of_result"]

_STREAM_FILE_PARTS = 2  # chunk-XXX/file-YYY.<suffix>


@dataclass(slots=True)
class TreeFigures:
    """Files and bytes of a v3.0 tree.

    Attributes:
        streams: For each stream the number of its files and their size.
        other_files: Files beside them.
        other_bytes: Their size.
    """

    streams: dict[str, tuple[int, int]] = field(default_factory=dict)
    other_files: int = 0
    other_bytes: int = 0


def measure_tree(root: Path) -> TreeFigures:
    """Add up a v3.0 tree; reads no file.

    Raises:
        StorageError: A folder cannot be read.
    """
    figures = TreeFigures()
    with storage_errors(root):
        for folder, subfolders, names in os.walk(root, onerror=_raise):
            subfolders.sort()
            relative = PurePosixPath(Path(folder).relative_to(root).as_posix())
            for name in names:
                size = Path(folder, name).stat().st_size
                stream = _stream(relative / name)
                if stream is None:
                    figures.other_files += 1
                    figures.other_bytes += size
                else:
                    files, total = figures.streams.get(stream, (0, 0))
                    figures.streams[stream] = files + 1, total + size
    return figures


def _raise(error: OSError) -> None:
    raise error


def _stream(path: PurePosixPath) -> str | None:
    parts = path.parts
    stream = "/".join(parts[:-_STREAM_FILE_PARTS])
    if stream == "data" and path.suffix == ".parquet":
        return stream
    return stream if parts[0] == "videos" and stream != "videos" and path.suffix == ".mp4" else None


def story_of_result(root: Path) -> Story:
    """Tell what a v3.0 dataset says of itself, without any record of its run.

    Raises:
        UnreadableSourceError: Its tables cannot be used.
        StorageError: It cannot be read.
    """
    path = root / "meta" / "info.json"
    try:
        info = json.loads(path.read_bytes())
        episodes, frames = int(info["total_episodes"]), int(info["total_frames"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnreadableSourceError(
            f"{path} cannot be used: {error!r}.",
            path=str(path),
            next_step=f"`leconvert check {shlex.quote(str(root))}` says what else is wrong.",
        ) from error
    figures = measure_tree(root)
    return Story(
        name=root.name,
        state=StoryState.RESULT_ONLY,
        generated=datetime.now(UTC),
        target=str(root),
        episodes=episodes,
        frames=frames,
        fps=str(info.get("fps", "")),
        streams=[
            StreamFigures(stream, None, None, files, files, size)
            for stream, (files, size) in sorted(figures.streams.items())
        ],
        other_files=figures.other_files,
        other_bytes=figures.other_bytes,
        repairs=read_repairs(root),
    )
