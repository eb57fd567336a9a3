"""What a clip's header says about its pictures, against what ``info.json`` declares."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from leconvert import media
from leconvert.source.seen import Notes, shown

__all__ = ["ClipCheck", "declared_video", "pixel_format"]

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
    """

    def __init__(self, feature: Mapping[str, Any]) -> None:
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
        said = []
        codec = _CODEC_OF.get(clip.codec.lower())
        if declared.codec and codec and _CODEC_OF.get(declared.codec.lower()) != codec:
            said.append(f"codec {codec} ({shown(declared.codec)} is declared)")
        pixels = pixel_format(clip)
        if declared.pixel_format and pixels and _plain(declared.pixel_format) != pixels:
            said.append(f"pixel format {pixels} ({shown(declared.pixel_format)} is declared)")
        if step and declared.rate is not None:
            rate = clip.timescale / step
            if abs(rate - declared.rate) > _RATE_TOLERANCE * rate:
                said.append(f"{rate:g} frames a second ({declared.rate:g} are declared)")
        if said:
            yield "codec-mismatch", f"has {', '.join(said)}."
        shape, size = declared.shape, (clip.height, clip.width)
        if len(shape) == 3 and shape[:2] != size:
            text = f"{list(shape)} is declared"
            if shape[1:] == size:
                text += ", with channels first"
            yield "shape-mismatch", f"has frames of {clip.height} x {clip.width}, {text}."


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
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < 1e6:
        rate = None
    return _Declared(
        codec if isinstance(codec, str) and codec.lower() in _CODEC_OF else None,
        pixels if isinstance(pixels, str) else None,
        None if rate is None else float(rate),
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
