"""MP4 clips: reading their index, joining them exactly, decoding them. Only `pyav` imports PyAV."""

from typing import TYPE_CHECKING

from leconvert.media.boxes import UnsupportedClipError
from leconvert.media.codecs import codec_of
from leconvert.media.index import (
    ClipIndex,
    TruncatedClipError,
    may_be_damaged,
    order_digest,
    read_clip_index,
    read_clip_indexes,
    read_clips,
    samples_sha256,
)
from leconvert.media.join import (
    CopiedFile,
    FileHeader,
    FileSamples,
    JoinedFile,
    LastIndex,
    build_header,
    copy_file,
    frame_ticks,
    has_exact_times,
    join_clips,
)
from leconvert.support.extras import lazy_names

if TYPE_CHECKING:
    from leconvert.media.pyav import (
        carried_tracks,
        check_decodes,
        count_tracks_and_frames,
        decode_image,
        decode_shown,
        other_tracks_sha256,
        packet_times,
        remux_clip,
    )

__all__ = [
    "ClipIndex",
    "CopiedFile",
    "FileHeader",
    "FileSamples",
    "JoinedFile",
    "LastIndex",
    "TruncatedClipError",
    "UnsupportedClipError",
    "build_header",
    "carried_tracks",
    "check_decodes",
    "codec_of",
    "copy_file",
    "count_tracks_and_frames",
    "decode_image",
    "decode_shown",
    "frame_ticks",
    "has_exact_times",
    "join_clips",
    "may_be_damaged",
    "order_digest",
    "other_tracks_sha256",
    "packet_times",
    "read_clip_index",
    "read_clip_indexes",
    "read_clips",
    "remux_clip",
    "samples_sha256",
]

# Most conversions need none of these.
__getattr__ = lazy_names(
    __name__,
    {
        "pyav": (
            "carried_tracks",
            "check_decodes",
            "packet_times",
            "count_tracks_and_frames",
            "decode_image",
            "decode_shown",
            "other_tracks_sha256",
            "remux_clip",
        ),
    },
)
