"""Statistics of images and clips beside those that LeRobot computes from the same frames.

The frames must be the same, bit for bit. LeRobot then sums pixels in float32, where a sum of
millions of them keeps few digits; given the same pixels as float64, its own functions must agree
with ours to nine digits, and as it is within what its rounding can amount to.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lerobot.datasets import compute_stats as reference
from lerobot.datasets.depth_utils import dequantize_depth
from lerobot.datasets.video_utils import decode_video_frames
from PIL import Image
from tests.recordings import each

from leconvert.dataset.statistics import (
    QUANTILES,
    ImageStats,
    clip_stats,
    downsampled,
    sample_indices,
    table_stats,
)
from leconvert.media import decode_image, decode_shown
from leconvert.support.errors import UnreadableSourceError

Array = np.ndarray[Any, Any]
DATASETS = ("cr5_5ep", "robot_sim_picknplace_v20")
BINS = 5000
CAMERA = "observation.images.x"


def test_sampled_frames_are_those_of_the_reference() -> None:
    for length in [*range(3000), 9_999, 10_000, 123_456, 215_443, 215_444, 999_999, 3_000_000]:
        assert sample_indices(length) == reference.sample_indices(length), length


def test_sampled_pixels_are_those_of_the_reference() -> None:
    rng = np.random.default_rng(0)
    sides = [1, 150, 299, 300, 301, 449, 450, 599, 600, 1080, *rng.integers(1, 1500, 20).tolist()]
    for height in sides:
        for width in sides:
            picture = np.empty((height, width, 1), np.uint8)
            found = downsampled(picture).transpose(2, 0, 1).shape
            expected = reference.auto_downsample_height_width(picture.transpose(2, 0, 1)).shape
            assert found == expected, (height, width)


def reference_image_stats(paths: list[str], *, is_depth: bool = False) -> dict[str, Array]:
    features = {CAMERA: {"dtype": "image", "info": {"is_depth_map": is_depth}}}
    stats: dict[str, dict[str, Array]] = reference.compute_episode_stats({CAMERA: paths}, features)
    return stats[CAMERA]


def assert_same_images(
    stats: dict[str, Any], paths: list[str], *, is_depth: bool = False
) -> dict[str, float]:
    """Compare with the reference's statistics of image files; return the largest differences.

    Least and greatest values must be equal once they are rounded to float32, as the reference has
    them; quantiles may lie one of its bins apart.
    """
    expected = reference_image_stats(paths, is_depth=is_depth)
    assert list(stats) == list(expected)
    assert stats["count"] == expected["count"].tolist()
    for name in ("min", "max"):
        np.testing.assert_array_equal(np.float32(stats[name]), expected[name])
    span = np.asarray(stats["max"]) - np.asarray(stats["min"])
    for name in QUANTILES:
        error = np.abs(np.asarray(stats[name]) - expected[name])
        assert (error <= span / BINS * 1.01 + 1e-9).all(), (name, error)

    scale = 1 if is_depth else 255
    pixels = reference.sample_images(paths).astype(np.float64)
    double = reference.get_feature_stats(pixels, axis=(0, 2, 3), keepdims=True)
    for name in ("min", "max", "mean", "std"):
        np.testing.assert_allclose(stats[name], double[name][0] / scale, rtol=1e-9, atol=1e-9)

    # The bounds that column_stats derives, over as many rows as there are pixels.
    number = pixels[:, 0].size
    square = np.asarray(stats["mean"]) ** 2 + np.asarray(stats["std"]) ** 2
    variance_bound = (3 * number + 8) * 2.0**-24 * square
    bounds = {
        "mean": (number + 1) * 2.0**-24 * np.sqrt(square),
        "std": np.minimum(np.sqrt(variance_bound), variance_bound / np.maximum(stats["std"], 1e-9)),
    }
    differences = {}
    for name, bound in bounds.items():
        error = np.abs(np.asarray(stats[name]) - expected[name])
        assert (error <= bound + 1e-6).all(), (name, error, bound)
        differences[name] = float(error.max())
    return differences


def saved(folder: Path, frames: dict[int, Array], count: int) -> list[str]:
    """Write frames as files; the reference takes those it samples from ``count`` paths."""
    folder.mkdir()
    paths = [str(folder / "not sampled.png")] * count
    for number, frame in frames.items():
        paths[number] = str(folder / f"{number}.png")
        Image.fromarray(frame).save(paths[number], compress_level=1)
    return paths


@pytest.mark.parametrize(("rows", "height", "width"), [(1, 24, 32), (130, 24, 32), (3, 480, 640)])
def test_images_of_a_table_agree(rows: int, height: int, width: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    images = {
        row: rng.integers(row // 2, 256 - row // 2, (height, width, 3), dtype=np.uint8)
        for row in sample_indices(rows)
    }
    paths = saved(tmp_path / "images", images, rows)
    cells = [
        {"bytes": Path(path).read_bytes() if row in images else b"", "path": None}
        for row, path in enumerate(paths)
    ]
    features = {CAMERA: {"dtype": "image", "shape": [height, width, 3]}}
    found = table_stats(pa.table({CAMERA: cells}), features, names=[CAMERA], quantiles=True)
    worst = assert_same_images(found[CAMERA], paths)
    assert max(worst.values()) < 0.1 / 255


def reference_frames(path: Path, ranks: list[int], fps: float) -> Array:
    """Decode with torchcodec through the reference, uint8 of shape (n, height, width, 3)."""
    times = [rank / fps for rank in ranks]
    decoded = decode_video_frames(path, times, 1e-4, backend="torchcodec", return_uint8=True)
    frames: Array = decoded.permute(0, 2, 3, 1).numpy()
    return frames


def episodes_of(recording: Path) -> list[tuple[Path, int, float]]:
    """Return clip, number of frames and frames a second of the first episodes of a recording."""
    fps = json.loads((recording / "meta" / "info.json").read_text())["fps"]
    found = []
    for path in sorted(recording.rglob("*.mp4"))[:2]:
        rows = recording / "data" / "chunk-000" / f"{path.stem}.parquet"
        found.append((path, pq.read_metadata(rows).num_rows, fps))
    return found


@pytest.mark.parametrize("recording", each(*DATASETS, slow=True), indirect=True)
def test_clips_of_recordings_give_the_frames_of_the_reference(recording: Path) -> None:
    for path, length, fps in episodes_of(recording):
        exact = ImageStats(quantiles=True)
        for frame in reference_frames(path, sample_indices(length), fps):
            exact.add(frame)
        assert [*clip_stats(path, [(0, length)], quantiles=True)] == [exact.result()]


def coloured_clip(
    path: Path, encoder: str, pixel_format: str, matrix: int, width: int, *, is_full: bool = False
) -> None:
    """Encode noise that says which of FFmpeg's matrices its colours are of, and which range."""
    rng = np.random.default_rng(6)
    with av.open(str(path), "w", format="mp4") as output:
        quiet = {"x265-params": "log-level=none"} if encoder == "libx265" else {}
        stream = output.add_stream(encoder, rate=10, options=quiet)
        stream.width, stream.height, stream.pix_fmt = width, 48, pixel_format
        color_range = 2 if is_full or pixel_format.startswith("yuvj") else 1
        stream.codec_context.colorspace = matrix
        stream.codec_context.color_range = color_range
        for number in range(4):
            noise = rng.integers(0, 256, (48, width, 3), dtype=np.uint8)
            frame = av.VideoFrame.from_ndarray(noise, format="rgb24").reformat(format=pixel_format)
            frame.pts, frame.colorspace, frame.color_range = number, matrix, color_range
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
    path = tmp_path / "clip.mp4"
    width = (64, 66)[(CODED.index(coded) + [*MATRICES].index(matrix)) % 2]
    coloured_clip(path, *coded, MATRICES[matrix], width)
    expected = reference_frames(path, [0, 1, 2, 3], 10)
    for rank, picture in decode_shown(path, range(4)):
        np.testing.assert_array_equal(picture, expected[rank])


def test_full_range_of_vp9_is_honoured_at_every_width(tmp_path: Path) -> None:
    """torchcodec 0.11 takes it for limited range where the width is a multiple of 32."""
    errors = {}
    for width in (64, 66):
        path = tmp_path / f"{width}.mp4"
        coloured_clip(path, "libvpx-vp9", "yuv420p", 1, width, is_full=True)
        expected = reference_frames(path, [0, 1, 2, 3], 10).astype(int)
        found = np.stack([picture for _, picture in decode_shown(path, range(4))])
        errors[width] = float(np.abs(found - expected).mean())
    assert errors[66] == 0
    assert errors[64] > 3


def test_the_reference_loses_the_mean_of_flat_frames(tmp_path: Path) -> None:
    flat = np.full((256, 256, 3), 77, np.uint8)
    paths = saved(tmp_path / "flat", {0: flat}, 1) * 100
    stats = ImageStats(quantiles=True)
    for _ in paths:
        stats.add(flat)
    found = stats.result()
    assert (found["mean"][0], found["std"][0]) == ([[77 / 255]], [[0.0]])
    expected = reference_image_stats(paths)
    assert abs(expected["mean"][0, 0, 0] * 255 - 77) > 1
    assert expected["std"][0, 0, 0] * 255 > 10


@pytest.mark.parametrize("unit", ["mm", "m"])
@pytest.mark.parametrize("use_log", [True, False])
def test_depth_clips_have_the_distances_of_the_reference(
    tmp_path: Path, unit: str, use_log: bool
) -> None:
    facts = {"depth_min": 0.2, "depth_max": 7.5, "shift": 1.5, "use_log": use_log}
    info = {"is_depth_map": True, "depth_unit": unit}
    info |= {f"video.{name}": value for name, value in facts.items()}
    path = tmp_path / "depth.mp4"
    rng = np.random.default_rng(8)
    with av.open(str(path), "w", format="mp4") as output:
        options = {"x265-params": "log-level=none"}
        stream = output.add_stream("libx265", rate=10, options=options)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "gray12le"
        for number in range(12):
            codes = rng.integers(0, 4096, (48, 64), dtype=np.uint16)
            frame = av.VideoFrame.from_ndarray(codes, format="gray12le")
            frame.pts = number
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    paths = []
    decoded = decode_video_frames(path, [i / 10 for i in range(12)], 1e-4, is_depth=True)
    for number, codes in enumerate(decoded.numpy()):
        distances = dequantize_depth(codes, **facts, output_unit="mm", output_tensor=False)
        paths.append(str(tmp_path / f"{number:02d}.tiff"))
        Image.fromarray(distances[0]).save(paths[-1])
    (found,) = clip_stats(path, [(0, 12)], {"info": info}, quantiles=True)
    if unit == "m":
        thousandth = {name: np.asarray(value) * 1000 for name, value in found.items()}
        found = {**thousandth, "count": found["count"]}
    worst = assert_same_images(found, paths, is_depth=True)
    assert max(worst.values()) < 1


def test_depth_images_in_metres_are_read_and_have_the_statistics_of_the_reference() -> None:
    metres = np.random.default_rng(8).uniform(0.3, 9, (3, 48, 64)).astype(np.float32)
    files = [encoded(Image.fromarray(picture), "TIFF") for picture in metres]
    for file, picture in zip(files, metres, strict=True):
        assert np.array_equal(decode_image(file, is_depth=True)[..., 0], picture)
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table({CAMERA: pa.array([{"bytes": file, "path": ""} for file in files], kind)})
    info = {"is_depth_map": True, "depth_unit": "m"}
    found = table_stats(
        table, {CAMERA: {"dtype": "image", "info": info}}, names=[CAMERA], quantiles=False
    )[CAMERA]
    expected = reference.get_feature_stats(metres[:, None].astype(float), (0, 2, 3), keepdims=True)
    for name in ("min", "max", "mean", "std"):
        np.testing.assert_allclose(found[name], expected[name][0], atol=0.0005)
    with pytest.raises(UnreadableSourceError, match="Invalid data"):
        decode_image(files[0])
    with pytest.raises(UnreadableSourceError):
        decode_image(files[0][: len(files[0]) // 2], is_depth=True)


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    output = io.BytesIO()
    image.save(output, kind, **options)
    return output.getvalue()


def noise_image(mode: str, *shape: int) -> Image.Image:
    noise = np.random.default_rng(9).integers(0, 256, shape, dtype=np.uint8)
    return Image.fromarray(noise).convert(mode) if len(shape) == 3 else Image.fromarray(noise)


@pytest.mark.parametrize(
    "data",
    [
        encoded(noise_image("RGB", 31, 45, 3)),
        encoded(noise_image("RGB", 31, 45, 3), transparency=(1, 2, 3)),
        encoded(noise_image("RGBA", 31, 45, 4)),
        encoded(noise_image("L", 31, 45)),
        encoded(noise_image("L", 31, 45), transparency=5),
        encoded(noise_image("LA", 31, 45, 4)),
        encoded(noise_image("RGB", 31, 45, 3).quantize(200)),
        encoded(noise_image("RGB", 31, 45, 3).quantize(12), transparency=3),
        encoded(noise_image("L", 31, 45).convert("1")),
        encoded(noise_image("RGB", 31, 45, 3), "TIFF"),
    ],
    ids=["RGB", "RGB with a colour to hide", "RGBA", "grey", "grey with a shade to hide",
         "grey and alpha", "palette", "palette of 4 bits", "1 bit", "TIFF"],
)  # fmt: skip
def test_images_are_the_same_as_the_references_reader_gives(data: bytes) -> None:
    expected = np.array(Image.open(io.BytesIO(data)).convert("RGB"))
    np.testing.assert_array_equal(decode_image(data), expected)


@pytest.mark.parametrize("subsampling", [0, 1, 2], ids=["4:4:4", "4:2:2", "4:2:0"])
def test_jpeg_differs_from_the_references_reader_by_rounding(subsampling: int) -> None:
    smooth = noise_image("RGB", 30, 40, 3).resize((320, 240), Image.Resampling.BICUBIC)
    data = encoded(smooth, "JPEG", quality=90, subsampling=subsampling)
    expected = np.array(Image.open(io.BytesIO(data))).astype(int)
    error = np.abs(decode_image(data) - expected)
    assert error.max() <= 4
    assert error.mean() < 0.5
