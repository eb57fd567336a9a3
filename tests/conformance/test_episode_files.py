"""``--layout episode-files``: which source files are kept, and that LeRobot loads every frame."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import av
import comparison
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from comparison import V21Source
from tests.drift import drifted
from tests.mp4_boxes import Box, changed, edit_list
from tests.oddities import ODDITIES
from tests.recordings import marks_of, twins
from tests.trees import snapshot

import leconvert
from leconvert.model.repairs import RepairOptions
from leconvert.model.selection import EpisodeSelection
from leconvert.model.values import LayoutOptions
from leconvert.run.conversion import ProofOptions
from leconvert.run.proof import verify_pair
from leconvert.support.errors import FindingsError, UsageError
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset
from leconvert.testing.dataset import RandomLengths
from leconvert.testing.defects import edit_table, with_column

KEEP = LayoutOptions(layout="episode-files")
_TOP = CameraSpec(key="observation.images.top", width=32, height=32)
_SIDE = CameraSpec(key="observation.images.side", codec="libsvtav1", width=64, height=64)
_MANY = DatasetSpec(
    episodes=1010,
    frames=RandomLengths(seed=1, minimum=1, maximum=4),
    cameras=(CameraSpec(width=16, height=16),),
    distinct_clips=8,
    state_dim=2,
)
_SMALL = DatasetSpec(
    episodes=5, frames=(9, 4, 7, 12, 6), cameras=(_TOP, _SIDE), tasks=("one", "two")
)


@dataclass(frozen=True)
class Case:
    """One input, and how much of it is kept.

    Attributes:
        source: A spec to generate, or a name in `tests.recordings`.
        repairs: Those that it needs.
        rewritten: Streams of which no file can be kept.
        window: Frames that one item loads.
        every: Every so-manieth episode is loaded and the last one, and of each every so-manieth
            window and its last one.
        decoder: The one that loads its frames; the others do in the slow tests. All where None.
        slow: Whether it runs with the slow tests alone, as recordings do.
    """

    source: DatasetSpec | str
    repairs: RepairOptions = field(default_factory=RepairOptions)
    rewritten: frozenset[str] = frozenset()
    window: int = 1
    every: int = 1
    decoder: str | None = None
    slow: bool = False


CASES: dict[str, Case] = {
    **{name: Case(name, window=60, every=2, decoder="pyav") for name in twins("cr5_5ep")},
    # Its tables have no frame_index, and their first timestamp is 0.05 s.
    **{
        name: Case(
            name,
            RepairOptions(drop_features=("observation.images.egoview",), retime=True),
            frozenset({"data"}),
            window=60,
            every=2,
            decoder="torchcodec",
        )
        for name in twins("robot_sim_picknplace_v20")
    },
    "two_cameras": Case(_SMALL, window=3),
    "more_than_a_chunk": Case(_MANY, window=4, every=90, decoder="torchcodec", slow=True),
}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(
            name,
            marks=[pytest.mark.slow] * case.slow
            + (marks_of(name, pytest.mark.slow) if isinstance(case.source, str) else []),
        )
        for name, case in CASES.items()
    ],
)
def converted(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    recordings: Callable[[str], Path],
) -> tuple[Case, V21Source, Path]:
    case = CASES[request.param]
    folder = tmp_path_factory.mktemp("episode-files")
    if isinstance(case.source, str):
        root = recordings(case.source)
    else:
        root = make_dataset(folder / "source", case.source)
    leconvert.convert(
        root,
        output=folder / "ours",
        layout=KEEP,
        repairs=case.repairs,
        proof=ProofOptions(verify="bytes"),
    )
    return case, V21Source.open(root, dropped_features=case.repairs.drop_features), folder / "ours"


@pytest.mark.parametrize("decoders", ["usual", pytest.param("all", marks=pytest.mark.slow)])
def test_every_frame_is_the_sources_frame_and_some_episodes_load_alone(
    converted: tuple[Case, V21Source, Path], decoders: str
) -> None:
    from lerobot.datasets import LeRobotDataset

    case, source, ours = converted
    frames = comparison.frames_in_windows(source.lengths, case.window, case.every)
    for backend in comparison.DECODERS:
        if decoders == "all" or case.decoder in (None, backend):
            compared = comparison.assert_every_frame_is_the_sources(
                ours, source, backend, window=case.window, every=case.every
            )
            assert compared == frames * len(source.camera_keys), backend
    some = [1, len(source.lengths) - 1]
    dataset = LeRobotDataset("ours/dataset", root=ours, episodes=some, video_backend="torchcodec")
    assert len(dataset) == sum(source.lengths[episode] for episode in some)
    loaded = [dataset[place] for place in (0, len(dataset) - 1)]
    assert [int(item["episode_index"]) for item in loaded] == some
    last = source.lengths[some[-1]] - 1
    assert int(loaded[1]["frame_index"]) == last
    for key in source.camera_keys:
        clip = source.clip_path(key, source.indices[some[-1]])
        (expected,) = comparison.source_windows(clip, "torchcodec", 1, [last])
        found = (loaded[1][key].numpy() * 255).round().astype(np.uint8)
        assert np.array_equal(found, expected[0])


def test_files_are_the_sources_bytes_but_never_its_inodes(
    converted: tuple[Case, V21Source, Path],
) -> None:
    case, source, ours = converted
    pairs = {"data": list(map(source.data_path, source.indices))}
    for key in source.camera_keys:
        pairs[f"videos/{key}"] = [source.clip_path(key, episode) for episode in source.indices]
    for stream, files in pairs.items():
        for number, theirs in enumerate(files):
            chunk, file = divmod(number, 1000)
            mine = ours / stream / f"chunk-{chunk:03d}/file-{file:03d}{theirs.suffix}"
            assert not mine.samefile(theirs)
            is_kept = mine.read_bytes() == theirs.read_bytes()
            assert is_kept == (stream not in case.rewritten), mine


# --- what cannot be kept ----------------------------------------------------------------------


def clips_of(root: Path) -> list[Path]:
    return sorted(root.glob("videos/**/*.mp4"))


def changed_second_clip(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def make(root: Path) -> None:
        make_dataset(root, DatasetSpec(episodes=3, frames=(8, 5, 9), cameras=(_TOP,)))
        clip = clips_of(root)[1]
        clip.write_bytes(change(clip.read_bytes()))

    return make


def with_other_type(root: Path) -> None:
    make_dataset(root, DatasetSpec(episodes=3, frames=(8, 5, 9), cameras=(_TOP,)))

    def stored_otherwise(table: pa.Table) -> pa.Table:
        values = table["action"].combine_chunks().cast(pa.large_list(pa.float32()))
        return with_column(table, "action", values)

    edit_table(root, 1, stored_otherwise)


def with_other_rate(root: Path) -> None:
    """Declare 30 frames a second of clips with 29.97."""
    make_dataset(root, DatasetSpec(episodes=2, frames=(200, 8), cameras=(_TOP,), fps="29.97"))
    path = root / "meta/info.json"
    info = json.loads(path.read_text())
    for stated in (info, info["features"][_TOP.key]["info"]):
        stated["fps" if stated is info else "video.fps"] = 30
    path.write_text(json.dumps(info))
    for episode, frames in enumerate((200, 8)):
        times = pa.array(np.arange(frames, dtype=np.float32) / np.float32(30))
        edit_table(root, episode, lambda table, t=times: with_column(table, "timestamp", t))


def in_fragments(root: Path) -> None:
    """Write the second clip as a fragmented MP4, which has no index of all frames."""
    make_dataset(root, DatasetSpec(episodes=3, frames=(8, 5, 9), cameras=(_TOP,)))
    clip, whole = clips_of(root)[1], root.parent / "whole.mp4"
    clip.rename(whole)
    with (
        av.open(str(whole)) as source,
        av.open(str(clip), "w", options={"movflags": "frag_keyframe+empty_moov"}) as target,
    ):
        stream = target.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.dts is not None:
                packet.stream = stream
                target.mux(packet)


UNFIT: dict[str, tuple[Callable[[Path], Any], list[str], int]] = {
    # What makes the source; what is said of the files that are written anew; how many are kept.
    "a clip that starts late": (
        ODDITIES["late start in some clips"], ["does not show its first frame at time 0"], 5,
    ),
    "times that drift": (
        changed_second_clip(drifted), ["shows frames for different lengths of time"], 5,
    ),
    "29.97 declared as 30": (with_other_rate, ["has another frame rate than fps"], 2),
    "sound": (
        ODDITIES["audio in some clips"], ["has sound or other further tracks"], 5,
    ),
    "fragments": (in_fragments, ["has an index that cannot be used as it is"], 5),
    "columns of another type": (
        with_other_type, ["has other columns or types than the result"], 5,
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", UNFIT)
def test_an_unfit_file_is_no_overlays_but_is_written_anew_and_loads(
    kind: str, tmp_path: Path
) -> None:
    make, reasons, kept = UNFIT[kind]
    root = tmp_path / "source"
    make(root)
    before = snapshot(root)
    with pytest.raises(UsageError, match=r"needs more than a new meta/ to become v3\.0") as refused:
        leconvert.convert(root, layout=LayoutOptions(layout="overlay"))
    named = refused.value.details
    assert all(reason in text for reason, text in zip(reasons, named, strict=True))
    assert "--layout episode-files" in str(refused.value.next_step)
    assert snapshot(root) == before
    report = leconvert.convert(
        root, output=tmp_path / "ours", layout=KEEP, proof=ProofOptions(verify="bytes")
    )
    said = [found.message for found in report.findings if found.code == "rewritten-file"]
    assert all(reason in text for reason, text in zip(reasons, said, strict=True)), said
    assert report.kept_files == kept
    source = V21Source.open(root)
    usual = 8 if max(source.lengths) > 100 else 1
    for backend, every in (("pyav", usual), ("torchcodec", 4 * usual)):
        # torchcodec cannot show what the source itself has late or uneven: PyAV by order can.
        loaded = comparison.loaded_windows(tmp_path / "ours", source, backend, 1, every)
        for episode, first, frames in loaded:
            for key, images in frames.items():
                clip = source.clip_path(key, source.indices[episode])
                (expected,) = comparison.source_windows(clip, "pyav", 1, [first])
                if backend == "pyav":
                    assert np.array_equal(images, expected), (key, episode, first)
                else:
                    assert np.abs(images.astype(int) - expected.astype(int)).mean() < 3


def test_rows_of_other_places_are_written_anew_and_their_clips_kept(tmp_path: Path) -> None:
    root = make_dataset(tmp_path / "source", _SMALL)
    report = leconvert.convert(
        root,
        output=tmp_path / "ours",
        layout=KEEP,
        selection=EpisodeSelection(episodes="0,2-3"),
        proof=ProofOptions(verify="bytes"),
    )
    (said,) = [found.message for found in report.findings if found.code == "rewritten-file"]
    assert "has another index or episode_index than the result" in said
    assert "1 other" in said
    assert report.kept_files == 7
    index = np.concatenate(
        [
            pq.read_table(path)["index"].to_numpy()
            for path in comparison.data_files(tmp_path / "ours")
        ]
    )
    assert index.tolist() == list(range(9 + 7 + 12))


def test_rows_that_count_otherwise_are_written_anew_and_every_clip_kept(tmp_path: Path) -> None:
    root = make_dataset(tmp_path / "source", _SMALL)
    edit_table(root, 2, lambda table: with_column(table, "index", pa.array(range(7))))
    with pytest.raises(FindingsError) as refused:
        leconvert.convert(root, output=tmp_path / "ours", layout=KEEP)
    assert "--reindex" in str(refused.value.next_step)
    reindex = RepairOptions(reindex=True)
    report = leconvert.convert(root, output=tmp_path / "ours", layout=KEEP, repairs=reindex)
    said = [found.message for found in report.findings if found.code == "rewritten-file"]
    assert any("episode_000002.parquet has another index" in text for text in said)
    assert report.kept_files == 10, "--reindex counts frame_index of all rows, too"
    files = comparison.data_files(tmp_path / "ours")
    found = np.concatenate([pq.read_table(path)["index"].to_numpy() for path in files])
    assert found.tolist() == list(range(38))


def hiding_the_last_frame(data: bytes) -> bytes:
    """Give a clip of 6 frames an edit list that shows 5."""
    shown = edit_list((167, 0, 1 << 16))

    def change(top: Box) -> None:
        track = top.find("moov/trak")
        if track.has("edts"):
            track.find("edts/elst").payload = shown
        else:
            track.children.insert(1, Box(b"edts", children=[Box(b"elst", shown)]))

    return changed(data, change)


@pytest.mark.parametrize("change", [bytes, hiding_the_last_frame])
def test_a_clip_with_more_frames_than_rows_is_refused_before_any_work(
    tmp_path: Path, change: Callable[[bytes], bytes]
) -> None:
    camera = replace(_TOP, options={"x264-params": "bframes=0"})
    spec = DatasetSpec(episodes=2, frames=(5, 6), cameras=(camera,))
    root = make_dataset(tmp_path / "source", spec)
    first, second = clips_of(root)
    first.write_bytes(change(second.read_bytes()))
    for layout in ("episode-files", "overlay"):
        with pytest.raises(FindingsError) as refused:
            leconvert.convert(root, layout=LayoutOptions(layout=layout))
        assert "frame-count" in {found["code"] for found in refused.value.findings}
    assert not (tmp_path / "source_old").exists()


def test_a_joined_dataset_is_cut_and_one_of_episode_files_kept_again(tmp_path: Path) -> None:
    root = make_dataset(tmp_path / "source", _SMALL)
    leconvert.convert(root, output=tmp_path / "joined")
    cut = leconvert.convert(
        tmp_path / "joined",
        output=tmp_path / "cut",
        layout=KEEP,
        proof=ProofOptions(verify="bytes"),
    )
    assert cut.kept_files == 0
    again = leconvert.convert(
        tmp_path / "cut", output=tmp_path / "again", layout=KEEP, proof=ProofOptions(verify="bytes")
    )
    assert again.kept_files == again.files == 15
    assert verify_pair(tmp_path / "again", root, depth="bytes").differences == ()
    comparison.assert_every_frame_is_the_sources(
        tmp_path / "again", V21Source.open(root), "torchcodec"
    )


def test_a_source_in_place_is_kept_whole(tmp_path: Path) -> None:
    root = make_dataset(tmp_path / "source", _SMALL)
    report = leconvert.convert(root, layout=KEEP, proof=ProofOptions(verify="bytes"))
    assert report.kept_files == 15
    assert report.kept_source == tmp_path / "source_old"
    old, new = (sorted(tree.rglob("*.mp4")) for tree in (tmp_path / "source_old", root))
    assert not {path.stat().st_ino for path in old} & {path.stat().st_ino for path in new}


# --- LeRobot's tools --------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path: Path) -> Path:
    root = make_dataset(tmp_path / "source", replace(_SMALL, cameras=(_TOP,)))
    leconvert.convert(root, output=tmp_path / "ours", layout=KEEP)
    shutil.rmtree(root)
    return tmp_path / "ours"


def opened(root: Path) -> Any:
    from lerobot.datasets import LeRobotDataset

    return LeRobotDataset("ours/dataset", root=root, video_backend="pyav")


def frames_of(root: Path) -> int:
    dataset = opened(root)
    for place in range(len(dataset)):
        assert dataset[place][_TOP.key].shape == (3, 32, 32)
    return len(dataset)


def test_lerobot_deletes_splits_and_merges(small: Path, tmp_path: Path) -> None:
    from lerobot.datasets.dataset_tools import delete_episodes, merge_datasets, split_dataset

    delete_episodes(opened(small), [1], output_dir=tmp_path / "deleted", repo_id="ours/out")
    assert frames_of(tmp_path / "deleted") == 9 + 7 + 12 + 6
    split_dataset(opened(small), {"a": [0, 1], "b": [2, 3, 4]}, output_dir=tmp_path)
    assert [frames_of(tmp_path / name) for name in "ab"] == [9 + 4, 7 + 12 + 6]
    merge_datasets([opened(small), opened(small)], "ours/out", output_dir=tmp_path / "merged")
    assert frames_of(tmp_path / "merged") == 2 * 38


def test_lerobot_adds_and_removes_features(small: Path, tmp_path: Path) -> None:
    from lerobot.datasets.dataset_tools import add_features, remove_feature

    declared = {"dtype": "float32", "shape": (1,), "names": None}
    values = np.arange(38, dtype=np.float32)[:, None]
    add_features(
        opened(small), {"reward": (values, declared)}, output_dir=tmp_path / "added", repo_id="o/o"
    )
    assert float(opened(tmp_path / "added")[37]["reward"]) == 37
    remove_feature(
        opened(small), "observation.state", output_dir=tmp_path / "removed", repo_id="o/o"
    )
    assert "observation.state" not in opened(tmp_path / "removed")[0]
    assert frames_of(tmp_path / "removed") == 38
