"""Damaged episodes of which the first frames are kept: ``--on-bad-episode trim``."""

from __future__ import annotations

import json
import shlex
import shutil
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import leconvert
from leconvert import media
from leconvert.cli import main
from leconvert.dataset.check import check_dataset
from leconvert.dataset.formats import v3
from leconvert.dataset.formats.v3 import read_repairs
from leconvert.dataset.scan import scan_source
from leconvert.model.repairs import RepairOptions
from leconvert.model.selection import EpisodeSelection, FrameInterval
from leconvert.model.values import LayoutOptions, Slice
from leconvert.run.conversion import ProofOptions
from leconvert.run.planner import plan_repairs
from leconvert.run.proof import verify_pair
from leconvert.support.errors import FindingsError
from leconvert.testing import (
    CameraSpec,
    DatasetSpec,
    FrameLabel,
    draw_frame,
    edit_lines,
    make_dataset,
)
from leconvert.testing.encode import encode_clip

TOP, WRIST = "observation.images.top", "observation.images.wrist"
TRIM = RepairOptions(on_bad_episode="trim")
BYTES = ProofOptions(verify="bytes")
LENGTHS = [30, 41, 24, 12]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Episodes of two cameras, one of which has B-frames."""
    spec = DatasetSpec(
        episodes=4,
        frames=LENGTHS,
        cameras=(
            CameraSpec(key=TOP, width=64, height=48, gop_size=12, options={"bf": "2"}),
            CameraSpec(key=WRIST, width=32, height=32, gop_size=5, options={"bf": "0"}),
        ),
    )
    return make_dataset(tmp_path_factory.mktemp("salvage") / "source", spec)


@pytest.fixture
def source(sound: Path, tmp_path: Path) -> Path:
    return shutil.copytree(sound, tmp_path / "source")


def clip_of(root: Path, camera: str, episode: int) -> Path:
    return root / f"videos/chunk-000/{camera}/episode_{episode:06d}.mp4"


def table_of(root: Path, episode: int) -> Path:
    return root / f"data/chunk-000/episode_{episode:06d}.parquet"


def cut_clip(path: Path, *parts: tuple[int, int]) -> None:
    """Let a clip be made of these parts of it: where each begins, and how many frames it has."""
    new = path.with_suffix(".new.mp4")
    media.join_clips([Slice(str(path), *part) for part in parts], new, fps=Fraction(30))
    new.replace(path)


def shorten_clip(root: Path, camera: str, episode: int, frames: int) -> None:
    """End a clip early, as a recording that crashed."""
    cut_clip(clip_of(root, camera, episode), (0, frames))


def lengthen_clip(root: Path, camera: str, episode: int, frames: int) -> None:
    """Let a clip go on when the rows have ended."""
    path, size = clip_of(root, camera, episode), 32 if camera == WRIST else 48
    width = 32 if camera == WRIST else 64
    labels = [FrameLabel(0, episode, at) for at in range(LENGTHS[episode] + frames)]
    pictures = [draw_frame(label, size, width) for label in labels]
    path.unlink()
    encode_clip(path, pictures, fps=Fraction(30), gop_size=7, options={"bf": "2"})


def keep_rows(root: Path, episode: int, rows: list[int]) -> None:
    path = table_of(root, episode)
    table = pq.read_table(path)
    pq.write_table(table.take(pa.array(rows)), path)


def errors_of(root: Path) -> list[str]:
    return [f.code for f in scan_source(root).findings if f.severity == "error"]


def lengths_of(root: Path) -> list[int]:
    return v3.Dataset(root).episodes.length.tolist()


def salvaged(source: Path) -> Path:
    """Convert, compare every byte, and check; only what a trim leaves behind is told."""
    out = source.with_name("out")
    leconvert.convert(source, output=out, repairs=TRIM)
    assert verify_pair(out, source, depth="bytes").differences == ()
    told = {f.code for f in check_dataset(out).findings if f.severity != "info"}
    assert told <= {"video-neighbours"}
    return out


def test_surplus_frames_at_the_tail_are_left_behind(source: Path) -> None:
    lengthen_clip(source, TOP, 1, 3)
    assert errors_of(source) == ["frame-count"]
    out = salvaged(source)
    assert lengths_of(out) == LENGTHS
    assert read_repairs(out).trimmed_episodes == {1: (0, 41)}
    assert read_repairs(out).dropped_episodes == ()


@pytest.mark.parametrize("length", [30, 50])
def test_a_length_that_all_files_contradict_is_what_is_wrong(source: Path, length: int) -> None:
    edit_lines(source, "episodes", lambda lines: lines[1].update(length=length))
    assert set(errors_of(source)) == {"row-count", "frame-count"}
    plan = plan_repairs(source)
    assert (plan.flags, plan.keeps.frames) == (("--on-bad-episode trim",), sum(LENGTHS))
    assert plan.of.frames == max(sum(LENGTHS), sum(LENGTHS) - 41 + length)
    out = salvaged(source)
    assert lengths_of(out) == LENGTHS
    if length == 50:
        back = source.with_name("back")
        leconvert.convert(source, output=back, repairs=TRIM, layout=LayoutOptions(to="v2.1"))
        assert verify_pair(back, source, depth="bytes").differences == ()
    # A longer part than the files have is no part of the source.
    record = json.loads((out / "meta/repairs.json").read_bytes())
    record["trimmed_episodes"] = [[1, 0, 60]]
    (out / "meta/repairs.json").write_text(json.dumps(record))
    assert "trimmed episode" in {each.what for each in verify_pair(out, source).differences}


def test_a_camera_that_ends_early_decides(source: Path) -> None:
    clip = media.read_clip_index(clip_of(source, TOP, 1))
    stop = next(at for at in range(33, 41) if clip.can_cut(at))
    shorten_clip(source, TOP, 1, stop)
    shorten_clip(source, WRIST, 2, 15)
    out = salvaged(source)
    assert lengths_of(out) == [30, stop, 15, 12]
    rows = pq.read_table(out / "data").to_pydict()
    before = [pq.read_table(table_of(source, episode)).to_pydict() for episode in range(4)]
    kept = [30, stop, 15, 12]
    for name in ("observation.state", "action", "task_index"):
        assert rows[name] == [
            row for own, n in zip(before, kept, strict=True) for row in own[name][:n]
        ]
    assert rows["index"] == list(range(sum(kept)))


def test_rows_that_are_missing_at_the_tail_take_their_frames_along(source: Path) -> None:
    keep_rows(source, 1, list(range(17)))
    out = salvaged(source)
    assert lengths_of(out) == [30, 17, 24, 12]
    stats = json.loads((out / "meta/stats.json").read_bytes())
    assert stats["action"]["count"] == [30 + 17 + 24 + 12]
    placed = v3.Dataset(out).episodes.placed[f"videos/{WRIST}"]
    clip = media.read_clip_index(clip_of(source, WRIST, 1))
    result = media.read_clip_index(out / f"videos/{WRIST}/chunk-000/file-000.mp4")
    first = round(placed.begin_seconds[1] * 30)
    ours = media.samples_sha256(result, first, first + 17)
    assert ours == media.samples_sha256(clip, 0, 17)


def test_an_episode_of_which_nothing_agrees_is_left_out(source: Path) -> None:
    shorten_clip(source, WRIST, 2, 15)
    clip = clip_of(source, TOP, 2)
    clip.write_bytes(clip.read_bytes()[:400])  # no index: nothing can be told
    keep_rows(source, 3, list(range(5)))
    scan = scan_source(source, TRIM)
    assert scan.repairs.trimmed_episodes == {3: (0, 5)}
    assert [(d.episode, d.code) for d in scan.repairs.dropped_episodes] == [(2, "unreadable-file")]
    assert lengths_of(salvaged(source)) == [30, 41, 5]


def test_frames_lost_in_the_middle_end_what_is_kept(source: Path) -> None:
    """The times of the clip tell that frame 10 and those after it are later ones."""
    shorten_clip(source, WRIST, 1, 36)
    path = clip_of(source, WRIST, 1)
    path.write_bytes(_with_a_pause(path.read_bytes(), after=10, frames=5))
    assert scan_source(source, TRIM).repairs.trimmed_episodes == {1: (0, 10)}
    assert lengths_of(salvaged(source)) == [30, 10, 24, 12]


def _with_a_pause(data: bytes, *, after: int, frames: int) -> bytes:
    """Return a file in which the frame before ``after`` lasts so many frames more."""
    begin = data.index(b"stts") - 4
    count, ticks = (int.from_bytes(data[begin + at : begin + at + 4]) for at in (16, 20))
    rows = [(after - 1, ticks), (1, ticks * (1 + frames)), (count - after, ticks)]
    table = b"".join(n.to_bytes(4) for row in rows for n in row)
    stts = (16 + len(table)).to_bytes(4) + b"stts" + bytes(4) + len(rows).to_bytes(4) + table
    grown = len(stts) - 24
    out = bytearray(data[:begin] + stts + data[begin + 24 :])
    at = out.index(b"elst") + 12
    out[at : at + 4] = (count + frames).to_bytes(4)
    out[at : at + 4] = (int.from_bytes(out[at : at + 4]) * ticks).to_bytes(4)
    for box in (b"moov", b"trak", b"mdia", b"minf", b"stbl"):
        at = out.index(box) - 4
        out[at : at + 4] = (int.from_bytes(out[at : at + 4]) + grown).to_bytes(4)
    at = out.index(b"stco") + 12
    out[at : at + 4] = (int.from_bytes(out[at : at + 4]) + grown).to_bytes(4)
    return bytes(out)


def test_of_a_truncated_clip_the_whole_frames_are_kept(source: Path) -> None:
    """Its index is at the front: a copy that broke off."""
    camera, share = TOP, 0.7  # the one with B-frames
    path = clip_of(source, camera, 1)
    cut_clip(path, (0, LENGTHS[1]))
    whole = media.read_clip_index(path)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    with pytest.raises(media.TruncatedClipError) as caught:
        media.read_clip_index(path)
    there = caught.value.index.num_samples
    ends = whole.offsets + whole.sizes
    assert there == int(np.count_nonzero(ends <= path.stat().st_size)) < 41
    kept = next(at for at in range(42) if at not in set(whole.ranks[:there].tolist()))
    assert caught.value.whole_frames == kept
    assert errors_of(source) == ["unreadable-file"]
    scan = scan_source(source, TRIM)
    assert scan.repairs.trimmed_episodes == {1: (0, kept)}
    assert lengths_of(salvaged(source)) == [30, kept, 24, 12]


@pytest.mark.parametrize("more", [{}, {"retime": True, "reindex": True}])
def test_rows_lost_in_the_middle_are_no_prefix(source: Path, more: dict[str, bool]) -> None:
    """With --retime the rows behind the gap would be shown with the wrong frames."""
    keep_rows(source, 1, [*range(20), *range(26, 41)])
    scan = scan_source(source, RepairOptions(on_bad_episode="trim", **more))
    assert scan.repairs.trimmed_episodes == {}
    assert [dropped.episode for dropped in scan.repairs.dropped_episodes] == [1]


def test_the_plan_tells_counts_and_offers_trim_first(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep_rows(source, 1, list(range(17)))
    shorten_clip(source, WRIST, 2, 15)
    with pytest.raises(FindingsError) as caught:
        leconvert.convert(source, output=tmp_path / "out")
    found = [f for f in caught.value.findings if f["severity"] == "error"]
    assert {f["remedy"] for f in found} == {"--on-bad-episode trim"}
    assert "Otherwise run the command again with --on-bad-episode trim" in str(
        caught.value.next_step
    )
    rows = next(f for f in found if f["code"] == "row-count")
    by_flag = {remedy["flag"]: remedy["keeps"] for remedy in rows["remedies"]}
    assert by_flag["--on-bad-episode trim"]["episodes"] == 4
    assert by_flag["--on-bad-episode trim"]["frames"] == sum(LENGTHS) - 24
    assert by_flag["--on-bad-episode drop"]["episodes"] == 3
    words = ["convert", str(source), str(tmp_path / "out"), "--on-bad-episode", "trim"]
    assert main([*words, "--dry-run"]) == 0
    printed = capsys.readouterr()
    said = printed.out
    told = " ".join(printed.err.split())
    assert "2 damaged episodes trimmed: 32 of 65 frames kept." in told
    assert f"4 episodes, {30 + 17 + 15 + 12} frames" in said
    assert main([*words, "--dry-run", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    kept = [f for f in record["findings"] if f["code"] == "trimmed-episode"]
    assert [(f["episode"], f["message"]) for f in kept[1:]] == [
        (1, "Episode 1: the first 17 of its 41 frames are kept."),
        (2, "Episode 2: the first 15 of its 24 frames are kept."),
    ]
    assert record["frames"] == 74
    assert not (tmp_path / "out").exists()


def test_frames_that_are_asked_for_are_kept_as_far_as_they_agree(source: Path) -> None:
    keep_rows(source, 1, list(range(17)))
    keep_rows(source, 2, list(range(9)))
    frames = (FrameInterval(1, 4), FrameInterval(2, 12))
    scan = scan_source(source, TRIM, selection=EpisodeSelection(frames=frames))
    assert scan.repairs.trimmed_episodes == {1: (4, 17)}
    assert [dropped.episode for dropped in scan.repairs.dropped_episodes] == [2]


def test_v21_ends_where_no_later_frame_is_needed(source: Path) -> None:
    keep_rows(source, 1, list(range(17)))
    clip = media.read_clip_index(clip_of(source, TOP, 1))
    stop = max(at for at in range(1, 18) if clip.can_cut(at))
    out = source.with_name("out")
    to = LayoutOptions(to="v2.1")
    leconvert.convert(source, output=out, repairs=TRIM, layout=to, proof=BYTES)
    assert read_repairs(out).trimmed_episodes == {1: (0, stop)}
    assert pq.read_table(table_of(out, 1)).num_rows == stop
    assert verify_pair(out, source, depth="bytes").ok


# v3.0: files hold several episodes.


@pytest.fixture(scope="module")
def sound_v3(sound: Path) -> Path:
    """A v3.0 dataset; its camera with B-frames is left out, so that every place is a cut."""
    repairs = RepairOptions(drop_features=(TOP,))
    return leconvert.convert(sound, output=sound.with_name("joined"), repairs=repairs).output


@pytest.fixture
def joined(sound_v3: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound_v3, tmp_path / "joined"))


def alter_episodes(root: Path, change: dict[str, dict[int, float]]) -> None:
    path = root / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    for name, values in change.items():
        column = table[name].to_pylist()
        for row, value in values.items():
            column[row] = value
        at = table.schema.get_field_index(name)
        table = table.set_column(
            at, table.schema.field(at), pa.array(column, table.schema.field(at).type)
        )
    pq.write_table(table, path)


def rejoin(root: Path, frames: list[int]) -> None:
    """Give a camera's file only the first frames of each episode."""
    path = root / f"videos/{WRIST}/chunk-000/file-000.mp4"
    starts = np.cumsum(LENGTHS) - LENGTHS
    cut_clip(path, *zip(starts.tolist(), frames, strict=True))
    ends = np.cumsum(frames)
    alter_episodes(
        root,
        {
            f"videos/{WRIST}/from_timestamp": dict(enumerate(((ends - frames) / 30).tolist())),
            f"videos/{WRIST}/to_timestamp": dict(enumerate((ends / 30).tolist())),
        },
    )


def test_a_v3_file_that_ends_early_keeps_what_it_has(joined: Path) -> None:
    cut_clip(joined / f"videos/{WRIST}/chunk-000/file-000.mp4", (0, sum(LENGTHS) - 5))
    assert errors_of(joined) == ["frame-count"]
    assert lengths_of(salvaged(joined)) == [30, 41, 24, 7]


def test_an_episode_of_v3_whose_camera_ended_early_keeps_its_neighbours(joined: Path) -> None:
    rejoin(joined, [30, 36, 24, 12])
    with pytest.raises(FindingsError) as caught:
        leconvert.convert(joined, output=joined.with_name("out"))
    found = [f for f in caught.value.findings if f["severity"] == "error"]
    assert [(f["code"], f["episode"]) for f in found] == [("frame-count", 1)]
    assert "has 36 of its 41 frames before the next begins" in found[0]["message"]
    out = salvaged(joined)
    assert lengths_of(out) == [30, 36, 24, 12]
    assert not [f for f in check_dataset(out).findings if f.severity != "info"]


def test_episodes_of_v3_that_are_the_same_frames_are_left_out(joined: Path) -> None:
    """Nothing tells which of the two has the frames: no end of one is the other's begin."""
    name = f"videos/{WRIST}/from_timestamp"
    alter_episodes(joined, {name: {2: (30 + 36) / 30}})
    cut_clip(joined / f"videos/{WRIST}/chunk-000/file-000.mp4", (0, sum(LENGTHS) - 1))
    scan = scan_source(joined, TRIM)
    assert sorted(d.episode for d in scan.repairs.dropped_episodes) == [1, 2]
    assert scan.repairs.trimmed_episodes == {3: (0, 11)}


def test_rows_of_v3_that_are_missing_at_the_tail(joined: Path) -> None:
    path = joined / "data/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    keep = [row for row in range(sum(LENGTHS)) if not 30 + 17 <= row < 71]
    pq.write_table(table.take(pa.array(keep)), path)
    out = salvaged(joined)
    assert lengths_of(out) == [30, 17, 24, 12]
    rows = pq.read_table(out / "data").to_pydict()
    assert rows["action"] == table.take(pa.array(keep)).to_pydict()["action"]


def test_repair_keeps_what_agrees(joined: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rejoin(joined, [30, 36, 24, 12])
    assert main(["check", str(joined), "--plan-repairs"]) == 0
    said = capsys.readouterr().out
    command = next(line for line in said.splitlines() if line.strip().startswith("leconvert "))
    assert "--on-bad-episode trim" in command
    assert main([*shlex.split(command)[1:]]) == 0
    assert lengths_of(joined) == [30, 36, 24, 12]
    assert main(["undo", str(joined)]) == 0
    assert lengths_of(joined) == LENGTHS
