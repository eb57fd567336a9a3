"""What a figure was measured with: versions, the host, and the videos themselves."""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

from leconvert._version import __version__

__all__ = [
    "PACKETS_LOOKED_AT",
    "VideoFacts",
    "cores",
    "host_record",
    "package_version",
    "versions_record",
    "video_facts",
]

_PACKAGES = ("torch", "torchcodec", "lerobot", "datasets", "av", "numpy", "pyarrow", "psutil")
PACKETS_LOOKED_AT = 500
"""Packets of a video that tell how far apart keyframes are."""


@dataclass(frozen=True, slots=True)
class VideoFacts:
    """How one camera was coded, as its first file says.

    Attributes:
        codec: FFmpeg's name of the decoder, such as ``h264`` or ``av1``.
        gop: Frames from one keyframe to the next: the commonest distance; None with one keyframe.
        width: Columns.
        height: Rows.
        pixel_format: FFmpeg's name, such as ``yuv420p``.
        has_b_frames: Whether frames are shown in another order than they are stored.
    """

    codec: str
    gop: int | None
    width: int
    height: int
    pixel_format: str
    has_b_frames: bool

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-serialisable mapping."""
        return asdict(self)


def video_facts(file: BinaryIO) -> VideoFacts:
    """Read how a video is coded from its header and its first packets; nothing is decoded.

    Raises:
        av.error.FFmpegError: It is no video that FFmpeg reads.
    """
    import av

    keyframes: list[int] = []
    reordered = False
    with av.open(file, "r") as container:
        stream = container.streams.video[0]
        for number, packet in enumerate(container.demux(stream)):
            if not packet.size or number >= PACKETS_LOOKED_AT:
                break
            reordered |= packet.pts != packet.dts
            if packet.is_keyframe:
                keyframes.append(number)
        context = stream.codec_context
        name, pixels = str(context.codec.canonical_name), str(context.pix_fmt)
        width, height = int(context.width), int(context.height)
    gaps = Counter(after - before for before, after in pairwise(keyframes))
    gop = gaps.most_common(1)[0][0] if gaps else None
    return VideoFacts(name, gop, width, height, pixels, reordered)


def package_version(package: str) -> str | None:
    """Return an installed package's version without importing it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def versions_record(version_of: Callable[[str], str | None] = package_version) -> dict[str, Any]:
    """Return the versions of everything that loads, None for what is not installed."""
    return {
        "leconvert": __version__,
        "python": platform.python_version(),
        **{package: version_of(package) for package in _PACKAGES},
    }


def cores() -> int:
    """Return how many cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS has no affinity
        return os.cpu_count() or 1


def host_record() -> dict[str, Any]:
    """Return what is known about this machine."""
    import psutil

    return {
        "name": platform.node(),
        "cpu": _cpu_name(),
        "cores": cores(),
        "memory_bytes": int(psutil.virtual_memory().total),
        "kernel": platform.release(),
    }


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
