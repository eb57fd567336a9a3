"""From a name on the Hub to a dataset here: which revision, with which token, from which cache."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from huggingface_hub import constants, snapshot_download
from tests.hub import READ_TOKEN, StandIn

from leconvert.cli import main
from leconvert.remote.provenance import Origin, provenance_path, read_origin
from leconvert.remote.source import check_convertible, download, find_converted, resolve_revision
from leconvert.support.errors import HubError, SourceError
from leconvert.workdir.records import WorkDir

REPO = "tester/arm"


def info_of(version: object, note: str = "") -> dict[str, bytes]:
    return {"meta/info.json": json.dumps({"codebase_version": version, "note": note}).encode()}


def note_in(folder: Path) -> str:
    return str(json.loads((folder / "meta/info.json").read_bytes())["note"])


@pytest.fixture
def history(hub: StandIn) -> dict[str, str]:
    """A repo whose commits, tags and branches all differ; commits by what they say."""
    repo = hub.add_repo(REPO)
    commits = {}
    for version, note, tag in (
        ("v2.0", "first", "v2.0"),
        ("v2.1", "second", "v2.1"),
        ("v2.1", "third", None),
    ):
        commits[note] = hub.add_commit(REPO, info_of(version, note))
        if tag:
            repo.tags[tag] = commits[note]
    repo.branches["other"] = commits["first"]
    commits["fourth"] = hub.add_commit(REPO, info_of("v2.1", "fourth"), branch="other")
    return commits


@pytest.mark.parametrize(
    ("revision", "note"),
    [
        (None, "second"),
        ("v2.0", "first"),
        ("v2.1", "second"),
        ("main", "third"),
        ("other", "fourth"),
        ("first", "first"),
    ],
)
def test_each_kind_of_revision_is_downloaded(
    history: dict[str, str], tmp_path: Path, revision: str | None, note: str
) -> None:
    asked = history.get(revision or "", revision)
    arrived = download(REPO, asked, tmp_path / "arm")
    assert note_in(arrived.source) == note
    assert arrived.arrival is not None
    assert arrived.arrival == Origin(REPO, asked or "v2.1", history[note])


def test_without_a_v2_tag_it_is_main(hub: StandIn, tmp_path: Path) -> None:
    hub.add_repo(REPO, info_of("v2.1", "only"), tags=("v1.6", "paper"))
    arrived = download(REPO, None, tmp_path / "arm")
    assert arrived.arrival is not None
    assert (note_in(arrived.source), arrived.arrival.revision) == ("only", "main")


def test_a_private_dataset_needs_its_token(
    hub: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    hub.add_repo(REPO, info_of("v2.1", "secret"), private=True)
    target = tmp_path / "arm"
    assert main(["convert", "--repo-id", REPO, "--root", str(target)]) == 15
    assert "or this token may not see it" in capsys.readouterr().err
    monkeypatch.setenv("HF_TOKEN", READ_TOKEN)
    assert note_in(download(REPO, None, target).source) == "secret"


def test_a_whole_conversion_ends_where_lerobot_looks(
    arm: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", "--repo-id", REPO, "--keep-work-dir", "--no-push"]) == 0
    home = tmp_path / "hf_home/lerobot/tester"
    assert json.loads((home / "arm/meta/info.json").read_bytes())["codebase_version"] == "v3.0"
    assert (home / "arm_old/meta/episodes.jsonl").is_file()
    assert not (home / "arm/.cache").exists()
    work = WorkDir(home / ".arm.leconvert-work")
    run = work.run(str(work.current_run_id()))
    commit = arm.repo(REPO).tags["v2.1"]
    assert read_origin(run.root) == Origin(REPO, "v2.1", commit)
    assert f"made          {home / 'arm'}" in capsys.readouterr().out


def test_what_is_here_already_is_not_asked_for(arm: StandIn, tmp_path: Path) -> None:
    download(REPO, None, tmp_path / "arm")
    before = len(arm.log)
    out = str(tmp_path / "out")
    assert (
        main(["convert", "--repo-id", REPO, "--root", str(tmp_path / "arm"), "--output", out]) == 0
    )
    assert arm.log[before:] == []


def test_files_in_the_clients_cache_are_not_fetched_again(arm: StandIn, tmp_path: Path) -> None:
    snapshot_download(REPO, repo_type="dataset", revision="v2.1", allow_patterns="videos/**")
    before = len(arm.log)
    download(REPO, None, tmp_path / "arm")
    asked = [r.path.split("/resolve/")[1] for r in arm.log[before:] if "/resolve/" in r.path]
    assert len([path for path in asked if "/data/" in path]) == 5
    assert not [path for path in asked if "/videos/" in path]


def test_offline_a_cached_snapshot_is_converted(
    arm: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot_download(REPO, repo_type="dataset", revision="v2.1")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    before = len(arm.log)
    assert main(["convert", "--repo-id", REPO, "--no-push"]) == 0
    home = tmp_path / "hf_home/lerobot/tester"
    assert json.loads((home / "arm/meta/info.json").read_bytes())["codebase_version"] == "v3.0"
    assert not (home / "arm_old").exists()
    assert arm.log[before:] == []


def test_offline_without_a_cache_there_is_nothing(
    arm: StandIn, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert main(["convert", "--repo-id", REPO, "--revision", "v2.1", "--no-push"]) == 15
    said = capsys.readouterr().err
    assert f"HF_HUB_OFFLINE is set, but {REPO} at v2.1 is not in the cache." in said


def test_a_dataset_that_the_hub_has_in_v3_is_downloaded_instead(
    arm: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deleted = ("meta/episodes.jsonl",)  # no v3.0 dataset has that
    arm.add_commit(REPO, info_of("v3.0", "converted"), deleted=deleted)
    arm.repo(REPO).tags["v3.0"] = arm.repo(REPO).branches["main"]
    target = tmp_path / "arm"
    asked = ["convert", "--repo-id", REPO, "--root", str(target)]
    assert main(asked) == 0
    assert note_in(target) == "converted"
    said = capsys.readouterr().out
    assert said == (
        f"{REPO} is already v3.0 on the Hub and was downloaded to {target}. "
        "--force-conversion converts it again.\n"
    )
    assert main([*asked, "--force-conversion"]) == 0
    assert json.loads((target / "meta/info.json").read_bytes())["total_episodes"] == 5
    assert note_in(tmp_path / "arm_old") == "converted"
    names = sorted(path.name for path in tmp_path.iterdir() if path.name not in ("hub", "hf_home"))
    assert names == [".arm.leconvert-provenance", "arm", "arm_old"]


def test_a_v3_tag_on_a_v2_dataset_does_not_count(arm: StandIn, tmp_path: Path) -> None:
    arm.repo(REPO).tags["v3.0"] = arm.repo(REPO).branches["main"]
    assert main(["convert", "--repo-id", REPO, "--root", str(tmp_path / "arm")]) == 0
    assert (tmp_path / "arm_old").is_dir()


@pytest.mark.parametrize(
    ("repo", "revision", "code", "said", "stream"),
    [
        ("tester/none", None, 15, "The Hub has no dataset tester/none", []),
        ("tester/arm", "v9", 15, "tester/arm has no revision v9.", ["--orchestrate"]),
        ("no name", None, 15, "'no name' is not the name of a repo on the Hub.", []),
        ("tester/empty", None, 3, "tester/empty at main is not a LeRobot dataset", []),
        ("tester/old", None, 3, "has codebase_version 'v1.6'", ["--orchestrate"]),
        ("tester/new", None, 3, "tester/new at main is already v3.0. There is nothing to", []),
    ],
)
def test_what_cannot_be_converted_is_told_in_one_sentence(
    arm: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str], repo: str,
    revision: str | None, code: int, said: str, stream: list[str],
) -> None:  # fmt: skip
    arm.add_repo("tester/empty", {"README.md": b"# Nothing\n"})
    arm.add_repo("tester/old", info_of("v1.6", "old"))
    arm.add_repo("tester/new", info_of("v3.0", "new"))
    asked = ["convert", "--repo-id", repo, "--root", str(tmp_path / "set"), *stream]
    assert main([*asked, *(["--revision", revision] if revision else [])]) == code
    told = capsys.readouterr().err
    assert said in told
    assert "Traceback" not in told
    assert not (tmp_path / "set").exists()


def test_a_url_on_the_hub_is_a_name_and_a_revision(
    history: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    code = main(["convert", "--root", f"hf://datasets/{REPO}@main", "--output", str(out)])
    assert code == 3, "it is no whole dataset"
    assert note_in(tmp_path / "hf_home/lerobot" / REPO) == "third"
    assert "Traceback" not in capsys.readouterr().err


def test_a_result_is_verified_against_the_hub(
    arm: StandIn, small_source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["convert", "--root", str(small_source), "--output", str(out)]) == 0
    command = ["verify", str(out), "--bytes", "--scratch-dir", str(tmp_path), "--source"]
    before = sorted(tmp_path.iterdir())
    assert main([*command, f"hf://datasets/{REPO}@v2.1"]) == 0
    said = capsys.readouterr().out
    assert f"{out} matches its source hf://datasets/{REPO}@v2.1. Compared: bytes, " in said
    record = provenance_path(out)
    assert sorted(tmp_path.iterdir()) == sorted([*before, record]), "nothing that was fetched stays"


# --- which commit is meant, and whether a dataset is there that can be converted ----------------


def test_of_the_tags_those_count_that_are_called_as_a_version_that_is_read(hub: StandIn) -> None:
    repo = hub.add_repo(REPO, info_of("v2.1"), tags=("v2.10", "v2.1.3", "v3.1", "paper", "v2.x"))
    assert resolve_revision(REPO).revision == "main"
    assert resolve_revision(REPO, to="v2.1").revision == "main"
    hub.add_commit(REPO, info_of("v2.0"))
    repo.tags.update({"v2.0": repo.branches["main"], "v2.1": repo.tags["v2.x"]})
    assert resolve_revision(REPO).revision == "v2.1"
    assert resolve_revision(REPO).commit == repo.tags["v2.1"]


def test_a_repo_without_tags_and_without_main_has_nothing_to_convert(hub: StandIn) -> None:
    repo = hub.add_repo(REPO)
    repo.branches["trunk"] = repo.branches.pop("main")
    with pytest.raises(HubError, match=f"{REPO} has no revision main"):
        resolve_revision(REPO)
    assert resolve_revision(REPO, "trunk").commit == repo.branches["trunk"]


@pytest.mark.parametrize(
    "content",
    [b"{", b"[]", b"{}", b'{"codebase_version": 3}', b"\xff\xfe"],
    ids=["cut off", "a list", "no version", "a number", "no text"],
)
def test_an_info_that_names_no_version_is_no_dataset(hub: StandIn, content: bytes) -> None:
    repo = hub.add_repo(REPO, {"meta/info.json": content}, tags=("v3.0",))
    found = Origin(REPO, "main", repo.branches["main"])
    with pytest.raises(SourceError) as caught:
        check_convertible(found, found.store())
    assert caught.value.message == (
        f"{REPO} at main is not a LeRobot dataset: it has no meta/info.json with a "
        "codebase_version."
    )
    assert find_converted(REPO) is None, "a tag alone makes no v3.0 dataset"


def test_the_tag_that_holds_a_v3_dataset_is_found(hub: StandIn) -> None:
    repo = hub.add_repo(REPO, info_of("v2.1"), tags=("v2.1", "v3.1"))
    repo.tags["v3.0"] = hub.add_commit(REPO, info_of("v3.0"))
    found = find_converted(REPO)
    assert found is not None
    assert (found.revision, found.commit) == ("v3.0", repo.tags["v3.0"])


def test_the_way_back_begins_with_the_newest_v3_tag(hub: StandIn) -> None:
    hub.add_repo(REPO, info_of("v2.0"), tags=("v2.0",))
    assert resolve_revision(REPO, to="v2.1").revision == "v2.0"
    commit = hub.add_commit(REPO, info_of("v3.0"))
    assert resolve_revision(REPO, to="v2.1").revision == "v2.0", "main is not named"
    hub.repo(REPO).tags["v3.0"] = commit
    found = resolve_revision(REPO, to="v2.1")
    assert (found.revision, found.commit) == ("v3.0", commit)
    assert resolve_revision(REPO).revision == "v2.0"
    assert find_converted(REPO, "v2.1") is None
    hub.repo(REPO).tags["v2.1"] = hub.add_commit(REPO, info_of("v2.1"))
    converted = find_converted(REPO, "v2.1")
    assert converted is not None
    assert converted.revision == "v2.1"
