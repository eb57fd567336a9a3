"""The new tree: its tables under ``meta/``, its files, and the workers' shards."""

from __future__ import annotations

import json
import shlex
import shutil
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fractions import Fraction
from itertools import chain, islice, repeat
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from leconvert import media, tables
from leconvert.dataset.formats import (
    PROVENANCE_PATH,
    Sources,
    StatsBlock,
    Target,
    Totals,
    has_provenance,
    joined,
    open_sources,
    rows_of,
    target_of,
    v3,
    write_provenance,
)
from leconvert.dataset.scan import files_along
from leconvert.dataset.scan.modality import extension_files, mended_extension
from leconvert.model.repairs import Repairs
from leconvert.model.values import DATA_STREAM, OutputFile, Shard, Slice, Source, camera_of
from leconvert.run.appending import other_files
from leconvert.run.layout import first_frames
from leconvert.run.leasing import BatchState, Board, read_done, read_failed, void_done
from leconvert.run.proof.files import README_PATH, is_pushed_card
from leconvert.support.errors import BatchesFailedError, IncompleteError, WorkDirError
from leconvert.support.file_calls import copy_file
from leconvert.support.storage_errors import storage_errors
from leconvert.support.text import count
from leconvert.workdir.fs import (
    forget_old_names,
    link_into_tree,
    make_folders_below,
    sha256_of,
    status_now,
    sync_file,
)
from leconvert.workdir.records import DamagedRecordError
from leconvert.workdir.run import Manifest, OpenedRun
from leconvert.workdir.swap import source_dir

if TYPE_CHECKING:
    from leconvert.dataset.statistics import ImageStats

# For each stream, the files of computed statistics with their first positions.
StatsFiles = Mapping[str, Sequence[tuple[int, Path]]]


def write_meta(run: OpenedRun, tree: Path, stats_files: StatsFiles) -> list[str]:
    """Write tasks, episodes, statistics, info and the record of repairs.

    Returns:
        The paths of the files, relative to the tree.
    """
    manifest = run.manifest
    sources = open_sources(manifest.sources)
    target = _target_of(run, sources)
    features = sources.features
    aggregate, pixels = v3.StatsAggregator(features), _PixelCounts(features)
    aggregated = 0

    def records() -> Iterator[v3.EpisodeRecords]:
        nonlocal aggregated
        for found in _episode_records(run, sources, stats_files, pixels):
            episodes = found.episode_index.tolist()
            if episodes[0] == aggregated:  # once, even if the rows are asked for again
                aggregate.update_block(found.stats, episodes)
                aggregated += len(episodes)
            yield found

    placed_fps = Fraction(*media.frame_ticks(manifest.fps))
    written = target.write_episodes(tree, records, fps=placed_fps)
    written += target.write_tasks(tree, sources.tasks)
    total = aggregate.result()
    for name, quantiles in pixels.quantiles(aggregated):
        total[name] |= quantiles
    v3.write_stats(tree, total)
    info = target.info(
        sources.info,
        Totals(
            fps=manifest.fps,
            episodes=manifest.num_episodes,
            frames=manifest.num_frames,
            tasks=len(sources.tasks),
            splits=sources.splits,
        ),
        manifest.options,
    )
    v3.write_info(tree, info)
    written += [v3.STATS_PATH, v3.INFO_PATH]
    if len(sources) == 1 and sources[0].repairs:
        v3.write_repairs(tree, sources[0].repairs)
        written.append(v3.REPAIRS_PATH)
    if has_provenance(sources):
        write_provenance(tree, sources, manifest.sources, name=_brought_name(manifest))
        written.append(PROVENANCE_PATH)
    return written


def _brought_name(manifest: Manifest) -> str | None:
    """Return the name of a source that was downloaded for this run; None for a user's folder.

    The name of its folder means nothing to anybody: leconvert chose it.
    """
    folder = Path(manifest.source)
    if manifest.outline is not None or folder != source_dir(Path(manifest.target)):
        return manifest.outline
    from leconvert.remote.provenance import known_origin
    from leconvert.remote.stores import read_notes

    if (origin := known_origin(folder)) is not None:
        return origin.url
    url = read_notes(folder)[0]
    return None if url is None else PurePosixPath(url).name


class _PixelCounts:
    """Counts of each pixel value in all episodes, for quantiles over the dataset."""

    def __init__(self, features: Mapping[str, Mapping[str, Any]]) -> None:
        self._features = features
        self._counts: dict[str, ImageStats] = {}
        self._episodes: Counter[str] = Counter()

    def add(self, position: int, levels: Mapping[str, Any]) -> None:
        """Add a worker's counts of an episode, by feature; each episode once, in order."""
        from leconvert.dataset.statistics import ImageStats, pixel_scale

        for name, found in levels.items():
            if self._episodes[name] != position:
                continue
            self._episodes[name] += 1
            if name not in self._counts:
                scale = pixel_scale(self._features[name])
                self._counts[name] = ImageStats(quantiles=True, scale=scale)
            self._counts[name].add_levels(found)

    def quantiles(self, num_episodes: int) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the quantiles of each feature that was counted in all episodes."""
        for name, counts in self._counts.items():
            if self._episodes[name] == num_episodes:
                stats = counts.result()
                yield name, {key: stats[key] for key in stats if key.startswith("q")}


def _target_of(run: OpenedRun, sources: Sources) -> Target:
    manifest = run.manifest
    return target_of(manifest.to, manifest.layout, sources[0].dataset, manifest.num_episodes)


def _episode_records(
    run: OpenedRun, sources: Sources, stats_files: StatsFiles, pixels: _PixelCounts
) -> Iterator[v3.EpisodeRecords]:
    """Yield the result's records of episodes, a block at a time."""
    manifest = run.manifest
    _, length = run.scan.lengths()
    ends = np.concatenate(([0], np.cumsum(length)))
    positions = np.arange(len(length))
    numbers = {layout.stream: layout.file_numbers(positions) for layout in manifest.streams}
    cameras = sorted(
        (camera, layout.stream)
        for layout in manifest.streams
        if (camera := camera_of(layout.stream)) is not None
    )
    begins = {
        layout.stream: first_frames(run.scan.stream(layout.stream)[0], layout)
        for layout in manifest.streams
        if camera_of(layout.stream) is not None
    }
    lines = sources.lines()
    first = 0
    for stats in joined(_all_stats(run, sources, stats_files, pixels)):
        block = slice(first, first + len(stats))
        yield v3.EpisodeRecords(
            episode_index=positions[block],
            data_file=numbers[DATA_STREAM][block],
            dataset_from_index=ends[block],
            length=length[block],
            videos=[
                v3.VideoSpans(
                    camera,
                    numbers[stream][block],
                    begins[stream][block],
                    begins[stream][block] + length[block],
                )
                for camera, stream in cameras
            ],
            legacy=_exactly(len(stats), lines),
            stats=stats,
        )
        first = block.stop
    _exactly(0, lines)
    assert first == len(length), "the sources have the episodes of the plan"


def _exactly[Item](number: int, items: Iterator[Item]) -> list[Item]:
    """Return the next ``number`` items; for 0, check that there are none.

    Raises:
        ValueError: There are fewer items, or for 0, more.
    """
    found = list(islice(items, number or 1))
    if len(found) != number:
        raise ValueError(f"{number} episodes are expected, {len(found)} or more are there")
    return found


def _all_stats(
    run: OpenedRun, sources: Sources, stats_files: StatsFiles, pixels: _PixelCounts
) -> Iterator[StatsBlock]:
    """Yield the statistics of episodes: copied, except computed and dropped ones.

    If episodes are appended, statistics that an earlier conversion computed are copied too.
    """
    kept, total = run.manifest.kept_episodes, run.manifest.num_episodes
    former: Iterable[Mapping[str, Any] | None] = ()
    if kept and stats_files:
        former = rows_of(v3.Dataset(run.manifest.target).stats_blocks())
    # In the plan's order; `stats_files` has the order in which workers finished.
    computed = [
        chain(
            ({"episode_index": position, "stats": {}} for position in range(kept)),
            _computed_lines(run, stats_files[layout.stream]),
        )
        for layout in run.manifest.streams
        if layout.stream in stats_files
    ]
    # Strict: a stream of computed statistics has exactly one line for each episode.
    earlier = chain(former, repeat({}, total - (kept if former else 0)))
    others = zip(earlier, *computed, strict=True)
    position = 0
    for source in sources:
        indices = iter(source.index.tolist())
        for copied in source.stats_blocks():
            own = _exactly(len(copied), indices)
            # One at a time, because the counts of pixels are large.
            beside = zip(own, islice(others, len(copied)), strict=True)
            if not (computed or former or source.repairs.computed_stats):
                deque(beside, maxlen=0)
                yield copied.without(source.repairs.dropped_features)
            else:
                rows = enumerate(zip(copied.rows, beside, strict=True), position)
                yield StatsBlock(
                    [
                        # Without a table of statistics, the scan has requested computed ones.
                        _merged(stats or {}, index, place, found, source.repairs, pixels)
                        for place, (stats, (index, found)) in rows
                    ]
                )
            position += len(copied)
        _exactly(0, indices)
    _exactly(0, others)


def _merged(
    stats: Mapping[str, Any],
    index: int,
    position: int,
    beside: Sequence[Mapping[str, Any]],
    repairs: Repairs,
    pixels: _PixelCounts,
) -> dict[str, Any]:
    """Return an episode's statistics, with the earlier computed ones and those of each stream."""
    before, *found = beside
    fresh = {name: values for name, values in before.items() if repairs.computes_stats(name, index)}
    for entry in found:
        assert entry["episode_index"] == position, "shards are read in order"
        fresh |= entry["stats"]
        if "levels" in entry:
            pixels.add(position, entry["levels"])
    merged = {
        name: fresh.pop(name, values)
        for name, values in stats.items()
        if name in fresh
        or not (name in repairs.dropped_features or repairs.computes_stats(name, index))
    }
    return merged | fresh


def _computed_lines(run: OpenedRun, files: Sequence[tuple[int, Path]]) -> Iterator[dict[str, Any]]:
    for _, path in sorted(files):
        with path.open("rb") as file:
            for line in file:
                try:
                    yield json.loads(line)
                except ValueError as error:
                    raise WorkDirError(
                        f"{path} is damaged: {error}.",
                        path=str(path),
                        next_step="Run the command again with --restart; it begins a new run in "
                        f"{run.work_dir.root}.",
                    ) from error


_PARTIAL = ".partial"


class Assembly:
    """The new tree, file by file. A file with its final name is complete.

    Attributes:
        counts: Number of files that were linked from a shard, copied, or joined from parts.
    """

    def __init__(self, run: OpenedRun, tree: Path) -> None:
        self._run = run
        self._tree = tree
        self._path = _target_of(run, open_sources(run.manifest.sources)).names.path
        self.counts = {"linked": 0, "copied": 0, "joined": 0}

    def add_file(self, file: OutputFile, shards: list[tuple[Shard, str]]) -> None:
        """Bring one output file into the tree."""
        path = self._path(file.stream, file.number)
        if len(shards) == 1 and shards[0][0].whole:
            how = link_into_tree(shards[0][1], f"{self._tree}/{path}", tree=self._tree)
            self.counts[how] += 1
            return
        target = self._tree / path
        self.counts["joined"] += 1
        if target.exists():
            return  # joined by a packer that was killed later
        shards.sort(key=lambda entry: entry[0].first)
        self._check_parts(file, shards)
        self._put(target, lambda partial: self._join(file, shards, partial))

    def add_former(self) -> None:
        """Link the files of the result to which episodes are appended into the tree.

        Its tables are not linked. Files that the source has too are equal, and come from there.
        """
        manifest = self._run.manifest
        if not manifest.kept_episodes:
            return
        target = Path(manifest.target)
        streams = {layout.stream for layout in manifest.streams}
        begin = {
            layout.stream: int(np.searchsorted(layout.starts, manifest.kept_episodes))
            for layout in manifest.streams
        }
        for stream in streams:
            for number in range(begin[stream]):
                path = self._path(stream, number)
                link_into_tree(target / path, self._tree / path, tree=self._tree)
        along = files_along(manifest.sources)
        for path in other_files(target):
            if path in along:
                continue
            link_into_tree(target / path, self._tree / path, tree=self._tree)

    def add_copy(self, source: Source, relative: str) -> None:
        """Copy one file that belongs to no episode, without dropped features if it names them."""
        target, former = self._tree / relative, Path(self._run.manifest.target)
        if relative == README_PATH and self._run.manifest.kept_episodes and is_pushed_card(former):
            link_into_tree(former / relative, target, tree=self._tree)  # in part the user's
            return
        root, repairs = Path(source.root), source.repairs
        mended = None
        if extension_files([relative], repairs):
            mended = mended_extension(root, relative, repairs)
        if mended is None and self._run.manifest.is_migration:
            link_into_tree(root / relative, target, tree=self._tree)
        elif mended is None:
            self._put(target, lambda partial: copy_file(root / relative, partial))
        else:
            self._put(target, lambda partial: partial.write_bytes(mended))

    def add_meta(self, stats_files: StatsFiles) -> None:
        """Write every table under ``meta/``, and replace existing ones."""
        with storage_errors(self._tree):
            make_folders_below(self._tree, self._tree / "meta")
            shutil.rmtree(self._tree / "meta" / "episodes", ignore_errors=True)
            written = write_meta(self._run, self._tree, stats_files)
            for path in written:
                sync_file(self._tree / path)

    def add_quantiles(self) -> None:
        """Compute quantiles of columns for ``stats.json`` from the rows; needs all data files."""
        from leconvert.dataset.statistics import columns_with_quantiles, dataset_quantiles

        stats = v3.read_json_object(self._tree / v3.STATS_PATH)
        features = v3.read_json_object(self._tree / v3.INFO_PATH)["features"]
        names = columns_with_quantiles(stats, features)
        if not names:
            return
        (layout,) = (each for each in self._run.manifest.streams if each.stream == DATA_STREAM)
        paths = [
            str(self._tree / self._path(DATA_STREAM, number)) for number in range(layout.num_files)
        ]
        shapes = {name: np.shape(stats[name]["mean"]) for name in names}
        for name, found in dataset_quantiles(paths, shapes).items():
            stats[name] |= found
        with storage_errors(self._tree):
            v3.write_stats(self._tree, stats)
            sync_file(self._tree / v3.STATS_PATH)

    def _put(self, target: Path, write: Callable[[Path], object]) -> None:
        partial = target.with_name(target.name + _PARTIAL)
        with storage_errors(target):
            # Never the tree itself: a packer that was superseded must not make it again.
            make_folders_below(self._tree, target.parent)
            partial.unlink(missing_ok=True)
            write(partial)
            sync_file(partial)
            partial.replace(target)

    def _check_parts(self, file: OutputFile, shards: list[tuple[Shard, str]]) -> None:
        edges = [file.first, *(shard.stop for shard, _ in shards)]
        begins = [shard.first for shard, _ in shards]
        if begins != edges[:-1] or edges[-1] != file.stop:
            path = self._path(file.stream, file.number)
            raise WorkDirError(
                f"The plan {self._run.paths.batches} is damaged: it has gaps in {path}.",
                path=str(self._run.paths.batches),
                next_step="Run the command again with --restart. It begins a new run.",
            )

    def _join(self, file: OutputFile, shards: list[tuple[Shard, str]], target: Path) -> None:
        scan, _ = self._run.scan.stream(file.stream, file.first, file.stop)
        frames = scan.frames.tolist()
        if file.stream == DATA_STREAM:
            schema = tables.deserialize_schema(self._run.manifest.data_schema)
            tables.join_tables(_parts(file, shards, frames), target, schema=schema)
            return
        media.join_clips(
            list(_parts(file, shards, frames)),
            target,
            fps=self._run.manifest.fps,
            block_align=self._run.manifest.block_align,
            scratch_dir=target.parent,
        )


def _parts(
    file: OutputFile, shards: list[tuple[Shard, str]], frames: Sequence[int]
) -> Iterator[Slice]:
    """Yield each episode's slice of its shard."""
    for shard, path in shards:
        first = 0
        for number in frames[shard.first - file.first : shard.stop - file.first]:
            yield Slice(path, first, number)
            first += number


def taken_over(run: OpenedRun) -> Iterator[tuple[str, str]]:
    """Yield the files that a result takes unchanged from its only source, with both paths."""
    (source,) = sources = open_sources(run.manifest.sources)
    path = _target_of(run, sources).names.path
    for batch in run.batches:
        for shard in batch.shards:
            if shard.keep:
                scan, _ = run.scan.stream(shard.stream, shard.first, shard.stop)
                (key,) = scan.files.key.tolist()
                yield path(shard.stream, shard.number), source.dataset.relative(shard.stream, key)
    for relative in files_along(run.manifest.sources):
        if not extension_files([relative], source.repairs):
            yield relative, relative


_FAILURES_SHOWN = 20
_WORK_AGAIN = (
    "Start workers with `leconvert work {}`, or run the same convert command again. It continues "
    "where it stopped."
)
_DIGEST_TYPE = "S16"  # what `leconvert.media.order_digest` returns


def check_all_done(run: OpenedRun, board: Board, remarks: Sequence[str] = ()) -> None:
    """Raise an error unless every batch was done when the board was last refreshed.

    Raises:
        BatchesFailedError: A batch has failed.
        IncompleteError: A batch is not done.
    """
    counts = board.counts()
    total, place = run.manifest.num_batches, str(run.work_dir.root)
    if counts.failed:
        details = []
        for batch_id in board.failed()[:_FAILURES_SHOWN]:
            error: dict[str, Any] = {}
            with suppress(DamagedRecordError):  # the name alone sets a batch aside
                error = read_failed(run.paths, batch_id).get("error") or {}
            said = f"batch {batch_id}: {error.get('message', 'no message')}"
            # The remedy of one batch differs from the remedy of the run.
            helps = error.get("next_step")
            details.append(f"{said} {helps}" if helps else said)
        raise BatchesFailedError(
            f"{counts.failed} of {total} batches failed. {counts.done} are done.",
            path=place,
            details=details,
            next_step="Fix what the messages name. Then run `leconvert release "
            f"{shlex.quote(place)} --failed` and the same command again. If you change the "
            "source or add an option, run the command again with --restart instead.",
        )
    if counts.done < total:
        # For batches that were claimed once, only their own logs name the holder.
        states = Counter(row.state for row in board.status())
        leased, pending = states[BatchState.LEASED], states[BatchState.PENDING]
        details = [f"workers hold {leased}, and {pending} wait for a worker", *remarks]
        next_step = _WORK_AGAIN.format(shlex.quote(place))
        if remarks:
            next_step = (
                f"The logs of the workers are in {run.paths.logs_dir}. Fix what ended the workers, "
                "then run the same command again. It continues where it stopped."
            )
        raise IncompleteError(
            f"{counts.done} of {total} batches are done.",
            path=place,
            details=details,
            next_step=next_step,
        )


class Collector:
    """Collects the workers' shards, batch by batch, as they are finished.

    Args:
        run: The run.

    Attributes:
        clip_digests: For each camera's stream, the workers' digests of its clips, shape (E,).
        cloned_bytes: Coded video bytes that are shared with the source.
        copied_bytes: Coded video bytes that were copied.
        stats_files: For each stream, the files of computed statistics with their first positions,
            in no order.
    """

    def __init__(self, run: OpenedRun) -> None:
        self._run = run
        self._parts: dict[tuple[str, int], list[tuple[Shard, str]]] = {}
        self._missing: dict[tuple[str, int], int] = {}
        self._layouts = {layout.stream: layout for layout in run.manifest.streams}
        self.clip_digests: dict[str, npt.NDArray[np.bytes_]] = {
            layout.stream: np.zeros(run.manifest.num_episodes, dtype=_DIGEST_TYPE)
            for layout in run.manifest.streams
            if layout.stream != DATA_STREAM
        }
        self.cloned_bytes = self.copied_bytes = 0
        self.stats_files: dict[str, list[tuple[int, Path]]] = {}

    def take(
        self, batch_ids: Iterable[int]
    ) -> Iterator[tuple[OutputFile, list[tuple[Shard, str]]]]:
        """Find the winning attempts' shards; yield each output file with all of its shards.

        A batch with a damaged record or missing shards is opened again.

        Raises:
            IncompleteError: A batch was opened again.
        """
        voided: list[str] = []
        for batch_id in batch_ids:
            batch = self._run.batches.read(batch_id)
            paths = self._run.paths
            record, entries, problem = {}, {}, None
            try:
                record = read_done(paths, batch_id)
                attempt = paths.root / record["attempt"]
                entries = _entries(record, batch.shards, paths.done(batch_id))
                problem = _damage(attempt, batch.shards, entries)
            except DamagedRecordError as error:
                problem = error.message
            if problem is not None:
                void_done(paths, batch_id, problem, judged=record)
                voided.append(f"batch {batch_id}: {problem}")
                continue
            folder = f"{attempt}/"
            for shard in batch.shards:
                name = shard.name
                entry = entries[name]
                if shard.stream != DATA_STREAM:
                    self.clip_digests[shard.stream][shard.first : shard.stop] = entry[
                        "clip_digests"
                    ]
                    self.cloned_bytes += entry["cloned_bytes"]
                    self.copied_bytes += entry["copied_bytes"]
                if "stats" in entry:
                    path = attempt / entry["stats"]["path"]
                    self.stats_files.setdefault(shard.stream, []).append((shard.first, path))
                yield from self._completed(shard, folder + name)
        if voided:
            raise IncompleteError(
                f"{count(len(voided), 'batch', 'batches')} must be done again: files of the "
                "workers are gone or damaged.",
                path=str(self._run.work_dir.root),
                details=voided,
                next_step=_WORK_AGAIN.format(shlex.quote(str(self._run.work_dir.root))),
            )

    def _completed(
        self, shard: Shard, path: str
    ) -> Iterator[tuple[OutputFile, list[tuple[Shard, str]]]]:
        """Yield the shard's file if this was its last part."""
        key = (shard.stream, shard.number)
        file = self._layouts[shard.stream].file(shard.number)
        self._parts.setdefault(key, []).append((shard, path))
        missing = self._missing.get(key, file.stop - file.first) - (shard.stop - shard.first)
        self._missing[key] = missing
        if not missing:
            del self._missing[key]
            yield file, self._parts.pop(key)


def _entries(
    record: Mapping[str, Any], shards: Iterable[Shard], path: Path
) -> dict[str, dict[str, Any]]:
    """Return a record's entry for each shard, by the shard's name.

    Raises:
        DamagedRecordError: A field is missing, or has the wrong type.
    """
    try:
        entries = {entry["path"]: entry for entry in record["shards"]}
        for shard in shards:
            entry = entries.get(shard.name)
            if entry is None:
                continue  # `_damage` reports it
            numbers, texts = [entry["size_bytes"]], []
            if shard.stream != DATA_STREAM:
                numbers += [entry["cloned_bytes"], entry["copied_bytes"]]
                texts += entry["clip_digests"]
            if "stats" in entry:
                texts += [entry["stats"]["path"], entry["stats"]["sha256"]]
            if {*map(type, numbers)} != {int} or {*map(type, texts)} - {str}:
                raise TypeError
    except (KeyError, TypeError, AttributeError) as error:
        raise DamagedRecordError(
            f"{path} is damaged: the record is not complete.", path=str(path)
        ) from error
    return entries


def _damage(
    attempt: Path, shards: Iterable[Shard], entries: Mapping[str, Mapping[str, Any]]
) -> str | None:
    # If this host asked for one of these names before the worker made it, its NFS client remembers
    # that the name does not exist.
    folder = f"{attempt}/"
    forget_old_names([str(attempt.parent), str(attempt), f"{folder}any"])
    for shard in shards:
        name = shard.name
        path = folder + name
        try:
            found = status_now(path).st_size
        except FileNotFoundError:
            return f"{path} does not exist"
        entry = entries.get(name)
        if entry is None or found != entry["size_bytes"]:
            return f"{path} has {found} bytes instead of {entry and entry['size_bytes']}"
        if shard.stream != DATA_STREAM and len(entry["clip_digests"]) != shard.stop - shard.first:
            return f"{path} was recorded with another number of episodes"
        if "stats" in entry:
            problem = _stats_damage(attempt / entry["stats"]["path"], entry["stats"])
            if problem is not None:
                return problem
    return None


def _stats_damage(path: Path, entry: Mapping[str, Any]) -> str | None:
    try:
        found = sha256_of(path)
    except FileNotFoundError:
        return f"{path} does not exist"
    return None if found == entry["sha256"] else f"{path} was changed after its worker wrote it"
