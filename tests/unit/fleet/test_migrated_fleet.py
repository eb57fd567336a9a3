"""Repositories that a fleet makes v3.0 where they are: nothing moves, whatever goes wrong.

What each migration commits is what a conversion in a folder writes, by path and by content.
"""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from huggingface_hub import snapshot_download
from tests.hub import WRITE_TOKEN, StandIn
from tests.hub.committed import contents, converted, hashes
from tests.hub.fixtures import CutOff, cut_after
from tests.hub.store import Repo
from tests.oddities import ODDITIES
from tests.trees import digest_of

from leconvert import fleet
from leconvert.api import convert
from leconvert.cli import main
from leconvert.fleet import FleetStatus, Policy, PolicyRule
from leconvert.model.repairs import RepairOptions
from leconvert.model.values import LayoutOptions
from leconvert.run.conversion import Conversion, WorkerOptions
from leconvert.testing import CameraSpec, DatasetSpec, edit_table, make_dataset
from leconvert.testing import with_column as column
from leconvert.transfer.options import PushOptions, ScratchOptions

LAYOUTS = ("episode-files", "overlay")
NAMES = ("tester/pick", "tester/place")
PADDING = 500_000


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = make_dataset(
        tmp_path_factory.mktemp("source") / "set",
        DatasetSpec(episodes=4, frames=(7, 4, 9, 5), cameras=(CameraSpec(width=64, height=48),)),
    )
    for clip in root.glob("videos/**/*.mp4"):
        with clip.open("ab") as file:  # what makes a clip large is none of its frames
            file.write(PADDING.to_bytes(4, "big") + b"free" + bytes(PADDING - 8))
    return root


@pytest.fixture(scope="module")
def expected(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """What a conversion in a folder makes, in each layout."""
    folder = tmp_path_factory.mktemp("expected")
    return {layout: hashes(converted(source, folder, layout)) for layout in LAYOUTS}


@pytest.fixture
def repos(hub: StandIn, source: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """Two repositories, of which one has its tag; clips are read by their headers alone."""
    monkeypatch.setenv("HF_TOKEN", WRITE_TOKEN)
    monkeypatch.setattr("leconvert.remote.sparse_snapshot._WHOLE_KEPT_BYTES", 0)
    hub.add_repo(NAMES[0], source, tags=("v2.1",))
    hub.add_repo(NAMES[1], source)
    return hub


def commits(repo: Repo) -> list[str]:
    return [oid for oid, _ in repo.history(repo.branches["main"])]


def run(
    tmp_path: Path,
    *names: str,
    layout: str = LAYOUTS[0],
    scratch: ScratchOptions | None = None,
    force: bool = False,
    **more: object,
) -> FleetStatus:
    conversion = Conversion(
        layout=LayoutOptions(layout=layout),
        push=PushOptions(create=False, force=force),
        workers=WorkerOptions(max_workers=1),
        scratch=scratch or ScratchOptions(tmp_path / "scratch", 1 << 30),
    )
    return fleet.run(names, work_dir=tmp_path / "work", conversion=conversion, **more)  # type: ignore[arg-type]


def states(status: FleetStatus) -> dict[str, str]:
    return {one.name: one.state.value for one in status.datasets}


def words(tmp_path: Path, layout: str, *more: object) -> list[str]:
    listed = tmp_path / "list.txt"
    listed.write_text("".join(f"{name}\n" for name in NAMES))
    said = ["fleet", listed, "--work-dir", tmp_path / "work", "--scratch-dir", tmp_path / "scratch"]
    return [str(word) for word in (*said, "--push-to-hub", "--layout", layout, *more)]


def moved(hub: StandIn) -> int:
    return sum(r.body_bytes + r.answer_bytes * (r.method != "HEAD") for r in hub.log)


def test_no_byte_moves_and_each_repo_gets_one_commit_and_both_tags(
    repos: StandIn,
    expected: dict[str, dict[str, str]],
    source: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    layout = LAYOUTS[0]  # each of them in tests/unit/remote/test_migration.py
    before = {name: repos.repo(name).branches["main"] for name in NAMES}
    assert main(words(tmp_path, layout, "--dry-run")) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert " whose files stay on the Hub: " in said
    assert "as scratch" not in said
    assert not (tmp_path / "work").exists()
    assert not (tmp_path / "scratch").exists()
    assert before == {name: repos.repo(name).branches["main"] for name in NAMES}

    repos.log.clear()
    assert main(words(tmp_path, layout, "-q", "--max-workers", 2)) == 0
    assert not [r.path for r in repos.log if r.path.endswith(".mp4") and r.status != 206]
    size = sum(path.stat().st_size for path in source.rglob("*") if path.is_file())
    assert moved(repos) < 0.2 * 2 * size
    for name in NAMES:
        repo = repos.repo(name)
        assert contents(repo, repo.branches["main"]) == expected[layout]
        assert commits(repo)[1] == before[name]
        assert repo.tags == {"v2.1": before[name], "v3.0": repo.branches["main"]}
    folder = snapshot_download(
        NAMES[0], repo_type="dataset", revision="v2.1", local_dir=tmp_path / "old"
    )
    for part in ("meta", "data", "videos"):
        assert digest_of(Path(folder) / part) == digest_of(source / part)
    assert not list((tmp_path / "scratch").rglob("*"))

    page = tmp_path / "page.html"
    assert main(["fleet", "report", str(tmp_path / "work"), "-o", str(page)]) == 0
    rows = list(csv.DictReader((tmp_path / "page.csv").read_text().splitlines()))
    assert [row["state"] for row in rows] == ["converted", "converted"]
    assert all(0 < int(row["sent_bytes"]) < int(row["received_bytes"]) < size for row in rows)
    assert all(row["pushed"].endswith(repos.repo(row["name"]).tags["v3.0"]) for row in rows)

    # Once more: what is migrated is known by its commit.
    again = len(repos.log)
    assert main(words(tmp_path, layout, "-q", "--max-workers", 1)) == 0
    asked = repos.log[again:]
    assert {r.path.rsplit("/", 1)[1] for r in asked if "/resolve/" in r.path} == {"info.json"}
    assert {r.method for r in asked} <= {"GET", "HEAD", "POST"}
    assert not [r for r in asked if "/commit/" in r.path or "/tag/" in r.path]
    shutil.rmtree(tmp_path / "work")
    assert main(words(tmp_path, layout, "-q", "--max-workers", 1)) == 0
    assert all(
        len(commits(repos.repo(name))) == len(commits(repos.repo(NAMES[1]))) for name in NAMES
    )


def test_files_that_are_not_fit_are_set_aside_and_fetched_alone_where_a_policy_says_so(
    repos: StandIn, expected: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    odd = tmp_path / "odd"
    ODDITIES["late start in some clips"](odd)
    repo = repos.add_repo("tester/odd", odd)
    first = repo.branches["main"]
    repos.log.clear()
    for layout, helps in (("overlay", "--layout episode-files"), (LAYOUTS[0], "--fetch-unfit")):
        done = run(tmp_path, "tester/odd", layout=layout)
        (aside,) = done.set_aside
        assert aside.error == "UnfitFilesError"
        assert {found["code"] for found in aside.findings} == {"rewritten-file"}
        assert aside.remedies == (helps,)
        assert done.why_set_aside() == [("rewritten-file", 1, helps)]
    assert repo.branches["main"] == first
    assert not [r.path for r in repos.log if r.path.endswith(".mp4") and r.status == 200]

    rule = PolicyRule(("--fetch-unfit",), ("tester/*",), ("rewritten-file",))
    done = run(tmp_path, "tester/odd", NAMES[0], policy=Policy((rule,)))
    assert set(states(done).values()) == {"converted"}, done.set_aside
    fetched = {r.path for r in repos.log if r.path.endswith(".mp4") and r.status == 200}
    assert 0 < len(fetched) < len([*odd.rglob("*.mp4")])
    convert(odd, output=tmp_path / "ours", layout=LayoutOptions(layout=LAYOUTS[0]))
    assert contents(repo, repo.branches["main"]) == hashes(tmp_path / "ours")
    pick = repos.repo(NAMES[0])
    assert contents(pick, pick.branches["main"]) == expected[LAYOUTS[0]]
    assert not list((tmp_path / "scratch").rglob("*"))


def test_what_a_policy_repairs_in_a_repo_is_written_anew_and_nothing_else_is_sent(
    repos: StandIn, source: Path, tmp_path: Path
) -> None:
    late = Path(shutil.copytree(source, tmp_path / "late"))

    def later(table: pa.Table) -> pa.Table:
        times = pc.cast(pc.add(table["timestamp"], 0.011), pa.float32())
        return column(table, "timestamp", times.combine_chunks())

    edit_table(late, 1, later)
    repo = repos.add_repo("tester/late", late)
    rules = (
        PolicyRule(("--retime",), findings=("timestamps",)),
        PolicyRule(("--fetch-unfit",), findings=("rewritten-file",)),
    )
    done = run(tmp_path, "tester/late", policy=Policy(rules[:1]))
    assert [one.error for one in done.set_aside] == ["UnfitFilesError"]
    done = run(tmp_path, "tester/late", policy=Policy(rules))
    (one,) = done.datasets
    assert (one.state.value, one.flags) == ("converted", ("--retime", "--fetch-unfit"))
    assert not [r for r in repos.log if r.path.endswith(".mp4") and r.status == 200]
    layout = LayoutOptions(layout=LAYOUTS[0])
    convert(late, output=tmp_path / "ours", layout=layout, repairs=RepairOptions(retime=True))
    assert contents(repo, repo.branches["main"]) == hashes(tmp_path / "ours")


def test_room_for_files_that_are_fetched_is_reserved_before(repos: StandIn, tmp_path: Path) -> None:
    odd = tmp_path / "odd"
    ODDITIES["late start in some clips"](odd)
    repos.add_repo("tester/odd", odd)
    scratch = ScratchOptions(tmp_path / "scratch", 9 * 1024**2)
    rule = PolicyRule(("--fetch-unfit",))
    policy = Policy((rule,))
    done = run(tmp_path, "tester/odd", policy=policy, scratch=scratch)
    assert states(done) == {"tester/odd": "converted"}
    tight = ScratchOptions(tmp_path / "scratch", 4096)
    (aside,) = run(tmp_path / "other", NAMES[0], scratch=tight).set_aside
    needed = int(str(aside.next_step).split("--scratch-limit ")[1].split()[0])
    done = run(tmp_path / "other", NAMES[0], scratch=ScratchOptions(tmp_path / "scratch", needed))
    assert states(done) == {NAMES[0]: "converted"}


def test_a_commit_on_the_way_is_migrated(repos: StandIn, source: Path, tmp_path: Path) -> None:
    """A run of the commit before is given up: what it would push is no longer there."""
    repo = repos.repo(NAMES[1])
    with cut_after(25), pytest.raises(CutOff):
        run(tmp_path, NAMES[1])
    assert len(repo.tags) == 0
    info = (source / "meta/info.json").read_text().replace('"robot_type": ', '"robot_type_": ')
    repos.add_commit(NAMES[1], {"meta/info.json": info.encode()})
    changed = repo.branches["main"]
    done = run(tmp_path, NAMES[1])
    assert states(done) == {NAMES[1]: "converted"}
    assert repo.tags["v2.1"] == changed
    assert commits(repo)[1] == changed


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = DatasetSpec(
        episodes=6, frames=(7, 4, 9, 5, 6, 8), cameras=(CameraSpec(width=64, height=48),)
    )
    return make_dataset(tmp_path_factory.mktemp("grown") / "set", spec)


def grow(repos: StandIn, grown: Path, where: str) -> str:
    """Push more episodes in v2.1 as an older LeRobot does, or to the tag alone; the commit."""
    repo = repos.repo(NAMES[0])
    head = repo.branches["main"]
    commit = repos.add_commit(NAMES[0], grown)
    if where == "tag":
        repo.branches["main"] = head
    repo.tags["v2.1"] = commit
    repo.save()
    return commit


def test_a_repo_that_grew_after_its_migration_is_migrated_anew(
    repos: StandIn, grown: Path, tmp_path: Path
) -> None:
    layout = LAYOUTS[1]
    run(tmp_path, NAMES[0], layout=layout)
    commit = grow(repos, grown, "main")
    before = repos.repo(NAMES[0]).branches["main"]
    repos.log.clear()
    assert states(run(tmp_path, NAMES[0], layout=layout)) == {NAMES[0]: "converted"}
    repo = repos.repo(NAMES[0])
    head = repo.branches["main"]
    assert contents(repo, head) == hashes(converted(grown, tmp_path, layout))
    assert commits(repo)[1] == before
    assert repo.tags == {"v2.1": commit, "v3.0": head}
    assert not [r.path for r in repos.log if r.path.endswith(".mp4") and r.body_bytes]


def test_without_records_a_repo_that_grew_is_not_taken_for_finished(
    repos: StandIn, grown: Path, tmp_path: Path
) -> None:
    """Nobody knows then whether what it has in v3.0 may go."""
    run(tmp_path, NAMES[0])
    shutil.rmtree(tmp_path / "work")
    assert states(run(tmp_path, NAMES[0])) == {NAMES[0]: "finished before"}
    grow(repos, grown, "tag")
    shutil.rmtree(tmp_path / "work")
    done = run(tmp_path, NAMES[0])
    assert states(done) == {NAMES[0]: "set aside"}
    [left] = done.set_aside
    assert left.error == "HubConflictError"
    assert "--force-push" in (left.next_step or "")
    forced = run(tmp_path, NAMES[0], force=True)
    assert states(forced) == {NAMES[0]: "converted"}
    repo = repos.repo(NAMES[0])
    assert contents(repo, repo.branches["main"]) == hashes(converted(grown, tmp_path, LAYOUTS[0]))
