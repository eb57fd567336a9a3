"""The output file and the batch of every episode, decided from plain numbers alone.

This module knows no workers, hosts or times, so a layout depends on the source and the options
only. Sizes are counted in bytes with integers; the reference counts in floating MiB, which gives
the same answers because a division by 2**20 is exact.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise, repeat
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from leconvert.model.float32_tolerance import frames_always_in_reach, frames_out_of_reach
from leconvert.model.values import (
    DATA_STREAM,
    FILES_PER_CHUNK,
    KEEPING_LAYOUTS,
    MEBIBYTE,
    TARGET_VERSIONS,
    Batch,
    IntArray,
    LayoutOptions,
    Shard,
    SourceScan,
    StreamLayout,
    StreamScan,
    camera_of,
)
from leconvert.support.errors import UsageError

_REFERENCE, _STREAMING = "reference", "streaming"
_LAYOUTS = (_REFERENCE, _STREAMING, *KEEPING_LAYOUTS)
_ONE_FILE_AN_EPISODE = "v2.1"
# LeRobot sorts paths as text, in which chunk-1000 comes before chunk-101.
_MOST_FILES = 1000 * FILES_PER_CHUNK
_BLOCK_BYTES = 4096
_BLOCKS_WORTH_ALIGNING = 16


def layout_streams(scan: SourceScan, options: LayoutOptions) -> list[StreamLayout]:
    """Return the output files of every stream, in the order of ``scan.streams``."""
    if options.layout == KEEPING_LAYOUTS[0] and scan.num_episodes > _MOST_FILES:
        raise UsageError(
            f"--layout {options.layout} would make {scan.num_episodes:,} files, one for each "
            f"episode. LeRobot reads at most {_MOST_FILES:,} in the right order.",
            next_step="Use --layout reference, which joins episodes into fewer files.",
        )
    if options.to == _ONE_FILE_AN_EPISODE or options.layout in KEEPING_LAYOUTS:
        each: IntArray = np.arange(scan.num_episodes + 1, dtype=np.int64)
        return [StreamLayout(stream.stream, each) for stream in scan.streams]
    limits = [
        MEBIBYTE
        * (
            options.data_file_size_in_mb
            if stream.stream == DATA_STREAM
            else options.video_file_size_in_mb
        )
        for stream in scan.streams
    ]
    if options.layout == _STREAMING:
        starts = roll_together(
            scan.streams, limits, scan.length, scan.fps, min_files=options.loader_workers
        )
        return [StreamLayout(stream.stream, starts) for stream in scan.streams]
    return [
        StreamLayout(stream.stream, roll_over(stream.roll_bytes, stream.group, limit_bytes))
        for stream, limit_bytes in zip(scan.streams, limits, strict=True)
    ]


def check_layout_options(options: LayoutOptions) -> None:
    """Refuse senseless values, before anything is read.

    Raises:
        UsageError: A value is out of its range, or two of them contradict each other.
    """
    if options.to not in TARGET_VERSIONS:
        raise UsageError(f"--to takes {' or '.join(TARGET_VERSIONS)}, not {options.to!r}.")
    is_v21 = options.to == _ONE_FILE_AN_EPISODE
    if is_v21 or options.layout in KEEPING_LAYOUTS:
        usual = LayoutOptions()
        what = "v2.1" if is_v21 else f"the layout {options.layout}"
        given = "--to v2.1" if is_v21 else f"--layout {options.layout}"
        fields = ["data_file_size_in_mb", "video_file_size_in_mb", "loader_workers"]
        for field in [*fields, *(["layout"] if is_v21 else [])]:
            if getattr(options, field) != getattr(usual, field):
                raise UsageError(
                    f"--{field.replace('_', '-')} does not work with {what}, which has one "
                    "file for each episode.",
                    next_step=f"Leave --{field.replace('_', '-')} out, or leave {given} out.",
                )
    for name, limit in (
        ("--data-file-size-in-mb", options.data_file_size_in_mb),
        ("--video-file-size-in-mb", options.video_file_size_in_mb),
    ):
        if not limit > 0:
            raise UsageError(f"{name} must be above 0, not {limit}.")
        if math.isinf(limit):
            raise UsageError(f"{name} must be finite, not {limit}.")
    if options.layout not in _LAYOUTS:
        known = f"{', '.join(_LAYOUTS[:-1])} or {_LAYOUTS[-1]}"
        raise UsageError(f"--layout takes {known}, not {options.layout!r}.")
    if options.loader_workers < 1:
        raise UsageError(f"--loader-workers must be at least 1, not {options.loader_workers}.")


def roll_over(roll_bytes: IntArray, group: IntArray, limit_bytes: float) -> IntArray:
    """Cut one stream into output files.

    A new file starts before an episode that would bring the current file to the limit or beyond it,
    and before each change of the decoder configuration. A file holds at least one episode.

    Args:
        roll_bytes: Size of each episode for this purpose, shape (E,).
        group: Decoder configuration of each episode, as numbers, shape (E,).
        limit_bytes: The limit.

    Returns:
        First position of each file and, last, E; shape (files + 1,).
    """
    starts = [0]
    filled = 0
    previous = None
    for position, (size, config) in enumerate(
        zip(roll_bytes.tolist(), group.tolist(), strict=True)
    ):
        if position > starts[-1] and (filled + size >= limit_bytes or config != previous):
            starts.append(position)
            filled = 0
        filled += size
        previous = config
    starts.append(len(roll_bytes))
    return np.array(starts, dtype=np.int64)


def count_out_of_reach(scan: SourceScan, layouts: Sequence[StreamLayout]) -> Mapping[str, int]:
    """Count the frames that LeRobot will not load from a layout, although their times are exact.

    Returns:
        Number of frames by stream, one entry per camera; `leconvert.model.float32_tolerance`
        explains why.
    """
    found: dict[str, int] = {}
    counted: dict[bytes, int] = {}  # cameras whose frames have equal positions lose the same frames
    scans = {stream.stream: stream for stream in scan.streams}
    for layout in layouts:
        if camera_of(layout.stream) is None:
            continue
        begins = first_frames(scans[layout.stream], layout)
        key = begins.tobytes()
        if key not in counted:
            counted[key] = int(frames_out_of_reach(begins, scan.length, scan.fps).sum())
        found[layout.stream] = counted[key]
    return found


def first_frames(scan: StreamScan, layout: StreamLayout) -> IntArray:
    """Return the position of each episode's first frame in its output file, shape (E,)."""
    ends = np.concatenate(([0], np.cumsum(scan.frames)))
    starts = layout.starts[layout.file_numbers(np.arange(len(scan.frames)))]
    begins: IntArray = ends[:-1] - ends[starts] + scan.lead
    return begins


def choose_block_align(streams: Sequence[StreamScan], wanted: int | None) -> int:
    """Return the block alignment of episodes in video files, in bytes.

    File systems that share extents (XFS, btrfs, NFS 4.2 over them) do so in whole blocks. So an
    episode can be cloned only if its offset in the output file equals its offset in the source
    modulo the block size. This costs on average half a block of zeros per episode, and two partial
    blocks must be written, so it pays if clips have many blocks. Only the source decides, so
    results have the same bytes on every file system.

    Args:
        streams: The scan of each stream.
        wanted: The user's choice; None to decide.

    Raises:
        UsageError: The choice is out of its range.
    """
    if wanted is not None:
        if wanted and not (512 <= wanted <= MEBIBYTE and wanted & (wanted - 1) == 0):
            raise UsageError(
                f"--block-align takes auto, 0 or a power of two from 512 to 1048576, not {wanted}."
            )
        return wanted
    videos = [stream.size_bytes for stream in streams if stream.stream != DATA_STREAM]
    clips = sum(len(sizes) for sizes in videos)
    if not clips:
        return 0
    mean = sum(int(sizes.sum()) for sizes in videos) / clips
    return _BLOCK_BYTES if mean >= _BLOCKS_WORTH_ALIGNING * _BLOCK_BYTES else 0


# Cut data and all cameras at the same episodes, for loading.
#
# The number of files is computed first, and the frames are then shared out evenly among them. So
# there is no small rest at the end, and loader workers with one file each end at about the same
# time.

_LARGEST_LIMIT_BYTES = 2**62
_EPISODES_LOOKED_AT_FIRST = 16
# If frames out of reach force cuts that even shares did not foresee, the shares are computed again.
# Among many files, one small rest is not worth it.
_MOST_TRIALS = 4
_MANY_FILES = 100


def roll_together(
    streams: Sequence[StreamScan],
    limits_bytes: Sequence[float],
    length: IntArray,
    fps: Fraction,
    *,
    min_files: int,
) -> IntArray:
    """Cut all streams into output files that start at the same episodes.

    A file holds at least one episode. A further episode starts a new file if it

    - would bring any stream to its limit or beyond it,
    - needs another decoder configuration in any camera than the one before it, or
    - would have a frame that LeRobot refuses for its place in the file
      (`leconvert.model.float32_tolerance`).

    There are at least ``min_files`` files, if there are enough episodes. Within a run of equal
    decoder configurations, the files hold about equal numbers of frames: if neither a limit nor a
    frame out of reach prevents it and no episode is longer than a file's mean, they differ from
    that mean by less than the longest episode.

    The running time grows with the number of episodes; frames are looked at only if they may be out
    of reach.

    Returns:
        First position of each file and, last, E; shape (files + 1,).
    """
    num_episodes = len(length)
    changes = np.zeros(num_episodes - 1, np.bool_)
    for stream in streams:
        changes |= stream.group[1:] != stream.group[:-1]
    edges = np.concatenate(([0], np.flatnonzero(changes) + 1, [num_episodes]))
    rules = _Rules(streams, limits_bytes, length, fps, edges)
    runs = list(pairwise(edges.tolist()))
    files = _share_out(
        [rules.fewest_files(first, stop) for first, stop in runs],
        [stop - first for first, stop in runs],
        [rules.frames(first, stop) for first, stop in runs],
        min_files,
    )
    starts: list[int] = []
    for (first, stop), wanted in zip(runs, files, strict=True):
        starts += _cut_evenly(rules, first, stop, wanted)
    return np.array([*starts, num_episodes], dtype=np.int64)


def _share_out(
    fewest: Sequence[int], episodes: Sequence[int], frames: Sequence[int], min_files: int
) -> list[int]:
    """Return the number of files of each run: at least ``min_files`` in all.

    Further files go to the run with the largest ones.
    """
    files = list(fewest)
    largest = [
        (-frames[run] / files[run], run) for run in range(len(files)) if files[run] < episodes[run]
    ]
    heapq.heapify(largest)
    for _ in range(min_files - sum(files)):
        if not largest:
            break
        _, run = largest[0]
        files[run] += 1
        if files[run] < episodes[run]:
            heapq.heapreplace(largest, (-frames[run] / files[run], run))
        else:
            heapq.heappop(largest)
    return files


def _cut_evenly(rules: _Rules, first: int, stop: int, files: int) -> list[int]:
    """Return the first positions of at least ``files`` files, as even as the rules allow."""
    starts: list[int] = []
    for _ in range(_MOST_TRIALS):
        starts = _cut_towards_shares(rules, first, stop, files)
        if len(starts) == files or len(starts) > _MANY_FILES:
            break
        files = len(starts)
    return starts


def _cut_towards_shares(rules: _Rules, first: int, stop: int, files: int) -> list[int]:
    """Cut at the episode nearest to each equal share that the rules allow.

    Shares are counted from ``anchor`` on: if a cut had to be elsewhere, the remaining frames are
    shared out again, so the last file does not take the whole difference.
    """
    starts: list[int] = []
    anchor, shares, taken = first, files, 0
    while first < stop:
        if shares - taken < rules.files_by_size(first):
            # Frames out of reach used up files that the sizes of the remaining episodes need.
            anchor, shares, taken = first, rules.files_by_size(first), 0
        starts.append(first)
        taken += 1
        wanted = rules.nearest_share(anchor, stop, taken, shares)
        # Not too little, so the remaining files can hold the remaining episodes, and not so much
        # that there is no episode for each of them.
        end = max(wanted, rules.first_that_fits(first + 1, stop, shares - taken))
        end = min(end, rules.end_by_size(first), stop - (shares - taken))
        end = rules.end_by_reach(first, end)
        if end != wanted:
            anchor, shares, taken = end, shares - taken, 0
        first = end
    return starts


class _Rules:
    """The latest end of a file; all arrays have shape (E,) or (E + 1,).

    A *run* is a range of episodes with equal decoder configurations; no file extends beyond a run.
    """

    def __init__(
        self,
        streams: Sequence[StreamScan],
        limits_bytes: Sequence[float],
        length: IntArray,
        fps: Fraction,
        edges: IntArray,
    ) -> None:
        self._length = length
        self._fps = fps
        self._frame_ends = np.concatenate(([0], np.cumsum(length, dtype=np.int64)))
        # Without cameras, no frame is found by its time.
        self._looks_up = any(camera_of(stream.stream) is not None for stream in streams)
        self._certain = frames_always_in_reach(fps)
        self._ends = _latest_ends(streams, limits_bytes, edges)
        self._needed_negated = _files_needed(self._ends, edges)

    def frames(self, first: int, stop: int) -> int:
        """Return the number of frames in a range of episodes."""
        return int(self._frame_ends[stop] - self._frame_ends[first])

    def end_by_size(self, first: int) -> int:
        """Return the position after the last episode that fits into a file from ``first`` on."""
        return int(self._ends[first])

    def files_by_size(self, first: int) -> int:
        """Return how many files the remaining run needs by size alone, from ``first`` on."""
        return -int(self._needed_negated[first])

    def first_that_fits(self, first: int, stop: int, files: int) -> int:
        """Return the first position in a range from which ``files`` files are enough."""
        # A shorter rest of a run never needs more files than a longer one.
        needed = self._needed_negated[first:stop]
        return first + int(np.searchsorted(needed, -files))

    def nearest_share(self, anchor: int, stop: int, taken: int, shares: int) -> int:
        """Return the position nearest to ``taken / shares`` of the frames of a range."""
        ends = self._frame_ends
        # In integers: everything is multiplied by ``shares``.
        target = int(ends[anchor]) * shares + self.frames(anchor, stop) * taken
        before = int(np.searchsorted(ends, target // shares, side="right")) - 1
        if before >= stop:
            return stop
        above = int(ends[before + 1]) * shares - target
        return before if target - int(ends[before]) * shares <= above else before + 1

    def end_by_reach(self, first: int, stop: int) -> int:
        """Return the first position before ``stop`` with a frame out of reach, or ``stop``.

        The episode at ``first`` is not checked, since no cut would help it.
        """
        if not self._looks_up:
            return stop
        ends = self._frame_ends
        begin = int(ends[first])
        position = int(np.searchsorted(ends, begin + self._certain, side="right")) - 1
        position = max(position, first + 1)
        # Twice as many each time: most files end soon, and long ones need few rounds.
        count = _EPISODES_LOOKED_AT_FIRST
        while position < stop:
            window = slice(position, min(position + count, stop))
            lost = frames_out_of_reach(ends[window] - begin, self._length[window], self._fps)
            if lost.any():
                return position + int(np.flatnonzero(lost)[0])
            position += count
            count *= 2
        return stop

    def fewest_files(self, first: int, stop: int) -> int:
        """Return the number of files in a range if each holds as much as the rules allow."""
        files = 0
        while first < stop:
            first = self.end_by_reach(first, min(self.end_by_size(first), stop))
            files += 1
        return files


def _latest_ends(
    streams: Sequence[StreamScan], limits_bytes: Sequence[float], edges: IntArray
) -> IntArray:
    """Return the latest end of a file that starts at each position, shape (E,)."""
    ends = np.repeat(edges[1:], np.diff(edges))
    after = np.arange(1, len(ends) + 1)
    for stream, limit_bytes in zip(streams, limits_bytes, strict=True):
        filled = np.concatenate(([0], np.cumsum(stream.roll_bytes, dtype=np.int64)))
        # Sizes are integers, so a sum reaches the limit when it reaches the next integer.
        limit = math.ceil(min(limit_bytes, _LARGEST_LIMIT_BYTES))
        # The episode that would reach the limit is the first one of the next file.
        reaching = np.searchsorted(filled, filled[:-1] + limit) - 1
        np.minimum(ends, np.maximum(reaching, after), out=ends)
    return ends


def _files_needed(ends: IntArray, edges: IntArray) -> IntArray:
    """Return how many files the rest of the run needs from each position on, negated, shape (E,).

    Files as full as possible give the smallest number; negated, the numbers ascend within a run.
    """
    needed = [0] * len(ends)
    latest = ends.tolist()
    for first, stop in pairwise(edges.tolist()):
        for position in range(stop - 1, first - 1, -1):
            end = latest[position]
            needed[position] = -1 if end == stop else needed[end] - 1
    return np.array(needed, dtype=np.int64)


# Cuts the work of writing output files into batches, the unit that workers lease.

# The cost of one episode in addition to its bytes, in bytes that could be copied meanwhile. A table
# is decoded and encoded again (about 0.4 ms and a twelfth of the copying rate), and a clip's index
# is parsed (about 0.1 ms). Only the balance between batches depends on these numbers, not the
# result.
_TABLE_COST_FACTOR = 12
_TABLE_COST_PER_EPISODE = 768 * 1024
_CLIP_COST_PER_EPISODE = 256 * 1024

_SMALLEST_BATCH_COST = 16 * MEBIBYTE
_LARGEST_SHARED_BATCH_COST = 256 * MEBIBYTE
_BATCHES_WANTED = 64
_NONE_FIT: Mapping[str, npt.NDArray[np.bool_]] = MappingProxyType({})


def cut_batches(
    streams: Sequence[StreamScan],
    layouts: Sequence[StreamLayout],
    episodes_per_batch: int | None,
    fit: Mapping[str, npt.NDArray[np.bool_]] = _NONE_FIT,
    *,
    first: int = 0,
) -> list[Batch]:
    """Cut the work into batches, the most expensive first.

    Args:
        streams: The scan of each stream.
        layouts: The output files of each stream.
        episodes_per_batch: Episodes per batch over all streams; None for batches of output files.
        fit: By stream, whether each episode's file is kept unchanged, shape (E,).
        first: The first episode that needs work.

    Raises:
        UsageError: ``episodes_per_batch`` is not positive.
    """
    totals = _Totals(streams)
    if episodes_per_batch is None:
        groups = _by_output_file(totals, layouts, fit, first)
    elif episodes_per_batch > 0:
        groups = _by_episode_range(totals, layouts, episodes_per_batch, fit, first)
    else:
        raise UsageError(f"--episodes-per-batch must be at least 1, not {episodes_per_batch}.")
    costed = [(cost, group) for group, cost in groups]
    costed.sort(key=lambda entry: -entry[0])  # stable: ties stay in stream and file order
    return [Batch(batch_id, group, *totals.of(group)) for batch_id, (_, group) in enumerate(costed)]


class _Totals:
    """Sums of bytes, frames and cost over any range of positions, in constant time."""

    def __init__(self, streams: Sequence[StreamScan]) -> None:
        self._bytes = {s.stream: _running_sum(s.size_bytes) for s in streams}
        self._frames = {s.stream: _running_sum(s.frames) for s in streams}

    def cost(self, stream: str, first: int, stop: int) -> int:
        (cost,) = self.costs(stream, np.array([first, stop]))
        return cost

    def costs(self, stream: str, edges: IntArray) -> list[int]:
        """Return the cost of each range between two neighbours in ``edges``."""
        sizes, episodes = np.diff(self._bytes[stream][edges]), np.diff(edges)
        costs: list[int]
        if stream == DATA_STREAM:
            costs = (sizes * _TABLE_COST_FACTOR + episodes * _TABLE_COST_PER_EPISODE).tolist()
        else:
            costs = (sizes + episodes * _CLIP_COST_PER_EPISODE).tolist()
        return costs

    def of(self, shards: Sequence[Shard]) -> tuple[int, int]:
        """Return the source bytes and frames of some shards."""
        size_bytes = frames = 0
        for stream, first, stop in _runs(shards):
            size_bytes += int(self._bytes[stream][stop] - self._bytes[stream][first])
            frames += int(self._frames[stream][stop] - self._frames[stream][first])
        return size_bytes, frames


def _runs(shards: Sequence[Shard]) -> Iterator[tuple[str, int, int]]:
    """Yield ranges of positions that consecutive shards of a stream form together."""
    stream, first, stop = "", 0, 0
    for shard in shards:
        if shard.stream != stream or shard.first != stop:
            if stream:
                yield stream, first, stop
            stream, first = shard.stream, shard.first
        stop = shard.stop
    if stream:
        yield stream, first, stop


def _running_sum(values: IntArray) -> IntArray:
    return np.concatenate(([0], np.cumsum(values, dtype=np.int64)))


def _by_output_file(
    totals: _Totals,
    layouts: Sequence[StreamLayout],
    fit: Mapping[str, npt.NDArray[np.bool_]],
    first: int,
) -> Iterator[tuple[tuple[Shard, ...], int]]:
    """Yield batches of one file, or of neighbouring files of one stream up to a shared cost."""
    whole_cost = sum(totals.cost(s.stream, first, int(s.starts[-1])) for s in layouts)
    shared_cost = min(
        max(whole_cost // _BATCHES_WANTED, _SMALLEST_BATCH_COST), _LARGEST_SHARED_BATCH_COST
    )
    for layout in layouts:
        pending: list[Shard] = []
        pending_cost = 0
        begin = int(np.searchsorted(layout.starts, first))
        costs = totals.costs(layout.stream, layout.starts[begin:])
        kept = fit[layout.stream][first:].tolist() if layout.stream in fit else repeat(False)
        files = enumerate(pairwise(layout.starts[begin:].tolist()), begin)
        for (number, (file_first, stop)), cost, keep in zip(files, costs, kept, strict=False):
            if pending and pending_cost + cost > shared_cost:
                yield tuple(pending), pending_cost
                pending, pending_cost = [], 0
            pending.append(Shard(layout.stream, number, file_first, stop, True, keep))
            pending_cost += cost
        yield tuple(pending), pending_cost


def _by_episode_range(
    totals: _Totals,
    layouts: Sequence[StreamLayout],
    episodes_per_batch: int,
    fit: Mapping[str, npt.NDArray[np.bool_]],
    begins: int,
) -> Iterator[tuple[tuple[Shard, ...], int]]:
    """Yield batches of consecutive episodes over all streams."""
    num_episodes = int(layouts[0].starts[-1]) if layouts else 0
    for first in range(begins, num_episodes, episodes_per_batch):
        stop = min(first + episodes_per_batch, num_episodes)
        shards: list[Shard] = []
        for layout in layouts:
            first_file, last_file = layout.file_numbers(np.array([first, stop - 1])).tolist()
            for number in range(first_file, last_file + 1):
                file = layout.file(number)
                begin, end = max(first, file.first), min(stop, file.stop)
                whole = (begin, end) == (file.first, file.stop)
                keep = layout.stream in fit and bool(fit[layout.stream][begin])
                shards.append(Shard(layout.stream, number, begin, end, whole, keep))
        cost = sum(totals.cost(s.stream, s.first, s.stop) for s in shards)
        yield tuple(shards), cost
