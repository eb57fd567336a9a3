"""Records that lie in results parse for ever, of whatever version."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from leconvert.dataset.formats import v3
from leconvert.model.repairs import DroppedEpisode, LocatedFile, Repairs
from leconvert.model.selection import EpisodeRanges
from leconvert.run.repairing import Changes, read_changes
from leconvert.support.errors import UnreadableSourceError
from leconvert.workdir.former import FormerState, TreeFacts, former_states

GOLDEN = Path(__file__).parent / "v1_result"


@pytest.fixture
def result(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN, tmp_path / "result"))


def change(path: Path, **keys: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_bytes()) | keys))


REPAIRS = {
    1: Repairs(
        dropped_episodes=(DroppedEpisode(3, "frame-count"),),
        dropped_features=("observation.images.egoview",),
        computed_columns=("timestamp", "frame_index", "episode_index", "index"),
        added_columns=("frame_index",),
        task_map={2: 0, 5: 1},
        computed_stats=("action", "timestamp"),
        quantiles=True,
    ),
    2: Repairs(
        computed_stats=("effort", "task_index"),
        stats_episodes={"effort": (2, 3)},
        unwrapped_columns=("gripper",),
        assumed_version="v2.1",
        declared_features={"effort": {"dtype": "float64", "shape": [3], "names": None}},
        located_files=(LocatedFile("data", 3, "data/chunk-007/episode_000003.parquet"),),
        tasks_from="episodes",
    ),
    3: Repairs(
        dropped_episodes=(DroppedEpisode(4, "frame-count"),),
        computed_columns=("episode_index", "index"),
        computed_stats=("episode_index", "index"),
        selected_episodes=EpisodeRanges(((1, 1), (3, 9))),
    ),
    4: Repairs(
        dropped_episodes=(DroppedEpisode(4, "frame-count"),),
        computed_columns=("index",),
        computed_stats=("action", "index"),
        stats_episodes={"action": (2, 7)},
        trimmed_episodes={2: (0, 20), 7: (17, 30)},
    ),
    5: Repairs(
        computed_columns=("timestamp",),
        computed_stats=("arm.state", "timestamp"),
        stats_episodes={"arm.state": (2,)},
        renamed_features={
            "observation.images.front": "observation.images.top",
            "state": "arm.state",
        },
    ),
    6: Repairs(
        computed_columns=("index",),
        cast_columns=("episode_index", "task_index"),
        computed_stats=("index",),
    ),
    7: Repairs(
        computed_stats=("action",),
        assumed_version="v3.0",
        located_files=(LocatedFile("videos/top", 2, "media/top/chunk-000/file-001.mp4"),),
        path_templates={
            "video_path": "media/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
        },
        derived_tables=("meta/tasks.parquet", "meta/episodes"),
    ),
}


@pytest.mark.parametrize("version", REPAIRS)
def test_repairs_of_any_version_are_read_with_later_keys_too(version: int, tmp_path: Path) -> None:
    result = Path(shutil.copytree(GOLDEN.with_name(f"v{version}_result"), tmp_path / "result"))
    assert v3.read_repairs(result) == REPAIRS[version]
    change(result / v3.REPAIRS_PATH, of_a_later_release=[1])
    assert v3.read_repairs(result) == REPAIRS[version]


def test_repairs_of_another_version_are_refused(result: Path) -> None:
    change(result / v3.REPAIRS_PATH, version=8)
    with pytest.raises(UnreadableSourceError, match="version 8"):
        v3.read_repairs(result)


@pytest.mark.parametrize("later_keys", [{}, {"of_a_later_release": [1]}])
def test_what_a_repair_changed_is_read(tmp_path: Path, later_keys: dict[str, object]) -> None:
    result = Path(shutil.copytree(GOLDEN.with_name("v1_repaired"), tmp_path / "result"))
    change(result / "meta/repaired.json", **later_keys)
    assert read_changes(result) == Changes(
        number=2,
        fps=(30, 1),
        videos=(
            "videos/observation.images.top/chunk-000/file-000.mp4",
            "videos/observation.images.wrist/chunk-000/file-000.mp4",
        ),
        data={"data/chunk-000/file-000.parquet": ("frame_index", "index")},
        episodes=("videos/observation.images.top/from_timestamp",),
        info=("total_frames",),
        stats=("observation.state",),
    )
    change(result / "meta/repaired.json", version=4)
    with pytest.raises(UnreadableSourceError, match="version 4"):
        read_changes(result)


def test_an_order_that_a_repair_changed_is_read() -> None:
    assert read_changes(GOLDEN.with_name("v2_repaired")) == Changes(
        number=1,
        fps=(30, 1),
        data={"data/chunk-000/file-000.parquet": ("task_index",)},
        episodes=("meta/episodes/chunk_index", "meta/episodes/file_index"),
        episode_rows=(2, 3, 1, 0, 4),
        task_rows=(1, 0),
    )


@pytest.mark.parametrize("later_keys", [{}, {"of_a_later_release": [1]}])
def test_what_was_put_aside_is_read(tmp_path: Path, later_keys: dict[str, object]) -> None:
    folder = Path(shutil.copytree(GOLDEN.with_name("v1_former"), tmp_path / "former"))
    run_id = "20260102T030405-abcdef"
    record = folder / f".out.former-{run_id}"
    change(record, **later_keys)
    facts = TreeFacts(meta_digest="a" * 64, files_digest="f" * 64, num_files=7, size_bytes=123456)
    place = folder / f"out.former-{run_id}"
    (state,) = former_states([folder / "out"])[folder / "out"]
    assert state == FormerState(place, run_id, 2, "d" * 64, 77, facts, is_there=False)
    # What another version wrote is not taken for known.
    change(record, version=2)
    place.mkdir()
    (state,) = former_states([folder / "out"])[folder / "out"]
    assert (state.facts, state.is_there) == (None, True)


def test_what_a_repair_derived_is_read(tmp_path: Path) -> None:
    result = Path(shutil.copytree(GOLDEN.with_name("v3_repaired"), tmp_path / "result"))
    assert read_changes(result) == Changes(
        number=1,
        fps=(30, 1),
        info=("codebase_version",),
        derived=("meta/tasks.parquet", "meta/episodes/chunk-000/file-000.parquet"),
    )
