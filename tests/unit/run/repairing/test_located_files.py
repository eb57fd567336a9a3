"""Files that `meta/` names wrongly: all commands say so, and a repair finds those that fit."""

from __future__ import annotations

import re
import shlex
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.conformance.test_walks import read_dataset
from tests.dataset_damage import EPISODES, edit_info, edit_json, remove
from tests.trees import snapshot
from tests.v3_by_hand import CAMERA, DERIVED, LOCATED, make_sound

import leconvert
from leconvert.cli import main
from leconvert.dataset.check import check_dataset
from leconvert.dataset.formats.v3.derived import fitted
from leconvert.dataset.scan import scan_source
from leconvert.loading import EpisodeStream
from leconvert.model.repairs import RepairOptions
from leconvert.run.repairing import choose_repairs, compare_trees, read_changes, repair_dataset
from leconvert.run.upkeep import undo_conversion
from leconvert.support.errors import LeconvertError
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset

WRIST = "observation.images.wrist"


@pytest.fixture(scope="session")
def files_of_episodes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten episodes of a camera, a file each; do not change it."""
    return make_sound(tmp_path_factory.mktemp("located"))


@pytest.fixture
def broken(files_of_episodes: Path, tmp_path: Path) -> Path:
    """A copy that a test may break."""
    return Path(shutil.copytree(files_of_episodes, tmp_path / "broken"))


@pytest.mark.parametrize("name", LOCATED)
def test_files_that_are_named_wrongly_are_found(
    name: str, files_of_episodes: Path, broken: Path, tmp_path: Path
) -> None:
    LOCATED[name](broken)
    before = snapshot(broken)
    found = [each for each in check_dataset(broken).findings if each.severity != "info"]
    assert {each.code for each in found} <= {"wrong-files", "path-template"}
    assert found
    assert all(f"`leconvert repair {broken}`" in (each.remedy or "") for each in found)
    with pytest.raises(LeconvertError) as refused:
        leconvert.convert(broken, output=tmp_path / "converted")
    assert f"`leconvert repair {broken}`" in str(refused.value.next_step)
    assert "--drop-feature" not in str(refused.value.next_step)
    plan = choose_repairs(broken)
    assert (plan.command, plan.keeps) == (f"leconvert repair {broken}", plan.of)
    repair_dataset(broken, output=tmp_path / "repaired")
    assert [each.severity for each in check_dataset(tmp_path / "repaired").findings] == ["info"]
    assert read_dataset(tmp_path / "repaired") == read_dataset(files_of_episodes)
    leconvert.convert(tmp_path / "repaired", output=tmp_path / "result")
    assert read_dataset(tmp_path / "result") == read_dataset(files_of_episodes)
    assert snapshot(broken) == before


@pytest.mark.parametrize("name", DERIVED)
def test_tables_that_follow_from_rows_and_files_are_derived(
    name: str, files_of_episodes: Path, broken: Path, tmp_path: Path
) -> None:
    DERIVED[name](broken)
    before = snapshot(broken)
    errors = [each for each in check_dataset(broken).findings if each.severity == "error"]
    assert {each.code for each in errors} <= {"derivable", "path-template"}
    assert errors
    with pytest.raises(LeconvertError) as refused:
        leconvert.convert(broken, output=tmp_path / "converted")
    assert f"`leconvert repair {broken}`" in str(refused.value.next_step)
    with pytest.raises(LeconvertError):
        EpisodeStream(broken)
    assert choose_repairs(broken).command == f"leconvert repair {broken}"
    report = repair_dataset(broken, output=tmp_path / "repaired")
    assert report.written_bytes
    repaired = tmp_path / "repaired"
    assert not [each for each in check_dataset(repaired).findings if each.severity == "error"]
    assert read_dataset(repaired) == read_dataset(files_of_episodes)
    assert snapshot(broken) == before
    assert repair_dataset(broken, output=repaired).was_repaired


@pytest.mark.parametrize("name", ["videos lie in another folder", "tasks have no index"])
def test_a_fault_beside_rows_in_another_order_counts_once(name: str, broken: Path) -> None:
    (LOCATED | DERIVED)[name](broken)
    rows = pq.read_table(broken / EPISODES)
    pq.write_table(rows.take([1, 0, *range(2, rows.num_rows)]), broken / EPISODES)
    mended = Counter(each.code for each in repair_dataset(broken, dry_run=True).plan.mended)
    assert (mended["episode-order"], mended["wrong-files"] + mended["derivable"]) == (1, 1)


@pytest.mark.parametrize("name", ["tasks have no index", "there is no table of episodes"])
def test_a_repair_that_derived_a_table_is_undone(name: str, broken: Path) -> None:
    DERIVED[name](broken)
    before = snapshot(broken)
    repair_dataset(broken)
    changes = read_changes(broken)
    assert changes is not None
    assert changes.derived
    assert compare_trees(broken.with_name("broken_old"), broken, changes) == []
    undo_conversion(broken)
    assert snapshot(broken) == before


def test_a_table_that_does_not_follow_is_not_derived(broken: Path) -> None:
    DERIVED["there is no table of episodes"](broken)
    remove(f"videos/{CAMERA}/chunk-000/file-004.mp4")(broken)
    (error,) = [each for each in check_dataset(broken).findings if each.severity == "error"]
    assert (error.code, error.path) == ("missing-file", "meta/episodes")
    assert not repair_dataset(broken, dry_run=True).plan


@pytest.mark.parametrize(
    "gone", [f"videos/{CAMERA}/chunk-000/file-004.mp4", "data/chunk-000/file-004.parquet"]
)
@pytest.mark.parametrize("name", ["every episode points at the first video", None])
def test_nothing_is_guessed_where_a_file_is_missing(
    name: str | None, gone: str, broken: Path
) -> None:
    if name is not None:
        LOCATED[name](broken)
    remove(gone)(broken)
    codes = {each.code for each in check_dataset(broken).findings if each.severity == "error"}
    assert codes & {"missing-file", "stray-file", "shared-frames"}
    is_of_rows = gone.startswith("data")
    assert ("wrong-files" in codes) == (name is not None and is_of_rows)
    errors = {each.code for each in scan_source(broken).findings if each.severity == "error"}
    assert ("wrong-files" in errors) == (name is not None and is_of_rows)


def test_two_templates_are_no_answer(broken: Path) -> None:
    shutil.copytree(broken / "videos", broken / "a")
    (broken / "videos").rename(broken / "b")
    found = {each.code for each in check_dataset(broken).findings if each.severity == "error"}
    assert found == {"missing-file"}
    edit_info(video_path="b/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4")(broken)
    assert not [each for each in check_dataset(broken).findings if each.severity != "info"]


def test_files_fit_where_each_begins_and_ends_with_an_episode() -> None:
    lengths = np.array([3, 2, 4, 1])
    for frames, file, first in (
        ([3, 2, 4, 1], [0, 1, 2, 3], [0, 0, 0, 0]),
        ([5, 5], [0, 0, 1, 1], [0, 3, 0, 4]),
        ([10], [0, 0, 0, 0], [0, 3, 5, 9]),
    ):
        found = fitted(lengths, np.array(frames))
        assert found is not None
        assert [each.tolist() for each in found] == [file, first]
    for frames in ([4, 6], [3, 2, 4], [3, 2, 4, 1, 1], [5, 0, 5], []):
        assert fitted(lengths, np.array(frames, np.int64)) is None


@pytest.fixture
def two_cameras(tmp_path: Path) -> Path:
    """A v3.0 dataset in which the videos of one of two cameras lie elsewhere."""
    spec = DatasetSpec(
        episodes=2,
        frames=4,
        cameras=(CameraSpec("observation.images.top", 32, 32), CameraSpec(WRIST, 32, 32)),
    )
    root = tmp_path / "two"
    leconvert.convert(make_dataset(tmp_path / "two_v21", spec), output=root)
    (root / "video").mkdir()
    (root / "videos" / WRIST).rename(root / "video" / WRIST)
    return root


def test_one_camera_of_several_that_lies_elsewhere_is_told_and_not_dropped(
    two_cameras: Path,
) -> None:
    for findings in (check_dataset(two_cameras).findings, scan_source(two_cameras).findings):
        (error,) = [each for each in findings if each.severity == "error"]
        assert (error.code, error.stream) == ("misplaced-file", f"videos/{WRIST}")
        assert f"the disk has video/{WRIST}/chunk-000/file-000.mp4" in error.message
        assert "drop" not in f"{error.remedy} {error.remedies}"
    with pytest.raises(LeconvertError, match="cannot be converted as it is"):
        choose_repairs(two_cameras)
    (two_cameras / "video" / WRIST).rename(two_cameras / "videos" / WRIST)
    assert check_dataset(two_cameras).count("error") == 0


def test_videos_of_a_camera_that_is_not_declared_are_a_warning_of_both(two_cameras: Path) -> None:
    (two_cameras / "video" / WRIST).rename(two_cameras / "videos" / WRIST)
    edit_json("meta/info.json", lambda info: info["features"].pop(WRIST))(two_cameras)
    for findings in (check_dataset(two_cameras).findings, scan_source(two_cameras).findings):
        (seen,) = [each for each in findings if each.severity in ("error", "warning")]
        assert (seen.code, seen.severity) == ("undeclared-camera", "warning")
        assert WRIST in seen.message
        assert "info.json does not declare" in seen.message
    EpisodeStream(two_cameras)


def test_a_v21_dataset_that_calls_itself_v30_is_led_to_the_conversion(
    files_of_episodes: Path, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(files_of_episodes.parent / "v21", tmp_path / "v21"))
    edit_info(codebase_version="v3.0")(root)
    with pytest.raises(LeconvertError, match=r"the files are those of v2\.1") as refused:
        repair_dataset(root)
    command = f"leconvert convert {root} --assume-version v2.1"
    assert f"`{command}`" in str(refused.value.next_step)
    assert main(shlex.split(command)[1:]) == 0
    assert read_dataset(root) == read_dataset(files_of_episodes)


@pytest.mark.parametrize("name", ["videos lie in another folder", *DERIVED])
def test_what_convert_advises_of_v30_ends(name: str, broken: Path, tmp_path: Path) -> None:
    """Its commands, and then the same conversion, with the flags that it names: two tries."""
    (LOCATED | DERIVED)[name](broken)
    with pytest.raises(LeconvertError) as refused:
        leconvert.convert(broken, output=tmp_path / "result")
    told = str(refused.value.next_step)
    for command in re.findall("`leconvert (.+?)`", told):
        assert main(shlex.split(command)) == 0
    repairs = RepairOptions.of_flags(re.findall("with (--[a-z-]+)", told))
    leconvert.convert(broken, output=tmp_path / "result", repairs=repairs)


def test_locate_files_leads_to_the_repair_of_v30(
    broken: Path, files_of_episodes: Path, tmp_path: Path
) -> None:
    LOCATED["videos lie in another folder"](broken)
    flag = RepairOptions(locate_files=True)
    with pytest.raises(LeconvertError) as refused:
        leconvert.convert(broken, output=tmp_path / "result", repairs=flag)
    told = str(refused.value.next_step)
    (command,) = re.findall("`leconvert (.+?)`", told)
    assert main(shlex.split(command)) == 0
    assert "without --locate-files" in told
    leconvert.convert(broken, output=tmp_path / "result")
    assert read_dataset(tmp_path / "result") == read_dataset(files_of_episodes)
