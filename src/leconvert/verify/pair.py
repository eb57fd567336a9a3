"""A result against its source: metadata and totals here, files in pieces."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from leconvert import tables
from leconvert.errors import InterruptedRunError, SourceError, UnreadableSourceError
from leconvert.model import DATA_STREAM, output_path, stream_of_camera
from leconvert.progress import NO_PROGRESS, Progress, Stage
from leconvert.repairs import NO_REPAIRS, Repairs
from leconvert.source import DatasetInfo, EpisodeLines, SourcePaths, load_info
from leconvert.source.info import EPISODES_PATH, STATS_PATH
from leconvert.spread import Spread, do_all
from leconvert.verify.costs import expected_seconds
from leconvert.verify.difference import Difference, VerificationReport
from leconvert.verify.episode_columns import compare_location, placing_columns, unusable_columns
from leconvert.verify.info_record import compare_cameras, compare_info
from leconvert.verify.metadata import (
    SourceEpisodes,
    compare_aggregate_form,
    compare_episodes,
    compare_stats,
    compare_tasks,
    kept_lines,
    read_source_episodes,
    unreadable_metadata,
)
from leconvert.verify.other_files import compare_other_files, special_files
from leconvert.verify.pieces import Comparer, cut_pieces
from leconvert.verify.repair_record import compare_repairs
from leconvert.verify.routes import Routes, file_runs, read_routes
from leconvert.verify.sampling import EVERYTHING, Sampling
from leconvert.verify.whole_files import compare_whole_files
from leconvert.workdir.trouble import raise_storage_trouble

__all__ = ["verify_pair"]


def verify_pair(
    result: Path,
    source: Path,
    *,
    depth: str = "structure",
    progress: Progress = NO_PROGRESS,
    max_workers: int | None = None,
    spread: Spread | None = None,
    clip_digests: Mapping[str, npt.NDArray[np.bytes_]] | None = None,
    repairs: Repairs | None = None,
    sampling: Sampling = EVERYTHING,
    stop: threading.Event | None = None,
) -> VerificationReport:
    """Compare a v3.0 result with the v2.x dataset that it was converted from.

    Differences come in the same order whoever finds them: metadata first, then file by file.

    Args:
        result: The v3.0 dataset.
        source: The v2.x dataset.
        depth: ``structure`` compares tables, headers, sizes, times, keyframes, rows and totals;
            ``bytes`` also compares every coded packet and every row's values.
        progress: Where to report.
        max_workers: Processes that compare at a time, this one included; by default one a core,
            and this one alone where there is little to do. Where storage makes it wait, threads
            of this process instead, by default many.
        spread: Threads and processes, instead of deciding by what the first pieces cost.
        clip_digests: For each camera's stream, what `leconvert.media.order_digest` gave for each
            episode's clip when a worker read it, shape (E,) of 16 bytes; ``structure`` then does
            not read the clips again.
        repairs: What the conversion was told to change; by default what the result says of itself
            in ``meta/repairs.json``. Anything else that differs is a difference.
        sampling: A share of the episodes whose files are compared, and pictures and samples that
            are decoded and loaded besides.
        stop: Set it from another thread to stop after the pieces that are being compared.

    Returns:
        What differs, and how much was compared; ``ok`` says whether nothing differs.

    Raises:
        SourceError: The source itself cannot be read.
        StorageError: The disk fails, or this user may not read a file of the result: whether that
            differs is not known.
        InstallationError: Samples shall be loaded through LeRobot, which is not installed.
        InterruptedRunError: ``stop`` was set.
    """
    with suppress(OSError):
        # An NFS client that looked for the result in vain goes on missing it for half a minute,
        # unless it lists the folder.
        list(result.parent.iterdir())
    try:
        declared = tables.read_repairs(result)
    except UnreadableSourceError:
        declared = NO_REPAIRS  # what is wrong with it is said below
    info = load_info(source, repairs or declared, guess_version=True)
    paths = SourcePaths(source, info)
    # Every line is parsed when its episode is compared.
    episodes = EpisodeLines(source / EPISODES_PATH, validated=True)
    differences: list[Difference] = []
    reads_bytes = depth == "bytes"
    if sampling.deep:
        from leconvert.verify.deep import check_lerobot

        check_lerobot()  # it fails before the work, not after it

    try:
        differences += [
            Difference("file", path, "a file", "a pipe, a socket or a device")
            for path in sorted(special_files(result))
        ]
        if differences:
            return VerificationReport(depth, differences, 0, 0, 0, 0)
        declared = tables.read_repairs(result)
        differences += compare_repairs(declared, repairs, info, paths, episodes)
        repairs = repairs or declared
        expected = read_source_episodes(episodes, repairs)
        frames = expected.num_frames
        cameras = [key for key in info.camera_keys if key not in repairs.dropped_features]
        streams = [DATA_STREAM, *map(stream_of_camera, cameras)]
        table = tables.EpisodesReader(result)
        rows = tables.read_episodes(result)
        differences += compare_info(result, info.raw, info.fps, expected, source)
        differences += compare_tasks(result, source, repairs)
        unusable = [*unusable_columns(rows, streams)]
        if unusable:
            return VerificationReport(depth, [*differences, *unusable], 0, 0, 0, 0)
        differences += compare_location(result)
        routes = read_routes(table, streams)
        differences += compare_cameras(
            result, repairs.features(info.raw["features"]), routes, info.fps
        )
    except (OSError, KeyError, ValueError, pa.ArrowException, SourceError) as error:
        differences.append(_held_against(result, error))
        return VerificationReport(depth, differences, 0, 0, 0, 0)
    differences += compare_other_files(result, source, paths, repairs, read_bytes=reads_bytes)
    differences += compare_episodes(rows, expected, episodes, placing_columns(streams))
    del rows
    if reads_bytes:
        try:
            lines = _stats_lines(source, info, expected)
            differences += compare_stats(result, table, lines, repairs)
        except UnreadableSourceError as error:
            differences.append(_held_against(result, error, "statistics"))
    else:
        differences += compare_aggregate_form(result)
    if not len(expected):
        differences.append(Difference("episodes", "meta/episodes", "one at least", "none"))
    if table.num_rows != len(expected) or not len(expected):
        return VerificationReport(depth, differences, 0, 0, 0, 0)

    files, found = _files(routes)
    differences += found
    differences += _left_over(result, files)
    chosen = sampling.episodes(len(expected))
    compare = Comparer(result, paths, info, expected, routes, reads_bytes, clip_digests, chosen)
    frames = int(compare.compared_lengths.sum())
    with progress.stage("verify", frames * len(streams), "frames") as stage:
        differences += _compare_pieces(compare, stage, spread, max_workers, stop)
    differing = {difference.path for difference in differences}
    differences += compare_whole_files(result, paths, info, expected, routes.file_number, differing)
    pictures = samples = 0
    if not differences:
        pictures, samples, differences = _look_closer(compare, sampling, progress, stop)
    return VerificationReport(
        depth=depth,
        differences=tuple(differences),
        files=len(files),
        episodes=int(np.count_nonzero(compare.compared_lengths)),
        video_frames=frames * len(cameras),
        rows=frames,
        share=sampling.share,
        pictures=pictures,
        samples=samples,
    )


def _compare_pieces(
    compare: Comparer,
    stage: Stage,
    spread: Spread | None,
    workers: int | None,
    stop: threading.Event | None,
) -> list[Difference]:
    """Compare every piece; return what differs, in order."""
    differences: list[Difference] = []
    pieces = cut_pieces(compare.routes)
    weights = expected_seconds(compare, pieces)
    with closing(do_all(compare, pieces, spread, weights=weights, workers=workers)) as compared:
        for piece, found in zip(pieces, compared, strict=True):
            differences += found
            stage.advance(compare.frames_of(piece))
            _check_stop(stop)
    return differences


def _look_closer(
    compare: Comparer, sampling: Sampling, progress: Progress, stop: threading.Event | None
) -> tuple[int, int, list[Difference]]:
    """Decode pictures and load samples; return how many of each, and what differs."""
    found: list[Difference] = []
    counts = [0, 0]

    def advance(which: int, stage: Stage) -> Callable[[int], None]:
        def by(amount: int) -> None:
            counts[which] += amount
            stage.advance(amount)
            _check_stop(stop)

        return by

    if sampling.decode:
        from leconvert.verify.pictures import compare_pictures

        with progress.stage("decode", sampling.decode, "pictures") as stage:
            found += compare_pictures(compare, sampling, advance(0, stage))
    if sampling.deep:
        from leconvert.verify.deep import compare_samples

        with progress.stage("load", sampling.deep, "samples") as stage:
            found += compare_samples(compare, sampling, advance(1, stage))
    return counts[0], counts[1], found


def _check_stop(stop: threading.Event | None) -> None:
    if stop is not None and stop.is_set():
        raise InterruptedRunError(
            "Verification was interrupted.",
            next_step="Run the same command again; it compares everything anew.",
        )


def _files(routes: Routes) -> tuple[set[str], list[Difference]]:
    """Return every file that episodes lead to, and those that several runs of them lead to."""
    files: set[str] = set()
    found: list[Difference] = []
    for stream, numbers in routes.file_number.items():
        for first, _ in file_runs(numbers):
            path = output_path(stream, int(numbers[first]))
            if path in files:
                found.append(Difference("episodes of a file", path, "one run", "several"))
            files.add(path)
    return files, found


def _held_against(result: Path, error: Exception, expected: str = "its tables") -> Difference:
    """Return the difference that an unreadable table of the result is; raise what is the source's.

    Both sides are read by the same functions, whose errors are those of a source.
    """
    if isinstance(error, SourceError) and (
        error.path is None or not Path(error.path).is_relative_to(result)
    ):
        raise error
    raise_storage_trouble(error, getattr(error, "path", None) or result)
    return unreadable_metadata(result, error, expected)


def _stats_lines(
    source: Path, info: DatasetInfo, episodes: SourceEpisodes
) -> Iterator[dict[str, Any]]:
    path = source / STATS_PATH
    keeps_stats = info.has_episode_stats and not episodes.repairs.replaces_stats(info.features)
    if keeps_stats and path.exists():
        return kept_lines(EpisodeLines(path, validated=True), episodes)
    return ({"episode_index": index, "stats": {}} for index in episodes.index.tolist())


def _left_over(result: Path, expected: set[str]) -> Iterator[Difference]:
    found = {
        path.relative_to(result).as_posix()
        for folder in ("data", "videos")
        for path in (result / folder).rglob("*")
        if not path.is_dir()
    }
    for path in sorted(found - expected):
        yield Difference("file", path, "no such file", "a file that no episode names")
    for path in sorted(expected - found):
        yield Difference("file", path, "a file", "nothing")
