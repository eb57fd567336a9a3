"""What ``layout="streaming"`` writes, through LeRobot's two ways of loading."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, chain
from pathlib import Path

import comparison
import numpy as np
import pyarrow as pa
import pytest
from comparison import V21Source

import leconvert
from leconvert.cli.main import main
from leconvert.model.float32_tolerance import is_out_of_reach
from leconvert.model.values import LayoutOptions
from leconvert.run.conversion import ProofOptions
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset, read_label
from leconvert.testing.dataset import RandomLengths

_WORKERS = 5
_TOP = CameraSpec(key="observation.images.top", width=32, height=32, options={"bf": "0"})
_SIDE = CameraSpec(key="observation.images.side", width=48, height=32)
_LONG = CameraSpec(
    width=16, height=16, gop_size=10, options={"preset": "ultrafast", "bf": "0", "crf": "10"}
)


@dataclass(frozen=True)
class Streamed:
    """A source and its conversion with ``layout="streaming"``."""

    source: V21Source
    ours: Path

    def file_numbers(self, stream: str) -> list[int]:
        """Return the number of the file that each episode is in."""
        table: pa.Table = comparison.episodes_table(self.ours)
        assert set(table[f"{stream}/chunk_index"].to_pylist()) == {0}
        return table[f"{stream}/file_index"].to_pylist()


@pytest.fixture(scope="module")
def streamed(tmp_path_factory: pytest.TempPathFactory) -> Streamed:
    folder = tmp_path_factory.mktemp("streaming")
    spec = DatasetSpec(
        episodes=19,
        frames=RandomLengths(seed=1, minimum=1, maximum=12),
        cameras=(_TOP, _SIDE),
        tasks_per_episode=2,
    )
    root = make_dataset(folder / "source", spec)
    leconvert.convert(
        root,
        output=folder / "ours",
        layout=LayoutOptions(layout="streaming", loader_workers=_WORKERS),
        proof=ProofOptions(verify="bytes"),
    )
    return Streamed(V21Source.open(root), folder / "ours")


def test_data_and_cameras_share_their_cuts(streamed: Streamed) -> None:
    numbers = streamed.file_numbers("data")
    assert sorted(set(numbers)) == list(range(_WORKERS))
    for camera in streamed.source.camera_keys:
        assert streamed.file_numbers(f"videos/{camera}") == numbers
    assert len(comparison.video_files(streamed.ours)) == 2 * _WORKERS


def test_every_frame_row_packet_and_time_is_the_sources(streamed: Streamed) -> None:
    ours, source = streamed.ours, streamed.source
    compared = comparison.assert_every_frame_is_the_sources(ours, source, "torchcodec", window=4)
    assert compared == 2 * sum(source.lengths)
    comparison.assert_rows_are_the_sources(ours, source)
    comparison.assert_packets_are_the_sources(ours, source)
    comparison.assert_exact_times(comparison.episodes_table(ours), source)


def test_every_loader_worker_has_a_shard_of_its_own(streamed: Streamed) -> None:
    from lerobot.datasets.streaming_dataset import StreamingLeRobotDataset
    from lerobot.datasets.utils import safe_shard

    dataset = StreamingLeRobotDataset("ours/dataset", root=streamed.ours)
    assert dataset.num_shards >= _WORKERS
    episodes = [
        sorted({row["episode_index"] for row in safe_shard(dataset.hf_dataset, shard, _WORKERS)})
        for shard in range(_WORKERS)
    ]
    numbers = streamed.file_numbers("data")
    assert list(chain.from_iterable(episodes)) == list(range(len(numbers)))
    assert [{numbers[episode] for episode in held} for held in episodes] == [
        {shard} for shard in range(_WORKERS)
    ]


def test_lerobots_streaming_class_reads_one_video_file_of_a_camera_and_no_second(
    streamed: Streamed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from lerobot.datasets.streaming_dataset import StreamingLeRobotDataset

    joined = tmp_path / "reference"
    leconvert.convert(streamed.source.root, output=joined)
    assert len(comparison.video_files(joined)) == 2
    options = {"shuffle": False, "return_uint8": True}
    wrong = 0
    for sample in StreamingLeRobotDataset("ours/dataset", root=joined, **options):
        label = read_label(sample[_TOP.key].permute(1, 2, 0).numpy())
        wrong += label.frame != int(sample["frame_index"])
    assert wrong == 0
    with pytest.raises(IndexError):
        list(StreamingLeRobotDataset("ours/dataset", root=streamed.ours, **options))

    plan = ["convert", str(streamed.source.root), f"--output={tmp_path / 'new'}", "--dry-run"]
    said = []
    for layout in ("streaming", "reference"):
        assert main([*plan, f"--layout={layout}"]) == 0
        said.append(
            ("LeRobot's streaming class (0.6.1) cannot read a camera with several video files")
            in capsys.readouterr().out
        )
    assert said == [True, False]


def test_frames_that_the_reference_layout_loses_load_and_no_others_are_lost(tmp_path: Path) -> None:
    from lerobot.datasets import LeRobotDataset
    from lerobot.datasets.video_utils import FrameTimestampError

    lengths = [9000] * 4
    spec = DatasetSpec(
        episodes=4, frames=lengths, cameras=(_LONG,), state_dim=1, distinct_clips=1, stats_samples=2
    )
    root = make_dataset(tmp_path / "source", spec)
    begins = np.array([0, *accumulate(lengths)])[3]
    frames = np.arange(9000)
    is_lost = is_out_of_reach(np.full(9000, begins), frames, spec.rate)
    lost = np.flatnonzero(is_lost)
    assert len(lost) == 688
    # Some of them, the frames beside them, and some others.
    sampled = {*lost[::80], *(lost[::80] - 1), *(lost[40::80] + 1), *frames[4::600]} & {*frames}

    results, warnings = {}, {}
    for layout in ("reference", "streaming"):
        ours = tmp_path / layout
        report = leconvert.convert(
            root, output=ours, layout=LayoutOptions(layout=layout, loader_workers=1)
        )
        warnings[layout] = [
            finding.message for finding in report.findings if finding.code == "float32-reach"
        ]
        results[layout] = LeRobotDataset("ours/dataset", root=ours, return_uint8=True)

    (warning,) = warnings["reference"]
    assert "688 of 36,000 frames:" in warning
    assert not warnings["streaming"]
    for frame in sorted(sampled):
        loading = ["streaming"] if is_lost[frame] else ["reference", "streaming"]
        if is_lost[frame]:
            with pytest.raises(FrameTimestampError):
                results["reference"][int(begins + frame)]
        for layout in loading:
            item = results[layout][int(begins + frame)]
            assert read_label(item[_LONG.key].permute(1, 2, 0).numpy()).frame == frame
    starts = comparison.episodes_table(tmp_path / "streaming")["data/file_index"].to_pylist()
    assert starts == [0, 0, 1, 1]
