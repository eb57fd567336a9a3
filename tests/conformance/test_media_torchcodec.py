"""torchcodec opens joined files, seeks to every frame by number and by time, and gets it right."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from tests.pictures import decoded_pictures
from torchcodec.decoders import VideoDecoder

from leconvert.media import join_clips
from leconvert.model.values import Slice
from leconvert.testing.encode import encode_clip

OPTIONS = {
    "libx264": {"x264-params": "bframes=2:b-adapt=0:scenecut=0:keyint=6"},
    "libsvtav1": {"preset": "12", "svtav1-params": "lp=1"},
    "libx265": {},
    "libvpx-vp9": {"cpu-used": "8", "deadline": "realtime"},
    "mpeg4": {"bf": "2", "b": "4000000"},
}


def clips_of(codec: str, folder: Path, fps: Fraction) -> list[Path]:
    paths = []
    for seed, count in enumerate((13, 1, 20)):
        noise = np.random.default_rng(seed).integers(0, 60, (64, 64, 3))
        steps = np.linspace(0, 190, count).astype(np.int64)
        frames = [np.roll(noise + s, 3 * i, axis=1).astype(np.uint8) for i, s in enumerate(steps)]
        if count == 1 and "bf" in OPTIONS[codec]:
            continue  # FFmpeg's muxer refuses a lone frame of an encoder with B-frames
        paths.append(folder / f"{seed}.mp4")
        encode_clip(paths[-1], frames, fps=fps, codec=codec, gop_size=6, options=OPTIONS[codec])
    return paths


@pytest.mark.parametrize("codec", OPTIONS)
@pytest.mark.parametrize(
    ("seek_mode", "rate"), [("exact", "29.97"), ("approximate", "10"), ("approximate", "29.97")]
)
def test_every_frame_is_found_at_its_exact_time(
    codec: str, seek_mode: str, rate: str, tmp_path: Path
) -> None:
    fps = Fraction(rate)
    clips = clips_of(codec, tmp_path, fps)
    path = tmp_path / "joined.mp4"
    join_clips([Slice(str(clip)) for clip in clips], path, fps=fps, block_align=4096)
    decoder = VideoDecoder(str(path), seek_mode=seek_mode)
    expected = [picture for clip in clips for picture in decoded_pictures(clip)]
    assert len(decoder) == len(expected)
    assert decoder.metadata.average_fps == pytest.approx(float(fps), rel=1e-12)
    assert decoder.metadata.begin_stream_seconds_from_header == 0

    # torchcodec turns YUV into RGB on its own; compare its pictures of the clips, frame by frame.
    sources = [
        frame.numpy()
        for clip in clips
        for frame in VideoDecoder(str(clip), seek_mode="exact")
        .get_frames_in_range(0, len(VideoDecoder(str(clip))))
        .data
    ]
    assert len({frame.tobytes() for frame in sources}) == len(sources)
    order = np.random.default_rng(3).permutation(len(expected)).tolist()
    batch = decoder.get_frames_at(order)
    for place, number in enumerate(order):
        assert abs(float(batch.pts_seconds[place]) - number / fps) < 1e-9
        assert (batch.data[place].numpy() == sources[number]).all()
        difference = np.abs(
            batch.data[place].numpy().transpose(1, 2, 0).astype(int) - expected[number]
        )
        assert difference.mean() < 3
    times = [float(Fraction(number) / fps) + 1e-7 for number in order]
    for number, frame in zip(order, decoder.get_frames_played_at(times).data, strict=True):
        assert (frame.numpy() == sources[number]).all()
