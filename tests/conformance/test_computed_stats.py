"""Statistics of columns, images and clips beside those that LeRobot computes of the same.

Ours are exact (tests/unit/dataset/statistics). LeRobot sums in the precision of the data, where a
sum of millions of pixels keeps few digits; given the same pixels as float64, its own functions must
agree with ours to nine digits.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from lerobot.datasets import compute_stats as reference
from lerobot.datasets.depth_utils import dequantize_depth
from lerobot.datasets.video_utils import decode_video_frames
from PIL import Image

from leconvert.dataset.statistics import (
    QUANTILES,
    clip_stats,
    column_stats,
    downsampled,
    sample_indices,
    table_stats,
)
from leconvert.media import decode_image, decode_shown
from leconvert.support.errors import UnreadableSourceError

Array = np.ndarray[Any, Any]
BINS = 5000
CAMERA = "observation.images.x"


def column_and_reference(values: Array) -> tuple[dict[str, Any], dict[str, Array]]:
    kind: pa.DataType = pa.from_numpy_dtype(values.dtype)
    for _ in values.shape[1:]:
        kind = pa.list_(kind)
    ours = column_stats(pa.array(values.tolist(), kind), quantiles=True)
    assert ours is not None
    feature = {"dtype": str(values.dtype), "shape": values.shape[1:] or (1,)}
    theirs: dict[str, dict[str, Array]] = reference.compute_episode_stats(
        {"x": values}, {"x": feature}
    )
    return ours, theirs["x"]


@settings(max_examples=60, deadline=None)
@given(
    st.one_of(
        hnp.arrays(np.float32, st.tuples(st.integers(2, 60), st.integers(1, 3)),
                   elements=st.floats(-1000, 1000, width=32)),
        hnp.arrays(np.float64, st.integers(2, 60), elements=st.floats(-1e6, 1e6)),
        hnp.arrays(np.int64, st.integers(2, 60), elements=st.integers(-(2**30), 2**30)),
        hnp.arrays(np.uint8, st.integers(2, 60)),
        hnp.arrays(np.bool_, st.integers(2, 60)),
    )
)  # fmt: skip
def test_columns_have_the_statistics_of_the_reference_but_for_its_rounding(values: Array) -> None:
    stats, expected = column_and_reference(values)
    assert stats.keys() == expected.keys()
    for name in ("min", "max", "count"):
        np.testing.assert_array_equal(stats[name], expected[name], err_msg=name)
    scale = np.abs(values.astype(np.float64)).max() + 1e-9
    for name in ("mean", "std"):
        # A variance loses half the digits of the mean's square.
        np.testing.assert_allclose(stats[name], expected[name], rtol=0, atol=2e-3 * scale)
    span = np.asarray(stats["max"], np.float64) - np.asarray(stats["min"], np.float64)
    for name in QUANTILES:
        error = np.abs(expected[name] - np.asarray(stats[name]))
        assert (error <= span / BINS + 1e-6 * scale + 1e-9).all(), (name, error)


def test_matrices_agree_once_the_reference_has_merged_their_rows() -> None:
    """LeRobot reduces all axes but the last; one row it reduces along the first axis alone."""
    values = np.random.default_rng(1).normal(0, 40, (30, 4, 3)).astype(np.float32)
    stats, expected = column_and_reference(values)
    assert (np.shape(stats["min"]), expected["min"].shape) == ((4, 3), (3,))
    np.testing.assert_array_equal(np.min(stats["min"], axis=0), expected["min"])
    np.testing.assert_allclose(np.mean(stats["mean"], axis=0), expected["mean"], rtol=1e-3)
    assert column_and_reference(values[:1])[1]["min"].shape == (4, 3)


@pytest.mark.parametrize("shape", [(1,), (1, 4), (1, 2, 3)])
def test_an_episode_of_one_row_has_the_same_statistics(shape: tuple[int, ...]) -> None:
    for kind in ("float32", "float64", "int64", "bool"):
        values = np.random.default_rng(2).normal(0, 9, shape).astype(kind)
        stats, expected = column_and_reference(values)
        assert stats.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_array_equal(stats[name], value)


# Images and clips.


def test_sampled_frames_and_pixels_are_those_of_the_reference() -> None:
    for length in [*range(3000), 9_999, 10_000, 123_456, 215_443, 215_444, 999_999, 3_000_000]:
        assert sample_indices(length) == reference.sample_indices(length), length
    sides = [1, 150, 299, 300, 301, 449, 450, 599, 600, 1080]
    for height in sides:
        for width in sides:
            picture = np.empty((height, width, 1), np.uint8)
            expected = reference.auto_downsample_height_width(picture.transpose(2, 0, 1)).shape
            assert downsampled(picture).transpose(2, 0, 1).shape == expected, (height, width)


def assert_same_images(stats: dict[str, Any], paths: list[str], *, is_depth: bool = False) -> None:
    """Compare with the reference's statistics of image files."""
    features = {CAMERA: {"dtype": "image", "info": {"is_depth_map": is_depth}}}
    expected: dict[str, Array] = reference.compute_episode_stats({CAMERA: paths}, features)[CAMERA]
    assert list(stats) == list(expected)
    assert stats["count"] == expected["count"].tolist()
    for name in ("min", "max"):
        np.testing.assert_array_equal(np.float32(stats[name]), expected[name])
    span = np.asarray(stats["max"]) - np.asarray(stats["min"])
    for name in QUANTILES:
        error = np.abs(np.asarray(stats[name]) - expected[name])
        assert (error <= span / BINS * 1.01 + 1e-9).all(), (name, error)
    pixels = reference.sample_images(paths).astype(np.float64)
    double = reference.get_feature_stats(pixels, axis=(0, 2, 3), keepdims=True)
    for name in ("min", "max", "mean", "std"):
        wanted = double[name][0] / (1 if is_depth else 255)
        np.testing.assert_allclose(stats[name], wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("rows", "height", "width"), [(1, 24, 32), (130, 24, 32), (3, 480, 640)])
def test_images_of_a_table_agree(rows: int, height: int, width: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    paths = [str(tmp_path / "not sampled.png")] * rows
    cells: list[dict[str, Any]] = [{"bytes": b"", "path": None}] * rows
    for row in sample_indices(rows):
        frame = rng.integers(row // 2, 256 - row // 2, (height, width, 3), dtype=np.uint8)
        paths[row] = str(tmp_path / f"{row}.png")
        Image.fromarray(frame).save(paths[row], compress_level=1)
        cells[row] = {"bytes": Path(paths[row]).read_bytes(), "path": None}
    features = {CAMERA: {"dtype": "image", "shape": [height, width, 3]}}
    found = table_stats(pa.table({CAMERA: cells}), features, names=[CAMERA], quantiles=True)
    assert_same_images(found[CAMERA], paths)


def write_clip(path: Path, encoder: str, pixel_format: str, frames: list[Any], **of: int) -> None:
    """Encode frames; ``of`` says what FFmpeg is told of their colours."""
    with av.open(str(path), "w", format="mp4") as output:
        quiet = {"x265-params": "log-level=none"} if encoder == "libx265" else {}
        stream = output.add_stream(encoder, rate=10, options=quiet)
        stream.width, stream.height, stream.pix_fmt = (
            frames[0].width,
            frames[0].height,
            pixel_format,
        )
        for name, value in of.items():
            setattr(stream.codec_context, name, value)
        for number, frame in enumerate(frames):
            frame.pts = number
            for name, value in of.items():
                setattr(frame, name, value)
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))


MATRICES = {"BT.709": 1, "unsaid": 2, "BT.601": 5, "BT.2020": 9}
CODED = (
    ("libx264", "yuv420p"),
    ("libx264", "yuvj420p"),
    ("libx264", "yuv444p"),
    ("libx265", "yuv420p10le"),
    ("libx265", "gray"),
    ("libsvtav1", "yuv420p"),
    ("libvpx-vp9", "yuv420p"),
)


# Every matrix with every way to code frames, and both widths with each of either.
@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize("coded", CODED, ids=" ".join)
def test_colours_are_those_of_the_reference_whatever_the_stream_declares(
    coded: tuple[str, str], matrix: str, tmp_path: Path
) -> None:
    width = (64, 66)[(CODED.index(coded) + [*MATRICES].index(matrix)) % 2]
    rng = np.random.default_rng(6)
    frames = [
        av.VideoFrame.from_ndarray(
            rng.integers(0, 256, (48, width, 3), dtype=np.uint8), format="rgb24"
        ).reformat(format=coded[1])
        for _ in range(4)
    ]
    of = {"colorspace": MATRICES[matrix], "color_range": 2 if coded[1].startswith("yuvj") else 1}
    write_clip(tmp_path / "clip.mp4", *coded, frames, **of)
    times = [rank / 10 for rank in range(4)]
    decoded = decode_video_frames(
        tmp_path / "clip.mp4", times, 1e-4, backend="torchcodec", return_uint8=True
    )
    for rank, picture in decode_shown(tmp_path / "clip.mp4", range(4)):
        np.testing.assert_array_equal(picture, decoded[rank].permute(1, 2, 0).numpy())


@pytest.mark.parametrize("unit", ["mm", "m"])
@pytest.mark.parametrize("use_log", [True, False])
def test_depth_clips_have_the_distances_of_the_reference(
    tmp_path: Path, unit: str, use_log: bool
) -> None:
    facts: dict[str, Any] = {"depth_min": 0.2, "depth_max": 7.5, "shift": 1.5, "use_log": use_log}
    info = {"is_depth_map": True, "depth_unit": unit}
    info |= {f"video.{name}": value for name, value in facts.items()}
    path = tmp_path / "depth.mp4"
    rng = np.random.default_rng(8)
    codes = [rng.integers(0, 4096, (48, 64), dtype=np.uint16) for _ in range(12)]
    frames = [av.VideoFrame.from_ndarray(each, format="gray12le") for each in codes]
    write_clip(path, "libx265", "gray12le", frames)
    paths = []
    decoded = decode_video_frames(path, [i / 10 for i in range(12)], 1e-4, is_depth=True)
    for number, image in enumerate(decoded.numpy()):
        distances = dequantize_depth(image, **facts, output_unit="mm", output_tensor=False)
        paths.append(str(tmp_path / f"{number:02d}.tiff"))
        Image.fromarray(distances[0]).save(paths[-1])
    (found,) = clip_stats(path, [(0, 12)], {"info": info}, quantiles=True)
    if unit == "m":
        found |= {name: np.asarray(found[name]) * 1000 for name in found.keys() - {"count"}}
    assert_same_images(found, paths, is_depth=True)


def test_depth_images_in_metres_are_read_and_have_the_statistics_of_the_reference() -> None:
    metres = np.random.default_rng(8).uniform(0.3, 9, (3, 48, 64)).astype(np.float32)
    files = []
    for picture in metres:
        file = io.BytesIO()
        Image.fromarray(picture).save(file, "TIFF")
        files.append(file.getvalue())
        assert np.array_equal(decode_image(files[-1], is_depth=True)[..., 0], picture)
    info = {"is_depth_map": True, "depth_unit": "m"}
    features = {CAMERA: {"dtype": "image", "shape": [48, 64, 1], "info": info}}
    table = pa.table({CAMERA: [{"bytes": file, "path": ""} for file in files]})
    found = table_stats(table, features, names=[CAMERA], quantiles=False)[CAMERA]
    expected = reference.get_feature_stats(metres[:, None].astype(float), (0, 2, 3), keepdims=True)
    for name in ("min", "max", "mean", "std"):
        np.testing.assert_allclose(found[name], expected[name][0], atol=0.0005)
    for data, is_depth in ((files[0], False), (files[0][:6000], True)):
        with pytest.raises(UnreadableSourceError):
            decode_image(data, is_depth=is_depth)
