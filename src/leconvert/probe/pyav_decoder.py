"""Frames of one video file through PyAV, which is handed packets that our own index finds.

A decoder gets the packets from a keyframe to the wanted frame and is then told that nothing
follows, so it gives out what it holds back, and no frame beyond is decoded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch

from leconvert.model import IntArray
from leconvert.probe.clips import Clip, undecodable

__all__ = ["Codec", "Codecs", "PyavDecoder"]

_DEPTH_FORMAT = "gray12le"


class Codec:
    """FFmpeg's decoder of one kind of stream, fed with packets of any file of that kind.

    Opening one takes FFmpeg as long as decoding a few frames. It begins anew with every run of
    packets, so nothing of one file is left when the next one's come. It is for one thread.

    Attributes:
        context: The decoder.
        picture: Turns its frames into RGB.
    """

    def __init__(self, clip: Clip) -> None:
        import av

        from leconvert.media.frames import rgb_converter

        try:
            with av.open(clip.source.path) as container:
                self.context: Any = container.streams.video[0].codec_context
                self.context.thread_count = 1
        except (av.error.FFmpegError, OSError, IndexError) as error:
            raise undecodable(clip, str(error)) from error
        self.picture = rgb_converter()


# By sample entry; one lives as long as a decoder that uses it.
Codecs = WeakValueDictionary[bytes, Codec]


class PyavDecoder:
    """Random access through PyAV: only the packets from the keyframe to the frame are decoded.

    A frame is known by the number of its packet, which the decoder carries through; times play no
    part. Pictures are handed out one by one, as they come.
    """

    def __init__(self, clip: Clip, *, is_depth: bool, codecs: Codecs | None = None) -> None:
        if clip.index is None:
            raise undecodable(clip, "its index cannot be read")
        self._clip = clip
        index = clip.index
        self._sizes, self._offsets = index.sizes, index.offsets
        # Where nothing is reordered a frame's rank is the number of its packet.
        self._is_in_order = index.reordering(0, index.num_samples) is None
        ranks = np.arange(0) if self._is_in_order else index.ranks
        self._sample_of_rank = np.argsort(ranks)
        self._heads = np.flatnonzero(index.keyframes)
        self._head_ranks = self._heads if self._is_in_order else ranks[self._heads]
        # The sample entry says all that a decoder must know before the first packet.
        codec = None if codecs is None else codecs.get(index.sample_entry)
        if codec is None:
            codec = Codec(clip)
            if codecs is not None:
                codecs[index.sample_entry] = codec
        self._codec = codec
        self._picture = _depth_codes if is_depth else codec.picture
        self._descriptor = os.open(clip.source.path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)

    def decode(self, ranks: IntArray) -> Iterator[tuple[slice, torch.Tensor]]:
        """Yield frames, one at a time."""
        import av

        samples = ranks if self._is_in_order else self._sample_of_rank[ranks]
        groups = np.maximum(np.searchsorted(self._heads, samples, side="right") - 1, 0)
        # A frame shown before its keyframe may also refer to the group before.
        groups = groups - ((ranks < self._head_ranks[groups]) & (groups > 0))
        runs: dict[int, dict[int, int]] = {}
        of_frames = zip(groups.tolist(), samples.tolist(), strict=True)
        for number, (group, sample) in enumerate(of_frames):
            runs.setdefault(group, {})[sample] = number
        for group, place_of in runs.items():
            try:
                for frame in self._decoded(int(self._heads[group]), max(place_of) + 1):
                    if frame.pts in place_of:
                        place = place_of.pop(frame.pts)
                        picture = torch.from_numpy(self._picture(frame))
                        yield slice(place, place + 1), picture[None]
            except (av.error.FFmpegError, OSError, EOFError) as error:
                raise undecodable(self._clip, str(error)) from error
            if place_of:
                missing = int(ranks[min(place_of.values())])
                raise undecodable(self._clip, f"frame {missing} does not come out")

    def _decoded(self, begin: int, stop: int) -> Iterator[Any]:
        """Yield what decodes from a run of packets, the first of which is a keyframe."""
        import av

        context = self._codec.context
        sizes, offsets = self._sizes[begin:stop].tolist(), self._offsets[begin:stop].tolist()
        context.flush_buffers()
        for sample, size, offset in zip(range(begin, stop), sizes, offsets, strict=True):
            packet = av.Packet(os.pread(self._descriptor, size, offset))
            # Our own numbers come out again with the frames, whatever the times are.
            packet.pts = packet.dts = sample
            yield from context.decode(packet)
        yield from context.decode(None)


def _depth_codes(frame: Any) -> Any:
    return frame.to_ndarray(format=_DEPTH_FORMAT)[..., None]
