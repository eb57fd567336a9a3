"""Chosen frames of a clip and images from a table, as the pictures that LeRobot's loader gives.

Frames are known by their rank: the frame shown first is 0, whatever its time and wherever it lies
in the file. RGB is computed with the colour matrix and the range that the stream declares, as
torchcodec does; PyAV alone takes every stream for BT.601.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from leconvert.errors import UnreadableSourceError
from leconvert.media.boxes import broken
from leconvert.media.clip import ClipIndex
from leconvert.media.index import read_clip_index
from leconvert.media.packets import opened_video

__all__ = ["decode_image", "decode_shown", "rgb_converter"]

Picture = npt.NDArray[np.uint8] | npt.NDArray[np.uint16]
BoolArray = npt.NDArray[np.bool_]

# FFmpeg's AVCOL_RANGE_JPEG: luma fills 0..255 and not only 16..235.
_FULL_RANGE = 2
# Where LeRobot decodes a depth camera it asks for this format, whatever the stream stores.
_DEPTH_FORMAT = "gray12le"
# How an image file begins, and FFmpeg's name of its decoder. FFmpeg is not left to guess: among
# what it would recognise are playlists that name other files.
_IMAGE_DECODERS = {
    b"\x89PNG\r\n\x1a\n": "png",
    b"\xff\xd8\xff": "mjpeg",
    b"II*\0": "tiff",
    b"MM\0*": "tiff",
}
_IMAGE_NEXT_STEP = (
    "Restore the file from its origin, or leave the feature out (--drop-feature NAME)."
)


def decode_shown(
    path: str | os.PathLike[str], ranks: Iterable[int], *, is_depth: bool = False
) -> Iterator[tuple[int, Picture]]:
    """Decode chosen frames of a clip in one pass over the file.

    Groups of pictures that no chosen frame needs are read but not decoded, where the index of the
    clip can be read. Memory is that of the decoder and one frame.

    Args:
        path: The clip.
        ranks: Which frames, as places in the order of presentation from 0, in any order.
        is_depth: Give the depth codes of a depth camera in place of colours.

    Yields:
        Rank and picture, in ascending order of rank: uint8 of shape (height, width, 3), or for
        depth uint16 of shape (height, width, 1), the 12-bit values that the stream stores.

    Raises:
        UnreadableSourceError: The clip cannot be read or decoded, or has fewer frames.
    """
    name = os.fspath(path)
    wanted = sorted(set(ranks))
    if not wanted:
        return
    if wanted[0] < 0:
        raise broken(name, f"there is no frame {wanted[0]}")
    picture_of = _depth_picture if is_depth else rgb_converter()
    with opened_video(name) as (container, stream):
        try:
            index = read_clip_index(name)
        except UnreadableSourceError:
            # Not ours to read; FFmpeg delivers the frames in order all the same.
            frames: Iterator[tuple[int, Any]] = enumerate(container.decode(stream))
        else:
            if wanted[-1] >= index.num_samples:
                raise broken(name, f"there is no frame {wanted[-1]}")
            needed = _needed_samples(index, wanted)
            frames = _decoded(container, stream, index, needed)
        rest = iter(wanted)
        next_rank = next(rest, None)
        for rank, frame in frames:
            if rank == next_rank:
                yield rank, picture_of(frame)
                next_rank = next(rest, None)
                if next_rank is None:
                    return
    raise broken(name, f"there is no frame {next_rank}")


def decode_image(data: bytes | memoryview, *, is_depth: bool = False) -> Picture:
    """Decode one image file: PNG, JPEG or TIFF.

    PNG comes out as it was stored: grey is repeated in three channels, palettes are looked up,
    alpha is dropped, 16-bit colours keep their upper byte. JPEG is decoded by FFmpeg, with chroma
    enlarged as libjpeg does by default; colours differ from libjpeg's by rounding, at most a few
    of 255 levels.

    Args:
        data: The file's bytes.
        is_depth: Keep an image of one channel as it is: its values are distances.

    Returns:
        uint8 of shape (height, width, 3); depth of one channel is of shape (height, width, 1),
        uint8 or uint16 as stored.

    Raises:
        UnreadableSourceError: It is no image, is damaged, or holds 16-bit grey but is no depth map.
    """
    import av

    begin = bytes(data[:8])
    found = (name for magic, name in _IMAGE_DECODERS.items() if begin.startswith(magic))
    decoder = next(found, None)
    if decoder is None:
        raise _no_image("it is neither PNG nor JPEG nor TIFF")
    # Straight to the decoder: opening a file probes it, which takes longer than decoding. A decoder
    # remembers the picture before, so each image has its own.
    context: Any = av.CodecContext.create(decoder, "r")
    context.thread_count = 1
    try:
        frames = context.decode(av.Packet(bytes(data))) or context.decode(None)
    except (av.error.FFmpegError, OSError, EOFError) as error:
        raise _no_image(getattr(error, "strerror", None) or str(error)) from error
    if not frames:
        raise _no_image("it is empty or cut short")
    return _stored_picture(frames[0], is_depth)


def _stored_picture(frame: Any, is_depth: bool) -> Picture:
    """Return an image file's pixels without a conversion that rounds, where there is one."""
    stored = frame.format.name
    if stored == "rgb24":
        plain: npt.NDArray[np.uint8] = frame.to_ndarray()
        return plain
    if stored.startswith("ya"):
        frame = frame.reformat(format="gray" if stored == "ya8" else "gray16le")
        stored = frame.format.name
    if stored in ("gray", "gray16le", "gray16be"):
        grey: Picture = frame.to_ndarray()[..., None]
        if is_depth:
            return grey
        if grey.dtype != np.uint8:
            raise _no_image("it holds 16-bit grey, but its feature is no depth map")
        repeated: npt.NDArray[np.uint8] = np.repeat(grey, 3, axis=2).astype(np.uint8, copy=False)
        return repeated
    if stored.startswith("gray"):
        raise _no_image(f"its pixels are {stored}, which is not supported")
    if stored == "pal8":
        places, palette = frame.to_ndarray()
        colours: npt.NDArray[np.uint8] = palette[places][..., 1:]  # alpha comes first
        return colours
    if stored.startswith(("rgb48", "rgba64")):
        deep: npt.NDArray[np.uint16] = frame.to_ndarray()
        return (deep[..., :3] >> 8).astype(np.uint8)
    if stored.startswith("yuvj4"):
        # By itself swscale repeats chroma; libjpeg interpolates it.
        frame = frame.reformat(format="yuvj444p", interpolation="BILINEAR")
    return rgb_converter()(frame)


def rgb_converter() -> Callable[[Any], Picture]:
    """Return a function from frames of one stream to RGB; it keeps FFmpeg's tables."""
    from av.video.reformatter import Colorspace, VideoReformatter

    reformatter: Any = VideoReformatter()

    def rgb_picture(frame: Any) -> Picture:
        # The names of these formats say full range, whatever the stream declares.
        is_full = frame.color_range == _FULL_RANGE or frame.format.name.startswith(("yuvj", "gray"))
        converted = reformatter.reformat(
            frame,
            format="rgb24",
            # swscale numbers its matrices as FFmpeg does those of a stream.
            src_colorspace=int(frame.colorspace),
            dst_colorspace=Colorspace.DEFAULT,
            src_color_range=_FULL_RANGE if is_full else 1,
            # What torchcodec asks for; it matters where chroma of more than 8 bits is enlarged.
            interpolation="BICUBIC",
        )
        picture: Picture = converted.to_ndarray()
        return picture

    return rgb_picture


def _depth_picture(frame: Any) -> Picture:
    codes: Picture = frame.to_ndarray(format=_DEPTH_FORMAT)
    return codes[..., None]


def _needed_samples(index: ClipIndex, wanted: list[int]) -> BoolArray:
    """Return which samples to decode for frames of these ranks, in decode order.

    These are whole groups of pictures, a keyframe to the next. A frame that is decoded after a
    keyframe but shown before it (an open group) may also refer to the group before.
    """
    ranks = index.ranks
    groups = np.cumsum(index.keyframes) - 1  # of each sample; -1 before the first keyframe
    heads = np.flatnonzero(index.keyframes)
    is_needed = np.zeros(len(heads) + 1, np.bool_)  # the last place stands for group -1
    sample_of_rank = np.empty(len(ranks), np.int64)
    sample_of_rank[ranks] = np.arange(len(ranks))
    wanted_samples = sample_of_rank[wanted]
    wanted_groups = groups[wanted_samples]
    is_needed[wanted_groups] = True
    leads = (wanted_groups >= 0) & (ranks[wanted_samples] < ranks[heads[wanted_groups]])
    is_needed[wanted_groups[leads] - 1] = True
    needed: BoolArray = is_needed[groups]
    return needed


def _decoded(
    container: Any, stream: Any, index: ClipIndex, needed: BoolArray
) -> Iterator[tuple[int, Any]]:
    """Yield rank and frame of the samples that are needed, as the decoder gives them out."""
    context = stream.codec_context
    ranks = index.ranks
    rank_of_time: dict[int, int] = {}
    number = 0
    is_fed = False

    def placed(frames: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        for frame in frames:
            rank = rank_of_time.pop(frame.pts, None)
            if rank is None:
                raise broken(index.path, f"a frame decodes at tick {frame.pts}, unlike its packet")
            yield rank, frame

    for packet in container.demux(stream):
        if not packet.size:
            continue
        if number >= len(needed):
            raise broken(index.path, "it holds more frames than its index says")
        if needed[number]:
            rank_of_time[packet.pts] = int(ranks[number])
            yield from placed(context.decode(packet))
            is_fed = True
        elif is_fed:
            # The decoder begins anew at the next keyframe, so nothing of the gap is missed.
            yield from placed(context.decode(None))
            context.flush_buffers()
            is_fed = False
        number += 1
    if is_fed:
        yield from placed(context.decode(None))


def _no_image(reason: str) -> UnreadableSourceError:
    return UnreadableSourceError(
        f"An image cannot be decoded: {reason}.", next_step=_IMAGE_NEXT_STEP
    )
