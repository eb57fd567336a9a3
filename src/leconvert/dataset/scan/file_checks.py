"""Checks of the files of one episode: its clips, its table, its statistics.

Headers and footers are compared with ``info.json`` and with each other: first clips, then tables,
then statistics.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from leconvert import media
from leconvert.dataset.findings import DROP, ObservationLog, said_of_empty, said_of_paths
from leconvert.dataset.formats import StatsBlock
from leconvert.dataset.formats.stats import REQUIRED_STATS, FeatureStats, adds_up
from leconvert.dataset.formats.v2 import STATS_PATH
from leconvert.model.repairs import DEFAULT_COLUMNS, TEXT_DTYPES, VISUAL_DTYPES
from leconvert.model.values import LEROBOT_TOLERANCE_SECONDS, camera_of
from leconvert.support.errors import UnreadableSourceError
from leconvert.support.text import count, shown
from leconvert.tables import LANGUAGE_COLUMNS, DataFile

_RATE_TOLERANCE = 0.01
_KEPT_CONFIGS = 256
_LAST_NAMES = ("channel", "channels")
NAMES_OF_AXES = ("height", "width", "channels")
_CHANNELS = (1, 3, 4)

# The least and the greatest value, by column.
Extremes = Mapping[str, tuple[float, float]]
Times = npt.NDArray[np.floating[Any]]

_FIRST_FRAMES = 2048
_NO_TENSOR_FROM = 2**63
_BROADCAST_RATES = ("23.976", "29.97", "59.94")
_KEPT_TIMES = 256
# No index or task has these numbers: an unknown one, and an impossible one, such as NaN or 1.5.
NOT_KNOWN = -(2**62)
NO_INDEX = NOT_KNOWN + 1
# Columns that count rows. For floating-point numbers, the least and the greatest do not prove that.
_COUNTED = frozenset({"frame_index", "index"})

# Extremes of these types are in another order than the bytes in the footer.
_UNSIGNED_DTYPES = frozenset({"uint32", "uint64"})
# Statistics are often computed and stored in single precision.
_RELATIVE_TOLERANCE, _ABSOLUTE_TOLERANCE = 1e-5, 1e-6
# Sums in single precision may move the mean of equal values beyond them.
_SLACK = 1e-3
_BOUNDED = ("min", "max", "mean", "std")
_MAX_DEPTH = 8


class ClipFacts(NamedTuple):
    """The pictures of a clip by its header; None for facts that the header lacks."""

    codec: str | None
    pixel_format: str | None
    height: int
    width: int

    @classmethod
    def of(cls, clip: media.ClipIndex) -> ClipFacts:
        """Return the facts of a clip."""
        codec = media.codec_of(clip.codec)
        return cls(codec, pixel_format(clip), clip.height, clip.width)

    @property
    def channels(self) -> int | None:
        """Colour channels of a frame; None if unknown, or for gray, which is one or three."""
        has_colour = self.pixel_format is not None and self.pixel_format.startswith("yuv")
        return 3 if has_colour else None


class ClipCheck:
    """Checks the clips of one camera. Facts of equal configurations are checked once."""

    def __init__(self, feature: Mapping[str, Any], fps: Fraction) -> None:
        self._feature = feature
        self._fps = fps
        # None and () for missing or unusable values.
        self._rate = _rate(declared_video(feature).get("video.fps"))
        shape = feature.get("shape")
        sizes = shape if isinstance(shape, list) else []
        self._shape = tuple(sizes) if all(type(size) is int for size in sizes) else ()
        self._known: dict[object, tuple[tuple[str, str], ...]] = {}

    def __call__(self, clip: media.ClipIndex, notes: ObservationLog) -> None:
        """Report each difference between a clip and the declaration."""
        step = clip.step if clip.num_samples > 1 else 0
        kind = (clip.config_key, clip.timescale, step)
        differences = self._known.get(kind)
        if differences is None:
            if len(self._known) >= _KEPT_CONFIGS:
                self._known.clear()
            differences = self._known[kind] = tuple(self._differences(clip, step))
        for code, said in differences:
            notes.sight(code, f"{shown(notes.path)} {said}")

    def _differences(self, clip: media.ClipIndex, step: int) -> Iterator[tuple[str, str]]:
        facts = ClipFacts.of(clip)
        video = declared_video(self._feature)
        right = _right_facts(video, facts, self._fps)
        said = []
        if "video.codec" in right:
            said.append(f"codec {facts.codec} ({shown(video['video.codec'])} is declared)")
        if "video.pix_fmt" in right:
            pixels = facts.pixel_format
            said.append(f"pixel format {pixels} ({shown(video['video.pix_fmt'])} is declared)")
        said += [
            f"{key.removeprefix('video.')} {right[key]} ({shown(video[key])} is declared)"
            for key in ("video.height", "video.width", "video.channels")
            if key in right
        ]
        if self._rate is not None:
            rate = clip.timescale / step if step else self._rate
            if not _is_rate(self._rate, rate):
                said.append(f"{rate:g} frames per second ({self._rate:g} are declared)")
            elif "video.fps" in right:
                said.append(
                    f"{float(self._fps):g} frames per second in the result "
                    f"({self._rate:g} are declared)"
                )
        if "has_audio" in right:
            said.append("no sound in the result (has_audio is declared)")
        if clip.rotation != 0:
            how = "mirrored" if clip.rotation is None else f"rotated by {clip.rotation} degrees"
            yield (
                "rotated-frames",
                f"asks to be shown {how}. torchcodec does that and PyAV does not, so "
                "LeRobot's frames depend on the decoder.",
            )
        if said:
            yield "codec-mismatch", f"has {', '.join(said)}."
        shape, size = self._shape, (clip.height, clip.width)
        if len(shape) == 3 and shape[:2] != size:
            text = f"{list(shape)} is declared"
            if shape[1:] == size:
                text += ", with channels first"
            yield "shape-mismatch", f"has frames of {clip.height} x {clip.width}, but {text}."
        elif facts.channels is not None and len(shape) == 3 and shape[2] != facts.channels:
            yield (
                "shape-mismatch",
                (f"has {facts.channels} channels, but {list(shape)} is declared."),
            )


def clip_checks(
    streams: Iterable[str], features: Mapping[str, Mapping[str, Any]], fps: Fraction
) -> dict[str, ClipCheck]:
    """Return the check of each camera's clips, by stream."""
    cameras = {stream: camera_of(stream) for stream in streams}
    return {
        stream: ClipCheck(features[camera], fps)
        for stream, camera in cameras.items()
        if camera is not None
    }


def declared_as_encoded(
    feature: Mapping[str, Any], facts: ClipFacts, fps: Fraction
) -> dict[str, Any]:
    """Return the declaration of a camera with the facts of its clips.

    Keys that the source does not declare are not added. Facts that no header has stay. Shapes are
    (height, width, channels), as LeRobot writes them.
    """
    found = dict(feature)
    for key in ("info", "video_info"):
        video = found.get(key)
        if not isinstance(video, dict):
            continue
        right = _right_facts(video, facts, fps)
        has_no_audio = "has_audio" in right
        found[key] = {
            name: right.get(name, value)
            for name, value in video.items()
            if not (has_no_audio and name.startswith("audio."))
        }
    shape = found.get("shape")
    sizes: list[Any] = shape if isinstance(shape, list) else []
    channels_last = sizes[2:] if sizes[:2] == [facts.height, facts.width] else sizes[:1]
    channels = facts.channels or next((n for n in channels_last if n in (1, 3)), 3)
    wanted = [facts.height, facts.width, channels]
    if sizes != wanted or not all(type(size) is int for size in sizes):
        found["shape"] = wanted
    if lacks_names_of_axes(found):
        found["names"] = list(NAMES_OF_AXES)
    return found


def lacks_names_of_axes(feature: Mapping[str, Any]) -> bool:
    """Return whether pictures of (height, width, channels) lack the names of these axes.

    Without names, ``dataset_to_policy_features`` of LeRobot fails. Unless the last one says
    channels, it takes the first axis for them. The shape of a video becomes that of its clips.
    """
    names, shape = feature.get("names"), feature.get("shape")
    if isinstance(names, list) and len(names) == len(NAMES_OF_AXES) and names[2] in _LAST_NAMES:
        return False
    has_channels_last = (
        isinstance(shape, list)
        and len(shape) == len(NAMES_OF_AXES)
        and shape[2] in _CHANNELS
        and shape[0] not in _CHANNELS
    )
    return feature["dtype"] == "video" or (feature["dtype"] == "image" and has_channels_last)


def _right_facts(video: Mapping[str, Any], facts: ClipFacts, fps: Fraction) -> dict[str, Any]:
    """Return the right value for each wrong key of a declaration."""
    right: dict[str, Any] = {}
    codec, pixels = video.get("video.codec"), video.get("video.pix_fmt")
    named = media.codec_of(codec) if isinstance(codec, str) else codec
    if named is not None and facts.codec and named != facts.codec:
        right["video.codec"] = facts.codec
    plain = _plain(pixels) if isinstance(pixels, str) else pixels
    if plain is not None and facts.pixel_format and plain != facts.pixel_format:
        right["video.pix_fmt"] = facts.pixel_format
    sizes = {
        "video.height": facts.height,
        "video.width": facts.width,
        "video.channels": facts.channels,
    }
    right |= {
        key: size
        for key, size in sizes.items()
        if size is not None and video.get(key) not in (None, size)
    }
    rate = _rate(video.get("video.fps"))
    if rate is not None and not _is_rate(rate, float(fps)):
        right["video.fps"] = int(fps) if fps.denominator == 1 else float(fps)
    if video.get("has_audio") is True:
        right["has_audio"] = False
    return right


def _is_rate(declared: float, rate: float) -> bool:
    return abs(rate - declared) <= _RATE_TOLERANCE * rate


def _rate(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e6:
        return None
    return float(value)


def declared_video(feature: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a camera's declaration about its encoding, ``info`` or ``video_info``."""
    for key in ("info", "video_info"):
        facts = feature.get(key)
        if isinstance(facts, dict):
            return facts
    return {}


def pixel_format(clip: media.ClipIndex) -> str | None:
    """Return FFmpeg's name of a clip's pixel format, from its decoder configuration.

    Read from ``av1C`` (AV1 in ISOBMFF, 2.3.3), ``hvcC`` and ``avcC`` (ISO/IEC 14496-15, 8.3.2 and
    5.3.3) and ``vpcC`` (VP codecs in ISOBMFF). None if they do not say.
    """
    for kind, read in _CONFIGURATIONS.items():
        place = clip.sample_entry.find(kind)
        if place > 0:
            try:
                chroma, bits = read(clip.sample_entry[place + 4 :])
            except (IndexError, KeyError):
                return None
            base = "gray" if chroma == "gray" else f"yuv{chroma}p"
            return base if bits == 8 else f"{base}{bits}le"
    return None


_CHROMA = ("gray", "420", "422", "444")


def _from_av1(record: bytes) -> tuple[str, int]:
    flags = record[2]
    high, twelve, gray, subsampled_x, subsampled_y = (
        flags >> 6 & 1, flags >> 5 & 1, flags >> 4 & 1, flags >> 3 & 1, flags >> 2 & 1,
    )  # fmt: skip
    chroma = "gray" if gray else {(1, 1): "420", (1, 0): "422", (0, 0): "444"}[
        (subsampled_x, subsampled_y)
    ]  # fmt: skip
    return chroma, 12 if high and twelve else 10 if high else 8


def _from_hevc(record: bytes) -> tuple[str, int]:
    return _CHROMA[record[16] & 3], 8 + (record[17] & 7)


def _from_avc(record: bytes) -> tuple[str, int]:
    profile = record[1]
    if profile in (66, 77, 88):  # Baseline, Main and Extended have no other
        return "420", 8
    place = 6
    for _ in range(record[5] & 0x1F):
        place += 2 + int.from_bytes(record[place : place + 2], "big")
    count = record[place]
    place += 1
    for _ in range(count):
        place += 2 + int.from_bytes(record[place : place + 2], "big")
    chroma = _CHROMA[record[place] & 3]
    # FFmpeg decodes H.264 without colour to 4:2:0. Either name may be declared.
    if chroma == "gray":
        raise KeyError(chroma)
    return chroma, 8 + (record[place + 1] & 7)


def _from_vp9(record: bytes) -> tuple[str, int]:
    flags = record[6]
    return {0: "420", 1: "420", 2: "422", 3: "444"}[flags >> 1 & 7], flags >> 4


_CONFIGURATIONS = {b"av1C": _from_av1, b"hvcC": _from_hevc, b"avcC": _from_avc, b"vpcC": _from_vp9}


def _plain(name: str) -> str:
    """Return a declared pixel format without range and byte order, which headers lack."""
    plain = re.sub(r"^yuvj", "yuv", name.strip().lower())
    return re.sub(r"(?<=\d\d)be$", "le", plain)


class RowFacts(NamedTuple):
    """The place of a table's rows in the dataset, by the table's own columns.

    Attributes:
        first_index: ``index`` of the first row; `NOT_KNOWN` if rows do not count by one.
        tasks: The tasks of its rows, `NO_INDEX` for impossible values; () without the column.
        was_looked_at: Whether the table has rows.
    """

    first_index: int = NOT_KNOWN
    tasks: tuple[int, ...] = ()
    was_looked_at: bool = False


class TableCheck:
    """Checks the tables of one dataset."""

    def __init__(
        self,
        fps: Fraction,
        features: Mapping[str, Mapping[str, Any]],
        *,
        has_cameras: bool,
        checks_steps: bool = False,
    ) -> None:
        self._fps = fps
        self._checks_steps = checks_steps
        self._expected: dict[str, Times] = {}
        self._right_times: set[tuple[object, bytes]] = set()
        self._times_severity = "" if has_cameras else "warning"
        # The declared type does not matter: numbers may be stored in any column.
        self._stored = [
            name
            for name, feature in features.items()
            if feature["dtype"] != "video" and name not in DEFAULT_COLUMNS
        ]
        self._images = [name for name, feature in features.items() if feature["dtype"] == "image"]
        # Columns whose statistics may have to be computed, whatever is declared.
        self._computed = [
            name
            for name, feature in features.items()
            if feature["dtype"] not in VISUAL_DTYPES and name not in DEFAULT_COLUMNS
        ]

    def __call__(self, file: DataFile, extremes: Extremes, notes: ObservationLog) -> RowFacts:
        """Check a table whose number of rows is that of the episode's frames."""
        rows, columns = file.rows, file.columns
        for name in self._stored:
            greatest = extremes.get(name, (0, 0))[1]
            if greatest >= _NO_TENSOR_FROM and isinstance(greatest, int):
                notes.say(
                    "unloadable-feature",
                    f"{shown(name)} goes up to {greatest} in {shown(notes.path)}. LeRobot "
                    "cannot load numbers from 2^63 on.",
                    feature=name,
                )
        for name in self._images:
            if missing := file.missing_files(name):
                where = f" in {missing} of {count(rows, 'row')} of {shown(notes.path)}"
                notes.sight("image-paths", said_of_paths(name, where), feature=name)
        for name in self._computed:
            values, empty = file.num_values(name), file.null_count(name)
            if empty:
                what = count(empty, "empty value")
                if name not in LANGUAGE_COLUMNS:
                    said = said_of_empty(name, shown(notes.path))
                    notes.say("empty-values", said, feature=name)
            elif values is not None and values % rows:
                what = f"lists of different lengths, {values} values in {rows} rows"
            else:
                continue
            notes.say(
                "uncomputable-stats",
                f"{shown(name)} has {what} in {shown(notes.path)}: no statistics can be computed.",
                feature=name,
            )
        if "episode_index" in columns and not _says_empty(file, "episode_index", notes):
            found = _extremes(file, extremes, "episode_index", "episode-index", notes)
            if found not in (None, (notes.episode, notes.episode)):
                notes.say(
                    "episode-index",
                    f"{shown(notes.path)} has rows with episode_index {_span(*found)}.",
                )
        if "frame_index" in columns and not _says_empty(file, "frame_index", notes):
            found = _extremes(file, extremes, "frame_index", "frame-index", notes)
            if found not in (None, (0, rows - 1)):
                notes.say(
                    "frame-index",
                    f"{shown(notes.path)} has frame_index {_span(*found)} instead of "
                    f"{_span(0, rows - 1)}.",
                )
        if "timestamp" in columns:
            empty = file.null_count("timestamp")
            if empty:
                said = f"{shown(notes.path)} has {count(empty, 'row')} without a timestamp."
                notes.say("timestamps", said)
            else:
                self._check_times(file, notes)
        first_index = NOT_KNOWN
        if "index" in columns and not file.null_count("index"):
            found = _extremes(file, extremes, "index", "global-index", notes)
            if found and found[1] - found[0] == rows - 1 and _index(found[0]) != NO_INDEX:
                first_index = int(found[0])
        tasks: tuple[int, ...] = ()
        if "task_index" in columns and not _says_empty(file, "task_index", notes):
            # No flag knows the task of a text or a list.
            found = _extremes(file, extremes, "task_index", "dtype-mismatch", notes)
            if found and found[0] == found[1]:
                tasks = (_index(found[0]),)
            elif found:
                with _numbers_or_said("dtype-mismatch", notes):
                    (numbers,) = file.numbers("task_index")
                    tasks = tuple(dict.fromkeys(map(_index, np.unique(numbers).tolist())))
        return RowFacts(first_index, tasks, was_looked_at=True)

    def _check_times(self, file: DataFile, notes: ObservationLog) -> None:
        # Episodes of one length have the same times, and usually the same bytes for them.
        raw = file.raw("timestamp")
        if raw is not None and raw in self._right_times:
            return
        with _numbers_or_said("timestamps", notes):
            self._compare_times(file, raw, notes)

    def _compare_times(
        self, file: DataFile, raw: tuple[object, bytes] | None, notes: ObservationLog
    ) -> None:
        (times,) = file.numbers("timestamp")
        expected = self._times(len(times), times.dtype)
        is_even = not self._checks_steps or steps_are_even(times, self._fps, notes)
        if is_even and (times == expected).all():
            if raw is not None:
                if len(self._right_times) >= _KEPT_TIMES:
                    self._right_times.clear()
                self._right_times.add(raw)
            return
        offsets = np.abs(times - expected.astype(np.float64))
        right = offsets < LEROBOT_TOLERANCE_SECONDS
        if right.all():
            return
        has_all_times = (np.abs(np.sort(times) - expected) < LEROBOT_TOLERANCE_SECONDS).all()
        frames = np.arange(len(times))
        numbers = file.numbers("frame_index")[0] if "frame_index" in file.columns else frames - 1
        is_mixed = has_all_times or (np.sort(numbers) == frames).all()
        if is_mixed and not (numbers == frames).all():
            notes.say(
                "row-order",
                f"{shown(notes.path)}: the rows are in another order than their times or numbers.",
                severity=self._times_severity,
            )
            return
        wrong = np.flatnonzero(~right)
        rate = _steady_rate(times)
        worst = float(np.nanmax(offsets)) if not np.isnan(offsets).all() else float("nan")
        notes.say(
            "timestamps",
            f"{shown(notes.path)}: {len(wrong)} of {len(times)} timestamps are not frame / "
            f"fps. The first is at frame {int(wrong[0])} ({float(times[wrong[0]]):g} "
            f"s). The greatest difference is {worst:g} s."
            + (f" The timestamps are frame / {rate}." if rate else ""),
            severity=self._times_severity,
            helps=(f"--assume-fps {rate}", "--retime") if rate else None,
        )

    def _times(self, length: int, kind: np.dtype[Any]) -> Times:
        """Return frame / fps for the frames of an episode, shape (length,).

        They are rounded as in LeRobot, which stores them in this type. Late in long episodes the
        result is coarse, but right.
        """
        known = self._expected.get(kind.str)
        if known is None or len(known) < length:
            frames = np.arange(max(length, _FIRST_FRAMES), dtype=np.float64)
            times = frames * self._fps.denominator / self._fps.numerator
            known = times.astype(np.float32) if kind == np.float32 else times
            self._expected[kind.str] = known
        return known[:length]


def uneven_steps(times: npt.NDArray[Any], fps: Fraction) -> npt.NDArray[np.int64]:
    """Return the timestamps of an episode whose next one is too near or too far.

    It is the arithmetic of LeRobot 0.3.3 when it opens a dataset (``check_timestamps_sync``):
    timestamps are float32 there, and so are their differences.
    """
    steps = np.diff(times.astype(np.float32))
    is_even = np.abs(steps - np.float32(1 / float(fps))) <= np.float32(LEROBOT_TOLERANCE_SECONDS)
    return np.flatnonzero(~is_even)


def steps_are_even(times: npt.NDArray[Any], fps: Fraction, notes: ObservationLog) -> bool:
    """Return whether LeRobot 0.3.3 accepts the distances of an episode's timestamps; or report."""
    if not len(uneven := uneven_steps(times, fps)):
        return True
    at = int(uneven[0])
    first, second = (f"{float(time):g}" for time in times[at : at + 2])
    said = (
        f"{shown(notes.path)}: {count(len(uneven), 'timestamp')} not 1 / fps after the timestamp "
    )
    said += f"before, first {second} s after {first} s."
    exact = np.arange(len(times)) * fps.denominator / fps.numerator
    lasts = len(uneven_steps(exact, fps)) > 0
    if lasts:
        said = f"{shown(notes.path)}: the episode is so long that float32 timestamps, even "
        said += "exact ones, are not 1 / fps apart."
    notes.say("uneven-times", said, helps=(DROP,) if lasts else None)
    return False


def _steady_rate(times: npt.NDArray[Any]) -> str | None:
    """Return the one frame rate of an episode's timestamps, from 0 on; None if there is none."""
    seconds = float(times[-1])
    if not 0 < seconds < np.inf:
        return None
    found = (len(times) - 1) / seconds
    rate = next((text for text in _BROADCAST_RATES if abs(found - float(text)) < 1e-3), None)
    rate = rate or f"{found:.4g}"
    expected = np.arange(len(times)) / float(rate)
    return rate if (np.abs(times - expected) < LEROBOT_TOLERANCE_SECONDS).all() else None


@contextmanager
def _numbers_or_said(code: str, notes: ObservationLog) -> Iterator[None]:
    """Report that a column has no number in each row, whatever its values are."""
    try:
        yield
    except UnreadableSourceError as error:
        if not isinstance(error.__cause__, TypeError):
            raise
        said = f"{shown(notes.path)} cannot be used as it is: {shown(str(error.__cause__))}."
        notes.say(code, said, severity="error", is_acceptable=False)


def _says_empty(file: DataFile, column: str, notes: ObservationLog) -> bool:
    """Report the number of rows without a value in a column; return whether there are any."""
    empty = file.null_count(column)
    if empty:
        code = column.replace("_", "-")
        notes.say(code, f"{shown(notes.path)} has {count(empty, 'row')} without {column}.")
    return bool(empty)


def _extremes(
    file: DataFile, extremes: Extremes, column: str, code: str, notes: ObservationLog
) -> tuple[float, float] | None:
    """Return the least and the greatest number of a column with at least one row.

    None if the column has no number in each row, which is reported.
    """
    found = extremes.get(column)
    # A footer ignores NaN. A column of indices with fractions is rare enough to be read.
    if found is None or isinstance(found[0], float):
        found = None
        with _numbers_or_said(code, notes):
            (values,) = file.numbers(column)
            if column not in _COUNTED or (values == np.rint(values)).all():
                found = values.min().item(), values.max().item()
            elif column == "frame_index":  # that of index is reported once all tables are known
                said = f"{shown(notes.path)} has values of {column} that are not whole numbers."
                notes.say(code, said)
    return found


def _index(value: float) -> int:
    """Return a number as an index; `NO_INDEX` if it cannot be one."""
    is_index = -NO_INDEX > value > NO_INDEX and value == int(value)
    return int(value) if is_index else NO_INDEX


def _span(least: float, greatest: float) -> str:
    said = [f"{value:g}" if isinstance(value, float) else str(value) for value in (least, greatest)]
    return said[0] if least == greatest else " to ".join(said)


class StatsCheck:
    """Checks the statistics of episodes: whether they add up, and whether they fit the data.

    Attributes:
        features: The declared features that have statistics.
    """

    def __init__(self, features: Mapping[str, Mapping[str, Any]], path: str = STATS_PATH) -> None:
        self._path = path
        declared = {name: ft for name, ft in features.items() if ft["dtype"] not in TEXT_DTYPES}
        self._visual = [name for name, ft in declared.items() if ft["dtype"] in VISUAL_DTYPES]
        self.features = [*(name for name in declared if name not in self._visual), *self._visual]
        # Number of values in a statistic, where it is known.
        self._sizes = {
            name: shape[0]
            for name, ft in declared.items()
            if name not in self._visual and isinstance(shape := ft.get("shape"), list)
            if len(shape) == 1 and type(shape[0]) is int and shape[0]
        }
        # Features whose extremes are in a footer.
        self._compared = [
            name
            for name, ft in declared.items()
            if name not in self._visual and ft["dtype"] not in _UNSIGNED_DTYPES
        ]

    def __call__(
        self,
        block: StatsBlock,
        episodes: Sequence[int],
        notes: ObservationLog,
        found: Sequence[tuple[int, Extremes]] = (),
    ) -> None:
        """Check the statistics of some episodes.

        Args:
            block: The statistics.
            episodes: The episodes.
            notes: Receives the observations.
            found: The number of rows of each, and the extremes of its columns, as far as known.
        """
        missing, stale = notes.missing_stats, notes.stale_stats
        is_sound = self.finds_nothing(block)
        for episode, stats in zip(episodes, () if is_sound else block.rows, strict=not is_sound):
            notes.episode = episode
            for name in self.features:
                values = (stats or {}).get(name) or {}
                if not self._is_sound(name, values):
                    self._say_unsound(stats or {}, name, notes)
                    missing.setdefault(name, []).append(episode)
                elif not _agree({key: np.asarray(values[key], float) for key in _BOUNDED}):
                    self._say_stale(name, "that contradict each other", notes)
                    stale.setdefault(name, []).append(episode)
            # Statistics of undeclared columns are copied, too.
            for name, values in (stats or {}).items():
                if name not in self.features and not adds_up(name, values, is_image=False):
                    self._say_unsound(stats or {}, name, notes, helps=("--recompute-stats",))
        stated = block.rows if found else ()
        for (rows, extremes), episode, stats in zip(found, episodes, stated, strict=False):
            notes.episode = episode
            for name in self._compared if extremes else ():
                if name not in extremes:
                    continue
                if episode in missing.get(name, ()) or episode in stale.get(name, ()):
                    continue
                if self._compare(name, (stats or {})[name], extremes[name], rows, notes):
                    stale.setdefault(name, []).append(episode)

    def finds_nothing(self, block: StatsBlock) -> bool:
        """Return whether the statistics of some episodes are right, apart from their extremes."""
        columns = block.columns
        if columns is None or not columns.keys() >= set(self.features):
            return False
        return all(
            FeatureStats(name, name in self._visual).takes(own)
            and _agree(own)
            and self._sizes.get(name) in (None, *own["min"].shape[1:2])
            for name, own in columns.items()
        )

    def _is_sound(self, name: str, values: Any) -> bool:
        is_table = isinstance(values, dict)
        if not is_table or not all(type(values.get(key)) is list for key in REQUIRED_STATS):
            return False
        size = len(values["min"])
        return size == self._sizes.get(name, size) > 0 and adds_up(
            name, values, is_image=name in self._visual
        )

    def _say_unsound(
        self,
        stats: Mapping[str, Any],
        name: str,
        notes: ObservationLog,
        helps: tuple[str, ...] | None = None,
    ) -> None:
        what = "not numbers in the right shape" if name in stats else "not there"
        notes.sight(
            "missing-stats",
            f"The statistics of {shown(name)} for episode {notes.episode} are {what} in "
            f"{self._path}.",
            feature=name,
            path=self._path,
            helps=helps,
        )

    def _compare(
        self,
        name: str,
        entry: Mapping[str, Any],
        extremes: tuple[float, float],
        rows: int,
        notes: ObservationLog,
    ) -> bool:
        """Report stale statistics; return whether they are stale."""
        counted = entry["count"][0]
        try:
            if (min(entry["min"]), max(entry["max"]), counted) == (*extremes, rows):
                return False
        except TypeError:
            pass  # nested
        lows = [value for value in _numbers(entry["min"]) if math.isfinite(value)]
        highs = [value for value in _numbers(entry["max"]) if math.isfinite(value)]
        least, greatest = min(lows, default=math.nan), max(highs, default=math.nan)
        if _differ(least, extremes[0]) or _differ(greatest, extremes[1]):
            said = f"from {least:g} to {greatest:g}, but the data goes from "
            said += f"{extremes[0] + 0.0:g} to {extremes[1] + 0.0:g}"  # not -0
        elif counted != rows:
            said = f"of {shown(counted)} frames, but the table has {rows}"
        else:
            return False
        self._say_stale(name, said, notes)
        return True

    def _say_stale(self, name: str, said: str, notes: ObservationLog) -> None:
        notes.sight(
            "stale-stats",
            f"The statistics of {shown(name)} do not fit the data: for episode "
            f"{notes.episode}, {self._path} has statistics {said}.",
            feature=name,
            path=self._path,
        )


def _agree(own: Mapping[str, npt.NDArray[Any]]) -> bool:
    """Return whether data can have these statistics of a feature, of one episode or several."""
    low, high, mean, std = (own[key].astype(np.float64) for key in _BOUNDED)
    with np.errstate(invalid="ignore", over="ignore"):
        slack = _SLACK * (np.abs(low) + np.abs(high)) + _ABSOLUTE_TOLERANCE
        fits = (low - slack <= mean) & (mean <= high + slack)
        fits &= (std >= 0) & (std <= high - low + slack)
    # Data that are not finite have such statistics.
    fits |= ~(np.isfinite(low) & np.isfinite(high)) & ~np.isfinite(mean) & ~np.isfinite(std)
    return bool(fits.all())


def _differ(stated: float, found: float) -> bool:
    """Return whether two extremes differ by more than rounding. NaN never does."""
    if math.isnan(stated) or not math.isfinite(found):
        return False
    return not math.isclose(stated, found, rel_tol=_RELATIVE_TOLERANCE, abs_tol=_ABSOLUTE_TOLERANCE)


def _numbers(value: object, depth: int = 0) -> Iterator[float]:
    """Yield the numbers in a nested list."""
    if isinstance(value, int | float):
        try:
            yield float(value)
        except OverflowError:
            yield math.inf
    elif isinstance(value, list) and depth < _MAX_DEPTH:
        items: Iterable[object] = value
        for item in items:
            yield from _numbers(item, depth + 1)
