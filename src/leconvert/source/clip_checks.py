"""What a clip's header says about its pictures, against what ``info.json`` declares."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

from leconvert import media
from leconvert.source.seen import Notes, shown

__all__ = ["ClipCheck", "ClipFacts", "declared_as_encoded", "declared_video", "pixel_format"]

# What FFmpeg, its encoders and MP4 call the same codec.
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
_RATE_TOLERANCE = 0.01
_KEPT_CONFIGS = 256
_LAST_NAMES = ("channel", "channels")


class ClipFacts(NamedTuple):
    """What a clip's header says of its pictures; None where it does not."""

    codec: str | None
    pixel_format: str | None
    height: int
    width: int

    @classmethod
    def of(cls, clip: media.ClipIndex) -> ClipFacts:
        """Return those of a clip."""
        codec = _CODEC_OF.get(clip.codec.lower())
        return cls(codec, pixel_format(clip), clip.height, clip.width)

    @property
    def channels(self) -> int | None:
        """Colour channels of a frame; None where that is not known, or how to count gray."""
        has_colour = self.pixel_format is not None and self.pixel_format.startswith("yuv")
        return 3 if has_colour else None


@dataclass(frozen=True, slots=True)
class _Declared:
    """What is declared of a camera; None and () where nothing, or nothing usable, is."""

    codec: str | None
    pixel_format: str | None
    rate: float | None
    shape: tuple[int, ...]


class ClipCheck:
    """Checks the clips of one camera; what equal configurations have in common is checked once.

    Args:
        feature: Its declaration.
        fps: Frames a second of the dataset, at which the result shows each clip.
    """

    def __init__(self, feature: Mapping[str, Any], fps: Fraction) -> None:
        self._feature = feature
        self._fps = fps
        self._declared = _declared(feature)
        self._known: dict[object, tuple[tuple[str, str], ...]] = {}

    def __call__(self, clip: media.ClipIndex, notes: Notes) -> None:
        """Say where a clip differs from the declaration."""
        step = clip.decoded.step if isinstance(clip.decoded, range) and clip.num_samples > 1 else 0
        kind = (clip.config_key, clip.timescale, step)
        differences = self._known.get(kind)
        if differences is None:
            if len(self._known) >= _KEPT_CONFIGS:
                self._known.clear()
            differences = self._known[kind] = tuple(self._differences(clip, step))
        for code, said in differences:
            notes.sight(code, f"{shown(notes.path)} {said}")

    def _differences(self, clip: media.ClipIndex, step: int) -> Iterator[tuple[str, str]]:
        declared = self._declared
        facts = ClipFacts.of(clip)
        video = declared_video(self._feature)
        right = _right_facts(video, facts, self._fps)
        said = []
        if "video.codec" in right:
            said.append(f"codec {facts.codec} ({shown(declared.codec)} is declared)")
        if "video.pix_fmt" in right:
            pixels = facts.pixel_format
            said.append(f"pixel format {pixels} ({shown(declared.pixel_format)} is declared)")
        said += [
            f"{key.removeprefix('video.')} {right[key]} ({shown(video[key])} is declared)"
            for key in ("video.height", "video.width", "video.channels")
            if key in right
        ]
        if declared.rate is not None:
            rate = clip.timescale / step if step else declared.rate
            if not _is_rate(declared.rate, rate):
                said.append(f"{rate:g} frames a second ({declared.rate:g} are declared)")
            elif "video.fps" in right:
                said.append(
                    f"{float(self._fps):g} frames a second in the result ({declared.rate:g} are "
                    "declared)"
                )
        if "has_audio" in right:
            said.append("no sound in the result (has_audio is declared)")
        if clip.rotation != 0:
            how = "mirrored" if clip.rotation is None else f"rotated by {clip.rotation} degrees"
            yield (
                "rotated-frames",
                f"is to be shown {how}: torchcodec does so, PyAV does not, so that LeRobot's "
                "frames depend on which of them decodes.",
            )
        if said:
            yield "codec-mismatch", f"has {', '.join(said)}."
        shape, size = declared.shape, (clip.height, clip.width)
        if len(shape) == 3 and shape[:2] != size:
            text = f"{list(shape)} is declared"
            if shape[1:] == size:
                text += ", with channels first"
            yield "shape-mismatch", f"has frames of {clip.height} x {clip.width}, {text}."
        elif facts.channels is not None and len(shape) == 3 and shape[2] != facts.channels:
            yield "shape-mismatch", f"has {facts.channels} channels, {list(shape)} is declared."


def declared_as_encoded(
    feature: Mapping[str, Any], facts: ClipFacts, fps: Fraction
) -> dict[str, Any]:
    """Return the declaration of a camera whose clips are as these facts say.

    What the source does not declare is not added, and what no header tells is kept. Shapes are
    (height, width, channels), as LeRobot writes them.

    Args:
        feature: Its declaration.
        facts: What most of its clips are.
        fps: Frames a second of the dataset.
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
        names = found.get("names")
        if not (isinstance(names, list) and len(names) == 3 and names[2] in _LAST_NAMES):
            found["names"] = ["height", "width", "channels"]
    return found


def _right_facts(video: Mapping[str, Any], facts: ClipFacts, fps: Fraction) -> dict[str, Any]:
    """Return what is declared otherwise than it is, by its key."""
    right: dict[str, Any] = {}
    codec, pixels = video.get("video.codec"), video.get("video.pix_fmt")
    named = _CODEC_OF.get(codec.lower()) if isinstance(codec, str) else None
    if named and facts.codec and named != facts.codec:
        right["video.codec"] = facts.codec
    if isinstance(pixels, str) and facts.pixel_format and _plain(pixels) != facts.pixel_format:
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
    """Return what a camera's declaration says about its encoding, ``info`` or ``video_info``."""
    for key in ("info", "video_info"):
        facts = feature.get(key)
        if isinstance(facts, dict):
            return facts
    return {}


def _declared(feature: Mapping[str, Any]) -> _Declared:
    facts = declared_video(feature)
    codec, pixels, rate = (facts.get(f"video.{key}") for key in ("codec", "pix_fmt", "fps"))
    shape = feature.get("shape")
    sizes = shape if isinstance(shape, list) else []
    return _Declared(
        codec if isinstance(codec, str) and codec.lower() in _CODEC_OF else None,
        pixels if isinstance(pixels, str) else None,
        _rate(rate),
        tuple(sizes) if all(type(size) is int for size in sizes) else (),
    )


def pixel_format(clip: media.ClipIndex) -> str | None:
    """Return FFmpeg's name of a clip's pixel format, from its decoder configuration.

    Read from ``av1C`` (AV1 in ISOBMFF, 2.3.3), ``hvcC`` and ``avcC`` (ISO/IEC 14496-15, 8.3.2 and
    5.3.3) and ``vpcC`` (VP codecs in ISOBMFF). None where they do not say.
    """
    for kind, read in _CONFIGURATIONS.items():
        place = clip.sample_entry.find(kind)
        if place > 0:
            try:
                chroma, bits = read(clip.sample_entry[place + 4 :])
            except (IndexError, KeyError):
                return None
            return _name(chroma, bits)
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
    if profile in (66, 77, 88):  # Baseline, Main and Extended know nothing else
        return "420", 8
    place = 6
    for _ in range(record[5] & 0x1F):
        place += 2 + int.from_bytes(record[place : place + 2], "big")
    count = record[place]
    place += 1
    for _ in range(count):
        place += 2 + int.from_bytes(record[place : place + 2], "big")
    chroma = _CHROMA[record[place] & 3]
    # FFmpeg decodes H.264 without colour to 4:2:0; either name may be declared.
    if chroma == "gray":
        raise KeyError(chroma)
    return chroma, 8 + (record[place + 1] & 7)


def _from_vp9(record: bytes) -> tuple[str, int]:
    flags = record[6]
    return {0: "420", 1: "420", 2: "422", 3: "444"}[flags >> 1 & 7], flags >> 4


_CONFIGURATIONS = {b"av1C": _from_av1, b"hvcC": _from_hevc, b"avcC": _from_avc, b"vpcC": _from_vp9}


def _name(chroma: str, bits: int) -> str:
    base = "gray" if chroma == "gray" else f"yuv{chroma}p"
    return base if bits == 8 else f"{base}{bits}le"


def _plain(name: str) -> str:
    """Return a declared pixel format without the range and byte order, which headers lack."""
    plain = re.sub(r"^yuvj", "yuv", name.strip().lower())
    return re.sub(r"(?<=\d\d)be$", "le", plain)
