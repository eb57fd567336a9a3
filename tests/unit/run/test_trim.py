"""Trimmed episodes: what stays of rows and videos, what is refused, and that it is proven."""

from __future__ import annotations

import json
import shlex
import shutil
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.dataset_damage import EPISODES, rewrite, set_cells
from tests.plans import open_or_plan

import leconvert
from leconvert import media
from leconvert.cli import main
from leconvert.dataset.check import check_dataset
from leconvert.dataset.formats import rows_of, v3
from leconvert.dataset.formats.v3 import read_repairs
from leconvert.dataset.scan import scan_source
from leconvert.model.repairs import Repairs
from leconvert.model.selection import EpisodeSelection, FrameInterval, parse_frames
from leconvert.model.values import LayoutOptions, stream_of_camera
from leconvert.run.conversion import Conversion, ProofOptions
from leconvert.run.packer import reason_to_keep
from leconvert.run.proof import verify_pair
from leconvert.support.errors import FindingsError, PlanMismatchError, UsageError
from leconvert.testing import CameraSpec, DatasetSpec, FrameLabel, draw_frame, make_dataset
from leconvert.testing.encode import encode_clip

CAMERA = "observation.images.top"
BYTES = ProofOptions(verify="bytes")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Episodes whose clips have B-frames and keyframes far apart; images in the tables, too."""
    cameras = (
        CameraSpec(key=CAMERA, width=64, height=48, gop_size=12, options={"bf": "2"}),
        CameraSpec(key="observation.images.wrist", width=32, height=32, gop_size=5),
    )
    spec = DatasetSpec(
        episodes=4, frames=[30, 41, 24, 12], cameras=cameras, image_size=(16, 16),
        image_keys=("observation.images.still",),
    )  # fmt: skip
    return make_dataset(tmp_path_factory.mktemp("trim") / "source", spec)


@pytest.fixture(scope="module")
def trimmed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source, two of whose episodes are trimmed."""
    out = tmp_path_factory.mktemp("trimmed") / "out"
    leconvert.trim(source, frames={1: (17, 30), 2: (0, 20)}, output=out, proof=BYTES)
    return out


def test_rows_are_dropped_and_counted_anew_which_is_proven(source: Path, trimmed: Path) -> None:
    rows = pq.read_table(trimmed / "data").to_pydict()
    lengths = [30, 13, 20, 12]
    assert rows["index"] == list(range(sum(lengths)))
    assert rows["frame_index"] == [frame for length in lengths for frame in range(length)]
    assert rows["episode_index"] == np.repeat(range(4), lengths).tolist()
    assert rows["timestamp"] == [float(np.float32(frame / 30)) for frame in rows["frame_index"]]
    before = [
        pq.read_table(source / f"data/chunk-000/episode_{number:06d}.parquet").to_pydict()
        for number in range(4)
    ]
    kept = [slice(0, 30), slice(17, 30), slice(0, 20), slice(0, 12)]
    for name in ("observation.state", "action", "observation.images.still", "task_index"):
        expected = [row for own, part in zip(before, kept, strict=True) for row in own[name][part]]
        assert rows[name] == expected
    info = json.loads((trimmed / "meta/info.json").read_bytes())
    assert (info["total_episodes"], info["total_frames"]) == (4, 75)
    assert read_repairs(trimmed).trimmed_episodes == {1: (17, 30), 2: (0, 20)}
    assert json.loads((trimmed / "meta/repairs.json").read_bytes())["version"] == 4
    assert verify_pair(trimmed, source, depth="bytes").differences == ()
    findings = check_dataset(trimmed).findings
    assert not [finding for finding in findings if finding.severity == "error"]
    unused = [finding for finding in findings if finding.code == "video-neighbours"]
    assert unused
    for finding in unused:
        assert "without, an episode cannot be decoded" in finding.message
    kept = reason_to_keep(trimmed, source, read_repairs(trimmed))
    assert kept == "these of its episodes were trimmed: 1, 2"


def test_the_video_keeps_what_its_frames_need_and_no_more(source: Path, trimmed: Path) -> None:
    episodes = v3.Dataset(trimmed).episodes
    for camera in (CAMERA, "observation.images.wrist"):
        clip = media.read_clip_index(source / f"videos/chunk-000/{camera}/episode_000001.mp4")
        shown = clip.presentation_times
        cuts = [at for at in range(1, 41) if shown[:at].max() < shown[at:].min()]
        heads = [at for at in (0, *cuts) if clip.keyframes[at] and shown[at] == shown[at:].min()]
        lead = 17 - max(head for head in heads if head <= 17)
        tail = min(at for at in (*cuts, 41) if at >= 30) - 30
        assert lead
        placed = episodes.placed[stream_of_camera(camera)]
        assert placed.begin_seconds[1] * 30 == pytest.approx(30 + lead)
        assert placed.begin_seconds[2] * 30 == pytest.approx(30 + lead + 13 + tail)
        frames = (placed.end_seconds - placed.begin_seconds) * 30
        assert frames == pytest.approx([30, 13, 20, 12])
        assert clip.reordering(0, 41) is not None, "the clips have B-frames"


def test_statistics_of_trimmed_episodes_alone_are_computed(source: Path, trimmed: Path) -> None:
    found = list(rows_of(v3.Dataset(trimmed).stats_blocks()))
    copied = [
        json.loads(line)["stats"]
        for line in (source / "meta/episodes_stats.jsonl").read_text().splitlines()
    ]
    for episode in (0, 3):
        for name in ("action", CAMERA, "observation.images.still"):
            assert found[episode][name] == copied[episode][name]
    assert found[1]["action"]["count"] == [13]
    assert found[1]["frame_index"]["max"] == [12]
    rows = pq.read_table(source / "data/chunk-000/episode_000001.parquet")["action"].to_pylist()
    mean = np.mean(np.array(rows)[17:30], axis=0)
    assert found[1]["action"]["mean"] == pytest.approx(mean.tolist(), rel=1e-5)
    assert found[1][CAMERA] != copied[1][CAMERA]
    stats = json.loads((trimmed / "meta/stats.json").read_bytes())
    assert stats["index"]["max"] == [74]


@pytest.mark.parametrize("trims", [[[1, 16, 29], [2, 0, 20]], [[1, 17, 30]], [[1, 17, 99]], []])
def test_a_result_that_says_other_frames_is_not_proven(
    source: Path, trimmed: Path, tmp_path: Path, trims: list[list[int]]
) -> None:
    other = shutil.copytree(trimmed, tmp_path / "other")
    path = other / "meta/repairs.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {"trimmed_episodes": trims}))
    assert not verify_pair(other, source).ok


def test_a_wrong_from_timestamp_of_a_trimmed_episode_is_found(
    source: Path, trimmed: Path, tmp_path: Path
) -> None:
    other = shutil.copytree(trimmed, tmp_path / "other")
    name = f"videos/{CAMERA}/from_timestamp"
    value = pq.read_table(other / EPISODES)[name][1].as_py()
    rewrite(EPISODES, set_cells(name, r1=value - 1 / 30))(other)
    differences = verify_pair(other, source).differences
    assert [(d.what, d.episode) for d in differences] == [("from_timestamp", 1)]


def test_a_trimmed_dataset_is_a_source(trimmed: Path, tmp_path: Path) -> None:
    again, some, less = tmp_path / "again", tmp_path / "some", tmp_path / "less"
    leconvert.convert(trimmed, output=again, proof=BYTES)
    stream = stream_of_camera(CAMERA)
    one, other = (v3.Dataset(root).episodes.placed[stream] for root in (trimmed, again))
    assert one.begin_seconds.tolist() == other.begin_seconds.tolist()
    leconvert.convert(trimmed, output=some, selection=EpisodeSelection(episodes="1,3"), proof=BYTES)
    leconvert.trim(trimmed, frames={1: (2, 9), 3: (5, None)}, output=less, proof=BYTES)
    assert pq.read_table(less / "data").num_rows == 75 - 6 - 5
    assert all(verify_pair(each, trimmed, depth="bytes").ok for each in (some, less))


def test_v21_holds_what_lies_between_keyframes(source: Path, tmp_path: Path) -> None:
    to = LayoutOptions(to="v2.1")
    with pytest.raises(UsageError) as caught:
        leconvert.trim(source, frames={1: (17, 30)}, output=tmp_path / "out", layout=to)
    assert "cannot be decoded without frames before or after them" in caught.value.message
    said = str(caught.value.next_step).split(",")[0].removeprefix("Give --frames ")
    (wider,) = parse_frames([1], [said])
    assert (0, 0) < (wider.first, wider.stop) != (0, 41)
    assert wider.first <= 17
    assert 30 <= wider.stop <= 41
    frames = {1: (wider.first, None if wider.stop == 41 else wider.stop)}
    leconvert.trim(source, frames=frames, output=tmp_path / "out", layout=to, proof=BYTES)
    assert verify_pair(tmp_path / "out", source, depth="bytes").ok


@pytest.mark.parametrize("kind", ["intra refresh", "a table that lists every frame"])
def test_frames_that_no_decoder_finds_are_refused_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    camera = CameraSpec(key=CAMERA, width=160, height=64)
    source = make_dataset(tmp_path / "set", DatasetSpec(episodes=2, frames=30, cameras=(camera,)))
    path = source / f"videos/chunk-000/{CAMERA}/episode_000001.mp4"
    frames = [draw_frame(FrameLabel(0, 1, at), 64, 160) for at in range(30)]
    options = {"x264-params": "keyint=10:scenecut=0:bframes=0"}
    options |= {"intra-refresh": "1"} if kind == "intra refresh" else {}
    encode_clip(path, frames, fps=Fraction(30), gop_size=10, options=options)
    if kind != "intra refresh":
        path.write_bytes(path.read_bytes().replace(b"stss", b"free"))
    words = ["trim", str(source), "-o", str(tmp_path / "out"), "--episode", "1", "--frames"]
    for more in ([], ["--dry-run"], ["--to", "v2.1"]):
        assert main([*words, "12:25", *more]) == 3
        said = " ".join(capsys.readouterr().err.split())
        assert "frames 12:25 of episode 1 cannot be cut out as they are: the table" in said
    assert [each.name for each in tmp_path.iterdir()] == ["set"]
    encode_clip(path, frames, fps=Fraction(30), gop_size=2)  # as the message says
    assert main([*words, "12:25"]) == 0
    assert verify_pair(tmp_path / "out", source, depth="bytes").ok


@pytest.fixture(scope="module")
def between(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three episodes that begin between keyframes, which are the same frames of both cameras."""
    folder = tmp_path_factory.mktemp("between")
    cameras = tuple(
        CameraSpec(
            key=f"observation.images.{name}", width=64, height=48, gop_size=5,
            options={"sc_threshold": "0", "bf": "0"},
        )
        for name in ("top", "wrist")
    )  # fmt: skip
    source = make_dataset(folder / "v21", DatasetSpec(episodes=3, frames=20, cameras=cameras))
    leconvert.trim(source, frames={0: (3, 18), 1: (16, None)}, output=folder / "s e t")
    leconvert.trim(folder / "s e t", frames={2: (7, 14)}, output=folder / "sét 'ö'")
    return folder / "sét 'ö'"


def test_what_v21_cannot_hold_is_trimmed_further_by_the_command_that_is_named(
    between: Path, tmp_path: Path
) -> None:
    with pytest.raises(FindingsError) as caught:
        leconvert.convert(between, output=tmp_path / "out", layout=LayoutOptions(to="v2.1"))
    found = {f["episode"]: f["message"] for f in caught.value.findings if f["severity"] == "error"}
    assert sorted(found) == [0, 1, 2]
    assert " Frames 2:15 of its 15 need no others: `leconvert trim " in found[0]
    assert "but a clip of v2.1 contains only the frames of its episode" in found[1]
    words = shlex.split(found[0].split("`")[1])
    words[words.index("NEW")] = str(tmp_path / "new")
    # Nothing of episode 1 begins at a keyframe: that one has to be left out.
    assert main(words[1:]) == 3
    assert main([*words[1:], "--on-bad-episode", "drop"]) == 0
    assert read_repairs(tmp_path / "new").trimmed_episodes == {0: (2, 15), 2: (3, 7)}
    assert verify_pair(tmp_path / "new", between, depth="bytes").ok
    assert pq.read_table(tmp_path / "new/data").num_rows == 13 + 4


@pytest.mark.parametrize(
    ("frames", "step"),
    [({0: (1, 9)}, "Give --frames 2:9, or write v3.0, "), ({1: (1, 3)}, "Write")],
)
def test_an_episode_that_was_trimmed_is_not_widened_beyond_itself(
    between: Path, tmp_path: Path, frames: dict[int, tuple[int, int]], step: str
) -> None:
    to = LayoutOptions(to="v2.1")
    with pytest.raises(UsageError) as caught:
        leconvert.trim(between, frames=frames, output=tmp_path / "out", layout=to)
    assert str(caught.value.next_step).startswith(step)


@pytest.mark.parametrize(
    ("frames", "said"),
    [
        ({1: (5, 5)}, "--frames 5:5 keeps no frame."),
        ({1: (-3, 5)}, "--frames -3:5 keeps no frame."),
        ({1: (9, 5)}, "--frames 9:5 keeps no frame."),
        ({1: (0, 42)}, "Episode 1 has 41 frames; --frames 0:42 lies outside."),
        ({1: (41, None)}, "Episode 1 has 41 frames; --frames 41:41 lies outside."),
        ({1: (0, 41)}, "so nothing would change"),
        ({1: (0, None)}, "so nothing would change"),
        ({9: (0, 5)}, "The dataset has no episode 9 (--episode)."),
        ({}, "No frames to keep are given."),
    ],
)
def test_intervals_that_are_none_are_refused(
    source: Path, tmp_path: Path, frames: dict[int, tuple[int, int | None]], said: str
) -> None:
    with pytest.raises(UsageError) as caught:
        leconvert.trim(source, frames=frames, output=tmp_path / "out")
    assert said in caught.value.message
    assert caught.value.next_step
    assert not list(tmp_path.iterdir())


def test_intervals_are_read_from_words() -> None:
    assert parse_frames([3, 1], ["10:50", " :7"]) == (
        FrameInterval(3, 10, 50),
        FrameInterval(1, 0, 7),
    )
    assert parse_frames([0], ["5:"]) == (FrameInterval(0, 5),)
    for text in ("", ":", "5", "-5:9", "5:-1", "a:b", "1:2:3", "1.5:2"):
        with pytest.raises(UsageError, match="--frames takes FROM:TO"):
            parse_frames([0], [text])
    for numbers, texts in (([1], []), ([1, 2], ["0:1"]), ([], [])):
        with pytest.raises(UsageError, match="is given"):
            parse_frames(numbers, texts)
    with pytest.raises(UsageError, match="--episode 1 is given twice"):
        EpisodeSelection(frames=(FrameInterval(1, 0, 2), FrameInterval(1, 3)))


def test_a_run_is_resumed_by_the_same_frames_alone(source: Path, tmp_path: Path) -> None:
    places = source, tmp_path / "out", tmp_path / "work"
    first = EpisodeSelection(frames=(FrameInterval(1, 17, 30), FrameInterval(0, 4)))
    same = EpisodeSelection(frames=(FrameInterval(0, 4), FrameInterval(1, 17, 30)))
    run = open_or_plan(*places, Conversion(selection=first))
    again = open_or_plan(*places, Conversion(selection=same))
    assert again.paths.run_id == run.paths.run_id
    scan, _ = again.scan.stream(stream_of_camera(CAMERA))
    assert scan.lead[0] == 4
    assert scan.lead.tolist() == run.scan.stream(stream_of_camera(CAMERA))[0].lead.tolist()
    with pytest.raises(PlanMismatchError):
        open_or_plan(
            *places, Conversion(selection=EpisodeSelection(frames=(FrameInterval(1, 17, 31),)))
        )


def test_nothing_else_is_changed(source: Path) -> None:
    scan = scan_source(source, selection=EpisodeSelection(frames=(FrameInterval(3, 2, 9),)))
    repairs = scan.repairs
    assert repairs.computed_columns == ("index",)
    assert repairs.trimmed_episodes == {3: (2, 9)}
    assert repairs.selected_episodes is None
    assert set(repairs.computed_stats) - set(repairs.stats_episodes) == {"index"}
    assert Repairs.from_record(json.loads(json.dumps(repairs.as_record()))) == repairs
    whole = scan_source(source)
    assert [f for f in scan.findings if f.severity != "info"] == [
        f for f in whole.findings if f.severity != "info"
    ]
