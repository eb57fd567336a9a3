"""Whole conversions: LeRobot's converter and ours on the same inputs.

Equality is semantic (see ``comparison``): files, numbers, metadata, rows and coded packets are the
same, and every frame of ours loads and is the source's frame of the same index, pixel by pixel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import comparison
import datasets
import pandas as pd
import pyarrow.parquet as pq
import pytest
from comparison import V21Source
from reference import convert_with_reference
from tests.recordings import marks_of

import leconvert
from leconvert.dataset.formats.v3 import USUAL_NAMES
from leconvert.model.values import LayoutOptions, Slice
from leconvert.run.proof import verify_pair
from leconvert.tables import join_tables, output_schema, read_data_schema
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset
from leconvert.testing.dataset import RandomLengths

_TINY = CameraSpec(key="observation.images.tiny", width=32, height=32, options={"bf": "0"})


@dataclass(frozen=True)
class Case:
    """One input, and what makes it worth a test.

    Attributes:
        source: A spec to generate, or a name in `tests.recordings`.
        limits: File size limits for both converters, data and video, in MiB.
        extra_files: Files that ours takes along.
        min_files: At least so many data files, and files a camera, must come out.
        window: Frames that one item loads; more than one where there are very many.
        decoder: The one that loads its frames; all where None.
    """

    source: DatasetSpec | str
    limits: tuple[float, float] | None = None
    extra_files: frozenset[str] = frozenset()
    min_files: tuple[int, int] = (1, 1)
    window: int = 1
    decoder: str | None = "torchcodec"


CASES: dict[str, Case] = {
    "cr5_5ep": Case("cr5_5ep", window=60, decoder="pyav"),
    "no_cameras": Case(DatasetSpec(episodes=4, frames=(3, 8, 1, 5), cameras=(), has_done=True)),
    "three_cameras": Case(
        DatasetSpec(
            episodes=7,
            frames=RandomLengths(2, 4, 11),
            cameras=(
                CameraSpec(key="observation.images.top", width=128, height=96),
                CameraSpec(key="observation.images.left", codec="libsvtav1", gop_size=5),
                CameraSpec(
                    key="observation.images.inner.right", width=48, height=64, codec="mpeg4"
                ),
            ),
            nested_names=True,
            has_done=True,
            quantiles=True,
            tasks=("one", "two", "three", "drei Würfel", "five"),
            tasks_per_episode=3,
            extra_episode_keys={
                "operator": ["ann", "bob", "eve"],
                "score": [1, 2.5, 3, 4],
                "success": [True, False],
                "note": [None],
                "trial": [{"id": 1, "tags": ["x"], "weight": 1.5}],
                "nested": [[[1, 2], [3]]],
            },
            extra_info={"license": "mit", "total_videos": 21},
            extra_files={"README.md": "# About", "meta/modality.json": "{}"},
            chunks_size=3,
        ),
        extra_files=frozenset({"README.md", "meta/modality.json"}),
        decoder=None,
    ),
    "images_in_the_tables": Case(
        DatasetSpec(
            episodes=4,
            frames=(5, 1, 6, 3),
            cameras=(_TINY,),
            image_keys=("observation.images.a", "observation.images.b"),
            image_size=(48, 64),
        )
    ),
    "data_and_videos_roll_over": Case(
        DatasetSpec(
            episodes=20,
            frames=RandomLengths(4, 5, 10),
            distinct_clips=4,
            cameras=(
                CameraSpec(
                    key="observation.images.large",
                    width=160,
                    height=128,
                    options={"preset": "ultrafast"},
                    noise_amplitude=100,
                    target_clip_bytes=150_000,
                ),
                CameraSpec(
                    key="observation.images.small",
                    options={"preset": "ultrafast"},
                    noise_amplitude=100,
                    target_clip_bytes=55_000,
                ),
            ),
            state_dim=1700,
            action_dim=1100,
        ),
        limits=(0.5, 0.5),
        min_files=(5, 3),
        window=5,
    ),
    "one_file_larger_than_the_limit": Case(
        DatasetSpec(
            episodes=3,
            frames=3,
            cameras=(_TINY,),
            image_keys=("observation.images.a",),
            image_size=(480, 640),
            image_noise_amplitude=127,
        ),
        limits=(1, 1),
        min_files=(3, 1),
    ),
    "one_episode_of_one_frame": Case(
        DatasetSpec(episodes=1, frames=1, cameras=(_TINY,), tasks=("only",))
    ),
    "one_frame_episodes": Case(
        DatasetSpec(episodes=6, frames=(1, 1, 4, 1, 2, 1), cameras=(_TINY,), quantiles=True)
    ),
    "a_fractional_rate": Case(
        DatasetSpec(episodes=5, frames=RandomLengths(6, 20, 30), fps="29.97")
    ),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=marks_of(name, pytest.mark.slow) if name == case.source else ())
        for name, case in CASES.items()
    ],
)
def test_the_result_is_the_references_and_each_frame_the_sources(
    name: str, recordings: Callable[[str], Path], tmp_path: Path
) -> None:
    """But for what the reference loses; verification, which reads bytes, raises no false alarm."""
    case, ours = CASES[name], tmp_path / "ours"
    if isinstance(case.source, str):
        root = recordings(case.source)
    else:
        root = make_dataset(tmp_path / "source", case.source)
    names = ("data_file_size_in_mb", "video_file_size_in_mb")
    limits = dict(zip(names, case.limits, strict=True)) if case.limits else {}
    reference = convert_with_reference(root, tmp_path / "reference", **limits)
    leconvert.convert(root, output=ours, layout=LayoutOptions(**limits))
    source = V21Source.open(root)
    data, videos = case.min_files
    assert len(comparison.data_files(ours)) >= data
    for key in source.camera_keys:
        assert len(list((ours / "videos" / key).glob("*/*.mp4"))) >= videos
    comparison.assert_same_files(ours, reference, set(case.extra_files))
    comparison.assert_same_info(ours, reference, source)
    comparison.assert_same_tasks(ours, reference)
    comparison.assert_same_stats(ours, reference)
    comparison.assert_same_episodes(ours, reference, source)
    comparison.assert_same_rows(ours, reference)
    comparison.assert_same_packets(ours, reference)
    comparison.assert_rows_are_the_sources(ours, source)
    comparison.assert_packets_are_the_sources(ours, source)
    for extra in case.extra_files:
        assert (ours / extra).read_bytes() == (source.root / extra).read_bytes()
    for path in comparison.data_files(ours):
        metadata = pq.read_metadata(path)
        for group in range(metadata.num_row_groups):
            for number in range(metadata.num_columns):
                column = metadata.row_group(group).column(number)
                assert column.compression == "SNAPPY"
                assert column.is_stats_set, (path, column.path_in_schema)
    report = verify_pair(ours, source.root, depth="bytes")
    assert report.differences == ()
    frames = sum(source.lengths)
    assert (report.rows, report.video_frames) == (frames, frames * len(source.camera_keys))
    for backend in comparison.DECODERS if case.decoder is None else [case.decoder]:
        compared = comparison.assert_every_frame_is_the_sources(
            ours, source, backend, window=case.window
        )
        assert compared == frames * len(source.camera_keys), backend


def test_files_are_numbered_as_the_reference_numbers_them() -> None:
    from lerobot.datasets.utils import DEFAULT_CHUNK_SIZE, update_chunk_file_indices

    chunk, file = 0, 0
    for number in range(2 * DEFAULT_CHUNK_SIZE + 2):
        path = f"data/chunk-{chunk:03d}/file-{file:03d}.parquet"
        assert USUAL_NAMES.path("data", number) == path
        chunk, file = update_chunk_file_indices(chunk, file, DEFAULT_CHUNK_SIZE)


def test_images_that_pandas_wrote_are_images_to_datasets(tmp_path: Path) -> None:
    """It types a path that is always None as null, which is no image for `datasets`."""
    path, joined = tmp_path / "source.parquet", tmp_path / "joined.parquet"
    images = [{"bytes": b"png", "path": None}] * 3
    pd.DataFrame({"still": images, "index": [0, 1, 2]}).to_parquet(path)
    features = {"still": {"dtype": "image"}, "index": {"dtype": "int64", "shape": [1]}}
    schema = output_schema(read_data_schema(path), features)
    join_tables([Slice(str(path), frames=3)], joined, schema=schema)
    seen = datasets.Features.from_arrow_schema(pq.read_schema(joined))
    assert seen == {"still": datasets.Image(), "index": datasets.Value("int64")}
    assert pq.read_table(joined)["still"].to_pylist() == images
    assert b"pandas" not in pq.read_schema(joined).metadata
