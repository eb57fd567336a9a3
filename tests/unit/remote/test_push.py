"""What a push leaves on the Hub, and what it refuses to do."""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import HfApi, snapshot_download
from tests.hub import OTHER_TOKEN, Fault, StandIn
from tests.hub.store import Repo
from tests.trees import digest_of
from tests.unit.remote.conftest import REPO

from leconvert import LayoutOptions, convert
from leconvert.dataset.formats.v3 import write_repairs
from leconvert.model.repairs import DroppedEpisode, Repairs
from leconvert.remote.push import PushReport, push
from leconvert.remote.push_plan import Result
from leconvert.remote.repo import NOTHING
from leconvert.remote.repo import Repo as RemoteRepo
from leconvert.support.errors import (
    HubAccessError,
    HubConflictError,
    HubError,
    HubUnavailableError,
    LeconvertError,
    SourceError,
    UnreadableSourceError,
    UsageError,
    VerificationError,
)
from leconvert.support.progress import NO_PROGRESS, SilentProgress
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset
from leconvert.transfer.options import PushOptions
from leconvert.transfer.store import RemoteFile

Push = Callable[..., PushReport]
Client = Callable[..., HfApi]


class Said(SilentProgress):
    """Keeps what a user would be told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


@pytest.fixture
def repo(hub: StandIn, small_source: Path) -> Repo:
    """The repo with the small dataset, as it was before it was converted."""
    return hub.add_repo(REPO, small_source)


def _files(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


def _at(hub: StandIn, revision: str = "main") -> set[str]:
    kept = hub.repo(REPO)
    oid = kept.resolve(revision)
    assert oid is not None
    return set(kept.tree(oid))


def _writes(hub: StandIn) -> list[str]:
    return [
        f"{r.method} {r.path}"
        for r in hub.log
        if r.method not in ("GET", "HEAD") and not r.path.endswith("/validate-yaml")
    ]


def test_one_commit_replaces_the_old_dataset_and_keeps_what_is_not_its_own(
    hub: StandIn, pushed: Push, api_of: Client, small_source: Path, result: Path, tmp_path: Path
) -> None:
    repo = hub.add_repo(REPO, small_source, tags=("v2.1",))
    own = {"notes/plan.md": b"mine", "data/readme.txt": b"mine", "videos/overview.mp4": b"mine"}
    own[".gitignore"] = b"*.mp4\n"  # which leaves nothing out
    before, digest = hub.add_commit(REPO, own), digest_of(result)

    report = pushed(result)
    assert digest_of(result) == digest

    assert _at(hub) == _files(result) | set(own) | {".gitattributes", "README.md"}
    assert repo.branches["main"] == report.commit == repo.tags["v3.0"]
    assert repo.read_commit(report.commit)["parent"] == before
    assert _at(hub, "v2.1") == _files(small_source) | {".gitattributes"}
    old = _files(small_source) - {"README.md", "meta/modality.json"}
    assert report.deleted == len(old - _files(result))
    assert set(report.kept) == {*own, ".gitattributes"}
    assert (report.tag, report.commits, report.card) == ("set", 1, "written")
    copy = snapshot_download(
        REPO, repo_type="dataset", revision="v3.0", local_dir=tmp_path / "copy", token=False,
        allow_patterns=["data/chunk*", "meta/*", "videos/observation*"],
    )  # fmt: skip
    assert {p for p in _files(Path(copy)) if not p.startswith(".cache")} == (
        _files(result) - {"README.md"}
    )
    for path in _files(result) - {"README.md"}:
        assert (Path(copy) / path).read_bytes() == (result / path).read_bytes()


def test_after_an_appending_one_commit_sends_what_is_new_alone(
    hub: StandIn, pushed: Push, tmp_path: Path
) -> None:
    source, result = tmp_path / "source", tmp_path / "out"

    def append(episodes: int) -> None:
        shutil.rmtree(source, ignore_errors=True)
        camera = CameraSpec(width=32, height=32)
        make_dataset(source, DatasetSpec(episodes=episodes, frames=5, cameras=(camera,)))
        convert(source, output=result, layout=LayoutOptions(append=True), for_push=True)

    append(2)
    hub.add_repo(REPO, source)
    pushed(result)
    before = {path: (result / path).read_bytes() for path in _files(result)}
    append(3)
    hub.log.clear()
    report = pushed(result)
    new = {path for path in _files(result) if (result / path).read_bytes() != before.get(path)}
    old = {path for path in before if path.startswith(("data/", "videos/"))}
    assert len(old) == 2
    assert not old & new
    assert (report.commits, report.deleted, report.added) == (1, 0, len(new))
    assert report.added_bytes == sum((result / path).stat().st_size for path in new)
    assert len([line for line in _writes(hub) if "/commit/" in line]) == 1
    assert _at(hub) == _files(result) | {".gitattributes", "README.md"}

    # What somebody changed in an old file there is not replaced.
    hub.add_commit(REPO, {min(old): b"changed"})
    append(4)
    with pytest.raises(HubConflictError, match="already holds another"):
        pushed(result)


def test_a_dry_run_says_the_same_and_writes_nothing(
    hub: StandIn, repo: Repo, pushed: Push, result: Path
) -> None:
    told = pushed(result, token=False, dry_run=True)
    assert _writes(hub) == []
    done = pushed(result)
    for name in ("added", "added_bytes", "unchanged", "deleted", "kept", "tag", "card", "commits"):
        assert getattr(told, name) == getattr(done, name), name
    assert (told.commit, told.dry_run, done.dry_run) == (None, True, False)


def test_a_branch_is_made_and_main_stays(repo: Repo, pushed: Push, result: Path) -> None:
    main = repo.branches["main"]
    assert pushed(result, branch="v3", dry_run=True).tag == "none"
    report = pushed(result, branch="v3")
    assert repo.branches == {"main": main, "v3": report.commit}
    assert (report.tag, repo.tags) == ("none", {})
    repo.tags["v3.0"] = main
    assert pushed(result, branch="v3").tag == "none"
    assert repo.tags == {"v3.0": main}, "the tag is for"


def test_a_pull_request_is_left_to_others_and_found_again(
    hub: StandIn, repo: Repo, pushed: Push, result: Path
) -> None:
    main = repo.branches["main"]
    report = pushed(result, token=OTHER_TOKEN, create_pr=True)
    assert (report.pull_request, report.merged, report.tag) == (1, False, "none")
    assert (repo.branches["main"], repo.tags) == (main, {})
    assert repo.pulls[0]["status"] == "open"
    assert report.commit == repo.pulls[0]["head"]
    assert _at(hub, "refs/pr/1") == _files(result) | {".gitattributes"}
    assert pushed(result, token=OTHER_TOKEN, create_pr=True).pull_request == 1
    assert len(repo.pulls) == 1


def test_more_operations_than_a_commit_takes_go_through_a_pull_request(
    hub: StandIn, repo: Repo, pushed: Push, result: Path
) -> None:
    hub.limits.commit_operations = 4
    with pytest.raises(HubConflictError, match=r"pull requests always go to main"):
        pushed(result, branch="v3", commit_operations=4)
    report = pushed(result, commit_operations=4)
    assert (report.pull_request, report.merged, report.tag) == (1, True, "set")
    assert report.commits > 3
    assert _at(hub) == _files(result) | {".gitattributes"}
    assert repo.tags["v3.0"] == repo.branches["main"] == report.commit


def test_a_tag_elsewhere_moves_and_one_on_the_same_files_stays(
    hub: StandIn, pushed: Push, small_source: Path, result: Path
) -> None:
    repo = hub.add_repo(REPO, small_source, tags=("v2.1", "v3.0"))
    old = repo.tags["v3.0"]
    said = Said()
    report = pushed(result, progress=said)
    assert report.tag == "moved"
    assert repo.tags["v3.0"] == report.commit
    assert said.lines == [
        f"The tag v3.0 moves from {old[:12]} to {str(report.commit)[:12]}. For a moment "
        "the tag does not exist. If this command is interrupted then, run it again."
    ]
    hub.add_commit(REPO, {"notes.md": b"later"})
    assert pushed(result, dry_run=True).tag == "kept"
    hub.log.clear()
    assert pushed(result).tag == "kept"
    assert _writes(hub) == []


def test_a_change_between_look_and_commit_is_a_conflict(
    hub: StandIn, repo: Repo, pushed: Push, small_source: Path, result: Path
) -> None:
    first = repo.branches["main"]
    rule = Fault("none", path="/commit/", interfere=lambda: hub.add_commit(REPO, {"a.md": b"x"}))
    hub.break_requests(rule)
    with pytest.raises(HubConflictError, match="changed during this command") as caught:
        pushed(result)
    assert caught.value.exit_code == 17
    assert "run the same command again" in str(caught.value.next_step)
    assert _at(hub) == _files(small_source) | {".gitattributes", "a.md"}
    assert repo.tags == {}, "a tag on the commit of before would steer the next run there"
    second = repo.branches["main"]
    assert pushed(result).tag == "set"
    assert repo.tags == {"v2.1": second, "v3.0": repo.branches["main"]}
    assert second != first


def test_the_old_dataset_gets_its_tag_once_it_is_replaced(
    hub: StandIn, repo: Repo, pushed: Push, result: Path
) -> None:
    first = repo.branches["main"]
    lost = Fault("drop_after", method="POST", path=f"/tag/{first}")
    hub.break_requests(lost)
    seen: list[dict[str, str]] = []
    hub.watch = lambda r: seen.append(dict(repo.tags)) if "/commit/" in r.path else None
    assert pushed(result).tag == "set"
    assert seen == [{}]
    assert repo.tags == {"v2.1": first, "v3.0": repo.branches["main"]}
    assert not [line for line in _writes(hub)[-1:] if first in line]


@pytest.mark.parametrize(("others", "merged"), [(0, True), (2, False)])
def test_the_old_dataset_gets_its_tag_by_the_next_push_if_the_first_ended_behind_its_commit(
    hub: StandIn, repo: Repo, pushed: Push, result: Path, others: int, merged: bool
) -> None:
    first = repo.branches["main"]
    operations = {"commit_operations": 6} if merged else {}
    down = Fault("status", method="POST", path="/tag/", status=403, times=None)
    hub.break_requests(down)
    with pytest.raises(HubAccessError):
        pushed(result, **operations)
    assert repo.tags == {}
    hub.break_requests()
    for number in range(others):
        hub.add_commit(REPO, {f"notes-{number}.md": b"mine"})
    assert pushed(result).tag == "set"
    assert repo.tags == {"v2.1": first, "v3.0": repo.branches["main"]}


def test_a_repo_that_never_held_an_older_dataset_gets_no_tag_of_one(
    hub: StandIn, pushed: Push, result: Path
) -> None:
    repo = hub.add_repo("tester/new", {"a.md": b"mine"})
    hub.break_requests(Fault("status", method="POST", path="/tag/", status=403, times=None))
    with pytest.raises(HubAccessError):
        pushed(result, "tester/new")
    hub.break_requests()
    assert pushed(result, "tester/new").tag == "set"
    assert repo.tags == {"v3.0": repo.branches["main"]}


def test_a_repo_that_changed_since_it_was_converted_is_a_conflict(
    hub: StandIn, repo: Repo, pushed: Push, small_source: Path, noted: Callable[..., Path]
) -> None:
    commit = repo.branches["main"]
    result = noted(repo_id=REPO, revision="main", commit=commit)
    head = hub.add_commit(REPO, {"meta/tasks.jsonl": b"{}\n"})
    with pytest.raises(HubConflictError, match=": 1 file differs") as caught:
        pushed(result)
    assert caught.value.details == (
        "in the repo: 5 episodes and 44 frames, v2.1; the result: 5 episodes and 44 frames",
        (
            "18 files would be deleted and 1 replaced; they would stay only in the history "
            "of the repo"
        ),
        "differs: meta/tasks.jsonl",
        "1 commit since the conversion",
        f"{head[:12]} {repo.read_commit(head)['date'][:10]} a change",
    )
    hub.add_commit(REPO, {"meta/tasks.jsonl": (small_source / "meta/tasks.jsonl").read_bytes()})
    hub.add_commit(REPO, {"README.md": b"# Better\n"})
    report = pushed(result)
    card = (repo.folder / "blobs" / repo.tree(report.commit)["README.md"]["oid"]).read_text()
    assert card.count("# Better") == 1
    assert f"/tree/{commit}" in card


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"fps": 11}, "it has 11 frames per second, the result 30"),
        ({"codebase_version": "v1.6"}, "So it is unknown which files a push may replace"),
        ({"codebase_version": "v3.0"}, "already holds another v3.0 dataset"),
        ({"features": {}}, "it has no feature"),
    ],
)
def test_another_dataset_is_not_replaced(
    hub: StandIn, repo: Repo, pushed: Push, small_source: Path, result: Path,
    change: dict[str, object], said: str,
) -> None:  # fmt: skip
    info = json.loads((small_source / "meta/info.json").read_bytes()) | change
    hub.add_commit(REPO, {"meta/info.json": json.dumps(info).encode()})
    hub.log.clear()
    with pytest.raises(HubConflictError, match=said):
        pushed(result)
    assert _writes(hub) == []


def test_a_repo_that_is_no_dataset_keeps_its_files(
    hub: StandIn, pushed: Push, result: Path
) -> None:
    hub.add_repo(REPO, {"data/chunk-000/file-000.parquet": b"other", "train.csv": b"1"})
    with pytest.raises(HubConflictError, match=r"has a data/chunk-000/file-000.parquet of its own"):
        pushed(result)
    pushed(result, force=True)
    assert "train.csv" in _at(hub)


@pytest.mark.parametrize(
    ("path", "status", "code", "said", "written"),
    [
        ("", 403, "GatedRepo", "tester/arm is gated", []),
        ("/refs", 404, "RepoNotFound", "This token may not see", ["POST /api/repos/create"]),
    ],
    ids=["gated", "there but not seen"],
)
def test_a_repo_that_cannot_be_read_is_not_made_anew(
    hub: StandIn, pushed: Push, result: Path, path: str, status: int, code: str, said: str,
    written: list[str],
) -> None:  # fmt: skip
    hub.add_repo(REPO)
    refused = Fault("status", path=path, status=status, headers={"X-Error-Code": code}, times=None)
    hub.break_requests(refused)
    with pytest.raises(LeconvertError, match=said) as caught:
        pushed(result)
    assert caught.value.exit_code == (16 if status == 403 else 15)
    assert _writes(hub) == written


def test_what_the_hub_does_not_take_is_told(
    hub: StandIn, repo: Repo, pushed: Push, result: Path
) -> None:
    hub.add_commit(REPO, {"README.md": b"---\nlicense: {a: 1}\n---\n# Mine\n"})
    with pytest.raises(HubConflictError, match=r'head of README.md in tester/arm: "license" must'):
        pushed(result)
    hub.limits.large_bytes = 10_000
    with pytest.raises(HubError, match="The Hub does not accept a file of"):
        pushed(result, card=False)
    assert "meta/tasks.jsonl" in _at(hub)


@pytest.fixture
def v21_result(result: Path, tmp_path: Path) -> Path:
    """The v3.0 result converted back."""
    to = LayoutOptions(to="v2.1")
    return convert(result, output=tmp_path / "v21_result", layout=to, for_push=True).output


def test_a_v21_result_gets_the_tag_by_which_lerobot_0_3_finds_it(
    hub: StandIn, pushed: Push, api_of: Client, v21_result: Path, tmp_path: Path
) -> None:
    report = pushed(v21_result, "tester/back", create=True)
    repo = hub.repo("tester/back")
    assert repo.tags == {"v2.1": report.commit}
    assert repo.branches == {"main": report.commit}
    # It lists branches and tags, takes the one that is its own version, and loads that.
    refs = api_of().list_repo_refs("tester/back", repo_type="dataset")
    assert "v2.1" in [ref.name for ref in (*refs.branches, *refs.tags)]
    copy = Path(
        snapshot_download(
            "tester/back", repo_type="dataset", revision="v2.1",
            local_dir=tmp_path / "copy", token=False,
        )
    )  # fmt: skip
    for path in _files(v21_result) - {"README.md"}:
        assert (copy / path).read_bytes() == (v21_result / path).read_bytes()
    card = (copy / "README.md").read_text()
    assert "codebase version v2.1" in card
    assert "Converted to v2.1 from" in card
    hub.log.clear()
    assert pushed(v21_result, "tester/back").tag == "kept"
    assert _writes(hub) == []


def test_a_v21_result_does_not_replace_the_v3_dataset_that_it_was_made_of(
    hub: StandIn, pushed: Push, result: Path, v21_result: Path
) -> None:
    hub.add_repo(REPO, result, tags=("v3.0",))
    before = dict(hub.repo(REPO).branches)
    with pytest.raises(
        HubConflictError, match=r"holds a v3\.0 dataset, which a v2\.1 dataset would replace"
    ):
        pushed(v21_result)
    assert hub.repo(REPO).branches == before
    report = pushed(v21_result, branch="v2.1", force=True)
    assert hub.repo(REPO).branches == {**before, "v2.1": report.commit}
    assert list(hub.repo(REPO).tags) == ["v3.0"]
    next(v21_result.glob("videos/*/*/*.mp4")).unlink()
    with pytest.raises(
        VerificationError, match=r"is not a complete v2.1 dataset: it has \d+ error"
    ):
        pushed(v21_result)


def test_only_a_complete_dataset_is_pushed(
    hub: StandIn, pushed: Push, small_source: Path, result_copy: Path, tmp_path: Path
) -> None:
    v20 = tmp_path / "v20"
    shutil.copytree(small_source, v20)
    info = json.loads((v20 / "meta/info.json").read_bytes())
    (v20 / "meta/info.json").write_text(json.dumps(info | {"codebase_version": "v2.0"}))
    with pytest.raises(
        SourceError, match=r"is v2.0, but only v3.0 and v2.1 datasets can be uploaded"
    ):
        pushed(v20)
    with pytest.raises(UnreadableSourceError, match="a folder with 2 datasets below it"):
        pushed(tmp_path)
    next(result_copy.glob("videos/*/*/*.mp4")).unlink()
    with pytest.raises(
        VerificationError, match=r"is not a complete v3.0 dataset: it has 1 error\."
    ):
        pushed(result_copy)
    with pytest.raises(UsageError, match="exclude each other"):
        pushed(result_copy, branch="v3", create_pr=True)
    assert hub.log == []


def test_without_a_card_readme_stays_and_a_missing_one_comes_as_it_is(
    hub: StandIn, repo: Repo, pushed: Push, result: Path
) -> None:
    before = repo.tree(repo.branches["main"])["README.md"]
    assert pushed(result, card=False).card == "kept"
    assert repo.tree(repo.branches["main"])["README.md"] == before
    pushed(result, "tester/new", card=False)
    new = hub.repo("tester/new")
    assert new.tree(new.branches["main"])["README.md"] == before


def test_a_card_that_is_no_utf8_is_never_changed(
    hub: StandIn, pushed: Push, small_source: Path, noted: Callable[..., Path]
) -> None:
    latin = "# Größe\n".encode("latin-1")
    commit = hub.add_repo(REPO, small_source).branches["main"]
    result_copy = noted(repo_id=REPO, revision="main", commit=commit)
    hub.add_commit(REPO, {"README.md": latin})
    with pytest.raises(HubConflictError) as caught:
        pushed(result_copy)
    assert caught.value.message == (
        f"README.md in {REPO} is not UTF-8 text, which the Hub requires."
    )
    assert "meta/tasks.jsonl" in _at(hub), "nothing was committed"
    assert pushed(result_copy, card=False).card == "kept"
    assert content(hub, "main", "README.md") == latin
    (result_copy / "README.md").write_bytes(latin)
    with pytest.raises(HubConflictError, match="is not UTF-8 text"):
        pushed(result_copy, "tester/new", card=False)


def test_what_was_repaired_stands_in_the_card_without_any_record_beside_the_result(
    hub: StandIn, pushed: Push, result_copy: Path
) -> None:
    repairs = Repairs(
        dropped_episodes=(DroppedEpisode(3, "missing-file"),), computed_columns=("timestamp",)
    )
    write_repairs(result_copy, repairs)
    report = pushed(result_copy)
    card = content(hub, str(report.commit), "README.md").decode()
    assert f"- Changed: {', '.join(repairs.summary())}" in card


def test_a_card_is_brought_up_to_date_in_a_commit_of_its_own_and_the_tag_stays(
    hub: StandIn, repo: Repo, pushed: Push, result: Path
) -> None:
    first = pushed(result, card=False)
    second = pushed(result)
    assert (second.added, second.card, second.tag, second.commits) == (0, "written", "kept", 1)
    assert repo.branches["main"] == second.commit != first.commit
    assert repo.tags["v3.0"] == first.commit
    assert b"from a local dataset by leconvert" in content(hub, str(second.commit), "README.md")
    hub.log.clear()
    third = pushed(result)
    assert (third.card, third.tag, third.commit) == ("kept", "kept", second.commit)
    assert (third.added, third.commits, _writes(hub)) == (0, 0, [])


def test_a_main_that_changed_while_a_pull_request_was_filled_is_not_merged_into(
    hub: StandIn, repo: Repo, pushed: Push, small_source: Path, result: Path
) -> None:
    hub.limits.commit_operations = 4
    note = lambda: hub.add_commit(REPO, {"note.md": b"mine"})  # noqa: E731
    hub.break_requests(Fault("none", path="/commit/refs%2Fpr%2F1", interfere=note))
    with pytest.raises(
        HubConflictError, match="changed during the upload to pull request"
    ) as caught:
        pushed(result, commit_operations=4)
    assert "Close pull request 1" in str(caught.value.next_step)
    assert _at(hub) == _files(small_source) | {".gitattributes", "note.md"}
    assert (repo.tags, repo.pulls[0]["merged"]) == ({}, None)


def test_a_pull_request_that_somebody_else_opened_under_the_same_title_is_never_merged(
    hub: StandIn, repo: Repo, pushed: Push, api_of: Client, result: Path
) -> None:
    hub.limits.commit_operations = 40
    theirs = pushed(result, token=OTHER_TOKEN, create_pr=True)
    api_of(OTHER_TOKEN).upload_file(
        path_or_fileobj=b"print('not the dataset')\n",
        path_in_repo="arm.py",
        repo_id=REPO,
        repo_type="dataset",
        revision="refs/pr/1",
    )
    hub.limits.commit_operations = 4
    report = pushed(result, commit_operations=4)
    assert (theirs.pull_request, report.pull_request, report.merged) == (1, 2, True)
    assert repo.pulls[0]["title"] == repo.pulls[1]["title"]
    assert "arm.py" not in _at(hub)
    assert repo.pulls[0]["merged"] is None


def test_a_tag_that_somebody_else_makes_in_between_is_a_conflict(
    hub: StandIn, repo: Repo, pushed: Push, result: Path
) -> None:
    old = repo.branches["main"]
    theirs = Fault(
        "none", method="POST", path="/tag/", interfere=lambda: repo.tags.update({"v3.0": old})
    )
    hub.break_requests(theirs)
    with pytest.raises(HubConflictError) as caught:
        pushed(result)
    assert caught.value.message == (
        f"{REPO} changed during this command: the tag v3.0 was made and leads to {old[:12]} now."
    )
    assert repo.tags["v3.0"] == old
    assert pushed(result).tag == "moved"


@pytest.mark.parametrize(
    ("theirs", "said"), [("b" * 40, "moved and leads to bbbbbbbbbbbb now"), (None, "removed")]
)
def test_a_tag_that_somebody_moves_or_removes_during_the_upload_is_left_alone(
    hub: StandIn, pushed: Push, small_source: Path, result: Path, theirs: str | None, said: str
) -> None:
    repo = hub.add_repo(REPO, small_source, tags=("v2.1", "v3.0"))

    def interfere() -> None:
        del repo.tags["v3.0"]
        repo.tags.update({} if theirs is None else {"v3.0": theirs})

    hub.break_requests(Fault("none", path="/commit/", interfere=interfere))
    with pytest.raises(HubConflictError) as caught:
        pushed(result)
    assert caught.value.message == f"{REPO} changed during this command: the tag v3.0 was {said}."
    assert repo.tags.get("v3.0") == theirs
    assert not [line for line in _writes(hub) if "/tag/" in line]


@pytest.mark.parametrize(
    ("headers", "refused", "asked"),
    [({"Retry-After": "20"}, 4, 20.0), ({"RateLimit": '"api";r=0;t=280'}, 3, 280.0), ({}, 6, 0.0)],
    ids=["retry-after", "rate limit", "not said"],
)
def test_a_hub_that_asks_to_wait_is_waited_for(
    hub: StandIn, api_of: Client, result: Path, headers: dict[str, str], refused: int,
    asked: float,
) -> None:  # fmt: skip
    paused: list[float] = []
    said = Said()

    def run() -> PushReport:
        return push(
            result,
            PushOptions(repo_id="tester/new"),
            api=api_of(),
            pause=paused.append,
            progress=said,
        )

    hub.break_requests(Fault("status", status=429, headers=headers, times=refused))
    assert run().tag == "set"
    longest = [asked + min(2**failures / 2, 30.0) for failures in range(1, refused + 1)]
    assert all(most / 2 <= took <= most for took, most in zip(paused, longest, strict=True))
    assert min(paused) > asked, "spread out, so that not all come back together"
    assert all("Trying again in" in line for line in said.lines)
    assert ("as the Hub asks" in said.lines[0]) == bool(headers)


def test_a_hub_that_asks_for_too_long_is_not_waited_for(
    hub: StandIn, api_of: Client, result: Path
) -> None:
    paused: list[float] = []
    hub.break_requests(Fault("status", status=429, headers={"Retry-After": "400"}, times=None))
    with pytest.raises(HubUnavailableError) as caught:
        push(result, PushOptions(repo_id="tester/new"), api=api_of(), pause=paused.append)
    assert [took // 400 for took in paused] == [1, 1]
    assert caught.value.next_step == "Wait 6 min 40 s. Run the same command again."
    assert pickle.loads(pickle.dumps(caught.value)).wait_seconds == 400.0


def test_a_repo_without_any_file_takes_a_dataset(hub: StandIn, pushed: Push, result: Path) -> None:
    hub.add_repo(REPO)
    hub.add_commit(REPO, {}, deleted=(".gitattributes",))
    assert pushed(result).kept == ()
    assert _at(hub, "v3.0") == _files(result) | {"README.md"}


@pytest.mark.parametrize(
    ("status", "error", "said"),
    [
        (None, HubConflictError, "no longer has the converted commit"),
        (503, HubError, "The Hub failed at a request about"),
    ],
)
def test_a_commit_that_was_converted_and_is_gone_is_a_conflict_and_no_answer_is_not(
    hub: StandIn, repo: Repo, pushed: Push, noted: Callable[..., Path], status: int | None,
    error: type[LeconvertError], said: str,
) -> None:  # fmt: skip
    gone = "d" * 40  # the history was squashed since
    result = noted(repo_id=REPO, revision="main", commit=gone)
    if status is not None:
        hub.break_requests(Fault("status", path=f"/tree/{gone}", status=status, times=None))
    with pytest.raises(error, match=said):
        pushed(result)
    assert "v3.0" not in hub.repo(REPO).tags
    hub.break_requests()
    assert pushed(result, force=True).tag == "set"


def test_a_repo_whose_branches_are_all_gone_holds_nothing(hub: StandIn, api_of: Client) -> None:
    hub.add_repo(REPO).branches.clear()
    assert RemoteRepo(api_of(), REPO).look("main") is NOTHING


@pytest.mark.parametrize("info", [b"{", b"[1]", b"\xff\xfe"])
def test_an_info_that_cannot_be_read_describes_no_dataset_and_is_not_replaced(
    hub: StandIn, pushed: Push, api_of: Client, result: Path, info: bytes
) -> None:
    hub.add_repo(REPO, {"meta/info.json": info})
    state = RemoteRepo(api_of(), REPO).look("main")
    assert state is not None
    assert state.info == {}
    with pytest.raises(HubConflictError, match="has no codebase_version"):
        pushed(result)


def git_hash(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({}, []),
        ({"meta/info.json": None}, ["meta/info.json"]),
        ({"meta/info.json": RemoteFile("meta/info.json", 2, git_hash(b"{]"))}, ["meta/info.json"]),
        ({"meta/info.json": RemoteFile("meta/info.json", 3, git_hash(b"{}"))}, ["meta/info.json"]),
        ({"data/a.parquet": RemoteFile("data/a.parquet", 4, "f" * 64)}, ["data/a.parquet"]),
        ({"data/b.parquet": RemoteFile("data/b.parquet", 4, "f" * 64)}, []),
        ({"README.md": None}, []),
    ],
    ids=["same", "missing", "other text", "other size", "other hash", "hash not known", "card"],
)
def test_what_arrived_is_compared_by_hash_small_files_too(
    tmp_path: Path, change: dict[str, RemoteFile | None], wrong: list[str]
) -> None:
    contents = {"meta/info.json": b"{}", "data/a.parquet": b"rows", "data/b.parquet": b"rows"}
    for path, content in (contents | {"README.md": b"# A card"}).items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(content)
    result = Result(
        tmp_path, {"codebase_version": "v3.0"}, {"data/a.parquet": "a" * 64}, NO_PROGRESS
    )
    there = {
        "meta/info.json": RemoteFile("meta/info.json", 2, git_hash(b"{}")),
        "data/a.parquet": RemoteFile("data/a.parquet", 4, "a" * 64),
        "data/b.parquet": RemoteFile("data/b.parquet", 4, "b" * 64),
        "README.md": RemoteFile("README.md", 1),
    }
    files = {path: file for path, file in (there | change).items() if file is not None}
    if not wrong:
        result.check_arrived(REPO, "main", files)
        return
    with pytest.raises(HubConflictError, match=f"main of {REPO} is not the result") as caught:
        result.check_arrived(REPO, "main", files)
    assert list(caught.value.details) == wrong
    assert "The tag v3.0 was not set." in str(caught.value.next_step)


def test_files_of_one_size_are_told_apart_and_hidden_ones_left_out(
    hub: StandIn, repo: Repo, pushed: Push, result_copy: Path
) -> None:
    (result_copy / ".DS_Store").write_bytes(b"a file manager's")
    as_it_is = pushed(result_copy, dry_run=True, force=True)
    (result_copy / "meta/modality.json").write_bytes(b"[]\n")
    report = pushed(result_copy, force=True)
    assert (report.added, report.unchanged) == (as_it_is.added + 1, as_it_is.unchanged - 1)
    assert content(hub, "v3.0", "meta/modality.json") == b"[]\n"
    assert ".DS_Store" not in _at(hub)


def content(hub: StandIn, revision: str, path: str) -> bytes:
    repo = hub.repo(REPO)
    oid = repo.resolve(revision)
    assert oid is not None
    found = repo.content(repo.tree(oid)[path])
    assert found is not None
    return found.read_bytes()
