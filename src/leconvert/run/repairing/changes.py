"""The changes of a repair, as ``meta/repaired.json``, and the proof that it changed nothing else.

The record names every file that the repair changed, and the kind of change. `compare_trees`
compares two trees with it. A file that the record does not name has the same bytes. A named video
file has the same packets in the same order, and every frame is at its exact time. In a named table,
all columns that are not named hold the same values. `leconvert undo` reads the record to find out
which of two trees is the repaired one, and makes the same comparison before it moves anything.
"""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from leconvert import media, tables
from leconvert.dataset.files import names_to_keep
from leconvert.dataset.formats import v3
from leconvert.dataset.formats.v3 import REPAIRED_PATH
from leconvert.run.proof import same_bytes, same_values
from leconvert.run.repairing.plan import RepairPlan, stored_stats
from leconvert.support.errors import InterruptedRunError, LeconvertError
from leconvert.support.progress import NO_PROGRESS, Progress
from leconvert.support.values import dataclass
from leconvert.workdir.swap import is_converted

# Version 2 reorders rows of tables, which older readers would not expect. Version 3 has tables that
# the dataset did not have.
_FORMAT, _VERSIONS = "leconvert/repaired", (1, 2, 3)
_ROWS = 1024


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes of a repair.

    Attributes:
        number: 1 for the first repair of a dataset, one more for each later one.
        fps: Frames a second, as numerator and denominator.
        videos: Video files whose frames got other times.
        data: Changed columns of each data file.
        episodes: Changed columns of ``meta/episodes``.
        episode_rows: The previous row of each row of ``meta/episodes``; empty if none moved.
        task_rows: The previous row of each row of ``meta/tasks.parquet``, if they were ordered;
            they are numbered from 0.
        info: Changed keys of ``meta/info.json``.
        stats: Features with new statistics in ``meta/stats.json``.
        derived: New tables below ``meta/``, which are not compared with previous files of these
            names; and data files that had no footer.
    """

    number: int
    fps: tuple[int, int]
    videos: tuple[str, ...] = ()
    data: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    episodes: tuple[str, ...] = ()
    episode_rows: tuple[int, ...] = ()
    task_rows: tuple[int, ...] = ()
    info: tuple[str, ...] = ()
    stats: tuple[str, ...] = ()
    derived: tuple[str, ...] = ()

    @classmethod
    def of(cls, plan: RepairPlan, number: int) -> Changes:
        """Return the changes of a plan."""
        return cls(
            number,
            (plan.fps.numerator, plan.fps.denominator),
            tuple(video.path for video in plan.videos),
            {data.path: data.columns for data in plan.data},
            tuple(sorted(plan.episodes)),
            () if plan.episode_rows is None else tuple(plan.episode_rows.tolist()),
            () if plan.task_rows is None else tuple(plan.task_rows.tolist()),
            tuple(sorted(plan.info)),
            tuple(sorted(plan.stats)),
            plan.derived,
        )

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Changes:
        """Return the changes from a record of `write_changes`."""
        return cls(
            number=record["number"],
            fps=(record["fps"][0], record["fps"][1]),
            # Earlier versions patched files whose index had space for the new times.
            videos=(*record["patched"], *record["joined"]),
            data={path: tuple(names) for path, names in record["data"].items()},
            episodes=tuple(record["episodes"]),
            episode_rows=tuple(record.get("episode_rows", ())),
            task_rows=tuple(record.get("task_rows", ())),
            info=tuple(record["info"]),
            stats=tuple(record["stats"]),
            derived=tuple(record.get("derived", ())),
        )


def write_changes(root: Path, changes: Changes) -> None:
    """Write the record into a dataset."""
    fields = asdict(changes)
    fields |= {"patched": {}, "joined": fields.pop("videos")}
    version = 2 if changes.episode_rows or changes.task_rows else 1
    if version == 1:
        del fields["episode_rows"], fields["task_rows"]
    if changes.derived:
        version = 3
    else:
        del fields["derived"]
    record = {"format": _FORMAT, "version": version, **fields}
    (root / REPAIRED_PATH).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def read_changes(root: Path) -> Changes | None:
    """Return the changes of a dataset's last repair; None if it was never repaired."""
    return v3.read_meta_record(
        root / REPAIRED_PATH,
        _FORMAT,
        _VERSIONS,
        Changes.from_record,
        next_step="Use the version of leconvert that wrote it, or restore the file from another "
        "copy of the dataset.",
    )


def repairs_of(root: Path) -> int | None:
    """Return the number of repairs of the v3.0 dataset in a folder; None if there is none."""
    if not is_converted(root):
        return None
    changes = read_changes(root)
    return 0 if changes is None else changes.number


def kept_names(source: Path, derived: Collection[str]) -> set[str]:
    """Return the files of a dataset, without tables of episodes if they were derived."""
    names = {path for path in names_to_keep(source) if path != REPAIRED_PATH}
    if any(map(_is_of_episodes, derived)):
        names = {path for path in names if not _is_of_episodes(path)}
    return names


def compare_trees(
    source: Path,
    result: Path,
    changes: Changes,
    *,
    stop: threading.Event | None = None,
    progress: Progress = NO_PROGRESS,
) -> list[str]:
    """Return the differences of two trees that are not changes of the repair, as sentences."""
    names = kept_names(source, changes.derived)
    there = {path for path in names_to_keep(result) if path != REPAIRED_PATH}
    if changes.stats:
        there.discard(v3.STATS_PATH)
        names.discard(v3.STATS_PATH)
    differences = [
        f"{path} is not in the repaired dataset." for path in changes.derived if path not in there
    ]
    of_meta = {path for path in changes.derived if path.startswith("meta/")}
    names -= of_meta
    there -= of_meta
    differences += [f"{path} is not in the repaired dataset." for path in sorted(names - there)]
    differences += [f"{path} is only in the repaired dataset." for path in sorted(there - names)]
    if changes.episode_rows:
        moved = {path for path in names & there if _is_of_episodes(path)}
        differences += _compare_moved(
            source, result, sorted(moved), changes.episode_rows, changes.episodes
        )
        names -= moved
    if changes.stats:
        before, after = stored_stats(source), v3.read_json_object(result / v3.STATS_PATH)
        differences += _compare_json(before, after, v3.STATS_PATH, changes.stats)
    with progress.stage("compare", len(names & there), "files") as stage:
        for path in sorted(names & there):
            if stop is not None and stop.is_set():
                raise InterruptedRunError(
                    "The comparison was interrupted. Nothing was moved.",
                    next_step="Run the same command again.",
                )
            try:
                differences += _compare(source, result, path, changes)
            except (LeconvertError, OSError, ValueError, pa.ArrowException) as error:
                differences.append(f"{path} cannot be compared: {error}")
            stage.advance(1)
    return differences


def _compare(source: Path, result: Path, path: str, changes: Changes) -> Iterator[str]:
    one, other = source / path, result / path
    if path in changes.videos:
        yield from _compare_video(one, other, path, changes)
    elif path in changes.derived:  # the rows of a file without a footer
        with tempfile.TemporaryDirectory(prefix="leconvert-derived-") as folder:
            finished = Path(folder) / "rows.parquet"
            features = v3.read_json_object(source / v3.INFO_PATH)["features"]
            rows = sum(tables.row_group_rows(other))  # the last episode may have been left out
            tables.finish_table(one, features, finished, most_rows=rows)
            yield from _compare_table(finished, other, path, changes.data.get(path, ()))
    elif path in changes.data:
        yield from _compare_table(one, other, path, changes.data[path])
        if "task_index" in changes.data[path]:
            yield from _compare_task_numbers(source, one, other, path, changes)
    elif changes.episodes and _is_of_episodes(path):
        yield from _compare_table(one, other, path, changes.episodes)
    elif changes.task_rows and path == v3.TASKS_PATH:
        yield from _compare_tasks(source, result, changes)
    elif path == v3.INFO_PATH:
        before, after = v3.read_json_object(one), v3.read_json_object(other)
        yield from _compare_json(before, after, path, changes.info)
    elif not one.is_file():
        # The same text may lead into either tree, and links out of the trees may have other texts.
        if one.readlink() != other.readlink() and one.resolve() != other.resolve():
            yield f"{path} leads elsewhere."
    elif not same_bytes(one, other):
        yield f"{path} has other bytes."


def _compare_json(
    before: Mapping[str, Any], after: Mapping[str, Any], path: str, changed: tuple[str, ...]
) -> Iterator[str]:
    kept = [{key: each[key] for key in each if key not in changed} for each in (before, after)]
    if json.dumps(kept[0], sort_keys=True) != json.dumps(kept[1], sort_keys=True):
        yield f"{path} differs in more than {', '.join(changed) or 'nothing'}."


def _compare_video(one: Path, other: Path, path: str, changes: Changes) -> Iterator[str]:
    before, after = media.read_clip_index(one), media.read_clip_index(other)
    same_samples = (
        np.array_equal(before.sizes, after.sizes)
        and np.array_equal(before.keyframes, after.keyframes)
        and np.array_equal(before.ranks, after.ranks)
        and before.config_key == after.config_key
    )
    if not same_samples:
        yield f"{path} has other packets, or has them in another order."
        return
    if not media.has_exact_times(after, Fraction(*changes.fps)):
        yield f"{path} has frames that are not at their exact time."
    if media.samples_sha256(before) != media.samples_sha256(after):
        yield f"{path} has packets of other bytes."
    # An earlier version joined some files without their sound.
    if after.other_tracks and media.other_tracks_sha256(one) != media.other_tracks_sha256(other):
        yield f"{path} has packets of other bytes in a track that is no video."


def _compare_table(one: Path, other: Path, path: str, changed: tuple[str, ...]) -> Iterator[str]:
    with pq.ParquetFile(one) as before, pq.ParquetFile(other) as after:
        if not before.schema_arrow.equals(after.schema_arrow, check_metadata=True):
            yield f"{path} has another schema."
            return
        if before.metadata.num_rows != after.metadata.num_rows:
            yield f"{path} has another number of rows."
            return
        names = [name for name in before.schema_arrow.names if name not in changed]
        for number, (old, new) in enumerate(
            zip(_row_blocks(before, names), _row_blocks(after, names), strict=True)
        ):
            for name in names:
                values = old.column(name).combine_chunks(), new.column(name).combine_chunks()
                if not same_values(*values):
                    yield f"{path} has other values of {name} in rows {number * _ROWS:,} and on."
                    return


def _is_of_episodes(path: str) -> bool:
    return path.startswith(f"{v3.EPISODES_DIR}/") and path.endswith(".parquet")


def _compare_moved(
    source: Path, result: Path, paths: Sequence[str], rows: tuple[int, ...], changed: Sequence[str]
) -> Iterator[str]:
    """Compare the rows of some files together, each with its previous row."""
    before = [pq.read_table(source / path) for path in paths]
    after = [pq.read_table(result / path) for path in paths]
    for path, one, other in zip(paths, before, after, strict=True):
        if not one.schema.equals(other.schema, check_metadata=True):
            yield f"{path} has another schema."
            return
        if one.num_rows != other.num_rows:
            yield f"{path} has another number of rows."
            return
    old, new = pa.concat_tables(before), pa.concat_tables(after)
    if sorted(rows) != list(range(old.num_rows)):
        yield f"{paths[0]} does not have each row once."
        return
    for name in old.column_names:
        moved = old.column(name).take(pa.array(rows)).combine_chunks()
        if name not in changed and not same_values(moved, new.column(name).combine_chunks()):
            yield f"{paths[0]} has other values of {name}."


def _compare_tasks(source: Path, result: Path, changes: Changes) -> Iterator[str]:
    path = v3.TASKS_PATH
    yield from _compare_moved(source, result, [path], changes.task_rows, ["task_index"])
    numbers = v3.read_task_numbers(result)
    if numbers != list(range(len(numbers))):
        yield f"{path} is not numbered by row."


def _compare_task_numbers(
    source: Path, one: Path, other: Path, path: str, changes: Changes
) -> Iterator[str]:
    """Compare the tasks of rows by the texts that their numbers had before and have now."""
    numbers = v3.read_task_numbers(source)
    new_of = {numbers[old]: new for new, old in enumerate(changes.task_rows)}
    before, after = (
        pq.read_table(file, columns=["task_index"]).column(0).to_pylist() for file in (one, other)
    )
    if [new_of.get(number) for number in before] != after:
        yield f"{path} has rows of another task."


def _row_blocks(file: pq.ParquetFile, names: list[str]) -> Iterator[pa.Table]:
    """Yield the rows in blocks of equal size, independent of row groups."""
    schema = pa.schema([file.schema_arrow.field(name) for name in names])
    batches = file.iter_batches(_ROWS, columns=names, use_threads=False)
    rows = file.metadata.num_rows
    sizes = [min(_ROWS, rows - first) for first in range(0, rows, _ROWS)]
    return tables.regrouped((batch.select(names) for batch in batches), schema, sizes)
