"""What a report tells of real runs: finished, troubled, failed, old, and of a result alone."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from leconvert.api import convert, run_worker
from leconvert.model.values import LayoutOptions
from leconvert.report.page import page
from leconvert.report.status import moment
from leconvert.report.values import AttemptEnd, StoryState, gather, gather_run
from leconvert.run.conversion import ProofOptions, WorkerOptions
from leconvert.run.leasing import LeaseStore, WorkerIdentity, void_done
from leconvert.run.packer import assembly, pack_run
from leconvert.support.errors import (
    BatchesFailedError,
    UnreadableSourceError,
    VerificationError,
)
from leconvert.workdir.activity import record_invocation
from leconvert.workdir.fs import replace_record
from leconvert.workdir.records import encode_record
from leconvert.workdir.run import OpenedRun, open_run
from tests.plans import open_or_plan
from tests.trees import digest_of, snapshot

GOLDEN = Path(__file__).parents[1] / "golden" / "v1"
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
TOP, WRIST = "videos/observation.images.top", "videos/observation.images.wrist"


@pytest.fixture(scope="module")
def finished(small_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The work dir of a run that went well, beside ``out`` and ``out.report.html``."""
    root = tmp_path_factory.mktemp("finished")
    convert(
        small_source, output=root / "out", work_dir=root / "work",
        layout=LayoutOptions(episodes_per_batch=1), workers=WorkerOptions(max_workers=2),
        proof=ProofOptions(verify="bytes"), report=root / "out.report.html",
        command=["leconvert", "convert", "--root", str(small_source), "--token", "hf_secret12345"],
    )  # fmt: skip
    return root / "work"


def store_of(run: OpenedRun, host: str, at: Callable[[], datetime], **more: object) -> LeaseStore:
    identity = WorkerIdentity(f"{host}-7-00000000", host, 7)
    return LeaseStore(run.paths, identity, now=at, **more)  # type: ignore[arg-type]


class Clock:
    """A wall clock that the test turns."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        return self.now

    def later(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


def test_a_finished_run_is_told_with_who_did_what(finished: Path, small_source: Path) -> None:
    story = gather(finished)
    assert (story.name, story.state) == ("out", StoryState.FINISHED)
    assert (story.episodes, story.frames, story.fps) == (5, 44, "30")
    assert (story.batches.total, story.batches.done, story.batches.pending) == (5, 5, 0)
    assert [row.stream for row in story.streams] == ["data", TOP, WRIST]
    for row in story.streams:
        of_source = [p for p in small_source.rglob("episode_*") if row.stream[7:] in str(p)]
        if row.stream == "data":
            of_source = list((small_source / "data").rglob("*.parquet"))
        of_result = [p for p in (finished.parent / "out" / row.stream).rglob("*") if p.is_file()]
        assert (row.source_files, row.source_bytes) == (
            5, sum(p.stat().st_size for p in of_source),
        )  # fmt: skip
        assert (row.result_files, row.planned_files) == (1, 1)
        assert row.result_bytes == sum(p.stat().st_size for p in of_result)
    everything = [p for p in (finished.parent / "out").rglob("*") if p.is_file()]
    assert story.result_bytes + story.other_bytes == sum(p.stat().st_size for p in everything)
    assert story.result_files + story.other_files == len(everything)
    assert story.remarks == []
    assert not story.findings
    assert story.findings is not None
    assert [(a.batch_id, a.generation, a.end) for a in story.attempts] == [
        (number, 1, AttemptEnd.DONE) for number in range(5)
    ]
    for attempt in story.attempts:
        assert attempt.seconds is not None
        assert attempt.began is not None
        assert attempt.ended == pytest.approx(attempt.began + attempt.seconds)
    assert sum(a.source_bytes for a in story.attempts) == story.source_bytes
    assert 1 <= len({a.token for a in story.attempts}) <= 2
    proof = story.verification
    assert (proof.depth, proof.ok, proof.differences) == ("bytes", True, 0)
    assert proof.counts == {"files": 3, "episodes": 5, "rows": 44, "video_frames": 88}
    [packer] = story.packers
    assert packer.step == "finished"
    assert list(packer.times) == ["began", "packing", "swapping", "swapped", "finished"]
    assert sorted(packer.times.values()) == list(packer.times.values())
    [call] = story.invocations
    assert call.called == "convert"
    assert call.command[-2:] == ["--token", "***"]
    assert story.clocks == {call.host: 0.0}


def test_the_result_is_the_same_bytes_with_and_without_a_report_which_leaves_all_as_it_is(
    finished: Path, small_source: Path, tmp_path: Path
) -> None:
    convert(small_source, output=tmp_path / "plain")
    assert digest_of(tmp_path / "plain") == digest_of(finished.parent / "out")
    assert "<h1><bdi>out</bdi></h1>" in (finished.parent / "out.report.html").read_text()
    before = snapshot(finished.parent)
    gather(finished)
    assert snapshot(finished.parent) == before


def test_a_result_alone_tells_what_it_can(finished: Path, tmp_path: Path) -> None:
    result = Path(shutil.copytree(finished.parent / "out", tmp_path / "moved"))
    story, whole = gather(result), gather(finished)
    assert (story.state, story.name, story.work_dir) == (StoryState.RESULT_ONLY, "moved", None)
    assert (story.episodes, story.frames, story.fps) == (5, 44, "30")
    assert story.result_bytes == whole.result_bytes
    assert (story.source_bytes, story.findings, story.batches) == (None, None, None)
    html = page(story)
    assert 'id="work"' not in html
    assert "No comparison with the source is recorded" in html
    (result / "meta" / "info.json").write_text('{"codebase_version": "v3.0"}')
    with pytest.raises(UnreadableSourceError, match="total_episodes"):
        gather(result)


def test_a_result_with_its_work_dir_tells_all(small_source: Path, tmp_path: Path) -> None:
    convert(small_source, output=tmp_path / "out", keep_work_dir=True)
    story = gather(tmp_path / "out")
    assert story.state is StoryState.FINISHED
    assert story.run_id is not None
    # Another dataset at that place is not what the run made.
    shutil.move(tmp_path / ".out.leconvert-work", tmp_path / ".other.leconvert-work")
    shutil.move(tmp_path / "out", tmp_path / "other")
    assert gather(tmp_path / "other").state is StoryState.RESULT_ONLY


def test_every_way_a_try_can_end_is_told_with_its_time(planned: OpenedRun) -> None:
    clock = Clock()
    a, b = store_of(planned, "a", clock), store_of(planned, "b", clock, lease_seconds=1e-9)
    failing = a.claim(0)
    clock.later(5)
    failing.fail(UnreadableSourceError("x.mp4 is torn, said hf_abcdefgh12345.", path="x.mp4"))
    handed = a.claim(1)
    clock.later(7)
    handed.hand_back("the worker was stopped")
    frozen = a.claim(2)
    clock.later(3)
    frozen.heartbeat()
    b.observe(2)
    successor = b.claim(2)
    clock.later(2)
    assert successor.publish_done({"shards": []}) == "won"
    held = a.claim(3)
    clock.later(4)
    held.heartbeat()
    done = a.claim(4)
    assert done.publish_done({"shards": []}) == "won"
    assert void_done(planned.paths, 4, "its file is gone")

    story = gather_run(planned)
    told = [(a.batch_id, a.generation, a.host, a.end, a.message) for a in story.attempts]
    assert told == [
        (0, 1, "a", AttemptEnd.ERROR, "x.mp4 is torn, said ***."),
        (1, 1, "a", AttemptEnd.HANDED_BACK, "the worker was stopped"),
        (2, 1, "a", AttemptEnd.LOST, ""),
        (2, 2, "b", AttemptEnd.DONE, ""),
        (3, 1, "a", AttemptEnd.HELD, ""),
        (4, 1, "a", AttemptEnd.VOID, "its file is gone"),
    ]
    start = NOON.timestamp()
    # Error and hand-back end by the monotonic clock, which this test does not turn.
    assert [round(a.began - start) for a in story.attempts if a.began] == [0, 5, 12, 15, 17, 21]
    lost, winner, kept = story.attempts[2:5]
    assert lost.ended == start + 15
    assert kept.ended == start + 21
    assert winner.seconds is not None
    assert story.state is StoryState.UNFINISHED
    assert (story.batches.done, story.batches.held, story.batches.pending) == (1, 1, 3)
    html = page(story)
    for sign in ("error", "lost", "handed-back", "void"):
        assert f'href="#sign-{sign}"' in html
    assert "done by process 7 on b, attempt 2" in html
    assert html.count("The end is not recorded") == 1
    held = html.partition("<h3>Held by a worker</h3>")[2].partition("</table>")[0]
    assert "2026-03-01 12:00:17 UTC" in held
    assert "2026-03-01 12:00:21 UTC" in held


@pytest.mark.parametrize(("behind", "said"), [(100, "behind"), (-100, "ahead")])
def test_the_times_of_a_host_are_moved_to_the_shared_clock(
    planned: OpenedRun, behind: int, said: str
) -> None:
    told = datetime.now(UTC) - timedelta(seconds=behind)
    record_invocation(planned.paths, "work", None, now=lambda: told)
    [call] = gather_run(planned).invocations
    lease = store_of(planned, call.host, lambda: told).claim(0)
    lease.hand_back("enough")
    story = gather_run(planned)
    assert story.clocks[call.host] == pytest.approx(behind, abs=5)
    [attempt] = story.attempts
    assert attempt.began == pytest.approx(told.timestamp() + behind, abs=5)
    assert re.search(f"{call.host} (100|99)[.0-9]* s {said}", page(story))


def test_a_failed_run_says_which_batches_and_why(source_copy: Path, tmp_path: Path) -> None:
    clip = next(source_copy.rglob("*.mp4"))
    out, work, page_path = tmp_path / "out", tmp_path / "work", tmp_path / "page.html"
    run = open_or_plan(source_copy, out, work)
    lease = store_of(run, "a", Clock(), max_attempts=1).claim(0)
    lease.fail(UnreadableSourceError(f"{clip} is torn.", path=str(clip)))
    workers = WorkerOptions(max_workers=1)
    with pytest.raises(BatchesFailedError):
        convert(source_copy, output=out, work_dir=work, report=page_path, workers=workers)
    story = gather(work)
    assert (story.state, story.set_aside) == (StoryState.FAILED, {0})
    html = page_path.read_text()
    for sign in (f"{clip} is torn.", "1 batch failed", "<td>failed</td>"):
        assert sign in html


def test_a_result_that_differs_is_told_with_the_first_differences(
    source_copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = assembly.v3.write_tasks

    def wrong(root: Path, tasks: list[tuple[int, str]]) -> None:
        write(root, [(0, "Wrong."), *tasks[1:]])

    monkeypatch.setattr(assembly.v3, "write_tasks", wrong)
    with pytest.raises(VerificationError):
        convert(source_copy, output=tmp_path / "out", report=tmp_path / "page.html")
    story = gather(tmp_path / ".out.leconvert-work")
    assert story.state is StoryState.DIFFERS
    assert (story.verification.ok, story.verification.differences) == (False, 1)
    assert "tasks.parquet" in story.verification.shown[0]
    assert "Nothing was replaced." in (tmp_path / "page.html").read_text()


def test_a_run_that_is_done_but_not_packed_waits_for_its_packer(
    small_source: Path, tmp_path: Path, planned: OpenedRun
) -> None:
    run_worker(tmp_path / "work")
    story = gather(tmp_path / "work")
    assert (story.state, story.packers, story.verification) == (StoryState.TO_PACK, [], None)
    assert [row.result_files for row in story.streams] == [1, 1, 1]
    pack_run(planned, ProofOptions(verify="none"))
    story = gather(tmp_path / "work")
    assert (story.verification.depth, story.verification.ok) == ("none", None)
    assert "was not compared with its source." in page(story)


def test_records_of_the_first_release_give_tables_without_a_timeline(tmp_path: Path) -> None:
    work = Path(shutil.copytree(GOLDEN, tmp_path / "work"))
    run = open_run(work, allow_mixed_versions=True, only_look=True)
    shutil.rmtree(run.paths.invocations_dir)
    run.paths.probe_result.unlink()
    story = gather(work)
    assert (story.invocations, story.probe) == ([], None)
    assert {a.end for a in story.attempts} == {
        AttemptEnd.HANDED_BACK, AttemptEnd.DONE, AttemptEnd.VOID, AttemptEnd.HELD, AttemptEnd.ERROR,
    }  # fmt: skip
    assert all(attempt.began is None for attempt in story.attempts)
    html = page(story)
    assert "there is no timeline" in html
    assert "are not recorded" in html


def test_a_torn_record_is_named_and_the_rest_is_told(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished.parent, tmp_path / "copy")
    run = open_run(tmp_path / "copy" / "work", only_look=True)
    run.paths.done(2).write_bytes(b"{")
    fields = {"generation": 1, "attempt": "attempts/000003/0001-a", "shards": "none"}
    raw = encode_record("done", 1, run.paths.run_id, fields)
    replace_record(run.paths.done(3), raw)
    story = gather_run(run)
    assert [remark[:24] for remark in story.remarks] == [
        "The result of batch 2: T", "The result of batch 3: s",
    ]  # fmt: skip
    assert "These records could not be read" in page(story)


def test_times_are_read_in_any_zone_and_what_is_no_time_in_utc_is_none() -> None:
    assert moment("2026-03-01T13:00:00+01:00") == NOON.timestamp()
    for text in ("", "yesterday", None, 5, "2026-03-01T12:00:00"):
        assert moment(text) is None
