"""``leconvert fleet``: lists, dry runs, what is set aside, reruns, and workers that join or die."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from leconvert.fleet import Fleet, FleetDataset, FleetObserver, plan_fleet
from leconvert.model.values import LayoutOptions
from leconvert.run.conversion import Conversion, LeaseOptions
from leconvert.run.leasing import list_batches
from leconvert.support.text import GET_AGAIN
from leconvert.testing import CameraSpec, DatasetSpec, edit_info, edit_table, make_dataset
from leconvert.testing import with_column as column
from leconvert.workdir.records import WorkDir
from tests.plans import open_or_plan
from tests.program import Leconvert
from tests.trees import digest_of

ALONE = ("--max-workers", 1)
SPEC = DatasetSpec(episodes=3, frames=12, cameras=(CameraSpec(width=32, height=32),))


@dataclass(frozen=True)
class Lab:
    """Four datasets: two good ones, one with times off the grid, one without ``info.json``."""

    root: Path
    list: Path
    out: Path
    work: Path

    def command(self, *more: object) -> tuple[object, ...]:
        return ("fleet", self.list, "-o", self.out, "--work-dir", self.work, *more)


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    root = tmp_path / "in"
    make_dataset(root / "good", SPEC)
    shutil.copytree(root / "good", root / "more/good")
    shutil.copytree(root / "good", root / "late")
    edit_table(root / "late", 1, lambda table: column(table, "timestamp", _late(table)))
    shutil.copytree(root / "good", root / "torn")
    (root / "torn/meta/info.json").write_text("{")
    path = tmp_path / "list.txt"
    path.write_text("in/*\nin/more/good --name more/good --to v2.1\n")
    return Lab(root, path, tmp_path / "out", tmp_path / "work")


def _late(table: pa.Table) -> pa.Array:
    return pa.array([value + 0.011 for value in table["timestamp"].to_pylist()], pa.float32())


def states(told: str) -> dict[str, list[str]]:
    """Return the names of datasets by their state."""
    found: dict[str, list[str]] = {}
    for one in json.loads(told)["datasets"]:
        found.setdefault(one["state"], []).append(one["name"])
    return {state: sorted(names) for state, names in found.items()}


def test_a_fleet_converts_what_it_can_and_a_policy_what_it_allows(
    leconvert_here: Leconvert, lab: Lab, tmp_path: Path
) -> None:
    found = leconvert_here("fleet", "find", lab.root, code=0)
    assert f"{lab.root}/more/good --name more/good  # v2.1, 3 episodes" in found.stdout
    assert "#   helps: --retime" in found.stdout
    assert f"\n# {lab.root}/torn" in found.stdout
    assert "1 dataset is commented out: 1 not usable for the reason given." in found.stdout
    dry = leconvert_here(*lab.command("--dry-run"))
    assert dry.returncode == 8, "as the run"
    assert "2 datasets to convert: 6 episodes" in dry.stdout
    assert "2 datasets would be set aside" in dry.stdout
    assert re.search(r"^timestamps +1  --retime$", dry.stdout, re.MULTILINE)
    assert "  late: episode 1: data/chunk-000/episode_000001.parquet: " in dry.stderr
    assert "    → Write `--retime` after the dataset in LIST_FILE." in dry.stderr
    assert not lab.out.exists()
    assert not lab.work.exists()

    first = leconvert_here(*lab.command("-j", 2, "--json"), code=8)
    told = json.loads(first.stdout)
    halves = {"converted": ["good", "more/good"], "set aside": ["late", "torn"]}
    assert states(first.stdout) == halves
    by = {row["code"]: row["helps"] for row in told["set_aside_by"]}
    assert by == {"timestamps": "--retime", "unreadable-file": f"{GET_AGAIN}."}
    alone = tmp_path / "alone"
    leconvert_here("convert", lab.root / "more/good", alone, "--to", "v2.1", code=0)
    assert digest_of(lab.out / "more/good") == digest_of(alone)

    # Also what has no run of its own says where it stands.
    aside = leconvert_here("status", lab.work / "datasets/late")
    assert aside.returncode == 0, aside.stderr
    assert "state    set aside" in aside.stdout
    assert "→ Write `--retime` after the dataset in LIST_FILE." in aside.stdout
    one = json.loads(leconvert_here("status", lab.work / "datasets/late", "--json").stdout)
    assert (one["state"], one["remedies"]) == ("set aside", ["--retime"])
    run = leconvert_here("status", lab.work / "datasets/good").stdout
    assert run.startswith("dataset  good\nstate    converted\nrun      ")
    unknown = leconvert_here("status", lab.work / "datasets/other")
    assert (unknown.returncode, "has no dataset other" in unknown.stderr) == (7, True)

    policy = tmp_path / "policy.toml"
    policy.write_text('[[rule]]\ndatasets = "la*"\nfindings = "timestamps"\nflags = "--retime"\n')
    shutil.rmtree(lab.root / "torn")
    shutil.copytree(lab.root / "good", lab.root / "torn")
    before = {name: digest_of(lab.out / name) for name in ("good", "more/good")}
    second = leconvert_here(*lab.command("--policy", policy, "--json", *ALONE), code=0)
    halves = {"finished before": ["good", "more/good"], "converted": ["late", "torn"]}
    assert states(second.stdout) == halves
    assert before == {name: digest_of(lab.out / name) for name in before}
    leconvert_here("verify", lab.out / "late", "--source", lab.root / "late", code=0)

    refused = leconvert_here("clean", lab.work, code=7)
    assert f"leconvert clean {lab.work}/datasets" in refused.stderr
    leconvert_here("clean", lab.work / "datasets/good", code=0)

    # Without its records too: results are compared with their sources, not taken for done.
    shutil.rmtree(lab.work)
    third = leconvert_here(*lab.command("--policy", policy, "--json", *ALONE), code=0)
    assert set(states(third.stdout)) == {"finished before"}

    status = leconvert_here("status", lab.work, code=0)
    assert "4 finished before of 4" in status.stdout
    refused = leconvert_here("pack", lab.work, code=7)
    assert "is the work dir of a fleet" in refused.stderr
    nothing = leconvert_here("submit", lab.work, code=0)
    assert "Every dataset is converted or set aside. There is nothing" in nothing.stdout
    assert (
        "0 datasets were set aside" in leconvert_here("fleet", "suggest", lab.work, code=0).stdout
    )


def test_what_is_unchanged_is_passed_over_and_what_changed_is_converted_anew(
    leconvert_here: Leconvert, lab: Lab, tmp_path: Path
) -> None:
    lab.list.write_text("in/good\nin/more/good --name other\n")
    assert leconvert_here(*lab.command("-q", *ALONE)).returncode == 0
    folder = WorkDir(lab.work).dataset("good").root
    before = digest_of(lab.out / "good")

    # Nothing is opened of what is unchanged: its tables are no tables any more, of the same size.
    table = next((lab.root / "more/good/data").rglob("*.parquet"))
    facts, bytes_ = table.stat(), table.read_bytes()
    table.write_bytes(bytes(len(bytes_)))
    os.utime(table, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    edit_info(lab.root / "good", lambda info: info.update(robot_type="another"))
    again = leconvert_here(*lab.command("--json", *ALONE), code=0)
    assert states(again.stdout) == {"converted": ["good"], "finished before": ["other"]}
    (other,) = (one for one in json.loads(again.stdout)["datasets"] if one["name"] == "other")
    assert (other["episodes"], other["verified"]) == (3, "structure")
    alone = tmp_path / "alone"
    assert leconvert_here("convert", lab.root / "good", alone).returncode == 0
    assert digest_of(lab.out / "good") == digest_of(alone)
    former = lab.out.glob("good.former-*")
    assert [digest_of(place) for place in former] == [before]
    table.write_bytes(bytes_)

    # A former result is nobody's to remove: it is not in the result, byte by byte.
    places = set(lab.out.glob("good.former-*"))
    cleaned = leconvert_here("clean", lab.work, "--old", code=0)
    assert cleaned.stdout.count("kept former state") == 1
    assert "robot_type" in cleaned.stdout
    assert set(lab.out.glob("good.former-*")) == places

    # What somebody else changed is not replaced unasked, whatever the record says.
    (lab.out / "good/meta/note.txt").write_text("mine")
    kept = leconvert_here(*lab.command("--json", *ALONE))
    assert states(kept.stdout)["set aside"] == ["good"]
    (aside,) = (one for one in json.loads(kept.stdout)["datasets"] if one["name"] == "good")
    assert "--force-conversion" in aside["next_step"]
    lab.list.write_text("in/good --force-conversion\nin/more/good --name other\n")
    anew = leconvert_here(*lab.command("--json", *ALONE), code=0)
    assert states(anew.stdout)["converted"] == ["good"]
    info = json.loads((lab.out / "good/meta/info.json").read_bytes())
    assert info["robot_type"] == "another"
    (mine,) = set(lab.out.glob("good.former-*")) - places
    assert (mine / "meta/note.txt").read_text() == "mine"
    assert (folder / "result.json").is_file()


def test_wrong_lists_and_places_are_refused_before_any_work(
    leconvert_here: Leconvert, lab: Lab, small_source: Path, tmp_path: Path
) -> None:
    lab.list.write_text("in/good\nin/late --retim\n")
    refused = leconvert_here(*lab.command(), code=2)
    assert "list.txt, line 2: There is no option --retim; did you mean --retime?" in refused.stderr
    lab.list.write_text("in/good --accept nothing\n")
    assert "list.txt, line 1: " in leconvert_here(*lab.command()).stderr
    lab.list.write_text("in/good\n")
    over = leconvert_here("fleet", lab.list, "-o", lab.root, "--work-dir", lab.work)
    assert (over.returncode, "would replace a source of the fleet" in over.stderr) == (2, True)
    file = leconvert_here("fleet", lab.list, "-o", lab.list, "--work-dir", lab.work, code=2)
    assert f"{lab.list} is not a folder" in file.stderr
    folder = leconvert_here("fleet", lab.root, "-o", lab.out, "--work-dir", lab.work)
    assert "leconvert fleet find" in folder.stderr
    assert not lab.work.exists()
    one = tmp_path / "one"
    assert leconvert_here("plan", small_source, tmp_path / "res", "--work-dir", one).returncode == 0
    foreign = leconvert_here("fleet", lab.list, "-o", lab.out, "--work-dir", one)
    assert (foreign.returncode, "work dir of one conversion" in foreign.stderr) == (2, True)


def test_a_list_holds_odd_names_and_comments_on_those_that_no_list_or_table_can_hold(
    leconvert: Leconvert, tmp_path: Path
) -> None:
    root, bytes_name = tmp_path / "in", os.fsdecode(b"b\xff")
    names = ["#a b", "-c", "d[e]", "f\u2028g", "h'i\"", "j\\k", bytes_name, "l\nm", "n"]
    make_dataset(root / "n", SPEC)
    for name in names[:-1]:
        shutil.copytree(root / "n", root / name)
    found = leconvert("fleet", "find", root, code=0).stdout
    assert "9 datasets" in found
    assert "2 datasets are commented out: 2 not usable for the reason given." in found
    assert "b\\udcff is not UTF-8. No parquet file can be opened there." in found
    assert "The path has a line break, which no line of a list can hold." in found
    path = tmp_path / "list.txt"
    path.write_text(found)
    command = ("fleet", path, "-o", tmp_path / "out", "--work-dir", tmp_path / "work", *ALONE)
    done = states(leconvert(*command, "--json", code=0).stdout)
    assert done == {"converted": sorted(set(names) - {bytes_name, "l\nm"})}
    path.write_text("in/*\n")
    dry = leconvert(*command, "--dry-run", code=8)
    assert "1 dataset would be set aside" in dry.stdout
    told = leconvert(*command, code=8)
    assert "Rename the folder or file" in told.stdout
    assert "bug" not in told.stdout


def test_killed_workers_leave_results_as_of_single_conversions(
    leconvert: Leconvert, lab: Lab, tmp_path: Path
) -> None:
    for number in range(4):
        shutil.copytree(lab.root / "good", lab.root / f"set_{number}")
    alone = tmp_path / "alone"
    assert leconvert("convert", lab.root / "good", alone).returncode == 0
    lab.list.write_text("in/set_*\n")
    words = [sys.executable, "-m", "leconvert", *map(str, lab.command("-j", 2, "-q"))]
    more = ["--lease-seconds", "2", "--episodes-per-batch", "1"]
    killed = 0
    while killed < 2:
        fleet = subprocess.Popen([*words, *more], start_new_session=True)
        leases = WorkDir(lab.work)
        deadline = time.monotonic() + 60
        # Once a further dataset is in somebody's hands, all of them die.
        while time.monotonic() < deadline and fleet.poll() is None:
            run_id = leases.current_run_id()
            if run_id and len(list_batches(leases.run(run_id).leases_dir)) > killed:
                break
            time.sleep(0.005)  # other processes write files; nothing notifies of them
        _kill_with_workers(fleet)
        killed += 1
    done = leconvert(*lab.command("--json", "-j", 2), *more, code=0)
    assert set(states(done.stdout)) <= {"converted", "finished before"}
    for number in range(4):
        assert digest_of(lab.out / f"set_{number}") == digest_of(alone)
    assert sorted(path.name for path in lab.out.iterdir()) == [f"set_{n}" for n in range(4)]


def _kill_with_workers(fleet: subprocess.Popen[bytes]) -> None:
    # A stopped fleet reaps no worker, so each number is still a worker's. Workers end by themselves
    # if their fleet is gone.
    fleet.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, fleet.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    children = Path(f"/proc/{fleet.pid}/task/{fleet.pid}/children")
    workers = [int(pid) for pid in children.read_text().split()] if fleet.poll() is None else []
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
    fleet.kill()
    fleet.wait()


def test_workers_join_a_fleet_and_share_a_large_dataset(
    leconvert_here: Leconvert, lab: Lab, tmp_path: Path
) -> None:
    source = make_dataset(lab.root / "large", DatasetSpec(episodes=16, frames=6))
    layout = LayoutOptions(episodes_per_batch=1)
    fleet = plan_fleet(
        [FleetDataset("large", source, lab.out / "large", Conversion(layout=layout))], lab.work
    )
    # This process holds the dataset, and has planned it; it does nothing more.
    lease = fleet.board(LeaseOptions()).next_lease()
    folder = WorkDir(lab.work).dataset("large")
    states = [_state(fleet)]
    lab.out.mkdir()
    run = open_or_plan(source, lab.out / "large", folder.root, Conversion(layout=layout))
    states.append(_state(fleet))
    joined = leconvert_here("work", lab.work, "--max-idle-seconds", 0, code=0)
    assert "converted 0 datasets" in joined.stdout
    assert re.search(r"helped with others [1-9]", joined.stdout)
    assert len(list_batches(run.paths.done_dir)) == 16
    states.append(_state(fleet))
    assert states == [("planning", 0, 0), ("working", 0, 16), ("packing", 16, 16)]
    lease.hand_back("the test goes on")
    done = leconvert_here("work", lab.work)
    assert "converted 1 dataset," in done.stdout
    alone = tmp_path / "alone"
    assert leconvert_here("convert", source, alone, "-q").returncode == 0
    assert digest_of(lab.out / "large") == digest_of(alone)


def _state(fleet: Fleet) -> tuple[str, int, int]:
    (one,) = FleetObserver(fleet).look().datasets
    return one.state, one.done, one.batches


def test_a_report_tells_what_became_of_each_dataset(
    leconvert_here: Leconvert, lab: Lab, tmp_path: Path
) -> None:
    lab.list.write_text("in/good\nin/torn\nin/late --name '<b>late'\nin/cloned\n")
    tasks = shutil.copytree(lab.root / "good", lab.root / "cloned") / "meta/tasks.jsonl"
    tasks.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 7\n")
    dry = leconvert_here(*lab.command("--dry-run", "--json"))
    stops = {one["name"]: one["stops_at"] for one in json.loads(dry.stdout)["datasets"]}
    assert (stops["torn"], stops["cloned"]) == (["unreadable-file"], ["lfs-pointers"])
    assert leconvert_here(*lab.command("-q", *ALONE)).returncode == 8
    done = leconvert_here("fleet", "report", lab.work, "-o", tmp_path / "page.html", code=0)
    assert "4 datasets, 3 set aside (not converted)." in done.stdout
    with (tmp_path / "page.csv").open(encoding="utf-8", newline="") as file:
        rows = {row["name"]: row for row in csv.DictReader(file)}
    aside = {"<b>late", "cloned", "torn"}
    assert {name for name, row in rows.items() if row["state"] == "set aside"} == aside
    assert rows["good"]["state"] == "converted"
    assert rows["torn"]["findings"] == "unreadable-file (error, 1)"
    assert rows["cloned"]["findings"] == "lfs-pointers (error, 1)"
    assert (rows["good"]["episodes"], rows["good"]["verified"]) == ("3", "structure")
    assert len(rows["good"]["source_digest"]) == 64
    assert "timestamps (error, 1)" in rows["<b>late"]["findings"]
    assert rows["<b>late"]["remedies"] == "--retime"
    assert "after the dataset in LIST_FILE" in rows["<b>late"]["next_step"]
    assert rows["<b>late"]["message"].startswith("episode 1: data/chunk-000/episode_000001.parquet")
    assert all(row["next_step"] for row in rows.values() if row["state"] == "set aside")
    page = (tmp_path / "page.html").read_text()
    assert "&lt;b&gt;late" in page
    assert "<b>late" not in page
    assert "lfs-pointers" in page
    assert '<a href="page.csv">' in page
    inside = leconvert_here("fleet", "report", lab.work, "-o", lab.out / "good/page.html")
    assert (inside.returncode, "is inside the dataset" in inside.stderr) == (2, True)
    foreign = leconvert_here("fleet", "report", tmp_path, "-o", tmp_path / "page.html")
    assert (foreign.returncode, "is not the work dir of a fleet" in foreign.stderr) == (7, True)


def test_a_run_under_way_is_gone_on_with_or_given_up_where_that_is_asked_for(
    leconvert_here: Leconvert, lab: Lab, tmp_path: Path
) -> None:
    """As a dead worker leaves it: planned with what the policy allowed, or otherwise."""
    lab.list.write_text("in/good\nin/late\n")
    policy = tmp_path / "policy.toml"
    policy.write_text('[[rule]]\nfindings = "timestamps"\nflags = "--retime"\n')
    (lab.out).mkdir()
    runs = {}
    for name, flags in (("good", ("--episodes-per-batch", "1")), ("late", ("--retime",))):
        folder = WorkDir(lab.work).dataset(name)
        leconvert_here(
            "plan", lab.root / name, lab.out / name, "--work-dir", folder.root, *flags, code=0
        )
        runs[name] = folder.current_run_id()
    command = lab.command("--policy", policy, "--json", *ALONE)
    first = leconvert_here(*command, code=8)
    assert states(first.stdout) == {"set aside": ["good"], "converted": ["late"]}
    assert WorkDir(lab.work).dataset("late").current_run_id() == runs["late"]
    (aside,) = (one for one in json.loads(first.stdout)["datasets"] if one["name"] == "good")
    assert "--restart" in aside["next_step"]
    second = leconvert_here(*command, "--restart", code=0)
    assert states(second.stdout) == {"converted": ["good"], "finished before": ["late"]}
    assert WorkDir(lab.work).dataset("good").current_run_id() != runs["good"]


def test_a_suggested_policy_loses_nothing_and_says_what_each_rule_changes(
    leconvert_here: Leconvert, lab: Lab, tmp_path: Path
) -> None:
    lab.list.write_text("in/good\nin/late\nin/torn\nin/force\nin/lossy\nin/gap\n")
    for name in ("force", "lossy", "gap"):
        root = shutil.copytree(lab.root / "late", lab.root / name)
        force = {name: {"dtype": "float32", "shape": [3], "names": None}}
        edit_info(root, lambda info, force=force: info["features"].update(force))
    min((lab.root / "lossy").rglob("*.mp4")).unlink()
    policy = tmp_path / "policy.toml"
    policy.write_text('[[rule]]\nfindings = "timestamps"\nflags = "--retime"\n')
    assert leconvert_here(*lab.command("-q", *ALONE, "--policy", policy)).returncode == 8
    suggested = leconvert_here("fleet", "suggest", lab.work)
    assert suggested.returncode == 0, suggested.stderr
    assert "This policy converts" in suggested.stdout
    assert (
        "# 2 datasets: force, gap\n# Leave out declared features that no table" in suggested.stdout
    )
    assert "# 2 datasets stay set aside with this policy:" in suggested.stdout
    assert "\n# lossy: the video of episode 0, camera top, is missing: " in suggested.stdout
    policy.write_text(suggested.stdout)
    told = json.loads(leconvert_here("fleet", "suggest", lab.work, "--json").stdout)
    assert [rule["flags"] for rule in told["policy"]] == [["--retime"], ["--drop-feature {column}"]]
    assert told["converts"] == ["force", "gap"]
    assert {one["name"] for one in told["stays"]} == {"lossy", "torn"}
    again = leconvert_here(*lab.command("--json", *ALONE, "--policy", policy))
    assert states(again.stdout) == {
        "finished before": ["good", "late"], "converted": ["force", "gap"],
        "set aside": ["lossy", "torn"],
    }  # fmt: skip
    # What is left loses something: that is for a person to allow.
    told = json.loads(leconvert_here("fleet", "suggest", lab.work, "--json").stdout)
    assert (told["rules"], told["converts"]) == ([], [])
    assert [one["rule"]["flags"] for one in told["lossy"]] == [["--drop-feature {camera}"]]


def test_a_list_counts_every_finding(leconvert_here: Leconvert, tmp_path: Path) -> None:
    root = make_dataset(tmp_path / "in/many", DatasetSpec(episodes=24, frames=3, cameras=()))
    for episode in range(24):
        edit_table(root, episode, lambda table: column(table, "frame_index", table["index"]))
    found = leconvert_here("fleet", "find", tmp_path / "in").stdout
    assert "#   23 errors: frame-index (23)\n" in found
    record = json.loads(leconvert_here("fleet", "find", tmp_path / "in", "--json").stdout)
    assert record["datasets"][0]["errors"] == {"frame-index": 23}
