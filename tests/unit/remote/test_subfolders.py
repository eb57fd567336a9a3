"""Datasets in folders of one repository: fetched, converted, verified and pushed back."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.hub import WRITE_TOKEN, Fault, StandIn

from leconvert import fleet
from leconvert.cli import main
from leconvert.dataset.formats import v3
from leconvert.remote.provenance import known_origin
from leconvert.remote.push import push, push_folders
from leconvert.remote.repo import Repo
from leconvert.remote.source import resolve_revision
from leconvert.run.conversion import Conversion, WorkerOptions
from leconvert.support.errors import HubConflictError
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset
from leconvert.transfer.names import HubName, download_command
from leconvert.transfer.options import PushOptions, ScratchOptions

SPEC = DatasetSpec(episodes=2, frames=8, cameras=(CameraSpec(width=32, height=32),))
REPO = "tester/community"
ONE, OTHER = f"{REPO}/anna/pick", f"{REPO}/ben/deep/er/place"


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("folders") / "small", SPEC)


def files_below(root: Path, folder: str) -> dict[str, bytes]:
    return {
        f"{folder}/{path.relative_to(root).as_posix()}": path.read_bytes()
        for path in root.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def repo(hub: StandIn, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """A repository of two datasets in folders, and of files that are no dataset's."""
    monkeypatch.setenv("HF_TOKEN", WRITE_TOKEN)
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    files = {"README.md": b"# Community", "anna/notes.txt": b"of Anna"}
    files |= files_below(small, "anna/pick") | files_below(small, "ben/deep/er/place")
    hub.add_repo(REPO, files)
    return hub


def tree_of(hub: StandIn, folder: str = "") -> set[str]:
    there = hub.repo(REPO)
    paths = there.tree(there.branches["main"])
    return {path for path in paths if path.startswith(folder)}


def commits_of(hub: StandIn) -> int:
    return sum("/commit/" in request.path for request in hub.log if request.method == "POST")


@pytest.mark.parametrize(
    ("text", "name", "revision"),
    [
        ("ORG/NAME", "ORG/NAME", None),
        ("ORG/NAME/a/b", "ORG/NAME/a/b", None),
        ("ORG/NAME/a/b@v2.1", "ORG/NAME/a/b", "v2.1"),
        ("ORG/NAME/a b/c", "ORG/NAME/a b/c", None),
        ("ORG/NAME@feature/x", "ORG/NAME", "feature/x"),
        ("hf://datasets/ORG/NAME/a@refs/pr/1", "ORG/NAME/a", "refs/pr/1"),
        ("hf://datasets/ORG/NAME@main/a/b", "ORG/NAME/a/b", "main"),
        ("hf://datasets/ORG/NAME@v2.1/a", "ORG/NAME/a", "v2.1"),
        (f"hf://datasets/ORG/NAME@{'0' * 40}/a", "ORG/NAME/a", "0" * 40),
        ("https://huggingface.co/datasets/ORG/NAME/tree/main/a/b%20c", "ORG/NAME/a/b c", "main"),
        ("https://huggingface.co/datasets/ORG/NAME/tree/refs%2Fpr%2F1", "ORG/NAME", "refs/pr/1"),
        ("https://huggingface.co/datasets/ORG/NAME/", "ORG/NAME", None),
    ],
)
def test_names_are_read(text: str, name: str, revision: str | None) -> None:
    found = HubName.parse(text)
    assert found == HubName(name, revision)
    assert HubName.parse(str(found), bare=False) == found


@pytest.mark.parametrize(
    "text",
    [
        "NAME",
        "ORG/NAME/../a",
        "ORG//a",
        "/a/b",
        "./a/b",
        "a b/c",
        "https://huggingface.co/datasets/ORG/NAME/tree/main/a@b",
        "https://huggingface.co/datasets/ORG/NAME/blob/main/x",
        "https://example.org/datasets/ORG/NAME",
        "hf://ORG",
        "",
    ],
)
def test_what_is_no_name(text: str) -> None:
    assert HubName.parse(text) is None


def test_a_folder_is_converted_to_a_folder(repo: StandIn, tmp_path: Path) -> None:
    assert main(["convert", ONE, str(tmp_path / "out")]) == 0
    assert v3.Dataset(tmp_path / "out").episodes.length.tolist() == [8, 8]
    asked = [request.path for request in repo.log]
    assert not [path for path in asked if "/ben/" in path], "of no other dataset anything is read"
    origin = known_origin(tmp_path / "home" / ONE)
    assert origin is not None
    assert (origin.repo_id, origin.revision) == (ONE, "main")
    source = f"hf://datasets/{ONE}@{origin.commit}"
    assert main(["verify", str(tmp_path / "out"), "--source", source, "--bytes"]) == 0
    page = f"https://huggingface.co/datasets/{REPO}/tree/main/anna/pick"
    assert main(["verify", str(tmp_path / "out"), "--source", page]) == 0
    assert commits_of(repo) == 0


def test_a_folder_is_pushed_back_to_where_it_lay(
    repo: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = resolve_revision(ONE).commit
    before = tree_of(repo, "ben/") | {"README.md", "anna/notes.txt"}
    assert main(["convert", ONE]) == 0
    assert commits_of(repo) == 1
    assert tree_of(repo) >= before
    there = tree_of(repo, "anna/pick/")
    assert "anna/pick/meta/tasks.parquet" in there
    assert "anna/pick/meta/episodes.jsonl" not in there
    assert not repo.repo(REPO).tags, "a tag would name the version of all datasets"
    capsys.readouterr()
    # A second time there is nothing to do.
    shutil.rmtree(tmp_path / "home")
    assert main(["convert", ONE]) == 0
    assert "is already v3.0 on the Hub" in capsys.readouterr().out
    assert commits_of(repo) == 1
    # The v2.1 dataset stays in the history, by its commit.
    words = ["convert", ONE, str(tmp_path / "old"), "--revision", old, "--root"]
    assert main([*words, str(tmp_path / "v21")]) == 0
    assert (tmp_path / "v21/meta/episodes.jsonl").exists()


def test_check_says_how_a_folder_is_downloaded(
    repo: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "--repo-id", ONE]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"tester/community --include 'anna/pick/*' --local-dir {tmp_path}/home/{REPO}" in said
    shutil.copytree(make_dataset(tmp_path / "x", SPEC), tmp_path / "home" / ONE)
    assert main(["check", "--repo-id", ONE, "--plan-repairs"]) == 0


def test_a_result_is_pushed_to_another_folder_or_a_repo_of_its_own(
    repo: StandIn, tmp_path: Path
) -> None:
    assert main(["convert", ONE, str(tmp_path / "out")]) == 0
    assert main(["push", str(tmp_path / "out"), "--push-repo-id", f"{REPO}/anna/pick_v30"]) == 0
    assert "anna/pick_v30/meta/info.json" in tree_of(repo)
    assert "anna/pick/meta/episodes.jsonl" in tree_of(repo)
    assert main(["push", str(tmp_path / "out"), "--push-repo-id", "tester/alone"]) == 0
    assert set(repo.repo("tester/alone").tags) == {"v3.0"}


def test_a_folder_that_holds_another_dataset_is_not_replaced(repo: StandIn, tmp_path: Path) -> None:
    other = make_dataset(tmp_path / "other", DatasetSpec(episodes=1, frames=5, cameras=()))
    assert main(["convert", str(other), str(tmp_path / "out")]) == 0
    assert main(["push", str(tmp_path / "out"), "--push-repo-id", ONE]) == 17
    assert commits_of(repo) == 0


def test_a_push_goes_on_where_other_folders_change(
    repo: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["convert", ONE, str(tmp_path / "out")]) == 0
    changes = ["ben/deep/er/more.txt", "anna/pick_2/more.txt"]
    change_before_commits(repo, monkeypatch, *changes)
    options = PushOptions(repo_id=ONE)
    report = push(tmp_path / "out", options)
    assert report.commits == 1
    assert tree_of(repo, "anna/pick/meta/tasks.parquet")
    assert tree_of(repo) >= {*changes}
    assert main(["convert", OTHER, str(tmp_path / "other")]) == 0
    change_before_commits(repo, monkeypatch, "ben/deep/er/place/meta/info.json")
    with pytest.raises(HubConflictError):
        push(tmp_path / "other", PushOptions(repo_id=OTHER))
    assert tree_of(repo, "ben/deep/er/place/meta/tasks.jsonl")


def test_a_repository_is_searched_by_one_listing(
    repo: StandIn, tmp_path: Path, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repo.add_commit(REPO, files_below(small, "anna/pick/old"))
    repo.log.clear()
    for place in (f"hf://datasets/{REPO}", f"https://huggingface.co/datasets/{REPO}/tree/main"):
        assert main(["fleet", "find", place, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)["datasets"]
        revision = "" if place.startswith("hf:") else "@main"
        assert [one["name"] for one in found] == [f"{ONE}{revision}", f"{OTHER}{revision}"]
        assert [one["episodes"] for one in found] == [2, 2]
    size = sum(path.stat().st_size for path in small.rglob("*") if path.is_file())
    assert [one["size_bytes"] for one in found] == [2 * size, size]
    kinds = Counter("tree" if "/tree/" in request.path else "" for request in repo.log)
    assert kinds["tree"] == 2
    assert main(["fleet", "find", "hf://tester"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:2]] == [ONE, OTHER]


def _fleet(tmp_path: Path, push: PushOptions | None, **more: Path) -> fleet.FleetStatus:
    return fleet.run(
        [ONE, OTHER],
        work_dir=tmp_path / "work",
        conversion=Conversion(
            push=push,
            workers=WorkerOptions(max_workers=2),
            scratch=ScratchOptions(tmp_path / "scratch", 1 << 30),
        ),
        **more,
    )


def _states_of_a_fleet(tmp_path: Path, push: PushOptions | None, **more: Path) -> dict[str, str]:
    return {one.name: one.state.value for one in _fleet(tmp_path, push, **more).datasets}


def test_a_fleet_converts_folders_and_pushes_them_back(repo: StandIn, tmp_path: Path) -> None:
    states = _states_of_a_fleet(tmp_path, PushOptions())
    assert states == {ONE: "converted", OTHER: "converted"}
    assert commits_of(repo) >= 2
    for folder in ("anna/pick", "ben/deep/er/place"):
        assert f"{folder}/meta/tasks.parquet" in tree_of(repo)
        assert f"{folder}/meta/tasks.jsonl" not in tree_of(repo)


@pytest.mark.parametrize("push", [PushOptions(), None], ids=["pushed back", "kept here"])
def test_a_fleet_finds_folders_finished_where_other_folders_changed(
    repo: StandIn, tmp_path: Path, push: PushOptions | None
) -> None:
    more = {} if push else {"output_dir": tmp_path / "out"}
    _states_of_a_fleet(tmp_path, push, **more)
    repo.add_commit(REPO, {"anna/notes.txt": b"new"})
    commits = commits_of(repo)
    finished = {ONE: "finished before", OTHER: "finished before"}
    assert _states_of_a_fleet(tmp_path, push, **more) == finished
    assert commits_of(repo) == commits
    assert not list(tmp_path.glob("out/**/*_old*"))


@pytest.mark.parametrize("here", [False, True], ids=["on the Hub only", "also here"])
def test_a_fleet_finds_a_folder_finished_whose_card_changed(
    repo: StandIn, tmp_path: Path, here: bool
) -> None:
    more = {"output_dir": tmp_path / "out"} if here else {}
    _states_of_a_fleet(tmp_path, PushOptions(), **more)
    repo.add_commit(REPO, {"anna/pick/README.md": b"# edited"})
    finished = {ONE: "finished before", OTHER: "finished before"}
    assert _states_of_a_fleet(tmp_path, PushOptions(), **more) == finished


def test_a_folder_becomes_v30_without_moving_its_files(repo: StandIn, tmp_path: Path) -> None:
    assert main(["convert", "--repo-id", OTHER, "--layout", "episode-files"]) == 0
    assert "ben/deep/er/place/meta/episodes/chunk-000/file-000.parquet" in tree_of(repo)
    repo.log.clear()
    name = tmp_path / "home" / OTHER
    shutil.rmtree(name, ignore_errors=True)
    assert main(["convert", OTHER, str(tmp_path / "again"), "--force-conversion"]) == 0
    rows = pq.read_table(tmp_path / "again/data")
    assert rows.num_rows == 16


def test_the_client_s_command_downloads_a_folder() -> None:
    assert download_command("ORG/NAME/a b/c", "v2.1", "DIR") == (
        "hf download --repo-type dataset ORG/NAME --include 'a b/c/*' --revision v2.1 "
        "--local-dir DIR"
    )


def test_the_loader_reads_a_folder(repo: StandIn, tmp_path: Path) -> None:
    from leconvert.loading import EpisodeStream

    assert main(["convert", ONE]) == 0
    for url in (f"hf://datasets/{ONE}", f"hf://datasets/{REPO}@main/anna/pick"):
        assert sum(1 for _ in EpisodeStream(url)) == 16


@pytest.fixture
def converted(repo: StandIn, tmp_path: Path) -> Path:
    """Both datasets, converted to a folder and not pushed."""
    assert not _fleet(tmp_path, None, output_dir=tmp_path / "converted").set_aside
    repo.log.clear()
    return tmp_path / "converted" / REPO


def test_datasets_of_a_repository_are_pushed_in_one_commit(
    repo: StandIn, converted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = repo.repo(REPO).branches["main"]
    assert main(["push", str(converted), "--push-repo-id", REPO, "--dry-run"]) == 0
    assert "2 datasets would be pushed, in 1 commit" in capsys.readouterr().out
    assert commits_of(repo) == 0
    assert main(["push", str(converted), "--push-repo-id", REPO]) == 0
    assert "2 datasets pushed, in 1 commit" in capsys.readouterr().out
    assert commits_of(repo) == 1
    for folder in ("anna/pick", "ben/deep/er/place"):
        assert f"{folder}/meta/tasks.parquet" in tree_of(repo)
        assert f"{folder}/meta/tasks.jsonl" not in tree_of(repo)
    assert tree_of(repo) >= {"README.md", "anna/notes.txt"}
    assert not repo.repo(REPO).tags
    # Again, without a name: to where they came from, and nothing is left to do.
    assert main(["push", str(converted), "--json"]) == 0
    reports = json.loads(capsys.readouterr().out)["pushed"]
    assert [(one["repo_id"], one["added"]) for one in reports] == [(ONE, 0), (OTHER, 0)]
    assert commits_of(repo) == 1
    for name in (ONE, OTHER):
        words = ["verify", str(tmp_path / "converted" / name), "--bytes", "--source"]
        assert main([*words, f"hf://datasets/{name}@{before}"]) == 0


def test_nothing_is_pushed_where_one_of_several_is_refused(
    repo: StandIn, converted: Path, tmp_path: Path
) -> None:
    repo.add_commit(REPO, {"ben/deep/er/place/meta/info.json": b"{}"})
    assert main(["push", str(converted), "--push-repo-id", REPO]) == 17
    (converted / "anna/pick/meta/stats.json").write_bytes(b"{}")
    assert main(["push", str(converted / "anna/pick"), "--push-repo-id", ONE]) == 10
    assert commits_of(repo) == 0


def test_a_commit_holds_whole_datasets_and_no_more_than_it_can(
    repo: StandIn, converted: Path
) -> None:
    named = {name: converted / name.removeprefix(f"{REPO}/") for name in (ONE, OTHER)}
    with pytest.raises(HubConflictError, match="more than one commit can hold"):
        push_folders(named, PushOptions(commit_operations=5))
    reports = push_folders(named, PushOptions(commit_operations=20))
    assert commits_of(repo) == 2
    assert len({report.commit for report in reports}) == 2


def test_several_are_pushed_again_where_other_folders_were_quicker(
    repo: StandIn, converted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the second of two commits is refused."""
    change_before_commits(repo, monkeypatch, "", "carl/notes.txt")
    named = {name: converted / name.removeprefix(f"{REPO}/") for name in (ONE, OTHER)}
    push_folders(named, PushOptions(commit_operations=20))
    assert commits_of(repo) == 3
    assert tree_of(repo) >= {"anna/pick/meta/tasks.parquet", "carl/notes.txt"}
    assert "ben/deep/er/place/meta/tasks.parquet" in tree_of(repo)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("README.md", f"{OTHER} changed during this command."),
        ("data/chunk-000/episode_000000.parquet", f"{OTHER} changed after the converted commit"),
    ],
)
def test_a_conflict_of_several_names_the_dataset_that_changed(
    repo: StandIn, converted: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], path: str, said: str,
) -> None:  # fmt: skip
    change_before_commits(repo, monkeypatch, f"ben/deep/er/place/{path}")
    assert main(["push", str(converted), "--push-repo-id", REPO]) == 17
    assert said in capsys.readouterr().err
    assert "anna/pick/meta/tasks.parquet" not in tree_of(repo)


def change_before_commits(repo: StandIn, monkeypatch: pytest.MonkeyPatch, *paths: str) -> None:
    """Let somebody else add a file just before each of the next commits; an empty path is none."""
    changes, original = [*paths], Repo.commit

    def commit(self: Repo, *arguments: object, **options: object) -> str:
        if changes and (path := changes.pop(0)):
            repo.add_commit(REPO, {path: b"more"})
        return original(self, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Repo, "commit", commit)


def test_several_are_pushed_through_failures(repo: StandIn, converted: Path) -> None:
    """Also where the answer to a commit that was made is lost."""
    repo.break_requests(
        *(Fault("drop_after", path=path) for path in ("/commit/", "/refs")),
        *(Fault("status", path=path) for path in ("/preupload/", "/tree/")),
    )
    assert main(["push", str(converted), "--push-repo-id", REPO]) == 0
    assert "ben/deep/er/place/meta/tasks.parquet" in tree_of(repo)


def test_several_go_to_a_new_repository(repo: StandIn, converted: Path) -> None:
    assert main(["push", str(converted), "--push-repo-id", "tester/new/all"]) == 0
    there = repo.repo("tester/new")
    assert "all/anna/pick/meta/info.json" in there.tree(there.branches["main"])
    assert main(["push", str(converted), "--push-repo-id", REPO, "--create-pr"]) == 2
