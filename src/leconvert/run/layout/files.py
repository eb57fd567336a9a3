"""Cut every stream into output files, the way that the options say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from leconvert.model.float32_tolerance import frames_out_of_reach
from leconvert.model.values import (
    DATA_STREAM,
    FILES_PER_CHUNK,
    KEEPING_LAYOUTS,
    MEBIBYTE,
    TARGET_VERSIONS,
    IntArray,
    LayoutOptions,
    SourceScan,
    StreamLayout,
    StreamScan,
    camera_of,
)
from leconvert.run.layout.together import roll_together
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
            f"--layout {options.layout} makes a file for each of {scan.num_episodes:,} episodes, "
            f"and LeRobot reads at most {_MOST_FILES:,} in their order.",
            next_step="Use --layout reference, which joins them.",
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
    """Refuse values that nobody can mean, before anything is read."""
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
                    f"--{field.replace('_', '-')} says how episodes share files, and {what} has a "
                    "file for each.",
                    next_step=f"Leave it out with {given}.",
                )
    for name, limit in (
        ("--data-file-size-in-mb", options.data_file_size_in_mb),
        ("--video-file-size-in-mb", options.video_file_size_in_mb),
    ):
        if not limit > 0:
            raise UsageError(f"{name} must be positive, not {limit}.")
    if options.layout not in _LAYOUTS:
        known = f"{', '.join(_LAYOUTS[:-1])} or {_LAYOUTS[-1]}"
        raise UsageError(f"--layout takes {known}, not {options.layout!r}.")
    if options.loader_workers < 1:
        raise UsageError(f"--loader-workers must be at least 1, not {options.loader_workers}.")


def roll_over(roll_bytes: IntArray, group: IntArray, limit_bytes: float) -> IntArray:
    """Cut one stream into output files.

    A new file starts before an episode that would bring the current file to the limit or beyond,
    and wherever the decoder configuration changes. A file holds at least one episode.

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
    """Count the frames that LeRobot will not load from a layout, though their times are exact.

    Returns:
        Frames by stream, one entry a camera; see `leconvert.model.float32_tolerance` for why.
    """
    found: dict[str, int] = {}
    counted: dict[bytes, int] = {}  # cameras whose frames lie alike lose the same ones
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
    """Return the first frame of each episode in its output file, shape (E,)."""
    ends = np.concatenate(([0], np.cumsum(scan.frames)))
    starts = layout.starts[layout.file_numbers(np.arange(len(scan.frames)))]
    begins: IntArray = ends[:-1] - ends[starts] + scan.lead
    return begins


def choose_block_align(streams: Sequence[StreamScan], wanted: int | None) -> int:
    """Return the block alignment of episodes in video files, in bytes.

    File systems that share extents (XFS, btrfs, NFS 4.2 over them) do so in whole blocks, so an
    episode can only be cloned where its offset in the output file equals its offset in the source
    modulo the block size. That costs half a block of zeros an episode on average and leaves two
    ragged blocks to write, which pays where clips hold many blocks. It is decided by the source
    alone, so that results have the same bytes on every file system.
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
