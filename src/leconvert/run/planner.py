"""The planner: scan a source, lay it out, write the manifest; or join the run under way."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import asdict, astuple, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from leconvert.dataset.findings import frames_lost, lossless_remedy, named, source_finding
from leconvert.dataset.formats import TARGETS, open_dataset, open_sources, target_of, v3
from leconvert.dataset.formats.v2 import load_info, read_info
from leconvert.dataset.scan import (
    FileFacts,
    check_source_unchanged,
    reads_as_v3,
    scan_source,
    source_reading,
)
from leconvert.model.repairs import VISUAL_DTYPES, RepairOptions, Repairs
from leconvert.model.selection import EpisodeSelection
from leconvert.model.values import (
    DATA_STREAM,
    KEEPING_LAYOUTS,
    OVERLAY,
    TARGET_VERSIONS,
    Batch,
    Extent,
    Finding,
    IntArray,
    LayoutOptions,
    Misfit,
    Remedy,
    Source,
    SourceScan,
    StreamLayout,
    StreamScan,
    camera_of,
)
from leconvert.model.versions import V3_VERSION
from leconvert.run.appending import check_can_append, former_episodes, layout_appended
from leconvert.run.conversion import Conversion, Places
from leconvert.run.layout import (
    check_layout_options,
    choose_block_align,
    count_out_of_reach,
    cut_batches,
    layout_streams,
)
from leconvert.run.space import (
    SpaceNeeded,
    can_link,
    check_room,
    existing_folder,
    is_one_file_system,
    space_needed,
    space_of_meta,
)
from leconvert.support.errors import (
    FindingsError,
    LeconvertError,
    PlanMismatchError,
    SourceError,
    TargetError,
    UnfitFilesError,
    UsageError,
)
from leconvert.support.progress import NO_PROGRESS, Progress
from leconvert.support.storage_errors import storage_errors
from leconvert.support.text import amount, count, shown
from leconvert.support.values import dataclass
from leconvert.workdir.former import count_former
from leconvert.workdir.fs import can_clone, is_there
from leconvert.workdir.locks import planner_lock, remove_planner_lock
from leconvert.workdir.records import WorkDir, new_run_id
from leconvert.workdir.run import (
    Manifest,
    OpenedRun,
    open_run,
    tool_versions,
    write_plan,
)
from leconvert.workdir.swap import (
    META,
    check_places,
    exchanged_place,
    is_converted,
    is_same_folder,
    overlaid_meta,
    try_renames,
)

if TYPE_CHECKING:
    from leconvert.remote.provenance import Origin


@dataclass(frozen=True, slots=True)
class PlanSummary:
    """The summary of a plan, before any work is done.

    Attributes:
        episodes: Number of episodes of the dataset.
        frames: Number of frames of the dataset.
        source_bytes: Bytes of its data and video files; if episodes are appended, only of the new
            ones.
        files: Number of output files of each stream.
        kept: Number of output files of each stream that are the source's own, unchanged; empty for
            layouts without such files.
        batches: Number of batches of work.
        block_align: Block alignment of episodes in video files, in bytes; 0 for none.
        space: The space that it needs in addition to the source.
        findings: The findings of the scan.
        decoded_cameras: Cameras whose clips are decoded, because their statistics are computed.
        decoded_episodes: Number of episodes in which clips are decoded.
        version: The version of the result.
        quantiles: Whether the statistics of its episodes have quantiles. Without them LeRobot
            cannot resume recording on it.
        meta_alone: Whether only ``meta/`` is written here, and all other files stay at their paths.
        layout: The layout.
        kept_episodes: Number of first episodes that are already in the result.
        moves: Bytes that move between this host and the Hub; None if the result is made here.
    """

    episodes: int
    frames: int
    source_bytes: int
    files: Mapping[str, int]
    kept: Mapping[str, int]
    batches: int
    block_align: int
    space: SpaceNeeded
    findings: Sequence[Finding]
    decoded_cameras: Sequence[str]
    decoded_episodes: int
    version: str
    quantiles: bool
    meta_alone: bool = False
    layout: str = LayoutOptions().layout
    kept_episodes: int = 0
    moves: MovedBytes | None = None


@dataclass(frozen=True, slots=True)
class MovedBytes:
    """Bytes that a migration moves between this host and the Hub.

    Attributes:
        of: Bytes of the dataset on the Hub.
        received: Bytes read for the plan: ``meta/``, small tables, headers; an estimate.
        to_fetch: Bytes still to be read: files that are rewritten or decoded.
        to_send: Bytes to be sent: ``meta/`` and files that are rewritten; an estimate.
    """

    of: int
    received: int
    to_fetch: int
    to_send: int


def summarize(run: OpenedRun) -> PlanSummary:
    """Return the summary of a written plan."""
    has_links = run.one_host is None or run.one_host.has_links
    scans = [run.scan.stream(layout.stream)[0] for layout in run.manifest.streams]
    source, root = run.scan.sources(), run.paths.root
    summary = _summary(run.manifest, scans, source, run.batches, root, has_links=has_links)
    return _with_former(summary, Path(run.manifest.target))


def _with_former(summary: PlanSummary, target: Path) -> PlanSummary:
    """Add the former states beside a target to a summary that is shown.

    The folder is listed. A fleet, which has thousands of targets there, counts them all at once.
    """
    former_states, former_bytes = count_former([target])
    space = replace(summary.space, former_states=former_states, former_bytes=former_bytes)
    return replace(summary, space=space)


def _summary(
    manifest: Manifest,
    streams: Sequence[StreamScan],
    source: IntArray,
    batches: Iterable[Batch],
    work_dir: Path,
    *,
    has_links: bool | None = None,
) -> PlanSummary:
    """Return the summary of a plan, written or not, without former states.

    Args:
        manifest: Its head.
        streams: The scan of each stream.
        source: Number of each episode's source, shape (E,).
        batches: The work.
        work_dir: The folder of the shards.
        has_links: Whether a shard can be linked into the result; None to try.
    """
    target = Path(manifest.target)
    space = (
        space_of_meta(target)
        if manifest.is_overlay_in_place
        else space_needed(
            [] if manifest.outline else [Path(source.root) for source in manifest.sources],
            target,
            work_dir,
            manifest.block_align,
            streams,
            batches,
            has_links=has_links,
            is_migration=manifest.is_migration,
        )
    )
    return PlanSummary(
        episodes=manifest.num_episodes,
        frames=manifest.num_frames,
        source_bytes=manifest.source_bytes,
        files={layout.stream: layout.num_files for layout in manifest.streams},
        kept=kept_files(manifest, batches),
        batches=manifest.num_batches,
        block_align=manifest.block_align,
        space=space,
        findings=manifest.findings,
        decoded_cameras=decoded_cameras(manifest.streams, manifest.sources),
        decoded_episodes=_decoded_episodes(manifest, source),
        version=manifest.to,
        # Without quantiles in the table of statistics LeRobot cannot resume recording.
        quantiles=any(source.has_quantiles for source in open_sources(manifest.sources)),
        meta_alone=manifest.is_overlay_in_place,
        layout=manifest.layout,
        kept_episodes=manifest.kept_episodes,
        moves=_moved_bytes(manifest, streams, batches) if manifest.is_migration else None,
    )


def moved_bytes(run: OpenedRun) -> MovedBytes | None:
    """Return the bytes that a migration moves; None for other runs."""
    manifest = run.manifest
    if not manifest.is_migration:
        return None
    scans = [run.scan.stream(layout.stream)[0] for layout in manifest.streams]
    return _moved_bytes(manifest, scans, run.batches)


def _moved_bytes(
    manifest: Manifest, streams: Sequence[StreamScan], batches: Iterable[Batch]
) -> MovedBytes:
    """Return the bytes that a migration moves; its source is a sparse snapshot."""
    # local sources do not need it
    from leconvert.remote.sparse_snapshot import open_sparse_snapshot

    tree, computed = Path(manifest.source), manifest.computed_stats
    found = open_sparse_snapshot(tree)
    scans = {scan.stream: scan for scan in streams}
    cameras = {camera_of(scan.stream) for scan in streams}
    read_whole = {scan.stream for scan in streams if camera_of(scan.stream) in computed}
    if computed - cameras:
        read_whole.add(DATA_STREAM)
    to_fetch, to_send = 0, space_of_meta(tree).rooms[0].bytes_needed
    for batch in batches:
        for shard in batch.shards:
            size = int(scans[shard.stream].size_bytes[shard.first : shard.stop].sum())
            to_fetch += size if shard.stream in read_whole or not shard.keep else 0
            to_send += 0 if shard.keep else size
    return MovedBytes(found.size_bytes, found.fetched_bytes, to_fetch, to_send)


def kept_files(manifest: Manifest, batches: Iterable[Batch]) -> dict[str, int]:
    """Return the number of the source's own files by stream; empty if the layout keeps none."""
    if manifest.layout not in KEEPING_LAYOUTS:
        return {}
    if manifest.is_overlay_in_place:
        return {layout.stream: layout.num_files for layout in manifest.streams}
    found = {layout.stream: 0 for layout in manifest.streams}
    for batch in batches:
        for shard in batch.shards:
            found[shard.stream] += shard.keep
    return found


def _decoded_episodes(manifest: Manifest, source: IntArray) -> int:
    """Return the number of episodes in which images of any camera are decoded."""
    source = source[manifest.kept_episodes :]
    total = 0
    for number, own in enumerate(manifest.sources):
        found: set[int] = set()
        for camera in decoded_cameras(manifest.streams, [own]):
            if camera not in own.repairs.stats_episodes:
                total += int(np.count_nonzero(source == number))
                break
            found.update(own.repairs.stats_episodes[camera])
        else:
            total += len(found)
    return total


def decoded_cameras(streams: Sequence[StreamLayout], sources: Sequence[Source]) -> tuple[str, ...]:
    """Return the cameras whose statistics are computed."""
    cameras = (camera_of(layout.stream) for layout in streams)
    computed = {name for source in sources for name in source.repairs.computed_stats}
    return tuple(key for key in cameras if key is not None and key in computed)


class Draft(NamedTuple):
    """A plan before it is written.

    Attributes:
        scan: The scan of the source.
        manifest: The head of the plan, still without a run.
        batches: The work, without the first ``manifest.kept_episodes``, which have their files
            already.
        summary: Its summary.
    """

    scan: SourceScan
    manifest: Manifest
    batches: Sequence[Batch]
    summary: PlanSummary


def check_asked(places: Places, conversion: Conversion) -> None:
    """Refuse what could not be converted, before any work: first for its source, then its target.

    A source may be unreadable, or already v3.0, so that it would stay unchanged.
    """
    check_can_append(places, conversion)
    for source in places.sources:
        read_info(source)
        own, is_v3 = _assumed_of(source, conversion.repairs, is_alone=len(places.sources) == 1)
        asks_for_nothing = places.target == source and not conversion.changes_anything
        if not is_v3 or (asks_for_nothing and is_converted(source)):
            load_info(source, own.reading)
    conversion.check_target(places.source, places.target)


def draft_plan(
    places: Places, conversion: Conversion, *, progress: Progress = NO_PROGRESS
) -> Draft:
    """Scan sources and lay them out; writes nothing."""
    layout, repairs, target = conversion.layout, conversion.repairs, places.target
    check_layout_options(layout)
    _check_in_place(places, conversion)
    is_overlay = layout.layout == OVERLAY
    check_can_append(places, conversion)
    if places.is_migration:
        _check_can_migrate(places.source, layout, repairs)
    if is_overlay:
        _check_can_overlay(places, conversion.selection)
    scan = scan_sources(places.sources, conversion, places.source_name, progress=progress)
    streams, kept = (
        layout_appended(scan, target, layout)
        if layout.append and is_there(target)
        else (layout_streams(scan, layout), 0)
    )
    keeps = layout.layout in KEEPING_LAYOUTS and layout.to == TARGET_VERSIONS[0]
    rewritten = _rewritten(scan, kept) if keeps else ()
    bounds = _bounds_of_appended(scan) if kept else ()
    findings = (*scan.findings, *rewritten, *bounds, *_lost_frames(scan, streams, layout))
    fit = {each.stream: each.misfit == 0 for each in scan.streams} if keeps else {}
    if is_overlay:
        _check_overlay(scan, places.source_name)
    batches = []  # an overlay in place leaves every file at its path
    if not (is_overlay and places.in_place):
        batches = cut_batches(scan.streams, streams, layout.episodes_per_batch, fit, first=kept)
    manifest = Manifest(
        sources=scan.sources,
        target=str(target),
        options=conversion.result_record(),
        versions=tool_versions(),
        fps=scan.fps,
        block_align=choose_block_align(scan.streams, layout.block_align),
        streams=streams,
        num_episodes=scan.num_episodes,
        num_frames=scan.num_frames,
        source_bytes=sum(batch.source_bytes for batch in batches) if kept else scan.source_bytes,
        num_batches=len(batches),
        data_schema=scan.data_schema,
        findings=findings,
        outline=places.outline,
        kept_episodes=kept,
    )
    summary = _summary(manifest, scan.streams, scan.source, batches, places.work_dir)
    if summary.moves is not None and summary.moves.to_fetch and not repairs.fetch_unfit:
        raise _has_to_be_fetched(places.source_name, scan, summary.moves)
    return Draft(scan, manifest, batches, summary)


def preview_plan(
    places: Places, conversion: Conversion, *, progress: Progress = NO_PROGRESS
) -> PlanSummary:
    """Return the summary of the run that `open_or_plan` would plan or join; raise its errors.

    It writes nothing, and takes the same arguments.
    """
    if not conversion.plan.restart and WorkDir(places.work_dir).current_run_id() is not None:
        run = _open_planned(places, conversion, only_look=True)
        check_source_unchanged(run)
        return summarize(run)
    summary = draft_plan(places, conversion, progress=progress).summary
    if summary.moves is None:  # the target of a migration is a temporary folder
        check_room(summary.space, places.target)
    return _with_former(summary, places.target)


def scan_sources(
    sources: Sequence[Path],
    conversion: Conversion,
    name: str | None = None,
    *,
    progress: Progress = NO_PROGRESS,
) -> SourceScan:
    """Scan sources, check them, and join the scans.

    Args:
        sources: The sources.
        conversion: The conversion.
        name: The name of a single source in messages, if it is not its folder.
        progress: Receives the progress.

    Raises:
        FindingsError: A source has errors.
    """
    to, repairs = conversion.layout.to, conversion.repairs
    options = _repairs_of_each(sources, repairs)
    scan_one = partial(scan_source, selection=conversion.selection, to=to, progress=progress)
    scans = [scan_one(source, own) for source, own in zip(sources, options, strict=True)]
    wrong = [(source, scan) for source, scan in zip(sources, scans, strict=True) if _errors(scan)]
    if len(wrong) == 1:
        ((source, scan),) = wrong
        name = name if name and len(sources) == 1 else str(source)
        later = _errors_to_come(scan, partial(scan_one, source), options[sources.index(source)])
        raise _refusal([*scan.findings, *later], [*_errors(scan), *later], name, source)
    if wrong:
        findings = [
            replace(finding, message=f"{source}: {finding.message}")
            for source, scan in wrong
            for finding in scan.findings
        ]
        errors = [finding for finding in findings if finding.severity == "error"]
        name = f"{len(wrong)} of {count(len(sources), 'dataset')}"
        raise _refusal(findings, errors, name, wrong[0][0])
    if len(scans) == 1:
        return scans[0]
    from leconvert.dataset.scan.merge import join_scans

    return join_scans(scans, list_entry=TARGETS[to].list_entry, accept=repairs.accept)


def _errors_to_come(
    scan: SourceScan, scan_with: Callable[[RepairOptions], SourceScan], options: RepairOptions
) -> list[Finding]:
    """Return the errors that appear only after the first remedy of each other error.

    For example, rows of a table that is at another path were not checked.
    """
    seen = {(error.code, error.stream) for error in _errors(scan)}
    later: list[Finding] = []
    with suppress(SourceError):
        for again in _scans_with_remedies(scan, scan_with, dict.fromkeys(options.flags(), 1.0)):
            errors = _errors(again)
            later += [error for error in errors if (error.code, error.stream) not in seen]
            seen |= {(error.code, error.stream) for error in errors}
    return later


def _scans_with_remedies(
    scan: SourceScan,
    scan_with: Callable[[RepairOptions], SourceScan],
    flags: dict[str, float],
) -> Iterator[SourceScan]:
    """Yield a scan with the first remedy of every error, as a user adds them, until none helps.

    Args:
        scan: The scan without further remedies.
        scan_with: Scans with some repairs.
        flags: The flags so far, to which the new ones are added, each with the share of the dataset
            that it keeps.
    """
    while (errors := _errors(scan)) and all(error.remedies for error in errors):
        firsts = (error.remedies[0] for error in errors)
        new = {remedy.flag: _share(remedy) for remedy in firsts if remedy.flag not in flags}
        if not new:
            return
        flags |= new
        scan = scan_with(RepairOptions.of_flags(flags))
        yield scan


def _assumed_of(
    source: Path, repairs: RepairOptions, *, is_alone: bool
) -> tuple[RepairOptions, bool]:
    """Return the repairs of a source, and whether its files are those of v3.0.

    If there are several sources, only those with the files of the assumed version have it.
    """
    if is_alone or repairs.assume_version is None:
        return repairs, reads_as_v3(source, repairs)
    as_told = replace(repairs, assume_version=None)
    is_v3 = reads_as_v3(source, as_told)
    return repairs if is_v3 == (repairs.assume_version == V3_VERSION) else as_told, is_v3


def _repairs_of_each(sources: Sequence[Path], repairs: RepairOptions) -> Sequence[RepairOptions]:
    """Return the repairs of each source; only sources with a feature drop or rename it."""
    of_each = [repairs] * len(sources)
    if len(sources) == 1:
        return of_each
    if repairs.assume_version is not None:
        of_each = [_assumed_of(source, repairs, is_alone=False)[0] for source in sources]
    if not (repairs.drop_features or repairs.rename_features):
        return of_each
    datasets = [
        open_dataset(source, source_reading(source, own))
        for source, own in zip(sources, of_each, strict=True)
    ]
    named = {*repairs.drop_features, *repairs.renames}
    undeclared = named.difference(*(dataset.features for dataset in datasets))
    features = [{*each.features, *each.columns_among(undeclared)} for each in datasets]

    def is_meant(name: str, own: Set[str]) -> bool:
        # The scan reports files that lack a column of all, and a name that nobody knows.
        return name in own or not any(name in other for other in features)

    return [
        replace(
            one,
            drop_features=tuple(name for name in repairs.drop_features if is_meant(name, own)),
            rename_features=tuple(
                f"{old}={new}" for old, new in repairs.renames.items() if is_meant(old, own)
            ),
        )
        for one, own in zip(of_each, features, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class PlannedRepairs:
    """The repairs that make a dataset right, and the part of it that they keep.

    Attributes:
        root: The dataset.
        flags: Options of the command, each with its value.
        options: The same, as a conversion takes them.
        keeps: Counts for the result, of everything that the source declares or stores.
        of: Counts for the source.
        repairs: Changes that a conversion will make.
        findings: The findings, as they will be with these repairs.
        in_files: Changes without a conversion, one line per kind.
        lossless: The first remedies for missing or damaged files, which lose nothing.
    """

    root: Path
    flags: tuple[str, ...]
    options: RepairOptions
    keeps: Extent
    of: Extent
    repairs: Repairs
    findings: Sequence[Finding]
    in_files: tuple[str, ...] = ()
    lossless: tuple[str, ...] = ()

    @property
    def command(self) -> str | None:
        """The command line of the repairs; None if there is nothing to do."""
        is_v3 = reads_as_v3(self.root, self.options)
        if is_v3 and not self.changes:
            return None
        verb = ["repair"] if is_v3 else ["convert", "--root"]
        return " ".join((shlex.join(["leconvert", *verb, str(self.root)]), *self.flags))

    @property
    def changes(self) -> list[str]:
        """The changes, a few words each."""
        changes = [*self.in_files, *self.repairs.summary()]
        return changes or (["every file written again"] if self.flags else [])

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-serialisable mapping."""
        return {
            "command": self.command,
            "keeps": asdict(self.keeps),
            "of": asdict(self.of),
            "left_out": {
                "episodes": [dropped.episode for dropped in self.repairs.dropped_episodes],
                "features": list(self.repairs.dropped_features),
            },
            "changes": self.changes,
            "lossless": list(self.lossless),
            "findings": [asdict(finding) for finding in self.findings],
        }


def plan_repairs(
    source: Path,
    options: RepairOptions | None = None,
    *,
    progress: Progress = NO_PROGRESS,
) -> PlannedRepairs:
    """Find the repairs that a source needs; if there is a choice, those that lose least.

    It applies the first remedy of every error and scans again, until there is no error. Then it
    takes back each repair that drops something, the costliest first, if the others turn out to be
    enough and do not lose more by themselves.

    Args:
        source: The dataset.
        options: Repairs to check instead; None to find them.
        progress: Receives the progress.

    Raises:
        FindingsError: Errors remain for which there is no remedy.
    """
    scan_with = partial(scan_source, source, progress=progress)
    flags: dict[str, float] = {}
    whole = scan = scan_with()
    if options is not None:
        scan = scan_with(options)
    else:
        for again in _scans_with_remedies(whole, scan_with, flags):
            scan = again
    if errors := _errors(scan):
        raise _refusal(scan.findings, errors, str(source), source)
    stored = read_info(source)["features"]

    def lost(found: SourceScan) -> float:
        features = {**stored, **found.repairs.declared_features}
        return frames_lost(
            features, found.repairs.dropped_features, whole.num_frames, found.num_frames
        )

    costly = sorted((share, flag) for flag, share in flags.items() if share < 1)
    for _, flag in costly if len(costly) > 1 else ():
        without = [other for other in flags if other != flag]
        other = scan_with(RepairOptions.of_flags(without))
        if not _errors(other) and lost(other) <= lost(scan):
            del flags[flag]
            scan = other
    gone = scan.repairs.dropped_features
    features = {*stored, *scan.repairs.declared_features, *gone}
    listed = Extent(whole.num_episodes, whole.num_frames, len(features))
    # A remedy that leaves unlisted episodes out counts them, too.
    counted = [remedy.of for error in _errors(whole) for remedy in error.remedies]
    most = max((listed, *counted), key=lambda extent: extent.episodes)
    return PlannedRepairs(
        source,
        flags=tuple(flags) if options is None else options.flags(),
        options=RepairOptions.of_flags(flags) if options is None else options,
        keeps=Extent(scan.num_episodes, scan.num_frames, len(features) - len(gone)),
        of=replace(most, features=len(features)),
        repairs=scan.repairs,
        findings=scan.findings,
        lossless=tuple(named(each, source) for each in _lossless(_errors(whole))),
    )


def _errors(scan: SourceScan) -> list[Finding]:
    return [finding for finding in scan.findings if finding.severity == "error"]


def _refusal(
    findings: Sequence[Finding], errors: Sequence[Finding], name: str, source: Path
) -> FindingsError:
    return FindingsError(
        f"{name} cannot be converted as it is: {count(len(errors), 'error')}.",
        path=str(source),
        next_step=named(_what_helps(errors), source),
        findings=[asdict(finding) for finding in findings],
    )


def _share(remedy: Remedy) -> float:
    return min(
        left / total if total else 1.0
        for left, total in zip(astuple(remedy.keeps), astuple(remedy.of), strict=True)
    )


def _lossless(errors: Sequence[Finding]) -> tuple[str, ...]:
    """Return the remedies that come before any flag that drops something."""
    told = (lossless_remedy(error.code, error.remedy) for error in errors)
    return tuple(dict.fromkeys(filter(None, told)))


def _flags_that_help(errors: Sequence[Finding]) -> list[str]:
    """Return the first remedy of each error, but none in vain.

    A flag goes if others that are needed anyway help with its errors and keep as much.
    """
    shares: dict[str, float] = {}
    for remedy in (error.remedies[0] for error in errors if error.remedies):
        shares[remedy.flag] = min(_share(remedy), shares.get(remedy.flag, 1.0))
    flags = list(dict.fromkeys(error.remedy for error in errors if error.remedy))
    for share, flag in sorted((share, flag) for flag, share in shares.items() if share < 1):
        others = set(flags) - {flag}
        if all(
            any(each.flag in others and _share(each) >= share for each in error.remedies)
            for error in errors
            if error.remedy == flag
        ):
            flags.remove(flag)
    return flags


def _what_helps(errors: Sequence[Finding]) -> str:
    flags = " ".join(_flags_that_help(errors))
    first = " ".join(_lossless(errors))
    if not flags and all(lossless_remedy(error.code, error.remedy) for error in errors):
        return f"{first} Then run the command again; nothing was written."
    helps = "run the command again"
    if not flags or any(error.remedy is None for error in errors):
        helps = f"repair the source and {helps}{f', with {flags}' if flags else ''}"
    else:
        helps += f" with {flags}"
    helps = f"{first} Otherwise {helps}" if first else f"{helps[0].upper()}{helps[1:]}"
    return f"{helps}; nothing was written."


def _check_can_migrate(tree: Path, layout: LayoutOptions, repairs: RepairOptions) -> None:
    """Refuse options for which the Hub would need to compute, and a work dir that would fill up."""
    if not layout.can_migrate:
        raise UsageError(
            "This layout cannot leave the files on the Hub.",
            next_step=f"Use --layout {' or '.join(KEEPING_LAYOUTS)}, or give a folder for the "
            "result with --output.",
        )
    if repairs.quantiles:
        raise UsageError(
            "--quantiles needs all rows and frames, but the files stay on the Hub.",
            next_step="Convert into a folder with --output, then push the result.",
        )
    if not can_link(tree.parent, tree.parent, ".leconvert-probe"):
        raise UsageError(
            f"{tree.parent} is on a file system without hard links. There, this conversion "
            "would need disk space for the full size of all files, even of files that stay on the "
            "Hub.",
            path=str(tree.parent),
            next_step="Give a folder on another file system with --work-dir, or with --scratch-dir "
            "for a fleet.",
        )


def _has_to_be_fetched(name: str, scan: SourceScan, moves: MovedBytes) -> UnfitFilesError:
    said = [finding.message for finding in _rewritten(scan)]
    if scan.repairs.computed_stats:
        said.append(f"Statistics are computed: {', '.join(sorted(scan.repairs.computed_stats))}.")
    error = UnfitFilesError(
        f"{amount(moves.to_fetch)} of {name} cannot stay on the Hub as they are and would have to "
        "be downloaded.",
        path=name,
        details=said,
        next_step="--fetch-unfit downloads only these files and uploads about "
        f"{amount(moves.to_send)}. Nothing was written to the Hub.",
    )
    error.findings = _unfit(said, "--fetch-unfit")
    error.moves = moves
    return error


def _unfit(said: Sequence[str], remedy: str) -> list[dict[str, Any]]:
    return [
        asdict(source_finding("rewritten-file", text, severity="error", remedy=remedy))
        for text in said
    ]


def check_overlays_one(sources: Sequence[Path], selection: EpisodeSelection) -> None:
    """Refuse to overlay anything but one whole dataset; nothing is read."""
    if len(sources) > 1 or selection:
        what = "several datasets" if len(sources) > 1 else "a selection of episodes"
        raise UsageError(
            "--layout overlay leaves the files of one dataset where they are. It does not work "
            f"with {what}.",
            next_step="Use --layout episode-files, which copies or shares the files.",
        )


def _check_can_overlay(places: Places, selection: EpisodeSelection) -> None:
    """Refuse a plan that needs other files than one source's own."""
    source, target = places.source, places.target
    check_overlays_one(places.sources, selection)
    if is_converted(source) or v3.has_files_of_v3(source):
        raise UsageError(
            f"{source} is already v3.0. --layout overlay is only for v2.x datasets.",
            path=str(source),
            next_step="Use another --layout.",
        )
    if places.is_migration:  # files stay on the Hub
        return
    if places.arrival is not None and places.outline is not None:
        repo_id = places.arrival.repo_id
        migrate = shlex.join(["leconvert", "convert", "--repo-id", repo_id, "--layout", OVERLAY])
        raise UsageError(
            f"--layout overlay leaves files where they are, but the files of {repo_id} are on the "
            "Hub.",
            path=places.outline,
            next_step=f"`{migrate}` makes the dataset v3.0 on the Hub. Or use --layout "
            "episode-files for a result on this machine.",
        )
    room = existing_folder(places.work_dir)
    if target != source and not (
        can_clone(source, room) and is_one_file_system(room, existing_folder(target.parent))
    ):
        overlay = shlex.join(["leconvert", "convert", str(source), "--layout", OVERLAY])
        raise UsageError(
            f"{target} cannot share the files of {source}: the file system cannot do that, or they "
            "are on two file systems.",
            path=str(target),
            next_step=f"`{overlay}` writes only meta/ of the dataset itself. Or use --layout "
            "episode-files, which copies the files.",
        )


def _check_overlay(scan: SourceScan, name: str) -> None:
    """Refuse a source whose files v3.0 cannot use unchanged; name the first for each reason."""
    repairs = scan.repairs
    (view,) = open_sources(scan.sources)
    target_of(TARGET_VERSIONS[0], OVERLAY, view.dataset, scan.num_episodes)
    found = [finding.message for finding in _rewritten(scan)]
    left = {"stray-file", "undeclared-camera"}
    found += [finding.message for finding in scan.findings if finding.code in left]
    if repairs.dropped_episodes or repairs.dropped_features:
        found.append("Episodes or features are left out, but their files would stay.")
    if repairs.renamed_features:
        found.append("Features are renamed, but their files would keep the old names.")
    if repairs.computed_stats:
        found.append(f"Statistics are computed: {', '.join(sorted(repairs.computed_stats))}.")
    if repairs.located_files:
        found.append("Files are not where info.json says.")
    if found:
        details = [text.removesuffix(", so the file must be written again.") for text in found]
        error = UnfitFilesError(
            f"{name} needs more than a new meta/ to become v3.0.",
            path=name,
            details=details,
            next_step="Use --layout episode-files, which writes these files again and takes all "
            "others as they are.",
        )
        error.findings = _unfit(details, "--layout episode-files")
        raise error


def _check_in_place(places: Places, conversion: Conversion) -> None:
    """Refuse to write v2.1 in place of a v2.1 dataset, even if only its ``meta/`` was replaced."""
    source, to, repairs = places.source, conversion.layout.to, conversion.repairs
    if not places.in_place or to == TARGET_VERSIONS[0]:
        return
    if overlaid_meta(source) is not None:
        raise TargetError(
            f"{source} was converted with --layout overlay: its meta/ is v3.0, and its other files "
            "are those of v2.x.",
            path=str(source),
            next_step=f"`leconvert undo {shlex.quote(str(source))}` puts back its v2.x meta/.",
        )
    asks_for_nothing = not repairs.as_record() and not conversion.selection
    if asks_for_nothing and open_dataset(source, repairs.reading).version == to:
        raise TargetError(
            f"{source} is already {to}.",
            path=str(source),
            next_step="There is nothing to convert.",
        )


def _lost_frames(
    scan: SourceScan, streams: Sequence[StreamLayout], layout: LayoutOptions
) -> list[Finding]:
    """Return findings about frames that LeRobot will refuse although their times are exact."""
    usual = LayoutOptions()
    can_be_cut = (layout.to, layout.layout) == (usual.to, usual.layout)
    return [
        source_finding(
            "float32-reach",
            f"LeRobot will refuse {lost:,} of {scan.num_frames:,} frames: they lie so late "
            "in their file that its float32 times are too coarse.",
            stream=stream,
            remedy="--layout streaming" if can_be_cut else None,
        )
        for stream, lost in count_out_of_reach(scan, streams).items()
        if lost
    ]


def _bounds_of_appended(scan: SourceScan) -> list[Finding]:
    """Return findings about images whose quantiles over all episodes are only bounds.

    The pixels of old episodes are not counted again.
    """
    said = (
        "pictures of the earlier episodes are not decoded again, so meta/stats.json has "
        "bounds of their "
    )
    return [
        source_finding("quantile-bounds", f"{shown(name)}: {said}quantiles.", stream=name)
        for name, feature in scan.features.items()
        if scan.repairs.quantiles
        and feature["dtype"] in VISUAL_DTYPES
        and name in scan.repairs.computed_stats
    ]


def misfit_counts(misfits: IntArray) -> Sequence[tuple[Misfit, int, int]]:
    """Return each reason with its number of files, and the position of the first of them."""
    found = []
    for reason in Misfit:
        positions = np.flatnonzero(misfits & int(reason))
        if len(positions):
            found.append((reason, len(positions), int(positions[0])))
    return found


def _rewritten(scan: SourceScan, kept: int = 0) -> list[Finding]:
    """Return findings about files of the sources that are rewritten, with the reasons."""
    sources = open_sources(scan.sources)
    found = []
    for stream in scan.streams:
        for reason, number, first in misfit_counts(stream.misfit[kept:]):
            position = first + kept
            dataset = sources[int(scan.source[position])].dataset
            path = dataset.relative(stream.stream, int(stream.key[position]))
            others = (
                ""
                if number == 1
                else (f" The same holds for {number - 1:,} other files of {stream.stream}.")
            )
            said = f"{shown(path)} {reason.said}, so it is written again.{others}"
            found.append(source_finding("rewritten-file", said, stream=stream.stream, path=path))
    return found


def open_or_plan(
    places: Places, conversion: Conversion, *, progress: Progress = NO_PROGRESS
) -> OpenedRun:
    """Return the run of a work dir: the one under way if it fits, else a new one.

    The result has the episodes of all sources, in their order; no source may be its target. Two
    planners may scan at the same time, but only one writes; the other joins its run.

    Args:
        places: The folders.
        conversion: The conversion.
        progress: Receives the progress.

    Raises:
        PlanMismatchError: A run under way was planned differently.
        FindingsError: A source has errors.
    """
    check_all_places(places)
    folder, plan = WorkDir(places.work_dir), conversion.plan

    def drafted() -> Draft:
        draft = draft_plan(places, conversion, progress=progress)
        check_room(draft.summary.space, places.target)
        return draft

    draft: Draft | None = None
    if plan.restart or folder.current_run_id() is None:
        # Before anything is written: a source that cannot be converted leaves no trace.
        draft = drafted()
    with planner_lock(folder), _no_trace_of_a_refusal(folder):
        if not plan.restart and folder.current_run_id() is not None:
            run = _open_planned(places, conversion)
            check_source_unchanged(run)
            if draft is None:
                progress.say(f"Resuming run {run.paths.run_id} in {folder.root}")
            _say_who_may_work(run, progress)
            return run
        # The previous run has gone meanwhile, or another process appended to the target.
        if draft is None or (
            conversion.layout.append
            and draft.manifest.kept_episodes != former_episodes(places.target)
        ):
            draft = drafted()
        # While no other process plans: it may have been finished elsewhere since `check_asked`.
        conversion.check_target(places.source, places.target)
        try_renames(exchanged_place(places.source, places.target, conversion.layout.layout))
        _write(folder, draft, plan.one_host, places.arrival)
    # Without a lock between hosts, another planner's run may be the current one now.
    run = _open_planned(places, conversion)
    _say_who_may_work(run, progress)
    return run


@contextmanager
def _no_trace_of_a_refusal(work_dir: WorkDir) -> Iterator[None]:
    """Leave no lock in a folder that has not become a work dir."""
    try:
        yield
    except LeconvertError:
        if not work_dir.current.exists() and not work_dir.runs_dir.exists():
            with suppress(OSError):
                remove_planner_lock(work_dir)
        raise


def _say_who_may_work(run: OpenedRun, progress: Progress) -> None:
    if run.one_host is not None:
        progress.say(run.one_host.remark)


def _open_planned(places: Places, conversion: Conversion, *, only_look: bool = False) -> OpenedRun:
    """Open the run of a work dir; refuse one that is not the requested one."""
    mixed = conversion.plan.allow_mixed_versions
    run = open_run(places.work_dir, allow_mixed_versions=mixed, only_look=only_look)
    check_same_plan(run, places, conversion)
    if conversion.plan.one_host and run.one_host is None:
        raise PlanMismatchError(
            f"{run.work_dir.root} holds run {run.paths.run_id}, which was planned without "
            "--one-host.",
            path=str(run.work_dir.root),
            next_step="Finish this run without --one-host, or begin a new run with --restart.",
        )
    return run


def check_all_places(places: Places) -> None:
    """Refuse places that would mix sources, target and work dir, and repeated sources.

    A merge has its own target, which is never a source.
    """
    sources, target, seen = places.sources, places.target, dict[object, int]()
    for number, source in enumerate(sources):
        for identity in _identities(source) if len(sources) > 1 else ():
            other = sources[seen.setdefault(identity, number)]
            if seen[identity] != number:
                as_other = "" if other == source else f", as {other} too: it is mounted twice"
                raise UsageError(
                    f"{source} is given twice{as_other}.",
                    path=str(source),
                    next_step="Give each dataset once.",
                )
        if len(sources) > 1 and is_same_folder(source, target):
            raise UsageError(
                f"{source} is both a source and the output of the merge.",
                path=str(source),
                next_step="Give another --output.",
            )
        check_places(source, target, places.work_dir, outlined=places.outline is not None)


def _identities(source: Path) -> Iterator[object]:
    """Yield facts that all paths of a dataset share, and that differ between datasets.

    A folder that is mounted at a second place has the same device and inode number (bind mounts).
    Two mounts of an NFS export may have different device numbers. Then the folder's inode and the
    facts of its tables decide; the times of their last change are among them, which no copy keeps.
    """
    yield source
    with suppress(OSError):  # later steps report errors of reading
        found = source.stat()
        if found.st_ino:  # some mounts have no inode numbers
            yield found.st_dev, found.st_ino
        tables = [path for path in (source / META).iterdir() if path.is_file()]
        if tables:
            yield found.st_ino, frozenset((path.name, FileFacts.of(path)) for path in tables)


def _write(folder: WorkDir, draft: Draft, one_host: bool, arrival: Origin | None) -> None:
    run_id = new_run_id(datetime.now(UTC), os.urandom)
    with storage_errors(folder.root):
        write_plan(folder.run(run_id), draft.manifest, draft.scan, draft.batches, one_host=one_host)
        if arrival is not None:
            from leconvert.remote.provenance import write_origin

            write_origin(folder.run(run_id).root, arrival, run_id=run_id)
        folder.set_current(run_id)


def check_same_plan(
    run: OpenedRun,
    places: Places,
    conversion: Conversion,
    *,
    helps: str = "Use the same options to finish that run, --restart to begin a new run, or "
    "another --work-dir.",
) -> None:
    """Refuse a run that was planned with other options than the current ones."""
    manifest = run.manifest
    planned: Mapping[str, Any] = {
        "source": manifest.source_name,
        "target": manifest.target,
        **manifest.options,
    }
    wanted = {
        "source": places.source_name,
        "target": str(places.target),
        **conversion.result_record(),
    }
    differences = [
        f"{name}: {planned.get(name, 'not given')} in the plan, {wanted.get(name, 'not given')} now"
        for name in dict.fromkeys([*wanted, *planned])
        if planned.get(name) != wanted.get(name)
    ]
    if differences:
        raise PlanMismatchError(
            f"{run.work_dir.root} holds the unfinished run {run.paths.run_id} with other options "
            "or another source.",
            path=str(run.work_dir.root),
            details=differences,
            next_step=helps,
        )
