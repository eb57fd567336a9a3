"""Sources that are fetched, by URL or from the Hub: the right one, whole, in a folder of ours."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from leconvert.cli.main import main
from leconvert.dataset.formats import read_provenance
from leconvert.transfer.store import download_dir
from leconvert.workdir.swap import source_dir
from tests.hub import Fault, StandIn
from tests.hub.access import WRITE_TOKEN
from tests.program import run_leconvert
from tests.trees import digest_of, snapshot

REPO = "tester/arm"
BROKEN = "data/chunk-000/episode_000001.parquet"


@pytest.fixture
def broken(small_source: Path, tmp_path: Path) -> Path:
    """A source of five episodes, one of which is damaged."""
    folder = Path(shutil.copytree(small_source, tmp_path / "broken"))
    (folder / BROKEN).write_bytes(b"PAR1")
    return folder


def convert(source: Path, out: Path, *more: str) -> int:
    return main(["convert", "--root", f"file://{source}", "--output", str(out), *more])


def episodes(out: Path) -> int:
    return int(json.loads((out / "meta/info.json").read_bytes())["total_episodes"])


def do_what_is_advised(said: str) -> None:
    subprocess.run(said.split("`")[1], shell=True, check=True)


def test_what_was_fetched_from_another_url_is_not_converted(
    broken: Path, small_source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert convert(broken, out) == 3
    before = snapshot(source_dir(out))
    capsys.readouterr()
    assert convert(small_source, out, "--on-bad-episode", "drop") == 5
    said = capsys.readouterr().err
    assert f"was downloaded from file://{broken}, not from file://{small_source}." in said
    assert not out.exists()
    do_what_is_advised(said)
    assert convert(small_source, out, "--on-bad-episode", "drop") == 0
    assert episodes(out) == 5
    assert snapshot(tmp_path / "out.leconvert-source.other") == before
    assert not source_dir(out).exists()


def test_a_source_that_was_mended_at_its_url_is_fetched_again(
    broken: Path, small_source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert convert(broken, out) == 3
    shutil.copy(small_source / BROKEN, broken / BROKEN)
    capsys.readouterr()
    assert convert(broken, out) == 0
    said = capsys.readouterr().err
    assert f"1 file is missing in {source_dir(out)}" in said
    assert f"changed at file://{broken} since" in said
    assert main(["verify", str(out), "--source", str(small_source), "--bytes"]) == 0


@pytest.mark.parametrize("by_hand", ["a folder", "a link", "records of version 1"])
def test_a_folder_that_was_not_fetched_is_neither_used_nor_removed(
    small_source: Path, broken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    by_hand: str,
) -> None:  # fmt: skip
    out = tmp_path / "out"
    mine = source_dir(out)
    if by_hand == "a link":
        mine.symlink_to(broken)
    else:
        shutil.copytree(broken, mine)
    if by_hand == "records of version 1":
        (mine / ".cache/leconvert").mkdir(parents=True)
        (mine / ".cache/leconvert/mirror.json").write_text(
            '{"format": "leconvert/mirror", "version": 1, "run_id": "-", "files": {}}\n'
        )
    before = snapshot(mine)
    assert convert(small_source, out) == 5
    said = capsys.readouterr().err
    assert "but no record says that it was downloaded from" in said
    assert snapshot(mine) == before
    do_what_is_advised(said)
    assert convert(small_source, out) == 0
    assert episodes(out) == 5


@pytest.fixture
def arm(hub: StandIn, small_source: Path) -> Iterator[StandIn]:
    hub.add_repo(REPO, small_source, tags=("v2.1",))
    return hub


def from_hub(*more: str) -> list[str]:
    return ["convert", "--repo-id", REPO, "--no-push", *more]


def test_a_folder_made_by_hand_is_not_taken_for_what_came_from_the_hub(
    arm: StandIn, broken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "arm"
    assert main(from_hub("--root", str(root))) == 0
    shutil.rmtree(tmp_path / "arm_old")
    mine = Path(shutil.copytree(broken, source_dir(root)))
    before = snapshot(mine)
    capsys.readouterr()
    again = from_hub("--root", str(root), "--force-conversion", "--on-bad-episode", "drop")
    assert main(again) == 5
    said = capsys.readouterr().err
    assert f"{mine} exists, but no record says that it was downloaded from {REPO}." in said
    assert snapshot(mine) == before
    do_what_is_advised(said)
    assert main(again) == 0
    assert episodes(root) == 5
    assert not mine.exists()


def test_a_result_of_a_url_that_is_in_place_is_not_made_again(
    small_source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert convert(small_source, out) == 0
    before = snapshot(tmp_path)
    capsys.readouterr()
    assert convert(small_source, out) == 0
    assert "There is nothing to do." in capsys.readouterr().out
    assert snapshot(tmp_path) == before
    assert convert(small_source, out, "--episodes", "0-2") == 5, "that is another result"
    assert "Nothing was changed." in capsys.readouterr().err
    assert snapshot(tmp_path) == before, "the download was of no use"


def test_a_result_of_a_url_that_was_pushed_is_not_made_or_refused_again(
    hub: StandIn,
    small_source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    assert convert(small_source, out, "--push-repo-id", "tester/new") == 16
    assert "no token is set" in capsys.readouterr().err
    assert not list(tmp_path.iterdir()), "it was refused before any work"
    monkeypatch.setenv("HF_TOKEN", WRITE_TOKEN)
    assert convert(small_source, out, "--push-repo-id", "tester/new") == 0
    before, head = snapshot(tmp_path), hub.repo("tester/new").branches["main"]
    assert convert(small_source, out, "--push-repo-id", "tester/new") == 0
    assert snapshot(tmp_path) == before
    assert hub.repo("tester/new").branches["main"] == head


@pytest.mark.parametrize("by_url", [False, True])
def test_a_result_that_was_made_without_a_push_is_pushed_by_the_same_command(
    hub: StandIn,
    small_source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    by_url: bool,
) -> None:
    monkeypatch.setenv("HF_TOKEN", WRITE_TOKEN)
    command = ["convert", f"{'file://' * by_url}{small_source}", str(tmp_path / "out")]
    assert main(command) == 0
    before = snapshot(tmp_path / "out")
    assert main([*command, "--push-repo-id", "tester/new"]) == 0
    assert snapshot(tmp_path / "out") == before
    pushed = hub.repo("tester/new")
    assert "meta/info.json" in pushed.tree(pushed.branches["main"])


@pytest.mark.parametrize("more", ["--restart", "--keep-work-dir"])
def test_nothing_is_downloaded_from_a_url_for_a_result_that_would_be_made_again(
    small_source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    more: str,
) -> None:
    out = tmp_path / "out"
    assert convert(small_source, out) == 0
    monkeypatch.setattr("leconvert.remote.stores.download_tree", None)
    assert convert(small_source, out, more) == 5
    assert f"{out} already holds a v3.0 dataset." in capsys.readouterr().err


def source_names(result: Path) -> list[str]:
    told = read_provenance(result)
    assert told is not None
    return [source.name for source in told.sources]


def test_a_result_names_the_dataset_at_the_url_and_not_our_folder(
    small_source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert convert(small_source, out, "--episodes", "0-2") == 0
    assert source_names(out) == [small_source.name]
    there = tmp_path / "there"
    by_path = ["convert", str(small_source), str(there), "--episodes", "0-2"]
    assert main(by_path) == 0
    assert digest_of(there) == digest_of(out), "the same bytes, whichever way the source came"


def test_a_result_names_the_repo_and_commit_and_not_our_folder(
    arm: StandIn, tmp_path: Path
) -> None:
    root = tmp_path / "arm"
    assert main(from_hub("--root", str(root))) == 0
    shutil.rmtree(tmp_path / "arm_old")
    assert main(from_hub("--root", str(root), "--force-conversion", "--episodes", "0-2")) == 0
    assert source_names(root) == [f"hf://datasets/{REPO}@{arm.repo(REPO).tags['v2.1']}"]


def test_a_snapshot_that_only_showed_there_is_nothing_to_do_does_not_stay(
    arm: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "made/out"
    command = from_hub("--output", str(out), "--engine", "local", "--num-workers", "1")
    assert main(command) == 0
    made = sorted(out.parent.iterdir())
    capsys.readouterr()
    assert main(command) == 0
    assert "There is nothing to do." in capsys.readouterr().out
    assert sorted(out.parent.iterdir()) == made


def test_a_converted_dataset_that_was_brought_from_the_hub_is_not_brought_or_refused_again(
    hub: StandIn, small_result: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.add_repo(REPO, small_result, tags=("v3.0",))
    command = from_hub("--root", str(tmp_path / "arm"))
    for _ in range(2):
        assert main(command) == 0
        assert "was downloaded to" in capsys.readouterr().out
        assert main([*command, "--dry-run"]) == 0
        capsys.readouterr()
    hub.log.clear()
    assert main(command) == 0
    assert hub.log == []


def test_nothing_is_brought_from_the_hub_for_a_target_that_is_not_free(
    arm: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "made/arm"
    assert main(from_hub("--root", str(root))) == 0
    before = snapshot(root.parent)
    arm.log.clear()
    assert main(from_hub("--root", str(root), "--force-conversion")) == 5
    assert f"{root}_old exists already" in capsys.readouterr().err
    assert snapshot(root.parent) == before
    assert not [request for request in arm.log if ".mp4" in request.path]


def test_what_an_earlier_call_brought_from_the_hub_is_brought_up_to_date(
    arm: StandIn, small_source: Path, tmp_path: Path
) -> None:
    root = tmp_path / "arm"
    assert main(from_hub("--root", str(root))) == 0
    (tmp_path / "arm_old").rename(source_dir(root))  # as a conversion that was killed leaves it
    (source_dir(root) / BROKEN).write_bytes(b"torn")
    arm.add_commit(REPO, {"notes.md": b"new"})
    arm.repo(REPO).tags["v2.1"] = arm.repo(REPO).branches["main"]
    arm.log.clear()
    assert main(from_hub("--root", str(root), "--force-conversion")) == 0
    fetched = {r.path.split("/resolve/")[1][41:] for r in arm.log if "/resolve/" in r.path}
    assert fetched - {"meta/info.json"} == {"notes.md", BROKEN}
    assert (root / "notes.md").read_bytes() == b"new"
    assert main(["verify", str(root), "--source", str(small_source)]) == 10, "notes.md is new"


def test_a_download_of_another_repo_is_not_converted_as_this_one(
    arm: StandIn, small_source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arm.add_repo("tester/leg", small_source)
    root, out = tmp_path / "arm", str(tmp_path / "out")
    assert main(from_hub("--root", str(root), "--output", out)) == 0
    other = ["convert", "--repo-id", "tester/leg", "--root", str(root), "--output", f"{out}2"]
    capsys.readouterr()
    assert main([*other, "--no-push"]) == 5
    assert f"{root} was downloaded from {REPO}, not from tester/leg." in capsys.readouterr().err


def test_two_downloads_of_one_repo_at_once_do_not_mix(
    arm: StandIn, small_source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command = from_hub("--root", str(tmp_path / "arm"), "--output", str(out))
    second: list[subprocess.CompletedProcess[str]] = []

    def start_another() -> None:
        second.append(run_leconvert(*command, env={**os.environ, "HF_HUB_OFFLINE": "0"}))

    arm.break_requests(Fault("none", path=f"/resolve/.*/{BROKEN}", interfere=start_another))
    assert main(command) == 0
    assert second[0].returncode == 12
    assert f"Another process is downloading a dataset to {tmp_path}/arm." in second[0].stderr
    assert main(["verify", str(out), "--source", str(small_source), "--bytes"]) == 0
    assert not download_dir(tmp_path / "arm").exists()


def test_two_fetches_from_one_url_at_once_do_not_mix(
    small_source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from leconvert.transfer import store
    from leconvert.transfer.urls import UrlStore

    out = tmp_path / "out"
    second: list[subprocess.CompletedProcess[str]] = []
    bring = UrlStore.fetch

    def bring_while_another_starts(*arguments: object, **options: object) -> None:
        if not second:
            command = ["convert", "--root", f"file://{small_source}", "--output", str(out)]
            second.append(run_leconvert(*command))
        bring(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "_THREADS", 1)
    monkeypatch.setattr(UrlStore, "fetch", bring_while_another_starts)
    assert convert(small_source, out) == 0
    assert second[0].returncode == 12
    assert main(["verify", str(out), "--source", str(small_source), "--bytes"]) == 0


def test_no_file_of_a_repo_has_the_name_of_another_ones_part(arm: StandIn, tmp_path: Path) -> None:
    named = {"x.bin": b"x" * 100_000, "x.bin.part": b"part" * 50_000}
    arm.add_commit(REPO, named)
    arm.repo(REPO).tags["v2.1"] = arm.repo(REPO).branches["main"]
    out = tmp_path / "out"
    assert main(from_hub("--root", str(tmp_path / "arm"), "--output", str(out))) == 0
    for name, content in named.items():
        assert (out / name).read_bytes() == content


PASSWORD = "gehe@im"


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["convert", "--root", "URL", "--output", "out"], 11),
        (["convert", "--root", "URL"], 2),
        (["convert", "--root", "URL", "--output", "out", "--dry-run"], 2),
        (["convert", "--root", "result", "--output", "URL"], 2),
        (["plan", "--root", "URL", "--output", "out", "--work-dir", "w"], 11),
        (["mirror", "result", "URL"], 11),
        (["verify", "result", "--source", "URL"], 11),
        (["report", "URL"], 2),
        (["check", "URL"], 2),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_passwords_in_urls_are_not_shown(
    small_result: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], command: list[str], code: int, as_json: bool,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    shutil.copytree(small_result, "result")
    url = f"ftp://me:{PASSWORD}@127.0.0.1:1/x?token=abc123"
    words = [url if word == "URL" else word for word in command]
    assert main([*words, *["--json"] * (as_json and command[0] != "report")]) == code
    said = capsys.readouterr()
    for text in (PASSWORD, "im@", "abc123"):
        assert text not in said.out + said.err
    left = [path for path in tmp_path.rglob("*") if path.is_file() and "result" not in path.parts]
    assert not any(PASSWORD.encode() in path.read_bytes() for path in left)


def test_a_url_is_recorded_without_its_password(
    broken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fsspec knows no store here that takes a password; this one ignores it."""
    from fsspec.implementations.local import LocalFileSystem

    monkeypatch.setattr(
        "fsspec.core.url_to_fs", lambda url: (LocalFileSystem(), url.partition("@host")[2])
    )
    url = f"sftp://me:{PASSWORD}@host{broken}"
    assert main(["convert", "--root", url, "--output", str(tmp_path / "out")]) == 3
    notes = (source_dir(tmp_path / "out") / ".cache/leconvert/mirror.json").read_text()
    assert json.loads(notes)["url"] == f"sftp://***@host{broken}"


@pytest.mark.parametrize(
    "command",
    [
        ["convert"],
        ["convert", "--no-push"],
        ["convert", "--engine", "local"],
        ["convert", "--dry-run"],
        ["plan", "--work-dir", "WORK"],
        ["merge", "tester/two", "--output", "OUT"],
    ],
    ids=" ".join,
)
def test_a_mistyped_name_leaves_no_folder(
    hub: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.setenv("HF_TOKEN", WRITE_TOKEN)
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert main([command[0], "tester/mistyped", *command[1:]]) == 15
    assert not list(tmp_path.iterdir())
