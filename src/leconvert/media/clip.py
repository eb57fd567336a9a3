"""The index of a clip as a value, and facts about its samples that need no reading."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from struct import unpack_from

import numpy as np
import numpy.typing as npt

from leconvert.media.boxes import broken, unreadable
from leconvert.model.values import Misfit

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

# The first four numbers of a display matrix (ISO/IEC 14496-12, 6.2.2), in 16.16.
_ROTATIONS = {
    (0x10000, 0, 0, 0x10000): 0,
    (0, 0x10000, -0x10000, 0): 90,
    (-0x10000, 0, 0, -0x10000): 180,
    (0, -0x10000, 0x10000, 0): 270,
}
_READ_BYTES = 4 * 1024**2
_SAMPLES_A_SUM = 1024
_SAFE_PRODUCT = 2**62
_FIT = Misfit(0)
_LEROBOT_TOLERANCE_SECONDS = 1e-4


# Names that FFmpeg, its encoders and MP4 use for the same codec.
_CODECS = {
    "h264": ("avc1", "avc3", "avc", "x264", "libx264", "h264_nvenc", "h264_videotoolbox"),
    "hevc": ("hvc1", "hev1", "h265", "x265", "libx265", "hevc_nvenc", "hevc_videotoolbox"),
    "av1": ("av01", "libsvtav1", "libaom-av1", "svt-av1", "libdav1d", "av1_nvenc"),
    "vp9": ("vp09", "libvpx-vp9"),
    "vp8": ("vp08", "libvpx"),
    "mpeg4": ("mp4v", "libxvid"),
    "ffv1": ("FFV1",),
    "mjpeg": ("jpeg", "mjpg"),
}
_CODEC_OF = {alias.lower(): codec for codec, names in _CODECS.items() for alias in (codec, *names)}


def codec_of(name: str) -> str | None:
    """Return FFmpeg's name of a codec, given any of its names; None if it is not known."""
    return _CODEC_OF.get(name.lower())


@dataclass(slots=True, eq=False)
class ClipIndex:
    """The index of a clip's one video track; arrays have shape (S,), in decode order.

    Guaranteed: every sample lies inside the file as it was when the index was read, no two samples
    have the same presentation time, at least one is a keyframe, and the samples' bytes together do
    not exceed the file. Not guaranteed: that the samples decode, and that the file stays unchanged.
    Do not change an index. Arrays that two numbers describe in a plain clip are made when they are
    needed.

    Attributes:
        path: The file.
        file_size_bytes: Its size.
        timescale: Ticks a second of the times below.
        sizes: Bytes of each sample.
        num_bytes: Sum of the sizes.
        unindexed_bytes: Bytes of the media data beyond that sum; 0 if another track has a part of
            it. Muxers leave no such bytes, and leconvert leaves only zeros; otherwise the index may
            be damaged (`may_be_damaged`, `check_decodes`).
        places: Offset of each sample in the file; a plain number is the offset of the first sample
            if all others follow without gaps.
        step: Ticks from each sample to the next in decode order; 0 if they differ.
        shown: Presentation times in ticks with the edit list applied: usually the first frame is at
            0.
        keyframes: Whether decoding can start at the sample.
        sample_entry: The stored sample entry, box header included.
        config_key: Clips with equal keys can share one file; see ``config_digest``.
        other_tracks: Handler types of tracks that are left out, such as ``soun``.
        geometry: Display matrix, width and height of the track as in ``tkhd``, 44 bytes.
        duration: Ticks of all samples together, by the table of decode times. Readers compute the
            average frame rate from it.
    """

    path: str
    file_size_bytes: int
    timescale: int
    sizes: IntArray
    num_bytes: int
    unindexed_bytes: int
    places: IntArray | int
    step: int
    shown: IntArray | range
    keyframes: BoolArray
    sample_entry: bytes
    config_key: str
    other_tracks: tuple[str, ...]
    geometry: bytes
    duration: int
    _offsets: IntArray | None = field(default=None, init=False, repr=False)
    _sums: IntArray | None = field(default=None, init=False, repr=False)
    _presentation_times: IntArray | None = field(default=None, init=False, repr=False)
    _cuts: BoolArray | None = field(default=None, init=False, repr=False)
    _ranks: IntArray | None = field(default=None, init=False, repr=False)

    @property
    def num_samples(self) -> int:
        """Number of coded samples, S."""
        return len(self.sizes)

    @property
    def codec(self) -> str:
        """Four characters, such as ``avc1`` or ``av01``."""
        return self.sample_entry[4:8].decode("latin-1")

    @property
    def width(self) -> int:
        """Coded width in pixels."""
        return int.from_bytes(self.sample_entry[32:34])

    @property
    def height(self) -> int:
        """Coded height in pixels."""
        return int.from_bytes(self.sample_entry[34:36])

    @property
    def rotation(self) -> int | None:
        """Clockwise rotation of the shown frames in degrees; None for any other matrix."""
        a, b, _, c, d = unpack_from(">5i", self.geometry)
        return _ROTATIONS.get((a, b, c, d))

    @property
    def offsets(self) -> IntArray:
        """Offset of each sample in the file."""
        if self._offsets is None:
            if isinstance(self.places, int):
                self._offsets = self.sizes.cumsum()
                self._offsets -= self.sizes
                self._offsets += self.places
            else:
                self._offsets = self.places
        return self._offsets

    @property
    def presentation_times(self) -> IntArray:
        """Ticks with the edit list applied: usually the first frame is at 0."""
        if self._presentation_times is None:
            self._presentation_times = as_array(self.shown)
        return self._presentation_times

    @property
    def ranks(self) -> IntArray:
        """Rank of each sample in the order of presentation, shape (S,)."""
        if self._ranks is None:
            if isinstance(self.shown, range):
                self._ranks = np.arange(len(self.shown))
            else:
                self._ranks = presentation_ranks(self.shown)
        return self._ranks

    def byte_runs(self, first: int, stop: int) -> list[tuple[int, int]]:
        """Return start and length in bytes of the ranges of samples ``first`` to ``stop``.

        Samples that follow each other in the file share a range; ranges are in the order of
        samples.
        """
        if first >= stop:
            return []
        if isinstance(self.places, int) and stop - first == len(self.sizes):
            return [(self.places, self.num_bytes)]
        sizes = self.sizes[first:stop]
        if isinstance(self.places, int):
            return [(self.places + self._bytes_before(first), int(np.add.reduce(sizes)))]
        offsets = self.places[first:stop]
        breaks = np.flatnonzero(offsets[1:] != offsets[:-1] + sizes[:-1])
        if not len(breaks):
            return [(int(offsets[0]), int(np.add.reduce(sizes)))]
        heads = np.concatenate(([0], breaks + 1))
        lengths = np.add.reduceat(sizes, heads)
        return list(zip(offsets[heads].tolist(), lengths.tolist(), strict=True))

    def _bytes_before(self, sample: int) -> int:
        """Return the bytes of all samples before one. Offsets would take 8 bytes a sample."""
        if self._sums is None:
            blocks = range(0, len(self.sizes), _SAMPLES_A_SUM)
            self._sums = np.add.reduceat(self.sizes, blocks).cumsum()
        block = sample // _SAMPLES_A_SUM
        before = int(self._sums[block - 1]) if block else 0
        return before + int(np.add.reduce(self.sizes[block * _SAMPLES_A_SUM : sample]))

    def reordering(self, first: int, stop: int) -> npt.NDArray[np.int32] | None:
        """Return the rank within samples ``first`` to ``stop`` minus the position in decode order.

        None means that the samples are shown in decode order.
        """
        if isinstance(self.shown, range):
            return None
        times = self.shown[first:stop]
        if not np.count_nonzero(times[1:] < times[:-1]):
            return None
        return (presentation_ranks(times) - np.arange(stop - first)).astype(np.int32)

    def can_cut(self, sample: int) -> bool:
        """Return whether all samples before ``sample`` are shown before all others."""
        if isinstance(self.shown, range) or not 0 < sample < len(self.shown):
            return True
        if self._cuts is None:
            latest = np.maximum.accumulate(self.shown[:-1])
            earliest = np.minimum.accumulate(self.shown[:0:-1])[::-1]
            self._cuts = latest <= earliest
        return bool(self._cuts[sample - 1])

    def misfit(self, fps: Fraction) -> Misfit:
        """Return why LeRobot would not find every frame in this file unchanged; nothing if it does.

        Its decoder torchcodec takes the frame at time *i* / average rate as frame *i*, and refuses
        all frames of a clip that starts later. PyAV takes the nearest frame, which is a wrong one
        if times are uneven. So every frame must have the same duration and the first must be at 0.
        The last must be less than 1e-4 s from its time at ``fps``, also if both times are rounded
        to single precision as LeRobot rounds them.
        """
        found = Misfit.OTHER_TRACKS if self.other_tracks else _FIT
        if self._is_at_rate(fps):
            return found
        count = self.num_samples
        times = self.shown if isinstance(self.shown, range) else np.sort(self.shown)
        first, last = int(times[0]), int(times[-1])
        if first:
            found |= Misfit.LATE_START
        step, rest = divmod(self.duration, count)
        is_even = not rest and last - first == step * (count - 1)
        if is_even and not isinstance(times, range):
            is_even = bool((times[1:] - times[:-1] == step).all())
        if not is_even or not step:
            return found | Misfit.UNEVEN_TIMES
        # The frame rate of the file, against the dataset's.
        if step * fps.numerator != self.timescale * fps.denominator:
            seconds = Fraction(count - 1) / fps
            off = abs(Fraction(step * (count - 1), self.timescale) - seconds)
            rounding = float(np.spacing(np.float32(seconds)))
            if float(off) + rounding >= _LEROBOT_TOLERANCE_SECONDS:
                found |= Misfit.OTHER_RATE
        return found

    def _is_at_rate(self, fps: Fraction) -> bool:
        """Return whether each frame is at exactly rank / ``fps``, with equal durations."""
        times = self.shown
        return (
            isinstance(times, range)
            and not times.start
            and times.step * fps.numerator == self.timescale * fps.denominator
            and times.step * len(times) == self.duration
        )

    def begins_at(self, sample: int) -> bool:
        """Return whether a cut beginning here decodes by itself, and shows this frame first."""
        is_first = bool(self.keyframes[sample]) and self.ranks[sample] == sample
        return is_first and self.can_cut(sample)

    def cut_around(
        self, first: int, stop: int, *, begin: int = 0, end: int | None = None
    ) -> tuple[int, int] | None:
        """Return the shortest cut from which some frames decode.

        Args:
            first: The first frame, in the order of presentation.
            stop: The frame after the last.
            begin: No sample before this one is taken.
            end: No sample from this one on is taken; None for no limit.

        Returns:
            The first sample, which is a keyframe from which on all frames are shown, and the sample
            after the last; None if there is no such cut.
        """
        heads = np.flatnonzero(self.keyframes[begin : first + 1]) + begin
        last = self.num_samples if end is None else min(end, self.num_samples)
        head = next((at for at in heads[::-1].tolist() if self.begins_at(at)), None)
        tail = next((at for at in range(stop, last + 1) if self.can_cut(at)), None)
        return None if head is None or tail is None else (head, tail)

    def false_keyframes(self, first: int, stop: int) -> list[int]:
        """Return the samples that are listed as keyframes although no decoder can start at them.

        Encoders that refresh a picture gradually over many frames (intra refresh) list the frames
        at which the refresh begins, and some programs write a wrong table. The samples are read,
        not decoded. For unknown codecs the list is empty.

        Raises:
            UnreadableSourceError: The file cannot be read.
        """
        starts = _STARTS.get(codec_of(self.codec) or "")
        if starts is None:
            return []
        try:
            with open(self.path, "rb", buffering=0) as file:  # noqa: PTH123 (unbuffered, by name)
                return [
                    sample
                    for sample in (np.flatnonzero(self.keyframes[first:stop]) + first).tolist()
                    if not starts(
                        os.pread(file.fileno(), int(self.sizes[sample]), int(self.offsets[sample])),
                        self.sample_entry,
                    )
                ]
        except OSError as error:
            raise unreadable(self.path, error) from error

    def frames_off_their_place(self, fps: Fraction) -> IntArray:
        """Return ranks of frames whose stored time is half a frame or more from rank / ``fps``."""
        nowhere = np.empty(0, np.int64)
        if self._is_at_rate(fps):
            return nowhere
        # |time / timescale - rank / fps| >= 1 / (2 fps), in integers:
        # |2 time fps.num - 2 rank timescale fps.den| >= timescale fps.den
        frame = self.timescale * fps.denominator
        twice = 2 * fps.numerator
        if isinstance(self.shown, range):
            # The error is a linear function of the rank, so it is largest at one of the ends.
            last = len(self.shown) - 1
            ends = (self.shown[0] * twice, self.shown[last] * twice - 2 * last * frame)
            if max(ends) < frame and min(ends) > -frame:
                return nowhere
        times = np.sort(self.presentation_times)
        largest = max(abs(int(times[0])), abs(int(times[-1])))
        if largest * twice + 2 * len(times) * frame >= _SAFE_PRODUCT:
            times = times.astype(object)
        off = np.abs(times * twice - np.arange(len(times)).astype(times.dtype) * (2 * frame))
        return np.flatnonzero(off >= frame)


def presentation_ranks(presentation_times: IntArray) -> IntArray:
    """Return the rank of each time in ascending order; equal times keep their order."""
    order = np.argsort(presentation_times, kind="stable")
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    return ranks


def order_digest(
    sizes: IntArray, keyframes: BoolArray, lead: npt.NDArray[np.signedinteger] | None
) -> str:
    """Return a digest of the facts that a join must preserve besides the coded bytes.

    Args:
        sizes: Bytes of each sample, shape (S,).
        keyframes: Whether decoding can start at the sample, shape (S,).
        lead: The result of `ClipIndex.reordering`.

    Returns:
        16 hexadecimal digits (BLAKE2b).
    """
    digest = hashlib.blake2b(np.ascontiguousarray(sizes, np.int64), digest_size=8)
    digest.update(np.packbits(keyframes))
    if lead is not None and np.count_nonzero(lead):
        digest.update(np.ascontiguousarray(lead, np.int32))
    return digest.hexdigest()


def samples_sha256(index: ClipIndex, first: int = 0, stop: int | None = None) -> str:
    """Return the SHA-256 of coded samples, concatenated in decode order.

    Raises:
        UnreadableSourceError: The file cannot be read, or is shorter than its index says.
    """
    digest = hashlib.sha256()
    first, stop, _ = slice(first, stop).indices(index.num_samples)
    runs = index.byte_runs(first, stop)
    try:
        with open(index.path, "rb", buffering=0) as file:  # noqa: PTH123 (unbuffered, by name)
            for piece in _pieces(file.fileno(), runs, index.path):
                digest.update(piece)
    except OSError as error:
        raise unreadable(index.path, error) from error
    return digest.hexdigest()


def _pieces(descriptor: int, runs: list[tuple[int, int]], path: str) -> Iterator[memoryview]:
    longest = max((length for _, length in runs), default=1)
    buffer = memoryview(bytearray(min(_READ_BYTES, longest)))
    for start, length in runs:
        done = 0
        while done < length:
            room = buffer[: min(len(buffer), length - done)]
            count = os.preadv(descriptor, [room], start + done)
            if not count:
                raise broken(path, "it is shorter than its index says")
            yield room[:count]
            done += count


def as_array(times: IntArray | range) -> IntArray:
    """Return times as an array."""
    if isinstance(times, range):
        return np.arange(times.start, times.stop, times.step)
    return times


# Whether a decoder can start at a sample, by its first bits. A sample whose bits make no sense, or
# begin in an unknown way, counts as a start.


_IDR, _SLICE = 5, 1  # NAL units of H.264
_INTRA_SLICES = frozenset({2, 4, 7, 9})  # I and SI
_FRAME_HEADER, _FRAME = 3, 6  # units of AV1
_VOP = b"\0\0\1\xb6"


def _starts_h264(sample: bytes, entry: bytes) -> bool:
    units = _units(sample, entry, b"avcC", 4)
    kinds = {unit[0] & 0x1F for unit in units}
    if _IDR in kinds or _SLICE not in kinds:
        return True
    return all(_slice_type(unit[1:]) in _INTRA_SLICES for unit in units if unit[0] & 0x1F == _SLICE)


def _slice_type(header: bytes) -> int:
    """Return the second number in a slice's header; both are Exp-Golomb codes."""
    bits = f"{int.from_bytes(header[:16]):0{8 * len(header[:16])}b}"
    value = at = 0
    for _ in range(2):
        zeros = bits.find("1", at) - at
        at += 2 * zeros + 1
        value = int(bits[at - zeros - 1 : at] or "1", 2) - 1
    return value


def _starts_hevc(sample: bytes, entry: bytes) -> bool:
    kinds = [unit[0] >> 1 & 0x3F for unit in _units(sample, entry, b"hvcC", 21)]
    pictures = [kind for kind in kinds if kind < 32]
    return not pictures or all(16 <= kind <= 23 for kind in pictures)


def _units(sample: bytes, entry: bytes, config: bytes, place: int) -> list[bytes]:
    """Return the NAL units of a sample; the decoder's configuration gives the lengths' width."""
    at = entry.find(config) + 4 + place
    width = (entry[at] & 3) + 1 if 4 + place <= at < len(entry) else 4
    units, at = [], 0
    while at + width < len(sample):
        size_bytes = int.from_bytes(sample[at : at + width])
        at += width
        if size_bytes:
            units.append(sample[at : at + size_bytes])
        at += size_bytes
    return units


def _starts_av1(sample: bytes, _: bytes) -> bool:
    at = 0
    while at + 1 < len(sample):
        head = sample[at]
        kind, at = head >> 3 & 15, at + 1 + (head >> 2 & 1)
        size_bytes, shift = len(sample) - at, 0
        if head & 2:  # its size follows, 7 bits a byte
            size_bytes = 0
            while at < len(sample):
                byte, at = sample[at], at + 1
                size_bytes |= (byte & 0x7F) << shift
                shift += 7
                if byte < 0x80:
                    break
        if kind in (_FRAME_HEADER, _FRAME) and at < len(sample):
            # A new frame rather than one that is shown again, and a key frame.
            return sample[at] >> 5 == 0
        at += size_bytes
    return True


def _starts_vp9(sample: bytes, _: bytes) -> bool:
    head = sample[0] if sample else 0
    is_longer = head & 0x30 == 0x30  # profile 3 has a reserved bit
    return (head << 1 if is_longer else head) & 0x0C == 0


def _starts_mpeg4(sample: bytes, _: bytes) -> bool:
    at = sample.find(_VOP) + len(_VOP)
    return not len(_VOP) <= at < len(sample) or sample[at] >> 6 == 0


_STARTS: Mapping[str, Callable[[bytes, bytes], bool]] = {
    "h264": _starts_h264,
    "hevc": _starts_hevc,
    "av1": _starts_av1,
    "vp9": _starts_vp9,
    "mpeg4": _starts_mpeg4,
}
