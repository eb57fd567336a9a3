"""A frame says who it is, also after lossy coding, and never equals its neighbour."""

from __future__ import annotations

import io

import numpy as np
import pytest

from leconvert.support.errors import UsageError
from leconvert.testing import FrameLabel, draw_frame, encode_png, read_label
from leconvert.testing.dataset import NoiseField


@pytest.mark.parametrize("size", [(16, 16), (96, 96), (50, 74), (480, 640)])
@pytest.mark.parametrize(
    "label", [FrameLabel(0, 0, 0), FrameLabel(15, 4095, 65535), FrameLabel(3, 1234, 40_001)]
)
def test_a_label_reads_back_as_it_was_drawn(label: FrameLabel, size: tuple[int, int]) -> None:
    assert read_label(draw_frame(label, *size)) == label


def test_a_label_survives_noise_wraps_around_and_needs_room() -> None:
    image = draw_frame(FrameLabel(1, 77, 300), 96, 96).astype(np.float64)
    rough = image + np.random.default_rng(0).normal(0, 60, image.shape)

    assert read_label(rough.clip(0, 255)) == FrameLabel(1, 77, 300)
    assert read_label(draw_frame(FrameLabel(17, 4097, 65_537), 32, 32)) == FrameLabel(1, 1, 1)
    with pytest.raises(UsageError, match="too small"):
        draw_frame(FrameLabel(0, 0, 0), 16, 14)


def test_no_frame_equals_its_neighbour_in_time_episode_or_camera() -> None:
    noise = NoiseField(0, 48, 96, 127)
    labels = [FrameLabel(camera, 5, frame) for camera in (0, 1) for frame in range(300)]
    labels += [FrameLabel(0, 6, frame) for frame in range(300)]
    for field in (None, noise):
        images = {draw_frame(label, 96, 96, noise=field).tobytes() for label in labels}
        assert len(images) == len(labels)


def test_a_png_decodes_to_the_pixels_it_was_made_of() -> None:
    image = draw_frame(FrameLabel(2, 3, 4), 48, 64, noise=NoiseField(1, 24, 64, 100))

    import av

    with av.open(io.BytesIO(encode_png(image)), format="png_pipe") as container:
        decoded = next(container.decode(video=0)).to_ndarray(format="rgb24")
    assert np.array_equal(decoded, image)


def test_noise_is_the_same_for_the_same_seed_and_stays_within_its_amplitude() -> None:
    first = NoiseField(7, 40, 60, 20).window(11, 40, 60)

    assert np.array_equal(first, NoiseField(7, 40, 60, 20).window(11, 40, 60))
    assert not np.array_equal(first, NoiseField(8, 40, 60, 20).window(11, 40, 60))
    assert first.min() >= 108
    assert first.max() < 148
