"""The check of one file of a v3.0 dataset: would LeRobot find all its episodes in it?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from leconvert import media
from leconvert.dataset.findings import found
from leconvert.dataset.formats import v3
from leconvert.model.repairs import DEFAULT_COLUMNS
from leconvert.model.values import (
    DATA_STREAM,
    LEROBOT_TOLERANCE_SECONDS,
    Finding,
    FloatArray,
    IntArray,
    camera_of,
)
from leconvert.support.errors import UnreadableSourceError
from leconvert.support.text import count
from leconvert.support.values import dataclass
from leconvert.tables import why_unreadable
from leconvert.tables.arrow import is_number, list_values
from leconvert.tables.schemas import (
    NUMBER_DTYPES,
    dtype_name,
    is_image_entry,
    read_by_lerobot,
    stored_entries,
)

# The schema of a data file compared with info.json.


def check_schema(
    schema: pa.Schema, declared: v3.Declared, path: str, file: pq.ParquetFile | None = None
) -> Iterator[Finding]:
    """Yield missing columns, undeclared columns, and columns of another type.

    LeRobot casts some types silently: another type of number, or a list of any length. They give a
    warning or nothing, unless `file` has numbers that do not fit the declared type. Any other type
    is an error: LeRobot gives the declared types to `datasets`, which raises.
    """

    def wrong(code: str, message: str, *, severity: str | None = None) -> Finding:
        return found(code, message, stream=DATA_STREAM, path=path, severity=severity)

    features = declared.features
    stored = {key: feature for key, feature in features.items() if feature.dtype != "video"}
    missing = sorted(stored.keys() - set(schema.names))
    extra = sorted(set(schema.names) - declared.names | set(schema.names) & set(declared.cameras))
    for name in missing:
        code = "missing-column" if name in DEFAULT_COLUMNS else "phantom-feature"
        yield wrong(code, f"The column {name!r} is missing.")
    for name in extra:
        yield wrong("undeclared-column", f"info.json does not declare {name!r}.")
    if len(set(schema.names)) < len(schema.names):
        yield wrong("unreadable-file", "Two columns have the same name.")
        return
    entries = stored_entries(schema)
    for name in schema.names:
        if name not in stored:
            continue
        feature, kind = stored[name], schema.field(name).type
        reading = read_by_lerobot(name, feature.raw, kind)
        if feature.dtype == "image":
            if reading.verdict != "exact":
                yield wrong("dtype-mismatch", f"The image {name!r} is stored as {kind}.")
            elif not is_image_entry(entries.get(name)):
                yield wrong(
                    "image-metadata",
                    f"The `huggingface` metadata of column {name!r} is {entries.get(name)!r}.",
                )
        elif reading.verdict != "exact" and not _is_seen_in_rows(name, feature, kind):
            # Numbers as texts, and texts as numbers, are also cast. Nobody means that.
            is_alike = {feature.dtype, dtype_name(kind)} <= NUMBER_DTYPES
            is_cast = is_alike and reading.verdict == "cast"
            misfit = _misfit(file, name, feature.dtype) if is_cast and file is not None else ""
            declared_as = f"{feature.dtype} of shape {list(feature.shape)}"
            yield wrong(
                "dtype-mismatch",
                f"{name!r} is declared as {declared_as}, but stored as {plain_type(kind)}{misfit}.",
                severity="warning" if is_cast and not misfit else "error",
            )


def _misfit(file: pq.ParquetFile, name: str, dtype: str) -> str:
    """Return why `datasets` cannot cast a column's numbers to a type; empty if it can."""
    for batch in file.iter_batches(v3.ROWS_AT_A_TIME, columns=[name], use_threads=False):
        column = batch.column(0)
        while not is_number(column.type):
            is_extension = isinstance(column, pa.ExtensionArray)
            column = column.storage if is_extension else list_values(column)
        try:
            column.cast(dtype)
        except pa.ArrowInvalid as error:
            return f", and its numbers do not fit: {str(error).rstrip('.')}"
    return ""


def _is_seen_in_rows(name: str, feature: v3.Feature, kind: pa.DataType) -> bool:
    """Return whether `RowCheck` reports the wrong type of one of LeRobot's own columns."""
    if name not in DEFAULT_COLUMNS or tuple(feature.shape) != (1,):
        return False
    if pa.types.is_floating(kind):
        return DEFAULT_COLUMNS[name] == feature.dtype == "int64"
    return not pa.types.is_integer(kind) and feature.dtype in NUMBER_DTYPES


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the storage type of an extension type; other types unchanged."""
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


# One data file of a v3.0 dataset: schema, row groups, and five columns that place each row.


@dataclass(slots=True)
class DataFileReport:
    """The report on one data file.

    Attributes:
        findings: Its findings.
        columns: Names and types of its columns; None if the file cannot be read, or if the columns
            have a finding already.
        untimed: Episodes with wrong timestamps, whose video frames cannot be judged; None if no
            rows were compared.
        other_tasks: Episodes for which ``meta/episodes`` lists other tasks than their rows have.
    """

    findings: list[Finding] = field(default_factory=list)
    columns: tuple[tuple[str, str], ...] | None = None
    untimed: IntArray | None = None
    other_tasks: Mapping[int, v3.OtherTasks] = field(default_factory=dict)


def check_data_file(
    root: Path,
    routed: v3.RoutedFile,
    table: v3.EpisodeTable,
    declared: v3.Declared,
    num_tasks: int | None,
    task_numbers: IntArray | None = None,
) -> DataFileReport:
    """Check one data file. Memory is bounded by the footer and a block of rows of five columns."""
    report = DataFileReport()
    path = routed.path
    if not (root / path).exists():
        report.findings.append(routed.missing())
        return report
    try:
        with pq.ParquetFile(root / path) as file:
            schema = file.schema_arrow
            report.findings += check_schema(schema, declared, path, file)
            if not report.findings:
                report.columns = tuple((item.name, str(plain_type(item.type))) for item in schema)
            lengths = table.length[routed.episodes]
            placed = v3.place_rows(file, routed, lengths)
            report.findings += [
                routed.wrong(code, message, episode=episode)
                for code, episode, message in placed.wrong
            ]
            if not placed.wrong:
                report.findings += _row_group_findings(file, routed, lengths)
            among, begins = placed.whole(routed)
            if len(begins):
                rows = v3.RowCheck(
                    among, table, declared, num_tasks, begins, task_numbers=task_numbers
                )
                report.findings += rows.check(file)
                report.untimed = rows.untimed
                report.other_tasks = rows.other_tasks
    except (OSError, ValueError, pa.ArrowException) as error:
        message = f"{path} cannot be read: {why_unreadable(root / path, error)}"
        report.findings.append(routed.wrong("unreadable-file", message))
    return report


def _row_group_findings(
    file: pq.ParquetFile, routed: v3.RoutedFile, lengths: IntArray
) -> Iterator[Finding]:
    groups = [file.metadata.row_group(group) for group in range(file.num_row_groups)]
    if [group.num_rows for group in groups] == lengths.tolist():
        return
    largest = max(groups, key=lambda group: group.total_byte_size)
    message = (
        f"{routed.path} has {len(lengths):,} episodes of {lengths.mean():,.0f} rows on "
        f"average, but only {len(groups):,} row groups, of up to {largest.num_rows:,} "
        f"rows and {largest.total_byte_size / 2**20:,.1f} MiB."
    )
    yield routed.wrong("row-groups", message)


# One video file of a v3.0 dataset: would LeRobot find every frame of its episodes?
#
# LeRobot asks for the frame at ``from_timestamp + timestamp``. It refuses a frame that is 1e-4 s or
# more from that time *in single precision*. This check compares the stored time of each frame.
# Nothing is decoded.
#
# It counts the frames that no lookup can find. LeRobot's lookup with PyAV refuses exactly these.
# The lookup with torchcodec uses frame numbers, and refuses more frames if times drift.


_TOLERANCE = np.float32(LEROBOT_TOLERANCE_SECONDS)
_FRAMES_AT_A_TIME = 1 << 16


@dataclass(frozen=True, slots=True, eq=False)
class VideoFrames:
    """The frames of a file in presentation order, arrays of shape (S,).

    Without an index, ``clip``, the file was read packet by packet.
    """

    seconds: FloatArray
    keyframes: npt.NDArray[np.bool_]
    clip: media.ClipIndex | None = None


@dataclass(slots=True)
class EpisodeSpans:
    """The episodes of a file in the order of their first frames, arrays of shape (K,)."""

    episodes: IntArray
    begin: IntArray
    length: IntArray
    from_seconds: FloatArray
    to_seconds: FloatArray
    told: npt.NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        self.told = np.zeros(len(self.episodes), np.bool_)

    @property
    def stop(self) -> IntArray:
        """The frame after the last one of each episode."""
        return self.begin + self.length

    def tell(self, wrong: npt.NDArray[np.bool_]) -> int:
        """Record that these episodes have a finding; return the position of the first."""
        self.told |= wrong
        return int(np.argmax(wrong))


def check_video_file(
    root: Path,
    routed: v3.RoutedFile,
    table: v3.EpisodeTable,
    declared: v3.Declared,
    untimed: npt.NDArray[np.bool_],
) -> list[Finding]:
    """Check one video file. Memory is bounded by its index."""
    path = root / routed.path
    first, wrong = int(routed.episodes[0]), routed.wrong
    if not path.exists():
        return [routed.missing()]
    findings: list[Finding] = []
    try:
        try:
            index = media.read_clip_index(path)
            if media.may_be_damaged(index):
                media.check_decodes(index)
            frames = frames_of(index)
        except media.UnsupportedClipError as error:
            frames = _frames_by_packets(path)
            findings.append(wrong("video-index", f"{routed.path}: {error.reason}."))
    except (UnreadableSourceError, OSError) as error:
        said = f"{routed.path} cannot be read: {error}"
        return [wrong("unreadable-file", said, episode=first)]
    if not len(frames.seconds):
        said = f"{routed.path} contains no frames."
        return [wrong("unreadable-file", said, episode=first)]
    feature = declared.features[str(camera_of(routed.stream))]
    if frames.clip is not None:
        findings += [wrong(code, message) for code, message in _declaration(frames.clip, feature)]
    spans = spans_of(frames, routed, table)
    timed = ~untimed[spans.episodes]
    for code, message, at in spans_findings(frames, spans, declared.fps, timed):
        episode = int(spans.episodes[at])
        findings.append(wrong(code, f"{routed.path}: {message}", episode=episode))
    return findings


def frames_of(index: media.ClipIndex) -> VideoFrames:
    """Return the frames of a file from its index."""
    times = index.presentation_times
    order = np.argsort(times, kind="stable")
    return VideoFrames(times[order] / index.timescale, index.keyframes[order], index)


def _frames_by_packets(path: Path) -> VideoFrames:
    packets = [(shown, starts) for shown, starts in media.packet_times(path) if shown is not None]
    seconds = np.array([shown for shown, _ in packets])
    order = np.argsort(seconds, kind="stable")
    keyframes = np.array([starts for _, starts in packets], np.bool_)
    return VideoFrames(seconds[order], keyframes[order])


def _declaration(clip: media.ClipIndex, feature: v3.Feature) -> Iterator[tuple[str, str]]:
    height_first, channels_first = feature.shape[:2], feature.shape[1:]
    if (clip.height, clip.width) not in (height_first, channels_first):
        yield (
            "shape-mismatch",
            f"Frames are {clip.height}x{clip.width}, but the declared shape is "
            f"{list(feature.shape)}.",
        )
    info: Any = feature.raw.get("info") or feature.raw.get("video_info") or {}
    declared = info.get("video.codec") if isinstance(info, dict) else None
    named = media.codec_of(declared) if isinstance(declared, str) else None
    if named is not None and media.codec_of(clip.codec) != named:
        yield "codec-mismatch", f"The codec is {clip.codec}, but {declared} is declared."


def spans_of(frames: VideoFrames, routed: v3.RoutedFile, table: v3.EpisodeTable) -> EpisodeSpans:
    """Return the frames of each episode of a file, from the frame nearest to its begin."""
    placed = table.placed[routed.stream]
    begin_seconds = placed.begin_seconds[routed.episodes]
    begin = _nearest(frames.seconds, begin_seconds)
    order = np.lexsort((routed.episodes, begin))
    episodes = routed.episodes[order]
    return EpisodeSpans(
        episodes,
        begin[order],
        table.length[episodes],
        begin_seconds[order],
        placed.end_seconds[episodes],
    )


def _nearest(sorted_seconds: FloatArray, wanted: FloatArray) -> IntArray:
    """Return the position of the time nearest to each wanted one."""
    after = np.searchsorted(sorted_seconds, wanted).clip(0, len(sorted_seconds) - 1)
    before = (after - 1).clip(0)
    nearer = np.abs(sorted_seconds[before] - wanted) < np.abs(sorted_seconds[after] - wanted)
    return np.where(nearer, before, after).astype(np.int64)


def spans_findings(
    frames: VideoFrames, spans: EpisodeSpans, fps: Fraction, timed: npt.NDArray[np.bool_]
) -> Iterator[tuple[str, str, int]]:
    """Yield code, message and position among the spans."""
    num_frames = len(frames.seconds)
    beyond = spans.stop > num_frames
    if beyond.any():
        at = spans.tell(beyond)
        yield (
            "frame-count",
            f"it has {num_frames:,} frames, but {np.count_nonzero(beyond):,} episodes end "
            f"later, the first at frame {spans.stop[at]:,}.",
            at,
        )
    yield from _off_their_times(frames, spans, fps, timed & ~beyond)
    yield from _neighbours(frames, spans, fps)
    # Further findings about a misplaced episode would mean nothing.
    unkeyed = ~spans.told & ~frames.keyframes[spans.begin]
    if unkeyed.any():
        number, at = np.count_nonzero(unkeyed), int(np.argmax(unkeyed))
        yield (
            "no-keyframe",
            f"{number:,} of {len(unkeyed):,} episodes do not begin with a keyframe.",
            at,
        )
    end = spans.from_seconds + spans.length / float(fps)
    off = timed & ~spans.told & (np.abs(spans.to_seconds - end) >= 0.5 / float(fps))
    if off.any():
        at = spans.tell(off)
        yield (
            "video-end",
            f"to_timestamp of {np.count_nonzero(off):,} episodes is wrong; the first is "
            f"{spans.to_seconds[at]:.6f} instead of {end[at]:.6f}.",
            at,
        )


def _off_their_times(
    frames: VideoFrames, spans: EpisodeSpans, fps: Fraction, among: npt.NDArray[np.bool_]
) -> Iterator[tuple[str, str, int]]:
    """Count frames that LeRobot refuses: in exact arithmetic, and only in single precision."""
    counts = {"frame-times": 0, "float32-reach": 0}
    episodes = {code: np.zeros(len(spans.episodes), np.bool_) for code in counts}
    worst = 0.0
    whole = np.flatnonzero(among)
    ends = np.cumsum(spans.length[whole])
    for first, stop in _blocks(ends):
        block = whole[first:stop]
        length = spans.length[block]
        frame = np.arange(length.sum()) - np.repeat(np.cumsum(length) - length, length)
        stored = frames.seconds[np.repeat(spans.begin[block], length) + frame]
        begin = np.repeat(spans.from_seconds[block], length)
        # A row's timestamp is in single precision; its sum with from_timestamp is in double
        # precision.
        asked = begin + (frame / float(fps)).astype(np.float32)
        refused = np.abs(asked.astype(np.float32) - stored.astype(np.float32)) >= _TOLERANCE
        distance = np.abs(begin + frame / float(fps) - stored)
        off = refused & (distance >= LEROBOT_TOLERANCE_SECONDS)
        if off.any():
            worst = max(worst, float(distance[off].max()))
        owner = np.repeat(block, length)
        for code, which in (("frame-times", off), ("float32-reach", refused & ~off)):
            counts[code] += int(np.count_nonzero(which))
            episodes[code][owner[which]] = True
    for code, frames_off in counts.items():
        if frames_off:
            at = spans.tell(episodes[code])
            far = f", by up to {worst:.6f} s" if code == "frame-times" else ""
            yield (
                code,
                f"at least {frames_off:,} of {int(spans.length.sum()):,} frames, in "
                f"{np.count_nonzero(episodes[code]):,} episodes, will not load{far}.",
                at,
            )


def _blocks(ends: IntArray) -> Iterator[tuple[int, int]]:
    """Yield ranges of episodes with about this number of frames, at least one episode each."""
    first = 0
    while first < len(ends):
        before = int(ends[first - 1]) if first else 0
        stop = int(np.searchsorted(ends, before + _FRAMES_AT_A_TIME, side="right"))
        stop = max(first + 1, stop)
        yield first, stop
        first = stop


_NEEDED = "; without, an episode cannot be decoded, as after a trim"


def _neighbours(
    frames: VideoFrames, spans: EpisodeSpans, fps: Fraction
) -> Iterator[tuple[str, str, int]]:
    """Find episodes that share frames. If there are none, find frames between episodes."""
    num_frames = len(frames.seconds)
    stop = np.minimum(spans.stop, num_frames)
    last = np.maximum.accumulate(stop)
    # The episode that ends last, up to each episode.
    ends_last = np.maximum.accumulate(np.where(stop == last, np.arange(len(stop)), 0))
    gap = spans.begin[1:] - last[:-1]
    beside = (stop[:-1] > 0) & (spans.begin[1:] < num_frames)
    pause = frames.seconds[spans.begin[1:].clip(0, num_frames - 1)]
    pause = pause - frames.seconds[(stop[:-1] - 1).clip(0)] - 1 / float(fps)
    wrong = np.zeros(len(spans.episodes), np.bool_)
    wrong[1:] = (gap != 0) | (beside & (gap == 0) & (np.abs(pause) >= 0.5 / float(fps)))
    wrong[1:] &= ~(spans.told[1:] & spans.told[:-1])
    shared = wrong.copy()
    # An episode that is not at its times, or ends beyond the file, has no known place.
    shared[1:] &= (gap < 0) & ~spans.told[1:] & ~spans.told[ends_last[:-1]]
    lead, tail = int(spans.begin[0]), num_frames - int(stop.max())
    if wrong.any():
        code, places = ("shared-frames", shared) if shared.any() else ("video-neighbours", wrong)
        at = int(np.argmax(places))
        first = int(ends_last[at - 1])
        before, this = spans.episodes[first], spans.episodes[at]
        if gap[at - 1] < 0:
            number = count(int(min(stop[first], stop[at]) - spans.begin[at]), "frame")
            seen = f"episodes {before} and {this} share {number}"
        elif gap[at - 1]:
            number = count(int(gap[at - 1]), "frame")
            seen = f"no episode has the {number} between episodes {before} and {this}"
            begins, ends = _decoded_by(frames, spans.begin, stop)
            seen += _NEEDED if begins[at] <= ends[:at].max() else ""
        else:
            seen = f"episode {this} begins {pause[at - 1]:.3f} s after the end of episode {before}"
        yield code, f"{seen} ({count(int(np.count_nonzero(places)), 'such place')}).", at
        spans.tell(wrong)
        spans.told[:-1] |= wrong[1:]
    elif lead or tail:
        begins, ends = _decoded_by(frames, spans.begin, stop)
        are_needed = begins[0] == 0 and ends.max() == num_frames
        yield (
            "video-neighbours",
            f"no episode has the {count(lead + tail, 'frame')} at the "
            f"{'beginning' if lead else 'end'}{_NEEDED if are_needed else ''}.",
            0 if lead else len(wrong) - 1,
        )


def _decoded_by(frames: VideoFrames, begin: IntArray, stop: IntArray) -> tuple[IntArray, IntArray]:
    """Return each episode's first frame and the frame after its last, with those it decodes by."""
    if frames.clip is None:
        return begin, stop
    first, after = v3.with_leads(frames.clip, begin, stop)
    return np.where(first < 0, begin, first), np.where(first < 0, stop, after)
