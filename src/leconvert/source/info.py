"""``meta/info.json`` of a v2.x dataset, checked before anything relies on it."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from leconvert.errors import SourceError, UnreadableSourceError
from leconvert.repairs import NO_REPAIRS, SOURCE_VERSIONS, Repairs
from leconvert.source.lfs import is_pointer, refuse_pointers
from leconvert.workdir.target import has_source_tables, old_dir

__all__ = [
    "EPISODES_PATH",
    "INFO_PATH",
    "STATS_PATH",
    "TASKS_PATH",
    "DatasetInfo",
    "frame_rate",
    "load_info",
    "read_info",
    "said_version",
    "version_help",
    "version_of_files",
]

INFO_PATH = "meta/info.json"
EPISODES_PATH = "meta/episodes.jsonl"
STATS_PATH = "meta/episodes_stats.jsonl"
TASKS_PATH = "meta/tasks.jsonl"
_DEFAULT_CHUNK_SIZE = 1000
_GIVE_THE_FOLDER = "Give the dataset folder itself, which holds meta/, data/ and videos/."
_MEND_IT = "Correct it there, or get the file again from where the dataset came from."
_GET_IT_AGAIN = "Get this file again from where the dataset came from."
_RESERVED_IN_KEYS = {"", ".", ".."}


@dataclass(frozen=True, slots=True)
class DatasetInfo:
    """What the converter needs of ``info.json``; ``raw`` keeps the rest.

    Attributes:
        raw: The file as parsed.
        codebase_version: ``v2.1``, or ``v2.0``, which has no statistics of episodes.
        fps: Frame rate, the exact fraction of the decimal in the file.
        features: Declared features by key.
        camera_keys: Features of dtype ``video``, sorted.
        image_keys: Features of dtype ``image``, sorted.
        data_path: Template of parquet paths.
        video_path: Template of video paths, None without cameras.
        chunks_size: Episodes a source chunk folder.
        located: Where files lie that are not where their template says, by stream and episode.
    """

    raw: Mapping[str, Any]
    codebase_version: str
    fps: Fraction
    features: Mapping[str, Mapping[str, Any]]
    camera_keys: tuple[str, ...]
    image_keys: tuple[str, ...]
    data_path: str
    video_path: str | None
    chunks_size: int
    located: Mapping[tuple[str, int], str]

    @property
    def has_episode_stats(self) -> bool:
        """Whether the version keeps statistics of episodes.

        LeRobot's own step from v2.0 to v2.1 writes the table first and the version last: where it
        was interrupted, v2.0 has a part of a table.
        """
        return self.codebase_version != "v2.0"


def load_info(
    root: Path, repairs: Repairs = NO_REPAIRS, *, guess_version: bool = False
) -> DatasetInfo:
    """Read and check ``meta/info.json``.

    Args:
        root: The dataset's folder, the one that holds ``meta/``.
        repairs: What a conversion changes, of which this heeds how the source is read.
        guess_version: Take the version that the files look like where ``codebase_version`` is none
            that is read; without it that is an error.

    Raises:
        UnreadableSourceError: The folder or the file is missing or not JSON.
        SourceError: It is not a v2.0 or v2.1 dataset, or lacks what a conversion needs.
    """
    path = root / INFO_PATH
    raw = read_info(root)
    version = repairs.assumed_version or raw.get("codebase_version")
    if version not in SOURCE_VERSIONS:
        guessed = version_of_files(root)
        if guessed is None or not guess_version:
            raise _wrong_version(path, version, guessed)
        version = guessed
    features = raw.get("features")
    if not isinstance(features, dict) or not features:
        raise _bad(path, "has no table of features")
    for key, feature in features.items():
        if not isinstance(feature, dict) or not isinstance(feature.get("dtype"), str):
            raise _bad(path, f"declares the feature {key!r} without a dtype")
        if set(key.split("/")) & _RESERVED_IN_KEYS or "\0" in key:
            raise _bad(path, f"declares the feature {key!r}, which cannot name a folder")
    features = {**features, **repairs.declared_features}
    cameras = tuple(sorted(key for key, ft in features.items() if ft["dtype"] == "video"))
    images = tuple(sorted(key for key, ft in features.items() if ft["dtype"] == "image"))
    data_path = raw.get("data_path")
    if not isinstance(data_path, str):
        raise _bad(path, "has no data_path template")
    video_path = raw.get("video_path")
    if cameras and not isinstance(video_path, str):
        raise _bad(path, f"declares {len(cameras)} cameras but has no video_path template")
    chunks_size = raw.get("chunks_size", _DEFAULT_CHUNK_SIZE)
    if type(chunks_size) is not int or chunks_size < 1:
        raise _bad(path, f"has chunks_size {chunks_size!r}, which is no positive integer")
    return DatasetInfo(
        raw=raw,
        codebase_version=version,
        fps=Fraction(repairs.assumed_fps) if repairs.assumed_fps else _fps(path, raw.get("fps")),
        features=features,
        camera_keys=cameras,
        image_keys=images,
        data_path=data_path,
        video_path=video_path if isinstance(video_path, str) else None,
        chunks_size=chunks_size,
        located={(file.stream, file.episode): file.path for file in repairs.located_files},
    )


def version_of_files(root: Path) -> str | None:
    """Return the v2.x version that a dataset's tables look like; None if they do not."""
    if not (root / EPISODES_PATH).is_file() or (root / "meta/episodes").is_dir():
        return None
    return "v2.1" if (root / STATS_PATH).is_file() else "v2.0"


def read_info(root: Path) -> dict[str, Any]:
    """Read ``meta/info.json`` of a dataset of any version.

    Raises:
        UnreadableSourceError: There is no such folder or file, or it holds no JSON object.
    """
    path = root / INFO_PATH
    if not root.is_dir():
        old = old_dir(root)
        if not os.path.lexists(root) and has_source_tables(old):
            raise UnreadableSourceError(
                f"{root} is gone, and a dataset is kept as {old}: a conversion in place was "
                "interrupted between two renames, or somebody moved it.",
                path=str(root),
                next_step="Run the same command, without --restart, to end that conversion; or put "
                f"the dataset back: `mv {shlex.quote(str(old))} {shlex.quote(str(root))}`.",
            )
        raise UnreadableSourceError(
            f"{root} is not a folder.",
            path=str(root),
            next_step=_GIVE_THE_FOLDER,
        )
    if path.exists() and not path.is_file():
        raise UnreadableSourceError(f"{path} is no file.", path=str(path))
    if is_pointer(path):
        refuse_pointers(root, met_one=True)
    try:
        raw = json.loads(path.read_bytes())
        # Half a surrogate pair is JSON, but no text that the result's own table could hold.
        json.dumps(raw, ensure_ascii=False).encode()
    except (FileNotFoundError, NotADirectoryError):
        raise UnreadableSourceError(
            f"{root} is not a LeRobot dataset: it has no {INFO_PATH}.",
            path=str(path),
            next_step=_GIVE_THE_FOLDER,
        ) from None
    except UnicodeEncodeError as error:
        raise UnreadableSourceError(
            f"{path} holds half a surrogate pair, which is no text.",
            path=str(path),
            next_step=_GET_IT_AGAIN,
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise UnreadableSourceError(
            f"{path} cannot be read: {error}.", path=str(path), next_step=_GET_IT_AGAIN
        ) from error
    if not isinstance(raw, dict):
        raise UnreadableSourceError(
            f"{path} does not hold a JSON object.", path=str(path), next_step=_GET_IT_AGAIN
        )
    return raw


def _fps(path: Path, value: object) -> Fraction:
    rate = frame_rate(value)
    if rate is None:
        raise SourceError(
            f"{path} has fps {value!r}, which is no frame rate.",
            path=str(path),
            next_step="Run the command again with --assume-fps and the frames a second.",
        )
    return rate


def frame_rate(value: object) -> Fraction | None:
    """Return the rate that ``fps`` of ``info.json`` is; None if it is none."""
    # bool is an int to Python; true would otherwise pass as one frame a second.
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return Fraction(repr(value)) if 0 < value < 1_000_000 else None  # also refuses NaN


def _bad(path: Path, what: str) -> SourceError:
    return SourceError(f"{path} {what}.", path=str(path), next_step=_MEND_IT)


def _wrong_version(path: Path, version: object, guessed: str | None) -> SourceError:
    if guessed is not None:
        return SourceError(
            f"{path} {said_version(version)}; its files are those of {guessed}.",
            path=str(path),
            next_step=f"Run the command again with --assume-version {guessed}.",
        )
    if isinstance(version, str) and version.startswith("v3"):
        return SourceError(
            f"{path.parent.parent} is already {version}.",
            path=str(path),
            next_step="There is nothing to convert; give the v2.x dataset if you meant "
            "another folder.",
        )
    return SourceError(
        f"{path} {said_version(version)}; leconvert reads {' and '.join(SOURCE_VERSIONS)}.",
        path=str(path),
        next_step=version_help(version),
    )


def said_version(version: object) -> str:
    """Return what a ``codebase_version`` says, as half a sentence."""
    if version is None:
        return "has no codebase_version"
    return f"says codebase_version {ascii(version)[:60]}"


def version_help(version: object) -> str | None:
    """Return what helps with a ``codebase_version`` that nobody here reads; None if nothing does.

    LeRobot had its script up to 0.3, as ``lerobot/datasets/v2/convert_dataset_v1_to_v2.py``.
    """
    if not isinstance(version, str) or not version.startswith("v"):
        return None
    if version.startswith(("v0", "v1")):
        return "Bring it to v2.0 first, with convert_dataset_v1_to_v2.py of LeRobot 0.3."
    return "It is newer than this leconvert; look for a newer version."
