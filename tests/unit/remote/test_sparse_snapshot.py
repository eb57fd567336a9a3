"""A scan of an outline says what a scan of the whole dataset says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import constants, snapshot_download
from tests.drift import remux
from tests.hub import Fault, StandIn
from tests.mp4_boxes import Box, changed, with_bytes_over, with_zeros_over
from tests.plans import open_or_plan
from tests.trees import digest_of

import leconvert
from leconvert.api import run_worker
from leconvert.cli import main
from leconvert.dataset.scan import scan_source
from leconvert.model.repairs import RepairOptions
from leconvert.model.values import LayoutOptions, SourceScan
from leconvert.remote import source as hub_source
from leconvert.remote import sparse_snapshot as sparse
from leconvert.remote.provenance import SparseOrigin
from leconvert.remote.sparse_snapshot import SparseSnapshot, open_sparse_snapshot
from leconvert.run.conversion import Conversion
from leconvert.run.packer import pack_run
from leconvert.run.upkeep import clean_work_dir
from leconvert.support.errors import (
    BusyError,
    HubAccessError,
    HubError,
    InterruptedRunError,
    SourceError,
    UsageError,
)
from leconvert.testing import (
    DatasetSpec,
    edit_info,
    edit_lines,
    edit_table,
    make_dataset,
    with_column,
)
from leconvert.workdir.locks import planner_lock
from leconvert.workdir.records import WorkDir
from leconvert.workdir.run import OpenedRun

REPO = "tester/arm"
CLIP = "videos/chunk-000/observation.images.top/episode_000000.mp4"
NUMBERS = ("size_bytes", "frames", "roll_bytes", "group")
TABLE = "data/chunk-000/episode_000002.parquet"


def outline_of(hub: StandIn, folder: Path, work: Path, **options: object) -> SparseSnapshot:
    hub.add_repo(REPO, folder)
    return open_sparse_snapshot(hub_source.fetch_sparse(REPO, None, work, **options).source)  # type: ignore[arg-type]


def numbers(scan: SourceScan) -> list[object]:
    return [
        scan.only.meta_digest,
        scan.data_schema,
        scan.episode_index.tolist(),
        scan.length.tolist(),
        scan.only.extra_files,
        [
            (stream.stream, *(getattr(stream, name).tolist() for name in NUMBERS))
            for stream in scan.streams
        ],
    ]


def said(scan: SourceScan) -> list[tuple[object, ...]]:
    # Messages about unreadable files have the whole path in them, cut to a length.
    return [
        (finding.code, finding.severity, finding.episode, finding.stream, finding.path)
        for finding in scan.findings
    ]


@pytest.mark.usefixtures("only_headers")
def test_an_outline_has_sizes_and_headers_and_little_else(
    hub: StandIn, large_clips: Path, tmp_path: Path
) -> None:
    made = outline_of(hub, large_clips, tmp_path / "work")
    local, outlined = scan_source(large_clips), scan_source(made.tree)
    extra = (".gitattributes", *local.only.extra_files)
    expected = numbers(local)
    expected[4] = extra
    assert numbers(outlined) == expected
    assert said(outlined) == said(local) == []
    clip = (made.tree / CLIP).read_bytes()
    assert len(clip) == (large_clips / CLIP).stat().st_size
    assert clip.count(0) > 0.7 * len(clip)
    assert made.store.name == f"hf://datasets/{REPO}@{hub.repo(REPO).branches['main']}"
    largest = max(path.stat().st_size for path in large_clips.glob("videos/**/*.mp4"))
    assert made.largest_bytes == -(-largest // 4096) * 4096
    found = made.find([CLIP, "README.md"])
    assert [(file.path, whole) for file, whole in found] == [(CLIP, False), ("README.md", True)]


@pytest.mark.usefixtures("only_headers")
def test_an_outline_has_the_files_of_episodes_also_without_a_frame_rate(
    hub: StandIn, source_copy: Path, tmp_path: Path
) -> None:
    edit_info(source_copy, lambda info: info.update(fps=None))
    made = outline_of(hub, source_copy, tmp_path / "work")
    with pytest.raises(SourceError, match="not a frame rate"):
        scan_source(made.tree)
    assumed = RepairOptions(assume_fps="30")
    local, outlined = scan_source(source_copy, assumed), scan_source(made.tree, assumed)
    assert said(outlined) == said(local)
    assert numbers(outlined)[1:4] == numbers(local)[1:4]


@pytest.mark.usefixtures("only_headers")
def test_findings_are_those_of_the_whole_dataset(
    hub: StandIn, source_copy: Path, tmp_path: Path
) -> None:
    edit_table(
        source_copy, 1,
        lambda table: table.set_column(
            table.column_names.index("timestamp"), "timestamp",
            pa.array([0.5] * table.num_rows, pa.float32()),
        ),
    )  # fmt: skip
    edit_lines(source_copy, "episodes", lambda lines: lines[3].update(length=8))
    clips = "videos/chunk-000/observation.images.top/episode_{:06d}.mp4"
    whole = (source_copy / clips.format(0)).read_bytes()
    (source_copy / clips.format(0)).write_bytes(whole[: len(whole) // 2])
    (source_copy / clips.format(1)).write_bytes(b"")
    (source_copy / clips.format(2)).write_bytes(b"no video at all" * 9)
    (source_copy / clips.format(4)).unlink()
    (source_copy / TABLE).write_bytes((source_copy / TABLE).read_bytes()[:-20])
    (source_copy / "videos/chunk-000/notes.txt").write_text("a stray")
    made = outline_of(hub, source_copy, tmp_path / "work")
    local, outlined = scan_source(source_copy), scan_source(made.tree)
    assert len(local.findings) >= 7
    assert said(outlined) == said(local)


def with_more(clip: Path, change: Callable[[Box], None]) -> None:
    clip.write_bytes(changed(clip.read_bytes(), change))


@pytest.mark.usefixtures("only_headers")
@pytest.mark.parametrize(
    ("edit", "held_whole", "codes"),
    [
        # Without an edit list (this file begins with an empty moov) each frame is shown one frame
        # late.
        pytest.param(
            partial(remux, movflags="+frag_keyframe+empty_moov"),
            True,
            ["frame-times", "remux"],
            id="to be remuxed",
        ),
        pytest.param(partial(with_more, change=with_bytes_over), True, [], id="decoded"),
        pytest.param(partial(with_more, change=with_zeros_over), False, [], id="zeros in front"),
    ],
)
def test_a_clip_is_held_whole_if_the_scan_needs_more_than_its_index(
    hub: StandIn, source_copy: Path, tmp_path: Path, edit: Callable[[Path], None], held_whole: bool,
    codes: list[str],
) -> None:  # fmt: skip
    clip = source_copy / CLIP
    edit(clip)
    made = outline_of(hub, source_copy, tmp_path / "work")
    assert made.find([CLIP])[0][1] is held_whole
    assert not held_whole or (made.tree / CLIP).read_bytes() == clip.read_bytes()
    assert [finding.code for finding in scan_source(made.tree).findings] == codes


def test_an_outline_is_made_once_and_finished_after_a_crash(arm: StandIn, tmp_path: Path) -> None:
    work = tmp_path / "work"
    arm.break_requests(Fault("status", path="/resolve/.*/videos/.*3.mp4", status=404, times=None))
    with pytest.raises(HubError):
        hub_source.fetch_sparse(REPO, None, work)
    there = [path for path in work.rglob("tree/**/*") if path.is_file()]
    assert there
    assert not list(work.rglob("outline.json"))
    arm.break_requests()
    before = len(arm.log)
    arrived = hub_source.fetch_sparse(REPO, None, work)
    asked = [r.path.rpartition("/")[2] for r in arm.log[before:] if "/resolve/" in r.path]
    assert not [path for path in there if path.suffix == ".jsonl" and path.name in asked]
    assert asked.count("episode_000003.mp4") == 2
    before = len(arm.log)
    assert hub_source.fetch_sparse(REPO, None, work) == arrived
    made = open_sparse_snapshot(arrived.source)
    (record,) = work.rglob("outline.json")
    for damaged in ("", record.read_text().replace("largest", "smallest")):
        record.write_text(damaged)
        assert hub_source.fetch_sparse(REPO, None, work) == arrived
        assert open_sparse_snapshot(arrived.source) == made
    assert [r.path for r in arm.log[before:] if "/videos/" in r.path or "/data/" in r.path] == []


def test_a_stop_ends_the_outline(arm: StandIn, tmp_path: Path) -> None:
    import threading

    stop = threading.Event()
    arm.break_requests(Fault("none", path="/resolve/.*mp4", interfere=stop.set))
    with pytest.raises(InterruptedRunError):
        hub_source.fetch_sparse(REPO, None, tmp_path / "work", stop=stop)


def test_two_planners_do_not_make_one_outline_at_a_time(arm: StandIn, tmp_path: Path) -> None:
    with planner_lock(WorkDir(tmp_path / "work")), pytest.raises(BusyError):
        hub_source.fetch_sparse(REPO, None, tmp_path / "work")


@pytest.mark.usefixtures("only_headers")
def test_a_limit_that_is_too_small_is_told_at_plan_time(
    hub: StandIn, small_source: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        outline_of(hub, small_source, tmp_path / "work", scratch_limit=4095)
    assert caught.value.next_step == (
        "The smallest limit for this dataset is --scratch-limit "
        f"{open_sparse_snapshot(next(tmp_path.rglob('tree'))).largest_bytes}."
    )


def test_a_dry_run_leaves_nothing(
    arm: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    out = tmp_path / "out"
    asked = ["plan", "--repo-id", REPO, "--root", str(out), "--dry-run"]
    before = sorted(tmp_path.iterdir())
    assert main(asked) == 0
    assert "Nothing was written." in capsys.readouterr().out
    assert sorted(tmp_path.iterdir()) == before


def test_clean_removes_an_outline_with_the_last_run_that_needs_it(
    arm: StandIn, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    command = f"plan --repo-id {REPO} --output {tmp_path}/out --work-dir {work}".split()
    assert main(command) == 0
    first = arm.repo(REPO).branches["main"]
    second = arm.add_commit(REPO, {"README.md": b"# Another\n"})
    assert main([*command, "--revision", second, "--restart"]) == 0
    outlines = {path.name: path for path in (work / "outlines").iterdir()}
    assert outlines.keys() == {first, second}
    report = clean_work_dir(work)
    assert outlines[first] in {row.path for row in report.removed if row.kind == "outline"}
    assert [path.name for path in (work / "outlines").iterdir()] == [second]
    report = clean_work_dir(work, give_up=True)
    assert list(work.iterdir()) == []


def planned(hub: StandIn, source: Path, tmp_path: Path) -> OpenedRun:
    made = outline_of(hub, source, tmp_path / "work")
    return open_or_plan(
        made.tree, tmp_path / "out", tmp_path / "work", arrival=SparseOrigin(**asdict(made.origin))
    )


def test_where_an_outline_holds_some_files_whole_workers_fetch_the_others(
    hub: StandIn, small_source: Path, result: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clips = {path.name: path.stat().st_size for path in (small_source / CLIP).parent.iterdir()}
    limit = sorted(clips.values())[2]
    monkeypatch.setattr(sparse, "_WHOLE_CLIP_BYTES", limit)
    run = planned(hub, small_source, tmp_path)
    hub.log.clear()
    run_worker(run.work_dir.root)
    asked = {r.path.rpartition("/")[2] for r in hub.log if "/observation.images.top/" in r.path}
    assert asked == {name for name, size in clips.items() if size > limit}
    assert 0 < len(asked) < len(clips)
    pack_run(run)
    (tmp_path / "out/.gitattributes").unlink()
    assert digest_of(tmp_path / "out") == digest_of(result)


def test_a_dataset_whose_names_cannot_be_told_is_outlined_and_the_scan_says_why(
    hub: StandIn, source_copy: Path, tmp_path: Path
) -> None:
    edit_info(source_copy, lambda info: info.update(data_path="data/all.parquet"))
    made = outline_of(hub, source_copy, tmp_path / "work")
    local, outlined = said(scan_source(source_copy)), said(scan_source(made.tree))
    assert outlined == local
    assert "path-template" in {code for code, *_ in local}
    table = made.tree / TABLE
    assert table.stat().st_size == (source_copy / TABLE).stat().st_size
    assert table.stat().st_blocks == 0, "of files that belong to no episode only the name matters"


def test_files_of_v30_under_the_name_of_v21_have_to_be_downloaded(
    hub: StandIn, source_copy: Path, tmp_path: Path
) -> None:
    leconvert.convert(source_copy, output=tmp_path / "v30")
    edit_info(tmp_path / "v30", lambda info: info.update(codebase_version="v2.1"))
    with pytest.raises(SourceError, match=r"Only v2\.x datasets can be planned"):
        outline_of(hub, tmp_path / "v30", tmp_path / "work")


@pytest.mark.usefixtures("only_headers")
def test_a_file_that_was_noted_as_whole_in_vain_is_not_read_as_one(
    hub: StandIn, large_clips: Path, tmp_path: Path
) -> None:
    # A program that holds more files whole ended between the note and the name.
    commit = hub.add_repo(REPO, large_clips).branches["main"]
    begun = tmp_path / "work/outlines" / commit / "begun"
    begun.mkdir(parents=True)
    (begun / "whole.txt").write_text(f"{CLIP}\n{TABLE}\n")
    made = open_sparse_snapshot(hub_source.fetch_sparse(REPO, None, tmp_path / "work").source)
    assert (made.tree / CLIP).read_bytes() != (large_clips / CLIP).read_bytes()
    assert [is_whole for _, is_whole in made.find([CLIP, TABLE])] == [False, False]


@pytest.mark.usefixtures("only_headers")
@pytest.mark.parametrize("status", [403, 404])
def test_a_hub_that_refuses_a_header_is_not_asked_for_the_whole_file(
    arm: StandIn, tmp_path: Path, status: int
) -> None:
    arm.break_requests(
        Fault("status", path=r"/resolve/.*top/episode_000000\.mp4", status=status, times=None)
    )
    with pytest.raises((HubError, HubAccessError)) as caught:
        hub_source.fetch_sparse(REPO, None, tmp_path / "work")
    assert caught.value.exit_code == (16 if status == 403 else 15)
    asked = [r for r in arm.log if r.path.endswith("top/episode_000000.mp4")]
    assert len(asked) == 1
    assert not list(tmp_path.rglob("*top/episode_000000.mp4"))


def test_lists_and_what_is_not_declared_are_read_of_large_tables_too(
    hub: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")  # the worker is a process of its own
    lengths = frames, _ = 20_000, 5
    spec = DatasetSpec(episodes=2, frames=lengths, cameras=(), action_dim=2, state_dim=2)
    source = make_dataset(tmp_path / "source", spec)
    noise = np.random.default_rng(0).random((frames, 8))
    columns = {
        "action": pa.array([*noise[:, :2].astype(np.float32)], pa.list_(pa.float32())),
        "filler": pa.array(noise[:, 7]),
        "force": pa.array(list(noise[:, 2:5]), pa.list_(pa.float64())),
    }
    for episode, length in enumerate(lengths):
        for name, values in columns.items():
            part = values[:length]
            edit_table(source, episode, lambda t, n=name, v=part: with_column(t, n, v))
    assert (source / "data/chunk-000/episode_000000.parquet").stat().st_size > 1024**2
    hub.add_repo(REPO, source)
    flags = ["--declare-features", "--recompute-stats"]
    work = ["--work-dir", str(tmp_path / "work"), "--orchestrate", "--scratch-limit", "64MB"]
    out = ["--output", str(tmp_path / "out"), "--json", "--num-workers", "1"]
    assert main(["convert", "--repo-id", REPO, *out, *work, *flags]) == 0, capsys.readouterr()
    local = scan_source(source)
    made = open_sparse_snapshot(hub_source.fetch_sparse(REPO, None, tmp_path / "other").source)
    assert said(scan_source(made.tree)) == said(local)
    [(_, is_whole)] = made.find(["data/chunk-000/episode_000000.parquet"])
    assert not is_whole
    table = pq.read_table(tmp_path / "out/data")
    force = table.column("force")[:frames].combine_chunks().flatten()
    assert np.array_equal(force.to_numpy(), noise[:, 2:5].reshape(-1))


@pytest.mark.usefixtures("only_headers")
def test_a_table_without_dictionaries_is_outlined_too(
    hub: StandIn, source_copy: Path, tmp_path: Path
) -> None:
    pq.write_table(pq.read_table(source_copy / TABLE), source_copy / TABLE, use_dictionary=False)
    made = outline_of(hub, source_copy, tmp_path / "work")
    local, outlined = scan_source(source_copy), scan_source(made.tree)
    assert numbers(outlined)[5] == numbers(local)[5]
    assert said(outlined) == said(local) == []
    [(_, is_whole)] = made.find([TABLE])
    assert not is_whole


# --- which run is under way -----------------------------------------------------------------------


def test_only_a_run_of_this_very_dataset_is_gone_on_with(
    arm: StandIn, small_source: Path, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    assert hub_source.under_way(work, REPO, None) is None
    made = open_sparse_snapshot(hub_source.fetch_sparse(REPO, None, work).source)
    assert hub_source.under_way(work, REPO, None) is None, "there is no plan yet"
    options = LayoutOptions()
    outlined = SparseOrigin(**asdict(made.origin))
    run = open_or_plan(
        made.tree, tmp_path / "out", work, Conversion(layout=options), arrival=outlined
    )
    for revision in (None, "v2.1", made.origin.commit):
        assert hub_source.under_way(work, REPO, revision) == made
    assert hub_source.under_way(work, REPO, "main") is None
    assert hub_source.under_way(work, "tester/leg", None) is None
    (made.folder / "outline.json").unlink()
    assert hub_source.under_way(work, REPO, None) is None
    run.paths.manifest.write_text("{")
    assert hub_source.under_way(work, REPO, None) is None, "opening the run says what is wrong"
    local = tmp_path / "local"
    open_or_plan(small_source, tmp_path / "out", local, Conversion(layout=options))
    assert hub_source.under_way(local, REPO, None) is None


def test_offline_the_clients_cache_stands_for_an_outline(
    arm: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = Path(snapshot_download(REPO, repo_type="dataset", revision="v2.1"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    arm.log.clear()
    arrived = hub_source.fetch_sparse(REPO, None, tmp_path / "work")
    assert arrived.source == snapshot
    assert arrived.arrival is not None
    assert arrived.arrival.outline is None, "all of it is here"
    assert arrived.arrival.revision == "v2.1"
    assert arm.log == []
    assert hub_source.already_converted(REPO, tmp_path / "out") is None
