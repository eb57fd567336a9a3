"""A planned run: its manifest, and the value through which its actors see it.

The manifest says what a run will do. The planner writes it once, and nobody changes it. It consists
of three files: ``batches.jsonl`` and ``scan.parquet`` are written first, ``manifest.json``, which
has their digests, last. A run without a manifest does not exist.
"""

from __future__ import annotations

import base64
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from fractions import Fraction
from functools import cache, cached_property
from importlib.util import find_spec
from operator import index
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from leconvert._version import __version__
from leconvert.model.repairs import Repairs
from leconvert.model.values import (
    OVERLAY,
    TARGET_VERSIONS,
    Batch,
    FileTable,
    Finding,
    IntArray,
    LayoutOptions,
    Shard,
    Source,
    SourceScan,
    StreamLayout,
    StreamScan,
)
from leconvert.support.errors import PlanMismatchError, StorageError, UsageError, WorkDirError
from leconvert.support.values import dataclass
from leconvert.workdir.fs import sha256_of, sync_dir, sync_file, write_durably
from leconvert.workdir.locks import (
    OneHost,
    admit_host,
    check_still_alone,
    plan_one_host,
    read_one_host,
)
from leconvert.workdir.records import (
    RunPaths,
    WorkDir,
    default_work_dir,
    targets_beside,
)
from leconvert.workdir.swap import exchanged_place, is_converted, old_dir, work_dir_beside

MANIFEST_VERSION = 5
# The kind of a shard: a part of an output file (0), all of it (1), or the source's file unchanged
# (2).
_KEPT = 2
_ROWS_PER_GROUP = 16_384
# The source of an episode; a scan of one source has no such column.
_SOURCE_COLUMN = "source"
# Columns for a slice's file, in the order of `FileTable`, and for the slice itself.
_FILE_COLUMNS = ("key", "file_size_bytes", "mtime_ns", "inode")
_SLICE_COLUMNS = ("first", "frames", "size_bytes", "roll_bytes", "group")
# In tables of version 3, if it is not 0 everywhere.
_LEAD_COLUMN = "lead"
# Version 1 does not state the format: all its sources have this one.
_V2 = "v2.x"


@dataclass(frozen=True, slots=True, eq=False)
class Manifest:
    """The head of a plan.

    Attributes:
        sources: The sources, by their numbers.
        target: Path of the result.
        options: Every option that decides bytes or batches; compared when a run is resumed.
        versions: Versions of the libraries that write bytes; other versions may write other bytes.
        fps: Frame rate.
        block_align: Block alignment of episodes in video files, in bytes; 0 for none.
        streams: Output files of each stream.
        num_episodes: Episodes, E.
        num_frames: Frames of the dataset (rows of its data stream).
        source_bytes: Bytes of all slices that are in batches.
        num_batches: Lines of ``batches.jsonl``.
        data_schema: Arrow schema of the data files, IPC-serialised.
        findings: The findings of the scan.
        outline: URL of the source with its commit, if the only source is a sparse snapshot of it;
            None if the sources are the datasets themselves.
        kept_episodes: Number of first episodes that are already at the target, in files that do not
            change; no batch is about them.
    """

    sources: Sequence[Source]
    target: str
    options: Mapping[str, Any]
    versions: Mapping[str, str]
    fps: Fraction
    block_align: int
    streams: Sequence[StreamLayout]
    num_episodes: int
    num_frames: int
    source_bytes: int
    num_batches: int
    data_schema: bytes
    findings: Sequence[Finding]
    outline: str | None = None
    kept_episodes: int = 0

    @property
    def source(self) -> str:
        """Folder of the first source, the only one if a conversion is in place."""
        return self.sources[0].root

    @property
    def in_place(self) -> bool:
        """Whether the result takes the place of the source."""
        return self.source == self.target

    @property
    def layout(self) -> str:
        """The layout."""
        return str(self.options.get("layout", LayoutOptions().layout))

    @property
    def exchanged(self) -> Path:
        """The folder that the swap exchanges; see `exchanged_place`."""
        return exchanged_place(Path(self.source), Path(self.target), self.layout)

    @property
    def is_overlay_in_place(self) -> bool:
        """Whether it is an overlay in place, so that the files of episodes stay at their paths."""
        return self.in_place and self.layout == OVERLAY

    @property
    def is_migration(self) -> bool:
        """Whether the result is for the Hub only: kept files are stand-ins, as in the outline."""
        source, target = Path(self.source), Path(self.target)
        return self.outline is not None and target == WorkDir.migrated(source)

    @property
    def computed_stats(self) -> frozenset[str]:
        """Features whose statistics are computed in some source."""
        return frozenset().union(*(source.repairs.computed_stats for source in self.sources))

    @property
    def to(self) -> str:
        """The version to write."""
        return str(self.options.get("to", TARGET_VERSIONS[0]))

    @property
    def source_name(self) -> str:
        """Name of the source, or of all sources, in messages."""
        return self.outline or ", ".join(source.root for source in self.sources)


def tool_versions() -> dict[str, str]:
    """Return the versions of all packages that decide the written bytes."""
    return {
        "leconvert": __version__,
        "av": _installed("av"),
        "numpy": np.__version__,
        "pyarrow": pa.__version__,
    }


@cache
def _installed(name: str) -> str:
    # The folder beside a wheel's package has the version in its name. To import a parser and parse
    # the description inside takes longer than planning many a conversion.
    found = find_spec(name)
    if found is not None and found.origin is not None:
        beside = Path(found.origin).parent.parent
        folders = [path.name for path in beside.glob(f"{name}-*.dist-info")]
        if len(folders) == 1:
            return folders[0].removeprefix(f"{name}-").removesuffix(".dist-info")
    from importlib.metadata import version

    return version(name)


def write_plan(
    run: RunPaths,
    manifest: Manifest,
    scan: SourceScan,
    batches: Sequence[Batch],
    *,
    one_host: bool = False,
) -> None:
    """Write a plan durably: scan table and batches first, the manifest with their digests last.

    If the work dir has no hard links, or with ``one_host``, the run belongs to this host alone from
    the start; see `leconvert.workdir.locks`.
    """
    run.ensure()
    plan_one_host(run, asked_for=one_host)
    _write_scan_table(run, scan)
    _write_batches(run, manifest.streams, batches)
    fields = {
        "sources": [
            {
                "source": source.root,
                "codebase_version": source.codebase_version,
                "meta_digest": source.meta_digest,
                "extra_files": list(source.extra_files),
                "repairs": source.repairs.as_record() if source.repairs else None,
            }
            for source in manifest.sources
        ],
        "target": manifest.target,
        "options": dict(manifest.options),
        "versions": dict(manifest.versions),
        "fps": [manifest.fps.numerator, manifest.fps.denominator],
        "block_align": manifest.block_align,
        "num_episodes": manifest.num_episodes,
        "num_frames": manifest.num_frames,
        "source_bytes": manifest.source_bytes,
        "num_batches": manifest.num_batches,
        "batches_sha256": sha256_of(run.batches),
        "scan_sha256": sha256_of(run.scan_table),
        "data_schema": base64.b64encode(manifest.data_schema).decode("ascii"),
        "findings": [asdict(finding) for finding in manifest.findings],
        "outline": manifest.outline,
        "kept_episodes": manifest.kept_episodes,
        "streams": [
            {"stream": layout.stream, "starts": layout.starts.tolist()}
            for layout in manifest.streams
        ],
    }
    write_durably(run.manifest, run.encode("manifest", MANIFEST_VERSION, fields))


def read_manifest(run: RunPaths, *, check_files: bool = False) -> Manifest:
    """Read the head of a plan.

    Raises:
        WorkDirError: It is missing or damaged; with ``check_files`` also if another file of the
            plan is.
    """
    try:
        fields = run.read(run.manifest, "manifest", MANIFEST_VERSION)
    except FileNotFoundError:
        raise WorkDirError(
            f"The planning of the run was not finished: {run.manifest} is missing.",
            path=str(run.manifest),
            next_step="Run the `leconvert convert` or `leconvert plan` command again.",
        ) from None
    try:
        manifest = _manifest(fields)
        digests = {run.batches: fields["batches_sha256"], run.scan_table: fields["scan_sha256"]}
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise _unusable(run.manifest, f"cannot be used: {error!r}") from error

    for path, digest in digests.items() if check_files else ():
        _check_file(path, digest)
    return manifest


def _check_file(path: Path, digest: str) -> None:
    try:
        found = sha256_of(path)
    except FileNotFoundError:
        found = None
    if found != digest:
        what = "missing" if found is None else "not the file that the plan recorded"
        raise _unusable(path, f"is {what}")


def _unusable(path: Path, why: str) -> WorkDirError:
    """Return the error for a file of a plan that is missing or damaged."""
    helps = "Begin a new run with --restart."
    return WorkDirError(f"{path} {why}.", path=str(path), next_step=helps)


def _manifest(fields: Mapping[str, Any]) -> Manifest:
    return Manifest(
        # Up to version 3 there was one source, and its fields were here.
        sources=[_source(entry) for entry in fields.get("sources", [fields])],
        target=fields["target"],
        options=fields["options"],
        versions=fields["versions"],
        fps=Fraction(*fields["fps"]),
        block_align=fields["block_align"],
        streams=[
            StreamLayout(entry["stream"], np.array(entry["starts"], dtype=np.int64))
            for entry in fields["streams"]
        ],
        num_episodes=fields["num_episodes"],
        num_frames=fields["num_frames"],
        source_bytes=fields["source_bytes"],
        num_batches=index(fields["num_batches"]),
        data_schema=base64.b64decode(fields["data_schema"]),
        findings=[Finding.from_record(entry) for entry in fields["findings"]],
        outline=fields.get("outline"),
        kept_episodes=index(fields.get("kept_episodes", 0)),
    )


def _source(fields: Mapping[str, Any]) -> Source:
    return Source(
        root=fields["source"],
        codebase_version=fields.get("codebase_version", _V2),
        meta_digest=fields["meta_digest"],
        extra_files=fields["extra_files"],
        repairs=Repairs.from_record(fields.get("repairs")),
    )


def _write_batches(
    run: RunPaths, streams: Sequence[StreamLayout], batches: Sequence[Batch]
) -> None:
    numbers = {layout.stream: number for number, layout in enumerate(streams)}
    offsets = np.empty(len(batches) + 1, dtype="<i8")
    offset = 0
    with run.batches.open("wb") as file:
        for place, batch in enumerate(batches):
            line = json.dumps(
                {
                    "batch_id": batch.batch_id,
                    "source_bytes": batch.source_bytes,
                    "frames": batch.frames,
                    "shards": [
                        [numbers[s.stream], s.number, s.first, s.stop, int(s.whole) + s.keep]
                        for s in batch.shards
                    ],
                },
                separators=(",", ":"),
            ).encode()
            offsets[place] = offset
            offset += file.write(line + b"\n")
    offsets[len(batches)] = offset
    run.batches_offsets.write_bytes(offsets.tobytes())
    sync_file(run.batches)
    sync_file(run.batches_offsets)
    sync_dir(run.batches.parent)


class BatchFile:
    """The batches of a plan, read one at a time by offset."""

    def __init__(self, run: RunPaths, streams: Sequence[StreamLayout]) -> None:
        self._path = run.batches
        self._streams = [layout.stream for layout in streams]
        self._offsets = np.fromfile(run.batches_offsets, dtype="<i8")

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __iter__(self) -> Iterator[Batch]:
        """Yield all batches in order."""
        with self._path.open("rb") as file:
            for line in file:
                yield self._parse(line)

    def read(self, batch_id: int) -> Batch:
        """Return one batch.

        Raises:
            WorkDirError: The file is damaged.
        """
        first, stop = self._offsets[batch_id : batch_id + 2].tolist()
        with self._path.open("rb") as file:
            file.seek(first)
            batch = self._parse(file.read(stop - first))
        if batch.batch_id != batch_id:
            raise _unusable(self._path, f"does not match its offsets at batch {batch_id}")
        return batch

    def _parse(self, line: bytes) -> Batch:
        try:
            fields = json.loads(line)
            shards = tuple(
                Shard(self._streams[stream], number, first, stop, bool(whole), whole == _KEPT)
                for stream, number, first, stop, whole in fields["shards"]
            )
            return Batch(fields["batch_id"], shards, fields["source_bytes"], fields["frames"])
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise _unusable(self._path, f"is damaged: {error}") from error


def _write_scan_table(run: RunPaths, scan: SourceScan) -> None:
    # imported here: `status` starts without all of tables
    from leconvert.tables.arrow import int64_array

    columns: dict[str, IntArray] = {"episode_index": scan.episode_index, "length": scan.length}
    if len(scan.sources) > 1:
        columns[_SOURCE_COLUMN] = scan.source
    for number, stream in enumerate(scan.streams):
        for name in _FILE_COLUMNS:
            values = getattr(stream.files, name.removeprefix("file_"))
            columns[f"{number}/{name}"] = values[stream.file]
        columns |= {f"{number}/{name}": getattr(stream, name) for name in _SLICE_COLUMNS}
        if stream.lead.any():
            columns[f"{number}/{_LEAD_COLUMN}"] = stream.lead
    table = pa.Table.from_arrays([int64_array(v) for v in columns.values()], names=list(columns))
    # Most numbers occur once, so dictionaries would take memory for nothing.
    pq.write_table(
        table,
        run.scan_table,
        row_group_size=_ROWS_PER_GROUP,
        compression="zstd",
        use_dictionary=False,
    )
    sync_file(run.scan_table)


class ScanTable:
    """The scan's numbers, read by ranges of positions.

    If files hold few episodes, one row group serves many shards, so for each set of columns the row
    group that was read last is kept. Threads may share the object, since the table never changes.
    """

    def __init__(self, run: RunPaths, streams: Sequence[StreamLayout]) -> None:
        self._path = run.scan_table
        self._numbers = {layout.stream: number for number, layout in enumerate(streams)}
        self._kept: dict[tuple[str, ...], tuple[int, pa.Table]] = {}

    def stream(
        self, stream: str, first: int = 0, stop: int | None = None
    ) -> tuple[StreamScan, IntArray]:
        """Return one stream's scan and the episodes' indices for positions first to stop.

        The scan has the files of these episodes, in the order of their keys.
        """
        columns = self._names(stream, (*_FILE_COLUMNS, *_SLICE_COLUMNS, _LEAD_COLUMN))
        index, source, *found = self._columns(
            ["episode_index", _SOURCE_COLUMN, *columns], first, stop
        )
        of_files, of_slices = found[: len(_FILE_COLUMNS)], found[len(_FILE_COLUMNS) :]
        if not self._has_files(stream):
            of_files[:2] = index, of_slices[_SLICE_COLUMNS.index("size_bytes")]
        files, file = _distinct(source, of_files)
        return StreamScan(stream, files, file, *of_slices), index

    def files(self, stream: str) -> FileTable:
        """Return the source files of one stream, each once, in the order of their keys."""
        if not self._has_files(stream):
            return self.stream(stream)[0].files
        source, *of_files = self._columns([_SOURCE_COLUMN, *self._names(stream, _FILE_COLUMNS)])
        return _distinct(source, of_files)[0]

    def sources(self) -> IntArray:
        """Return the number of each episode's source."""
        return self._columns([_SOURCE_COLUMN])[0]

    def lengths(self, first: int = 0, stop: int | None = None) -> tuple[IntArray, IntArray]:
        """Return indices and lengths of the episodes for positions first to stop."""
        index, length = self._columns(["episode_index", "length"], first, stop)
        return index, length

    @cached_property
    def _shape(self) -> tuple[frozenset[str], int]:
        """Names of the columns, and the number of rows."""
        with pq.ParquetFile(self._path) as file:
            return frozenset(file.schema_arrow.names), file.metadata.num_rows

    def _names(self, stream: str, columns: Sequence[str]) -> list[str]:
        return [f"{self._numbers[stream]}/{name}" for name in columns]

    def _has_files(self, stream: str) -> bool:
        """Return whether the table has columns for files.

        In version 1 a slice was a whole file, and its key the episode's index.
        """
        return self._names(stream, _FILE_COLUMNS)[0] in self._shape[0]

    def _columns(
        self, names: Sequence[str], first: int = 0, stop: int | None = None
    ) -> list[IntArray]:
        """Read some columns; one that the table lacks is 0 everywhere."""
        there, num_rows = self._shape
        stop = num_rows if stop is None else stop
        first_group, last_group = first // _ROWS_PER_GROUP, (stop - 1) // _ROWS_PER_GROUP
        group, table = self._kept.get(tuple(names), (-1, None))
        if table is None or not group == first_group == last_group:
            with pq.ParquetFile(self._path) as file:
                table = file.read_row_groups(
                    list(range(first_group, last_group + 1)),
                    columns=[name for name in names if name in there],
                    use_threads=False,
                )
            if first_group == last_group:
                self._kept[tuple(names)] = first_group, table
            else:
                pa.default_memory_pool().release_unused()  # memory for decoding many row groups
        from leconvert.tables.arrow import int64_values  # see _write_scan_table

        skipped = first_group * _ROWS_PER_GROUP
        rows = slice(first - skipped, stop - skipped)
        return [
            int64_values(table.column(name))[rows]
            if name in there
            else np.zeros(stop - first, np.int64)
            for name in names
        ]


def _distinct(source: IntArray, columns: Sequence[IntArray]) -> tuple[FileTable, IntArray]:
    """Return the files of some slices, each once, and the row of each slice's file.

    Sources ascend, and so do keys within a source.
    """
    key, size_bytes, mtime_ns, inode = columns
    of_slices = FileTable(key, size_bytes, mtime_ns, inode, source)
    by_file = np.lexsort((key, source))
    key, number = key[by_file], source[by_file]
    is_new = np.ones(len(key), np.bool_)
    is_new[1:] = (key[1:] != key[:-1]) | (number[1:] != number[:-1])
    file = np.empty(len(key), np.int64)
    file[by_file] = np.cumsum(is_new) - 1
    return of_slices.take(by_file[is_new]), file


@dataclass(frozen=True, slots=True, eq=False)
class OpenedRun:
    """One run, opened for reading.

    Attributes:
        work_dir: The folder that all hosts share.
        paths: Every path of the run.
        manifest: The head of the plan.
        batches: Its batches.
        scan: Its scan table.
        one_host: The only host that may work on it; None if any may.
    """

    work_dir: WorkDir
    paths: RunPaths
    manifest: Manifest
    batches: BatchFile
    scan: ScanTable
    one_host: OneHost | None = None


def check_tool_versions(root: Path, versions: Mapping[str, str], done: str) -> None:
    """Refuse a work dir that another host ``done`` (a verb) with other library versions.

    Raises:
        PlanMismatchError: The versions differ.
    """
    here = tool_versions()
    differing = sorted(name for name in here if versions.get(name) != here[name])
    if differing:
        raise PlanMismatchError(
            f"{root} was {done} with other library versions than those of this host.",
            path=str(root),
            details=[
                f"{name}: {done} with {versions.get(name)}, but this host has {here[name]}"
                for name in differing
            ],
            next_step="Install the same versions. Or add --allow-mixed-versions: the result "
            "then has the same content, but perhaps not the same bytes.",
        )


def open_run(
    root: Path, *, allow_mixed_versions: bool = False, only_look: bool = False
) -> OpenedRun:
    """Open the current run of a work dir.

    Args:
        root: The work dir.
        allow_mixed_versions: Whether library versions may differ from the planner's.
        only_look: Whether the caller only reads; this skips the checks of files and host.

    Raises:
        WorkDirError: There is no run, or its files are damaged.
        PlanMismatchError: Library versions differ.
        OneHostOnlyError: Only another host may work on it.
    """
    work_dir = WorkDir(root)
    run_id = work_dir.current_run_id()
    if run_id is None:
        raise WorkDirError(
            f"{root} is not the work dir of a run.",
            path=str(root),
            next_step="Give the work dir that `leconvert plan` or `leconvert convert` printed.",
        )
    paths = work_dir.run(run_id)
    if work_dir.is_fleet():
        raise WorkDirError(
            f"{root} is the work dir of a fleet, not of one conversion.",
            path=str(root),
            next_step=f"`leconvert status {shlex.quote(str(root))}` shows the fleet. Each "
            f"dataset has its own work dir below {root / 'datasets'}.",
        )
    manifest = read_manifest(paths, check_files=not only_look)
    if not allow_mixed_versions:
        check_tool_versions(root, manifest.versions, "planned")
    batches = BatchFile(paths, manifest.streams)
    if len(batches) != manifest.num_batches:
        # A process that used one of the numbers would wait for batches that do not exist, or leave
        # some out.
        raise _unusable(
            paths.manifest,
            f"cannot be used: it names {manifest.num_batches} batches, but "
            f"{paths.batches_offsets.name} names {len(batches)} batches",
        )
    one_host = read_one_host(paths)
    if one_host is not None:
        one_host = one_host if only_look else admit_host(paths, one_host)
        paths = one_host.paths(paths)
    return OpenedRun(
        work_dir=work_dir,
        paths=paths,
        manifest=manifest,
        batches=batches,
        scan=ScanTable(paths, manifest.streams),
        one_host=one_host,
    )


def work_dirs_of(dataset: Path) -> list[Path]:
    """Return the default work dirs beside a dataset whose run reads, writes or kept it."""
    own = work_dir_beside(dataset)
    found = []
    for target in targets_beside(dataset):
        try:
            work = WorkDir(work_dir_beside(target))
            run_id = work.current_run_id()
            if run_id is None:
                continue
            manifest = read_manifest(work.run(run_id))
        except WorkDirError:
            if default_work_dir(target) == own:
                raise
            continue  # damaged, or of another version: as far as known, not this dataset's
        kept = old_dir(target) if manifest.in_place else None
        sources = {source.root for source in manifest.sources}
        if str(dataset) in {*sources, manifest.target, str(kept)}:
            found.append(work.root)
    return found


def find_work_dir(path: Path) -> Path:
    """Return the work dir that a path names: the path itself, or the work dir of the dataset's run.

    Raises:
        WorkDirError: There is no run.
        UsageError: Several runs use the dataset.
    """
    if WorkDir(path).current_run_id() is not None:
        return path
    found = work_dirs_of(path)
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(
            f"{len(found)} runs beside {path} use this dataset.",
            path=str(path),
            details=[str(root) for root in found],
            next_step="Give the work dir of one of them instead of the dataset.",
        )
    helps = "Give the work dir that `leconvert plan` or `leconvert convert` printed."
    if is_converted(path):
        helps = (
            "A finished conversion removes its work dir. `leconvert check "
            f"{shlex.quote(str(path))}` checks the dataset. " + helps
        )
    elif not path.exists():
        helps = f"{path} does not exist. {helps}"
    raise WorkDirError(
        f"{path} is not a work dir, and {path.parent} contains no work dir of a conversion of "
        f"{path.name!r}.",
        path=str(path),
        next_step=helps,
    )


def check_current(work_dir: WorkDir, paths: RunPaths, one_host: OneHost | None) -> None:
    """Check that a run, of a conversion or of a fleet, is still the current one of its work dir.

    Raises:
        StorageError: The work dir is gone.
        PlanMismatchError: The work dir has another run now.
        OneHostOnlyError: Another host uses the run.
    """
    root, mine = work_dir.root, paths.run_id
    now = work_dir.current_run_id()
    if now == mine:
        if one_host is not None:
            check_still_alone(paths, one_host)
        return
    if now is None:
        raise StorageError(
            f"{root} does not exist, or it no longer holds run {mine}.",
            path=str(root),
            next_step="If nobody removed the folder, check that its file system is mounted. "
            "Then run the same command again.",
        )
    raise PlanMismatchError(
        f"Run {mine} was discarded: {root} now holds run {now}.",
        path=str(root),
        next_step="Start the command again to work on the new run.",
    )
