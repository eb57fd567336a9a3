"""``leconvert release`` as an operator uses it."""

from __future__ import annotations

import json

from leconvert.run.leasing import LeaseStore, WorkerIdentity
from leconvert.support.errors import UnreadableSourceError
from leconvert.workdir.run import OpenedRun
from tests.program import Leconvert


def test_a_failed_batch_is_released_done_and_packed(
    leconvert_here: Leconvert, planned: OpenedRun
) -> None:
    work = planned.work_dir.root
    identity = WorkerIdentity("far-1-00000000", "far", 1)
    store = LeaseStore(planned.paths, identity, max_attempts=1)
    lease = store.claim(3)
    lease.fail(UnreadableSourceError("the mount was away."))
    assert leconvert_here("work", work).returncode == 0
    stopped = leconvert_here("pack", work, code=8)
    assert "release" in stopped.stderr
    shown = leconvert_here("release", work, "--failed", "--dry-run")
    assert "Nothing was written" in shown.stdout
    released = leconvert_here("release", work, "--failed", code=0)
    assert "released" in released.stdout
    assert f"leconvert work {work}" in released.stdout
    assert leconvert_here("work", work).returncode == 0
    assert leconvert_here("pack", work).returncode == 0
    assert "nothing to release" in leconvert_here("release", work, "--failed").stdout


def test_a_living_holder_is_a_refusal_with_a_code(leconvert: Leconvert, planned: OpenedRun) -> None:
    work = planned.work_dir.root
    identity = WorkerIdentity.of_this_process()
    assert LeaseStore(planned.paths, identity).claim(3) is not None
    refused = leconvert("release", work, 3, "--force", "--json", code=12)
    [row] = json.loads(refused.stdout)["batches"]
    assert (row["verdict"], row["pid"]) == ("refused", identity.pid)
