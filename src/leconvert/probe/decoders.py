"""Frames of one video file by their number: PyAV on the CPU, torchcodec on a GPU.

On the CPU both give the same pictures, bit by bit. torchcodec seeks through FFmpeg's demuxer and
feeds the decoder on until the frame comes out by itself; where a decoder holds frames back, as that
of H.264 does, this decodes a frame or two that nobody asked for. PyAV is spared both.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any, Literal, Protocol

import numpy as np
import torch

from leconvert.errors import UsageError
from leconvert.model import IntArray
from leconvert.probe.clips import Clip, is_rate_close, undecodable
from leconvert.probe.pyav_decoder import Codecs, PyavDecoder

__all__ = ["Backend", "ClipDecoder", "choose_backend", "open_decoder"]

Backend = Literal["torchcodec", "pyav"]

# What torchcodec hands out at once; more is asked for in parts.
_MOST_BYTES = 16 * 1024**2
_FIRST_FRAMES = 16


class ClipDecoder(Protocol):
    """Decodes frames of one file; for one thread at a time."""

    def decode(self, ranks: IntArray) -> Iterator[tuple[slice, torch.Tensor]]:
        """Yield frames, a part at a time, in any order.

        Args:
            ranks: Which, as places in the order of presentation, ascending and distinct, shape
                (N,), N > 0.

        Yields:
            Places in ``ranks``, and their frames: uint8 of shape (n, H, W, 3), or for depth uint16
            codes of shape (n, H, W, 1). What was yielded before an error is right.

        Raises:
            UnreadableSourceError: One of them cannot be decoded, or another frame came out.
        """


@cache
def torchcodec_trouble() -> str | None:
    """Return why torchcodec does not load, or None where it does."""
    try:
        import torchcodec.decoders
    except (ImportError, OSError, RuntimeError) as error:
        return str(error).strip().partition("\n")[0] or repr(error)
    # From version 0.17 on it loads without FFmpeg, and fails when it first decodes.
    if getattr(torchcodec, "ffmpeg_major_version", 0) is None:
        return "it could not load FFmpeg"
    return None


def choose_backend(wanted: str, decode_device: str) -> Backend:
    """Return what to decode with.

    Args:
        wanted: ``auto``, ``torchcodec`` or ``pyav``.
        decode_device: ``cpu`` or ``cuda``, the latter with a number if need be.

    Raises:
        UsageError: What is wanted is not there, or cannot decode on that device.
    """
    if wanted not in {"auto", "torchcodec", "pyav"}:
        raise UsageError(f"There is no video backend {wanted!r}: auto, torchcodec or pyav.")
    device = torch.device(decode_device)
    # It takes its time to load, and most who decode on the CPU never need it.
    trouble = None if wanted != "torchcodec" and device.type == "cpu" else torchcodec_trouble()
    if device.type == "cuda":
        _check_cuda(wanted, trouble)
    elif device.type != "cpu":
        raise UsageError(f"Frames are decoded on cpu or cuda, not on {decode_device}.")
    if device.type == "cuda":
        return "torchcodec"
    if wanted == "torchcodec" and trouble is not None:
        raise UsageError(
            f"torchcodec does not load: {trouble}.",
            next_step="Install it (pip install 'leconvert[probe]') and FFmpeg's shared libraries, "
            "or decode with PyAV.",
        )
    if wanted == "torchcodec":
        return "torchcodec"
    # Here rather than in each worker: those that are forked have it then.
    import av  # noqa: F401

    return "pyav"


def _check_cuda(wanted: str, trouble: str | None) -> None:
    if wanted == "pyav" or trouble is not None:
        raise UsageError(
            "Only torchcodec decodes on a GPU"
            + (f", and it does not load: {trouble}." if trouble else ", not PyAV."),
            next_step="Install a torchcodec built for CUDA, or decode on the CPU.",
        )
    if not torch.cuda.is_available():
        raise UsageError(
            f"There is no GPU that torch {torch.__version__} can use.",
            next_step="Install torch and torchcodec builds for CUDA and check nvidia-smi, or "
            "decode on the CPU.",
        )


def open_decoder(
    clip: Clip,
    backend: Backend,
    *,
    device: str = "cpu",
    is_depth: bool = False,
    codecs: Codecs | None = None,
) -> ClipDecoder:
    """Open a decoder of a clip.

    Args:
        clip: The clip.
        backend: What decodes.
        device: Where.
        is_depth: Whether it is a depth camera's.
        codecs: Of decoders that are all for one thread, so that those of equally coded files share
            one; None for a decoder of its own.

    Depth is always decoded by PyAV: torchcodec gives colours only. Files whose index is of a kind
    that we do not read are decoded by torchcodec: it finds their packets itself.

    Raises:
        UnreadableSourceError: The file cannot be decoded.
    """
    if is_depth or (backend == "pyav" and clip.index is not None):
        return PyavDecoder(clip, is_depth=is_depth, codecs=codecs)
    if torchcodec_trouble() is not None:
        raise undecodable(
            clip, "PyAV needs an index that can be read (install torchcodec to do without)"
        )
    return TorchcodecDecoder(clip, device)


class TorchcodecDecoder:
    """Random access through torchcodec.

    torchcodec finds a frame by its time, which it computes from the frame's number ("approximate")
    or looks up. The former is right where times are even, and opens in a millisecond. Elsewhere it
    is given the times of our own index, so that it need not read the whole file to find them.
    """

    def __init__(self, clip: Clip, device: str) -> None:
        self._clip = clip
        try:
            self._decoder = self._open(clip, device)
        except (RuntimeError, ValueError) as error:
            raise undecodable(clip, str(error)) from error

    @staticmethod
    def _open(clip: Clip, device: str) -> Any:
        from torchcodec.decoders import VideoDecoder

        options: dict[str, Any] = {
            "dimension_order": "NHWC",
            "num_ffmpeg_threads": 1,
            "device": device,
        }
        path = clip.source.path
        if clip.rate is not None and clip.num_frames is not None:
            decoder = VideoDecoder(path, seek_mode="approximate", **options)
            found = decoder.metadata.average_fps
            if found and is_rate_close(found, clip.rate, clip.num_frames):
                return decoder
        if clip.index is None:
            return VideoDecoder(path, seek_mode="exact", **options)
        try:
            return VideoDecoder(path, custom_frame_mappings=_frame_mappings(clip), **options)
        except TypeError:  # torchcodec before 0.6 reads them all from the file
            return VideoDecoder(path, seek_mode="exact", **options)

    def decode(self, ranks: IntArray) -> Iterator[tuple[slice, torch.Tensor]]:
        """Yield frames, as many at once as a bounded piece of memory holds."""
        first, step = 0, _FIRST_FRAMES
        while first < len(ranks):
            part = slice(first, min(first + step, len(ranks)))
            frames = self._frames(ranks[part])
            yield part, frames
            first = part.stop
            step = max(1, _MOST_BYTES // (frames[0].numel() * frames.element_size()))

    def _frames(self, ranks: IntArray) -> torch.Tensor:
        try:
            if len(ranks) == 1:
                # Cheaper than a batch of one.
                frame = self._decoder.get_frame_at(int(ranks[0]))
                frames, seconds = frame.data[None], np.array([frame.pts_seconds])
            else:
                batch = self._decoder.get_frames_at(ranks.tolist())
                frames, seconds = batch.data, batch.pts_seconds.numpy()
        except (RuntimeError, ValueError, IndexError) as error:
            raise undecodable(self._clip, str(error)) from error
        _check_times(self._clip, ranks, seconds)
        result: torch.Tensor = frames
        return result


def _frame_mappings(clip: Clip) -> str:
    """Describe every frame as ffprobe would, in the order of presentation."""
    assert clip.index is not None
    times = clip.index.presentation_times
    order = np.argsort(times, kind="stable")
    shown = times[order]
    durations = np.diff(shown, append=shown[-1] + (shown[-1] - shown[-2] if len(shown) > 1 else 1))
    frames = [
        {"pts": pts, "duration": duration, "key_frame": int(is_key)}
        for pts, duration, is_key in zip(
            shown.tolist(), durations.tolist(), clip.index.keyframes[order].tolist(), strict=True
        )
    ]
    return json.dumps({"frames": frames})


def _check_times(clip: Clip, ranks: IntArray, found: Any) -> None:
    """See to it that what was decoded is the frame that was wanted, and not a neighbour."""
    wanted = clip.seconds(ranks)
    if wanted is None:
        return
    off = np.abs(found - wanted)
    gap = 0.5 / clip.rate if clip.rate is not None else 1e-6
    if not (off < gap).all():
        place = int(off.argmax())
        raise undecodable(
            clip,
            f"frame {ranks[place]} should be at {wanted[place]:.6f} s, but what comes out is at "
            f"{found[place]:.6f} s",
        )
