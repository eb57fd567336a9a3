"""Several sources as one: what they must have in common, and the repairs of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from leconvert import tables
from leconvert.dataset.files import GIT_FILES
from leconvert.dataset.findings import source_finding
from leconvert.dataset.formats import (
    Sources,
    SourceView,
    differences_table,
    differing_features,
    differing_subtasks,
    open_sources,
)
from leconvert.dataset.scan.changes import files_along
from leconvert.dataset.scan.modality import read_modality, task_columns
from leconvert.model.repairs import DEFAULT_COLUMNS, TEXT_DTYPES, VISUAL_DTYPES, Repairs
from leconvert.model.values import (
    DATA_STREAM,
    FILE_COLUMNS,
    SLICE_COLUMNS,
    FileTable,
    Finding,
    Misfit,
    SourceScan,
    StreamScan,
    depth_facts,
    is_depth_map,
)
from leconvert.support.errors import SourceError
from leconvert.support.text import count, shown
from leconvert.tables.schemas import common_type, dtype_name, with_column_of

_NUMBERED = ("episode_index", "index")
ROBOT_TYPE = "robot-type"


def join_scans(
    scans: Sequence[SourceScan], *, list_entry: str, accept: Sequence[str] = ()
) -> SourceScan:
    """Return the scan of several sources in a row, from a scan of each.

    Their episodes get consecutive numbers. Tasks of the same text become one.
    """
    if len(scans) == 1:
        return scans[0]
    schema = _check_alike(scans, accept)
    views = open_sources([scan.only for scan in scans])
    maps = _task_maps(views)
    sources = [
        replace(scan.only, repairs=_numbered_on(scan, view, task_map, schema))
        for scan, view, task_map in zip(scans, views, maps, strict=True)
    ]
    joined = open_sources(sources)
    computed = Repairs(computed_columns=_NUMBERED)
    stored = tables.repaired_schema(schema, computed)
    source = np.repeat(np.arange(len(scans)), [scan.num_episodes for scan in scans])
    return SourceScan(
        sources=sources,
        fps=scans[0].fps,
        episode_index=np.concatenate([scan.episode_index for scan in scans]),
        length=np.concatenate([scan.length for scan in scans]),
        streams=[_joined_stream(scans, each.stream) for each in scans[0].streams],
        data_schema=tables.serialize_schema(
            tables.output_schema(stored, joined.features, list_entry=list_entry)
        ),
        findings=(
            *_findings_of(scans, has_quantiles=all(view.has_quantiles for view in joined)),
            *_findings_of_all(scans, joined),
        ),
        features=joined.features,
        robot_type=scans[0].robot_type,
        source=source,
    )


def _check_alike(scans: Sequence[SourceScan], accept: Sequence[str]) -> pa.Schema:
    """Refuse sources with different values where a dataset has only one; return a common schema.

    Types of the first source are taken if they can hold all rows.
    """
    rows: list[list[str]] = []
    fps = [f"{float(scan.fps):g}" for scan in scans]
    if len({scan.fps for scan in scans}) > 1:
        rows.append(["fps", *fps])
    robots = [_told(scan.robot_type) for scan in scans]
    if len(set(robots)) > 1 and ROBOT_TYPE not in accept:
        rows.append(["robot_type", *robots])
    differing = differing_features([_own_features(scan) for scan in scans])
    rows += differing
    depths = [] if differing else list(_depth_rows([scan.features for scan in scans]))
    rows += depths
    subtasks = differing_subtasks(
        [scan.features for scan in scans], [Path(scan.only.root) for scan in scans]
    )
    rows += [subtasks] if subtasks else []
    schemas = _with_alike_defaults([tables.deserialize_schema(each.data_schema) for each in scans])
    holding = None
    if not differing:
        holding = next((one for one in schemas if _holds(one, schemas)), None)
        rows += [] if holding is not None else list(_type_rows(schemas))
    if not rows:
        assert holding is not None
        return holding
    helps = []
    if len(set(fps)) > 1:
        helps.append("Datasets of different frame rates cannot be merged.")
    if differing or (holding is None and not differing):
        helps.append(
            "Leave differing features out with --drop-feature NAME. If a feature only has "
            "another name, give it the same name with --rename-feature OLD=NEW."
        )
    if depths:
        helps.append(
            "A dataset has one scale and one unit for all frames of a depth camera. Leave the "
            "camera out with --drop-feature NAME."
        )
    if subtasks:
        helps.append(
            "--drop-feature subtask_index leaves the subtasks out. To keep the subtasks, "
            "their tables must list the same texts in the same order."
        )
    if len(set(robots)) > 1 and ROBOT_TYPE not in accept:
        helps.append(f"--accept {ROBOT_TYPE} gives the result the robot type of the first dataset.")
    names = [str(scan.only.root) for scan in scans]
    raise SourceError(
        f"{count(len(scans), 'dataset')} cannot be merged: they differ in "
        f"{count(len(rows), 'point')}.",
        path=names[0],
        details=differences_table(names, rows),
        next_step=" ".join(helps),
    )


def _own_features(scan: SourceScan) -> dict[str, Mapping[str, Any]]:
    """Return the features of a source but LeRobot's own columns, which every source has."""
    return {name: each for name, each in scan.features.items() if name not in DEFAULT_COLUMNS}


def _with_alike_defaults(schemas: Sequence[pa.Schema]) -> list[pa.Schema]:
    """Return the schemas, with LeRobot's own columns in a type that holds the values of all."""
    alike = list(schemas)
    for name in DEFAULT_COLUMNS:
        if not all(name in schema.names for schema in schemas):
            continue
        widest = schemas[0]
        for schema in schemas[1:]:
            if common_type(widest.field(name).type, schema.field(name).type) != (
                widest.field(name).type
            ):
                widest = schema
        alike = [with_column_of(schema, name, widest) for schema in alike]
    return alike


def _told(value: object) -> str:
    return "-" if value is None else shown(str(value))


def _depth_rows(features: Sequence[Mapping[str, Mapping[str, Any]]]) -> Iterator[list[str]]:
    """Yield the cameras whose values do not mean the same distances in all sources.

    LeRobot would read all frames of the result by the facts of the first source.
    """
    for name, first in features[0].items():
        if first["dtype"] not in VISUAL_DTYPES:
            continue
        told = [_depth_told(each[name]) for each in features]
        if len(set(told)) > 1:
            yield [shown(name), *told]


def _depth_told(feature: Mapping[str, Any]) -> str:
    if not is_depth_map(feature):
        return "colours"
    info = feature.get("info")
    unit = info.get("depth_unit") if isinstance(info, Mapping) else None
    said = f"depth in {shown(unit or 'mm')}"  # LeRobot passes values without a unit on as mm
    if feature["dtype"] == "image":
        return said
    facts = [
        f"{name} {value:g}" if isinstance(value, int | float) else f"{name} {shown(value)}"
        for name, value in depth_facts(feature).items()
    ]
    return ", ".join([said, *facts])


def _holds(schema: pa.Schema, others: Sequence[pa.Schema]) -> bool:
    return all(
        set(schema.names) == set(other.names)
        and all(tables.fits(f.type, schema.field(f.name).type) for f in other)
        for other in others
    )


def _type_rows(schemas: Sequence[pa.Schema]) -> Iterator[list[str]]:
    """Yield the columns with different types, and the type in each source."""
    for name in {field: None for schema in schemas for field in schema.names}:
        types = [schema.field(name).type if name in schema.names else None for schema in schemas]
        if len({str(kind) for kind in types}) > 1:
            stored = ["-" if kind is None else f"stored as {kind}" for kind in types]
            yield [shown(name), *stored]


def _task_maps(views: Sources) -> list[dict[int, int] | None]:
    """Return for each source the result's index of each of its tasks; None if nothing changes.

    Tasks are numbered in the order in which the sources list them, equal texts once.
    """
    places: dict[str, int] = {}
    maps: list[dict[int, int] | None] = []
    for view in views:
        # An index with several texts has the text that the repairs would take.
        united = {index: places.setdefault(text, len(places)) for index, text in view.tasks}
        own = view.repairs.task_map
        if own is not None:
            united = {old: united[new] for old, new in own.items()}
        is_same = all(old == new for old, new in united.items())
        is_plain = len({text for _, text in view.tasks}) == len(view.tasks)
        maps.append(None if is_same and is_plain else united)
    return maps


def _numbered_on(
    scan: SourceScan, view: SourceView, task_map: Mapping[int, int] | None, schema: pa.Schema
) -> Repairs:
    """Return a source's repairs with the numbers and the types of numbers of the result."""
    repairs = view.repairs
    declared = {
        name: {**scan.features[name], "dtype": dtype_name(schema.field(name).type)}
        for name in DEFAULT_COLUMNS
        if name in schema.names
    }
    other = {name: each for name, each in declared.items() if each != scan.features[name]}
    computed = {*repairs.computed_columns, *_NUMBERED}
    stale = {*repairs.computed_stats, *_NUMBERED}
    columns: Sequence[str] = ()
    if task_map is not None:
        stored = tables.deserialize_schema(scan.data_schema)
        columns = [
            name
            for name in task_columns(read_modality(view.root), stored)
            if name not in repairs.dropped_features
        ]
        stale.update(["task_index", *columns])
    texts = {name for name, ft in scan.features.items() if ft["dtype"] in TEXT_DTYPES}
    stale = {name for name in stale if name in scan.features} - texts
    return replace(
        repairs,
        declared_features=dict(sorted({**repairs.declared_features, **other}.items())),
        computed_columns=tuple(name for name in DEFAULT_COLUMNS if name in computed),
        task_map=task_map,
        task_columns=tuple(columns) if task_map is not None else repairs.task_columns,
        computed_stats=tuple(sorted(stale)),
        quantiles=repairs.quantiles or view.dataset.has_quantiles,
        stats_episodes={
            name: episodes
            for name, episodes in repairs.stats_episodes.items()
            if name not in _NUMBERED and (task_map is None or name not in ("task_index", *columns))
        },
    )


def _joined_stream(scans: Sequence[SourceScan], name: str) -> StreamScan:
    """Join one stream of all scans, with consecutive group numbers."""
    groups: dict[str, int] = {}
    parts: list[StreamScan] = []
    num_files = 0
    for source, scan in enumerate(scans):
        part = next(each for each in scan.streams if each.stream == name)
        files = replace(part.files, source=np.full(len(part.files), source, dtype=np.int64))
        part = replace(part, files=files, file=part.file + num_files)
        if name == DATA_STREAM:  # rows get new numbers
            part = replace(part, misfit=part.misfit | int(Misfit.CHANGED_ROWS))
        else:
            numbers = [groups.setdefault(kind, len(groups)) for kind in part.kinds]
            part = replace(part, group=np.array(numbers, dtype=np.int64)[part.group])
        parts.append(part)
        num_files += len(files)

    def chained(of: Callable[[StreamScan], Any], columns: Sequence[str]) -> list[Any]:
        return [np.concatenate([getattr(of(part), column) for part in parts]) for column in columns]

    files = FileTable(*chained(lambda part: part.files, FILE_COLUMNS))
    slices = chained(lambda part: part, SLICE_COLUMNS)
    return StreamScan(name, files, *slices, kinds=tuple(groups))


def _findings_of(scans: Sequence[SourceScan], *, has_quantiles: bool) -> Iterator[Finding]:
    """Yield the findings of each source, beginning with its name."""
    for scan in scans:
        for finding in scan.findings:
            if finding.code == "quantile-bounds" and not has_quantiles:
                continue  # not all episodes have them
            yield replace(finding, message=f"{scan.only.root}: {finding.message}")


def _findings_of_all(scans: Sequence[SourceScan], joined: Sources) -> Iterator[Finding]:
    along = files_along([scan.only for scan in scans])
    for scan in scans:
        left = [path for path in scan.only.extra_files if along[path] is not scan.only]
        left = [path for path in left if path not in GIT_FILES]
        if left:
            taken = along[left[0]].root
            said = f"{scan.only.root}: {count(len(left), 'file')} left behind, since an earlier "
            said += f"source has a file of the same name: {', '.join(left[:3])}"
            said += ", ..." if len(left) > 3 else ""
            yield source_finding("merged-file", f"{said}; taken from {taken}.", path=left[0])
    robots = {_told(scan.robot_type): None for scan in scans}
    if len(robots) > 1:
        said = f"The robot types are {', '.join(robots)}. The result has the first."
        yield source_finding(ROBOT_TYPE, said, severity="repaired")
    lacking = [str(view.root) for view in joined if not view.has_quantiles]
    if 0 < len(lacking) < len(joined):
        said = (
            f"The statistics of {', '.join(lacking)} have no quantiles, but those of the "
            "other datasets do. The "
        )
        said += "result has no quantiles for the dataset as a whole."
        yield source_finding("merged-quantiles", said, remedy="--quantiles")
    for view in joined:
        splits = view.dataset.info.get("splits")
        whole = {"train": f"0:{len(view.dataset.episodes)}"}
        if splits not in (None, {}, whole):
            said = f"The splits of {view.root} are not in the result. Its only split is train."
            yield source_finding("merged-splits", said, path="meta/info.json")
