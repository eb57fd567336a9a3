"""Datasets of the Hub in a fleet: found, migrated one by one, passed over, and never hurried."""

from __future__ import annotations

import json
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi
from tests.hub import WRITE_TOKEN, Fault, StandIn

from leconvert import fleet
from leconvert.cli import main
from leconvert.fleet import FleetStatus, Line
from leconvert.run.conversion import Conversion, WorkerOptions
from leconvert.support.errors import HubAccessError, HubError, UsageError
from leconvert.testing import CameraSpec, DatasetSpec, edit_info, make_dataset
from leconvert.transfer.client import Pace, read_pause
from leconvert.transfer.options import PushOptions, ScratchOptions

SPEC = DatasetSpec(episodes=2, frames=8, cameras=(CameraSpec(width=32, height=32),))


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("fleet") / "small", SPEC)


@pytest.fixture
def repos(hub: StandIn, small: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """Two datasets of an organisation, one of somebody else, and what is no dataset."""
    monkeypatch.setenv("HF_TOKEN", WRITE_TOKEN)
    for name in ("tester/pick", "tester/place", "stranger/push"):
        hub.add_repo(name, small, tags=("v2.1",))
    hub.add_repo("tester/notes", {"README.md": b"# notes"})
    hub.add_repo("stranger/secret", small, private=True)
    return hub


Run = Callable[..., FleetStatus]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a fleet of these datasets, which pushes them to repositories of their own."""

    def call(*datasets: str | Line, output_dir: Path | None = None, **more: Any) -> FleetStatus:
        options = {
            "push": PushOptions(repo_id="tester/{name}-v30"),
            "workers": WorkerOptions(max_workers=2),
            "scratch": ScratchOptions(tmp_path / "scratch", 1 << 30),
        }
        conversion = Conversion(**options | more)
        work_dir = tmp_path / "work"
        return fleet.run(datasets, work_dir=work_dir, output_dir=output_dir, conversion=conversion)

    return call


def states(status: FleetStatus) -> dict[str, str]:
    return {one.name: one.state.value for one in status.datasets}


def tags_of(hub: StandIn, repo_id: str) -> dict[str, str]:
    refs = HfApi(endpoint=hub.endpoint, token=WRITE_TOKEN).list_repo_refs(
        repo_id, repo_type="dataset"
    )
    return {ref.name: ref.target_commit for ref in refs.tags}


def info_of(hub: StandIn, repo_id: str) -> dict[str, object]:
    repo = hub.repo(repo_id)
    content = repo.content(repo.tree(repo.branches["main"])["meta/info.json"])
    assert content is not None
    return dict(json.loads(content.read_bytes()))


def test_an_organisation_and_a_collection_are_listed_without_their_files(
    repos: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    repos.add_repo(
        "tester/done", {"meta/info.json": b'{"codebase_version": "v3.0"}'}, tags=("v3.0",)
    )
    repos.limits.page_size = 3  # listings come in pages
    assert main(["fleet", "find", "hf://tester"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "tester/pick  # v2.1, 2 episodes, " in next(x for x in lines if x.startswith("tester/p"))
    left = [line.split()[1] for line in lines if line.startswith("# tester")]
    assert left == ["tester/done", "tester/notes"]
    assert "#   is v3.0 already" in lines
    assert lines[-1].startswith("# 4 datasets, ")
    fetched = [request.path for request in repos.log if "/resolve/" in request.path]
    assert all(path.endswith("/meta/info.json") for path in fetched)

    repos.collections["lab/arms-1"] = [
        ("model", "tester/pick"),
        ("dataset", "stranger/push"),
        ("dataset", "stranger/secret"),
    ]
    for address in ("hf://collections/lab/arms-1", "https://huggingface.co/collections/lab/arms-1"):
        assert main(["fleet", "find", address, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)["datasets"]
        assert [one["name"] for one in found] == ["stranger/push", "stranger/secret"]
        assert "may not see it" in found[1]["problem"]
    assert main(["fleet", "find", "hf://collections/lab/none"]) == HubError.exit_code
    assert main(["fleet", "find", "s3://bucket"]) == UsageError.exit_code


def test_repos_are_migrated_one_by_one_and_scratch_is_empty_afterwards(
    repos: StandIn, tmp_path: Path, run: Run, small: Path
) -> None:
    names = ["tester/pick", "stranger/push@v2.1", "stranger/secret", "tester/none", "tester/notes"]
    done = run(*names)
    assert states(done) == {
        "tester/pick": "converted", "stranger/push": "converted", "stranger/secret": "set aside",
        "tester/none": "set aside", "tester/notes": "set aside",
    }  # fmt: skip
    said = {one.name: f"{one.message} {one.next_step}" for one in done.set_aside}
    assert "or this token may not see it" in said["stranger/secret"]
    assert "not a LeRobot dataset" in said["tester/notes"]
    assert not list((tmp_path / "scratch").rglob("*"))
    for name in ("pick", "push"):
        info = info_of(repos, f"tester/{name}-v30")
        assert (info["codebase_version"], info["total_episodes"]) == ("v3.0", 2)
        main_commit = repos.repo(f"tester/{name}-v30").branches["main"]
        assert tags_of(repos, f"tester/{name}-v30") == {"v3.0": main_commit}
    (pick,) = (one for one in done.datasets if one.name == "tester/pick")
    assert pick.pushed.endswith(f"tester/pick-v30@{repos.repo('tester/pick-v30').branches['main']}")
    assert pick.episodes == 2

    # Once more: what is unchanged costs questions about branches and tags alone.
    before = len(repos.log)
    again = run(*names[:2])
    assert set(states(again).values()) == {"finished before"}
    asked = Counter(request.path.rsplit("/", 1)[1] for request in repos.log[before:])
    assert asked.keys() <= {"refs", "v2.1", "info.json"}

    # A commit on the source: it alone is converted, and replaces what the fleet pushed before.
    shutil.copytree(small, tmp_path / "grown")
    edit_info(tmp_path / "grown", lambda info: info.update(robot_type="another"))
    repos.add_commit("tester/pick", tmp_path / "grown")
    repos.repo("tester/pick").tags["v2.1"] = repos.repo("tester/pick").branches["main"]
    third = run(*names[:2])
    assert states(third) == {"tester/pick": "converted", "stranger/push": "finished before"}
    assert info_of(repos, "tester/pick-v30")["robot_type"] == "another"

    # What somebody else made of the result since is not replaced.
    repos.add_commit("tester/pick-v30", {"meta/tasks.txt": b"mine"})
    info = {**info_of(repos, "tester/pick-v30"), "robot_type": "somebody's"}
    repos.add_commit("tester/pick-v30", {"meta/info.json": json.dumps(info).encode()})
    edit_info(tmp_path / "grown", lambda info: info.update(robot_type="a third"))
    repos.add_commit("tester/pick", tmp_path / "grown")
    repos.repo("tester/pick").tags["v2.1"] = repos.repo("tester/pick").branches["main"]
    refused = run(*names[:1])
    assert [one.error for one in refused.set_aside] == ["HubConflictError"]
    assert info_of(repos, "tester/pick-v30")["robot_type"] == "somebody's"


def test_repos_that_are_pushed_back_are_found_finished_with_and_without_records(
    repos: StandIn, tmp_path: Path, run: Run
) -> None:
    back = PushOptions(create=False)
    assert states(run("tester/pick", push=back)) == {"tester/pick": "converted"}
    assert info_of(repos, "tester/pick")["codebase_version"] == "v3.0"
    again = run("tester/pick", push=back)
    assert states(again) == {"tester/pick": "finished before"}
    shutil.rmtree(tmp_path / "work")
    again = run("tester/pick", push=back)
    assert states(again) == {"tester/pick": "finished before"}
    # To another repo that is something else, which is said.
    other = run("tester/pick", output_dir=tmp_path / "out", push=None)
    assert "is already v3.x on the Hub" in other.set_aside[0].message
    named = run("tester/pick@v2.1", output_dir=tmp_path / "out", push=None)
    assert states(named) == {"tester/pick": "converted"}
    info = json.loads((tmp_path / "out/tester/pick/meta/info.json").read_bytes())
    assert info["codebase_version"] == "v3.0"
    assert not list((tmp_path / "scratch").rglob("*"))


def test_a_dataset_that_the_scratch_cannot_hold_is_set_aside_with_what_it_needs(
    repos: StandIn, tmp_path: Path, run: Run
) -> None:
    (aside,) = run("tester/pick", scratch=ScratchOptions(tmp_path / "scratch", 4096)).set_aside
    assert aside.error == "UsageError"
    assert "--scratch-limit" in (aside.next_step or "")
    needed = int((aside.next_step or "").split("--scratch-limit ")[1].split()[0])
    enough = ScratchOptions(tmp_path / "scratch", needed)
    done = run("tester/pick", "tester/place", scratch=enough)
    assert set(states(done).values()) == {"converted"}


def test_a_token_is_asked_for_and_meeting_pushes_are_refused_before_any_work(
    repos: StandIn, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = Line("tester/pick", options=Conversion(push=PushOptions(repo_id="tester/place")))
    for first, to in (("tester/pick", "tester/all"), (over, "tester/{name}-v30")):
        with pytest.raises(UsageError, match="two datasets would be pushed to"):
            run(first, "tester/place", push=PushOptions(repo_id=to))
    with pytest.raises(UsageError, match="no folder is given for the result"):
        run("tester/pick", push=None)
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(HubAccessError, match="needs a token"):
        run("tester/pick")
    assert not (tmp_path / "work").exists()


def test_scratch_stays_until_a_push_was_compared_and_is_gone_on_with(
    repos: StandIn, tmp_path: Path, run: Run
) -> None:
    repos.break_requests(Fault("status", path=r"/tag/", status=403))
    done = run("tester/pick")
    assert [one.error for one in done.set_aside] == ["HubAccessError"]
    assert list((tmp_path / "scratch").rglob("result/meta/info.json"))
    before = len(repos.log)
    again = run("tester/pick")
    assert states(again) == {"tester/pick": "converted"}
    asked = [request.path for request in repos.log[before:]]
    assert not [path for path in asked if path.endswith(".parquet") or "/commit/" in path]
    assert tags_of(repos, "tester/pick-v30").keys() == {"v3.0"}
    assert not list((tmp_path / "scratch").rglob("*"))


# ------------------------------------------------------------------------------------------------
# Rate limits and failures.


def test_too_many_requests_slow_a_fleet_down_and_fail_nobody(
    repos: StandIn, tmp_path: Path, run: Run
) -> None:
    refusals = [
        Fault("status", path=path, status=429, headers={"Retry-After": "1"}, times=times)
        for path, times in ((r"/resolve/.*parquet", 1), (r"/commit/", 1))
    ]
    repos.break_requests(*refusals)
    done = run("tester/pick", "tester/place")
    assert set(states(done).values()) == {"converted"}
    assert all(fault.times == 0 for fault in refusals)
    assert (tmp_path / "work/hub-pause.json").is_file()


def test_a_failing_hub_fails_nobody_and_a_failing_repo_is_set_aside(
    repos: StandIn, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (
        ("FIRST_FAILURE", 0.01),
        ("LONGEST_FAILURE", 0.05),
        ("FIRST_PAUSE", 1e-3),
    ):
        monkeypatch.setattr(f"leconvert.transfer.client._{name}_SECONDS", seconds)
    alone = WorkerOptions(max_workers=1)
    repos.break_requests(Fault("status", path="", status=503, times=15))
    done = run("tester/pick", "tester/place", workers=alone)
    assert set(states(done).values()) == {"converted"}
    repos.break_requests(Fault("status", path=r"/stranger/push/tree/", status=500, times=None))
    done = run("stranger/push@v2.1", "tester/pick", workers=alone)
    assert states(done) == {"stranger/push": "set aside", "tester/pick": "finished before"}
    assert done.set_aside[0].error == "HubUnavailableError"


class Clock:
    """A clock that waiting turns."""

    def __init__(self) -> None:
        self.now = 1e9
        self.waited: list[float] = []

    def __call__(self) -> float:
        return self.now

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        self.waited.append(seconds)
        self.now += seconds
        return stop.is_set()


def pace_by(clock: Clock, path: Path) -> Pace:
    return Pace(path, threading.Event(), clock=clock, wait=clock.wait)


def test_all_hosts_wait_before_they_ask_once_one_was_refused(tmp_path: Path) -> None:
    path, clock = tmp_path / "pause.json", Clock()
    one, other = pace_by(clock, path), pace_by(clock, path)
    other.before()
    assert clock.waited == []
    one.after(429, {"Retry-After": "120"})
    one.after(429, {"Retry-After": "30"})  # a shorter one does not shorten it
    other.before()
    assert clock.waited == [120.0]
    one.after(429, {"RateLimit": '"api";r=0;t=55'})
    other.before()
    one.after(429, {})
    other.before()
    assert clock.waited[1:] == [55.0, 60.0]
    # Failures make pauses that grow until there is an answer, each process by itself.
    for _ in range(6):
        one.after(503, {})
        other.before()
    one.after(200, {})
    one.after(500, {})
    other.before()
    assert clock.waited[3:] == [2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 2.0]
    # A clock that goes wrong, or a record that is none, holds nobody for long.
    one.after(429, {"Retry-After": "100000"})
    assert read_pause(path, clock.now - 1e6) == 900.0
    for text in ("{", '{"format": "leconvert/hub-pause", "version": 1, "run_id": "-"}'):
        path.write_text(text)
        assert read_pause(path, clock.now) == 0.0
    # A host whose clock is a day ahead holds the others for one pause, and follows what it is told.
    path, ahead, clock = tmp_path / "other.json", Clock(), Clock()
    ahead.now += 86_400
    pace_by(ahead, path).after(429, {"Retry-After": "60"})
    pace = pace_by(clock, path)
    for _ in range(3):
        pace.before()
    assert clock.waited == [900.0]
    pace.after(429, {"Retry-After": "30"})
    pace.before()
    assert clock.waited == [900.0, 30.0]
