"""A conversion whose workers fetch what they read: the same result, from one commit, in a limit."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

import pytest
from tests.flat_options import as_objects
from tests.hub import Fault, StandIn
from tests.plans import open_or_plan
from tests.trees import digest_of

from leconvert import convert
from leconvert.api import ConversionReport, run_worker
from leconvert.model.values import LayoutOptions
from leconvert.remote import source as hub_source
from leconvert.remote.sparse_snapshot import HubInputs, open_sparse_snapshot
from leconvert.run.conversion import Conversion, ProofOptions
from leconvert.run.packer import pack_run
from leconvert.run.proof import verify_pair
from leconvert.support.errors import (
    BatchesFailedError,
    HubError,
    PlanMismatchError,
    SourceChangedError,
    UsageError,
)
from leconvert.transfer import scratch as window
from leconvert.transfer.options import ScratchOptions
from leconvert.workdir.run import OpenedRun, open_run

REPO = "tester/arm"
pytestmark = pytest.mark.usefixtures("only_headers")


@pytest.fixture
def arm(hub: StandIn, large_clips: Path) -> StandIn:
    hub.add_repo(REPO, large_clips)
    return hub


@pytest.fixture(scope="module")
def expected(large_clips: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("expected") / "out"
    convert(large_clips, output=out)
    (out / ".gitattributes").write_bytes(b"*.parquet filter=lfs diff=lfs merge=lfs -text\n")
    return digest_of(out)


def sizes_in(folder: Path) -> dict[int, int]:
    found = {}
    for path in folder.rglob("slot-*/files/**/*"):
        with suppress(FileNotFoundError):
            if path.is_file():
                seen = path.stat()
                found[seen.st_ino] = seen.st_blocks * 512
    return found


def on_disk(folder: Path) -> int:
    """Return the least that the files took together at a moment between two looks.

    One look alone may count a file that goes, the file that comes in its place, and a file twice
    that is renamed meanwhile. Files that both looks found were there together, and only grow.
    """
    first, second = sizes_in(folder), sizes_in(folder)
    return sum(first[inode] for inode in first.keys() & second.keys())


def streamed(tmp_path: Path, limit: int | None = None, **options: object) -> ConversionReport:
    work = tmp_path / "work"
    arrived = hub_source.fetch_sparse(REPO, None, work, scratch_limit=limit)
    return convert(
        arrived.source,
        arrival=arrived.arrival,
        output=tmp_path / "out",
        work_dir=work,
        scratch=ScratchOptions(tmp_path / "scratch", limit),
        **as_objects(options),
    )


def planned(tmp_path: Path) -> OpenedRun:
    arrived = hub_source.fetch_sparse(REPO, None, tmp_path / "work")
    return open_or_plan(
        arrived.source,
        tmp_path / "out",
        tmp_path / "work",
        Conversion(layout=LayoutOptions(episodes_per_batch=2)),
        arrival=arrived.arrival,
    )


def test_a_file_of_several_slices_is_fetched_once(
    arm: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[str] = []
    download = window.Window._bring

    def noted(self: window.Window, place: int) -> None:
        fetched.append(self._files[place].path)
        download(self, place)

    monkeypatch.setattr(window.Window, "_bring", noted)
    tree = hub_source.fetch_sparse(REPO, None, tmp_path / "work").source
    first, second = sorted(map(str, tree.rglob("*.mp4")))[:2]
    slices = [first, second, second, first]
    with (
        window.hold_slot(ScratchOptions(tmp_path / "scratch"), "run") as slot,
        HubInputs(tree, slot).files(slices, lambda: False) as files,
    ):
        contents = [Path(files(place)).read_bytes() for place in range(len(slices))]
    assert sorted(fetched) == [path.removeprefix(f"{tree}/") for path in (first, second)]
    assert contents[0] == contents[3] != contents[1] == contents[2]


@pytest.mark.parametrize(("limit", "per_batch"), [(None, None), ("largest", 2)])
def test_the_result_is_the_same_within_any_limit(
    arm: StandIn, tmp_path: Path, expected: str, monkeypatch: pytest.MonkeyPatch, limit: str | None,
    per_batch: int | None,
) -> None:  # fmt: skip
    most = [0]
    download = window.Window._bring

    def watched(self: window.Window, place: int) -> None:
        download(self, place)
        most[0] = max(most[0], on_disk(tmp_path / "scratch"))

    monkeypatch.setattr(window.Window, "_bring", watched)
    largest = open_sparse_snapshot(
        hub_source.fetch_sparse(REPO, None, tmp_path / "work").source
    ).largest_bytes
    size = None if limit is None else largest
    report = streamed(tmp_path, size, max_workers=3, episodes_per_batch=per_batch)
    assert digest_of(tmp_path / "out") == expected
    commit = arm.repo(REPO).branches["main"]
    assert report.source == f"hf://datasets/{REPO}@{commit}"
    if size is not None:
        assert 0 < most[0] <= size
    assert not (tmp_path / "scratch").exists() or on_disk(tmp_path / "scratch") == 0


def test_each_file_of_an_episode_is_fetched_once(arm: StandIn, tmp_path: Path) -> None:
    streamed(tmp_path, max_workers=2)
    whole = [r.path for r in arm.log if "/resolve/" in r.path and r.status == 200]
    episodes = [path for path in whole if "episode_" in path]
    assert len(episodes) == len(set(episodes)) == 18


def test_a_branch_that_moves_is_not_mixed_in(
    arm: StandIn, tmp_path: Path, large_clips: Path, expected: str
) -> None:
    run = planned(tmp_path)
    commit = arm.repo(REPO).branches["main"]
    assert run_worker(run.work_dir.root, max_batches=2).batches_done == 2
    other = {
        path.relative_to(large_clips).as_posix(): path.read_bytes()[::-1]
        for path in large_clips.rglob("episode_*")
    }
    arm.add_commit(REPO, other)
    assert planned(tmp_path).paths.run_id == run.paths.run_id, "Then run the same command again"
    assert run_worker(run.work_dir.root).batches_failed == 0
    pack_run(open_run(run.work_dir.root))
    assert verify_pair(tmp_path / "out", large_clips, depth="bytes").ok
    assert digest_of(tmp_path / "out") == expected
    asked = {r.path.split("/resolve/")[1].split("/")[0] for r in arm.log if "/resolve/" in r.path}
    assert asked == {commit}


def test_another_revision_does_not_join_a_run(arm: StandIn, tmp_path: Path) -> None:
    run = planned(tmp_path)
    commit = arm.add_commit(REPO, {"README.md": b"# Another\n"})
    arrived = hub_source.fetch_sparse(REPO, commit, tmp_path / "work")
    with pytest.raises(PlanMismatchError) as caught:
        open_or_plan(
            arrived.source,
            tmp_path / "out",
            tmp_path / "work",
            Conversion(layout=LayoutOptions(episodes_per_batch=2)),
            arrival=arrived.arrival,
        )
    assert caught.value.details == (
        f"source: {run.manifest.outline} in the plan, hf://datasets/{REPO}@{commit} now",
    )


def test_stored_bytes_that_changed_are_never_used(arm: StandIn, tmp_path: Path) -> None:
    run = planned(tmp_path)
    for path in arm.repo(REPO).folder.glob("lfs/*"):
        path.write_bytes(path.read_bytes()[::-1])
    summary = run_worker(run.work_dir.root)
    assert summary.batches_done == 0
    with pytest.raises(BatchesFailedError) as caught:
        pack_run(open_run(run.work_dir.root))
    assert "does not have the listed content" in caught.value.details[0]
    assert not (tmp_path / "out").exists()


def test_an_outline_whose_index_is_not_the_files_is_noticed(
    arm: StandIn, tmp_path: Path, large_clips: Path
) -> None:
    relative = "videos/chunk-000/observation.images.top/episode_000001.mp4"
    run = planned(tmp_path)
    clip = Path(run.manifest.source) / relative
    seen = clip.stat()
    raw = bytearray(clip.read_bytes())
    raw[-1] ^= 1  # the end of its index
    clip.write_bytes(raw)
    import os

    os.utime(clip, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    with pytest.raises(SourceChangedError, match="does not match the file on the Hub") as caught:
        run_worker(run.work_dir.root)
    outline = open_sparse_snapshot(Path(run.manifest.source)).folder
    assert caught.value.next_step == f"Move {outline} elsewhere, then plan again with --restart.", (
        "a part of an outline is never made again"
    )
    assert not list(tmp_path.rglob("slot-*/files/**/*.mp4"))


def test_a_hub_that_fails_ends_the_worker_and_not_the_batch(arm: StandIn, tmp_path: Path) -> None:
    run = planned(tmp_path)
    arm.break_requests(Fault("status", path="/resolve/", status=404, times=None))
    with pytest.raises(HubError):
        run_worker(run.work_dir.root)
    arm.break_requests()
    done = run_worker(run.work_dir.root)
    assert (done.batches_done, done.batches_failed) == (len(run.batches), 0)


def test_a_worker_that_is_stopped_leaves_parts_for_the_next(
    arm: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = planned(tmp_path)
    scratch = ScratchOptions(tmp_path / "scratch")
    stop = threading.Event()
    held = Fault("truncate", path="/resolve/.*mp4", keep_bytes=10_000, interfere=stop.set)
    arm.break_requests(held)
    from leconvert.support.errors import InterruptedRunError

    with pytest.raises(InterruptedRunError):
        run_worker(run.work_dir.root, scratch=scratch, stop=stop)
    assert run_worker(run.work_dir.root, scratch=scratch).batches_done == len(run.batches)
    assert not (tmp_path / "scratch" / run.paths.run_id).exists()


def test_a_worker_with_too_small_a_limit_says_what_is_needed(arm: StandIn, tmp_path: Path) -> None:
    run = planned(tmp_path)
    largest = open_sparse_snapshot(Path(run.manifest.source)).largest_bytes
    with pytest.raises(UsageError) as caught:
        run_worker(run.work_dir.root, scratch=ScratchOptions(tmp_path / "scratch", largest - 1))
    assert caught.value.next_step is not None
    assert f"--scratch-limit {largest}" in caught.value.next_step


def test_a_proof_that_needs_the_whole_source_is_refused(arm: StandIn, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--verify bytes needs the whole source"):
        streamed(tmp_path, verify="bytes")
    run = planned(tmp_path)
    with pytest.raises(UsageError, match="--verify bytes needs the whole source"):
        pack_run(run, ProofOptions(verify="bytes"))


def test_statistics_that_must_be_computed_are_the_same(
    hub: StandIn, large_clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from leconvert.model.repairs import RepairOptions

    hub.add_repo(REPO, large_clips)
    repairs = RepairOptions(recompute_stats=True)
    convert(large_clips, output=tmp_path / "expected", repairs=repairs)
    largest = open_sparse_snapshot(
        hub_source.fetch_sparse(REPO, None, tmp_path / "work").source
    ).largest_bytes
    streamed(tmp_path, largest, max_workers=2, repairs=repairs)
    (tmp_path / "out/.gitattributes").unlink()
    assert digest_of(tmp_path / "out") == digest_of(tmp_path / "expected")


def test_a_result_that_was_put_in_place_is_not_taken_for_the_source(
    arm: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    from leconvert.cli import main
    from leconvert.run.packer import run as packing

    place, work = tmp_path / "arm", tmp_path / "work"
    command = [
        "convert", "--repo-id", REPO, "--root", str(place), "--work-dir", str(work),
        "--orchestrate", "--num-workers", "1",
    ]  # fmt: skip
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(packing, "_finish", killed)
        assert main(command) == 130
    assert (place / "meta/info.json").is_file()
    before = len(arm.log)
    assert main(command) == 0
    assert f"made          {place} (v3.0)" in capsys.readouterr().out
    assert arm.log[before:] == []
