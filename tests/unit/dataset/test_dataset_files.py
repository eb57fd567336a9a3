"""Which files in a dataset's folder are the dataset's, for each of those who ask."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from leconvert.dataset.files import files_below, names_to_keep, published_files
from leconvert.support.errors import SourceError, UnreadableSourceError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in PLAIN:
        put(tmp_path / "dataset", name)
    return tmp_path / "dataset"


PLAIN = {
    "README.md",
    "calibration/top.yaml",
    "data/chunk-000/file-000.parquet",
    "meta/info.json",
    "videos/top/chunk-000/file-000.mp4",
}


def put(root: Path, name: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_bytes(os.fsencode(name))


# Whether each comes along, is sent, and keeps a folder from being deleted.
NAMES = {
    ".env": (True, False, True),
    "meta/.notes": (True, False, True),
    ".ssh/id_ed25519": (True, False, True),
    "calibration/.DS_Store.txt": (True, False, True),
    ".gitattributes": (True, False, True),
    ".git/config": (False, False, True),
    ".git": (False, False, True),  # a file, in a second work tree of a repository
    ".cache/mine/recording.mp4": (False, False, True),
    ".cache/huggingface/lerobot/me/arm/data/x.parquet": (False, False, True),
    ".cache/huggingface/token": (False, False, True),
    ".cache/huggingface/download/notes.txt": (False, False, True),
    ".cache/huggingface/download/data/x.parquet.metadata": (False, False, False),
    ".cache/huggingface/download/x.lock": (False, False, False),
    ".cache/huggingface/download/a.b.incomplete": (False, False, False),
    ".cache/huggingface/upload/x.metadata": (False, False, False),
    ".cache/huggingface/.gitignore": (False, False, False),
    ".cache/huggingface/CACHEDIR.TAG": (False, False, False),
    ".cache/leconvert/origin.json": (False, False, False),
    ".DS_Store": (False, False, False),
    "videos/top/.DS_Store": (False, False, False),
    "videos/top/._notes": (True, False, True),
    "data/Thumbs.db": (False, False, False),
    "desktop.ini": (False, False, False),
    ".leconvert-tree.json": (False, False, False),
    ".leconvert-upload.json": (False, False, False),
    ".leconvert-upload-0123456789abcdef.json": (False, False, False),
    "id_rsa": (True, True, True),
    "notes/\udcff.txt": (True, False, True),
    "notes/ä.txt": (True, True, True),
    "data/notes.txt": (True, True, True),
}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_beside_the_episodes(root: Path, name: str) -> None:
    put(root, name)
    along, sent, kept = ({*PLAIN, name} if answer else PLAIN for answer in NAMES[name])
    assert {path for path, is_file in files_below(root) if is_file} == along
    published = published_files(root)
    assert published.sizes.keys() == sent
    assert set(names_to_keep(root)) == kept
    if name not in sent and name in kept:
        assert any(f"{name}/".startswith(f"{path}/") for path in published.left_out)


def test_sizes_are_sorted_by_path(root: Path) -> None:
    assert list(published_files(root).sizes) == sorted(PLAIN)
    assert published_files(root).sizes["README.md"] == len("README.md")


@pytest.mark.parametrize("target", ["file", "folder"])
def test_a_link_that_leads_out_is_left_out_and_kept(
    root: Path, tmp_path: Path, target: str
) -> None:
    put(tmp_path, "secret/key")
    leads_to = tmp_path / "secret" / ("key" if target == "file" else "")
    (root / "notes").symlink_to(leads_to)
    published = published_files(root)
    assert published.sizes.keys() == PLAIN
    assert published.left_out == {"notes": "a link that leads out of the dataset"}
    assert set(names_to_keep(root)) == {*PLAIN, "notes"}


@pytest.mark.parametrize(
    "link", ["data", "videos/top", "meta/modality.json", "data/chunk-000/file-001.parquet"]
)
def test_a_part_behind_a_link_that_leads_out_is_not_sent(
    root: Path, tmp_path: Path, link: str
) -> None:
    place = root / link
    if place.exists():
        place.rename(tmp_path / "elsewhere")
    else:
        (tmp_path / "elsewhere").touch()
    place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SourceError, match=f"{link} is a link that leads out") as caught:
        published_files(root)
    assert caught.value.next_step is not None
    command = caught.value.next_step.split("`")[1].replace("COPY", str(tmp_path / "copy"))
    assert os.system(command) == 0
    assert published_files(tmp_path / "copy").sizes.keys() >= PLAIN


def test_links_within_the_dataset_are_followed_once(root: Path) -> None:
    (root / "videos/side").symlink_to("top")
    (root / "latest.yaml").symlink_to("calibration/top.yaml")
    (root / "calibration/up").symlink_to("..")
    (root / "calibration/twin").symlink_to("../twin")
    (root / "twin").mkdir()
    (root / "twin/back").symlink_to("../calibration")
    published = published_files(root)
    assert {"videos/side/chunk-000/file-000.mp4", "latest.yaml"} <= published.sizes.keys()
    assert published.left_out["calibration/up"] == "a link to a folder that it lies in"
    assert published.left_out["calibration/twin/back"] == "a link to a folder that it lies in"


def test_a_link_to_a_name_with_a_dot_is_not_sent_under_its_own(root: Path) -> None:
    put(root, ".env")
    put(root, ".ssh/key")
    (root / "settings").symlink_to(".env")
    (root / "keys").symlink_to(".ssh")
    published = published_files(root)
    assert published.sizes.keys() == PLAIN
    said = "a link to a name that begins with a dot"
    assert (published.left_out["settings"], published.left_out["keys"]) == (said, said)


def test_pipes_and_links_to_nothing_are_left_out(root: Path) -> None:
    os.mkfifo(root / "pipe")
    (root / "gone").symlink_to("nothing")
    (root / "loop").symlink_to("loop")
    assert published_files(root).left_out == dict.fromkeys(("gone", "loop", "pipe"), "no file")
    assert set(names_to_keep(root)) == {*PLAIN, "gone", "loop", "pipe"}


def test_a_snapshot_of_the_clients_cache_is_whole(root: Path, tmp_path: Path) -> None:
    repo = tmp_path / "datasets--me--arm"
    (repo / "blobs").mkdir(parents=True)
    snapshot = repo / "snapshots" / ("0" * 40)
    for number, name in enumerate(sorted(PLAIN)):
        blob = repo / "blobs" / str(number)
        (root / name).rename(blob)
        (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / name).symlink_to(os.path.relpath(blob, (snapshot / name).parent))
    assert published_files(snapshot).sizes.keys() == PLAIN
    (tmp_path / "link").symlink_to(snapshot)
    assert published_files(tmp_path / "link").sizes.keys() == PLAIN


def test_what_cannot_be_listed_is_not_taken_for_empty(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr("leconvert.dataset.files.os.scandir", refuse)
    for ask in (published_files, lambda place: list(names_to_keep(place))):
        with pytest.raises(UnreadableSourceError, match="permission is denied"):
            ask(root)


def test_what_finder_notes_on_a_file_is_not_the_datasets(root: Path) -> None:
    for name in ("._README.md", "videos/top/chunk-000/._file-000.mp4"):
        put(root, name)
        (root / name).write_bytes(bytes.fromhex("00051607") + b"notes")
    assert {path for path, is_file in files_below(root) if is_file} == PLAIN
    assert set(names_to_keep(root)) == PLAIN
    assert set(published_files(root).sizes) == PLAIN
