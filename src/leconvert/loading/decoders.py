"""Frames of one video file by their number: PyAV on the CPU, torchcodec on a GPU.

On the CPU both return the same images, bit by bit. torchcodec seeks with FFmpeg's demuxer and feeds
the decoder until the frame comes out by itself. If a decoder holds frames back, as for H.264, this
decodes a frame or two too many. PyAV needs neither.
"""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from functools import cache, cached_property
from typing import Any, Literal, Protocol

import numpy as np
import torch

from leconvert.media import ClipIndex, UnsupportedClipError, read_clip_index
from leconvert.model.values import BoolArray, FloatArray, IntArray
from leconvert.support.errors import LeconvertError, UnreadableSourceError, UsageError
from leconvert.support.extras import command_for_extra
from leconvert.transfer.files import OpenFile

# An open video file: its frames, their times, and the positions of their bytes.


# Fetched before anything is known about a remote file; most indices fit.
_HEAD_BYTES = 64 * 1024
# torchcodec feeds a decoder until a frame comes out. H.264 may hold 16 frames back; this is a
# little more.
_FED_BEYOND = 20
# FFmpeg looks at the first packets of a file before it decodes any other.
_FIRST_SAMPLES = 4
# How many frames a rate may deviate over a whole file from the rate that frame numbers assume.
_MOST_FRAMES_OFF = 0.25


class Clip:
    """A video file of a dataset.

    A frame is identified by its rank: its number in presentation order, from 0.

    Attributes:
        source: The file.
        num_frames: Number of frames; None if its index is of an unknown kind.
        index: Its index, kept if bytes must be located or times are uneven; else None.
        rate: Frames a second if frame *n* is shown exactly at *n* / rate; else None.
    """

    def __init__(self, source: OpenFile, index: ClipIndex | None, *, keep_index: bool) -> None:
        self.source = source
        self.num_frames = None if index is None else index.num_samples
        self.rate = None if index is None else _even_rate(index)
        self.index = index if keep_index or self.rate is None else None
        self._times: FloatArray | None = None
        if index is not None and self.rate is None:
            self._times = np.sort(index.presentation_times) / index.timescale

    def seconds(self, ranks: IntArray) -> FloatArray | None:
        """Return the times at which frames are shown, in seconds; None if they are unknown."""
        if self._times is not None:
            return self._times[ranks]
        return None if self.rate is None else ranks / self.rate

    def is_right(self, ranks: IntArray, fps: float) -> BoolArray:
        """Return which frames exist and are shown within half a frame of rank / ``fps``."""
        if self.num_frames is None:
            return np.ones(len(ranks), np.bool_)
        right = (ranks >= 0) & (ranks < self.num_frames)
        seconds = self.seconds(ranks if right.all() else np.where(right, ranks, 0))
        if seconds is None:
            return right
        close: BoolArray = np.abs(seconds - ranks / fps) * fps < 0.5
        return right & close

    @cached_property
    def packets(self) -> Packets:
        """The packets of the frames; only for clips whose index is kept."""
        assert self.index is not None
        return Packets(self.index)

    def frame_spans(self, ranks: IntArray, *, uses_pyav: bool) -> list[tuple[int, int]]:
        """Return the byte ranges needed to decode single frames."""
        index = self.index
        if index is None:
            return [(0, self.source.size_bytes)]
        samples, begins = self.packets.find(np.unique(np.clip(ranks, 0, index.num_samples - 1)))
        beyond = 0 if uses_pyav else _FED_BEYOND
        ends = np.minimum(samples + 1 + beyond, index.num_samples)
        return [
            (start, start + length)
            for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)
            for start, length in index.byte_runs(begin, end)
        ]

    def spans(self, first: int, count: int) -> list[tuple[int, int]]:
        """Return the byte ranges needed to decode ``count`` frames from ``first`` on."""
        index = self.index
        if index is None:
            return [(0, self.source.size_bytes)]
        ranks = np.arange(first, min(first + count, index.num_samples))
        if not len(ranks):
            return []
        samples, begins = self.packets.find(ranks)
        end = min(int(samples.max()) + 1 + _FED_BEYOND, index.num_samples)
        # The packets before a file's first keyframe are fetched too, though none begins there.
        runs = index.byte_runs(int(min(begins.min(), samples.min())), end)
        return [(start, start + length) for start, length in runs]


class Packets:
    """The packets of a file's frames, and the keyframes at which their decoding begins."""

    def __init__(self, index: ClipIndex) -> None:
        # Without reordering, a frame's rank is the number of its packet.
        self._is_in_order = index.reordering(0, index.num_samples) is None
        ranks = np.arange(0) if self._is_in_order else index.ranks
        self._sample_of_rank = np.argsort(ranks)
        self._heads = np.flatnonzero(index.keyframes)
        self._head_ranks = self._heads if self._is_in_order else ranks[self._heads]

    def find(self, ranks: IntArray) -> tuple[IntArray, IntArray]:
        """Return the packet of each frame, and the first packet to decode for it."""
        samples = ranks if self._is_in_order else self._sample_of_rank[ranks]
        groups = np.maximum(np.searchsorted(self._heads, samples, side="right") - 1, 0)
        # A frame shown before its keyframe may also refer to the previous group.
        groups = groups - ((ranks < self._head_ranks[groups]) & (groups > 0))
        return samples, self._heads[groups]


def open_clip(source: OpenFile, *, keep_index: bool) -> Clip:
    """Read the index of a video file.

    Raises:
        UnreadableSourceError: The file is damaged, or cannot be read.
    """

    def pread(descriptor: int, count: int, position: int) -> bytes:
        source.need([(position, position + count)])
        return os.pread(descriptor, count, position)

    source.need([(0, _HEAD_BYTES)])
    try:
        index = read_clip_index(source.path, pread=pread)
    except UnsupportedClipError:
        # The file is valid, but of a kind that cannot be joined unchanged; FFmpeg can decode it.
        source.need([(0, source.size_bytes)])
        return Clip(source, None, keep_index=False)
    except UnreadableSourceError as error:
        if source.path == source.name:
            raise
        raise UnreadableSourceError(
            error.message.replace(source.path, source.name),
            path=source.name,
            next_step=error.next_step,
        ) from error
    clip = Clip(source, index, keep_index=keep_index)
    runs = index.byte_runs(0, min(_FIRST_SAMPLES, index.num_samples))
    source.need([(start, start + length) for start, length in runs])
    return clip


def _even_rate(index: ClipIndex) -> float | None:
    """Return the frame rate if frame *n* is shown at *n* times the same duration, else None."""
    times = index.shown
    if isinstance(times, range):
        step = times.step
        if times.start or step < 1:
            return None
        return index.timescale / step
    ordered = np.sort(times)
    if len(ordered) < 2 or ordered[0] != 0 or ordered[1] < 1:
        return None
    if not np.array_equal(ordered, np.arange(len(ordered)) * ordered[1]):
        return None
    return index.timescale / float(ordered[1])


def undecodable(clip: Clip, reason: str) -> UnreadableSourceError:
    """Return the error of a clip that cannot be decoded."""
    first_line = reason.strip().partition("\n")[0].rstrip(".")
    return UnreadableSourceError(
        f"{clip.source.name} cannot be decoded: {first_line}.",
        path=clip.source.name,
        next_step="Convert the dataset again from an undamaged source, or leave the episode out.",
    )


# Frames of one video file through PyAV, which gets the packets that our own index locates.
# A decoder gets the packets from a keyframe to the wanted frame and then the end of the stream. So
# it returns the frames it holds back, and decodes no frame too many.


class Codec:
    """FFmpeg's decoder of one kind of stream, which decodes packets of any file of that kind.

    FFmpeg needs as long to open one as to decode a few frames. The decoder is flushed before every
    run of packets, so the state of one file does not affect the next. It is for one thread.

    Attributes:
        context: The decoder.
        picture: Converts its frames to RGB.
        depth_picture: Converts its frames to depth codes.
    """

    def __init__(self, clip: Clip) -> None:
        import av

        from leconvert.media.pyav import depth_converter, open_container, rgb_converter

        try:
            with open_container(clip.source.path) as container:
                self.context: Any = container.streams.video[0].codec_context
                self.context.thread_count = 1
        except (av.error.FFmpegError, OSError, IndexError) as error:
            raise undecodable(clip, str(error)) from error
        self.picture, self.depth_picture = rgb_converter(), depth_converter()


class Codecs(threading.local):
    """The open decoders of each thread, by kind; only the most recently used ones stay open.

    The kind is the content of the sample entry without bit rates, which differ from file to file.

    Args:
        most: Number of decoders that a thread keeps open.
    """

    def __init__(self, most: int = 1) -> None:
        self._most = most
        self._open: OrderedDict[str, Codec] = OrderedDict()

    def of(self, clip: Clip) -> Codec:
        """Return this thread's decoder for a clip with a known index; it is opened if necessary."""
        assert clip.index is not None
        # It contains everything that a decoder must know before the first packet.
        kind = clip.index.config_key
        codec = self._open.get(kind) or Codec(clip)
        self._open[kind] = codec
        self._open.move_to_end(kind)
        if len(self._open) > self._most:
            self._open.popitem(last=False)
        return codec


class PyavDecoder:
    """Random access through PyAV: only the packets from the keyframe to the frame are decoded.

    A frame is identified by the number of its packet, which the decoder passes on; times are not
    used. Images are yielded one at a time, as they are decoded.

    FFmpeg's decoders conceal damage and mark the frame. If ``is_strict``, such a frame ends the run
    of packets, since later frames may refer to it. (``err_detect=explode`` finds nothing more in
    H.264 and AV1, little more in HEVC, and refuses valid H.264 with open groups.)
    """

    def __init__(
        self,
        clip: Clip,
        *,
        is_depth: bool,
        is_strict: bool = True,
        codecs: Codecs | None = None,
    ) -> None:
        if clip.index is None:
            raise undecodable(clip, "its index cannot be read")
        self._clip = clip
        self._is_depth = is_depth
        self._is_strict = is_strict
        self._codecs = codecs or Codecs()
        self._sizes, self._offsets = clip.index.sizes, clip.index.offsets
        self._descriptor = os.open(clip.source.path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._descriptor).atexit = False

    def decode(self, ranks: IntArray) -> Iterator[tuple[slice, torch.Tensor]]:
        """Yield frames, one at a time."""
        import av

        codec = self._codecs.of(self._clip)
        picture_of = codec.depth_picture if self._is_depth else codec.picture
        samples, begins = self._clip.packets.find(ranks)
        runs: dict[int, dict[int, int]] = {}
        of_frames = zip(begins.tolist(), samples.tolist(), strict=True)
        for number, (begin, sample) in enumerate(of_frames):
            runs.setdefault(begin, {})[sample] = number
        for begin, place_of in runs.items():
            try:
                for frame in self._decoded(codec.context, begin, max(place_of) + 1):
                    if self._is_strict and frame.is_corrupt:
                        raise undecodable(self._clip, "coded bytes are damaged")
                    if frame.pts in place_of:
                        place = place_of.pop(frame.pts)
                        picture = torch.from_numpy(picture_of(frame))
                        yield slice(place, place + 1), picture[None]
            except (av.error.FFmpegError, OSError, EOFError) as error:
                raise undecodable(self._clip, str(error)) from error
            if place_of:
                missing = int(ranks[min(place_of.values())])
                raise undecodable(self._clip, f"the decoder does not return frame {missing}")

    def _decoded(self, context: Any, begin: int, stop: int) -> Iterator[Any]:
        """Yield the frames of a run of packets; the first packet is a keyframe."""
        import av

        sizes, offsets = self._sizes[begin:stop].tolist(), self._offsets[begin:stop].tolist()
        context.flush_buffers()
        for sample, size, offset in zip(range(begin, stop), sizes, offsets, strict=True):
            packet = av.Packet(os.pread(self._descriptor, size, offset))
            # These numbers come out again with the frames, whatever the times are.
            packet.pts = packet.dts = sample
            yield from context.decode(packet)
        yield from context.decode(None)


# Frames of one video file by their number: PyAV on the CPU, torchcodec on a GPU.


Backend = Literal["torchcodec", "pyav"]

# Most bytes in one request to torchcodec; a larger request is split.
_MOST_BYTES = 16 * 1024**2
_FIRST_FRAMES = 16


class ClipDecoder(Protocol):
    """Decodes frames of one file; for one thread at a time."""

    def decode(self, ranks: IntArray) -> Iterator[tuple[slice, torch.Tensor]]:
        """Yield frames, a part at a time, in any order.

        Args:
            ranks: The frames' ranks, ascending, shape (N,).

        Yields:
            Positions in ``ranks``, and their frames: uint8 of shape (n, H, W, 3), or for depth
            uint16 codes of shape (n, H, W, 1). Frames yielded before an error are right.

        Raises:
            UnreadableSourceError: A frame cannot be decoded.
        """


@cache
def torchcodec_trouble() -> str | None:
    """Return why torchcodec does not load; None if it loads."""
    try:
        import torchcodec.decoders
    except (ImportError, OSError, RuntimeError) as error:
        return str(error).strip().partition("\n")[0] or repr(error)
    # Since version 0.17 it loads without FFmpeg, and fails when it first decodes.
    if getattr(torchcodec, "ffmpeg_major_version", 0) is None:
        return "it could not load FFmpeg"
    return None


def choose_backend(wanted: str, decode_device: str) -> Backend:
    """Return the library to decode with.

    Args:
        wanted: ``auto``, ``torchcodec`` or ``pyav``.
        decode_device: ``cpu`` or ``cuda``.

    Raises:
        UsageError: A name is unknown, or the library or GPU is missing.
    """
    if wanted not in {"auto", "torchcodec", "pyav"}:
        raise UsageError(f"video_backend must be auto, torchcodec or pyav, not {wanted!r}.")
    try:
        kind = torch.device(decode_device).type
    except RuntimeError:
        kind = None  # torch knows no such device
    if kind not in {"cpu", "cuda"}:
        raise UsageError(f"decode_device must be cpu or cuda, not {decode_device}.")
    if kind == "cpu" and wanted != "torchcodec":
        # Imported here and not in each worker: forked workers inherit it.
        import av  # noqa: F401

        return "pyav"
    trouble = torchcodec_trouble()
    if kind == "cuda":
        _check_cuda(wanted, trouble)
    elif trouble is not None:
        raise UsageError(
            f"torchcodec cannot be imported: {trouble}.",
            next_step=f"Install it (`{command_for_extra('probe')}`) and FFmpeg's shared libraries, "
            "or decode with PyAV.",
        )
    return "torchcodec"


def _check_cuda(wanted: str, trouble: str | None) -> None:
    if wanted == "pyav" or trouble is not None:
        raise UsageError(
            "Only torchcodec decodes on a GPU"
            + (f", but torchcodec cannot be imported: {trouble}." if trouble else ", not PyAV."),
            next_step="Install a torchcodec built for CUDA, or decode on the CPU.",
        )
    if not torch.cuda.is_available():
        raise UsageError(
            f"torch {torch.__version__} can use no GPU here.",
            next_step="Install torch and torchcodec builds for CUDA and check nvidia-smi, or "
            "decode on the CPU.",
        )
    if _torchcodec_version().endswith("+cpu"):
        raise device_refused("cuda", "this build decodes on the CPU only")


def _torchcodec_version() -> str:
    """Return the version with its build, such as ``0.11.1+cpu``; metadata may lack the build."""
    import torchcodec

    return str(torchcodec.__version__)


def device_refused(device: str, reason: str) -> UsageError:
    """Return the error of a device that does not decode, independent of the dataset."""
    return UsageError(
        f"torchcodec {_torchcodec_version()} cannot decode on {device}: {reason}.",
        next_step=f"Install torchcodec's build for CUDA {torch.version.cuda}, which PyTorch's own "
        "package index has, or decode on the CPU (--decode-device cpu).",
    )


def open_decoder(
    clip: Clip,
    backend: Backend,
    *,
    device: str = "cpu",
    is_depth: bool = False,
    is_strict: bool = True,
    codecs: Codecs | None = None,
) -> ClipDecoder:
    """Open a decoder of a clip.

    PyAV always decodes depth, since torchcodec returns only colours. torchcodec decodes files with
    an index of an unknown kind, since it finds their packets itself. It does not report damage,
    whatever ``is_strict`` is.

    Raises:
        UnreadableSourceError: The file cannot be decoded.
    """
    if is_depth or (backend == "pyav" and clip.index is not None):
        return PyavDecoder(clip, is_depth=is_depth, is_strict=is_strict, codecs=codecs)
    if torchcodec_trouble() is not None:
        raise undecodable(
            clip, "PyAV needs an index that can be read (install torchcodec to do without)"
        )
    return TorchcodecDecoder(clip, device)


class TorchcodecDecoder:
    """Random access through torchcodec.

    torchcodec finds a frame by its time, which it computes from the frame's number ("approximate")
    or looks up. The former is right if times are even, and opens in a millisecond. Otherwise,
    torchcodec gets the times of our own index, so it need not read the whole file to find them.
    """

    def __init__(self, clip: Clip, device: str) -> None:
        self._clip, self._device = clip, device
        try:
            self._decoder = self._open(clip, device)
        except (RuntimeError, ValueError) as error:
            raise self._failed(error) from error

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
            # Both rates must give the same frame numbers for a file of this length.
            if found and abs(found / clip.rate - 1) * clip.num_frames < _MOST_FRAMES_OFF:
                return decoder
        if clip.index is None:
            return VideoDecoder(path, seek_mode="exact", **options)
        try:
            return VideoDecoder(path, custom_frame_mappings=_frame_mappings(clip), **options)
        except TypeError:  # torchcodec before 0.6 reads all times from the file
            return VideoDecoder(path, seek_mode="exact", **options)

    def _failed(self, error: Exception, ranks: IntArray | None = None) -> LeconvertError:
        """Return the error of the file or of the device: a file that the CPU decodes is valid.

        Frames that only the device refuses must not count as unreadable, and the user need not
        repair the dataset.
        """
        if torch.device(self._device).type != "cpu":
            try:
                on_cpu = self._open(self._clip, "cpu")
                on_cpu.get_frames_at([0] if ranks is None else ranks.tolist())
            except (RuntimeError, ValueError, IndexError):
                pass  # the file's
            else:
                reason = str(error).strip().partition("\n")[0].rstrip(".")
                said = f"{reason}; the CPU decodes {self._clip.source.name}"
                return device_refused(self._device, said)
        return undecodable(self._clip, str(error))

    def decode(self, ranks: IntArray) -> Iterator[tuple[slice, torch.Tensor]]:
        """Yield as many frames at once as a bounded piece of memory holds."""
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
            failed = self._failed(error, ranks)
            if isinstance(failed, UnreadableSourceError):
                # The old one may stay at the damage, and then fail for valid frames too.
                self._decoder = self._open(self._clip, self._device)
            raise failed from error
        _check_times(self._clip, ranks, seconds)
        result: torch.Tensor = frames
        return result


def _frame_mappings(clip: Clip) -> str:
    """Return a description of every frame as ffprobe gives it, in presentation order."""
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
    """Check that the decoded frames are the wanted ones, and not their neighbours.

    Raises:
        UnreadableSourceError: A frame has the wrong time.
    """
    wanted = clip.seconds(ranks)
    if wanted is None:
        return
    off = np.abs(found - wanted)
    gap = 0.5 / clip.rate if clip.rate is not None else 1e-6
    if not (off < gap).all():
        place = int(off.argmax())
        raise undecodable(
            clip,
            f"frame {ranks[place]} should be at {wanted[place]:.6f} s, but the decoded "
            f"frame is at {found[place]:.6f} s",
        )
