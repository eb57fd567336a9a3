"""What PyAV's FFmpeg is and decodes, as ``leconvert doctor`` says it."""

from __future__ import annotations

from typing import Any

import av
import av.codec
import pytest
from av.codec.codec import UnknownCodecError

from leconvert.media.pyav import carried_ffmpeg


def test_the_ffmpeg_of_these_tests_decodes_what_they_encode() -> None:
    version, decodes = carried_ffmpeg()
    assert decodes == ("av1", "h264", "hevc", "mpeg4", "vp9")
    assert version == av.ffmpeg_version_info
    assert type(version) is str


def test_a_codec_that_was_left_out_of_the_build_is_not_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lookup(name: str, mode: str) -> Any:
        assert mode == "r", "encoders say nothing of what can be shown"
        if name in ("av1", "hevc"):
            raise UnknownCodecError(name)

    monkeypatch.setattr(av.codec, "Codec", lookup)
    assert carried_ffmpeg()[1] == ("h264", "mpeg4", "vp9")
