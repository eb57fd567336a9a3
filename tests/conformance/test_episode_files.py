"""``--layout episode-files``: which source files are kept, and that LeRobot loads every frame."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import comparison
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from comparison import V21Source
from tests.drift import drifted, remux
from tests.mp4_boxes import Box, changed, edit_list
from tests.oddities import ODDITIES
from tests.trees import snapshot

import leconvert
from leconvert.model.repairs import RepairOptions
from leconvert.model.selection import EpisodeSelection
from leconvert.model.values import LayoutOptions
from leconvert.run.conversion import ProofOptions
from leconvert.run.proof import verify_pair
from leconvert.support.errors import FindingsError, UsageError
from leconvert.testing import CameraSpec, DatasetSpec, edit_table, make_dataset, with_column

KEEP = LayoutOptions(layout="episode-files")
_TOP = CameraSpec(key="observation.images.top", width=32, height=32)
_SIDE = CameraSpec(key="observation.images.side", codec="libsvtav1", width=64, height=64)
_SMALL = DatasetSpec(
    episodes=5, frames=(9, 4, 7, 12, 6), cameras=(_TOP, _SIDE), tasks=("one", "two")
)


def shifted(root: Path) -> Path:
    make_dataset(root, _SMALL)
    for episode, frames in enumerate(_SMALL.lengths()):
        times = pa.array(np.arange(frames) / 30 + 0.05, pa.float32())
        edit_table(root, episode, lambda table, t=times: with_column(table, "timestamp", t))
    return root


# Makers of the source; the repairs that it needs; streams that keep no file.
CASES: dict[str, tuple[Callable[[Path], Path], RepairOptions, frozenset[str]]] = {
    "sound": (lambda root: make_dataset(root, _SMALL), RepairOptions(), frozenset()),
    "computed times": (shifted, RepairOptions(retime=True), frozenset({"data"})),
}


@pytest.mark.parametrize("case", CASES)
def test_files_are_the_sources_and_every_frame_is_and_some_episodes_load_alone(
    case: str, tmp_path: Path
) -> None:
    from lerobot.datasets import LeRobotDataset

    make, repairs, written_anew = CASES[case]
    source, ours = V21Source.open(make(tmp_path / "source")), tmp_path / "ours"
    proof = ProofOptions(verify="bytes")
    leconvert.convert(source.root, output=ours, layout=KEEP, repairs=repairs, proof=proof)
    pairs = {"data": list(map(source.data_path, source.indices))}
    for key in source.camera_keys:
        pairs[f"videos/{key}"] = [source.clip_path(key, episode) for episode in source.indices]
    for stream, files in pairs.items():
        for number, theirs in enumerate(files):
            chunk, file = divmod(number, 1000)
            mine = ours / stream / f"chunk-{chunk:03d}/file-{file:03d}{theirs.suffix}"
            assert not mine.samefile(theirs)
            is_kept = mine.read_bytes() == theirs.read_bytes()
            assert is_kept == (stream not in written_anew), mine
    for backend in comparison.DECODERS if case == "sound" else ["torchcodec"]:
        compared = comparison.assert_every_frame_is_the_sources(ours, source, backend, window=3)
        assert compared == 2 * sum(source.lengths)
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
    remux(clips_of(root)[1], movflags="frag_keyframe+empty_moov")


UNFIT: dict[str, tuple[Callable[[Path], Any], list[str], int]] = {
    # Makers of the source; what is said of the files that are written anew; how many are kept.
    "a clip that starts late": (
        ODDITIES["late start in some clips"], ["does not show its first frame at time 0"], 5,
    ),
    "times that drift": (
        changed_second_clip(drifted), ["shows frames for different lengths of time"], 5,
    ),
    "29.97 declared as 30": (with_other_rate, ["has another frame rate than fps"], 2),
    "sound": (ODDITIES["audio in some clips"], ["has sound or other further tracks"], 5),
    "fragments": (in_fragments, ["has an index that cannot be used as it is"], 5),
    "columns of another type": (with_other_type, ["has other columns or types than the result"], 5),
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
    for backend in ("pyav", "torchcodec"):
        # torchcodec cannot show what the source itself has late or uneven: PyAV by order can.
        window = 1 if max(source.lengths) < 100 else 20
        loaded = comparison.loaded_windows(tmp_path / "ours", source, backend, window)
        for episode, first, frames in loaded:
            for key, images in frames.items():
                clip = source.clip_path(key, source.indices[episode])
                (expected,) = comparison.source_windows(clip, "pyav", window, [first])
                if backend == "pyav":
                    assert np.array_equal(images, expected), (key, episode, first)
                else:
                    assert np.abs(images.astype(int) - expected.astype(int)).mean() < 3


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"selection": EpisodeSelection(episodes="0,2-3")}, 7),
        # --reindex counts frame_index of all rows, too.
        ({"repairs": RepairOptions(reindex=True)}, 10),
    ],
    ids=["selected", "counted anew"],
)
def test_rows_of_other_places_are_written_anew_and_their_clips_kept(
    tmp_path: Path, options: dict[str, Any], kept: int
) -> None:
    root = make_dataset(tmp_path / "source", _SMALL)
    if "repairs" in options:
        edit_table(root, 2, lambda table: with_column(table, "index", pa.array(range(7))))
        with pytest.raises(FindingsError) as refused:
            leconvert.convert(root, output=tmp_path / "ours", layout=KEEP)
        assert "--reindex" in str(refused.value.next_step)
    proof = ProofOptions(verify="bytes")
    report = leconvert.convert(root, output=tmp_path / "ours", layout=KEEP, proof=proof, **options)
    assert [found for found in report.findings if found.code == "rewritten-file"]
    assert report.kept_files == kept
    files = comparison.data_files(tmp_path / "ours")
    index = np.concatenate([pq.read_table(path)["index"].to_numpy() for path in files])
    assert index.tolist() == list(range(report.frames))


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


def test_a_clip_with_more_frames_than_rows_is_refused_before_any_work(tmp_path: Path) -> None:
    camera = replace(_TOP, options={"x264-params": "bframes=0"})
    spec = DatasetSpec(episodes=2, frames=(5, 6), cameras=(camera,))
    root = make_dataset(tmp_path / "source", spec)
    first, second = clips_of(root)
    first.write_bytes(hiding_the_last_frame(second.read_bytes()))
    for layout in ("episode-files", "overlay"):
        with pytest.raises(FindingsError) as refused:
            leconvert.convert(root, layout=LayoutOptions(layout=layout))
        assert "frame-count" in {found["code"] for found in refused.value.findings}
    assert not (tmp_path / "source_old").exists()


def test_a_joined_dataset_is_cut_and_one_of_episode_files_kept_again(tmp_path: Path) -> None:
    spec = DatasetSpec(episodes=3, frames=(4, 2, 3), cameras=(_TOP,), tasks=("one", "two"))
    root, proof = make_dataset(tmp_path / "source", spec), ProofOptions(verify="bytes")
    leconvert.convert(root, output=tmp_path / "joined")
    cut = leconvert.convert(tmp_path / "joined", output=tmp_path / "cut", layout=KEEP, proof=proof)
    assert cut.kept_files == 0
    again = leconvert.convert(tmp_path / "cut", output=tmp_path / "again", layout=KEEP, proof=proof)
    assert again.kept_files == again.files == 6
    assert verify_pair(tmp_path / "again", root, depth="bytes").differences == ()


# --- LeRobot's tools --------------------------------------------------------------------------


LENGTHS = (4, 2, 3)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    spec = DatasetSpec(episodes=3, frames=LENGTHS, cameras=(_TOP,), tasks=("one", "two"))
    root = make_dataset(tmp_path / "source", spec)
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


def test_lerobots_tools_work(small: Path, tmp_path: Path) -> None:
    from lerobot.datasets import dataset_tools as tools

    tools.split_dataset(opened(small), {"a": [0, 2], "b": [1]}, output_dir=tmp_path)
    assert [frames_of(tmp_path / name) for name in "ab"] == [4 + 3, 2]
    tools.merge_datasets([opened(small), opened(small)], "o/o", output_dir=tmp_path / "merged")
    assert frames_of(tmp_path / "merged") == 2 * 9
    declared = {"dtype": "float32", "shape": (1,), "names": None}
    values = np.arange(9, dtype=np.float32)[:, None]
    more = {"reward": (values, declared)}
    tools.add_features(opened(small), more, output_dir=tmp_path / "added", repo_id="o/o")
    assert float(opened(tmp_path / "added")[8]["reward"]) == 8
    tools.remove_feature(opened(small), "action", output_dir=tmp_path / "less", repo_id="o/o")
    assert "action" not in opened(tmp_path / "less")[0]
    assert frames_of(tmp_path / "less") == 9
    tools.modify_tasks(opened(small), new_task="another")
    assert frames_of(small) == 9
