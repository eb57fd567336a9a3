"""Files that are missing, damaged, too many, or elsewhere: each gives exactly its finding."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from sound_dataset import LENGTHS, TOP, WRIST, Only
from tests.mp4_boxes import changed, with_a_shorter_sample, with_bytes_over, with_zeros_over

from leconvert import media, tables
from leconvert.dataset.scan import scan_source
from leconvert.media import pyav
from leconvert.model.repairs import RepairOptions
from leconvert.support.errors import LeconvertError, StorageError, UnreadableSourceError
from leconvert.testing import edit_info, edit_lines, edit_table, with_column

TABLE = "data/chunk-000/episode_{:06d}.parquet"
CLIP = "videos/chunk-000/{}/episode_{:06d}.mp4"


def test_a_sound_dataset_has_no_findings(sound_source: Path) -> None:
    scan = scan_source(sound_source)
    assert scan.findings == ()
    assert not scan.repairs


@pytest.mark.parametrize(
    ("relative", "there"),
    [(TABLE.format(2), "3 tables of 4"), (CLIP.format(WRIST, 1), "3 videos of 4")],
)
def test_a_missing_file_is_told_with_how_many_there_are(
    source: Path, only: Only, relative: str, there: str
) -> None:
    (source / relative).unlink()
    finding = only(scan_source(source), "missing-file")
    assert (finding.severity, finding.path) == ("error", relative)
    assert finding.remedy == "--on-bad-episode drop"
    assert there in finding.message


@pytest.mark.parametrize("relative", [TABLE.format(0), CLIP.format(TOP, 0)])
@pytest.mark.parametrize("damage", ["truncate", "empty", "folder", "garbage"])
def test_a_damaged_file_is_unreadable(source: Path, only: Only, relative: str, damage: str) -> None:
    path = source / relative
    content = path.read_bytes()
    path.unlink()
    if damage == "folder":
        path.mkdir()
    else:
        path.write_bytes(
            {"truncate": content[: len(content) // 2], "empty": b"", "garbage": b"?" * 99}[damage]
        )
    finding = only(scan_source(source), "unreadable-file")
    assert (finding.episode, finding.path) == (0, relative)


def test_a_clip_whose_index_leaves_bytes_over_is_decoded_and_refused_where_it_does_not(
    source: Path, only: Only, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[str] = []

    def check(clip: media.ClipIndex) -> None:
        decoded.append(clip.path)
        pyav.check_decodes(clip)

    monkeypatch.setattr(media, "check_decodes", check)
    path = source / CLIP.format(TOP, 1)
    sound = path.read_bytes()
    path.write_bytes(changed(sound, with_bytes_over))
    assert scan_source(source).findings == ()
    assert decoded == [str(path)], "no other one is decoded"
    path.write_bytes(changed(sound, with_zeros_over))
    assert scan_source(source).findings == ()
    assert decoded == [str(path)], "zeros are no part of a frame"
    path.write_bytes(changed(sound, with_a_shorter_sample))
    finding = only(scan_source(source), "unreadable-file")
    assert (finding.episode, finding.path) == (1, CLIP.format(TOP, 1))
    assert finding.remedy == "--on-bad-episode drop"
    kept = scan_source(source, RepairOptions(on_bad_episode="drop"))
    assert kept.num_episodes == len(LENGTHS) - 1


@pytest.mark.parametrize(
    ("code", "raised", "sentence"),
    [
        (errno.EACCES, UnreadableSourceError, "cannot be read: permission is denied."),
        (errno.ESTALE, StorageError, "the server no longer knows the file"),
        (errno.EMFILE, StorageError, "too many files are open"),
    ],
)
@pytest.mark.parametrize("wrapped", [False, True])
def test_trouble_of_the_machine_is_no_fault_of_an_episode(
    source: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    raised: type[LeconvertError],
    sentence: str,
    wrapped: bool,
) -> None:
    """It would be lost with `--on-bad-episode drop`, though the file is sound."""
    real = tables.DataFile

    def refused(path: str) -> tables.DataFile:
        if not path.endswith(TABLE.format(2)):
            return real(path)
        error = OSError(code, os.strerror(code), path)
        if wrapped:
            raise UnreadableSourceError(f"{path} cannot be read.") from error
        raise error

    monkeypatch.setattr(tables, "DataFile", refused)
    with pytest.raises(raised) as caught:
        scan_source(source, RepairOptions(on_bad_episode="drop"))
    assert sentence in caught.value.message
    assert caught.value.path == str(source / TABLE.format(2))
    assert caught.value.next_step is not None


def test_an_input_output_error_is_a_damaged_file(
    source: Path, only: Only, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = tables.DataFile

    def damaged(path: str) -> tables.DataFile:
        if path.endswith(TABLE.format(2)):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return real(path)

    monkeypatch.setattr(tables, "DataFile", damaged)
    assert only(scan_source(source), "unreadable-file").episode == 2


def test_a_table_with_rows_too_few_names_all_three_numbers(source: Path, only: Only) -> None:
    edit_table(source, 1, lambda table: table.slice(0, 3))
    finding = only(scan_source(source), "row-count")
    assert finding.episode == 1
    assert "3 rows" in finding.message
    assert "says 5" in finding.message
    assert "videos have 5 frames" in finding.message


def test_a_clip_with_other_frames_names_all_three_numbers(source: Path, only: Only) -> None:
    shutil.copy(source / CLIP.format(WRIST, 3), source / CLIP.format(WRIST, 0))
    finding = only(scan_source(source), "frame-count")
    assert (finding.episode, finding.stream) == (0, f"videos/{WRIST}")
    assert "7 frames" in finding.message
    assert "says 6" in finding.message
    assert "table has 6 rows" in finding.message


def test_a_wrong_length_disagrees_with_every_file(source: Path) -> None:
    edit_lines(source, "episodes", lambda lines: lines[2].update(length=9))
    edit_info(source, lambda info: info.update(total_frames=27))
    findings = scan_source(source).findings
    assert [(f.code, f.episode) for f in findings] == [
        ("row-count", 2),
        ("frame-count", 2),
        ("frame-count", 2),
    ]


def test_a_clip_that_does_not_begin_with_a_keyframe_is_an_error(source: Path, only: Only) -> None:
    path = source / CLIP.format(TOP, 1)
    content = bytearray(path.read_bytes())
    first_number = content.index(b"stss") + 12
    content[first_number : first_number + 4] = (2).to_bytes(4, "big")
    path.write_bytes(content)
    assert only(scan_source(source), "no-keyframe").episode == 1


def test_a_table_with_another_column_differs_from_the_others(source: Path, only: Only) -> None:
    edit_table(source, 0, lambda table: with_column(table, "extra", pa.array([1] * 6)))
    finding = only(scan_source(source), "schema-mismatch")
    assert finding.episode == 0
    assert "extra is not expected" in finding.message


def test_a_default_column_that_one_table_lacks_is_that_tables_error(
    source: Path, only: Only
) -> None:
    edit_table(source, 3, lambda table: table.drop_columns(["frame_index"]))
    finding = only(scan_source(source), "schema-mismatch")
    assert finding.episode == 3
    assert "frame_index is missing" in finding.message


def test_a_column_of_a_type_that_loses_something_differs_from_the_others(
    source: Path, only: Only
) -> None:
    wide = pa.array([[0.0] * 6] * 4, pa.list_(pa.float64(), 6))
    edit_table(source, 2, lambda table: with_column(table, "action", wide))
    edit_lines(source, "episodes_stats", lambda lines: _zero_stats(lines[2]["stats"]["action"]))
    finding = only(scan_source(source), "schema-mismatch")
    assert (finding.episode, "action is" in finding.message) == (2, True)


@pytest.mark.parametrize(
    ("common", "other"),
    [
        (pa.list_(pa.int8(), 2), pa.list_(pa.int8(), 3)),
        (pa.timestamp("us", "UTC"), pa.timestamp("us", "Europe/Berlin")),
    ],
    ids=["list size", "time zone"],
)
def test_types_that_only_arrow_tells_apart_are_told_apart(
    source: Path, common: pa.DataType, other: pa.DataType
) -> None:
    add_note(source, lambda episode: pa.nulls(LENGTHS[episode], other if episode == 2 else common))
    [finding] = [f for f in scan_source(source).findings if f.code == "schema-mismatch"]
    assert finding.episode == 2
    assert f"note is {pa.nulls(0, other).type}" in finding.message.replace("element:", "item:")


def test_texts_fit_however_they_are_stored(source: Path) -> None:
    def note(episode: int) -> pa.Array:
        texts = pa.array([f"step {episode}"] * LENGTHS[episode])
        if episode == 1:
            return texts.dictionary_encode()
        return texts.cast(pa.string_view()) if episode == 2 else texts

    add_note(source, note)
    assert scan_source(source).findings == ()


def test_a_table_with_two_columns_of_one_name_is_not_read(source: Path, only: Only) -> None:
    edit_table(source, 1, lambda table: table.append_column("index", table.column("index")))
    finding = only(scan_source(source), "unreadable-file")
    assert (finding.episode, finding.remedy) == (1, "--on-bad-episode drop")
    assert "same name, index" in finding.message


def add_note(source: Path, note: Callable[[int], pa.Array]) -> None:
    """Add a declared column to all tables."""
    for episode in range(len(LENGTHS)):
        edit_table(source, episode, partial(with_column, name="note", values=note(episode)))
    feature = {"dtype": "string", "shape": [1], "names": None}
    edit_info(source, lambda info: info["features"].update(note=feature))


def _zero_stats(stats: dict[str, object]) -> None:
    for key in ("min", "max"):
        stats[key] = [0.0] * 6


def test_a_narrower_integer_fits(source: Path) -> None:
    edit_table(
        source, 1, lambda table: with_column(table, "frame_index", pa.array(range(5), pa.int32()))
    )
    assert scan_source(source).findings == ()


def test_strays_are_left_behind_and_said_once_a_folder(source: Path) -> None:
    (source / "data/chunk-000/merged.parquet").write_bytes(b"x")
    (source / "data/notes.txt").write_text("x")
    (source / TABLE.format(9)).write_bytes(b"x")
    (source / CLIP.format(TOP, 9)).write_bytes(b"x")
    scan = scan_source(source)
    assert [(f.code, f.path) for f in scan.findings] == [
        ("stray-file", TABLE.format(9)),
        ("stray-file", CLIP.format(TOP, 9)),
    ]
    assert "3 files below data/" in scan.findings[0].message
    assert scan.only.extra_files == ()


def test_videos_of_a_camera_that_is_not_declared_are_left_behind(source: Path, only: Only) -> None:
    clips = source / "videos/chunk-000"
    shutil.copytree(clips / TOP, clips / "observation.images.back")
    finding = only(scan_source(source), "undeclared-camera")
    assert finding.severity == "warning"
    assert "4 videos of observation.images.back" in finding.message


@pytest.mark.parametrize(
    ("key", "template", "beside"),
    [
        ("data_path", "data/{episode_index}.parquet", TABLE.format(0)),
        ("data_path", "data/chunk-{chunk_index:03d}/file-{file_index}.parquet", TABLE.format(0)),
        ("data_path", "data/{episode_index:06d", TABLE.format(0)),
        ("data_path", "data/all.parquet", TABLE.format(0)),
        ("data_path", "data/{episode_index:999999999d}.parquet", TABLE.format(0)),
        ("data_path", "data/{episode_index!r}.parquet", TABLE.format(0)),
    ],
)
def test_a_template_that_names_no_table_is_shown_with_what_is_there(
    source: Path, only: Only, key: str, template: str, beside: str
) -> None:
    edit_info(source, lambda info: info.update({key: template}))
    finding = only(scan_source(source), "path-template")
    assert finding.severity == "error"
    assert beside in finding.message


def test_a_template_that_misses_all_videos_is_told_a_camera(source: Path) -> None:
    template = "videos/{video_key}/{episode_index}.mp4"
    edit_info(source, lambda info: info.update(video_path=template))
    findings = scan_source(source).findings
    assert [(f.code, f.stream) for f in findings] == [
        ("path-template", f"videos/{TOP}"),
        ("path-template", f"videos/{WRIST}"),
    ]
    assert all("on disk there is videos/chunk-000/" in f.message for f in findings)


def test_a_dataset_without_any_table_says_so_once(source: Path, only: Only) -> None:
    shutil.rmtree(source / "data")
    finding = only(scan_source(source), "path-template")
    assert "nothing like it is on disk" in finding.message


def test_files_outside_the_usual_folders_are_no_extra_files(source: Path) -> None:
    (source / "data").rename(source / "tables")
    edit_info(
        source, lambda info: info.update(data_path=info["data_path"].replace("data/", "tables/"))
    )
    (source / "README.md").write_text("x")
    scan = scan_source(source)
    assert scan.findings == ()
    assert scan.only.extra_files == ("README.md",)


@pytest.mark.parametrize("prefix", ["./", ".//", "././"])
def test_a_template_may_say_this_folder_and_repeat_slashes(source: Path, prefix: str) -> None:
    def change(info: dict[str, str]) -> None:
        info["data_path"] = prefix + info["data_path"].replace("/", "/./", 1)
        info["video_path"] = prefix + info["video_path"].replace("/", "//", 1)

    edit_info(source, change)
    (source / "data/chunk-000/more.parquet").touch()
    (finding,) = scan_source(source).findings
    assert (finding.code, finding.path) == ("stray-file", "data/chunk-000/more.parquet")


def test_the_folder_of_tables_may_be_a_link_and_its_extra_files_come_along(
    source: Path, tmp_path: Path
) -> None:
    (source / "meta/modality.json").write_text("{}")
    (source / "meta").rename(tmp_path / "tables")
    (source / "meta").symlink_to(tmp_path / "tables")
    scan = scan_source(source)
    assert scan.findings == ()
    assert scan.only.extra_files == ("meta/modality.json",)


def test_files_and_folders_of_episodes_may_be_links(source: Path, tmp_path: Path) -> None:
    (source / "data/chunk-000").rename(tmp_path / "elsewhere")
    (source / "data/chunk-000").symlink_to(tmp_path / "elsewhere")
    (source / "videos").rename(tmp_path / "videos")
    (source / "videos").symlink_to(tmp_path / "videos")
    assert scan_source(source).findings == ()


def test_a_camera_behind_a_link_that_is_left_out_is_no_phantom(
    source: Path, tmp_path: Path
) -> None:
    (source / "videos/chunk-000").rename(tmp_path / "elsewhere")
    (source / "videos/chunk-000").symlink_to(tmp_path / "elsewhere")
    assert scan_source(source, RepairOptions(drop_features=(WRIST,))).findings == ()


def test_links_that_lead_in_circles_are_passed_over_or_named(source: Path, only: Only) -> None:
    (source / "data/again").symlink_to(source)
    (source / "videos/loop").symlink_to(source / "videos/loop")
    finding = only(scan_source(source), "stray-file")
    assert finding.path == "videos/loop"


def test_a_link_to_nothing_among_extra_files_is_left_behind(source: Path, only: Only) -> None:
    (source / "notes").symlink_to(source / "gone")
    scan = scan_source(source)
    assert only(scan, "stray-file").path == "notes"
    assert scan.only.extra_files == ()


def test_a_camera_without_any_video_is_one_finding(source: Path, only: Only) -> None:
    shutil.rmtree(source / "videos/chunk-000" / WRIST)
    edit_info(source, lambda info: info.update(total_videos=4))
    finding = only(scan_source(source), "phantom-feature")
    assert (finding.severity, finding.stream) == ("error", f"videos/{WRIST}")
    assert finding.remedy == f"--drop-feature {WRIST}"
    scan = scan_source(source, RepairOptions(drop_features=(WRIST,)))
    assert only(scan, "phantom-feature").severity == "repaired"
    assert scan.repairs.dropped_features == (WRIST,)
    assert [stream.stream for stream in scan.streams] == ["data", f"videos/{TOP}"]


def test_a_declared_column_that_no_table_has_is_one_finding(source: Path, only: Only) -> None:
    feature = {"dtype": "float32", "shape": [3], "names": ["a", "b", "c"]}
    edit_info(source, lambda info: info["features"].update({"effort": feature}))
    assert only(scan_source(source), "phantom-feature").remedy == "--drop-feature effort"


def test_a_column_of_a_camera_goes_with_the_camera(source: Path, only: Only) -> None:
    for episode, rows in enumerate(LENGTHS):
        paths = pa.array(["clip.mp4"] * rows)
        edit_table(source, episode, lambda table, p=paths: with_column(table, TOP, p))
    finding = only(scan_source(source), "undeclared-column")
    assert (finding.severity, finding.remedy) == ("error", None), "the flag takes the camera, too"
    scan = scan_source(source, RepairOptions(drop_features=(TOP,)))
    assert scan.findings == ()
    assert TOP not in tables.deserialize_schema(scan.data_schema).names


def test_a_column_that_is_not_declared_can_be_left_out(source: Path, only: Only) -> None:
    for episode, length in enumerate([6, 5, 4, 7]):
        values = pa.array(range(length))
        edit_table(
            source, episode, lambda table, v=values: with_column(table, "__index_level_0__", v)
        )
    finding = only(scan_source(source), "undeclared-column")
    assert [remedy.flag for remedy in finding.remedies] == [
        "--declare-features",
        "--drop-feature __index_level_0__",
    ]
    scan = scan_source(source, RepairOptions(drop_features=("__index_level_0__",)))
    assert only(scan, "undeclared-column").severity == "repaired"


def test_a_default_column_that_is_not_declared_can_only_be_declared(
    source: Path, only: Only
) -> None:
    edit_info(source, lambda info: info["features"].pop("timestamp"))
    finding = only(scan_source(source), "undeclared-column")
    assert [remedy.flag for remedy in finding.remedies] == ["--declare-features"]
    repairs = scan_source(source, RepairOptions(declare_features=True)).repairs
    assert repairs.declared_features == {
        "timestamp": {"dtype": "float32", "shape": [1], "names": None}
    }


def test_a_misplaced_file_has_its_own_name_and_its_cameras_folder(source: Path) -> None:
    clip = source / CLIP.format(WRIST, 1)
    (source / "videos/other").mkdir()
    clip.rename(source / "videos/other/episode_000001.mp4")
    codes = {finding.code for finding in scan_source(source).findings}
    assert codes == {"missing-file", "stray-file"}  # whose clip it is cannot be told
    (source / "videos/other" / WRIST).mkdir()
    (source / "videos/other/episode_000001.mp4").rename(
        source / "videos/other" / WRIST / "episode_1.mp4"
    )
    codes = {finding.code for finding in scan_source(source).findings}
    assert codes == {"misplaced-file", "stray-file"}
    scan = scan_source(source, RepairOptions(locate_files=True))
    assert [finding.severity for finding in scan.findings] == ["repaired"]


def test_files_of_gr00t_are_told_where_they_do_not_fit(source: Path, only: Only) -> None:
    modality = source / "meta/modality.json"
    modality.write_text('{"annotation": {"a": {"original_key": "annotation.b"}}}')
    assert "annotation.b" in only(scan_source(source), "modality").message
    modality.write_text("no JSON")
    assert "no JSON object" in only(scan_source(source), "modality").message
    modality.write_text("{}")
    (source / "meta/stats_gr00t.json").write_text("{}")
    for episode, length in enumerate([6, 5, 4, 7]):
        values = pa.array([3] * length)
        edit_table(source, episode, lambda table, v=values: with_column(table, "annotation.c", v))
    edit_lines(source, "tasks", lambda lines: lines.append({**lines[0], "task_index": 3}))
    edit_info(source, lambda info: info.update(total_tasks=1))
    (source / CLIP.format(WRIST, 1)).unlink()
    options = RepairOptions(on_bad_episode="drop", remap_tasks=True, declare_features=True)
    found = {finding.code: finding.severity for finding in scan_source(source, options).findings}
    assert found["annotation-tasks"] == "warning"
    assert found["gr00t-stats"] == "warning"
