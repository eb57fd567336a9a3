"""A whole dataset into a folder: all of one commit under its name, or nothing."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.hub import Fault, StandIn
from tests.unit.remote.conftest import REPO

from leconvert.remote.provenance import Origin, known_origin
from leconvert.remote.source import already_converted, download, download_dataset
from leconvert.support.errors import HubError, InterruptedRunError, StorageError, TargetError
from leconvert.transfer.store import download_dir, part_in

FILES = {
    "meta/info.json": b'{"codebase_version": "v2.1"}',
    "data/a.parquet": b"a" * 100,
    "data/b.parquet": b"b" * 200,
    "notes/old.md": b"old",
}


@pytest.fixture
def repo(hub: StandIn) -> Origin:
    kept = hub.add_repo(REPO, FILES)
    return Origin(REPO, "main", kept.branches["main"])


def names(folder: Path) -> set[str]:
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and ".cache" not in path.parts
    }


def put(target: Path, files: dict[str, bytes]) -> None:
    """Leave files as a download that was interrupted does."""
    for name, content in files.items():
        path = download_dir(target) / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def leave_free(monkeypatch: pytest.MonkeyPatch, size_bytes: int) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=size_bytes))


def fetched(hub: StandIn) -> list[str]:
    return sorted(r.path.split("/resolve/")[1][41:] for r in hub.log if "/resolve/" in r.path)


def test_what_is_there_is_never_overwritten(repo: Origin, tmp_path: Path) -> None:
    target = tmp_path / "arm"
    target.write_text("mine")
    with pytest.raises(TargetError, match="exists already"):
        download_dataset(repo, target)
    assert target.read_text() == "mine"
    assert not download_dir(target).exists()


def test_a_download_that_is_stopped_has_no_name_yet_and_goes_on(
    hub: StandIn, repo: Origin, tmp_path: Path
) -> None:
    target, stop = tmp_path / "arm", threading.Event()
    hub.break_requests(Fault("none", path="/resolve/.*/data/b.parquet", interfere=stop.set))
    with pytest.raises(InterruptedRunError):
        download_dataset(repo, target, stop=stop)
    assert not target.exists()
    whole = names(download_dir(target) / "tree")
    hub.log.clear()
    download_dataset(repo, target)
    assert known_origin(target) == repo
    assert names(target) == {*FILES, ".gitattributes"}
    assert {name: (target / name).read_bytes() for name in FILES} == FILES
    # A file of which all bytes came, but after the stop no name, is not fetched again either.
    assert set(fetched(hub)) <= {*FILES, ".gitattributes"} - whole
    assert not download_dir(target).exists()


def test_a_stop_that_comes_after_the_last_file_leaves_all_of_them_for_the_next_call(
    hub: StandIn, repo: Origin, tmp_path: Path
) -> None:
    stop = threading.Event()
    stop.set()
    target = tmp_path / "arm"
    put(target, FILES)
    attributes = b"*.parquet filter=lfs diff=lfs merge=lfs -text\n"
    (download_dir(target) / "tree/.gitattributes").write_bytes(attributes)
    with pytest.raises(InterruptedRunError, match="is not complete yet"):
        download_dataset(repo, target, stop=stop)
    assert not target.exists()
    download_dataset(repo, target)
    assert fetched(hub) == []


def test_one_file_that_cannot_be_had_ends_the_download_and_the_others_stay(
    hub: StandIn, repo: Origin, tmp_path: Path
) -> None:
    target = tmp_path / "arm"
    gone = Fault("status", path="/resolve/.*/data/b.parquet", status=404, times=None)
    hub.break_requests(gone)
    with pytest.raises(HubError):
        download_dataset(repo, target)
    assert not target.exists()
    assert "data/b.parquet" not in names(download_dir(target) / "tree")


@pytest.mark.parametrize("wrong", [b"x" * 100, b"x" * 99], ids=["other bytes", "another size"])
def test_of_what_an_earlier_commit_left_only_equal_files_are_kept(
    hub: StandIn, repo: Origin, tmp_path: Path, wrong: bytes
) -> None:
    target = tmp_path / "arm"
    put(target, {**FILES, "data/a.parquet": wrong, "gone/x.md": b"gone"})
    download_dataset(repo, target)
    assert fetched(hub) == [".gitattributes", "data/a.parquet"]
    assert names(target) == {*FILES, ".gitattributes"}
    assert (target / "data/a.parquet").read_bytes() == FILES["data/a.parquet"]
    assert not (target / "gone").exists()


@pytest.mark.parametrize(
    "earlier",
    [{"data": b"a file then"}, {"data/a.parquet/part-0": b"a folder then"}],
    ids=["a file where a folder is now", "a folder where a file is now"],
)
def test_names_that_changed_their_kind_since_an_earlier_commit_are_no_obstacle(
    repo: Origin, tmp_path: Path, earlier: dict[str, bytes]
) -> None:
    target = tmp_path / "arm"
    put(target, earlier)
    download_dataset(repo, target)
    assert names(target) == {*FILES, ".gitattributes"}


def test_a_disk_without_room_is_told_before_anything_is_fetched(
    hub: StandIn, repo: Origin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_free(monkeypatch, 10)
    with pytest.raises(StorageError, match=f"10 bytes free, but {REPO} needs ") as caught:
        download_dataset(repo, tmp_path / "arm")
    assert caught.value.path == str(tmp_path)
    assert "--scratch-limit" in str(caught.value.next_step)
    assert fetched(hub) == []


def test_what_has_arrived_counts_as_room(
    repo: Origin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "arm"
    put(target, FILES)
    leave_free(monkeypatch, 100)
    download_dataset(repo, target)
    assert known_origin(target) == repo


def test_what_another_commit_left_is_no_room(
    repo: Origin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "arm"
    put(target, {"old.parquet": b"x" * 10_000})
    begun = part_in(download_dir(target), "data/b.parquet")
    begun.parent.mkdir(exist_ok=True)
    begun.write_bytes(b"b" * 150)
    begun.with_name("of another file").touch()
    leave_free(monkeypatch, 100)
    with pytest.raises(StorageError, match="has only 100 bytes free"):
        download_dataset(repo, target)
    assert names(download_dir(target)) >= {f"begun/{begun.name}"}, "a part is gone on with"
    assert [path.name for path in begun.parent.iterdir()] == [begun.name]


# --- folders that are there already ---------------------------------------------------------------


def test_an_empty_folder_is_filled(repo: Origin, tmp_path: Path) -> None:
    target = tmp_path / "mounted"
    target.mkdir()
    arrived = download(REPO, repo.commit, target)
    assert arrived.source == target
    assert names(target) == {*FILES, ".gitattributes"}
    assert known_origin(target) == Origin(REPO, repo.commit, repo.commit)


@pytest.mark.parametrize("note", ["", "{", '{"format": "leconvert/origin", "version": 99}'])
def test_a_note_that_cannot_be_read_says_nothing(repo: Origin, tmp_path: Path, note: str) -> None:
    target = tmp_path / "arm"
    download(REPO, repo.commit, target)
    (target / ".cache/leconvert/origin.json").write_text(note)
    assert known_origin(target) is None
    with pytest.raises(TargetError, match="but no record says that it is"):
        download(REPO, "main", target)
    assert download(REPO, None, target).arrival is None


def test_another_repos_main_is_not_this_ones(hub: StandIn, repo: Origin, tmp_path: Path) -> None:
    hub.add_repo("tester/leg", {**FILES, "notes/old.md": b"a leg"})
    target = tmp_path / "set"
    download("tester/leg", "main", target)
    with pytest.raises(TargetError, match="but no record says that it is") as caught:
        download(REPO, "main", target)
    assert caught.value.path == str(target)
    assert download("tester/leg", "main", target).source == target
    shutil.rmtree(target)
    download(REPO, "main", target)
    # A commit is the same whatever the repo is called: they can be renamed.
    assert download("tester/renamed", repo.commit, target).source == target


@pytest.mark.parametrize("place_is_free", [True, False])
def test_a_dataset_that_is_v3_already_is_only_told_where_it_must_not_be_fetched(
    hub: StandIn, tmp_path: Path, place_is_free: bool
) -> None:
    info = json.dumps({"codebase_version": "v3.0"}).encode()
    hub.add_repo(REPO, {"meta/info.json": info}, tags=("v3.0",))
    place = tmp_path / "arm"
    if not place_is_free:
        place.mkdir()
    said = already_converted(REPO, place, fetch=not place_is_free)
    assert said == f"{REPO} is already v3.0 on the Hub. --force-conversion converts it again."
    assert list(tmp_path.glob("arm/*")) == []
