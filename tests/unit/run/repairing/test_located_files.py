"""Files that `meta/` names wrongly: all commands say so; repair and conversion find the right."""

from __future__ import annotations

import re
import shlex
import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.dataset_damage import EPISODES, edit_info, edit_json, remove
from tests.read_dataset import Episode, read_dataset
from tests.trees import snapshot
from tests.v3_by_hand import CAMERA, DERIVED, LOCATED, make_sound

import leconvert
from leconvert.cli import main
from leconvert.dataset.check import check_dataset
from leconvert.dataset.formats.v3.derived import fitted
from leconvert.dataset.scan import scan_source
from leconvert.loading import EpisodeStream
from leconvert.model.repairs import RepairOptions
from leconvert.model.values import LayoutOptions
from leconvert.run.proof import verify_pair
from leconvert.run.repairing import choose_repairs, compare_trees, read_changes, repair_dataset
from leconvert.run.upkeep import undo_conversion
from leconvert.support.errors import LeconvertError, SourceChangedError, SourceError
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset

WRIST = "observation.images.wrist"


@pytest.fixture(scope="session")
def files_of_episodes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six episodes of a camera, a file each; do not change it."""
    return make_sound(tmp_path_factory.mktemp("located"))


@pytest.fixture(scope="session")
def whole(files_of_episodes: Path) -> list[Episode]:
    """The contents of that dataset."""
    return read_dataset(files_of_episodes)


@pytest.fixture
def broken(files_of_episodes: Path, tmp_path: Path) -> Path:
    """A copy that a test may break."""
    return Path(shutil.copytree(files_of_episodes, tmp_path / "broken"))


def _some(names: Iterable[str], in_ci: Iterable[str]) -> list[Any]:
    return [pytest.param(name, marks=() if name in in_ci else pytest.mark.slow) for name in names]


# Rows, videos, a folder and a template; one is a damage of each.
_LOCATED_IN_CI = {
    "every episode points at the first table", "the videos of two pairs of episodes are swapped",
    "videos lie in another folder", "the template of tables is of v2.1",
}  # fmt: skip
_DERIVED_IN_CI = {
    "tasks have no index and stand in another order", "files of v3.0 without a version",
    "there is no table of episodes, tasks are lines, and both templates are of v2.1",
}  # fmt: skip


@pytest.mark.parametrize("name", _some(LOCATED, _LOCATED_IN_CI))
def test_files_that_are_named_wrongly_are_found(
    name: str, whole: list[Episode], broken: Path, tmp_path: Path
) -> None:
    LOCATED[name](broken)
    before = snapshot(broken)
    found = [each for each in check_dataset(broken).findings if each.severity != "info"]
    assert {each.code for each in found} <= {"wrong-files", "path-template"}
    assert found
    assert all(f"`leconvert repair {broken}`" in (each.remedy or "") for each in found)
    plan = choose_repairs(broken)
    assert (plan.command, plan.keeps) == (f"leconvert repair {broken}", plan.of)
    repair_dataset(broken, output=tmp_path / "repaired")
    assert [each.severity for each in check_dataset(tmp_path / "repaired").findings] == ["info"]
    assert read_dataset(tmp_path / "repaired") == whole
    assert snapshot(broken) == before


@pytest.mark.parametrize("name", _some(DERIVED, _DERIVED_IN_CI))
def test_tables_that_follow_from_rows_and_files_are_derived(
    name: str, whole: list[Episode], broken: Path, tmp_path: Path
) -> None:
    DERIVED[name](broken)
    before = snapshot(broken)
    errors = [each for each in check_dataset(broken).findings if each.severity == "error"]
    assert {each.code for each in errors} <= {"derivable", "path-template"}
    assert errors
    with pytest.raises(LeconvertError):
        EpisodeStream(broken)
    # Statistics need a conversion, which is told all that it does.
    flags = ["--fill-stats"] if "there is no table of episodes" in name else []
    flags += ["--locate-files"] if flags and "templates" in name else []
    words = ["leconvert", "repair", str(broken), *flags]
    assert choose_repairs(broken).command == " ".join(words)
    report = repair_dataset(broken, output=tmp_path / "repaired")
    assert report.written_bytes
    repaired = tmp_path / "repaired"
    assert not [each for each in check_dataset(repaired).findings if each.severity == "error"]
    assert read_dataset(repaired) == whole
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


def errors_of(root: Path) -> set[str]:
    return {each.code for each in check_dataset(root).findings if each.severity == "error"}


def test_a_table_that_does_not_follow_is_not_derived(broken: Path) -> None:
    DERIVED["there is no table of episodes"](broken)
    remove(f"videos/{CAMERA}/chunk-000/file-004.mp4")(broken)
    (error,) = [each for each in check_dataset(broken).findings if each.severity == "error"]
    assert (error.code, error.path) == ("missing-file", "meta/episodes")
    assert not repair_dataset(broken, dry_run=True).plan


@pytest.mark.parametrize(
    "gone", [f"videos/{CAMERA}/chunk-000/file-004.mp4", "data/chunk-000/file-004.parquet"]
)
def test_nothing_is_guessed_where_a_file_is_missing(gone: str, broken: Path) -> None:
    LOCATED["every episode points at the first video"](broken)
    remove(gone)(broken)
    codes = errors_of(broken)
    assert codes & {"missing-file", "stray-file", "shared-frames"}
    is_of_rows = gone.startswith("data")
    assert ("wrong-files" in codes) == is_of_rows
    errors = {each.code for each in scan_source(broken).findings if each.severity == "error"}
    assert ("wrong-files" in errors) == is_of_rows


def test_two_templates_are_no_answer(broken: Path) -> None:
    shutil.copytree(broken / "videos", broken / "a")
    (broken / "videos").rename(broken / "b")
    assert errors_of(broken) == {"missing-file"}
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


def test_one_camera_of_several_that_lies_elsewhere_or_is_undeclared_is_told(tmp_path: Path) -> None:
    cameras = (CameraSpec("observation.images.top", 32, 32), CameraSpec(WRIST, 32, 32))
    root, spec = tmp_path / "two", DatasetSpec(episodes=2, frames=4, cameras=cameras)
    leconvert.convert(make_dataset(tmp_path / "two_v21", spec), output=root)
    (root / "video").mkdir()
    (root / "videos" / WRIST).rename(root / "video" / WRIST)
    for findings in (check_dataset(root).findings, scan_source(root).findings):
        (error,) = [each for each in findings if each.severity == "error"]
        assert (error.code, error.stream) == ("misplaced-file", f"videos/{WRIST}")
        assert f"the disk has video/{WRIST}/chunk-000/file-000.mp4" in error.message
        assert "drop" not in f"{error.remedy} {error.remedies}"
    with pytest.raises(LeconvertError, match="cannot be converted as it is"):
        choose_repairs(root)
    (root / "video" / WRIST).rename(root / "videos" / WRIST)
    assert check_dataset(root).count("error") == 0
    edit_json("meta/info.json", lambda info: info["features"].pop(WRIST))(root)
    for findings in (check_dataset(root).findings, scan_source(root).findings):
        (seen,) = [each for each in findings if each.severity in ("error", "warning")]
        assert (seen.code, seen.severity) == ("undeclared-camera", "warning")
        assert WRIST in seen.message
    EpisodeStream(root)


def test_a_v21_dataset_that_calls_itself_v30_is_led_to_the_conversion(
    files_of_episodes: Path, whole: list[Episode], tmp_path: Path
) -> None:
    root = Path(shutil.copytree(files_of_episodes.parent / "v21", tmp_path / "v21"))
    edit_info(codebase_version="v3.0")(root)
    with pytest.raises(LeconvertError, match=r"the files are those of v2\.1") as refused:
        repair_dataset(root)
    command = f"leconvert convert {root} --assume-version v2.1"
    assert f"`{command}`" in str(refused.value.next_step)
    assert main(shlex.split(command)[1:]) == 0
    assert read_dataset(root) == whole


# Derived files have their templates located; a merge assumes the version of one of its sources.
@pytest.mark.parametrize(
    "name",
    _some(
        ["the tables of two episodes are swapped", *DERIVED],
        {"the tables of two episodes are swapped"},
    ),
)
def test_what_was_located_or_derived_is_part_of_every_way_to_convert(
    name: str, files_of_episodes: Path, whole: list[Episode], broken: Path, tmp_path: Path
) -> None:
    (LOCATED | DERIVED)[name](broken)
    repairs = RepairOptions(
        locate_files=True,
        fill_stats=True,
        assume_version="v3.0" if name.startswith("files of v3.0") else None,
    )
    beside = files_of_episodes.parent / "v21"  # a version is assumed of the other one alone
    leconvert.merge([broken, beside], output=tmp_path / "both", repairs=repairs)
    assert read_dataset(tmp_path / "both") == [*whole, *whole]
    into = {"a": "0-3", "b": "4-5"}
    leconvert.split(broken, output_dir=tmp_path / "parts", into=into, repairs=repairs)
    old = LayoutOptions(to="v2.1")
    leconvert.convert(broken, output=tmp_path / "v21", layout=old, repairs=repairs)
    assert read_dataset(tmp_path / "v21") == whole
    made = {"v21": None, "parts/a": None, "parts/b": None}
    assert all(verify_pair(tmp_path / each, broken, depth="bytes").ok for each in made)
    leconvert.convert(broken, repairs=repairs)  # in place
    assert read_dataset(broken) == whole
    undo_conversion(broken)
    assert check_dataset(broken).count("error")


# What a record says of it, and what it says where it hides that.
HIDDEN: dict[str, tuple[str, object]] = {
    "the tables of two episodes are swapped": ("located_files", []),
    "videos lie in another folder": ("path_templates", {}),
    "tasks have no index": ("derived_tables", []),
    "files of v3.0 under the version of v2.1": ("assumed_version", None),
}


@pytest.mark.parametrize("name", _some([*LOCATED, *DERIVED], HIDDEN))
def test_a_refusal_names_how_to_convert_and_a_record_that_hides_it_does_not_pass(
    name: str, whole: list[Episode], broken: Path, tmp_path: Path
) -> None:
    (LOCATED | DERIVED)[name](broken)
    result = tmp_path / "result"
    flags = _convert_as_told(broken, result, whole)
    assert ("--fill-stats" in flags) == ("there is no table of episodes" in name)
    assert name in DERIVED or flags == ("--locate-files",)
    if name in HIDDEN:
        key, value = HIDDEN[name]
        edit_json("meta/repairs.json", lambda record: record.update({key: value}))(result)
        assert not _passes(result, broken)


def _passes(result: Path, source: Path) -> bool:
    try:
        return verify_pair(result, source, depth="bytes").ok
    except SourceError:  # read as the record says, the source is none
        return False


def test_files_located_without_need_are_a_difference(
    files_of_episodes: Path, tmp_path: Path
) -> None:
    result = tmp_path / "result"
    leconvert.convert(files_of_episodes, output=result, repairs=RepairOptions(retime=True))
    template = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
    path = template.format(chunk_index=0, file_index=1)

    def hide(record: dict[str, Any]) -> None:
        record["path_templates"] = {"data_path": template}
        record["located_files"] = [{"stream": "data", "episode": 0, "path": path}]

    edit_json("meta/repairs.json", hide)(result)
    found = {each.what for each in verify_pair(result, files_of_episodes).differences}
    assert "place of a file" in found


def test_a_template_that_finds_files_needs_no_other(broken: Path, tmp_path: Path) -> None:
    LOCATED["videos lie in another folder"](broken)
    _convert_as_told(broken, tmp_path / "result")
    shutil.copytree(broken / "video", broken / "videos")
    found = {each.what for each in verify_pair(tmp_path / "result", broken).differences}
    assert "path template" in found


def test_a_version_that_does_not_fit_the_files_is_not_assumed(
    files_of_episodes: Path, broken: Path, tmp_path: Path
) -> None:
    DERIVED["files of v3.0 under the version of v2.1"](broken)
    for root, version in ((broken, "v2.1"), (files_of_episodes.parent / "v21", "v3.0")):
        repairs = RepairOptions(assume_version=version)
        with pytest.raises(LeconvertError, match="does not fit"):
            leconvert.convert(root, output=tmp_path / "result", repairs=repairs)


def test_a_source_changed_under_a_derived_table_is_refused(broken: Path, tmp_path: Path) -> None:
    DERIVED["tasks are lines"](broken)
    work = str(tmp_path / "work")
    assert main(["plan", str(broken), str(tmp_path / "result"), "--work-dir", work]) == 0
    path = broken / "meta/tasks.jsonl"
    path.write_text(path.read_text() + "\n")
    main(["work", work])
    assert main(["pack", work]) == SourceChangedError.exit_code
    assert not (tmp_path / "result").exists()


def _convert_as_told(
    source: Path, result: Path, whole: list[Episode] | None = None
) -> tuple[str, ...]:
    """Convert with the flags that the refusal names, if there is one; return them.

    The second try is the last, and the result holds what a sound dataset holds.
    """
    flags: tuple[str, ...] = ()
    try:
        report = leconvert.convert(source, output=result)
    except LeconvertError as error:
        told = str(error.next_step)
        assert "--drop-feature" not in told
        (listed,) = re.findall("again with (--.+?);", told)
        flags = RepairOptions.of_flags(re.findall("--[a-z-]+(?: v3.0)?", listed)).flags()
        repairs = RepairOptions.of_flags(flags)
        report = leconvert.convert(source, output=result, repairs=repairs)
    if whole is not None:
        assert report.repairs
        assert verify_pair(result, source, depth="bytes").ok
        assert read_dataset(result) == whole
        assert not check_dataset(result).count("error")
    return flags
