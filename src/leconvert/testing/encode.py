"""Encode frames into a small MP4 clip: for generated datasets, tests and the demo.

A conversion never encodes; with this module the package can make its own input.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from leconvert.support.errors import UsageError
from leconvert.support.machine import own_scheduling

ENCODERS = ("libsvtav1", "libvpx-vp9", "libx264", "libx265", "mpeg4")
"""Encoders that are known to work here."""

# One encoder thread each: the split of a frame over threads decides its bytes, and the number of
# threads would otherwise depend on the machine's cores. If FFmpeg's own thread count does not reach
# the encoder, its private option does. Without bframes=0, x265 gives the only frame of a clip a
# random decode time. x264's macroblock tree gives small frames one of several sizes, depending on
# earlier contents of memory: 175 of 1,500 encodings of seven frames of 64x48 differed, without it
# none.
_DEFAULT_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "libx264": {"x264-params": "mbtree=0"},
    "libsvtav1": {"svtav1-params": "lp=1"},
    "libx265": {"x265-params": "pools=none:frame-threads=1:log-level=error:bframes=0"},
}


def encode_clip(
    path: str | Path,
    frames: Iterable[npt.NDArray[np.uint8]],
    *,
    fps: Fraction,
    codec: str = "libx264",
    gop_size: int = 2,
    options: Mapping[str, str] | None = None,
    pixel_format: str = "yuv420p",
) -> int:
    """Encode frames into an MP4 file, replacing an existing one.

    Frame *i* is shown at exactly *i*/fps. The same frames and options give the same bytes with the
    same FFmpeg, for any number of cores.

    Args:
        path: The file.
        frames: RGB pixels, uint8 of shape (height, width, 3); height and width must be even.
        fps: Frames a second.
        codec: FFmpeg's name of the encoder.
        gop_size: Frames from one keyframe to the next.
        options: Private options of the encoder.
        pixel_format: FFmpeg's name of the stored pixel format.

    Returns:
        The number of frames written.

    Raises:
        UsageError: There are no frames, their shapes differ, or the encoder is missing.
    """
    import av

    # SVT-AV1 prints a line to stderr for every clip; only this variable sets its log level (1:
    # errors).
    os.environ.setdefault("SVT_LOG", "1")
    merged = dict(_DEFAULT_OPTIONS.get(codec, {}))
    for name, value in (options or {}).items():
        merged[name] = f"{merged[name]}:{value}" if name in merged else value
    if fps <= 0:
        raise UsageError(f"cannot encode {path}: {fps} frames a second make no sense")
    count = 0
    with own_scheduling(), av.open(str(path), "w", format="mp4") as container:
        try:
            stream: Any = container.add_stream(codec, rate=fps, options=merged)
        except (av.codec.codec.UnknownCodecError, ValueError) as error:
            raise UsageError(
                f"cannot encode {path}: this FFmpeg has no video encoder {codec!r}",
                path=str(path),
                next_step=f"Choose one of {', '.join(ENCODERS)}.",
            ) from error
        stream.pix_fmt = pixel_format
        stream.time_base = 1 / fps
        stream.codec_context.gop_size = gop_size
        stream.codec_context.thread_count = 1
        shape: tuple[int, ...] | None = None
        for image in frames:
            if shape is None:
                shape = image.shape
                _check_image(path, image)
                stream.height, stream.width = shape[:2]
            elif image.shape != shape:
                raise UsageError(
                    f"cannot encode {path}: frame {count} has shape {image.shape}, not {shape}"
                )
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
            frame.pts = count
            frame.time_base = 1 / fps
            frame.duration = 1  # a clip of one frame has no other source of its duration
            container.mux(stream.encode(frame))
            count += 1
        if count == 0:
            raise UsageError(f"cannot encode {path}: there are no frames", path=str(path))
        container.mux(stream.encode(None))
    return count


def _check_image(path: str | Path, image: npt.NDArray[np.uint8]) -> None:
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise UsageError(
            f"cannot encode {path}: frames must be uint8 of shape (height, width, 3), "
            f"not {image.dtype} of shape {image.shape}"
        )
    if image.shape[0] % 2 or image.shape[1] % 2:
        raise UsageError(
            f"cannot encode {path}: height and width must be even, not "
            f"{image.shape[0]} and {image.shape[1]}"
        )
