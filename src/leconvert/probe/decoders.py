"""Frames of one video file by their number: torchcodec where it loads, PyAV elsewhere."""

from __future__ import annotations

import json
import logging
import os
from functools import cache
from typing import Any, Literal, Protocol

import numpy as np
import torch

from leconvert.errors import UnreadableSourceError, UsageError
from leconvert.model import IntArray
from leconvert.probe.clips import Clip, is_rate_close

__all__ = ["Backend", "ClipDecoder", "choose_backend", "open_decoder"]

Backend = Literal["torchcodec", "pyav"]

_LOG = logging.getLogger("leconvert.probe")
_DEPTH_FORMAT = "gray12le"


class ClipDecoder(Protocol):
    """Decodes frames of one file; for one thread at a time."""

    def decode(self, ranks: IntArray) -> torch.Tensor:
        """Return frames in the order of presentation.

        Args:
            ranks: Which, ascending and distinct, shape (N,), N > 0.

        Returns:
            uint8 of shape (N, H, W, 3), or for depth uint16 codes of shape (N, H, W, 1).

        Raises:
            UnreadableSourceError: One of them cannot be decoded, or another frame came out.
        """


@cache
def torchcodec_trouble() -> str | None:
    """Return why torchcodec does not load, or None where it does."""
    try:
        import torchcodec.decoders  # noqa: F401
    except (ImportError, OSError, RuntimeError) as error:
        return str(error).strip().partition("\n")[0] or repr(error)
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
    trouble = torchcodec_trouble()
    if device.type == "cuda":
        _check_cuda(wanted, trouble)
    elif device.type != "cpu":
        raise UsageError(f"Frames are decoded on cpu or cuda, not on {decode_device}.")
    if wanted == "pyav":
        return "pyav"
    if trouble is None:
        return "torchcodec"
    if wanted == "torchcodec":
        raise UsageError(
            f"torchcodec does not load: {trouble}.",
            next_step="Install it (pip install 'leconvert[probe]') and FFmpeg's shared libraries, "
            "or decode with PyAV.",
        )
    _say_once(f"torchcodec does not load ({trouble}); PyAV decodes instead, more slowly.")
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


@cache
def _say_once(text: str) -> None:
    _LOG.warning(text)


def open_decoder(
    clip: Clip, backend: Backend, *, device: str = "cpu", is_depth: bool = False
) -> ClipDecoder:
    """Open a decoder of a clip.

    Depth is always decoded by PyAV: torchcodec gives colours only.

    Raises:
        UnreadableSourceError: The file cannot be decoded.
    """
    if backend == "pyav" or is_depth:
        return PyavDecoder(clip, is_depth=is_depth)
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
            raise _undecodable(clip, str(error)) from error

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

    def decode(self, ranks: IntArray) -> torch.Tensor:
        try:
            if len(ranks) == 1:
                # Cheaper than a batch of one.
                frame = self._decoder.get_frame_at(int(ranks[0]))
                frames, seconds = frame.data[None], np.array([frame.pts_seconds])
            else:
                batch = self._decoder.get_frames_at(ranks.tolist())
                frames, seconds = batch.data, batch.pts_seconds.numpy()
        except (RuntimeError, ValueError, IndexError) as error:
            raise _undecodable(self._clip, str(error)) from error
        _check_times(self._clip, ranks, seconds)
        result: torch.Tensor = frames
        return result


class PyavDecoder:
    """Random access through PyAV: only the packets from the keyframe to the frame are decoded."""

    def __init__(self, clip: Clip, *, is_depth: bool) -> None:
        import av

        from leconvert.media.frames import rgb_converter

        if clip.index is None:
            raise _undecodable(
                clip, "PyAV needs an index that can be read (install torchcodec to do without)"
            )
        self._clip = clip
        self._index = clip.index
        ranks = self._index.ranks
        self._sample_of_rank = np.empty(len(ranks), np.int64)
        self._sample_of_rank[ranks] = np.arange(len(ranks))
        self._heads = np.flatnonzero(self._index.keyframes)
        self._head_ranks = ranks[self._heads]
        self._picture = _depth_codes if is_depth else rgb_converter()
        try:
            self._container: Any = av.open(clip.source.path)
            self._context: Any = self._container.streams.video[0].codec_context
            self._context.thread_count = 1
        except (av.error.FFmpegError, OSError, IndexError) as error:
            raise _undecodable(clip, str(error)) from error
        self._descriptor = os.open(clip.source.path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)
            self._container.close()

    def decode(self, ranks: IntArray) -> torch.Tensor:
        import av

        samples = self._sample_of_rank[ranks]
        groups = np.maximum(np.searchsorted(self._heads, samples, side="right") - 1, 0)
        # A frame shown before its keyframe may also refer to the group before.
        leads = (ranks < self._head_ranks[groups]) & (groups > 0)
        groups = groups - leads
        pictures: dict[int, Any] = {}
        try:
            for group in np.unique(groups).tolist():
                wanted = samples[groups == group]
                self._decode_run(int(self._heads[group]), int(wanted.max()) + 1, wanted, pictures)
        except (av.error.FFmpegError, OSError, EOFError) as error:
            raise _undecodable(self._clip, str(error)) from error
        missing = [
            rank
            for rank, sample in zip(ranks.tolist(), samples.tolist(), strict=True)
            if sample not in pictures
        ]
        if missing:
            raise _undecodable(self._clip, f"frame {missing[0]} does not come out")
        return torch.from_numpy(np.stack([pictures[sample] for sample in samples.tolist()]))

    def _decode_run(
        self, begin: int, stop: int, wanted: IntArray, pictures: dict[int, Any]
    ) -> None:
        import av

        offsets, sizes = self._index.offsets, self._index.sizes
        self._context.flush_buffers()
        for sample in range(begin, stop + 1):
            packet = None
            if sample < stop:
                data = os.pread(self._descriptor, int(sizes[sample]), int(offsets[sample]))
                packet = av.Packet(data)
                # Our own numbers come out again with the frames, whatever the times are.
                packet.pts = packet.dts = sample
            for frame in self._context.decode(packet):
                if frame.pts in wanted:
                    pictures[frame.pts] = self._picture(frame)


def _depth_codes(frame: Any) -> Any:
    return frame.to_ndarray(format=_DEPTH_FORMAT)[..., None]


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
        raise _undecodable(
            clip,
            f"frame {ranks[place]} should be at {wanted[place]:.6f} s, but what comes out is at "
            f"{found[place]:.6f} s",
        )


def _undecodable(clip: Clip, reason: str) -> UnreadableSourceError:
    first_line = reason.strip().partition("\n")[0].rstrip(".")
    return UnreadableSourceError(
        f"{clip.source.name} cannot be decoded: {first_line}.",
        path=clip.source.name,
        next_step="Convert the dataset again from a sound source, or leave the episode out.",
    )
