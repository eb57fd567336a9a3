"""`EpisodeStream` against LeRobot's own dataset: every sample, every key, every picture."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from tests.conformance.reference import convert_with_reference
from tests.dataset_damage import DATA, edit_feature, rewrite

from leconvert.api import convert
from leconvert.bench import compare_with_map
from leconvert.bench.run import compare_samples
from leconvert.dataset.check import check_dataset
from leconvert.loading import EpisodeStream, StreamLoader, load_meta
from leconvert.loading.batches import DepthScale
from leconvert.model.values import LayoutOptions
from leconvert.support.errors import UnreadableSourceError
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset
from leconvert.transfer.files import files_at

TOP = "observation.images.top"
WRIST = "observation.images.wrist"
LENGTHS = [12, 7, 1, 9, 15, 3, 11]
CAMERAS = (
    CameraSpec(key=TOP, width=64, height=48, noise_amplitude=32),
    CameraSpec(key=WRIST, width=32, height=32, noise_amplitude=32),
)
# Steps before the episode, after it, many more than some episodes have, and one step only.
WINDOWS = {
    TOP: [-10 / 30, -1 / 30, 0.0, 14 / 30],
    WRIST: [0.0],
    "action": [step / 30 for step in range(-3, 9)],
    "observation.state": [-1 / 30],
}
Make = Callable[..., Path]


@pytest.fixture(scope="session")
def make_v30(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Generate and convert a dataset; equal arguments share one."""
    made: dict[str, Path] = {}

    def make(spec: DatasetSpec, *, by: str = "leconvert", video_mb: float = 0.004) -> Path:
        key = repr((spec, by, video_mb))
        if key not in made:
            folder = tmp_path_factory.mktemp("stream")
            source = make_dataset(folder / "v21", spec)
            if by == "leconvert":
                convert(
                    source,
                    output=folder / "v30",
                    layout=LayoutOptions(video_file_size_in_mb=video_mb),
                )
            else:
                convert_with_reference(source, folder / "v30", video_file_size_in_mb=video_mb)
            made[key] = folder / "v30"
        return made[key]

    return make


@pytest.fixture
def dataset(make_v30: Make) -> Path:
    """Uneven episodes, two cameras, several MP4s each; do not change it."""
    return make_v30(DatasetSpec(episodes=len(LENGTHS), frames=LENGTHS, cameras=CAMERAS))


def assert_all_equal(stream: EpisodeStream, samples: int) -> None:
    comparison = compare_with_map(stream, samples + 1)
    assert comparison.differences == ()
    assert comparison.samples == samples
    assert comparison.is_right


def test_an_item_is_lerobots_item_of_that_number(dataset: Path) -> None:
    from lerobot.datasets import EpisodeAwareSampler
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    episodes = [1, 4, 5]
    theirs = LeRobotDataset("local/x", dataset, episodes=episodes, delta_timestamps=WINDOWS)
    ours = EpisodeStream(dataset, episodes=episodes, delta_timestamps=WINDOWS, rank=1, world_size=2)
    under_way = iter(ours)
    first = next(under_way)
    sampler = EpisodeAwareSampler(
        ours.meta.episodes["dataset_from_index"],
        ours.meta.episodes["dataset_to_index"],
        episode_indices_to_use=episodes,
        absolute_to_relative_idx=theirs.absolute_to_relative_idx,
        shuffle=True,
    )
    numbers = list(sampler)
    assert sorted(numbers) == list(range(ours.num_frames)) == list(range(len(theirs)))
    for number in [*numbers, -1, -len(theirs)]:
        assert_same(ours[number], theirs[number])
    for sample, wanted in zip(ours[2:9:3], theirs[2:9:3], strict=True):
        assert_same(sample, wanted)
    for outside in (len(theirs), -len(theirs) - 1):
        with pytest.raises(IndexError):
            ours[outside]
    # Nothing of it shows in the pass.
    assert len([first, *under_way]) == len(ours) == ours.num_frames // 2
    assert ours.facts().samples == len(ours)


def assert_same(sample: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert list(sample) == list(wanted)
    for key, value in wanted.items():
        if isinstance(value, torch.Tensor):
            assert sample[key].dtype == value.dtype
            assert torch.equal(sample[key], value)
        else:
            assert sample[key] == value


def test_tasks_and_episodes_are_read_as_lerobots_code_reads_them(dataset: Path) -> None:
    import pandas as pd
    from lerobot.datasets.lerobot_dataset import LeRobotDatasetMetadata
    from lerobot.policies.pretrained import _build_card_context

    theirs = LeRobotDatasetMetadata("local/x", dataset)
    ours = EpisodeStream(dataset).meta
    assert _build_card_context(None, ours, None, None) == {
        **_build_card_context(None, theirs, None, None),
        "dataset": _build_card_context(None, theirs, None, None)["dataset"]
        | {"repo_id": ours.repo_id},
    }
    pd.testing.assert_frame_equal(ours.tasks, theirs.tasks)
    assert ours.tasks.iloc[0].name == theirs.tasks.iloc[0].name
    name = str(theirs.tasks.index[0])
    assert ours.tasks.loc[name].task_index == theirs.tasks.loc[name].task_index
    assert ours.episodes.column_names == theirs.episodes.column_names
    assert len(ours.episodes) == len(theirs.episodes)
    assert list(ours.episodes) == list(theirs.episodes)
    assert ours.episodes[3]["length"] == theirs.episodes[3]["length"] == LENGTHS[3]
    assert ours.episodes[-1] == theirs.episodes[-1]
    assert ours.episodes[1:3] == theirs.episodes[1:3]
    for key in ("length", f"videos/{TOP}/from_timestamp"):
        assert ours.episodes[key] == list(theirs.episodes[key])
    pd.testing.assert_frame_equal(ours.episodes.to_pandas(), theirs.episodes.to_pandas())


@pytest.mark.parametrize(
    ("backend", "deltas"),
    [("torchcodec", None), ("pyav", WINDOWS)],
    ids=["torchcodec-frames", "pyav-windows"],
)
def test_every_sample_equals_that_of_lerobot(dataset: Path, backend: Any, deltas: Any) -> None:
    assert len(list((dataset / "videos" / TOP).rglob("*.mp4"))) > 2
    stream = EpisodeStream(dataset, delta_timestamps=deltas, video_backend=backend)
    assert_all_equal(stream, sum(LENGTHS))


def test_what_lerobots_code_asks_of_a_dataset_is_what_its_own_says(dataset: Path) -> None:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    def brighter(pictures: torch.Tensor) -> torch.Tensor:
        return pictures[..., ::2] * 0.5

    theirs = LeRobotDataset("a/b", root=dataset, episodes=[1, 3], image_transforms=brighter)
    ours = EpisodeStream(dataset, episodes=[1, 3], image_transforms=brighter)
    for name in ("num_frames", "num_episodes", "fps", "episodes", "root", "image_transforms"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert ours.repo_id == dataset.name
    for name in ("total_episodes", "total_frames", "total_tasks", "fps", "robot_type", "shapes",
                 "names", "has_language_columns"):  # fmt: skip
        assert getattr(ours.meta, name) == getattr(theirs.meta, name), name
    for name in ("camera_keys", "video_keys", "image_keys", "depth_keys"):
        assert list(getattr(ours.meta, name)) == list(getattr(theirs.meta, name)), name
    assert {key: dict(ft) for key, ft in ours.features.items()} == theirs.features
    assert ours.meta.stats.keys() == theirs.meta.stats.keys()
    assert (ours.meta.stats["action"]["mean"] == theirs.meta.stats["action"]["mean"]).all()
    reference = {int(sample["index"]): sample for sample in theirs}
    for sample in ours:
        other = reference.pop(int(sample["index"]))
        assert all(torch.equal(sample[key], other[key]) for key in ours.meta.camera_keys)
    assert not reference


def test_depth_cameras_are_those_of_lerobot_if_their_marks_contradict(
    dataset: Path, tmp_path: Path
) -> None:
    from lerobot.datasets.dataset_metadata import LeRobotDatasetMetadata

    root = shutil.copytree(dataset, tmp_path / "copy")
    no, yes = ({"video.is_depth_map": mark} for mark in (False, True))
    edit_feature(TOP, info=no, video_info=yes)(root)
    assert load_meta(files_at(root)).depth_keys == (TOP,)
    assert LeRobotDatasetMetadata("a/b", root=root).depth_keys == [TOP]


@pytest.mark.parametrize(
    ("codec", "options", "backend", "fps"),
    [
        ("libx264", {"bf": "3"}, "torchcodec", "30"),
        ("libsvtav1", {"preset": "12"}, "pyav", "29.97"),
    ],
)
def test_codecs_and_rates(
    make_v30: Make, codec: str, options: dict[str, str], backend: Any, fps: str
) -> None:
    camera = CameraSpec(TOP, 64, 64, codec, gop_size=8, options=options)
    path = make_v30(DatasetSpec(episodes=3, frames=[9, 5, 14], cameras=(camera,), fps=fps))
    deltas = [step / float(fps) for step in (-2, 0, 3)]
    stream = EpisodeStream(path, delta_timestamps={TOP: deltas}, video_backend=backend)
    assert_all_equal(stream, 28)


def test_images_in_tables_scalars_matrices_and_booleans(make_v30: Make) -> None:
    spec = DatasetSpec(
        episodes=3,
        frames=[5, 1, 8],
        cameras=(),
        image_keys=("observation.images.a", "observation.images.b"),
        image_size=(20, 24),
        state_dim=1,
        matrix_shape=(2, 3),
        has_done=True,
        tasks_per_episode=2,
    )
    windows = {
        "observation.images.b": [-1 / 30, 0.0],
        "observation.images.a": [0.0],
        "observation.state": [0.0, 1 / 30],
        "observation.matrix": [0.0, 2 / 30],
    }
    assert_all_equal(EpisodeStream(make_v30(spec), delta_timestamps=windows), 14)


def test_columns_of_other_types_than_declared(make_v30: Make, tmp_path: Path) -> None:
    image = "observation.images.a"
    spec = DatasetSpec(
        episodes=2, frames=[5, 3], cameras=(), image_keys=(image,), image_size=(20, 24),
        state_dim=2, action_dim=1, has_done=True,
    )  # fmt: skip
    root = shutil.copytree(make_v30(spec), tmp_path / "copy")
    edit_feature("observation.state", dtype="float16")(root)
    others = {
        "next.done": lambda column: column.cast(pa.int64()),
        "action": lambda column: pa.chunked_array([pa.array(range(len(column)))]),
        image: lambda column: pc.struct_field(column, "bytes"),
    }

    def store_otherwise(table: pa.Table) -> pa.Table:
        for name, change in others.items():
            at = table.schema.get_field_index(name)
            table = table.set_column(at, name, change(table.column(name)))
        return table.replace_schema_metadata(None)

    rewrite(DATA, store_otherwise)(root)
    assert check_dataset(root).as_record()["ok"]
    assert_all_equal(EpisodeStream(root, delta_timestamps={"action": [0.0, 1 / 30]}), 8)
    edit_feature("observation.state", dtype="int64")(root)
    assert not check_dataset(root).as_record()["ok"]
    with pytest.raises(UnreadableSourceError, match=r"observation\.state is declared as int64"):
        next(iter(EpisodeStream(root)))


def test_a_result_of_the_reference_converter(make_v30: Make) -> None:
    # Its row groups hold many episodes, and its times may drift beyond what LeRobot accepts.
    spec = DatasetSpec(episodes=14, frames=[7 + n % 5 for n in range(14)], cameras=CAMERAS[:1])
    path = make_v30(spec, by="reference", video_mb=100.0)
    (table,) = (path / "data").rglob("*.parquet")
    assert pq.ParquetFile(table).num_row_groups == 1
    comparison = compare_with_map(EpisodeStream(path, video_backend="torchcodec"), 1000)
    assert comparison.samples + comparison.unreadable == sum(spec.lengths())
    assert comparison.samples > 100
    assert comparison.differences[: -comparison.unreadable or None] == ()


@pytest.mark.parametrize("use_log", [True, False])
def test_depth_codes_become_lerobots_millimetres(use_log: bool) -> None:
    from lerobot.datasets.depth_utils import dequantize_depth

    codes = torch.arange(4096, dtype=torch.int32).to(torch.uint16).reshape(1, 64, 64, 1)
    scale = DepthScale(least=0.2, largest=7.5, shift=1.5, use_log=use_log)
    wanted = dequantize_depth(
        codes.movedim(-1, -3), depth_min=0.2, depth_max=7.5, shift=1.5, use_log=use_log
    )
    assert torch.equal(scale.millimetres(codes).movedim(-1, -3), wanted)


def test_batches_of_workers_hold_the_samples_of_lerobot(dataset: Path) -> None:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    reference = LeRobotDataset("a/b", root=dataset, delta_timestamps=WINDOWS, return_uint8=True)
    stream = EpisodeStream(dataset, delta_timestamps=WINDOWS, return_uint8=True)
    samples = (
        {key: value[place] for key, value in batch.items()}
        for batch in StreamLoader(stream, batch_size=5, num_workers=2)
        for place in range(len(batch["task"]))
    )
    comparison = compare_samples(
        ((one, ()) for one in samples), reference, cameras=stream.meta.camera_keys
    )
    assert comparison.differences == ()
    assert comparison.samples == sum(LENGTHS)
