"""Declarations, statistics and clips that disagree: each gives exactly its finding."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sound_dataset import LENGTHS, SOUND, TOP, only, severities
from tests.drift import start_late_in_fragments
from tests.recordings import each

from leconvert import convert, media, tables
from leconvert.dataset.scan import scan_source
from leconvert.dataset.scan.file_checks import pixel_format
from leconvert.model.repairs import RepairOptions
from leconvert.run.proof import verify_pair
from leconvert.testing import (
    PROFILES,
    CameraSpec,
    DatasetSpec,
    edit_info,
    edit_lines,
    edit_table,
    make_dataset,
    with_column,
)

SIX = list("abcdef")
CLIP = "videos/chunk-000/observation.images.top/episode_{:06d}.mp4"


# --- declarations -----------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [-1, None, [], [8, 8]])
def test_pictures_without_height_and_width_are_declared_as_they_are(
    tmp_path: Path, shape: Any
) -> None:
    spec = DatasetSpec(episodes=2, frames=3, cameras=(), image_keys=(TOP,), image_size=(24, 32))
    source = make_dataset(tmp_path / "source", spec)
    edit_info(source, lambda info: info["features"][TOP].update(shape=shape))
    scan = scan_source(source)
    assert severities(scan) == {"shape-mismatch": {"warning"}}
    assert scan.features[TOP]["shape"] == [24, 32, 3]


@pytest.mark.parametrize("names", [None, {"axes": ["h"]}, ["height", "width"], ["h", "w", "c"]])
@pytest.mark.parametrize("dtype", ["video", "image"])
def test_the_axes_of_pictures_get_the_names_by_which_policies_find_the_channels(
    tmp_path: Path, dtype: str, names: Any
) -> None:
    spec = (
        DatasetSpec(episodes=1, frames=3, cameras=(CameraSpec(key=TOP, width=64, height=48),))
        if dtype == "video"
        else DatasetSpec(episodes=1, frames=3, cameras=(), image_keys=(TOP,))
    )
    source = make_dataset(tmp_path / "source", spec)
    edit_info(source, lambda info: info["features"][TOP].update(names=names))
    assert severities(scan_source(source)) == {"null-names": {"info"}}
    result = convert(source, output=tmp_path / "result").output
    info = json.loads((result / "meta/info.json").read_bytes())
    assert info["features"][TOP]["names"] == ["height", "width", "channels"]
    assert verify_pair(result, source, depth="bytes").ok


@pytest.mark.parametrize(
    ("feature", "shape", "said"),
    [
        (TOP, [3, 48, 64], "channels first"),
        (TOP, [64, 48, 3], "48 x 64"),
        (TOP, "48x64x3", "with the shape 48x64x3"),
        ("action", [7], "shape [6], but declared in [7]"),
        ("action", [], "with the shape []"),
        ("action", [-6], "with the shape [-6]"),
        ("observation.matrix", [2, 4], "shape [2, 3], but declared in [2, 4]"),
    ],
)
def test_a_shape_that_does_not_fit_is_a_warning(
    source: Path, feature: str, shape: object, said: str
) -> None:
    edit_info(source, lambda info: info["features"][feature].update(shape=shape))
    scan = scan_source(source, RepairOptions(recompute_stats=True))
    assert severities(scan)["shape-mismatch"] == {"warning"}
    assert severities(scan).keys() <= {"shape-mismatch", "missing-stats"}
    assert said in next(f.message for f in scan.findings if f.code == "shape-mismatch")


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("video.codec", "av1", "codec h264 (av1 is declared)"),
        ("video.codec", 7, "codec h264 (7 is declared)"),
        ("video.pix_fmt", False, "pixel format yuv420p (False is declared)"),
        ("video.pix_fmt", "yuv444p", "pixel format yuv420p (yuv444p is declared)"),
        ("video.fps", 25, "30 frames per second (25 are declared)"),
    ],
)
def test_clips_that_are_not_as_declared_are_one_warning(
    source: Path, key: str, value: object, said: str
) -> None:
    place = "video_info" if key == "video.fps" else "info"

    def declare(info: dict[str, dict[str, dict[str, dict[str, object]]]]) -> None:
        feature = info["features"][TOP]
        facts = feature.pop("info")
        facts[key] = value
        feature[place] = facts

    edit_info(source, declare)
    scan = scan_source(source)
    expected = {"codec-mismatch": {"warning"}}
    if place == "video_info":
        expected["video-info"] = {"info"}
    assert severities(scan) == expected
    assert any(said in f.message and "4 episodes" in f.message for f in scan.findings)


@pytest.mark.parametrize("key", ["info", "video_info"])
def test_a_description_that_is_no_table_is_left_out(source: Path, key: str) -> None:
    edit_info(source, lambda info: info["features"]["action"].update({key: True}))
    assert only(scan_source(source), "video-info").severity == "info"
    result = source.with_name("result")
    convert(source, output=result)
    assert key not in json.loads((result / "meta/info.json").read_bytes())["features"]["action"]


def test_names_that_are_nested_or_missing_are_told(tmp_path: Path) -> None:
    spec = DatasetSpec(episodes=1, frames=3, cameras=(), nested_names=True)
    source = make_dataset(tmp_path / "nested", spec)
    assert severities(scan_source(source)) == {"nested-names": {"info"}}
    edit_info(source, lambda info: info["features"]["action"].update(names=None))
    edit_info(source, lambda info: info["features"]["observation.state"].update(names=SIX))
    assert severities(scan_source(source)) == {"null-names": {"info"}}


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (SIX[:5], "has 5 names for 6 values"),
        ([*SIX, "g"], "has 7 names for 6 values"),
        ({"left": SIX[:3], "right": ["x", "x", "y"]}, "has the name x for several values"),
        ([SIX[:3], SIX[:2]], "has 5 names for 6 values"),
        ({"x": 0, "y": 1}, "has 2 names for 6 values"),
        (["action"], "has 1 name for 6 values"),
    ],
    ids=str,
)
def test_names_that_are_not_one_for_each_value_warn_until_they_are_corrected(
    source: Path, names: object, said: str
) -> None:
    edit_info(source, lambda info: info["features"]["action"].update(names=names))
    found = next(f for f in scan_source(source).findings if f.code == "feature-names")
    assert (found.severity, found.remedy) == ("warning", None)
    assert said in found.message
    assert "edit meta/info.json before you convert" in found.message
    without = scan_source(source, RepairOptions(drop_features=("action",)))
    assert severities(without)["feature-names"] == {"repaired"}
    edit_info(source, lambda info: info["features"]["action"].update(names=SIX))
    assert scan_source(source).findings == ()


@pytest.mark.parametrize(
    "names",
    [
        [SIX],
        {"left": SIX[:3], "right": SIX[:3]},
        [SIX[:3], SIX[:3]],
        {name: place for place, name in enumerate(SIX)},
        {"motors": {"arm": SIX[:2]}},
        [],
        {},
        None,
        True,
        [[SIX]],
    ],
    ids=str,
)
def test_names_of_any_form_are_no_warning_where_there_is_one_for_each_value_or_none(
    source: Path, names: object
) -> None:
    edit_info(source, lambda info: info["features"]["action"].update(names=names))
    edit_info(source, lambda info: info["features"][TOP].update(names=["height", "width"]))
    assert {finding.severity for finding in scan_source(source).findings} <= {"info"}


def test_names_are_counted_against_the_values_that_are_stored(source: Path) -> None:
    edit_info(source, lambda info: info["features"]["action"].update(names=SIX, shape=[5]))
    assert "feature-names" not in severities(scan_source(source, RepairOptions(fill_stats=True)))


def test_axes_may_be_named_as_anybody_likes(source_without_cameras: Path) -> None:
    kind = pa.list_(pa.list_(pa.float32(), 3), 2)
    add_column(source_without_cameras, pa.array([[[0.0] * 3] * 2] * 4, kind), [2, 3], "float32")
    for names in (["rows", "columns"], ["x", "x"], ["x"], SIX):
        edit_info(
            source_without_cameras,
            lambda info, names=names: info["features"]["x"].update(names=names),
        )
        found = scan_source(source_without_cameras, RepairOptions(fill_stats=True)).findings
        assert "feature-names" not in {finding.code for finding in found}


# --- statistics -------------------------------------------------------------------------------


def test_statistics_of_v20_are_computed_of_all_but_text(tmp_path: Path) -> None:
    spec = replace(SOUND, codebase_version="v2.0", image_keys=("observation.images.still",))
    source = make_dataset(tmp_path / "old", spec)
    for episode, length in enumerate(LENGTHS):
        edit_table(
            source, episode, lambda table, n=length: with_column(table, "note", pa.array(["x"] * n))
        )
    note = {"dtype": "string", "shape": [1], "names": None}
    edit_info(source, lambda info: info["features"].update(note=note))
    scan = scan_source(source)
    assert only(scan, "computed-stats").severity == "info"
    assert {TOP, "observation.images.still", "action", "index"} <= set(scan.repairs.computed_stats)
    assert "note" not in scan.repairs.computed_stats


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([[1.0], None, [1.0], [1.0]], "1 empty value in data/chunk-000/episode_000001.parquet"),
        ([[1.0], [None], [1.0], [None]], "2 empty values"),
        ([[1.0], [], [1.0], [1.0]], "1 empty value "),
        ([[1.0], [1.0, 2.0], [1.0], [1.0]], "lists of different lengths, 5 values in 4 rows"),
    ],
)
def test_a_column_without_statistics_is_seen_before_they_are_computed(
    source_without_cameras: Path, values: list[list[float | None] | None], said: str
) -> None:
    for episode in range(3):
        column = values if episode == 1 else [[1.0]] * 4
        edit_table(
            source_without_cameras,
            episode,
            lambda table, column=column: with_column(
                table, "action", pa.array(column, pa.list_(pa.float32()))
            ),
        )

    def declare(info: dict[str, Any]) -> None:
        info["codebase_version"] = "v2.0"
        info["features"]["action"].update(shape=[None])

    edit_info(source_without_cameras, declare)
    scan = scan_source(source_without_cameras)
    [finding] = [f for f in scan.findings if f.code == "uncomputable-stats"]
    assert said in finding.message
    assert (finding.severity, finding.episode) == ("error", 1)
    assert finding.remedy == "--drop-feature action"
    dropped = scan_source(source_without_cameras, RepairOptions(drop_features=("action",)))
    assert "uncomputable-stats" not in severities(dropped)
    kept = scan_source(source_without_cameras, RepairOptions(on_bad_episode="drop"))
    assert severities(kept)["uncomputable-stats"] == {"repaired"}
    assert kept.episode_index.tolist() == [0, 2]


def test_empty_values_are_an_error_and_of_statistics_only_where_they_are_computed(
    source_without_cameras: Path,
) -> None:
    def empty(table: pa.Table) -> pa.Table:
        table = with_column(table, "action", pa.array([None] * 4, pa.list_(pa.float32(), 6)))
        return with_column(table, "note", pa.nulls(4))

    for episode in range(3):
        edit_table(source_without_cameras, episode, empty)
    edit_info(
        source_without_cameras,
        lambda info: info["features"].update(note={"dtype": "float32", "shape": [1]}),
    )
    copied = scan_source(source_without_cameras)
    assert "uncomputable-stats" not in severities(copied)
    empty_ones = [finding for finding in copied.findings if finding.code == "empty-values"]
    assert {finding.message.split(" ")[0] for finding in empty_ones} == {"action"}
    assert {finding.severity for finding in empty_ones} == {"error"}
    accepted = scan_source(source_without_cameras, RepairOptions(accept=("empty-values",)))
    assert severities(accepted)["empty-values"] == {"warning"}
    computed = scan_source(source_without_cameras, RepairOptions(quantiles=True))
    remedies = {f.remedy for f in computed.findings if f.code == "uncomputable-stats"}
    assert remedies == {"--drop-feature action"}


def test_empty_values_are_seen_in_a_table_of_several_row_groups(
    source_without_cameras: Path,
) -> None:
    table = source_without_cameras / "data/chunk-000/episode_000001.parquet"
    rows = pq.read_table(table)
    values = rows.column("action").to_pylist()
    values[2] = None
    kind = rows.schema.field("action").type
    pq.write_table(with_column(rows, "action", pa.array(values, kind)), table, row_group_size=2)
    errors = [f for f in scan_source(source_without_cameras).findings if f.severity == "error"]
    assert [(f.code, f.episode) for f in errors] == [("empty-values", 1)]
    kept = scan_source(source_without_cameras, RepairOptions(on_bad_episode="drop"))
    assert kept.episode_index.tolist() == [0, 2]


def add_front(root: Path, images: pa.Array) -> None:
    """Give the three episodes of four frames images of a camera, without statistics."""
    for episode in range(3):
        edit_table(root, episode, lambda table: with_column(table, "front", images))
    front = {"dtype": "image", "shape": [8, 8, 3]}
    edit_info(root, lambda info: info["features"].update(front=front))


@pytest.mark.parametrize(
    ("kind", "is_file"),
    [
        (pa.list_(pa.uint8()), False),
        (pa.struct([("bytes", pa.binary()), ("path", pa.string())]), True),
        (pa.large_binary(), True),
    ],
    ids=str,
)
def test_images_that_are_no_files_have_no_statistics(
    source_without_cameras: Path, kind: pa.DataType, is_file: bool
) -> None:
    add_front(source_without_cameras, pa.nulls(4, kind))
    for options in (RepairOptions(), RepairOptions(recompute_stats=True)):  # they are missing
        found = scan_source(source_without_cameras, options).findings
        remedies = [f.remedy for f in found if f.code == "uncomputable-stats"]
        assert remedies == ([] if is_file else ["--drop-feature front"])


@pytest.mark.parametrize(
    "images",
    [
        pa.array(["images/0.png"] * 4),
        pa.array([{"path": "images/0.png"}] * 4),
        pa.array([{"bytes": b"file", "path": "0.png"}] * 3 + [{"bytes": None, "path": "0.png"}]),
        pa.array([{"bytes": b"file"}] * 4),
    ],
    ids=lambda images: str(images.type),
)
def test_images_that_are_paths_are_no_images(
    source_without_cameras: Path, images: pa.Array
) -> None:
    add_front(source_without_cameras, images)
    are_files = pa.types.is_struct(images.type) and images.type.num_fields == 1
    are_files = are_files and images.type.field(0).name == "bytes"
    for recompute in (False, True):
        options = RepairOptions(recompute_stats=recompute)
        found = scan_source(source_without_cameras, options).findings
        errors = [(each.code, each.remedy) for each in found if each.severity == "error"]
        if not recompute:  # they have no statistics in the source
            errors.remove(("missing-stats", "--fill-stats"))
        assert errors == ([] if are_files else [("image-paths", None)])


# --- clips ------------------------------------------------------------------------------------


def test_audio_is_left_out_with_a_warning(source: Path, make_clip: Callable[..., None]) -> None:
    make_clip(source / CLIP.format(2), 4, audio=True)
    found = severities(scan_source(source))
    assert found.pop("codec-change", {"info"}) == {"info"}  # other options of the same codec
    assert found == {"other-tracks": {"warning"}}


def test_a_change_of_codec_is_told_with_what_it_costs(
    source: Path, make_clip: Callable[..., None]
) -> None:
    edit_info(source, lambda info: info["features"][TOP].pop("info"))
    make_clip(source / CLIP.format(1), 5, codec="mpeg4")
    scan = scan_source(source)
    assert [(f.code, f.severity) for f in scan.findings] == [("codec-change", "info")]
    assert "2 output files more" in scan.findings[0].message
    assert scan.streams[1].group.tolist() == [0, 1, 0, 0]


def test_groups_are_numbered_anew_where_episodes_are_dropped(
    source: Path, make_clip: Callable[..., None]
) -> None:
    edit_info(source, lambda info: info["features"][TOP].pop("info"))
    make_clip(source / CLIP.format(0), 6, codec="mpeg4")
    (source / "data/chunk-000/episode_000000.parquet").unlink()
    scan = scan_source(source, RepairOptions(on_bad_episode="drop"))
    assert scan.streams[1].group.tolist() == [0, 0, 0]


def test_a_fragmented_clip_will_be_remuxed(source: Path, make_clip: Callable[..., None]) -> None:
    for episode, length in enumerate(LENGTHS):
        make_clip(
            source / CLIP.format(episode), length, muxer={"movflags": "frag_keyframe+empty_moov"}
        )
    found = severities(scan_source(source))
    assert found.pop("codec-mismatch", {"warning"}) == {"warning"}
    assert found == {"remux": {"info"}}


def test_a_fragmented_clip_that_starts_late_is_a_warning(source: Path) -> None:
    """LeRobot finds no frame at 0 s; the result has every frame at its time."""
    edit_info(source, lambda info: info["features"][TOP].pop("info"))
    start_late_in_fragments(source / CLIP.format(1))
    found = {finding.code: finding for finding in scan_source(source).findings}
    assert found.keys() == {"frame-times", "remux"}
    finding = found["frame-times"]
    assert (finding.severity, finding.stream) == ("warning", f"videos/{TOP}")
    assert f"the times of {LENGTHS[1]} of {LENGTHS[1]} frames differ from" in finding.message


@pytest.mark.parametrize(
    ("codec", "pixels"),
    [
        ("libx264", "yuv420p"),
        ("libx264", "yuv444p"),
        ("libx264", "yuv422p10le"),
        ("libx265", "yuv420p"),
        ("libx265", "yuv420p10le"),
        ("libx265", "gray12le"),
        ("libsvtav1", "yuv420p"),
        ("libsvtav1", "yuv420p10le"),
        ("libvpx-vp9", "yuv420p"),
        ("libvpx-vp9", "yuv444p"),
    ],
)
def test_a_pixel_format_is_read_from_the_header(tmp_path: Path, codec: str, pixels: str) -> None:
    path = tmp_path / "clip.mp4"
    with av.open(str(path), "w") as output:
        video = output.add_stream(codec, rate=30)
        video.width, video.height, video.pix_fmt = 64, 64, pixels
        if codec == "libx265":
            video.options = {"x265-params": "pools=none:frame-threads=1:log-level=error:bframes=0"}
        picture = np.zeros((64, 64, 3), np.uint8)
        frame = av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(format=pixels)
        frame.pts, frame.time_base = 0, Fraction(1, 30)
        output.mux(video.encode(frame))
        output.mux(video.encode())
    with av.open(str(path)) as found:
        actual = found.streams.video[0].codec_context.pix_fmt
    assert pixel_format(media.read_clip_index(path)) == actual == pixels


# --- what is sound stays so -------------------------------------------------------------------


@pytest.mark.parametrize(
    "spec",
    [
        *(
            replace(spec, episodes=3, frames=[5, 1, 6], image_size=(16, 16), cameras=tuple(
                replace(camera, width=64, height=64, target_clip_bytes=None)
                for camera in spec.cameras
            ))
            for spec in PROFILES.values()
        ),
        DatasetSpec(episodes=2, frames=4, fps="29.97", quantiles=True, cameras=()),
        DatasetSpec(episodes=3, frames=3, chunks_size=2, state_dim=1, cameras=()),
        DatasetSpec(
            episodes=2, frames=3, tasks=("Öffne die Tür",),
            cameras=(CameraSpec(key='observation.images.the "left"\nwrist é'),),
        ),
    ],
    ids=[*PROFILES, "decimal rate", "several chunks", "odd names"],
)  # fmt: skip
def test_generated_datasets_have_no_findings(tmp_path: Path, spec: DatasetSpec) -> None:
    assert scan_source(make_dataset(tmp_path / "sound", spec)).findings == ()


@pytest.mark.parametrize(
    ("recording", "known"),
    each(
        ("g1_inspire_12ep", {"nested-names": {"info"}}),
        ("cr5_5ep", {"stale-stats": {"warning"}}),
        (
            "robot_sim_picknplace_v20",
            {
                "computed-stats": {"info"},
                "missing-column": {"warning"},
                "phantom-feature": {"error"},
                "several-tasks": {"info"},
                "stale-total": {"warning"},
                "timestamps": {"error"},
                "video-info": {"info"},
            },
        ),
        slow=True,
    ),
    indirect=["recording"],
)
def test_recordings_have_exactly_what_is_known_of_them(
    recording: Path, known: dict[str, set[str]]
) -> None:
    scan = scan_source(recording)
    assert severities(scan) == known
    stale = [finding.message for finding in scan.findings if finding.code == "stale-stats"]
    assert all("timestamp" in message for message in stale)


@pytest.mark.parametrize("recording", each("robot_sim_picknplace_v20", slow=True), indirect=True)
def test_a_v20_recording_is_repaired_without_errors(recording: Path) -> None:
    options = RepairOptions(retime=True, drop_features=("observation.images.egoview",))
    repaired = scan_source(recording, options)
    assert "error" not in {finding.severity for finding in repaired.findings}
    assert repaired.repairs.computed_columns == ("timestamp", "frame_index")
    assert repaired.repairs.added_columns == ("frame_index",)


def test_a_version_that_is_that_of_the_files_is_not_assumed(source: Path) -> None:
    scan = scan_source(source, RepairOptions(assume_version="v2.1"))
    assert not scan.findings
    assert not scan.repairs


# --- what LeRobot loads -----------------------------------------------------------------------


def add_column(root: Path, values: pa.Array, shape: list[int], dtype: str = "float64") -> None:
    """Give the three episodes of four frames one more column, with statistics of anything."""
    for episode in range(3):
        edit_table(root, episode, lambda table: with_column(table, "x", values))
    edit_info(root, lambda info: info["features"].update(x={"dtype": dtype, "shape": shape}))
    numbers = {key: [0.0] for key in ("min", "max", "mean", "std")}

    def add_stats(lines: list[dict[str, Any]]) -> None:
        for line in lines:
            line["stats"]["x"] = {**numbers, "count": [4]}

    edit_lines(root, "episodes_stats", add_stats)


@pytest.mark.parametrize(
    "kind",
    [pa.list_(pa.float64()), pa.list_(pa.float64(), 1), pa.large_list(pa.float64()), None],
    ids=str,
)
def test_lists_of_one_value_are_an_error_that_unwrapping_repairs(
    source_without_cameras: Path, kind: pa.DataType | None
) -> None:
    """Of None one table alone has them, among others."""
    wrapped = pa.array([[0.0]] * 4, kind)
    add_column(source_without_cameras, wrapped if kind else pa.array([0.0] * 4), [1])
    edit_table(source_without_cameras, 1, lambda table: with_column(table, "x", wrapped))
    finding = only(scan_source(source_without_cameras), "wrapped-scalar")
    assert (finding.severity, finding.remedy) == ("error", "--unwrap-scalars")
    flags = [remedy.flag for remedy in finding.remedies]
    assert flags == ["--unwrap-scalars", "--drop-feature x"]
    scan = scan_source(source_without_cameras, RepairOptions(unwrap_scalars=True))
    assert only(scan, "wrapped-scalar").severity == "repaired"
    assert scan.repairs.unwrapped_columns == ("x",)
    assert tables.deserialize_schema(scan.data_schema).field("x").type == pa.float64()


def test_lists_of_other_lengths_in_one_table_are_that_tables_error(
    source_without_cameras: Path,
) -> None:
    add_column(source_without_cameras, pa.array([[0.0, 0.0]] * 4), [2])
    longer = pa.array([[0.0, 0.0]] * 3 + [[0.0] * 3])
    edit_table(source_without_cameras, 1, lambda table: with_column(table, "x", longer))
    scan = scan_source(source_without_cameras)
    [finding] = [f for f in scan.findings if f.code == "schema-mismatch"]
    assert finding.episode == 1
    assert "x: lists that are empty, or of different lengths instead of lists of 2" in (
        finding.message
    )
    assert {remedy.flag for remedy in finding.remedies} == {
        "--drop-feature x",
        "--on-bad-episode drop",
    }
    dropped = scan_source(source_without_cameras, RepairOptions(drop_features=("x",)))
    assert "schema-mismatch" not in severities(dropped)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (pa.array([[0.0], [0.0, 1.0], [0.0], [0.0]]), "different lengths"),
        (pa.array([[]] * 4, pa.list_(pa.float64())), "empty"),
        (pa.array([b"x"] * 4), "LeRobot cannot make a tensor from binary"),
        (pa.array([2**63] * 4, pa.uint64()), "LeRobot cannot load numbers from 2^63 on"),
        (pa.array([0] * 4, pa.timestamp("us")), "LeRobot cannot make a tensor from timestamp[us]"),
        (pa.array([["x", "y"]] * 4, pa.list_(pa.string(), 2)), "LeRobot cannot load"),
        (pa.array([[None, None]] * 4, pa.list_(pa.null(), 2)), "empty values"),
        (pa.array([{"a": 1}] * 4), "LeRobot cannot make a tensor from"),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else value,
)
def test_what_lerobot_cannot_load_is_an_error_before_any_work(
    source_without_cameras: Path, values: pa.Array, why: str
) -> None:
    add_column(source_without_cameras, values, [1], str(values.type))
    found = scan_source(source_without_cameras).findings
    errors = [finding for finding in found if finding.code == "unloadable-feature"]
    assert all("x is stored as" in f.message or "x goes up to" in f.message for f in errors)
    assert all(why in finding.message for finding in errors)
    assert {(f.severity, f.remedy) for f in errors} == {("error", "--drop-feature x")}
    kept = scan_source(source_without_cameras, RepairOptions(drop_features=("x",)))
    assert all(finding.severity != "error" for finding in kept.findings)


@pytest.mark.parametrize(
    ("values", "shape", "dtype", "stored"),
    [
        (pa.array([[0.0] * 2] * 4, pa.list_(pa.float32(), 2)), [2], "float32", None),
        (pa.array([[0.0] * 2] * 4, pa.list_(pa.float32(), 2)), [2], "float64", "float32"),
        (pa.array([[[True] * 3] * 2] * 4), [2, 3], "int64", "bool"),
        (pa.array(["x"] * 4, pa.large_string()), [1], "string", None),
        (pa.array(["x"] * 4, pa.large_string()), [1], "float32", "string"),
    ],
    ids=str,
)
def test_a_columns_type_is_that_of_its_values_however_they_are_nested(
    source_without_cameras: Path, values: pa.Array, shape: list[int], dtype: str, stored: str | None
) -> None:
    add_column(source_without_cameras, values, shape, dtype)
    options = RepairOptions(recompute_stats=True)
    found = [
        f for f in scan_source(source_without_cameras, options).findings if "x is" in f.message
    ]
    said = [] if stored is None else [f"x is stored as {stored}, but declared as {dtype}."]
    assert [f.message for f in found if f.code == "dtype-mismatch"] == said


def test_the_result_declares_what_is_stored(source_without_cameras: Path) -> None:
    add_column(source_without_cameras, pa.array([[0.0, 0.0]] * 4), [3], "float32")
    scan = scan_source(source_without_cameras, RepairOptions(fill_stats=True))
    assert {f.code for f in scan.findings} == {
        "dtype-mismatch",
        "shape-mismatch",
        "missing-stats",
        "null-names",
    }
    assert scan.repairs.declared_features["x"] == {"dtype": "float64", "shape": [2]}
    assert scan.repairs.computed_stats == ("x",)


def test_only_statistics_that_are_missing_or_stale_are_filled(source_without_cameras: Path) -> None:
    def break_some(lines: list[dict[str, Any]]) -> None:
        del lines[1]["stats"]["action"]
        lines[2]["stats"]["timestamp"]["max"] = [99.0]
        for line in lines:
            del line["stats"]["index"]

    edit_lines(source_without_cameras, "episodes_stats", break_some)
    scan = scan_source(source_without_cameras)
    remedies = {f.code: [remedy.flag for remedy in f.remedies] for f in scan.findings}
    assert remedies["missing-stats"] == ["--fill-stats", "--recompute-stats"]
    scan = scan_source(source_without_cameras, RepairOptions(fill_stats=True))
    assert {f.severity for f in scan.findings} == {"repaired"}
    assert scan.repairs.computed_stats == ("action", "index", "timestamp")
    assert scan.repairs.stats_episodes == {"action": (1,), "timestamp": (2,)}


def test_statistics_that_are_no_table_are_filled(source_without_cameras: Path) -> None:
    source = source_without_cameras
    sound = convert(source, output=source.with_name("sound"))
    repairs = RepairOptions(fill_stats=True)
    for stats in (-1, "x", True, []):
        edit_lines(source, "episodes_stats", lambda lines, s=stats: lines[1].update(stats=s))
        assert {f.severity for f in scan_source(source, repairs).findings} == {"repaired"}
    filled = convert(source, output=source.with_name("filled"), repairs=repairs)
    columns = [
        pq.read_table(report.output / "meta/episodes/chunk-000/file-000.parquet")[
            "stats/action/count"
        ]
        for report in (sound, filled)
    ]
    assert columns[0].to_pylist() == columns[1].to_pylist()
