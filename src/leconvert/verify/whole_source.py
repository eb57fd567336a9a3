"""What a proven result does not hold of its source, before anybody removes that."""

from __future__ import annotations

import filecmp
import json
from pathlib import Path, PurePosixPath

from leconvert.dataset_files import names_to_keep
from leconvert.errors import LeconvertError
from leconvert.model import DATA_STREAM, stream_of_camera
from leconvert.repairs import Repairs
from leconvert.source import SourcePaths, load_info

__all__ = ["reason_to_keep"]

_SHOWN = 3
# What a conversion replaces by files of another form; `verify_pair` compares their content.
_CONVERTED = {
    "meta/info.json",
    "meta/episodes.jsonl",
    "meta/episodes_stats.jsonl",
    "meta/stats.json",
    "meta/tasks.jsonl",
}


def reason_to_keep(result: Path, source: Path, repairs: Repairs) -> str | None:
    """Say what would be lost with a source; None where its result holds all of it.

    What `verify_pair` compares to the byte is not looked at again; every other file of the source,
    strays included, must be in the result with the same bytes.

    Args:
        result: The v3.0 dataset, proven by ``bytes``.
        source: The v2.x dataset, wherever it is now.
        repairs: What the conversion changed.

    Returns:
        Half a sentence, such as ``2 episodes of it are not in the result``.
    """
    if repairs.dropped_episodes:
        count = len(repairs.dropped_episodes)
        verb = "episode of it is" if count == 1 else "episodes of it are"
        return f"{count} {verb} not in the result"
    if repairs.dropped_features:
        shown = ", ".join(repairs.dropped_features)
        return f"features of it are not in the result: {shown}"
    try:
        others = _other_files(source, repairs)
    except (LeconvertError, OSError, ValueError, KeyError, TypeError) as error:
        return f"its files could not be listed: {error}"
    missing = [name for name in others if not _same(source / name, result / name)]
    if not missing:
        return None
    shown = ", ".join(missing[:_SHOWN]) + (" and others" if len(missing) > _SHOWN else "")
    if len(missing) == 1:
        return f"1 file is not in the result: {shown}"
    return f"{len(missing)} files are not in the result: {shown}"


def _other_files(source: Path, repairs: Repairs) -> list[str]:
    """Return every name but those whose content `verify_pair` compares; strays among them."""
    with (source / "meta/episodes.jsonl").open("rb") as lines:
        episodes = [int(json.loads(line)["episode_index"]) for line in lines if line.strip()]
    info = load_info(source, repairs)
    paths = SourcePaths(source, info)
    streams = [DATA_STREAM, *map(stream_of_camera, info.camera_keys)]
    compared = {paths.relative(stream, index) for stream in streams for index in episodes}
    # Links to folders of episodes; what they lead to stays.
    on_the_way = {str(folder) for path in compared for folder in PurePosixPath(path).parents}
    known = compared | on_the_way | _CONVERTED
    return sorted(name for name in names_to_keep(source) if name not in known)


def _same(one: Path, other: Path) -> bool:
    try:
        return filecmp.cmp(one, other, shallow=False)
    except OSError:
        return False
