"""A result against its source: metadata and totals here, files in pieces."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from leconvert.dataset.files import files_below, overlaid_pair, special_files
from leconvert.dataset.formats import (
    PROVENANCE_PATH,
    SourceRecord,
    Sources,
    SourceView,
    open_dataset,
    read_provenance,
    v3,
)
from leconvert.dataset.scan.changes import meta_digest
from leconvert.dataset.scan.file_checks import ClipFacts
from leconvert.model.repairs import NO_REPAIRS, Repairs
from leconvert.model.values import DATA_STREAM
from leconvert.run.proof.difference import Difference, VerificationReport
from leconvert.run.proof.expected import Expected, Routes, file_runs
from leconvert.run.proof.files import compare_other_files
from leconvert.run.proof.metadata import (
    ResultTables,
    compare_cameras,
    compare_provenance,
    compare_repairs,
    tables_of,
    unreadable_metadata,
)
from leconvert.run.proof.pieces import Comparer, cut_pieces, expected_seconds
from leconvert.run.proof.samples import (
    EVERYTHING,
    Sampling,
    check_lerobot,
    compare_pictures,
    compare_samples,
)
from leconvert.run.proof.statistics import compare_aggregate_form
from leconvert.support.errors import (
    InterruptedRunError,
    SourceError,
    UnreadableSourceError,
    UsageError,
)
from leconvert.support.parallel import Spread, parallel_map
from leconvert.support.progress import NO_PROGRESS, Progress, Stage
from leconvert.support.storage_errors import raise_storage_trouble
from leconvert.workdir.fs import is_folder


def verify_pair(
    result: Path,
    source: Path | Sequence[Path],
    *,
    depth: str = "structure",
    progress: Progress = NO_PROGRESS,
    max_workers: int | None = None,
    spread: Spread | None = None,
    clip_digests: Mapping[str, npt.NDArray[np.bytes_]] | None = None,
    read_rows: int = 0,
    repairs: Repairs | Sequence[Repairs] | None = None,
    sampling: Sampling = EVERYTHING,
    keeps_further: bool = False,
    stop: threading.Event | None = None,
) -> VerificationReport:
    """Compare a result with the dataset that it was converted from.

    The order of differences does not depend on who finds them: metadata first, then file by file.

    Args:
        result: The dataset that was written, v3.0 or v2.1.
        source: The dataset that it was made from, or all datasets that were merged. The result's
            record of their tables tells them apart, else its record of their folders, else their
            order. For an overlay in place, the ``meta/`` that it replaced.
        depth: ``structure`` compares tables, headers, sizes, times, keyframes, rows and totals;
            ``bytes`` also compares every coded packet and every row's values.
        progress: Receives the progress.
        max_workers: Number of processes that compare at a time, including this one; by default one
            per core, and only this one if there is little to do. If storage is slow to answer,
            threads of this process are used instead, by default many.
        spread: Threads and processes, instead of deciding by the cost of the first pieces.
        clip_digests: For each camera's stream, the `leconvert.media.order_digest` of each episode's
            clip from a worker that read it, shape (E,) of 16 bytes; ``structure`` then does not
            read the clips again. Empty for a clip that no worker read.
        read_rows: With ``structure``, also compare the rows of this many first episodes.
        repairs: The requested changes, for several sources one entry each; by default the changes
            in the result's own record. Anything else that differs is a difference.
        sampling: The share of episodes whose files are compared, and images and samples that are
            also decoded and loaded.
        keeps_further: Whether the result may have files of no episode that the source lacks, which
            an append keeps.
        stop: Set it from another thread to stop after the current pieces.

    Returns:
        The report; its ``ok`` is true if nothing differs.

    Raises:
        SourceError: The source itself cannot be read.
        StorageError: The disk fails, or this user may not read a file of the result, so it is
            unknown whether it differs.
        InstallationError: Samples are to be loaded through LeRobot, which is not installed.
        InterruptedRunError: ``stop`` was set.
    """
    # An NFS client that did not find the result once continues to miss it for half a minute.
    is_folder(result)
    told = [repairs] if isinstance(repairs, Repairs) else repairs
    with overlaid_pair(result, [source] if isinstance(source, Path) else source) as (tree, given):
        tables, roots = tables_of(tree), _in_order(tree, given)
        sources = Sources(
            SourceView(open_dataset(root, own), own)
            for root, own in zip(roots, told or _declared(tree, len(roots)), strict=True)
        )
        for original in sources:
            original.dataset.check()
        if sampling.deep:
            _check_deep(tables)
        reads_bytes = depth == "bytes"
        found = _compare_metadata(
            tables, sources, told, read_bytes=reads_bytes, keeps_further=keeps_further
        )
        pa.default_memory_pool().release_unused()  # memory for reading the tables of all episodes
        expected, routes, differences = found.expected, found.routes, found.differences
        if expected is None or routes is None:
            return VerificationReport(depth, differences, 0, 0, 0, 0)
        files, of_routes = _files(tables, routes)
        differences += [*of_routes, *_left_over(tree, files)]
        chosen = sampling.episodes(len(expected))
        compare = Comparer(tables, expected, routes, reads_bytes, clip_digests, chosen, read_rows)
        frames, streams = int(compare.compared_lengths.sum()), len(expected.streams)
        with progress.stage("verify", frames * streams, "rows and camera frames") as stage:
            of_pieces, cameras = _compare_pieces(compare, stage, spread, max_workers, stop)
        differences += of_pieces
        differences[found.num_of_info : found.num_of_info] = compare_cameras(
            expected.features, cameras, expected.fps
        )
        pictures = samples = 0
        if not differences:
            pictures, samples, differences = _look_closer(compare, sampling, progress, stop)
        return VerificationReport(
            depth=depth,
            differences=tuple(differences),
            files=len(files),
            episodes=int(np.count_nonzero(compare.compared_lengths)),
            video_frames=frames * len(expected.cameras),
            rows=frames,
            share=sampling.share,
            pictures=pictures,
            samples=samples,
        )


def compare_tables(result: Path, sources: Sources) -> list[Difference]:
    """Compare a result's files that belong to no episode with those that a conversion writes.

    These are ``info.json``, statistics, the tables of episodes, and the source's further files, to
    the byte. No video is opened, and rows of data files are read only for quantiles. Tasks, records
    of repairs and other files are not compared.
    """
    tables, expected = tables_of(result), Expected.of(sources)
    found = [
        *tables.compare_info(expected),
        *compare_other_files(tables, expected, read_bytes=True, keeps_further=True),
        *tables.compare_episodes(expected),
        *tables.compare_stats(expected),
    ]
    return [each for each in found if each.path not in {v3.REPAIRS_PATH, PROVENANCE_PATH}]


def _check_deep(tables: ResultTables) -> None:
    """Check that samples can be loaded through LeRobot, before the work.

    Raises:
        UsageError: The result is not v3.0.
        InstallationError: LeRobot is not installed.
    """
    if tables.target.version != "v3.0":
        raise UsageError(
            f"--deep works only for v3.0 datasets, which LeRobot can load; {tables.root} is "
            f"{tables.target.version}.",
            next_step="Use --bytes to compare every packet and row, and --decode to compare "
            "pictures.",
        )
    check_lerobot()


@dataclass(slots=True)
class _Metadata:
    """The comparison of the tables of a result.

    Attributes:
        differences: The differences.
        num_of_info: Number of differences up to and including ``info.json``.
        expected: The content that the result must hold; None if files cannot be compared.
        routes: The positions of its episodes in its tables; None if files cannot be compared.
    """

    differences: list[Difference] = field(default_factory=list)
    num_of_info: int = 0
    expected: Expected | None = None
    routes: Routes | None = None


def _compare_metadata(
    tables: ResultTables,
    sources: Sources,
    told: Sequence[Repairs] | None,
    *,
    read_bytes: bool,
    keeps_further: bool,
) -> _Metadata:
    """Compare everything except the files of episodes."""
    result, found = tables.root, _Metadata()
    differences = found.differences
    try:
        differences += [
            Difference("file", path, "a file", "a pipe, a socket or a device")
            for path in sorted(special_files(result))
        ]
        if differences:
            return found
        if len(sources) == 1:
            known = None if told is None else told[0]
            differences += compare_repairs(v3.read_repairs(result), known, sources[0].dataset)
        expected = Expected.of(sources)
        differences += compare_provenance(result, expected)
        differences += tables.compare_info(expected)
        differences += tables.compare_tasks(expected)
        unusable = [*tables.unusable(expected.streams)]
        differences += unusable
        if unusable:
            return found
        differences += tables.compare_form()
        routes = tables.routes(expected.streams)
        of_episodes = [*tables.compare_episodes(expected)]
    except (OSError, KeyError, ValueError, pa.ArrowException, SourceError) as error:
        differences.append(_held_against(result, error))
        return found
    found.num_of_info = len(differences)
    differences += compare_other_files(
        tables, expected, read_bytes=read_bytes, keeps_further=keeps_further
    )
    differences += of_episodes
    if read_bytes:
        try:
            differences += tables.compare_stats(expected)
        except UnreadableSourceError as error:
            differences.append(_held_against(result, error, "statistics"))
    else:
        differences += compare_aggregate_form(result)
    if not len(expected):
        differences.append(Difference("episodes", "meta/episodes", "one at least", "none"))
    if tables.num_episodes != len(expected) or not len(expected):
        return found
    if any(len(numbers) != len(expected) for numbers in routes.file_number.values()):
        # A folder that could not be listed looks like an empty one.
        what = "other episodes than when they were counted"
        differences.append(Difference("episodes", "meta/episodes", str(len(expected)), what))
        return found
    found.expected, found.routes = expected, routes
    return found


def _in_order(result: Path, roots: Sequence[Path]) -> list[Path]:
    """Return sources in the order of their episodes in a result, as far as its records say."""
    left = list(roots)
    provenance = read_provenance(result) if len(left) > 1 else None
    if provenance is None or len(provenance.sources) != len(left):
        return left
    found: dict[int, Path] = {}
    # A copy may have another name, and a changed source has other tables.
    for is_it in (_has_tables, lambda told, root: root.name == told.name, lambda *_: True):
        for number, told in enumerate(provenance.sources):
            if number not in found:
                root = next((root for root in left if is_it(told, root)), None)
                if root is not None:
                    found[number] = root
                    left.remove(root)
    return [found[number] for number in sorted(found)]


def other_sources(result: Path, roots: Sequence[Path]) -> list[str]:
    """Return the datasets that a result's record names as its sources and that are not given."""
    try:
        provenance = read_provenance(result)
    except UnreadableSourceError:
        return []
    told = () if provenance is None else provenance.sources
    return [each.name for each in told if not any(_has_tables(each, root) for root in roots)]


def _has_tables(told: SourceRecord, root: Path) -> bool:
    with suppress(OSError, SourceError):
        return meta_digest(root, told.codebase_version) == told.meta_digest
    return False


def _declared(result: Path, num_sources: int) -> list[Repairs]:
    """Return the changes of each of its sources from a result's records.

    Raises:
        UsageError: The result was made from another number of datasets.
    """
    try:
        provenance = read_provenance(result)
        if num_sources == 1 and (provenance is None or len(provenance.sources) == 1):
            return [v3.read_repairs(result)]
    except UnreadableSourceError:
        if num_sources > 1:
            raise
        return [NO_REPAIRS]  # the comparison reports its error
    of = 1 if provenance is None else len(provenance.sources)
    if provenance is None or of != num_sources:
        raise UsageError(
            f"{result} was made from {of} {'dataset' if of == 1 else 'datasets'}, not from "
            f"{num_sources}.",
            path=str(result),
            next_step="Give this dataset as the only --source."
            if provenance is None
            else f"Give each as --source: {', '.join(each.name for each in provenance.sources)}.",
        )
    return [source.repairs for source in provenance.sources]


def _compare_pieces(
    compare: Comparer,
    stage: Stage,
    spread: Spread | None,
    workers: int | None,
    stop: threading.Event | None,
) -> tuple[list[Difference], Mapping[str, Counter[ClipFacts]]]:
    """Compare every piece.

    Returns:
        The differences in order, those of whole files last; and, for each camera's stream, the
        facts of its images, with the number of episodes that have them.
    """
    found: list[Difference] = []
    of_files: list[Difference] = []
    cameras: dict[str, Counter[ClipFacts]] = {}
    pieces = cut_pieces(compare.routes, compare.expected.source_starts)
    weights = expected_seconds(compare, pieces)
    with closing(
        parallel_map(compare, pieces, spread, weights=weights, workers=workers)
    ) as compared:
        for piece, each in zip(pieces, compared, strict=True):
            found += each.differences
            of_files += each.of_files
            for facts, episodes in each.facts:
                cameras.setdefault(piece.stream, Counter())[facts] += episodes
            stage.advance(compare.frames_of(piece))
            _check_stop(stop)
    differing = {difference.path for difference in found}
    found += (each for each in of_files if each.stream == DATA_STREAM or each.path not in differing)
    return found, cameras


def _look_closer(
    compare: Comparer, sampling: Sampling, progress: Progress, stop: threading.Event | None
) -> tuple[int, int, list[Difference]]:
    """Decode images and load samples; return the number of each, and the differences."""
    found: list[Difference] = []
    counts = [0, 0]

    def advance(which: int, stage: Stage) -> Callable[[int], None]:
        def by(amount: int) -> None:
            counts[which] += amount
            stage.advance(amount)
            _check_stop(stop)

        return by

    if sampling.decode:
        with progress.stage("decode", sampling.decode, "pictures") as stage:
            found += compare_pictures(compare, sampling, advance(0, stage))
    if sampling.deep:
        with progress.stage("load", sampling.deep, "samples") as stage:
            found += compare_samples(compare, sampling, advance(1, stage))
    return counts[0], counts[1], found


def _check_stop(stop: threading.Event | None) -> None:
    if stop is not None and stop.is_set():
        raise InterruptedRunError(
            "The comparison was interrupted.",
            next_step="Run the same command again. It compares everything from the start.",
        )


def _files(tables: ResultTables, routes: Routes) -> tuple[set[str], list[Difference]]:
    """Return all files of episodes, and a difference for each that several runs share."""
    files: set[str] = set()
    found: list[Difference] = []
    for stream, numbers in routes.file_number.items():
        for first, _ in file_runs(numbers):
            path = tables.target.path(stream, int(numbers[first]))
            if path in files:
                found.append(Difference("episodes of a file", path, "one run", "several"))
            files.add(path)
    return files, found


def _held_against(result: Path, error: Exception, expected: str = "its tables") -> Difference:
    """Return the difference for an unreadable table of the result; raise errors of the source.

    The same functions read both sides, so their errors look like errors of a source.
    """
    if isinstance(error, SourceError) and (
        error.path is None or not Path(error.path).is_relative_to(result)
    ):
        raise error
    raise_storage_trouble(error, getattr(error, "path", None) or result)
    return unreadable_metadata(result, error, expected)


def _left_over(result: Path, expected: set[str]) -> Iterator[Difference]:
    found = {path for path, _ in files_below(result) if path.startswith(("data/", "videos/"))}
    for path in sorted(found - expected):
        yield Difference("file", path, "no such file", "a file that no episode names")
    for path in sorted(expected - found):
        yield Difference("file", path, "a file", "nothing")
