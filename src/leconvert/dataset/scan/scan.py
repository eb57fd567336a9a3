"""The scan: it looks at every file of a source once, and keeps only numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from leconvert import tables
from leconvert.dataset.files import EPISODE_FOLDERS, files_below
from leconvert.dataset.findings import (
    Observation,
    ResolvedRepairs,
    SourceFacts,
    check_accepted,
    check_dropped_features,
    check_renamed_features,
    computes_all_stats,
    redeclared,
    resolve_repairs,
    source_finding,
    task_map_of,
    whole_frames_of,
)
from leconvert.dataset.formats import TARGETS, frame_rate, renamed_stream, v2, v3
from leconvert.dataset.formats.v2 import load_tasks, read_info
from leconvert.dataset.scan.changes import SourceFiles, meta_digest, survey_folder
from leconvert.dataset.scan.dataset_checks import (
    COMPUTED_BY,
    DataColumns,
    StoredColumn,
    beyond_target,
    check_images,
    check_names,
    common_columns,
    declare_columns,
    declared_as_stored,
    dropped_phantoms,
    has_first_clip,
    lost_instructions,
    unlisted_episodes,
    whole_remarks,
    with_other_columns,
    wrong_rate,
)
from leconvert.dataset.scan.file_checks import declared_as_encoded
from leconvert.dataset.scan.gathering import (
    EpisodeTable,
    Gathered,
    ScannedSource,
    settled_slices,
)
from leconvert.dataset.scan.modality import (
    check_modality,
    read_modality,
    stale_extensions,
    task_columns,
)
from leconvert.dataset.scan.trimming import Trimming
from leconvert.dataset.scan.v2 import read_v2_source
from leconvert.dataset.scan.v3 import read_v3_source, reading_of_v3
from leconvert.model.repairs import TEXT_DTYPES, VISUAL_DTYPES, RepairOptions, Repairs
from leconvert.model.selection import EpisodeRanges, EpisodeSelection
from leconvert.model.values import (
    NOTHING,
    TARGET_VERSIONS,
    BoolArray,
    Finding,
    IntArray,
    Misfit,
    Source,
    SourceScan,
    StreamScan,
    camera_of,
)
from leconvert.model.versions import V3_VERSION
from leconvert.support.errors import UsageError
from leconvert.support.parallel import Spread
from leconvert.support.progress import NO_PROGRESS, Progress
from leconvert.support.text import count, shown
from leconvert.workdir.swap import is_converted


def scan_source(
    root: Path,
    options: RepairOptions | None = None,
    *,
    selection: EpisodeSelection = EpisodeSelection(),
    to: str = TARGET_VERSIONS[0],
    progress: Progress = NO_PROGRESS,
    spread: Spread | None = None,
) -> SourceScan:
    """Look at the files of a dataset, and decide about repairs.

    Episodes that are not selected have no findings, and their files are not opened. Errors are
    collected, so that one run reports all of them; the caller decides by the findings' severity.
    Episodes that are left out are not in the result.

    Args:
        to: The version to write; some features cannot be stored in it.
    """
    options = options or RepairOptions()
    check_accepted(options.accept)
    read = read_v3_source if reads_as_v3(root, options) else read_v2_source
    source = read(root, options, selection, to, progress, spread)
    if not source.gathered.slices:
        return _without_files(source, options)
    return _resolved(source, options, selection, to)


def source_reading(root: Path, options: RepairOptions) -> Repairs:
    """Return the repairs with which a source can be opened before it is scanned."""
    if not reads_as_v3(root, options):
        return options.reading
    reading, _ = reading_of_v3(root, read_info(root), options)
    return replace(reading, derived_tables=v3.lacking_tables(root))


def reads_as_v3(root: Path, options: RepairOptions = RepairOptions()) -> bool:
    """Tell which reader a source needs; refuse an assumed version that its files are not of."""
    assumed = options.assume_version
    is_v3 = is_converted(root) or v3.says_another_version(root, read_info(root))
    is_v3 |= assumed == V3_VERSION and v3.has_files_of_v3(root)
    if assumed is not None and is_v3 != (assumed == V3_VERSION):
        those = "those" if is_v3 else "not those"
        raise UsageError(
            f"--assume-version {assumed} does not fit {root}: its files are {those} of v3.0.",
            path=str(root),
            next_step="Leave this option out.",
        )
    return is_v3


def _without_files(source: ScannedSource, options: RepairOptions) -> SourceScan:
    """Return the scan of a source with files that no template names, which is an error."""
    dataset, episodes = source.dataset, source.episodes
    facts = SourceFacts(
        episode_index=episodes.index,
        length=episodes.length,
        features=dataset.stored_features,
        tasks=source.tasks.listed,
        missing_columns=(),
        has_episode_stats=dataset.has_episode_stats,
        codebase_version=dataset.version,
        reading=dataset.reading,
    )
    settled = resolve_repairs(source.remarks, options, facts)
    return _scan(source, [], SourceFiles(), b"", settled)


def _resolved(
    source: ScannedSource, options: RepairOptions, selection: EpisodeSelection, to: str
) -> SourceScan:
    """Run the checks that need all files, and decide about repairs."""
    source = _as_long_as_files(source)
    dataset, episodes, tasks, gathered, remarks, _ = source
    root, declared = dataset.root, dataset.stored_features
    remarks += beyond_target(declared, to)
    takes_tasks = options.tasks_from is not None
    computes_stats = computes_all_stats(options, has_episode_stats=dataset.has_episode_stats)
    cameras = dataset.camera_keys
    has_all = len(gathered.slices) == 1 + len(cameras) and not selection.takes_some
    survey = _survey(source, num_known=gathered.num_files if has_all else None)
    survey.cameras.update(
        camera
        for camera in cameras
        if camera in options.drop_features and has_first_clip(dataset, camera)
    )
    computed = [name for name, flag in COMPUTED_BY.items() if flag in options.flags()]
    columns = common_columns(source, options.drop_features, computed)
    stored = [] if columns.schema is None else columns.schema.names
    check_dropped_features(options.drop_features, [*declared, *stored])
    modality = read_modality(root)
    indices = task_columns(modality, columns.schema)
    check_renamed_features(options.renames, [*declared, *stored], indices)
    remarks += whole_remarks(source, survey, columns, options.drop_features)
    remarks += check_modality(
        root,
        {**{name: {} for name in stored}, **declared},
        columns.schema,
        options.drop_features,
        options.renames,
        remaps_tasks=options.remap_tasks and task_map_of(tasks.listed) is not None,
    )
    unlisted = NOTHING
    if not selection.takes_some:
        unlisted, found = unlisted_episodes(source, survey, remarks)
        remarks += found
    remarks = lost_instructions(source, wrong_rate(source, remarks))
    remarks += dropped_phantoms(cameras, options.drop_features, survey)
    if "frame_index" in columns.floating:  # values that do not count may have fractions
        remarks = [
            replace(remark, is_acceptable=False) if remark.code == "frame-index" else remark
            for remark in remarks
        ]
    declarations, refused = declare_columns(source, columns)
    remarks = [_undeclared_remark(remark, declarations, refused) for remark in remarks]
    corrected = {} if columns.schema is None else declared_as_stored(declared, columns)
    if columns.schema is not None:
        remarks += check_images(declared, columns.schema)
    unsound = _computable(gathered, remarks) if source.reads_stats else None
    if not computes_stats and unsound is not None:
        remarks = [_stale_remark(remark, gathered.log.stale_stats, unsound) for remark in remarks]
        anew = redeclared(declared, corrected)
        needed = {name: set(found) for name, found in gathered.log.missing_stats.items()}
        remarks = [remark for remark in remarks if _is_of_computed(remark, needed, anew)]
    features = {**declared, **corrected}
    remarks += check_names(features)
    # A feature that turns out to be text needs no statistics.
    remarks = [
        remark
        for remark in remarks
        if remark.code not in ("missing-stats", "stale-stats")
        or features.get(remark.feature or "", {}).get("dtype") not in TEXT_DTYPES
    ]
    intervals = selection.kept_frames(episodes.index, episodes.length)
    salvaged: dict[int, tuple[int, int]] = {}
    trimming = Trimming(dataset, gathered.slices, episodes.index, episodes.length, to)
    if options.on_bad_episode == "trim":
        whole = whole_frames_of(remarks)
        salvaged = trimming.salvaged_intervals(whole, intervals)
        chosen = {each: intervals[each] for each in intervals.keys() - whole.keys()}
        intervals = {**chosen, **salvaged}
    cut, uncut = trimming.trimmed_slices(intervals)
    remarks += [*uncut, *trimming.trimmed_before(intervals)]
    stated = frame_rate(dataset.stored_info.get("fps"))
    facts = SourceFacts(
        episode_index=episodes.index,
        length=episodes.length,
        selected=EpisodeRanges.of_episodes(episodes.index) if selection.takes_some else None,
        features=declared,
        tasks=load_tasks(root, Repairs(tasks_from="episodes")) if takes_tasks else tasks.listed,
        missing_columns=[
            remark.feature
            for remark in remarks
            if remark.code == "missing-column" and remark.feature
            if remark.severity != "error" or (remark.helps and takes_tasks)
        ],
        has_episode_stats=dataset.has_episode_stats,
        undeclared=[
            remark.feature
            for remark in remarks
            if remark.code == "undeclared-column" and remark.feature
        ],
        declarations=declarations,
        corrected=corrected,
        unsound_stats=unsound,
        codebase_version=dataset.version,
        reading=dataset.reading,
        task_columns=indices,
        assumed_fps=None if stated == dataset.fps else f"{float(dataset.fps)!r}",
        trimmed=intervals,
        has_quantiles=dataset.has_quantiles,
        floating_indices=columns.floating,
        unlisted=unlisted,
    )
    settled = resolve_repairs(remarks, options, facts)
    repairs = _with_right_declarations(settled.repairs, declared, columns)
    repairs = _with_right_cameras(repairs, settled.kept, source)
    settled = replace(settled, repairs=_with_new_names(repairs, options.renames))
    num_kept = int(np.count_nonzero(settled.kept))
    stale = stale_extensions(survey.extra_files, len(episodes.listed), num_kept)
    kept_frames = settled.repairs.trimmed_episodes
    salvage = _salvage_findings(episodes, {e: kept_frames[e] for e in salvaged if e in kept_frames})
    bounded = _quantile_bounds(features, settled.repairs) if facts.has_quantiles else ()
    settled = replace(settled, findings=(*settled.findings, *salvage, *stale, *bounded))
    length = episodes.length.copy()
    for episode, (first, stop) in settled.repairs.trimmed_episodes.items():
        length[np.searchsorted(episodes.index, episode)] = stop - first
    source = source._replace(episodes=replace(episodes, length=length))
    schema = _result_schema(declared, columns, settled.repairs, TARGETS[to].list_entry)
    streams = [settled_slices(slices, settled.kept) for slices in cut]
    if schema:
        streams[0] = _with_row_misfits(streams[0], source, schema, settled)
    return _scan(source, streams, survey, schema, settled)


def _as_long_as_files(source: ScannedSource) -> ScannedSource:
    """Return the episodes with the frames of their files if all files have more than declared."""
    episodes, length = source.episodes, source.episodes.length.copy()
    for episode, frames in whole_frames_of(source.gathered.log.remarks).items():
        at = np.searchsorted(episodes.index, episode)
        length[at] = max(length[at], frames)
    return source._replace(episodes=replace(episodes, length=length))


def _survey(source: ScannedSource, *, num_known: int | None) -> SourceFiles:
    """Look at the source's folder, given the number of known files of episodes."""
    dataset, episodes = source.dataset, source.episodes
    if isinstance(dataset, v2.Dataset):
        paths, passed_over = dataset.paths, tuple[str, ...]()
        if num_known is not None and paths.are_usual:
            below = (files_below(dataset.root, f"{top}/") for top in EPISODE_FOLDERS)
            if sum(1 for _ in chain.from_iterable(below)) == num_known:
                passed_over = EPISODE_FOLDERS  # all of them are known
        return survey_folder(
            dataset.root,
            paths.slice_of,
            episodes.lists,
            dataset.camera_keys,
            misplaced=paths.misplaced,
            passed_over=passed_over,
        )
    assert isinstance(dataset, v3.Dataset)
    there = dataset.episodes.placed

    def slice_of(path: str) -> tuple[str, int] | None:
        owner, stream = dataset.slice_of(path), v3.stream_of(path)
        if owner is None and stream and camera_of(stream) and stream not in there:
            return stream, 0  # of a camera that is undeclared or left out
        return owner

    return survey_folder(dataset.root, slice_of, episodes.lists, dataset.camera_keys)


def _with_new_names(repairs: Repairs, renames: Mapping[str, str]) -> Repairs:
    """Rename the features in repairs as in the result."""
    if not renames:
        return repairs

    def new(names: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted(renames.get(name, name) for name in names))

    return replace(
        repairs,
        renamed_features=dict(renames),
        computed_stats=new(repairs.computed_stats),
        stats_episodes={
            renames.get(name, name): episodes for name, episodes in repairs.stats_episodes.items()
        },
        unwrapped_columns=new(repairs.unwrapped_columns),
    )


def _salvage_findings(
    episodes: EpisodeTable, trimmed: Mapping[int, tuple[int, int]]
) -> Iterator[Finding]:
    """Report the kept frames of damaged episodes: of all, and of each."""
    lengths = episodes.length[np.searchsorted(episodes.index, sorted(trimmed))].tolist()
    if trimmed:
        kept = sum(stop - first for first, stop in trimmed.values())
        said = f"{count(len(trimmed), 'damaged episode')} trimmed: {kept:,} of "
        said += f"{count(sum(lengths), 'frame')} kept."
        yield Finding("trimmed-episode", "repaired", said)
    for (episode, (first, stop)), length in zip(sorted(trimmed.items()), lengths, strict=True):
        which = f"the first {stop}" if first == 0 else f"frames {first}:{stop}"
        which = "all" if (first, stop) == (0, length) else which
        said = f"Episode {episode}: {which} of its {count(length, 'frame')} are kept."
        yield Finding("trimmed-episode", "info", said, episode=episode)


def _quantile_bounds(
    features: Mapping[str, Mapping[str, Any]], repairs: Repairs
) -> Iterator[Finding]:
    """Report images whose quantiles are copied for episodes, but unknown for the whole dataset."""
    for name, feature in repairs.features(features).items():
        if feature["dtype"] not in VISUAL_DTYPES or (
            name in repairs.computed_stats and name not in repairs.stats_episodes
        ):
            continue
        said = f"{shown(name)}: pictures are not decoded, so {v3.STATS_PATH} has bounds of their "
        said += "quantiles."
        yield source_finding(
            "quantile-bounds", said, stream=name, path=v3.STATS_PATH, remedy="--quantiles"
        )


def data_misfits(
    of_files: IntArray,
    *,
    has_other_columns: BoolArray,
    first_index: IntArray,
    episode_index: IntArray,
    length: IntArray,
    repairs: Repairs,
) -> IntArray:
    """Return why data files cannot be taken unchanged, a sum of `Misfit` for each; shape (E,).

    Args:
        of_files: The facts of each file alone, shape (E,).
        has_other_columns: Whether its columns differ from the result's, shape (E,).
        first_index: ``index`` of its first row, from which the other rows count, shape (E,).
        episode_index: ``episode_index`` of its rows, shape (E,).
        length: Frames of each episode, shape (E,).
        repairs: The changes of the conversion.
    """
    found = of_files.copy()
    found[has_other_columns] |= Misfit.OTHER_COLUMNS
    if repairs.change_values:
        found |= Misfit.CHANGED_ROWS
    begins = np.cumsum(length) - length
    is_elsewhere = (first_index != begins) | (episode_index != np.arange(len(length)))
    found[is_elsewhere] |= Misfit.OTHER_NUMBERS
    return found


def _with_row_misfits(
    data: StreamScan, source: ScannedSource, data_schema: bytes, settled: ResolvedRepairs
) -> StreamScan:
    """Return the slices of tables with all reasons why their files cannot be taken unchanged."""
    kept, schema = settled.kept, tables.deserialize_schema(data_schema)
    misfit = data_misfits(
        data.misfit,
        has_other_columns=with_other_columns(source, schema)[kept],
        first_index=source.gathered.first_index[kept],
        episode_index=source.episodes.index[kept],
        length=source.episodes.length[kept],
        repairs=settled.repairs,
    )
    return replace(data, misfit=misfit)


def _undeclared_remark(
    remark: Observation, declarations: Mapping[str, object], refused: Mapping[str, str]
) -> Observation:
    """Add the reason why an undeclared column cannot be declared."""
    if remark.code != "undeclared-column" or remark.feature in declarations:
        return remark
    why = refused.get(remark.feature or "")
    said = f"{remark.message[:-1]}, and {why}." if why else remark.message
    return replace(remark, message=said, helps=("--drop-feature",))


def _computable(gathered: Gathered, remarks: Sequence[Observation]) -> dict[str, list[int]]:
    """Return features with unsound statistics, and the episodes that can compute them.

    Missing statistics have to be computed.
    """
    never = {
        (remark.feature, remark.episode)
        for remark in remarks
        if remark.code == "uncomputable-stats"
    }
    unsound = {name: list(episodes) for name, episodes in gathered.log.missing_stats.items()}
    for name, episodes in gathered.log.stale_stats.items():
        if (name, None) not in never:
            found = [episode for episode in episodes if (name, episode) not in never]
            unsound[name] = sorted([*unsound.get(name, ()), *found])
    return unsound


def _stale_remark(
    remark: Observation, stale: Mapping[str, Sequence[int]], computable: Mapping[str, Sequence[int]]
) -> Observation:
    """Add that stale statistics cannot be computed."""
    name = remark.feature or ""
    if remark.code != "stale-stats" or set(stale.get(name, ())) <= set(computable.get(name, ())):
        return remark
    said = (
        f"{remark.message} The statistics stay as they are, since they cannot be computed "
        "from all of the data."
    )
    return replace(remark, message=said, helps=())


def _is_of_computed(remark: Observation, missing: Mapping[str, Set[int]], anew: Set[str]) -> bool:
    """Return whether a remark concerns statistics that have to be computed, or something else."""
    if remark.code != "uncomputable-stats" or remark.feature in anew:
        return True
    episodes = missing.get(remark.feature or "", ())
    return bool(episodes) if remark.episode is None else remark.episode in episodes


def _with_right_declarations(
    repairs: Repairs, source: Mapping[str, Mapping[str, Any]], columns: DataColumns
) -> Repairs:
    """Return repairs with the right declarations of computed columns."""
    computed = {*repairs.computed_columns, *(["task_index"] if repairs.tasks_from else [])}
    if columns.schema is None or not computed:
        return repairs
    kept = columns.by_name.keys() - computed - set(repairs.unwrapped_columns)
    schema = tables.repaired_schema(columns.schema, repairs)
    own = {
        field.name: columns.by_name[field.name] if field.name in kept else StoredColumn.of(field)
        for field in schema
    }
    stored = replace(columns, schema=schema, by_name=own)
    added = repairs.declared_features.keys() - source.keys()
    features = {**source, **{name: repairs.declared_features[name] for name in added}}
    corrected = declared_as_stored(features, stored)
    declared = {
        name: feature
        for name, feature in {**repairs.declared_features, **corrected}.items()
        if name not in computed or name in corrected or name in added
    }
    return replace(repairs, declared_features=dict(sorted(declared.items())))


def _with_right_cameras(repairs: Repairs, kept: BoolArray, source: ScannedSource) -> Repairs:
    """Return repairs with the right declarations of cameras: those of most of their clips."""
    dataset, gathered = source.dataset, source.gathered
    declared = dict(repairs.declared_features)
    for slices in gathered.slices[1:]:
        camera = str(camera_of(slices.stream))
        facts = gathered.usual_clip(slices, kept)
        if facts is not None:
            feature = declared_as_encoded(dataset.stored_features[camera], facts, dataset.fps)
            if feature != dataset.stored_features[camera]:
                declared[camera] = feature
    return replace(repairs, declared_features=dict(sorted(declared.items())))


def _result_schema(
    source: Mapping[str, Mapping[str, Any]],
    columns: DataColumns,
    repairs: Repairs,
    list_entry: str,
) -> bytes:
    """Return the schema of the result's data files; None if no table could be read."""
    if columns.schema is None:
        return b""
    repaired = tables.repaired_schema(columns.schema, repairs)
    features = repairs.features(source)
    return tables.serialize_schema(tables.output_schema(repaired, features, list_entry=list_entry))


def _scan(
    scanned: ScannedSource,
    streams: list[StreamScan],
    survey: SourceFiles,
    data_schema: bytes,
    settled: ResolvedRepairs,
) -> SourceScan:
    """Return the scan, with the stream names of the result."""
    dataset, episodes = scanned.dataset, scanned.episodes
    renames = settled.repairs.renamed_features
    source = Source(
        root=str(dataset.root),
        codebase_version=dataset.version,
        meta_digest=meta_digest(dataset.root, dataset.version),
        extra_files=survey.extra_files,
        repairs=settled.repairs,
    )
    return SourceScan(
        sources=(source,),
        fps=dataset.fps,
        episode_index=episodes.index[settled.kept],
        length=episodes.length[settled.kept],
        streams=[replace(each, stream=renamed_stream(each.stream, renames)) for each in streams],
        data_schema=data_schema,
        findings=settled.findings,
        features=settled.repairs.features(dataset.stored_features),
        robot_type=dataset.stored_info.get("robot_type"),
    )
