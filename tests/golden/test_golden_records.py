"""Records of version 1 parse for ever: with more keys as well, and never as another version."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest

from leconvert.model.values import Batch, Shard
from leconvert.run.leasing import WorkerIdentity, list_batches, read_done, read_failed
from leconvert.run.leasing.leases import LeaseLogFiles, LeaseStore
from leconvert.run.leasing.state import BatchState, Generation, Outcome
from leconvert.support.errors import WorkDirError
from leconvert.workdir.activity import (
    JobRecord,
    read_invocations,
    read_jobs,
    read_probe,
    read_workers,
)
from leconvert.workdir.identity import HostIdentity
from leconvert.workdir.locks import read_one_host
from leconvert.workdir.records import Journal, PackStep, RunPaths, WorkDir, read_record
from leconvert.workdir.run import MANIFEST_VERSION, BatchFile, ScanTable, read_manifest

GOLDEN = Path(__file__).parent / "v1"
RUN_ID = "20260102T030405-abcdef"
CAMERA = "videos/observation.images.top"
BOOT = "3f0c9d1e-0000-4000-8000-000000000000/pid:[4026531836]"
RECORDS = sorted(
    path.relative_to(GOLDEN).as_posix()
    for path in GOLDEN.rglob("*")
    if path.is_file() and path.suffix not in {".parquet", ".offsets", ".jsonl"}
)


def change(path: Path, **keys: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_bytes()) | keys) + "\n")


@pytest.fixture(params=["as written", "with keys of a later release"])
def work_dir(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    root = Path(shutil.copytree(GOLDEN, tmp_path / "work"))
    if request.param == "with keys of a later release":
        for name in RECORDS:
            change(root / name, of_a_later_release={"any": ["thing"]})
    return root


@pytest.fixture
def run(work_dir: Path) -> RunPaths:
    return WorkDir(work_dir).run(RUN_ID)


def test_every_kind_of_record_has_a_golden_file() -> None:
    kinds = {json.loads((GOLDEN / name).read_bytes())["format"] for name in RECORDS}
    assert kinds == {
        "leconvert/current",
        "leconvert/done",
        "leconvert/failed",
        "leconvert/heartbeat",
        "leconvert/invocation",
        "leconvert/job",
        "leconvert/journal",
        "leconvert/lease",
        "leconvert/lease-end",
        "leconvert/lease-reset",
        "leconvert/lock-holder",
        "leconvert/manifest",
        "leconvert/one-host",
        "leconvert/probe-of-run",
        "leconvert/tree",
        "leconvert/worker",
    }
    assert {json.loads((GOLDEN / name).read_bytes())["version"] for name in RECORDS} == {1}


def test_the_current_run_is_found(work_dir: Path) -> None:
    assert WorkDir(work_dir).current_run_id() == RUN_ID
    assert WorkDir(work_dir).list_runs() == [RUN_ID]


def test_a_plan_is_read(run: RunPaths) -> None:
    manifest = read_manifest(run)
    assert (manifest.source, manifest.target) == ("/data/set", "/data/out")
    assert manifest.fps == Fraction(30)
    assert manifest.options["episodes_per_batch"] == 1
    assert manifest.versions["leconvert"] == "0.1.0"
    assert [(s.stream, s.starts.tolist()) for s in manifest.streams] == [
        ("data", [0, 4]),
        (CAMERA, [0, 4]),
    ]
    assert (manifest.num_episodes, manifest.num_frames, manifest.source_bytes) == (4, 10, 19818)
    assert (manifest.num_batches, manifest.block_align) == (4, 0)
    assert manifest.sources[0].extra_files == ["README.md"]
    assert manifest.data_schema
    batches = BatchFile(run, manifest.streams)
    shards = (Shard("data", 0, 0, 1, False), Shard(CAMERA, 0, 0, 1, False))
    assert len(batches) == 4
    assert batches.read(1) == list(batches)[1] == Batch(1, shards, 4994, 6)
    scan = ScanTable(run, manifest.streams)
    assert [column.tolist() for column in scan.lengths()] == [[0, 1, 2, 3], [3, 2, 4, 1]]
    part, index = scan.stream(CAMERA, 1, 3)
    assert (index.tolist(), part.frames.tolist()) == ([1, 2], [2, 4])
    # A slice was a whole file, and an episode's files were called by its index.
    assert (part.key.tolist(), part.first.tolist()) == ([1, 2], [0, 0])
    assert part.is_whole.all()
    assert scan.files(CAMERA).key.tolist() == [0, 1, 2, 3]


def test_a_plan_of_slices_is_read(tmp_path: Path) -> None:
    work = WorkDir(Path(shutil.copytree(GOLDEN.parent / "v2", tmp_path / "work")))
    assert work.current_run_id() == RUN_ID
    run = work.run(RUN_ID)
    manifest = read_manifest(run, check_files=True)
    assert (manifest.source, manifest.sources[0].codebase_version) == ("/data/set", "v3.0")
    assert (manifest.num_episodes, manifest.num_frames, manifest.source_bytes) == (3, 9, 7800)
    scan = ScanTable(run, manifest.streams)
    assert [column.tolist() for column in scan.lengths()] == [[4, 0, 1], [4, 2, 3]]
    part, index = scan.stream(CAMERA, 0, 2)
    assert index.tolist() == [4, 0]
    assert part.key.tolist() == [(1 << 31) + 7, 0]
    assert [part.first.tolist(), part.frames.tolist()] == [[5, 0], [4, 2]]
    assert [part.size_bytes.tolist(), part.group.tolist()] == [[2400, 1200], [1, 0]]
    files = scan.files(CAMERA)
    assert [files.key.tolist(), files.size_bytes.tolist()] == [[0, (1 << 31) + 7], [4000, 6000]]
    assert [files.mtime_ns.tolist(), files.inode.tolist()] == [[10, 20], [11, -21]]
    assert BatchFile(run, manifest.streams).read(0).shards[0].stop == 3
    assert part.lead.tolist() == [0, 0]


def test_a_plan_with_a_trimmed_episode_is_read(tmp_path: Path) -> None:
    work = WorkDir(Path(shutil.copytree(GOLDEN.parent / "v3", tmp_path / "work")))
    run = work.run(RUN_ID)
    manifest = read_manifest(run, check_files=True)
    scan = ScanTable(run, manifest.streams)
    assert scan.stream(CAMERA)[0].lead.tolist() == [0, 2, 0]
    assert scan.stream("data", 1, 3)[0].lead.tolist() == [0, 0]


def test_a_plan_of_two_sources_is_read(tmp_path: Path) -> None:
    work = WorkDir(Path(shutil.copytree(GOLDEN.parent / "v4", tmp_path / "work")))
    assert work.current_run_id() == RUN_ID
    run = work.run(RUN_ID)
    manifest = read_manifest(run, check_files=True)
    versions = [(source.root, source.codebase_version) for source in manifest.sources]
    assert versions == [("/data/a", "v2.1"), ("/data/b", "v3.0")]
    for source in manifest.sources:
        assert source.repairs.computed_columns == ("episode_index", "index")
    assert (manifest.num_episodes, manifest.num_frames, manifest.num_batches) == (5, 12, 3)
    scan = ScanTable(run, manifest.streams)
    part, index = scan.stream(CAMERA)
    assert index.tolist() == [0, 1, 0, 1, 2]
    assert part.file.tolist() == [0, 1, 2, 2, 2]
    assert part.first.tolist() == [0, 0, 0, 2, 6]
    files = scan.files(CAMERA)
    assert [files.source.tolist(), files.key.tolist()] == [[0, 0, 1], [0, 1, 0]]
    batches = BatchFile(run, manifest.streams)
    assert [batches.read(number).frames for number in range(3)] == [10, 12, 2]


def test_a_plan_of_episodes_that_are_appended_is_read(tmp_path: Path) -> None:
    work = WorkDir(Path(shutil.copytree(GOLDEN.parent / "v5", tmp_path / "work")))
    assert work.current_run_id() == RUN_ID
    run = work.run(RUN_ID)
    manifest = read_manifest(run, check_files=True)
    assert (manifest.kept_episodes, manifest.num_episodes, manifest.source_bytes) == (1, 3, 4900)
    assert manifest.options["append"] is True
    shards = [shard for batch in BatchFile(run, manifest.streams) for shard in batch.shards]
    assert [(shard.number, shard.first, shard.stop) for shard in shards] == [(1, 1, 3)] * 2


def test_lease_logs_are_read(run: RunPaths) -> None:
    log = LeaseLogFiles(run)
    assert list_batches(run.leases_dir) == {0, 1, 2}
    assert log.read(0).generations == (Generation(1, Outcome.HANDED_BACK), Generation(2))
    assert log.read(1).generations == (Generation(1, Outcome.VOID), Generation(2))
    assert log.read(2).generations == (Generation(1, Outcome.ERROR), Generation(2, Outcome.ERROR))
    assert [log.read(batch).reset_after for batch in range(3)] == [0, 0, 1]
    assert (log.read(2).errors, log.read(1).losses) == (1, 1)
    holder = log.holder(1, 2)
    assert (holder["token"], holder["host"], holder["pid"]) == ("node2-102-00000002", "node2", 102)
    assert (holder["boot"], holder["started"]) == (BOOT, 123456)
    assert b'"nonce": "0001020304050607"' in log.read_nonce(1, 2)
    ended = log.end_record(2, 1)
    assert ended is not None
    assert ended["error"]["message"] == "/data/set/x.mp4 is broken."
    assert ended["traceback"] == "Traceback ...\n"


def test_a_held_batch_is_held_and_expires(run: RunPaths) -> None:
    clock = iter([0.0, 0.0, 60.0, 60.0]).__next__
    store = LeaseStore(run, WorkerIdentity("me-1-0", "me", 1), clock=clock)
    assert store.observe(1).decision.__class__.__name__ == "Wait"
    assert getattr(store.observe(1).decision, "generation", None) == 3


def test_settled_batches_are_read(run: RunPaths) -> None:
    assert list_batches(run.done_dir) == {0}
    assert list_batches(run.failed_dir) == {2}
    done = read_done(run, 0)
    assert (done["batch_id"], done["generation"], done["token"]) == (0, 2, "node1-101-00000001")
    assert done["attempt"] == "attempts/000000/0002-node1-101-00000001"
    table, video = done["shards"]
    assert table["size_bytes"] == 3282
    assert (video["copied_bytes"], video["cloned_bytes"]) == (824, 0)
    assert video["clip_digests"] == ["00112233445566778899aabbccddeeff"]
    failed = read_failed(run, 2)
    assert (failed["generation"], failed["errors"], failed["losses"]) == (2, 1, 0)
    assert failed["error"]["next_step"] == "Record it again."


def test_workers_are_read(run: RunPaths) -> None:
    ended, working = read_workers(run)
    assert ended.peak_memory_bytes == 0  # no worker said it yet
    assert (ended.token, ended.state, ended.batch_id) == ("node1-101-00000001", "ended", None)
    assert (working.token, working.state, working.batch_id) == ("node2-102-00000002", "working", 1)
    assert (working.batches, working.written_bytes, working.frames) == (3, 4096, 10)
    assert (working.bytes_per_second, working.frames_per_second) == (2048.0, 5.0)
    assert working.updated == "2026-11-21T07:00:00+00:00"


def test_how_processes_were_called_is_read(run: RunPaths) -> None:
    called, worked = read_invocations(run)
    assert (called.called, called.command, called.host, called.pid) == (
        "convert",
        None,
        "node1",
        101,
    )
    assert called.file_system_ahead_seconds is None
    assert worked.command == ["leconvert", "work", "/data/work", "--token", "***"]
    assert (called.folder, worked.folder) == ("", "/home/me")
    assert (worked.at, worked.cpus) == ("2026-11-21T07:00:00.250+00:00", 16)
    assert (worked.system, worked.versions["python"]) == ("Linux 6.8.0 x86_64", "3.12.11")
    assert worked.file_system_ahead_seconds == 35.2


def test_what_the_probe_said_is_read(run: RunPaths) -> None:
    probe = read_probe(run)
    assert probe is not None
    assert (probe["kind"], probe["samples_per_s"]) == ("run", 1234.5)


@pytest.mark.parametrize(
    ("generation", "step", "swap"),
    [
        (1, PackStep.PACKING, None),
        (2, PackStep.SWAPPING, {"target": "/data/out", "old": None}),
        (3, PackStep.SWAPPED, {"target": "/data/set", "old": "/data/set_old"}),
        (4, PackStep.FINISHED, {"target": "/data/set", "old": "/data/set_old"}),
    ],
)
def test_a_journal_is_read_at_each_step(
    run: RunPaths, generation: int, step: PackStep, swap: object
) -> None:
    for later in range(generation + 1, 5):
        run.journal_record(later).unlink()
    state = Journal(run).read()
    assert (state.generation, state.step, state.swap) == (generation, step, swap)
    assert state.notes["linked"] == 2


def test_marks_and_lock_holders_are_read(work_dir: Path, run: RunPaths) -> None:
    mark = work_dir / "tree" / ".leconvert-tree.json"
    assert read_record(mark, "tree", version=1, run_id=RUN_ID)
    for lock in (work_dir / "planner.lock", run.packer_lock):
        record = read_record(lock.with_name(f"{lock.name}.holder"), "lock-holder", version=1)
        assert (record["host"], record["pid"]) == ("node1", 101)


def test_the_only_host_that_may_work_is_read(run: RunPaths) -> None:
    alone = read_one_host(run)
    assert alone is not None
    assert alone.host == HostIdentity("node1", "5d" * 16, BOOT.partition("/")[0])
    assert (alone.device, alone.has_links, alone.reason) == (2049, False, "EPERM")


REFUSING: dict[str, Callable[[RunPaths], object]] = {
    "current": lambda run: WorkDir(run.root.parent.parent).current_run_id(),
    f"runs/{RUN_ID}/manifest.json": read_manifest,
    f"runs/{RUN_ID}/one_host.json": read_one_host,
    f"runs/{RUN_ID}/done/000000.json": lambda run: read_done(run, 0),
    f"runs/{RUN_ID}/failed/000002.json": lambda run: read_failed(run, 2),
    f"runs/{RUN_ID}/journal/0004.json": lambda run: Journal(run).read(),
}


@pytest.mark.parametrize("name", REFUSING)
def test_what_decides_is_refused_in_a_version_of_the_future(tmp_path: Path, name: str) -> None:
    root = Path(shutil.copytree(GOLDEN, tmp_path / "work"))
    newest = MANIFEST_VERSION if name.endswith("manifest.json") else 1
    change(root / name, version=newest + 1)
    said = "This leconvert knows versions up to"
    with pytest.raises(WorkDirError, match=said) as caught:
        REFUSING[name](WorkDir(root).run(RUN_ID))
    assert caught.value.path == str(root / name)
    assert "Use the version of leconvert that began this run" in str(caught.value.next_step)


def test_what_only_helps_is_left_out_in_a_version_of_the_future(tmp_path: Path) -> None:
    """A claim is its name; an end that cannot be read is none; worker records are for show."""
    work = WorkDir(Path(shutil.copytree(GOLDEN, tmp_path / "work")))
    run = work.run(RUN_ID)
    token = "node2-102-00000002"
    for path in (
        run.lease(1, 2),
        run.lease_end(0, 1),
        run.worker(token),
        run.invocation(token),
        run.probe_result,
    ):
        change(path, version=2)
    log = LeaseLogFiles(run)
    assert log.holder(1, 2) == {}
    assert [entry.number for entry in log.read(1).generations] == [1, 2]
    assert log.read(0).generations[0].outcome is None
    assert [worker.token for worker in read_workers(run)] == ["node1-101-00000001"]
    assert [entry.token for entry in read_invocations(run)] == ["node1-101-00000001"]
    assert read_probe(run) is None


def test_records_of_another_run_are_refused(tmp_path: Path) -> None:
    run = WorkDir(Path(shutil.copytree(GOLDEN, tmp_path / "work"))).run(RUN_ID)
    another = RunPaths(run.root.rename(run.root.with_name("another")))
    for read in (
        lambda: read_manifest(another),
        lambda: read_done(another, 0),
        lambda: read_failed(another, 2),
        lambda: Journal(another).read(),
        lambda: read_one_host(another),
    ):
        with pytest.raises(WorkDirError, match=f"belongs to run {RUN_ID}, not to another"):
            read()


def test_states_have_the_names_that_records_and_people_know() -> None:
    assert [str(state) for state in BatchState] == ["pending", "leased", "done", "failed"]
    assert [str(outcome) for outcome in Outcome] == ["handed-back", "error", "void"]
    assert [str(step) for step in PackStep] == ["packing", "swapping", "swapped", "finished"]


def test_submissions_are_read(run: RunPaths) -> None:
    assert read_jobs(run) == [
        JobRecord(
            token="slurm-41-77-0a1b2c3d",
            engine="slurm",
            job_id="41",
            role="workers",
            tasks=6,
            submitted="2026-01-02T03:05:00+00:00",
        )
    ]
