"""What a scan sees of a v3.0 dataset: every episode's slice, and what is wrong with it."""

from __future__ import annotations

import pickle
import shutil
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.dataset_damage import (
    DATA,
    EPISODES,
    TASKS,
    Damage,
    edit_feature,
    edit_info,
    pipe_instead,
    remove,
    rewrite,
    set_cells,
)
from tests.dataset_damage import TOP as TOP_FILE
from tests.drift import start_late_in_fragments
from tests.mp4_boxes import changed, with_a_shorter_sample, with_bytes_over

import leconvert
from leconvert import media
from leconvert.dataset.check import check_dataset
from leconvert.dataset.scan import scan_source
from leconvert.model.repairs import RepairOptions
from leconvert.model.values import Finding, LayoutOptions, SourceScan
from leconvert.run.proof import verify_pair
from leconvert.support.errors import SourceError, UnreadableSourceError, UsageError
from leconvert.support.parallel import Spread
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset

LENGTHS = [12, 7, 1, 9, 15, 20, 8]
TOP = "videos/observation.images.top"
WRIST = "videos/observation.images.wrist"
DROP = RepairOptions(on_bad_episode="drop")
FROM = f"{TOP}/from_timestamp"


def make_v3(folder: Path, **layout: Any) -> Path:
    spec = DatasetSpec(
        episodes=len(LENGTHS),
        frames=LENGTHS,
        cameras=(
            CameraSpec(key=TOP.removeprefix("videos/"), width=64, height=48),
            CameraSpec(key=WRIST.removeprefix("videos/"), width=32, height=32),
        ),
        tasks=("Pick up the cube.", "Put it down."),
    )
    source = make_dataset(folder / "v21", spec)
    leconvert.convert(source, output=folder / "v30", layout=LayoutOptions(**layout))
    return folder / "v30"


@pytest.fixture(scope="session")
def sound_v3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven episodes of two cameras in one file each; do not change it."""
    return make_v3(tmp_path_factory.mktemp("v3"))


@pytest.fixture(scope="session")
def many_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same in several files, some of one episode; do not change it."""
    return make_v3(
        tmp_path_factory.mktemp("v3-files"), data_file_size_in_mb=0.004, video_file_size_in_mb=0.008
    )


@pytest.fixture
def broken(sound_v3: Path, tmp_path: Path) -> Path:
    """A copy in one file a stream, to be damaged."""
    return Path(shutil.copytree(sound_v3, tmp_path / "v30"))


@pytest.fixture
def split(many_files: Path, tmp_path: Path) -> Path:
    """A copy in several files a stream, to be damaged."""
    return Path(shutil.copytree(many_files, tmp_path / "v30"))


def told(scan: SourceScan, *, but: frozenset[str] = frozenset()) -> list[tuple[str, str]]:
    return [(each.severity, each.code) for each in scan.findings if each.code not in but]


def the_only(scan: SourceScan, code: str) -> Finding:
    (finding,) = [each for each in scan.findings if each.code == code]
    return finding


def first_rows(lengths: list[int]) -> list[int]:
    return [0, *accumulate(lengths)][:-1]


def test_slices_of_one_file_follow_each_other(sound_v3: Path) -> None:
    scan = scan_source(sound_v3)
    assert not scan.findings
    assert scan.only.codebase_version == "v3.0"
    assert scan.episode_index.tolist() == list(range(len(LENGTHS)))
    assert scan.length.tolist() == LENGTHS
    assert [stream.stream for stream in scan.streams] == ["data", TOP, WRIST]
    for stream in scan.streams:
        assert len(stream.files) == 1
        assert stream.first.tolist() == first_rows(LENGTHS)
        assert stream.frames.tolist() == LENGTHS
    index = media.read_clip_index(sound_v3 / TOP_FILE)
    assert scan.streams[1].size_bytes.sum() == index.num_bytes
    with pq.ParquetFile(sound_v3 / DATA) as file:
        groups = [file.metadata.row_group(n) for n in range(file.num_row_groups)]
    sizes = [sum(g.column(c).total_uncompressed_size for c in range(g.num_columns)) for g in groups]
    assert scan.streams[0].roll_bytes.tolist() == sizes


def test_slices_name_the_files_that_they_are_in(many_files: Path) -> None:
    scan = scan_source(many_files)
    assert not scan.findings
    for stream in scan.streams:
        assert len(stream.files) > 1
        for number in range(len(stream.files)):
            inside = np.flatnonzero(stream.file == number)
            lengths = [LENGTHS[episode] for episode in inside]
            assert stream.first[inside].tolist() == first_rows(lengths)
    suffix = {"data": "parquet"}
    on_disk = {
        stream.stream: [
            path.stat().st_size
            for path in sorted(
                (many_files / stream.stream).rglob(f"*.{suffix.get(stream.stream, 'mp4')}")
            )
        ]
        for stream in scan.streams
    }
    assert {s.stream: s.files.size_bytes.tolist() for s in scan.streams} == on_disk


def test_other_processes_see_the_same(many_files: Path) -> None:
    here, there = (scan_source(many_files, spread=s) for s in (Spread(), Spread(processes=1)))
    for one, other in zip(here.streams, there.streams, strict=True):
        assert one.first.tolist() == other.first.tolist()
        assert one.files.mtime_ns.tolist() == other.files.mtime_ns.tolist()
    assert here.only.meta_digest == there.only.meta_digest


def test_own_templates_and_other_files_are_known(split: Path) -> None:
    (split / "data/chunk-000").rename(split / "data/part-0")
    edit_info(data_path="data/part-{chunk_index}/file-{file_index:03d}.parquet")(split)
    (split / "videos").rename(split / "cameras")
    edit_info(video_path="cameras/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4")(
        split
    )
    (split / "notes.txt").write_text("left hand")
    scan = scan_source(split)
    assert not scan.findings
    assert scan.only.extra_files == ("notes.txt",)


@pytest.mark.parametrize("relative", [DATA, TOP_FILE])
@pytest.mark.parametrize("damage", ["missing-file", "unreadable-file"])
def test_each_episode_of_a_file_that_is_gone_or_damaged_can_be_dropped(
    split: Path, relative: str, damage: str
) -> None:
    sound = scan_source(split)
    stream = next(s for s in sound.streams if relative.startswith(s.stream))
    lost = np.flatnonzero(stream.file == 0).tolist()
    if damage == "missing-file":
        (split / relative).unlink()
    else:
        (split / relative).write_bytes((split / relative).read_bytes()[:100])
    scan = scan_source(split)
    assert [(f.code, f.severity, f.episode) for f in scan.findings] == [
        (damage, "error", episode) for episode in lost
    ]
    kept = scan_source(split, DROP)
    assert kept.episode_index.tolist() == [e for e in range(len(LENGTHS)) if e not in lost]
    assert {each.severity for each in kept.findings} == {"repaired"}
    assert set(kept.repairs.computed_columns) == {"episode_index", "index"}


def test_a_file_whose_index_leaves_bytes_over_is_decoded_and_refused_where_it_does_not(
    broken: Path,
) -> None:
    sound = (broken / TOP_FILE).read_bytes()
    (broken / TOP_FILE).write_bytes(changed(sound, with_bytes_over))
    assert scan_source(broken).findings == ()
    (broken / TOP_FILE).write_bytes(changed(sound, with_a_shorter_sample))
    assert {(f.code, f.path) for f in scan_source(broken).findings} == {
        ("unreadable-file", TOP_FILE)
    }
    assert [each.code for each in check_dataset(broken).findings] == ["unreadable-file"]


def test_episodes_that_begin_where_they_began_in_a_block_are_not_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results of all conversions with large clips are such datasets, and lie there for long."""
    result, back = make_v3(tmp_path, block_align=4096), tmp_path / "back"
    leconvert.convert(result, output=back, layout=LayoutOptions(to="v2.1", block_align=4096))
    decoded: list[media.ClipIndex] = []
    monkeypatch.setattr(media, "check_decodes", decoded.append)
    for root in (result, back):
        clips = [media.read_clip_index(clip) for clip in root.rglob("*.mp4")]
        assert sum(clip.unindexed_bytes > 0 for clip in clips) > 1
        assert scan_source(root).findings == ()
        assert check_dataset(root).findings == ()
    assert decoded == []


def test_a_camera_without_any_file_is_a_phantom(broken: Path) -> None:
    shutil.rmtree(broken / WRIST)
    finding = the_only(scan_source(broken), "phantom-feature")
    assert finding.remedy == "--drop-feature observation.images.wrist"
    options = RepairOptions(drop_features=("observation.images.wrist",))
    assert [s.stream for s in scan_source(broken, options).streams] == ["data", TOP]


def with_drift(root: Path) -> None:
    """Make every frame of a file one part in 3,000 too long."""
    content = bytearray((root / TOP_FILE).read_bytes())
    at = content.index(b"mdhd") + 4 + 12
    timescale = int.from_bytes(content[at : at + 4], "big")
    content[at : at + 4] = (timescale - timescale // 3000).to_bytes(4, "big")
    (root / TOP_FILE).write_bytes(content)


def without(*columns: str) -> Damage:
    return rewrite(EPISODES, lambda table: table.drop_columns(columns))


ACTION = [f"stats/action/{name}" for name in ("min", "max", "mean", "std", "count")]
TOLD: dict[str, tuple[Damage, list[tuple[str, str]], str]] = {
    "a file of no episode": (
        lambda root: shutil.copy(root / DATA, root / "data/chunk-000/file-007.parquet"),
        [("warning", "stray-file")], "data/chunk-000/file-007.parquet",
    ),
    "a wrong from_timestamp": (
        rewrite(EPISODES, set_cells(FROM, r3=0.7)), [("warning", "from-timestamp")],
        "of 1 episode is wrong, the first is 0.700000, but counting frames gives 0.666667",
    ),
    "an index that does not count": (
        rewrite(DATA, set_cells("index", r13=3, r20=3)), [("error", "global-index")],
        "The same holds for 2 episodes",
    ),
    "wrong totals": (edit_info(total_frames=7), [("warning", "stale-total")], "total_frames"),
    "ranges that do not go together": (
        rewrite(EPISODES, set_cells("dataset_to_index", r2=25)), [("warning", "episode-range")], "",
    ),
    "times that drift": (
        with_drift, [("info", "drifted-times")], "of 72 frames lie 0.1 ms or more",
    ),
    "times of a file that will be remuxed": (
        lambda root: start_late_in_fragments(root / TOP_FILE),
        [("info", "drifted-times"), ("info", "remux")],
        "72 of 72 frames lie 0.1 ms or more from their time, by up to 1.",
    ),
    "statistics that are missing": (
        without(*ACTION), [("error", "missing-stats")],
        "action for episode 0 are not there in meta/episodes",
    ),
    "no table of episodes": (
        remove(EPISODES), [("warning", "derivable"), ("error", "missing-stats")], "has no table",
    ),
    "another type than declared": (
        edit_feature("action", dtype="float64"), [("warning", "dtype-mismatch")], "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TOLD)
def test_one_damage_is_told_with_what_becomes_of_it(broken: Path, name: str) -> None:
    damage, findings, said = TOLD[name]
    damage(broken)
    scan = scan_source(broken)
    assert told(scan) == findings
    assert said in scan.findings[0].message
    assert scan.length.tolist() == LENGTHS
    assert scan.streams[1].first.tolist() == first_rows(LENGTHS)
    assert (scan.repairs.derived_tables == ("meta/episodes",)) == (name == "no table of episodes")
    declared = scan.repairs.declared_features.get("action", {}).get("dtype")
    assert declared == ("float32" if name == "another type than declared" else None)
    mended = scan_source(broken, RepairOptions(reindex=True, fill_stats=True))
    assert "error" not in {each.severity for each in mended.findings}
    assert set(mended.repairs.computed_stats) >= ({"action"} if "missing" in name else set())


def without_episodes(*gone: int) -> Damage:
    """Take episodes out of the tables as a trim does, and leave their frames in the videos."""

    def damage(root: Path) -> None:
        kept = [episode for episode in range(len(LENGTHS)) if episode not in gone]
        lengths = [LENGTHS[episode] for episode in kept]
        begins = first_rows(lengths)

        def rows(table: pa.Table) -> pa.Table:
            table = table.filter(
                pa.array([e not in gone for e in table["episode_index"].to_pylist()])
            )
            episode = np.repeat(np.arange(len(kept)), lengths)
            table = table.set_column(
                table.schema.get_field_index("episode_index"), "episode_index", pa.array(episode)
            )
            return table.set_column(
                table.schema.get_field_index("index"), "index", pa.array(np.arange(len(episode)))
            )

        def episodes(table: pa.Table) -> pa.Table:
            table = table.take(pa.array(kept))
            for name, values in (
                ("episode_index", list(range(len(kept)))),
                ("dataset_from_index", begins),
                ("dataset_to_index", list(accumulate(lengths))),
            ):
                at = table.schema.get_field_index(name)
                table = table.set_column(at, name, pa.array(values, pa.int64()))
            return table

        rewrite(DATA, rows, row_groups=False)(root)
        rewrite(EPISODES, episodes, row_groups=False)(root)
        edit_info(total_episodes=len(kept), total_frames=sum(lengths))(root)

    return damage


def test_frames_that_no_episode_has_are_left_behind(broken: Path) -> None:
    without_episodes(1, 4)(broken)
    scan = scan_source(broken)
    assert told(scan) == [("info", "frames-by-time")] * 2
    kept = [0, 2, 3, 5, 6]
    assert scan.length.tolist() == [LENGTHS[episode] for episode in kept]
    begins = first_rows(LENGTHS)
    assert scan.streams[1].first.tolist() == [begins[episode] for episode in kept]
    assert scan.streams[0].first.tolist() == first_rows([LENGTHS[episode] for episode in kept])


def test_episodes_that_share_frames_can_be_left_out(broken: Path) -> None:
    without_episodes(1)(broken)
    # Of episodes 0, 2, 3 …: the third begins within the fourth.
    rewrite(EPISODES, set_cells(FROM, r2=31 / 30))(broken)
    scan = scan_source(broken)
    wrong = [f for f in scan.findings if f.severity == "error"]
    assert [(f.code, f.episode) for f in wrong] == [("shared-frames", 2), ("shared-frames", 3)]
    assert "shares frames with another episode" in wrong[0].message
    assert scan_source(broken, DROP).episode_index.tolist() == [0, 1, 4, 5]


def test_frames_are_not_counted_if_the_order_of_the_episodes_is_uncertain(tmp_path: Path) -> None:
    spec = DatasetSpec(episodes=2, frames=[5, 3], cameras=(CameraSpec(width=64, height=48),))
    leconvert.convert(make_dataset(tmp_path / "v21", spec), output=tmp_path / "v30")
    rewrite(EPISODES, set_cells(FROM, r0=99.0))(tmp_path / "v30")
    found = the_only(scan_source(tmp_path / "v30"), "frame-count")
    assert (found.severity, found.episode) == ("error", 0)
    video = scan_source(tmp_path / "v30", DROP).streams[1]
    assert (video.first.tolist(), video.frames.tolist()) == ([5], [3])


def test_an_episode_that_ends_beyond_its_file_can_be_left_out(broken: Path) -> None:
    without_episodes(1)(broken)
    rewrite(EPISODES, set_cells(FROM, r5=70 / 30))(broken)
    finding = next(f for f in scan_source(broken).findings if f.severity == "error")
    assert finding.code == "frame-count"
    assert "episode 5 ends beyond the last of its 72 frames" in finding.message


def test_an_episode_within_a_group_of_pictures_can_be_left_out(broken: Path) -> None:
    without_episodes(1)(broken)
    # The second of the rest is one frame long; two frames before it there is no keyframe.
    rewrite(EPISODES, set_cells(FROM, r1=17 / 30))(broken)
    # The frames that it needs belong to no episode, so that v3.0 can hold them beside it.
    video = scan_source(broken).streams[1]
    assert video.lead[1] > 0
    assert (video.first[1] + video.lead[1], video.frames[1] - video.lead[1]) == (17, 1)
    errors = [f for f in scan_source(broken, to="v2.1").findings if f.severity == "error"]
    finding = errors[0]
    assert (finding.code, finding.episode) == ("no-keyframe", 1)
    assert [remedy.flag for remedy in finding.remedies] == [
        "--on-bad-episode drop",
        "--drop-feature observation.images.top",
    ]
    for flag in finding.remedies:
        scan = scan_source(broken, RepairOptions.of_flags([flag.flag]), to="v2.1")
        assert not [f for f in scan.findings if f.severity == "error"]


def test_rows_that_no_episode_has_are_left_behind(broken: Path) -> None:
    with pq.ParquetFile(broken / DATA) as file:
        table = file.read()
    at = table.schema.get_field_index("episode_index")
    strange = table.slice(0, 3).set_column(at, table.schema.field(at), pa.array([99] * 3))
    pq.write_table(pa.concat_tables([strange, table]), broken / DATA)
    scan = scan_source(broken)
    assert told(scan) == [("warning", "stray-rows")]
    assert scan.streams[0].first.tolist() == [3 + row for row in first_rows(LENGTHS)]


def test_an_episode_that_lacks_rows_can_be_left_out(broken: Path) -> None:
    rewrite(DATA, lambda table: table.slice(0, table.num_rows - 3), row_groups=False)(broken)
    scan = scan_source(broken)
    finding = the_only(scan, "row-count")
    assert finding.episode == 6
    assert "has 5 rows of episode 6, but meta/episodes says 8" in finding.message
    assert scan_source(broken, DROP).num_episodes == 6


@pytest.mark.parametrize(
    ("column", "code"),
    [
        ("episode_index", "episode-index"),
        ("frame_index", "frame-index"),
        ("timestamp", "timestamps"),
    ],
)
def test_wrong_columns_name_their_episodes(broken: Path, column: str, code: str) -> None:
    rewrite(DATA, set_cells(column, r13=5, r20=5))(broken)
    found = [f for f in scan_source(broken).findings if f.code == code]
    assert [f.episode for f in found] == [1, 3]
    assert f"{column} is wrong, first in frame 1 of episode 1, where it is 5" in found[0].message
    assert {f.severity for f in found} == {"error"}
    helps = RepairOptions(retime=True) if code == "timestamps" else RepairOptions(reindex=True)
    assert {f.severity for f in scan_source(broken, helps).findings} == {"repaired"}


@pytest.mark.parametrize(
    ("swapped", "index"), [(None, "right"), (LENGTHS[0], "wrong"), (None, "gone")]
)
def test_rows_of_episodes_that_are_mixed_up_are_not_counted_again(
    broken: Path, swapped: int | None, index: str
) -> None:
    rows = np.random.default_rng(0).permutation(sum(LENGTHS))
    if swapped:
        rows = np.arange(sum(LENGTHS))
        rows[[swapped - 1, swapped]] = rows[[swapped, swapped - 1]]
    rewrite(DATA, lambda table: table.take(pa.array(rows)))(broken)
    if index == "wrong":
        rewrite(DATA, set_cells("index", r9=0))(broken)
    elif index == "gone":
        rewrite(DATA, lambda table: table.drop_columns("index"))(broken)
    about_index = {"right": set(), "wrong": set(), "gone": {"missing-column"}}[index]
    anew = RepairOptions(retime=True, reindex=True)
    errors = [f.code for f in check_dataset(broken).findings if f.severity == "error"]
    assert set(errors) == {"row-order"} | about_index
    assert {f.code for f in scan_source(broken, anew).findings if f.severity == "error"} == {
        "row-order"
    }
    by_time = [("episode_index", "ascending"), ("timestamp", "ascending")]
    rewrite(DATA, lambda table: table.sort_by(by_time))(broken)
    assert [f for f in scan_source(broken, anew).findings if f.severity == "error"] == []


def test_a_column_with_empty_values_is_an_error_of_their_episodes(broken: Path) -> None:
    # A row of episode 1 has no value, a vector of episode 3 lacks one.
    vector = [0.5, None, *[0.5] * 4]
    rewrite(DATA, set_cells("observation.state", r13=None, r21=vector))(broken)
    errors = [f for f in scan_source(broken).findings if f.severity == "error"]
    assert {f.code for f in errors} == {"empty-values"}
    assert all(f.message.startswith("observation.state has empty values") for f in errors)
    assert [f.episode for f in errors] == [1, 3]
    assert scan_source(broken, DROP).episode_index.tolist() == [0, 2, 4, 5, 6]
    for options in (
        RepairOptions(drop_features=("observation.state",)),
        RepairOptions(accept=("empty-values",)),
    ):
        found = scan_source(broken, options).findings
        assert [f for f in found if f.severity == "error"] == []


def test_episodes_that_are_counted_but_not_listed_are_derived_or_left_out(
    broken: Path, tmp_path: Path
) -> None:
    noted = pa.array(range(len(LENGTHS)))
    rewrite(EPISODES, lambda table: table.append_column("note", noted))(broken)
    whole = pq.read_table(broken / EPISODES)
    rewrite(EPISODES, lambda table: table.slice(0, len(LENGTHS) - 2))(broken)
    found = check_dataset(broken).findings
    assert [f.code for f in found if f.severity == "error"] == ["derivable"]
    leconvert.repair(broken, output=tmp_path / "listed")
    assert [f for f in check_dataset(tmp_path / "listed").findings if f.severity == "error"] == []
    listed = pq.read_table(tmp_path / "listed" / EPISODES).to_pylist()
    # Only what nothing derives is missing, of episodes that were not listed.
    for at, (row, right) in enumerate(zip(listed, whole.to_pylist(), strict=True)):
        if at >= len(LENGTHS) - 2:
            right.update({key: None for key in right if key.startswith(("stats/", "note"))})
        assert row == right
    (error,) = [f for f in scan_source(broken).findings if f.severity == "error"]
    kept = [(remedy.flag, remedy.keeps.episodes, remedy.of.episodes) for remedy in error.remedies]
    assert (error.code, kept) == (
        "unlisted-episode", [("--on-bad-episode drop", len(LENGTHS) - 2, len(LENGTHS))],
    )  # fmt: skip
    leconvert.convert(
        broken, output=tmp_path / "less", repairs=RepairOptions(on_bad_episode="drop")
    )
    assert [f for f in check_dataset(tmp_path / "less").findings if f.severity == "error"] == []
    (broken / "meta/episodes").rename(tmp_path / "aside")
    leconvert.convert(broken, output=tmp_path / "all", repairs=RepairOptions(fill_stats=True))
    report = check_dataset(tmp_path / "all")
    assert report.episodes == len(LENGTHS)
    assert [f for f in report.findings if f.severity == "error"] == []


@pytest.mark.parametrize("what", ["more are counted than there are", "a listed length differs"])
def test_a_table_that_does_not_fit_the_rows_is_not_continued(broken: Path, what: str) -> None:
    rewrite(EPISODES, lambda table: table.slice(0, len(LENGTHS) - 2))(broken)
    if what.startswith("more"):
        edit_info(total_episodes=len(LENGTHS) + 1)(broken)
    else:
        lengths = {"r1": LENGTHS[1] - 1, "r2": LENGTHS[2] + 1}
        rewrite(EPISODES, set_cells("length", **lengths))(broken)
    codes = {f.code for f in check_dataset(broken).findings if f.severity == "error"}
    assert {"stale-total", "stray-rows"} <= codes
    assert "derivable" not in codes


def test_numbers_that_are_mixed_up_alone_are_counted_again(broken: Path) -> None:
    rewrite(DATA, set_cells("index", r3=20, r20=3))(broken)
    plan = leconvert.repair(broken, dry_run=True).plan
    assert ([data.columns for data in plan.data], plan.errors_left) == ([("index",)], ())


def test_rows_in_another_order_than_their_times_are_not_counted_again(
    broken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leconvert.dataset.formats.v3.rows.ROWS_AT_A_TIME", 4)
    ends = np.cumsum(LENGTHS)
    rows = np.arange(ends[-1])
    rows[ends[0] : ends[1]] = rows[ends[0] : ends[1]][::-1]  # all rows of an episode
    rows[[ends[2] + 1, ends[3] - 1]] = rows[[ends[3] - 1, ends[2] + 1]]  # two rows of another
    rewrite(DATA, lambda table: table.take(pa.array(rows)))(broken)
    found = [f for f in scan_source(broken).findings if f.severity == "error"]
    assert [(f.code, f.episode) for f in found] == [("row-order", 1), ("row-order", 3)]
    assert [f.code for f in check_dataset(broken).findings if f.severity == "error"] == [
        "row-order"
    ]
    plan = leconvert.repair(broken, retime=True, dry_run=True).plan
    assert (plan.data, [f.code for f in plan.errors_left]) == ((), ["row-order"])
    by_time = [("episode_index", "ascending"), ("timestamp", "ascending")]
    rewrite(DATA, lambda table: table.sort_by(by_time))(broken)
    assert [f for f in scan_source(broken).findings if f.severity == "error"] == []


@pytest.mark.parametrize(
    ("column", "code", "helps"),
    [
        ("episode_index", "episode-index", RepairOptions(reindex=True)),
        ("frame_index", "frame-index", RepairOptions(reindex=True)),
        ("timestamp", "timestamps", RepairOptions(retime=True)),
        ("index", "global-index", RepairOptions(reindex=True)),
        ("task_index", "task-index", None),
    ],
)
def test_columns_of_texts_are_no_numbers(
    broken: Path, column: str, code: str, helps: RepairOptions | None
) -> None:
    def as_text(table: pa.Table) -> pa.Table:
        texts = pa.array(map(str, table[column].to_pylist()))
        return table.set_column(table.column_names.index(column), column, texts)

    rewrite(DATA, as_text)(broken)
    found = {f.severity for f in scan_source(broken).findings if f.code == code}
    assert found == {"error"}
    if helps is not None:
        assert "error" not in {f.severity for f in scan_source(broken, helps).findings}


def test_integers_that_are_stored_as_floats_become_integers(broken: Path) -> None:
    columns = ("frame_index", "episode_index", "index", "task_index")

    def as_floats(table: pa.Table) -> pa.Table:
        for column in columns:
            floats = table[column].cast(pa.float64())
            table = table.set_column(table.column_names.index(column), column, floats)
        return table

    rewrite(DATA, as_floats)(broken)
    scan = scan_source(broken)
    assert told(scan) == [("warning", "dtype-mismatch")] * len(columns)
    assert scan.repairs.cast_columns == columns
    assert scan.repairs.declared_features == {}


def test_a_table_of_tasks_without_rows_lacks_the_tasks_of_the_rows(broken: Path) -> None:
    rewrite(TASKS, lambda table: table.slice(0, 0), row_groups=False)(broken)
    findings = [f for f in scan_source(broken).findings if f.code == "task-index"]
    assert [f.episode for f in findings] == list(range(len(LENGTHS)))
    assert {f.severity for f in findings} == {"error"}


def test_tasks_that_are_no_lists_are_left_out_with_a_warning(broken: Path, tmp_path: Path) -> None:
    def as_text(table: pa.Table) -> pa.Table:
        texts = pa.array(map(str, table["tasks"].to_pylist()))
        return table.set_column(table.column_names.index("tasks"), "tasks", texts)

    rewrite(EPISODES, as_text)(broken)
    assert told(scan_source(broken)) == [("warning", "missing-tasks")]
    leconvert.convert(broken, output=tmp_path / "out")
    assert set(map(tuple, pq.read_table(tmp_path / "out" / EPISODES)["tasks"].to_pylist())) == {()}


@pytest.mark.parametrize(
    ("path", "column", "said"),
    [
        (EPISODES, "length", "does not say where the episodes are"),
        (EPISODES, "stats/action/min", "does not say where the episodes are"),
        (TASKS, "task_index", "two columns have the same name, task_index"),
    ],
)
def test_two_columns_of_one_name_are_told(broken: Path, path: str, column: str, said: str) -> None:
    rewrite(path, lambda table: table.append_column(column, table[column]))(broken)
    try:
        messages = [f.message for f in scan_source(broken).findings if f.severity == "error"]
    except SourceError as error:
        messages = [str(error)]
    assert said in messages[0]
    assert "two columns have the same name" in messages[0]


def test_tasks_of_rows_are_compared_with_the_table(broken: Path) -> None:
    rewrite(DATA, set_cells("task_index", r0=1))(broken)
    finding = the_only(scan_source(broken), "task-mismatch")
    assert "Rows of episode 0 have task 1, but meta/episodes does not list" in finding.message
    rewrite(DATA, set_cells("task_index", r0=7))(broken)
    finding = the_only(scan_source(broken), "task-index")
    assert finding.episode == 0
    assert [remedy.flag for remedy in finding.remedies] == ["--on-bad-episode drop"]


def test_files_of_episodes_may_have_different_columns(broken: Path) -> None:
    with pq.ParquetFile(broken / EPISODES) as file:
        table = file.read()
    first, second = table.slice(0, 3), table.slice(3)
    second = second.append_column("operator", pa.array(["Ada"] * second.num_rows))
    second = second.drop_columns(["tasks"]).append_column("tasks", second["tasks"])
    other = EPISODES.replace("file-000", "file-001")
    at = second.schema.get_field_index("meta/episodes/file_index")
    second = second.set_column(at, second.schema.field(at), pa.array([1] * second.num_rows))
    pq.write_table(first, broken / EPISODES)
    pq.write_table(second, broken / other)
    scan = scan_source(broken)
    assert not scan.findings
    assert scan.length.tolist() == LENGTHS
    digest = scan.only.meta_digest
    pq.write_table(second.drop_columns(["operator"]), broken / other)
    assert scan_source(broken).only.meta_digest != digest


def test_files_in_one_row_group_have_lists_of_one_length(broken: Path) -> None:
    rewrite(DATA, lambda table: table, row_groups=False)(broken)
    whole = scan_source(broken)
    assert not whole.findings
    assert whole.streams[0].first.tolist() == first_rows(LENGTHS)


def test_a_sparse_clone_is_told_at_the_first_look(broken: Path) -> None:
    (broken / TOP_FILE).write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 7\n"
    )
    with pytest.raises(
        UnreadableSourceError, match=r"1 of 7 files .* are only Git LFS pointers"
    ) as told:
        scan_source(broken)
    assert [finding["code"] for finding in told.value.findings] == ["lfs-pointers"]
    again = pickle.loads(pickle.dumps(told.value))
    assert again.as_record() == told.value.as_record()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (rewrite(EPISODES, lambda t: t.drop_columns([FROM])), "The column"),
        (rewrite(EPISODES, lambda t: t.take(list(range(6, -1, -1)))), "is not sorted by episode"),
        (edit_info(features=None), "does not describe a dataset"),
        (edit_info(storage_format="lance"), "stores its data as"),
        (pipe_instead(EPISODES), "is a pipe, a socket or a device"),
    ],
)
def test_what_does_not_lead_to_files_is_refused(broken: Path, damage: Damage, said: str) -> None:
    damage(broken)
    with pytest.raises(SourceError, match=said):
        scan_source(broken)


def test_flags_for_other_versions_are_refused(sound_v3: Path) -> None:
    with pytest.raises(UsageError, match=r"only for v2\.x datasets"):
        scan_source(sound_v3, RepairOptions(tasks_from="episodes"))


def test_files_that_are_named_wrongly_are_told_once_with_what_else_is_wrong(split: Path) -> None:
    rows = {f"r{row}": 0 for row in range(len(LENGTHS))}
    rewrite(EPISODES, set_cells("data/file_index", **rows))(split)
    rewrite(EPISODES, set_cells(f"{TOP}/file_index", **rows))(split)
    remove(f"{WRIST}/chunk-000/file-001.mp4")(split)
    found = {(each.code, each.stream) for each in scan_source(split).findings}
    assert found == {("wrong-files", "data"), ("wrong-files", TOP), ("missing-file", WRIST)}


def test_tables_of_v2_beside_those_of_v3_are_left_behind(broken: Path, tmp_path: Path) -> None:
    for name in ("episodes.jsonl", "tasks.jsonl"):
        (broken / "meta" / name).write_text('{"episode_index": 0, "length": 12, "tasks": []}\n')
    (finding,) = check_dataset(broken).findings
    assert (finding.severity, finding.code) == ("warning", "stray-file")
    assert told(scan_source(broken)) == [("warning", "stray-file")]
    result = tmp_path / "v3.0"
    leconvert.convert(broken, output=result)
    assert verify_pair(result, [broken], depth="bytes").ok
    assert not check_dataset(result).findings
    assert not list(result.rglob("*.jsonl"))
    assert leconvert.repair(broken, dry_run=True).plan.errors_left == ()
