"""What PyAV carries: the version of its FFmpeg, and which codecs it decodes."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CarriedFfmpeg", "carried_ffmpeg"]

# What LeRobot's datasets are coded with: AV1 by default, the others by choice or by age.
_CODECS = ("av1", "h264", "hevc", "mpeg4", "vp9")


@dataclass(frozen=True, slots=True)
class CarriedFfmpeg:
    """The FFmpeg that PyAV loads.

    Attributes:
        version: FFmpeg's version.
        decodes: Which of the usual codecs it decodes.
    """

    version: str
    decodes: tuple[str, ...]


def carried_ffmpeg() -> CarriedFfmpeg:
    """Load PyAV and look.

    Raises:
        ImportError: PyAV is missing, or one of its libraries.
    """
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
    return CarriedFfmpeg(str(av.ffmpeg_version_info), tuple(decodes))
