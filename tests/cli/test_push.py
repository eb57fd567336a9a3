"""``leconvert push`` and the push that follows ``convert``, as a user meets them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import HfApi

from leconvert.cli.main import main
from leconvert.conversion import convert
from leconvert.hub import push as push_module
from leconvert.hub.origin import Origin, write_origin
from leconvert.hub.provenance import (
    Provenance,
    provenance_path,
    read_provenance,
    write_provenance,
)
from tests.hub import READ_TOKEN, WRITE_TOKEN, Fault, StandIn
from tests.hub.fixtures import api_of, hub, lone_client, pauses

__all__ = ["api_of", "hub", "lone_client", "pauses"]

REPO = "tester/arm"
Client = Callable[..., HfApi]


@pytest.fixture(scope="module")
def result(small_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("result") / "out"
    convert(small_source, output=target)
    return target


@pytest.fixture
def logged_in(hub: StandIn, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    monkeypatch.setenv("HF_TOKEN", WRITE_TOKEN)
    return hub


def _writes(hub: StandIn) -> list[str]:
    return [r.path for r in hub.log if r.method not in ("GET", "HEAD")]


def test_push_says_what_it_did(
    logged_in: StandIn, small_source: Path, result: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logged_in.add_repo(REPO, small_source)
    before = logged_in.add_commit(REPO, {"notes.txt": b"mine"})
    assert main(["push", str(result), "--push-repo-id", REPO, "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert told.startswith(f"Nothing was written. A push to {logged_in.endpoint}/datasets/{REPO}")
    assert main(["push", str(result), "--push-repo-id", REPO]) == 0
    said = capsys.readouterr()
    head = logged_in.repo(REPO).branches["main"]
    there = ("README.md", "meta/modality.json")
    new = [p for p in result.rglob("*") if p.is_file() and not p.as_posix().endswith(there)]
    size = sum(path.stat().st_size for path in new)
    assert said.out.splitlines() == [
        f"Pushed to {logged_in.endpoint}/datasets/{REPO}",
        f"  added         {len(new)} files, {size / 1024:.1f} KiB; 1 were there",
        "  deleted       18 files of the old dataset",
        f"  before        {before[:12]}, where the old dataset stays",
        "  not touched   .gitattributes, notes.txt",
        "  card          written",
        f"  commit        {head[:12]}, branch main",
        "  tag v3.0      set",
    ]
    assert "Traceback" not in said.err


def test_push_as_json(logged_in: StandIn, result: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["push", str(result), "--push-repo-id", "tester/new", "--private", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["created"], report["tag"], report["added"]) == (True, "set", 8)
    assert logged_in.repo("tester/new").private


@pytest.mark.parametrize(
    ("arguments", "token", "code", "said"),
    [
        (["--push-repo-id", REPO], None, 16, "needs a token, and there is none"),
        (["--push-repo-id", REPO], READ_TOKEN, 16, "You must use a token with write access"),
        (["--push-repo-id", "stranger/arm"], WRITE_TOKEN, 16, "don't have the rights to create"),
        ([], WRITE_TOKEN, 2, "It is not known where"),
    ],
)
def test_what_goes_wrong_is_a_sentence_and_a_code(
    hub: StandIn, small_source: Path, result: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], arguments: list[str], token: str | None, code: int,
    said: str,
) -> None:  # fmt: skip
    hub.add_repo(REPO, small_source)
    if token is not None:
        monkeypatch.setenv("HF_TOKEN", token)
    assert main(["push", str(result), *arguments]) == code
    lines = capsys.readouterr().err.splitlines()
    first = next(line for line in lines if line.startswith("leconvert: "))
    assert said in first
    assert lines[-1].startswith("  → ")


def test_without_a_name_it_goes_where_the_source_came_from_if_that_is_there(
    logged_in: StandIn, result: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = Path(shutil.copytree(result, tmp_path / "copy"))
    write_provenance(copy, Provenance(repo_id="tester/gone", revision="main", commit="a" * 40))
    assert main(["push", str(copy)]) == 15
    assert "tester/gone is no dataset on the Hub" in capsys.readouterr().err
    logged_in.add_repo("tester/gone")
    assert main(["push", str(copy)]) == 0
    assert "tag v3.0      set" in capsys.readouterr().out


def test_no_push_needs_no_token_and_asks_nothing(
    hub: StandIn, small_source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["convert", f"--root={small_source}", f"--output={out}", "--no-push"]) == 0
    assert "Hub" not in capsys.readouterr().out
    shutil.rmtree(out)
    assert main(["convert", f"--root={small_source}", f"--output={out}"]) == 0
    assert "nothing was pushed; a local dataset is pushed only on request" in (
        capsys.readouterr().out
    )
    assert hub.log == []
    assert not provenance_path(out).exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--no-push", "--push-to-hub"], "--no-push and --push-to-hub contradict each other"),
        (
            ["--push-to-hub=false", "--push-repo-id=a/b"],
            "--push-to-hub=false and --push-repo-id contradict",
        ),
        (["--push-to-hub=maybe"], "--push-to-hub takes true or false, not 'maybe'"),
        (["--push-to-hub"], "It is not said where to push to"),
    ],
)
def test_contradictions_are_refused_before_any_work(
    hub: StandIn, small_source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    arguments: list[str], said: str,
) -> None:  # fmt: skip
    out = tmp_path / "out"
    assert main(["convert", f"--root={small_source}", f"--output={out}", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert not out.exists()


def test_convert_pushes_and_the_card_says_where_it_came_from(
    logged_in: StandIn, source_copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repo = logged_in.add_repo(REPO, source_copy)
    work = tmp_path / "work"
    work.mkdir()
    commit = repo.branches["main"]
    write_origin(work, Origin(REPO, "main", commit), run_id="")
    lerobot = tmp_path / "lerobot"
    (lerobot / "tester").mkdir(parents=True)
    shutil.move(source_copy, lerobot / REPO)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_LEROBOT_HOME", str(lerobot))
        code = main(
            ["convert", "--repo-id", REPO, "--work-dir", str(work), "--data-file-size-in-mb=50"]
        )
    said = capsys.readouterr()
    assert code == 0, said.err
    assert "tag v3.0      set" in said.out
    assert repo.tags["v3.0"] == repo.branches["main"] != commit
    card = (repo.folder / "blobs" / repo.tree(repo.tags["v3.0"])["README.md"]["oid"]).read_text()
    assert f"[{REPO}](https://huggingface.co/datasets/{REPO}/tree/{commit}) at `main`" in card
    assert "`data_file_size_in_mb` = 50" in card


def test_a_push_that_failed_is_done_by_the_same_command(
    logged_in: StandIn, source_copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repo = logged_in.add_repo(REPO, source_copy)
    command = ["convert", f"--root={source_copy}", "--push-repo-id", REPO]
    rule = Fault(
        "none", path="/commit/", interfere=lambda: logged_in.add_commit(REPO, {"a.md": b"x"})
    )
    logged_in.break_requests(rule)
    assert main([*command, "--json"]) == 17
    record = json.loads(capsys.readouterr().out)
    assert record["frames"] == 44
    assert record["push"]["exit_code"] == 17
    assert f"`leconvert push {source_copy} --push-repo-id {REPO}`" in record["push"]["next_step"]

    assert main(command) == 0
    assert "converted before; only the push is left" in capsys.readouterr().out
    assert repo.tags["v3.0"] == repo.branches["main"]
    logged_in.log.clear()
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["push"]["tag"] == "kept"
    assert [path for path in _writes(logged_in) if "validate" not in path] == []


@pytest.mark.parametrize("force", [[], ["--force-conversion"]])
def test_the_same_command_closes_a_gap_between_two_tags(
    logged_in: StandIn, source_copy: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch, force: list[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(push_module, "_PAUSES_SECONDS", ())
    repo = logged_in.add_repo(REPO, source_copy, tags=("v3.0",))
    command = ["convert", f"--root={source_copy}", "--push-repo-id", REPO, *force]
    logged_in.break_requests(Fault("status", method="POST", path="/tag/", status=500))
    assert main(command) == 15
    assert repo.tags == {}
    assert f"`leconvert push {source_copy} --push-repo-id {REPO}`" in capsys.readouterr().err
    logged_in.log.clear()
    assert main(command) == 0
    assert repo.tags == {"v3.0": repo.branches["main"]}
    known = read_provenance(source_copy)
    assert known is not None
    assert known.pushed
    assert _writes(logged_in) == [f"/api/datasets/{REPO}/tag/{repo.branches['main']}"]


@pytest.mark.parametrize("force", [[], ["--force-conversion"]])
def test_a_dataset_from_the_hub_is_pushed_back_by_the_same_command(
    logged_in: StandIn, small_source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    force: list[str],
) -> None:  # fmt: skip
    repo = logged_in.add_repo(REPO, small_source, tags=("v2.1",))
    command = ["convert", "--repo-id", REPO]
    logged_in.break_requests(Fault("status", method="POST", path="/commit/", status=403))
    assert main(command) == 16
    assert "v3.0" not in repo.tags
    logged_in.log.clear()
    assert main([*command, *force]) == 0
    assert "converted before; only the push is left" in capsys.readouterr().out
    assert repo.tags["v3.0"] == repo.branches["main"] != repo.tags["v2.1"]
    assert not [r for r in logged_in.log if "/resolve/" in r.path and ".mp4" in r.path]
    names = sorted(path.name for path in (tmp_path / "hf_home/lerobot/tester").iterdir())
    assert names == [".arm.leconvert-provenance", "arm", "arm_old"]
