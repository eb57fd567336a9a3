"""MP4 clips: read their index, join them exactly, decode them. Nothing else here imports PyAV."""

from typing import TYPE_CHECKING

from leconvert.media.boxes import UnsupportedClipError
from leconvert.media.clip import ClipIndex, codec_of, order_digest, samples_sha256
from leconvert.media.header import FileHeader, FileSamples, build_header, frame_ticks
from leconvert.media.index import (
    StoredIndex,
    may_be_damaged,
    read_alike,
    read_clip_index,
    read_clip_indexes,
    read_clips,
    read_stored_index,
)
from leconvert.media.join import ClipRange, JoinedFile, LastIndex, join_clips
from leconvert.support.lazy import lazy_names

if TYPE_CHECKING:
    from leconvert.media.pyav import (
        check_decodes,
        count_tracks_and_frames,
        decode_image,
        decode_shown,
        packet_times,
        remux_clip,
    )
    from leconvert.media.retime import CopiedFile, Patch, copy_file, retiming

__all__ = [
    "ClipIndex",
    "ClipRange",
    "CopiedFile",
    "FileHeader",
    "FileSamples",
    "JoinedFile",
    "LastIndex",
    "Patch",
    "StoredIndex",
    "UnsupportedClipError",
    "build_header",
    "check_decodes",
    "codec_of",
    "copy_file",
    "count_tracks_and_frames",
    "decode_image",
    "decode_shown",
    "frame_ticks",
    "join_clips",
    "may_be_damaged",
    "order_digest",
    "packet_times",
    "read_alike",
    "read_clip_index",
    "read_clip_indexes",
    "read_clips",
    "read_stored_index",
    "remux_clip",
    "retiming",
    "samples_sha256",
]

# Most conversions need neither.
__getattr__ = lazy_names(
    __name__,
    {
        "pyav": (
            "check_decodes",
            "packet_times",
            "count_tracks_and_frames",
            "decode_image",
            "decode_shown",
            "remux_clip",
        ),
        "retime": ("CopiedFile", "Patch", "copy_file", "retiming"),
    },
)
