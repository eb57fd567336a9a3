"""What a packer does while it waits, when it is asked to stop, and when it is asked again."""

from __future__ import annotations

import json
import threading
from collections.abc import Collection
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from tests.plans import open_or_plan

from leconvert.api import run_worker
from leconvert.run.conversion import ProofOptions
from leconvert.run.packer import WorkerMonitor, pack_run, swap_has_begun
from leconvert.run.packer import run as packing
from leconvert.run.proof import VerificationReport
from leconvert.support.errors import (
    IncompleteError,
    InterruptedRunError,
    StorageError,
    UsageError,
)
from leconvert.workdir.run import OpenedRun
from leconvert.workdir.swap import staging_trees


class Stopping(WorkerMonitor):
    """Asks the packer to stop once it has looked and found nothing."""

    pause_seconds = 3600.0  # nobody waits for it: the stop ends the pause

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self.seen: list[list[int]] = []

    def saw_done(self, batch_ids: Collection[int]) -> None:
        self.seen.append(sorted(batch_ids))
        self._stop.set()


def test_a_packer_that_waits_for_workers_ends_as_soon_as_it_is_asked_to(planned: OpenedRun) -> None:
    run_worker(planned.work_dir.root, max_batches=2)
    stop = threading.Event()
    watcher = Stopping(stop)
    with pytest.raises(InterruptedRunError) as caught:
        pack_run(planned, stop=stop, watcher=watcher)
    assert caught.value.next_step == "Run the same command again to continue."
    [seen] = watcher.seen
    assert len(seen) == 2
    assert not Path(planned.manifest.target).exists()
    [(owner, tree)] = staging_trees(Path(planned.manifest.target))
    assert owner == planned.paths.run_id
    assert (tree / "meta/episodes").is_dir(), "the next packer finds what this one made"
    run_worker(planned.work_dir.root)
    assert pack_run(planned).verified == "structure"
    assert staging_trees(Path(planned.manifest.target)) == []


def test_what_is_missing_is_told_even_where_the_new_tree_cannot_be_removed(
    planned: OpenedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_worker(planned.work_dir.root, max_batches=2)

    class Gone(WorkerMonitor):
        def working(self) -> bool:
            return False

    fails = Mock(side_effect=StorageError("the disk fails"))
    monkeypatch.setattr(packing, "remove_new_tree", fails)
    with pytest.raises(IncompleteError, match="2 of 5 batches are done"):
        pack_run(planned, watcher=Gone())
    monkeypatch.undo()
    run_worker(planned.work_dir.root)
    assert pack_run(planned).verified == "structure"
    assert staging_trees(Path(planned.manifest.target)) == []


def test_a_packer_is_asked_to_stop_before_each_file(planned: OpenedRun) -> None:
    run_worker(planned.work_dir.root)
    stop = threading.Event()
    stop.set()
    with pytest.raises(InterruptedRunError):
        pack_run(planned, stop=stop)
    assert not Path(planned.manifest.target).exists()
    assert not swap_has_begun(planned)
    assert pack_run(planned).kept is None
    assert swap_has_begun(planned)


def test_a_finished_run_says_the_same_again_and_its_source_elsewhere_is_never_removed(
    planned: OpenedRun, small_source: Path
) -> None:
    run_worker(planned.work_dir.root)
    first = pack_run(planned)
    before = (Path(planned.manifest.target) / "meta/info.json").stat()
    assert pack_run(planned) == first
    assert (Path(planned.manifest.target) / "meta/info.json").stat() == before
    assert json.dumps(first.as_record())
    with pytest.raises(UsageError, match="--delete-source works only if the result takes"):
        pack_run(planned, ProofOptions(delete_source=True))
    assert (small_source / "meta/info.json").is_file()


# --- the source, when its removal is asked for afterwards -------------------------------------


@pytest.mark.parametrize(
    ("verify", "delete_source", "depth"),
    [
        *((None, False, "structure"), (None, True, "bytes")),
        *(("none", False, "none"), ("structure", True, "structure")),
    ],
)
def test_a_source_that_is_to_be_removed_is_compared_to_the_byte_unless_told_otherwise(
    verify: str | None, delete_source: bool, depth: str
) -> None:
    assert ProofOptions(verify=verify, delete_source=delete_source).depth == depth


def test_a_source_is_only_removed_when_this_very_process_has_compared_it_by_bytes(
    source_copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = open_or_plan(source_copy, source_copy, tmp_path / "work")
    run_worker(run.work_dir.root)
    kept = pack_run(run).kept
    assert kept == source_copy.with_name("small_old")
    depths: list[str] = []
    compare = packing.verify_pair

    def noting(*arguments: Any, depth: str, **options: Any) -> VerificationReport:
        depths.append(depth)
        assert arguments == (source_copy, [kept])
        return compare(*arguments, depth=depth, **options)

    monkeypatch.setattr(packing, "verify_pair", noting)
    report = pack_run(run, ProofOptions(delete_source=True))
    assert depths == ["bytes"]
    assert (report.kept, report.removed, report.verified) == (None, kept, "bytes")
    assert not kept.exists()
