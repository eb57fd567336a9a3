"""Checks of a source as a whole, when every file was looked at.

First come checks that need the facts of all files: missing files, columns, tasks, totals. Then
``info.json`` is compared with itself and with the stored columns.
"""

from __future__ import annotations

import filecmp
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from leconvert import tables
from leconvert.dataset.findings import (
    DROP,
    SOURCE_CATALOGUE,
    Observation,
    RepeatedObservations,
    said_of_paths,
)
from leconvert.dataset.formats import Dataset, v2
from leconvert.dataset.formats.v2 import INFO_PATH, DatasetInfo, SourcePaths
from leconvert.dataset.scan.changes import SourceFiles
from leconvert.dataset.scan.file_checks import (
    NAMES_OF_AXES,
    NO_INDEX,
    NOT_KNOWN,
    lacks_names_of_axes,
)
from leconvert.dataset.scan.gathering import (
    NO_TASK,
    ScannedSource,
    tasks_helps,
)
from leconvert.model.repairs import DEFAULT_COLUMNS, VISUAL_DTYPES
from leconvert.model.values import (
    DATA_STREAM,
    NOTHING,
    BoolArray,
    Extent,
    StreamScan,
    camera_of,
    is_depth_map,
    stream_of_camera,
)
from leconvert.support.errors import UnreadableSourceError
from leconvert.support.text import count, shown
from leconvert.support.values import dataclass
from leconvert.tables import declaration_of, dtype_name, list_sizes, read_by_lerobot
from leconvert.tables.arrow import (
    innermost_type,
    is_binary,
    is_list,
    is_number,
    is_text,
    list_length,
    list_values,
)
from leconvert.tables.schemas import (
    LANGUAGE_COLUMNS,
    NUMBER_DTYPES,
    common_type,
    with_column_of,
)

COMPUTED_BY = dict.fromkeys(DEFAULT_COLUMNS, "") | {
    "timestamp": "--retime",
    "frame_index": "--reindex",
    "episode_index": "--reindex",
    "index": "--reindex",
}
"""The flag that computes a default column whatever is stored; "" if there is none."""

_SHOWN = 5

Features = Mapping[str, Mapping[str, Any]]
# Total in info.json to the numbers that it may have.
Totals = Mapping[str, Sequence[int]]


class StoredColumn(NamedTuple):
    """A column as most tables store it.

    Attributes:
        values: The type of its values: those in lists of one value, int64 for `is_floating`.
        sizes: The lengths of its lists, the outer one first, or the reason why rows have no common
            length; None for a column without lists, or with lists of any length.
        is_wrapped: Whether some tables store lists of one value.
        is_floating: Whether it is a default integer column that some tables store as floating-point
            numbers.
    """

    values: pa.DataType
    sizes: tuple[int, ...] | str | None
    is_wrapped: bool
    is_floating: bool

    @classmethod
    def of(cls, field: pa.Field, lengths: tuple[int, ...] | str | None = None) -> StoredColumn:
        """Return the column of one table, given the lengths of lists that its type leaves open."""
        fixed, kind = list_sizes(field.type), field.type
        if lengths is None and fixed and None not in fixed:
            lengths = tuple([size for size in fixed if size is not None])
        if lengths == (1,):
            kind = innermost_type(kind)
        is_floating = DEFAULT_COLUMNS.get(field.name) == "int64" and pa.types.is_floating(kind)
        return cls(pa.int64() if is_floating else kind, lengths, lengths == (1,), is_floating)

    def joined(self, other: StoredColumn) -> StoredColumn:
        """Return the column with the rows of both. A wider type takes its place."""
        values = common_type(other.values, self.values)
        assert values is not None, "_differences found one"
        is_same = other.sizes is None or values.equals(self.values)
        return StoredColumn(
            values,
            self.sizes if is_same else other.sizes,
            self.is_wrapped or other.is_wrapped,
            self.is_floating or other.is_floating,
        )


@dataclass(frozen=True, slots=True, eq=False)
class DataColumns:
    """The columns of a dataset's tables.

    Attributes:
        schema: The columns of most tables, including those left out; None if none could be read.
        by_name: The same, with what the types do not tell.
        is_common: Whether each table can be joined with these, shape (E,).
        picture_shapes: Shape of the first picture in columns of images without a usable one.
    """

    schema: pa.Schema | None
    by_name: Mapping[str, StoredColumn]
    is_common: BoolArray
    picture_shapes: Mapping[str, list[int]] = MappingProxyType({})

    @property
    def floating(self) -> list[str]:
        """Default integer columns that some tables store as floating-point numbers."""
        return [name for name, column in self.by_name.items() if column.is_floating]

    def type_of_values(self, name: str) -> pa.DataType:
        """Return the type of a column in the result."""
        assert self.schema is not None
        column, kind = self.by_name[name], self.schema.field(name).type
        if column.is_floating:
            return pa.int64()
        return innermost_type(kind) if column.is_wrapped else kind


def _check_files(source: ScannedSource, survey: SourceFiles) -> Iterator[Observation]:
    """Report missing files, and streams without any."""
    dataset, episodes, slices = source.dataset, source.episodes, source.gathered.slices
    num_episodes = len(episodes.index)
    is_there = [not stream.is_missing.all() for stream in slices]  # the tables first
    for stream in slices:
        missing = stream.is_missing
        there = num_episodes - int(np.count_nonzero(missing))
        camera = camera_of(stream.stream)
        keys = stream.key
        example = shown(dataset.relative(stream.stream, int(keys[0])))
        is_misplaced = any(owner[0] == stream.stream for owner in survey.misplaced)
        if there == 0 and not is_misplaced:
            near = survey.stray_near(stream.stream)
            beside = f"the disk has {shown(near)}" if near else ("the disk has nothing like it")
            if camera is not None and near is None:
                said = f"{shown(camera)} is declared, but has no video, such as {example}."
                # Without a table, there is no episode that a flag would keep.
                helps = () if not is_there[0] else None
                yield Observation(
                    "phantom-feature", said, stream=stream.stream, feature=camera, helps=helps
                )
            elif near is None:
                said = f"No episode has a table, such as {example}."
                yield Observation("missing-file", said, stream=stream.stream, helps=())
            elif camera is not None and any(is_there[1:]):  # one template is for all cameras
                said = f"{shown(camera)} has no video at {example}; {beside}. Move the videos of "
                said += "this camera to where video_path says."
                yield Observation("misplaced-file", said, stream=stream.stream, path=near, helps=())
            else:
                name = "data_path" if camera is None else "video_path"
                said = (
                    f"{name} leads to no existing file. For example, {example} does not "
                    f"exist; {beside}."
                )
                yield Observation(
                    "path-template", said, stream=stream.stream, path="meta/info.json", helps=()
                )
            continue
        what = "tables" if camera is None else "videos"
        for episode, key in zip(
            episodes.index[missing].tolist(), keys[missing].tolist(), strict=True
        ):
            path = dataset.relative(stream.stream, key)
            others = survey.misplaced.get((stream.stream, episode), [])
            if others:
                yield _misplaced(path, others, episode, stream.stream)
                continue
            said = (
                f"{shown(path)} is missing. Only {there} {what} of {num_episodes} episodes exist."
            )
            yield Observation("missing-file", said, episode, stream.stream, path)


def _misplaced(path: str, others: Sequence[str], episode: int, stream: str) -> Observation:
    listed = " and ".join(map(shown, others))
    helps = SOURCE_CATALOGUE["misplaced-file"].repairs
    if len(others) > 1:
        said = (
            f"{shown(path)} is missing. Several files have its name: {listed}. Put the right "
            "one there."
        )
        helps = tuple(flag for flag in helps if flag != "--locate-files")
    else:
        said = f"{shown(path)} is missing, but {listed} has its name."
    return Observation("misplaced-file", said, episode, stream, path, helps=helps)


def located_remarks(info: DatasetInfo, paths: SourcePaths) -> Iterator[Observation]:
    """Report the streams with files from other places."""
    sightings = RepeatedObservations()
    for (stream, episode), path in sorted(info.located.items()):
        said = f"{shown(paths.template_path(stream, episode))} is at {shown(path)} instead."
        remark = Observation(
            "misplaced-file", said, stream=stream, path=path, helps=("--locate-files",)
        )
        sightings.add(remark)
    yield from sightings.remarks()


def common_columns(
    source: ScannedSource, left_out: Sequence[str], computed: Collection[str]
) -> DataColumns:
    """Find the columns of most tables, and report tables that do not fit them.

    Args:
        left_out: Columns that the result does not have.
        computed: Columns that are computed whatever is stored.
    """
    dataset, episodes, data = source.dataset, source.episodes, source.gathered.slices[0]
    readable = data.is_readable
    counts = np.bincount(data.group[readable], minlength=len(data.kinds))
    if not counts.any():
        return DataColumns(None, {}, readable)
    common = int(counts.argmax())
    schema, columns = _columns_of(dataset, data, common)
    passed_over = {*left_out, *computed}
    fits = np.zeros(len(data.kinds), dtype=np.bool_)
    fits[common] = True
    reasons: dict[int, list[tuple[str | None, str]]] = {}
    wider: dict[str, pa.Schema] = {}
    for kind in np.flatnonzero(counts).tolist():
        if kind == common:
            continue
        stored, theirs = _columns_of(dataset, data, kind)
        reasons[kind] = _differences(columns, theirs, passed_over)
        if not reasons[kind]:
            fits[kind] = True
            for name in columns.keys() - passed_over:
                own, columns[name] = columns[name], columns[name].joined(theirs[name])
                if not columns[name].values.equals(own.values):
                    wider[name] = stored
    is_common: BoolArray = fits[data.group] & readable
    keys = data.key
    for position in np.flatnonzero(readable & ~is_common).tolist():
        episode = int(episodes.index[position])
        path = dataset.relative(DATA_STREAM, int(keys[position]))
        for feature, reason in reasons[int(data.group[position])]:
            said = f"{shown(path)} has other columns than the tables of most episodes: {reason}."
            flag = "" if feature is None else COMPUTED_BY.get(feature, "--drop-feature")
            source.remarks.append(
                Observation(
                    "schema-mismatch",
                    said,
                    episode,
                    DATA_STREAM,
                    path,
                    feature,
                    helps=(flag, DROP) if flag else (DROP,),
                )
            )
    for name, stored in wider.items():
        if not (columns[name].is_wrapped or columns[name].is_floating):
            schema = with_column_of(schema, name, stored)
    shapes = _picture_shapes(dataset.stored_features, schema, _first_path_of(dataset, data, common))
    return DataColumns(schema, columns, is_common, shapes)


def _picture_shapes(features: Features, schema: pa.Schema, path: str) -> dict[str, list[int]]:
    """Return the shape of a table's first picture in columns that declare no height and width.

    Without three numbers, ``dataset_to_policy_features`` of LeRobot fails.
    """
    found: dict[str, list[int]] = {}
    for name in schema.names:
        feature = features.get(name, {})
        shape: Any = feature.get("shape")
        if feature.get("dtype") != "image" or (
            _is_shape(shape) and len(shape) == len(NAMES_OF_AXES)
        ):
            continue
        # Other findings tell that a value is not a picture.
        with suppress(ValueError, OSError, pa.ArrowException, UnreadableSourceError):
            found[name] = _image_shape(
                next(_read(iter([path]), name)), is_depth=is_depth_map(feature)
            )
    return found


def with_other_columns(source: ScannedSource, result: pa.Schema) -> BoolArray:
    """Return which tables have other columns than the result's data files, shape (E,)."""
    dataset, data = source.dataset, source.gathered.slices[0]
    has_others = np.zeros(len(data.kinds), dtype=np.bool_)
    for kind in np.unique(data.group[data.is_readable]).tolist():
        stored = tables.read_data_schema(_first_path_of(dataset, data, kind))
        has_others[kind] = not tables.holds_columns_of(stored, result)
    found: BoolArray = has_others[data.group]
    return found


def _columns_of(
    dataset: Dataset, data: StreamScan, kind: int
) -> tuple[pa.Schema, dict[str, StoredColumn]]:
    path = _first_path_of(dataset, data, kind)
    schema = tables.read_data_schema(path)
    with tables.DataFile(path) as table:
        lengths = table.lengths(schema)
    return schema, {field.name: StoredColumn.of(field, lengths.get(field.name)) for field in schema}


def _first_path_of(dataset: Dataset, data: StreamScan, kind: int) -> str:
    """Return the first table of a kind."""
    key = int(data.key[np.flatnonzero(data.group == kind)[0]])
    return next(dataset.absolute(DATA_STREAM, [key]))


def _differences(
    wanted: Mapping[str, StoredColumn], found: Mapping[str, StoredColumn], passed_over: Set[str]
) -> list[tuple[str | None, str]]:
    """Return why no columns can hold the rows of two kinds of tables; empty if some can.

    A reason names its feature if it is about a single one.
    """
    names, theirs = wanted.keys() - passed_over, found.keys() - passed_over
    if names != theirs:
        missing, extra = sorted(names - theirs), sorted(theirs - names)
        said = [f"{shown(name)} is missing" for name in missing]
        said += [f"{shown(name)} is not expected" for name in extra]
        return [((missing + extra)[0] if len(said) == 1 else None, ", ".join(said))]
    pairs = [(name, own, found[name]) for name, own in wanted.items() if name in names]
    types: list[tuple[str | None, str]] = [
        (name, f"{shown(name)} is {other.values} instead of {own.values}")
        for name, own, other in pairs
        if common_type(other.values, own.values) is None
    ]
    return types or [
        (name, f"{shown(name)}: {_told(other.sizes)} instead of {_told(own.sizes)}")
        for name, own, other in sorted(pairs, key=lambda pair: pair[0])
        if not (own.is_wrapped or other.is_wrapped) and isinstance(own.sizes, tuple)
        if other.sizes not in (None, own.sizes)
    ]


def _told(sizes: tuple[int, ...] | str | None) -> str:
    return f"lists of {' x '.join(map(str, sizes))}" if isinstance(sizes, tuple) else str(sizes)


def _check_global_index(source: ScannedSource, columns: DataColumns) -> Iterator[Observation]:
    """Find breaks of the column ``index`` between episodes.

    Rows are counted by ``length`` or by the tables. Another check reports a difference between the
    two. If episodes are missing, the right numbers are unknown.
    """
    episodes, gathered = source.episodes, source.gathered
    if episodes.has_gaps or columns.schema is None or "index" not in columns.schema.names:
        return
    rows = gathered.slices[0].frames
    wrong = gathered.has_rows & columns.is_common & (rows == episodes.length)
    for counts in (episodes.length, np.where(gathered.slices[0].is_readable, rows, 0)):
        wrong &= gathered.first_index != np.cumsum(counts) - counts
    positions = np.flatnonzero(wrong)
    if not len(positions):
        return
    position = int(positions[0])
    first = int(np.cumsum(episodes.length)[position] - episodes.length[position])
    found = int(gathered.first_index[position])
    what = "does not count the rows" if found == NOT_KNOWN else f"begins with {found}"
    sightings = RepeatedObservations()
    said = f"The column index of episode {int(episodes.index[position])} {what} instead of {first}."
    sightings.add(Observation("global-index", said, stream=DATA_STREAM), len(positions))
    yield from sightings.remarks()


def _copied_tables(source: ScannedSource) -> Iterator[Observation]:
    """Find tables that are copies of another episode's, where the videos are not.

    Only tables whose rows are numbered as those of another episode are read.
    """
    dataset, episodes, gathered = source.dataset, source.episodes, source.gathered
    strange = {remark.episode for remark in gathered.log.remarks if remark.code == "episode-index"}
    if not strange:
        return
    table, *videos = gathered.slices
    sizes, first_index = table.files.size_bytes[table.file], gathered.first_index
    marks = list(zip(sizes.tolist(), first_index.tolist(), strict=True))
    is_strange = np.array([episode in strange for episode in episodes.index.tolist()], np.bool_)
    is_owner = ~is_strange & gathered.has_rows & (first_index != NOT_KNOWN)
    owners = {marks[position]: position for position in np.flatnonzero(is_owner).tolist()}
    for position in np.flatnonzero(is_strange).tolist():
        owner = owners.get(marks[position])
        if owner is None or not _is_copy(dataset, table, position, owner):
            continue
        if not all(_is_copy(dataset, video, position, owner) for video in videos):
            path = dataset.relative(DATA_STREAM, int(table.key[position]))
            said = f"{shown(path)} is a copy of the table of episode {episodes.index[owner]}."
            yield Observation(
                "copied-table", said, int(episodes.index[position]), DATA_STREAM, path
            )


def _is_copy(dataset: Dataset, slices: StreamScan, *pair: int) -> bool:
    """Return whether the files of two episodes have the same content."""
    rows = list(pair)
    first, second = dataset.absolute(slices.stream, slices.key[rows].tolist())
    return not slices.is_missing[rows].any() and filecmp.cmp(first, second, shallow=False)


def _check_tasks(source: ScannedSource) -> Iterator[Observation]:
    """Compare the tasks of rows with the listed ones."""
    episodes, tasks, gathered = source.episodes, source.tasks, source.gathered
    if not tasks.is_there:
        return
    sightings = RepeatedObservations()
    listed, keys = np.array([index for index, _ in tasks.listed], np.int64), gathered.slices[0].key
    # The usual case: all rows have the only listed task, under its first index.
    usual = (gathered.task == episodes.task) & np.isin(gathered.task, listed)
    usual |= ~gathered.has_rows
    for position in np.flatnonzero(~usual).tolist():
        found = gathered.tasks.get(position) or (int(gathered.task[position]),)
        if found == (NOT_KNOWN,):
            continue
        episode = int(episodes.index[position])
        unknown = [task for task in found if task not in tasks.first_index]
        if unknown:
            path = source.dataset.relative(DATA_STREAM, int(keys[position]))
            what = f"with task {unknown[0]}, which {tasks.path} does not list"
            if unknown[0] == NO_INDEX:
                what = f"with a task_index that is not in {tasks.path}"
            said = f"{shown(path)} has rows {what}."
            helps = tasks_helps("task-index", bool(episodes.has_one_text[position]))
            yield Observation("task-index", said, episode, DATA_STREAM, path, helps=helps)
            continue
        own = episodes.tasks.get(position)
        if own is None:
            own = frozenset({int(episodes.task[position])})
        strange = {tasks.first_index[task] for task in found} - own
        # An episode that lists only unknown tasks has a finding already.
        if strange and own != {NO_TASK}:
            said = f"Rows of episode {episode} have task {min(strange)}, but {episodes.path} "
            said += "does not list this task for the episode."
            helps = tasks_helps("task-mismatch", bool(episodes.has_one_text[position]))
            remark = Observation("task-mismatch", said, stream=DATA_STREAM, helps=helps)
            sightings.add(remark)
    yield from sightings.remarks()


def wrong_rate(source: ScannedSource, remarks: Sequence[Observation]) -> list[Observation]:
    """Report a wrong ``fps`` if all timestamps have one other rate, and return that rate."""
    off = [remark for remark in remarks if remark.code == "timestamps"]
    found = {remark.helps for remark in off}
    told = np.count_nonzero(source.gathered.has_rows & (source.episodes.length > 1))
    if len(found) == 1 and None not in found and len(off) == told:
        (helps,) = found
        flag = (helps or ("",))[0]
        said = f"info.json says {float(source.dataset.fps):g} frames per second, but the "
        said += f"timestamps of {count(int(told), 'episode')} are those of {flag.split()[-1]} "
        said += "frames per second."
        severity = off[0].severity
        rate = Observation("frame-rate", said, path=INFO_PATH, severity=severity, helps=helps)
        return [rate, *remarks]
    return [
        replace(remark, helps=None) if remark.code == "timestamps" else remark for remark in remarks
    ]


def lost_instructions(source: ScannedSource, remarks: Sequence[Observation]) -> list[Observation]:
    """Turn task mismatches into errors if the rows have no tasks and the episodes have all.

    If all rows have one task and the episodes several, the rows were written without tasks. LeRobot
    gives an item the task of its row.
    """
    episodes, gathered = source.episodes, source.gathered
    of_rows = np.unique(gathered.task[gathered.has_rows])
    if gathered.tasks or len(of_rows) != 1 or episodes.num_texts < 2:
        return list(remarks)
    said = f" All rows have task {of_rows[0]}, but the episodes list {episodes.num_texts} tasks. "
    said += "Loaded items would have the wrong task."
    return [
        replace(remark, severity="error", message=remark.message + said)
        if remark.code == "task-mismatch"
        else remark
        for remark in remarks
    ]


def _absent_features(source: ScannedSource, schema: pa.Schema | None) -> set[str]:
    """Return features without any data, for which nobody expects statistics."""
    absent = {
        camera
        for stream in source.gathered.slices
        if (camera := camera_of(stream.stream)) is not None and bool(stream.is_missing.all())
    }
    if schema is not None:
        absent |= {
            name
            for name, feature in source.dataset.stored_features.items()
            if feature["dtype"] != "video" and name not in schema.names
        }
    return absent


def _codec_changes(slices: Sequence[StreamScan]) -> Iterator[Observation]:
    """Report how often the decoder configuration changes within a camera."""
    for stream in slices[1:]:
        kinds = stream.group[stream.is_readable]
        changes = int(np.count_nonzero(np.diff(kinds)))
        if changes:
            number = count(len(set(kinds.tolist())), "decoder configuration")
            said = f"{shown(camera_of(stream.stream))} has {number}, which take "
            said += f"{count(changes, 'output file')} more."
            yield Observation("codec-change", said, stream=stream.stream)


def _expected_totals(source: ScannedSource, survey: SourceFiles) -> dict[str, Sequence[int]]:
    """Return the possible totals of ``info.json``."""
    dataset, episodes, tasks, gathered, *_ = source
    num_episodes, cameras = len(episodes.index), dataset.camera_keys
    empty = {stream.stream for stream in gathered.slices if bool(stream.is_missing.all())}
    looked_at = {stream.stream for stream in gathered.slices}
    with_clips = sum(
        stream not in empty if stream in looked_at else camera in survey.cameras
        for camera in cameras
        for stream in (stream_of_camera(camera),)
    )
    totals: dict[str, Sequence[int]] = {
        "total_episodes": [num_episodes],
        "total_frames": [int(episodes.length.sum())],
    }
    if isinstance(dataset, v2.Dataset):
        chunks_size = dataset.declared.chunks_size
        totals["total_videos"] = [num_episodes * number for number in (with_clips, len(cameras))]
        totals["total_chunks"] = [-(-(int(episodes.index[-1]) + 1) // chunks_size)]
    if tasks.is_there:
        totals["total_tasks"] = [len(tasks.of_text), len(tasks.listed)]
    return totals


def has_first_clip(dataset: Dataset, camera: str) -> bool:
    """Return whether the first episode has a clip of a camera, even behind a link to a folder."""
    with suppress(OSError, KeyError):  # a camera that is left out needs no video
        return (dataset.root / dataset.slices(stream_of_camera(camera)).path(0)).is_file()
    return False


def dropped_phantoms(
    cameras: Sequence[str], dropped: Sequence[str], survey: SourceFiles
) -> Iterator[Observation]:
    """Report cameras without a video among those left out, which the scan did not look at."""
    for camera in cameras:
        if camera in dropped and camera not in survey.cameras:
            said = f"{shown(camera)} is declared, but has no video."
            stream = stream_of_camera(camera)
            yield Observation("phantom-feature", said, stream=stream, feature=camera)


def beyond_target(features: Features, to: str) -> Iterator[Observation]:
    """Report features that the version to write cannot store."""
    if to != "v2.1":
        return
    for name, feature in features.items():
        if feature["dtype"] == "language" or name in tables.LANGUAGE_COLUMNS:
            what = "a column of annotations, which LeRobot 0.3.3 cannot load"
        elif feature["dtype"] in VISUAL_DTYPES and is_depth_map(feature):
            what = "a depth map, which LeRobot 0.3.3 would read as colours"
        elif feature["dtype"] == "audio":
            what = "sound"
        else:
            continue
        said = (
            f"{shown(name)} is {what}. v2.1 cannot store such a feature. If it is left out, "
            "only the source has it."
        )
        stream = stream_of_camera(name) if feature["dtype"] == "video" else None
        yield Observation("beyond-v21", said, stream=stream, path=INFO_PATH, feature=name)


def check_declarations(features: Features) -> Iterator[Observation]:
    """Report unusual declarations of features."""
    nested, unnamed, old_style, untold, axes = [], [], [], [], []
    for name, feature in features.items():
        shape, names, dtype = feature.get("shape"), feature.get("names"), feature["dtype"]
        sizes = shape if isinstance(shape, list) else []
        if not _is_shape(shape):
            said = f"{INFO_PATH} declares {shown(name)} with the shape {shown(shape)}."
            yield Observation("shape-mismatch", said, path=INFO_PATH, feature=name)
        if lacks_names_of_axes(feature):
            axes.append(name)
        elif names is not None and not _is_list_of_texts(names):
            nested.append(name)
        if (
            names in (None, [], {})
            and len(sizes) == 1
            and sizes[0] != 1
            and dtype not in VISUAL_DTYPES
        ):
            unnamed.append(name)
        if dtype == "video" and "video_info" in feature and "info" not in feature:
            old_style.append(name)
        if not all(isinstance(feature.get(key) or {}, dict) for key in ("info", "video_info")):
            untold.append(name)
    for code, said, found in (
        ("nested-names", "The names of {} are not a plain list. They stay as they are.", nested),
        ("null-names", "{} have no names.", unnamed),
        (
            "null-names",
            "The axes of {} do not have the names by which "
            "policies find the channels. The result names them.",
            axes,
        ),
        ("video-info", "{} is described under video_info instead of info.", old_style),
        ("video-info", "The description of {} is not a table. It is left out.", untold),
    ):
        if found:
            yield Observation(code, f"{INFO_PATH}: {said.format(_few(found))}", path=INFO_PATH)


def check_names(features: Features) -> Iterator[Observation]:
    """Report vectors with more or fewer names than values.

    Names may be a list, lists in a list or in a table, or a table of positions: LeRobot's datasets
    have all of these. The axes of a value with several may have any names.
    """
    for name, feature in features.items():
        shape: Any = feature.get("shape")
        if not _is_shape(shape) or len(shape) != 1 or feature["dtype"] in VISUAL_DTYPES:
            continue
        groups = _name_groups(feature.get("names"))
        num_names = sum(map(len, groups))
        twice = [label for group in groups for label in group if group.count(label) > 1]
        said = ""
        if num_names and num_names != shape[0]:
            said = f"has {count(num_names, 'name')} for {count(shape[0], 'value')}"
        elif twice:
            said = f"has the name {shown(twice[0])} for several values"
        if said:
            said = (
                f"{shown(name)} {said}. The result keeps these names; to correct them, edit "
                f"{INFO_PATH} before you convert."
            )
            yield Observation("feature-names", said, path=INFO_PATH, feature=name)


def _name_groups(names: object) -> list[list[str]]:
    """Return names of values in groups without repetition; empty for other forms."""
    if isinstance(names, dict) and all(type(place) is int for place in names.values()):
        return [list(names)]
    groups = list(names.values()) if isinstance(names, dict) else names
    if _is_list_of_texts(groups):
        groups = [groups]
    if isinstance(groups, list) and all(map(_is_list_of_texts, groups)):
        return groups
    return []


def _check_columns(
    source: ScannedSource, columns: DataColumns, left_out: Collection[str]
) -> Iterator[Observation]:
    """Compare declared features with the columns of most tables."""
    assert columns.schema is not None
    features, tasks = source.dataset.stored_features, source.tasks
    num_tasks = len(tasks.of_text) if tasks.is_there else 0
    one_text_each = bool(source.episodes.has_one_text.all())
    stored = set(columns.schema.names)
    for name in DEFAULT_COLUMNS:
        if name not in stored:
            several = name == "task_index" and num_tasks != 1
            how = f"and {num_tasks} tasks are possible" if several else "it is computed"
            said = f"The tables have no column {name}; {how}."
            helps = tasks_helps("missing-column", several and one_text_each)
            severity = "error" if several else "warning"
            yield Observation("missing-column", said, feature=name, severity=severity, helps=helps)
        elif name in columns.floating:
            said = f"{name} is stored as floating-point numbers. The result stores int64, which "
            said += "LeRobot needs."
            yield Observation("dtype-mismatch", said, feature=name)
    for name, feature in features.items():
        dtype = feature["dtype"]
        if name not in stored:
            if name not in DEFAULT_COLUMNS and dtype != "video":
                said = f"{INFO_PATH} declares {shown(name)}, but no table has such a column."
                yield Observation("phantom-feature", said, path=INFO_PATH, feature=name)
        elif dtype == "video":
            if name not in left_out:
                # The remark names no feature, since the remedy would drop the camera, too.
                said = f"The tables have a column {shown(name)}, which is declared as a camera."
                yield Observation("undeclared-column", said)
        elif dtype == "image" and _holds_paths(columns.schema.field(name).type):
            yield Observation("image-paths", said_of_paths(name), path=INFO_PATH, feature=name)
        else:
            yield from _check_type(name, feature, columns)
    for name in sorted(stored - features.keys()):
        said = f"The tables have a column {shown(name)}, which {INFO_PATH} does not declare."
        yield Observation("undeclared-column", said, feature=name)
        if columns.by_name[name].is_wrapped:
            yield Observation("wrapped-scalar", _said_of_wrapped(name), feature=name)


def _said_of_wrapped(name: str) -> str:
    return f"{shown(name)} is stored as lists of one value, which LeRobot cannot load."


def declared_as_stored(features: Features, columns: DataColumns) -> dict[str, dict[str, Any]]:
    """Return new declarations of features, so that LeRobot reads the stored columns."""
    assert columns.schema is not None
    changes: dict[str, dict[str, Any]] = {}
    for name in columns.schema.names:
        if name in features and features[name]["dtype"] != "video":
            declared = _readable_declaration(name, features[name], columns)
            if declared is not None and lacks_names_of_axes({**features[name], **declared}):
                declared["names"] = list(NAMES_OF_AXES)
            if declared is not None and not declared.items() <= features[name].items():
                changes[name] = {**features[name], **declared}
    return changes


def _check_type(
    name: str, feature: Mapping[str, Any], columns: DataColumns
) -> Iterator[Observation]:
    """Report a column that LeRobot cannot read, or that differs from its declaration."""
    assert columns.schema is not None
    kind, column = columns.schema.field(name).type, columns.by_name[name]
    declared = _readable_declaration(name, feature, columns)
    if declared is None:
        as_stored = {"dtype": dtype_name(kind), "shape": list_sizes(kind) or [1]}
        of_images = feature["dtype"] == "image" or name in LANGUAGE_COLUMNS
        reason = read_by_lerobot(name, feature if of_images else as_stored, kind).reason
        if isinstance(column.sizes, str):
            reason = f"it holds {column.sizes}"
        said = f"{shown(name)} is stored as {shown(str(kind))}, which LeRobot cannot load"
        yield Observation(
            "unloadable-feature", f"{said}: {reason or 'it contains no files'}.", feature=name
        )
        return
    if column.is_wrapped:
        yield Observation("wrapped-scalar", _said_of_wrapped(name), feature=name)
    dtype, shape = feature["dtype"], feature.get("shape")
    if declared["dtype"] != dtype and not column.is_floating:
        said = f"{shown(name)} is stored as {declared['dtype']}, but declared as {shown(dtype)}."
        yield Observation("dtype-mismatch", said, path=INFO_PATH, feature=name)
    if declared["shape"] != shape and _is_shape(shape):
        said = f"{shown(name)} is stored in the shape {declared['shape']}, but declared in {shape}."
        yield Observation("shape-mismatch", said, path=INFO_PATH, feature=name)


def _readable_declaration(
    name: str, feature: Mapping[str, Any], columns: DataColumns
) -> dict[str, Any] | None:
    """Return dtype and shape with which LeRobot reads a column, the declared ones if possible.

    A column with lists of one value has the dtype and shape of the value.
    """
    assert columns.schema is not None
    kind, column = columns.schema.field(name).type, columns.by_name[name]
    as_declared = {"dtype": feature["dtype"], "shape": feature.get("shape")}
    if feature["dtype"] == "image" or name in LANGUAGE_COLUMNS:
        # Paths lead to files outside the table, and arrays of pixels are not files.
        if read_by_lerobot(name, feature, kind).verdict == "exact":
            return as_declared | {"shape": columns.picture_shapes.get(name, as_declared["shape"])}
        if name in LANGUAGE_COLUMNS or dtype_name(kind) not in NUMBER_DTYPES:
            return None
    if isinstance(column.sizes, str):
        return None
    kind, sizes = columns.type_of_values(name), () if column.is_wrapped else column.sizes
    if read_by_lerobot(name, feature, kind, sizes).verdict == "exact":
        return as_declared
    return declaration_of(name, kind, sizes)


def _is_shape(shape: object) -> bool:
    return (
        isinstance(shape, list)
        and bool(shape)
        and all(type(size) is int and size > 0 for size in shape)
    )


def check_images(features: Features, schema: pa.Schema) -> Iterator[Observation]:
    """Report images that are not stored as files, if their statistics are to be computed."""
    for name, feature in features.items():
        if feature["dtype"] != "image" or name not in schema.names:
            continue
        held = kind = _plain(schema.field(name).type)
        if pa.types.is_struct(kind):
            place = kind.get_field_index("bytes")
            held = kind.field(place).type if place >= 0 else pa.null()
        if not is_binary(held) and not _holds_paths(kind):  # those have a finding already
            said = (
                f"The images {shown(name)} are stored as {shown(str(kind))}, not as image files: "
            )
            said += "no statistics can be computed."
            yield Observation("uncomputable-stats", said, feature=name)


def _is_of_numbers(schema: pa.Schema | None, column: str | None) -> bool:
    """Return whether a column has numbers or truth values, or lists of them at any depth."""
    if schema is None or column not in schema.names:
        return False
    return is_number(innermost_type(schema.field(column).type))


# LeRobot does not open a dataset without these.
_DEMANDED_TOTALS = frozenset({"total_episodes", "total_frames"})


def _check_totals(info: Mapping[str, Any], totals: Totals) -> Iterator[Observation]:
    """Compare the totals in ``info.json`` with the real ones."""
    wrong = [
        f"{key} {shown(repr(info[key]))} instead of {right[0]}" if key in info else f"no {key}"
        for key, right in totals.items()
        if key in info.keys() | _DEMANDED_TOTALS
        and not (type(info.get(key)) is int and info[key] in right)
    ]
    if wrong:
        yield Observation("stale-total", f"{INFO_PATH} states {', '.join(wrong)}.", path=INFO_PATH)


def unlisted_episodes(
    source: ScannedSource, survey: SourceFiles, remarks: Sequence[Observation]
) -> tuple[Extent, list[Observation]]:
    """Find episodes that ``info.json`` counts and whose rows are there, but that are not listed.

    Returns:
        Their number and the number of their frames, as far as ``info.json`` tells; and an
        observation if there are any.
    """
    info, episodes = source.dataset.stored_info, source.episodes
    listed, frames = len(episodes.listed), int(episodes.length.sum())
    total, total_frames = (info.get(key) for key in ("total_episodes", "total_frames"))
    signs = [remark.message for remark in remarks if remark.code == "stray-rows"]
    if survey.tables.files:
        signs.append(f"{shown(survey.tables.examples[0])} belongs to no listed episode.")
    if not signs or not isinstance(total, int) or total <= listed:
        return NOTHING, []
    said = f"{INFO_PATH} counts {count(total, 'episode')}, but {listed} are listed. {signs[0]}"
    more = total_frames - frames if isinstance(total_frames, int) else 0
    found = Observation("unlisted-episode", said, path=INFO_PATH)
    return Extent(total - listed, max(0, more), 0), [found]


def _holds_paths(kind: pa.DataType) -> bool:
    """Return whether a column of images can contain only paths."""
    kind = _plain(kind)
    if pa.types.is_struct(kind):
        return bool(kind.get_field_index("bytes") < 0 <= kind.get_field_index("path"))
    return is_text(kind)


def _is_list_of_texts(names: object) -> bool:
    return isinstance(names, list) and all(isinstance(name, str) for name in names)


def _few(names: Sequence[str]) -> str:
    said = ", ".join(map(shown, names[:_SHOWN]))
    more = len(names) - _SHOWN
    return f"{said} and {count(more, 'other')}" if more > 0 else said


def whole_remarks(
    source: ScannedSource, survey: SourceFiles, columns: DataColumns, left_out: Sequence[str]
) -> list[Observation]:
    """Return the observations about single files, and those that need all files."""
    dataset, episodes, _, gathered, *_ = source
    absent = _absent_features(source, columns.schema)
    remarks = [
        remark
        for remark in gathered.log.sightings.remarks()
        if not (remark.code == "missing-stats" and remark.feature in absent)
    ]
    one_text = dict(zip(episodes.index.tolist(), episodes.has_one_text.tolist(), strict=True))
    remarks += [
        replace(remark, helps=tasks_helps(remark.code, one_text[remark.episode]))
        if remark.code == "task-index" and remark.episode is not None
        else remark
        for remark in gathered.log.remarks
        # A column without numbers has no statistics to compute.
        if remark.code != "uncomputable-stats" or _is_of_numbers(columns.schema, remark.feature)
    ]
    about_files = list(_check_files(source, survey))
    remarks += about_files
    # If a template misses every file, all of them are strays.
    missed = {
        "data" if remark.stream == DATA_STREAM else "videos"
        for remark in about_files
        if remark.code == "path-template"
    }
    remarks += survey.remarks(missed)
    if columns.schema is not None:
        remarks += _check_columns(source, columns, left_out)
    remarks += _check_global_index(source, columns)
    remarks += _copied_tables(source)
    remarks += _check_tasks(source)
    remarks += _codec_changes(gathered.slices)
    # A selection of episodes does not know the totals of the source.
    if len(episodes.index) == len(episodes.listed):
        remarks += _check_totals(dataset.stored_info, _expected_totals(source, survey))
    return remarks


# Declarations for columns that ``info.json`` does not declare, as they are stored.


def declare_columns(
    source: ScannedSource, columns: DataColumns
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Return a declaration for each undeclared column that LeRobot can read, and why others fail.

    If lists may differ in their lengths, every table with the dataset's columns is read.
    """
    dataset, data = source.dataset, source.gathered.slices[0]
    declared: dict[str, dict[str, Any]] = {}
    refused: dict[str, str] = {}
    for field in columns.schema or ():
        if field.name in dataset.stored_features:
            continue
        try:
            # A file may have many of the episodes.
            keys = np.unique(data.key[columns.is_common]).tolist()
            shape, names = _shape(field, dataset.absolute(DATA_STREAM, keys))
            dtype = "image" if names else dtype_name(field.type)
            feature = {"dtype": dtype, "shape": shape, "names": names}
            if columns.by_name[field.name].is_floating:
                feature["dtype"] = "int64"
            reading = read_by_lerobot(field.name, feature, columns.type_of_values(field.name))
            if reading.reason:
                raise ValueError(reading.reason)
            declared[field.name] = feature
        except ValueError as error:
            refused[field.name] = str(error)
        except (OSError, pa.ArrowException, UnreadableSourceError) as error:
            refused[field.name] = f"its values cannot be read: {shown(str(error))}"
    return declared, refused


def _shape(field: pa.Field, files: Iterator[str]) -> tuple[list[int], list[str] | None]:
    """Return the shape of a column's values, and the names of its dimensions."""
    kind, held = _plain(field.type), innermost_type(field.type)
    if pa.types.is_struct(kind) or is_binary(kind):
        return _image_shape(next(_read(files, field.name))), list(NAMES_OF_AXES)
    if not (is_number(held) or is_text(kind)):
        raise ValueError(f"LeRobot cannot read {shown(str(kind))}")
    shapes = {_value_shape(values) for values in _read(files, field.name)}
    if len(shapes) > 1:
        raise ValueError("its values differ in shape from episode to episode")
    return list(shapes.pop()) or [1], None


def _read(files: Iterator[str], name: str) -> Iterator[pa.Array]:
    for path in files:
        with pq.ParquetFile(path) as file:
            column = file.read(columns=[name], use_threads=False).column(0).combine_chunks()
        while isinstance(column.type, pa.BaseExtensionType):
            column = column.storage
        yield column


def _value_shape(values: pa.Array) -> tuple[int, ...]:
    """Return the shape of all values of a column; () for plain numbers and texts."""
    if values.null_count:
        raise ValueError("it has empty values")
    if not is_list(values.type):
        return ()
    try:
        length = list_length(values)
    except (ValueError, IndexError) as error:  # IndexError: there are no rows
        raise ValueError("its lists differ in length") from error
    return (length, *_value_shape(list_values(values)))


def _image_shape(values: pa.Array, *, is_depth: bool = False) -> list[int]:
    from leconvert.media import decode_image  # only for image columns

    first = values[0].as_py()
    data = first.get("bytes") if isinstance(first, dict) else first
    if not isinstance(data, bytes):
        raise ValueError("its values are not image files")
    try:
        return list(decode_image(data, is_depth=is_depth).shape)
    except (ValueError, UnreadableSourceError):
        raise ValueError("its values are not image files") from None


def _plain(kind: pa.DataType) -> pa.DataType:
    while isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    return kind
