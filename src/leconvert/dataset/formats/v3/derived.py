"""Tables of a v3.0 dataset that are not there, or not in their form, derived from what is there.

The rows of an episode give its number, its length, its tasks and its data file. The count of frames
gives the place of its frames, as in `leconvert.dataset.formats.v3.located`. Statistics of episodes
need decoding, and are left out.
"""

from __future__ import annotations

import json
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from leconvert.dataset.formats.stats import StatsBlock
from leconvert.dataset.formats.v3.episodes import (
    EpisodeRecords,
    EpisodesReader,
    VideoSpans,
    write_episodes,
)
from leconvert.dataset.formats.v3.located import episodes_in, files_there, fitted, frames_in
from leconvert.dataset.formats.v3.meta import (
    EPISODES_DIR,
    INFO_PATH,
    TASKS_PATH,
    USUAL_NAMES,
    Declared,
    declaration,
    pandas_index,
    write_info,
    write_tasks,
)
from leconvert.model.values import DATA_STREAM, stream_of_camera
from leconvert.model.versions import SOURCE_VERSIONS, V3_VERSION
from leconvert.support.errors import LeconvertError, SourceError
from leconvert.tables.arrow import integers

_OLD_TASKS = "meta/tasks.jsonl"
_OLD_EPISODES = "meta/episodes.jsonl"
# More files than a chunk ever has: a number then names chunk and file.
_NAMES = USUAL_NAMES._replace(files_per_chunk=1 << 31)


class Derived(NamedTuple):
    """A dataset with derived tables.

    Attributes:
        root: A folder of links to the dataset's files, except the derived tables.
        raw: Its ``info.json``.
        info: Its changed keys.
        files: The tables that were derived, relative to the dataset.
        said: The faults, one sentence each, by their file.
    """

    root: Path
    raw: Mapping[str, Any]
    info: Mapping[str, Any]
    files: tuple[str, ...]
    said: tuple[tuple[str, str], ...]


def says_another_version(root: Path, raw: Mapping[str, Any]) -> bool:
    """Tell whether a dataset that lies in the files of v3.0 says v2.x, or no version."""
    return (
        raw.get("codebase_version") in (None, *SOURCE_VERSIONS)
        and isinstance(raw.get("features"), dict)
        and not (root / _OLD_EPISODES).exists()
        and (EpisodesReader(root).is_there or (root / TASKS_PATH).is_file())
    )


@contextmanager
def derived_meta(root: Path, raw: Mapping[str, Any]) -> Iterator[Derived | None]:
    """Yield the dataset with what can be derived of ``meta/``; None where nothing can or need be.

    Nothing is written into the dataset; the folder is gone at the end.
    """
    other_version = says_another_version(root, raw)
    if not other_version and EpisodesReader(root).is_there and _has_tasks(root):
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="leconvert-derived-") as folder:
        view = Path(folder) / root.name
        (view / "meta").mkdir(parents=True)
        info: dict[str, Any] = {"codebase_version": V3_VERSION} if other_version else {}
        said = []
        if other_version:
            version = raw.get("codebase_version")
            said.append(
                (INFO_PATH, f"codebase_version is {version!r}, but the files are those of v3.0.")
            )
        files = []
        if message := _derive_tasks(root, view):
            files.append(TASKS_PATH)
            said.append((TASKS_PATH, message))
        declared, _ = declaration({**raw, **info})
        is_folder = not (root / EPISODES_DIR).is_file()
        if declared is not None and is_folder and not EpisodesReader(root).is_there:
            texts_from = view if files else root
            with suppress(LeconvertError, OSError, ValueError, LookupError, pa.ArrowException):
                files += _derive_episodes(root, view, declared, _texts(texts_from))
                said.append((EPISODES_DIR, f"{EPISODES_DIR} has no table."))
        for place in (root, root / "meta"):
            for entry in place.iterdir():
                link = view / entry.relative_to(root)
                if not link.exists():
                    link.symlink_to(entry.absolute())
        if not (said and EpisodesReader(view).is_there and _has_tasks(view)):
            yield None  # one table alone is no help
            return
        if info:
            (view / INFO_PATH).unlink()
            write_info(view, {**raw, **info})
        yield Derived(view, {**raw, **info}, info, tuple(files), tuple(said))


def refuse_derivable(root: Path, raw: Mapping[str, Any]) -> None:
    """Refuse a dataset of which a repair derives tables."""
    with derived_meta(root, raw) as derived:
        if derived is not None:
            path, message = derived.said[0]
            again = "Then run this command again"
            if any(each.startswith(EPISODES_DIR) for each in derived.files):
                again += " with --fill-stats, which computes the statistics of episodes"
            raise SourceError(
                f"{root} cannot be read as it is. {message}",
                path=str(root / path),
                details=[f"{path}: {said}" for path, said in derived.said[1:]],
                next_step=f"`leconvert repair {shlex.quote(str(root))}` computes it from rows and "
                f"files. {again}.",
            )


def refuse_misnamed(root: Path, raw: Mapping[str, Any]) -> None:
    """Refuse a dataset that lies in the files of v3.0 and says another version."""
    if says_another_version(root, raw):
        refuse_derivable(root, raw)


def _has_tasks(root: Path) -> bool:
    try:
        return pandas_index(pq.read_schema(root / TASKS_PATH)) is not None
    except (OSError, pa.ArrowException):
        return False


def _derive_tasks(root: Path, view: Path) -> str | None:
    """Write the table with the texts as its index, and say what it was; None where it is right."""
    path = root / TASKS_PATH
    try:
        if path.exists():
            table = pq.read_table(path)
            if pandas_index(table.schema) is not None:
                return None
            rows = table.to_pylist()
            message = (
                f"The columns are {table.column_names}. The pandas index with the texts is missing."
            )
        else:
            lines = (root / _OLD_TASKS).read_text("utf-8").splitlines()
            rows = [json.loads(line) for line in lines if line.strip()]
            message = f"{TASKS_PATH} is missing, but {_OLD_TASKS} has the tasks."
        tasks = [(row["task_index"], row["task"]) for row in rows]
        if not all(type(index) is int and isinstance(text, str) for index, text in tasks):
            return None
        write_tasks(view, tasks)
    except (LeconvertError, OSError, ValueError, LookupError, TypeError, pa.ArrowException):
        return None
    return message


def _texts(root: Path) -> list[str]:
    texts: list[str] = pq.read_table(root / TASKS_PATH).column("task").to_pylist()
    return texts


def _derive_episodes(root: Path, view: Path, declared: Declared, texts: list[str]) -> list[str]:
    """Write the table of episodes; raise where it does not follow from rows and frames."""
    number = _NAMES.files_per_chunk
    there = files_there(root, declared, DATA_STREAM)
    rows = [episodes_in(root / path) for _, _, path in there]
    episodes, length = (np.concatenate([each[at] for each in rows]) for at in (0, 1))
    if not np.array_equal(episodes, np.arange(len(episodes))):
        raise ValueError("the rows of episodes do not follow each other")
    files = np.array([chunk * number + file for chunk, file, _ in there])
    videos = []
    for camera in declared.cameras:
        clips = files_there(root, declared, stream_of_camera(camera))
        frames = np.array([frames_in(root / path) for _, _, path in clips], np.int64)
        found = fitted(length, frames)
        if found is None:
            raise ValueError(f"the videos of {camera} have other frames than the episodes")
        file, first = found
        numbers = np.array([chunk * number + file for chunk, file, _ in clips])
        videos.append(VideoSpans(camera, numbers[file], first, first + length))
    records = EpisodeRecords(
        episode_index=episodes,
        data_file=np.repeat(files, [len(each) for each, _ in rows]),
        dataset_from_index=np.cumsum(length) - length,
        length=length,
        videos=videos,
        legacy=[
            {"tasks": [texts[task] for task in tasks]}
            for _, _, path in there
            for tasks in _tasks_in(root / path)
        ],
        stats=StatsBlock([None] * len(episodes)),
    )
    return write_episodes(view, lambda: [records], fps=declared.fps, names=_NAMES)


def _tasks_in(path: Path) -> list[list[int]]:
    """Return the tasks of each episode of a data file, in the order of their rows."""
    rows = pq.read_table(path, columns=["episode_index", "task_index"])
    episode, task = (integers(rows.column(name).combine_chunks()) for name in rows.column_names)
    if episode is None or task is None or task.min() < 0:
        raise ValueError(f"{path} has rows without a task")
    begins = np.flatnonzero(np.diff(episode, prepend=episode[0] - 1))
    return [list(dict.fromkeys(part.tolist())) for part in np.split(task, begins[1:])]
