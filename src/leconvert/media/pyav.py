"""The parts that need FFmpeg: remuxing odd containers into a plain MP4, and decoding frames.

Frames are known by their rank: the frame shown first is 0, whatever its time and position in the
file. RGB is computed with the colour matrix and the range that the stream declares, as torchcodec
does; PyAV alone assumes BT.601 for every stream.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from functools import partial
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from leconvert.media.boxes import UnsupportedClipError, broken
from leconvert.media.codecs import CHANGES_MIDWAY
from leconvert.media.index import (
    ClipIndex,
    TruncatedClipError,
    presentation_ranks,
    read_clip_index,
)
from leconvert.media.join import frame_ticks
from leconvert.model.values import BoolArray, FloatArray, IntArray
from leconvert.support.errors import UnreadableSourceError
from leconvert.support.text import GET_AGAIN, GET_AGAIN_OR_DROP

Picture = npt.NDArray[Any]  # uint8, uint16 or float32

# The codecs of LeRobot's datasets: AV1 by default, the others by choice or in old ones.
_CODECS = ("av1", "h264", "hevc", "mpeg4", "vp9")
# FFmpeg's AVCOL_RANGE_JPEG: luma fills 0..255 and not only 16..235.
_FULL_RANGE = 2
# LeRobot decodes a depth camera to this format, whatever the stream stores.
_DEPTH_FORMAT = "gray12le"
# First bytes of an image file, and FFmpeg's name of its decoder. FFmpeg must not guess: it would
# also recognise playlists that name other files.
_IMAGE_DECODERS = {
    b"\x89PNG\r\n\x1a\n": "png",
    b"\xff\xd8\xff": "mjpeg",
    b"II*\0": "tiff",
    b"MM\0*": "tiff",
}
_IMAGE_NEXT_STEP = (
    f"{GET_AGAIN}. If there is no other copy, leave the feature out with --drop-feature NAME."
)


def open_container(file: str | BinaryIO) -> Any:
    """Open a file with PyAV.

    A title or an author's name in another encoding is no reason to refuse the frames. PyAV accepts
    any text since version 19; earlier versions need an option.
    """
    import av

    options: dict[str, Any] = {"metadata_errors": "replace"} if _pyav_version() < 19 else {}
    return av.open(file, **options)


def _pyav_version() -> int:
    import av

    return int(av.__version__.partition(".")[0])


@contextmanager
def opened_video(path: str | os.PathLike[str]) -> Iterator[tuple[Any, Any]]:
    """Open a file with PyAV, yield container and first video stream, and translate its errors.

    Raises:
        UnreadableSourceError: FFmpeg cannot read it, or it has no video.
    """
    import av

    name = os.fspath(path)
    try:
        with open_container(name) as container:
            if not container.streams.video:
                raise broken(name, "FFmpeg finds no video in it")
            stream = container.streams.video[0]
            yield container, stream
    except (av.error.FFmpegError, OSError, EOFError) as error:
        raise UnreadableSourceError(
            f"{name} cannot be read by FFmpeg: {getattr(error, 'strerror', None) or error}.",
            path=name,
            next_step=GET_AGAIN_OR_DROP,
        ) from error


def packet_times(path: str | os.PathLike[str]) -> Iterator[tuple[float | None, bool]]:
    """Yield the presentation time of each packet in seconds, and whether decoding can start there.

    Packets come in decode order; the time is None for a packet without one.
    """
    with opened_video(path) as (container, stream):
        for packet in container.demux(stream):
            if packet.size:
                shown = None if packet.pts is None else float(packet.pts * stream.time_base)
                yield shown, bool(packet.is_keyframe)


def count_tracks_and_frames(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Return the number of tracks of a file, sound included, and the frames of the first video.

    Packets are counted only if the index cannot be read.
    """
    try:
        index = read_clip_index(path)
    except UnsupportedClipError:
        with opened_video(path) as (container, stream):
            frames = sum(packet.size > 0 for packet in container.demux(stream))
            return len(container.streams), frames
    return 1 + len(index.other_tracks), index.num_samples


def check_decodes(index: ClipIndex) -> None:
    """Decode a clip completely, whose index may be damaged.

    Raises:
        UnreadableSourceError: A frame is missing.
    """
    frames = 0
    with opened_video(index.path) as (container, stream):
        for frame in container.decode(stream):
            frames += not frame.is_corrupt
    if frames != index.num_samples:
        raise broken(
            index.path,
            f"{frames} of its {index.num_samples} frames decode, and its index does not fit its "
            "media data (mdat)",
        )


# Tracks that PyAV can copy to another file; it cannot copy a track of time codes, for example.
_CARRIED = ("audio", "subtitle")


def remux_clip(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    fps: Fraction,
    other_tracks: bool = False,
) -> FloatArray:
    """Copy the coded packets of the first video stream into a plain MP4.

    Source times only give the order of presentation; the copy's frame *i* is at i / fps. A
    container that keeps coded bytes in another framing (MPEG-TS, AVI) has them reframed by FFmpeg,
    so packets may be other bytes that decode to the same frames.

    Args:
        source: The file.
        destination: The copy.
        fps: Frames a second.
        other_tracks: Whether to copy sound and subtitles, too, with their own times.

    Returns:
        When the source shows each frame, in seconds, ascending.

    Raises:
        UnreadableSourceError: The file cannot be read, or its tracks cannot be put into an MP4.
    """
    import av

    name = os.fspath(source)
    _refuse_changing_configuration(name)
    ranks, seconds = _order(name)
    timescale, frame_duration = frame_ticks(fps)
    shift = max(0, int((np.arange(len(ranks)) - ranks).max())) * frame_duration
    options = {"video_track_timescale": str(timescale)}
    if other_tracks:  # a file of a dataset: its index goes to the front
        options["movflags"] = "faststart"
    with (
        opened_video(name) as (container, stream),
        av.open(os.fspath(destination), "w", format="mp4", options=options) as output,
    ):
        streams = [stream, *(_carried(container) if other_tracks else ())]
        try:
            copies = {each.index: output.add_stream_from_template(each) for each in streams}
        except (ValueError, TypeError) as error:
            raise UnreadableSourceError(
                f"{name} has a track that cannot be put into an MP4: {error}.", path=name
            ) from error
        copies[stream.index].time_base = Fraction(1, timescale)
        number = 0
        for packet in container.demux(streams):
            if not packet.size:
                continue
            if packet.stream.index == stream.index:
                packet.time_base = Fraction(1, timescale)
                packet.pts = int(ranks[number]) * frame_duration
                packet.dts = number * frame_duration - shift
                packet.duration = frame_duration
                number += 1
            packet.stream = copies[packet.stream.index]
            output.mux(packet)
    return seconds


def _carried(container: Any) -> list[Any]:
    return [stream for stream in container.streams if stream.type in _CARRIED]


def carried_tracks(path: str | os.PathLike[str]) -> int:
    """Return how many tracks besides the video `remux_clip` copies."""
    with opened_video(path) as (container, _):
        return len(_carried(container))


def other_tracks_sha256(path: str | os.PathLike[str]) -> list[str]:
    """Return a digest of the packets of each track besides the video that `remux_clip` copies.

    Times count in milliseconds, since the copy of a track may have other ticks.
    """
    with opened_video(path) as (container, _):
        streams = _carried(container)
        digests = {stream.index: hashlib.sha256() for stream in streams}
        for packet in container.demux(streams) if streams else ():
            if packet.size and packet.pts is not None:
                digest = digests[packet.stream.index]
                digest.update(b"%d " % round(packet.pts * packet.time_base * 1000))
                digest.update(packet)
        return [digest.hexdigest() for digest in digests.values()]


def _refuse_changing_configuration(path: str) -> None:
    """Refuse a clip for two decoders: FFmpeg keeps the first set-up and silently drops the other.

    The frames of the other would decode to noise, although every packet has the same bytes.
    """
    try:
        read_clip_index(path)
    except UnsupportedClipError as error:
        if error.reason == CHANGES_MIDWAY:
            raise broken(
                path, f"{error.reason}, and a remux would lose the second configuration"
            ) from error
    except UnreadableSourceError:
        return  # FFmpeg may read it all the same


def _order(path: str) -> tuple[IntArray, FloatArray]:
    """Return each packet's presentation rank, in decode order, and all times in ascending order."""
    times: list[int] = []
    with opened_video(path) as (container, stream):
        for packet in container.demux(stream):
            if not packet.size:
                continue
            if packet.is_discard:
                raise broken(path, "an edit list hides frames that other frames need")
            if packet.pts is None:
                raise broken(path, "its frames have no times")
            times.append(packet.pts)
        time_base = stream.time_base
    if not times:
        raise broken(path, "FFmpeg finds no frames in it")
    ticks = np.array(times, np.int64)
    ranks = presentation_ranks(ticks)
    ordered = bool((ticks[1:] >= ticks[:-1]).all())
    if not ordered and len(np.unique(ticks)) != len(ticks):
        raise broken(path, "two of its frames have the same time")
    return ranks, np.sort(ticks) * np.float64(time_base)


def carried_ffmpeg() -> tuple[str, tuple[str, ...]]:
    """Load PyAV; return the version of its FFmpeg, and the usual codecs that it decodes."""
    import av
    from av.codec import Codec
    from av.codec.codec import UnknownCodecError

    decodes = []
    for name in _CODECS:
        try:
            Codec(name, "r")
        except UnknownCodecError:
            continue
        decodes.append(name)
    return str(av.ffmpeg_version_info), tuple(decodes)


def decode_shown(
    path: str | os.PathLike[str], ranks: Iterable[int], *, is_depth: bool = False
) -> Iterator[tuple[int, Picture]]:
    """Decode chosen frames of a clip in one pass over the file.

    If the clip's index can be read, groups of pictures that no chosen frame needs are read but not
    decoded. Memory is that of the decoder and one frame.

    Args:
        path: The clip.
        ranks: Ranks of the frames.
        is_depth: Whether it is a depth stream.

    Yields:
        Rank and picture, in ascending order of rank: uint8 of shape (height, width, 3), or for
        depth uint16 of shape (height, width, 1), the 12-bit values that the stream stores.

    Raises:
        UnreadableSourceError: The clip cannot be read, or a frame is missing.
    """
    name = os.fspath(path)
    wanted = sorted(set(ranks))
    if not wanted:
        return
    if wanted[0] < 0:
        raise broken(name, f"there is no frame {wanted[0]}")
    picture_of = depth_converter() if is_depth else rgb_converter()
    with opened_video(name) as (container, stream):
        is_cut_off = False
        try:
            try:
                index = read_clip_index(name)
            except TruncatedClipError as error:
                index, is_cut_off = error.index, True
        except UnreadableSourceError:
            # leconvert cannot read the index; FFmpeg delivers the frames in order all the same.
            frames: Iterator[tuple[int, Any]] = enumerate(container.decode(stream))
        else:
            if wanted[-1] >= index.num_samples:
                raise broken(name, f"there is no frame {wanted[-1]}")
            needed = _needed_samples(index, wanted)
            frames = _decoded(container, stream, index, needed, is_cut_off=is_cut_off)
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

    PNG pixels are returned as stored: grey is repeated in three channels, palettes are looked up,
    alpha is dropped, 16-bit colours keep their upper byte. JPEG is decoded by FFmpeg, with chroma
    enlarged as libjpeg does by default; colours differ from libjpeg's by rounding, at most a few of
    255 levels.

    Args:
        data: The file's bytes.
        is_depth: Whether grey is depth.

    Returns:
        uint8 of shape (height, width, 3); depth of one channel has shape (height, width, 1), uint8,
        uint16 or float32 as stored.

    Raises:
        UnreadableSourceError: It is no such image, or is damaged.
    """
    import av

    begin = bytes(data[:8])
    found = (name for magic, name in _IMAGE_DECODERS.items() if begin.startswith(magic))
    decoder = next(found, None)
    if decoder is None:
        raise _no_image("it is neither PNG nor JPEG nor TIFF")
    # Use the decoder directly: opening a file probes it, which takes longer than decoding. A
    # decoder remembers the previous picture, so each image has its own.
    context: Any = av.CodecContext.create(decoder, "r")
    context.thread_count = 1
    try:
        frames = context.decode(av.Packet(bytes(data))) or context.decode(None)
    except (av.error.FFmpegError, OSError, EOFError) as error:
        if is_depth and decoder == "tiff":
            return _metres(data, error)
        raise _no_image(getattr(error, "strerror", None) or str(error)) from error
    if not frames:
        raise _no_image("it is empty or cut short")
    return _stored_picture(frames[0], is_depth)


def _metres(data: bytes | memoryview, error: Exception) -> Picture:
    """Return the distances of a TIFF of float32, as LeRobot stores metres; FFmpeg has no such."""
    try:
        from PIL import Image  # LeRobot brings it
    except ImportError:
        from leconvert.support.extras import install_command

        pillow = install_command("pillow")
        raise _no_image(f"TIFF files of float32 need Pillow: `{pillow}`") from error
    try:
        with Image.open(io.BytesIO(data)) as image:
            if image.mode != "F":
                raise _no_image(f"its pixels are {image.mode}") from error
            distances: Picture = np.array(image)[..., None]
            return distances
    except OSError:
        raise _no_image(getattr(error, "strerror", None) or str(error)) from error


def _stored_picture(frame: Any, is_depth: bool) -> Picture:
    """Return an image file's pixels, without a conversion that rounds if possible."""
    stored = frame.format.name
    if stored == "rgb24":
        plain: npt.NDArray[np.uint8] = frame.to_ndarray()
        return plain
    if stored.startswith("ya"):
        frame = _reformatting()(frame, format="gray" if stored == "ya8" else "gray16le")
        stored = frame.format.name
    if stored in ("gray", "gray16le", "gray16be"):
        grey: Picture = frame.to_ndarray()[..., None]
        if is_depth:
            return grey
        if grey.dtype != np.uint8:
            raise _no_image("it holds 16-bit grey, but its feature is not a depth map")
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
        # By default swscale repeats chroma; libjpeg interpolates it.
        frame = _reformatting()(frame, format="yuvj444p", interpolation="BILINEAR")
    return rgb_converter()(frame)


def rgb_converter() -> Callable[[Any], Picture]:
    """Return a function from frames of one stream to RGB; it keeps FFmpeg's tables."""
    reformat = _reformatting()
    from av.video.reformatter import Colorspace  # after the whole, see there

    def rgb_picture(frame: Any) -> Picture:
        # The names of these formats say full range, whatever the stream declares.
        is_full = frame.color_range == _FULL_RANGE or frame.format.name.startswith(("yuvj", "gray"))
        converted = reformat(
            frame,
            format="rgb24",
            # swscale numbers its matrices as FFmpeg does those of a stream.
            src_colorspace=int(frame.colorspace),
            dst_colorspace=Colorspace.DEFAULT,
            src_color_range=_FULL_RANGE if is_full else 1,
            # torchcodec's choice; it matters when chroma of more than 8 bits is enlarged.
            interpolation="BICUBIC",
        )
        picture: Picture = converted.to_ndarray()
        return picture

    return rgb_picture


def depth_converter() -> Callable[[Any], Picture]:
    """Return a function from frames of one depth stream to the stored 12-bit values."""
    reformat = _reformatting()

    def depth_picture(frame: Any) -> Picture:
        codes: Picture = reformat(frame, format=_DEPTH_FORMAT).to_ndarray()
        return codes[..., None]

    return depth_picture


def _reformatting() -> Callable[..., Any]:
    """Return a function that converts frames to another pixel format, without threads.

    Since version 17 PyAV starts threads for this by itself, and since version 19 one such object
    serves all frames of a thread. A process that is forked then, such as a loader's worker, has the
    object without its threads, and would wait for them for ever.
    """
    # The whole comes before its part: a thread that imports a part first, while another imports the
    # whole, makes Python give one of them a module that is not complete.
    import av  # noqa: F401
    from av.video.reformatter import VideoReformatter

    reformat: Callable[..., Any] = VideoReformatter().reformat
    return partial(reformat, threads=1) if _pyav_version() >= 17 else reformat


def _needed_samples(index: ClipIndex, wanted: list[int]) -> BoolArray:
    """Return which samples must be decoded for frames of these ranks, in decode order.

    These are whole groups of pictures, from one keyframe to the next. A frame that is decoded after
    a keyframe but shown before it (an open group) may also refer to the previous group.
    """
    ranks = index.ranks
    groups = np.cumsum(index.keyframes) - 1  # of each sample; -1 before the first keyframe
    heads = np.flatnonzero(index.keyframes)
    is_needed = np.zeros(len(heads) + 1, np.bool_)  # the last entry stands for group -1
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
    container: Any, stream: Any, index: ClipIndex, needed: BoolArray, *, is_cut_off: bool = False
) -> Iterator[tuple[int, Any]]:
    """Yield rank and frame of the needed samples, as the decoder returns them.

    Args:
        is_cut_off: Whether the file was cut off, and the index holds only complete samples.
    """
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
        if number >= len(needed) and is_cut_off:
            break
        if number >= len(needed):
            raise broken(index.path, "it holds more frames than its index says")
        if needed[number]:
            rank_of_time[packet.pts] = int(ranks[number])
            yield from placed(context.decode(packet))
            is_fed = True
        elif is_fed:
            # The decoder starts again at the next keyframe, so the gap does not matter.
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
