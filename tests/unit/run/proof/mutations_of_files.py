"""Damage to the tree: files missing, left over, or of another kind, and what came along."""

from __future__ import annotations

import shutil
from pathlib import Path

from mutation import BYTES, DATA, EPISODES, SPARE_DATA, SPARE_TOP, STRUCTURE, TOP, Mutation
from tests.dataset_damage import Damage, edit_json, folder_instead, pipe_instead, remove

from leconvert.dataset.formats import v3
from leconvert.model.repairs import NO_REPAIRS

__all__ = ["MUTATIONS"]

_README, _MODALITY = "README.md", "meta/modality.json"
_NO_FILE = "no such file"


def _write(path: str, content: bytes = b"") -> Damage:
    def damage(root: Path) -> None:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)

    return damage


def _copy(path: str, to: str) -> Damage:
    return lambda root: shutil.copyfile(root / path, root / to)


def _move(path: str, to: str) -> Damage:
    return lambda root: (root / path).rename(root / to)


def _tell_of(**repairs: object) -> Damage:
    """Leave a record of repairs that were not made."""

    def damage(root: Path) -> None:
        v3.write_repairs(root, NO_REPAIRS)
        edit_json(v3.REPAIRS_PATH, lambda record: record.update(repairs))(root)

    return damage


def _link(path: str, to: str) -> Damage:
    def damage(root: Path) -> None:
        (root / path).unlink()
        (root / path).symlink_to(to)

    return damage


MUTATIONS = [
    # Files that are too many.
    Mutation("a parquet file is too many below `data/`", STRUCTURE,
             _copy(SPARE_DATA, "data/chunk-000/file-002.parquet"),
             "data/chunk-000/file-002.parquet", "file", _NO_FILE),
    Mutation("a video is too many below `videos/`", STRUCTURE,
             _copy(TOP, "videos/observation.images.top/chunk-000/file-002.mp4"),
             "videos/observation.images.top/chunk-000/file-002.mp4", "file", _NO_FILE),
    Mutation("a half-written file is too many below `videos/`", STRUCTURE,
             _write(f"{TOP}.partial"), f"{TOP}.partial", "file", _NO_FILE),
    Mutation("a file is too many below `meta/`", STRUCTURE, _write("meta/episodes.jsonl", b"{}"),
             "meta/episodes.jsonl", "file", _NO_FILE),
    Mutation("a file is too many below `meta/episodes/`", STRUCTURE,
             _write("meta/episodes/chunk-000/notes.txt"), "meta/episodes/chunk-000/notes.txt",
             "file", _NO_FILE),
    Mutation("a second file of episodes repeats the first", STRUCTURE,
             _copy(EPISODES, "meta/episodes/chunk-000/file-001.parquet"), "meta/episodes",
             "episodes", "6", "12"),
    Mutation("a file is too many beside the folders", STRUCTURE, _write("notes.txt", b"x"),
             "notes.txt", "file", _NO_FILE),
    Mutation("a record tells of repairs that were not made", STRUCTURE,
             _write("meta/repairs.json", b"{}"), "meta/repairs.json", "readable metadata",
             "its tables", "meta/repairs.json"),
    Mutation("a record tells of a feature left out that there never was", STRUCTURE,
             _tell_of(dropped_features=["no such feature"]), "meta/repairs.json",
             "repaired features", "the source's", "no such feature"),
    Mutation("a record tells of an episode left out that there never was", STRUCTURE,
             _tell_of(dropped_episodes=[{"episode": 99, "code": "unreadable-file"}]),
             "meta/repairs.json", "episodes left out", "some of the source", "99"),
    Mutation("a record tells of repairs in words that mean nothing", STRUCTURE,
             _tell_of(computed_columns=["no such column"]), "meta/repairs.json",
             "readable metadata", "its tables", "no column 'no such column' is computed"),
    # Files that are not there.
    Mutation("a data file is missing", STRUCTURE, remove(DATA), DATA, "file", "a file", "nothing"),
    Mutation("a video is missing", STRUCTURE, remove(SPARE_TOP), SPARE_TOP, "file", "a file",
             "nothing"),
    Mutation("a video has another name", STRUCTURE,
             _move(TOP, "videos/observation.images.top/chunk-000/file-0.mp4"), TOP, "file",
             "a file", "nothing"),
    Mutation("a folder stands where a data file was", STRUCTURE, folder_instead(DATA), DATA,
             "file", "a file", "nothing"),
    Mutation("a folder stands where a video was", STRUCTURE, folder_instead(TOP), TOP, "file",
             "a file", "nothing"),
    Mutation("a link to nothing stands where a video was", STRUCTURE, _link(TOP, "nowhere.mp4"),
             TOP, "readable MP4", "an index"),
    Mutation("a pipe stands where a video was", STRUCTURE, pipe_instead(TOP), TOP, "file",
             "a file", "a pipe, a socket or a device"),
    Mutation("a pipe stands where a file that came along was", STRUCTURE, pipe_instead(_README),
             _README, "file", "a file", "a pipe, a socket or a device"),
    # What came along.
    Mutation("a file that came along is missing", STRUCTURE, remove(_MODALITY), _MODALITY, "file",
             "a file", "nothing"),
    Mutation("a file that came along has another size", STRUCTURE,
             _write(_README, b"# A dataset\n\n"), _README, "size in bytes", "12", "13"),
    Mutation("a file that came along has other content", BYTES,
             _write(_README, b"# A databet\n"), _README, "content (SHA-256)"),
    Mutation("a file that came along is empty", STRUCTURE, _write(_MODALITY), _MODALITY,
             "size in bytes", "3", "0"),
    Mutation("a folder stands where a file that came along was", STRUCTURE,
             folder_instead(_MODALITY), _MODALITY, "file", "a file", "a folder"),
    Mutation("a link into the source stands for a file", STRUCTURE,
             _link(_README, f"../source/{_README}"), _README, "file", "a file of its own",
             "a link into the source"),
]  # fmt: skip
