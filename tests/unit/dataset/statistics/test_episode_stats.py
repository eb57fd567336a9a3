"""Statistics of an episode's table and clips: which features, which rows, which frames."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.pictures import decoded_pictures

from leconvert import media
from leconvert.dataset.statistics import (
    ImageStats,
    clip_stats,
    column_stats,
    sample_indices,
    table_stats,
)
from leconvert.model.values import is_depth_map
from leconvert.support.errors import UnreadableSourceError
from leconvert.testing.dataset import encode_png
from leconvert.testing.encode import encode_clip

IMAGE_TYPE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])

FEATURES = {
    "observation.state": {"dtype": "float32", "shape": [2]},
    "observation.images.top": {"dtype": "video", "shape": [32, 32, 3]},
    "observation.images.wrist": {"dtype": "image", "shape": [8, 6, 3]},
    "grid": {"dtype": "float64", "shape": [2, 2]},
    "note": {"dtype": "string", "shape": [1]},
    "words": {"dtype": "language", "shape": [1]},
    "next.done": {"dtype": "bool", "shape": [1]},
    "frame_index": {"dtype": "int64", "shape": [1]},
}


def pictures(count: int) -> list[np.ndarray[Any, Any]]:
    return list(np.random.default_rng(2).integers(0, 256, (count, 8, 6, 3), dtype=np.uint8))


def table_of(rows: int = 7) -> pa.Table:
    images = [{"bytes": encode_png(image), "path": None} for image in pictures(rows)]
    return pa.table(
        {
            "observation.state": pa.array([[i, -i] for i in range(rows)], pa.list_(pa.float32())),
            "observation.images.wrist": pa.array(images, IMAGE_TYPE),
            "grid": pa.array([[[i, 2], [3, 4]] for i in range(rows)]),
            "note": pa.array(["x"] * rows),
            "words": pa.array([["x"]] * rows),
            "next.done": pa.array([False] * (rows - 1) + [True]),
            "frame_index": pa.array(range(rows), pa.int64()),
        }
    )


def expected_image_stats(images: list[np.ndarray[Any, Any]]) -> dict[str, Any]:
    stats = ImageStats(quantiles=True)
    for image in images:
        stats.add(image)
    return stats.result()


def test_every_feature_with_numbers_or_images_is_computed_in_their_order() -> None:
    table = table_of()
    found = table_stats(table, FEATURES, names=list(FEATURES), quantiles=True)
    assert list(found) == [
        "observation.state", "observation.images.wrist", "grid", "next.done", "frame_index",
    ]  # fmt: skip
    assert found["observation.images.wrist"] == expected_image_stats(pictures(7))
    for name in ("observation.state", "grid", "next.done", "frame_index"):
        assert found[name] == column_stats(table.column(name), quantiles=True)


def test_only_what_is_named_and_has_numbers_is_computed() -> None:
    found = table_stats(table_of(), FEATURES, names=("grid", "absent"), quantiles=False)
    assert list(found) == ["grid"]
    assert "q50" not in found["grid"]
    features = {"when": {"dtype": "timestamp"}, "frame_index": {"dtype": "int64"}}
    table = pa.table({"when": pa.array([1, 2], pa.timestamp("s")), "frame_index": [0, 1]})
    assert list(table_stats(table, features, names=list(features), quantiles=False)) == [
        "frame_index"
    ]


def test_only_sampled_images_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[bytes] = []
    picture = np.zeros((2, 2, 3), np.uint8)

    def decode(data: memoryview, *, is_depth: bool) -> np.ndarray[Any, Any]:
        decoded.append(bytes(data))
        assert not is_depth
        return picture

    monkeypatch.setattr(media, "decode_image", decode)
    cells = [{"bytes": str(i).encode(), "path": None} for i in range(1000)]
    whole = pa.array(cells, IMAGE_TYPE)
    table = pa.table({"observation.images.wrist": pa.chunked_array([whole[:300], whole[300:]])})
    found = table_stats(table, FEATURES, names=["observation.images.wrist"], quantiles=False)
    assert decoded == [str(i).encode() for i in sample_indices(1000)]
    assert found["observation.images.wrist"]["count"] == [177]


def test_images_are_found_in_a_slice_of_a_table() -> None:
    names = ["observation.images.wrist"]
    found = table_stats(table_of().slice(2, 3), FEATURES, names=names, quantiles=True)
    assert found["observation.images.wrist"] == expected_image_stats(pictures(7)[2:5])


def test_images_are_found_in_every_chunk_and_in_an_extension_types_storage() -> None:
    class Picture(pa.ExtensionType):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(IMAGE_TYPE, "leconvert.tests.picture")

        def __arrow_ext_serialize__(self) -> bytes:
            return b""

        @classmethod
        def __arrow_ext_deserialize__(cls, *_: object) -> Picture:
            return cls()

    name = "observation.images.wrist"
    stored = table_of().column(name).combine_chunks()
    whole = pa.ExtensionArray.from_storage(Picture(), stored)
    none = whole.slice(0, 0)
    column = pa.chunked_array([none, whole.slice(0, 2), none, whole.slice(2, 4), whole.slice(6)])
    found = table_stats(pa.table({name: column}), FEATURES, names=[name], quantiles=True)
    assert found[name] == expected_image_stats(pictures(7))


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        (
            pa.array([{"bytes": None, "path": "a.png"}], IMAGE_TYPE),
            "row 0: there is no image, or only",
        ),
        (pa.array([None], IMAGE_TYPE), "row 0: there is no image"),
        (pa.array([{"bytes": b"no image", "path": None}], IMAGE_TYPE), "row 0: An image cannot"),
        (pa.array([{"path": "a.png"}]), "row 0: an image has no bytes"),
        (pa.array(["a.png"]), "row 0: the column contains string instead of"),
        (pa.array([], IMAGE_TYPE), "there are no frames"),
    ],
)
def test_images_that_are_none_are_an_error_that_names_all(column: pa.Array, reason: str) -> None:
    table = pa.table({"observation.images.wrist": column})
    with pytest.raises(UnreadableSourceError, match=reason) as caught:
        table_stats(
            table,
            FEATURES,
            names=["observation.images.wrist"],
            quantiles=False,
            path="data/episode_000004.parquet",
        )
    assert "observation.images.wrist in data/episode_000004.parquet" in str(caught.value)
    assert caught.value.next_step is not None
    assert "--drop-feature observation.images.wrist" in caught.value.next_step


def test_a_column_that_is_missing_or_ragged_is_an_error_that_names_it() -> None:
    ragged = pa.table({"observation.state": pa.array([[1.0], [1.0, 2.0]])})
    for table, reason in ((ragged, "1 to 2 entries"), (ragged.drop_columns(ragged.column_names),
                                                       "no column")):  # fmt: skip
        with pytest.raises(UnreadableSourceError, match=f"of observation.state.*{reason}"):
            table_stats(table, FEATURES, names=["observation.state"], quantiles=False)


def test_depth_images_keep_their_units() -> None:
    # FFmpeg's own PNG encoder, since depth has 16 bits.
    import io

    import av

    deep = np.arange(64, dtype=np.uint16).reshape(8, 8) * 1000
    output = io.BytesIO()
    with av.open(output, "w", format="image2pipe") as container:
        stream = container.add_stream("png", rate=1)
        stream.width, stream.height, stream.pix_fmt = 8, 8, "gray16be"
        frame = av.VideoFrame.from_ndarray(deep, format="gray16le").reformat(format="gray16be")
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    column = pa.array([{"bytes": output.getvalue(), "path": None}], IMAGE_TYPE)
    features = {"depth": {"dtype": "image", "shape": [8, 8, 1], "info": {"is_depth_map": True}}}
    found = table_stats(pa.table({"depth": column}), features, names=["depth"], quantiles=True)
    assert (found["depth"]["min"], found["depth"]["max"]) == ([[[0.0]]], [[[63000.0]]])
    assert found["depth"]["q50"] == [[[31000.0]]]


@pytest.mark.parametrize(
    ("feature", "expected"),
    [
        ({"info": {"is_depth_map": True}}, True),
        ({"info": {"video.is_depth_map": True}}, True),
        ({"video_info": {"video.is_depth_map": True}}, True),
        ({"video_info": {"video.is_depth_map": False}, "info": None}, False),
        ({}, False),
    ],
)
def test_depth_is_known_by_any_of_its_marks(feature: dict[str, Any], expected: bool) -> None:
    assert is_depth_map(feature) is expected


def test_a_clips_statistics_are_those_of_its_sampled_frames(tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    noise = np.random.default_rng(0).integers(0, 60, (32, 32, 3))
    drawn = [(noise + i).astype(np.uint8) for i in range(150)]
    options = {"x264-params": "bframes=2:b-adapt=0:scenecut=0:keyint=6"}
    encode_clip(path, drawn, fps=Fraction(30), gop_size=6, options=options)
    every = decoded_pictures(path)
    for length in (150, 140, 1):
        sampled = [every[rank] for rank in sample_indices(length)]
        assert [*clip_stats(path, [(0, length)], quantiles=True)] == [expected_image_stats(sampled)]


def test_a_clip_with_too_few_frames_or_none_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    encode_clip(path, [np.zeros((32, 32, 3), np.uint8)] * 5, fps=Fraction(30))
    with pytest.raises(UnreadableSourceError, match=r"clip\.mp4.*no frame 5"):
        [*clip_stats(path, [(0, 6)], quantiles=False)]
    with pytest.raises(UnreadableSourceError, match=r"clip\.mp4"):
        [*clip_stats(tmp_path / "clip.mp4", [(0, 0)], quantiles=False)]
