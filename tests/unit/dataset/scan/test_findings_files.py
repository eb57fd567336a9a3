"""Files that are missing, damaged, too many, or elsewhere: each gives exactly its finding."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from sound_dataset import LENGTHS, TOP, WRIST, only
from tests.mp4_boxes import changed, with_a_shorter_sample, with_bytes_over, with_zeros_over

from leconvert import media, tables
from leconvert.dataset.scan import scan_source
from leconvert.media import pyav
from leconvert.model.repairs import RepairOptions
from leconvert.support import file_calls
from leconvert.support.errors import LeconvertError, StorageError, UnreadableSourceError
from leconvert.testing import edit_info, edit_lines, edit_table, with_column

TABLE = "data/chunk-000/episode_{:06d}.parquet"
CLIP = "videos/chunk-000/{}/episode_{:06d}.mp4"


def test_a_sound_dataset_has_no_findings(sound_source: Path) -> None:
    scan = scan_source(sound_source)
    assert scan.findings == ()
    assert not scan.repairs


def test_a_clip_whose_index_leaves_bytes_over_is_decoded_and_refused_where_it_does_not(
    source: Path, monkeypatch: pytest.MonkeyPatch
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
        (errno.EACCES, UnreadableSourceError, "permission is denied."),
        (errno.ESTALE, StorageError, "the server no longer knows the file"),
        (errno.EMFILE, StorageError, "too many files are open"),
        (errno.ENOMEM, StorageError, "this process can get no more memory"),
        (errno.ENOTCONN, StorageError, "its mount has lost its server or program"),
        (errno.ENETUNREACH, StorageError, os.strerror(errno.ENETUNREACH)),
    ],
)
@pytest.mark.parametrize("wrapped", [False, True])
def test_trouble_of_the_machine_is_no_fault_of_an_episode(
    source: Path, monkeypatch: pytest.MonkeyPatch, code: int, raised: type[LeconvertError],
    sentence: str, wrapped: bool,
) -> None:  # fmt: skip
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


def test_a_table_for_which_arrow_has_no_memory_is_not_left_out(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(path: str) -> tables.DataFile:
        raise UnreadableSourceError(f"{path} cannot be read.") from pa.ArrowMemoryError("malloc")

    monkeypatch.setattr(tables, "DataFile", short)
    with pytest.raises(StorageError, match="no more memory"):
        scan_source(source, RepairOptions(on_bad_episode="drop"))


def test_an_input_output_error_is_a_damaged_file_unless_a_server_may_be_away(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = tables.DataFile

    def damaged(path: str) -> tables.DataFile:
        if path.endswith(TABLE.format(2)):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return real(path)

    monkeypatch.setattr(tables, "DataFile", damaged)
    for mount in ("ext4 /dev/sda1", "tmpfs tmpfs"):
        monkeypatch.setattr(file_calls, "_mount_table", f"30 22 0:50 / / rw - {mount} rw".__str__)
        assert only(scan_source(source), "unreadable-file").episode == 2
    for mount in ("nfs4 server:/x", "cifs //server/x", "fuse.gcsfuse bucket"):
        monkeypatch.setattr(file_calls, "_mount_table", f"30 22 0:50 / / rw - {mount} rw".__str__)
        with pytest.raises(StorageError, match="input/output error"):
            scan_source(source, RepairOptions(on_bad_episode="drop"))


def test_a_wrong_length_disagrees_with_every_file(source: Path) -> None:
    edit_lines(source, "episodes", lambda lines: lines[2].update(length=9))
    edit_info(source, lambda info: info.update(total_frames=27))
    findings = scan_source(source).findings
    assert [(f.code, f.episode) for f in findings] == [
        ("row-count", 2),
        ("frame-count", 2),
        ("frame-count", 2),
    ]


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


def add_note(source: Path, note: Callable[[int], pa.Array]) -> None:
    """Add a declared column to all tables."""
    for episode in range(len(LENGTHS)):
        edit_table(source, episode, partial(with_column, name="note", values=note(episode)))
    feature = {"dtype": "string", "shape": [1], "names": None}
    edit_info(source, lambda info: info["features"].update(note=feature))


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
    assert "(3): data/chunk-000/" in scan.findings[0].message
    assert scan.only.extra_files == ()


def test_a_template_that_misses_all_videos_is_told_a_camera(source: Path) -> None:
    template = "videos/{video_key}/{episode_index}.mp4"
    edit_info(source, lambda info: info.update(video_path=template))
    findings = scan_source(source).findings
    assert [(f.code, f.stream) for f in findings] == [
        ("path-template", f"videos/{TOP}"),
        ("path-template", f"videos/{WRIST}"),
    ]
    assert all("the disk has videos/chunk-000/" in f.message for f in findings)


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


def test_a_link_to_nothing_among_extra_files_is_left_behind(source: Path) -> None:
    (source / "notes").symlink_to(source / "gone")
    scan = scan_source(source)
    assert only(scan, "stray-file").path == "notes"
    assert scan.only.extra_files == ()


def test_a_column_of_a_camera_goes_with_the_camera(source: Path) -> None:
    for episode, rows in enumerate(LENGTHS):
        paths = pa.array(["clip.mp4"] * rows)
        edit_table(source, episode, lambda table, p=paths: with_column(table, TOP, p))
    finding = only(scan_source(source), "undeclared-column")
    assert (finding.severity, finding.remedy) == ("error", None), "the flag takes the camera, too"
    scan = scan_source(source, RepairOptions(drop_features=(TOP,)))
    assert scan.findings == ()
    assert TOP not in tables.deserialize_schema(scan.data_schema).names


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


def test_files_of_gr00t_are_told_where_they_do_not_fit(source: Path) -> None:
    modality = source / "meta/modality.json"
    modality.write_text('{"annotation": {"a": {"original_key": "annotation.b"}}}')
    assert "annotation.b" in only(scan_source(source), "modality").message
    modality.write_text("no JSON")
    assert "does not contain a JSON object" in only(scan_source(source), "modality").message
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
