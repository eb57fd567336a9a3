"""Datasets by URL: fetched whole or not at all, sent whole or not to be seen."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from tests.s3 import S3Store, s3_store
from tests.trees import digest_of

from leconvert.cli import main
from leconvert.dataset.files import published_files
from leconvert.remote import stores
from leconvert.remote.stores import download_tree, upload_tree
from leconvert.support.errors import (
    InstallationError,
    InterruptedRunError,
    SourceChangedError,
    SourceError,
    StorageError,
    TargetError,
    UsageError,
    VerificationError,
)
from leconvert.support.extras import command_for_extra
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset
from leconvert.transfer.urls import open_store
from leconvert.workdir.swap import source_dir


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty place in a store."""
    if request.param == "file":
        yield f"file://{tmp_path}/store/dataset"
        return
    name = f"/{uuid.uuid4().hex}"
    yield f"memory:/{name}"
    fs = fsspec.filesystem("memory")
    if fs.exists(name):
        fs.rm(name, recursive=True)


@pytest.fixture(scope="module")
def result(small_result: Path) -> Path:
    return small_result


def put(url: str, folder: Path) -> None:
    store = open_store(url)
    for path in folder.rglob("*"):
        if path.is_file():
            name = store.path(path.relative_to(folder).as_posix())
            store.fs.makedirs(name.rpartition("/")[0], exist_ok=True)
            store.fs.put_file(str(path), name)


def names(url: str) -> list[str]:
    return [file.path for file in open_store(url).list_files()]


class Calls:
    """Watches, and breaks, a method of a file system."""

    def __init__(self, url: str, method: str, patch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        self.before: Callable[[str], object] = lambda _: None
        fs = open_store(url).fs
        original = getattr(type(fs), method)

        def watched(this: Any, first: str, second: str, *rest: Any, **options: Any) -> Any:
            name = second if method == "put_file" else first
            self.before(name)
            self.names.append(name)
            return original(this, first, second, *rest, **options)

        patch.setattr(type(fs), method, watched)


def fail(error: Exception) -> None:
    raise error


def test_a_dataset_is_fetched_and_appears_at_once(
    url: str, small_source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(url, small_source)
    target = tmp_path / "here"
    calls = Calls(url, "get_file", monkeypatch)
    calls.before = lambda _: target.exists() and pytest.fail("it is not complete yet")
    assert download_tree(url, target) == target
    found = {p.relative_to(target).as_posix() for p in target.rglob("*") if p.is_file()}
    found.remove(".cache/leconvert/mirror.json")
    assert found == set(names(url))
    assert all((target / n).read_bytes() == (small_source / n).read_bytes() for n in found)
    assert download_tree(url, target) == target
    assert len(calls.names) == len(found), "what is here is not fetched again"


def test_objects_that_stand_for_folders_are_no_files(
    url: str, small_source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(url, small_source)
    store = open_store(url)
    kind, find = type(store.fs), type(store.fs).find

    def find_with_markers(fs: Any, path: str, **options: Any) -> dict[str, Any]:
        marker = {"size": 0, "type": "file"}
        found: dict[str, Any] = find(fs, path, **options)
        return found | {f"{path}/": marker, f"{path}/data/": marker, f"{path}/empty/": marker}

    with monkeypatch.context() as patch:  # the fixture of the URL lists what it removes
        patch.setattr(kind, "find", find_with_markers)
        target = download_tree(url, tmp_path / "here")
    assert (target / "data/chunk-000/episode_000000.parquet").is_file()
    assert not (target / "empty").exists()


def test_an_interrupted_fetch_goes_on_with_what_is_missing_or_changed(
    url: str, small_source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(url, small_source)
    target, stop = tmp_path / "here", threading.Event()
    calls = Calls(url, "get_file", monkeypatch)
    calls.before = lambda _: len(calls.names) == 4 and stop.set()
    with pytest.raises(InterruptedRunError):
        download_tree(url, target, stop=stop)
    assert not target.exists()
    came = list(calls.names)
    store = open_store(url)
    changed = "meta/modality.json"
    store.fs.pipe_file(store.path(changed), b'{"changed": true}\n')
    calls.names.clear()
    calls.before = lambda _: None
    download_tree(url, target)
    assert (target / changed).read_bytes() == b'{"changed": true}\n'
    again = set(calls.names) & set(came)
    assert again <= {store.path(changed)}
    assert len(calls.names) >= len(names(url)) - len(came)


def test_a_file_that_changes_meanwhile_is_not_mixed_in(
    url: str, small_source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(url, small_source)
    store = open_store(url)
    calls = Calls(url, "get_file", monkeypatch)

    def change(_: str) -> None:
        if not calls.names:
            store.fs.pipe_file(store.path("meta/new.json"), b"{}")

    calls.before = change
    with pytest.raises(SourceChangedError) as caught:
        download_tree(url, tmp_path / "here")
    assert caught.value.details == ("meta/new.json: it is new or changed",)
    assert not (tmp_path / "here").exists()
    assert (download_tree(url, tmp_path / "here") / "meta/new.json").is_file()


# A byte that changes on its way, of an object of which the store keeps no checksum.


@pytest.fixture(scope="module")
def tiny_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Few files, as the store takes a while for each; do not change them."""
    camera = CameraSpec(key="observation.images.top", width=32, height=32)
    spec = DatasetSpec(episodes=2, frames=4, cameras=(camera,))
    return make_dataset(tmp_path_factory.mktemp("tiny") / "source", spec)


@pytest.fixture(scope="module")
def served() -> Iterator[S3Store]:
    with s3_store() as store:
        yield store


@pytest.fixture
def bucket(served: S3Store) -> Iterator[S3Store]:
    """A bucket that no other test wrote to, and that changes nothing."""
    served.alter = lambda _, body: body
    yield served
    fs = open_store(f"s3://{served.bucket}").fs
    fs.invalidate_cache()
    fs.rm(f"{served.bucket}/set", recursive=True)
    served.forget()


CLIP = "videos/chunk-000/observation.images.top/episode_000001.mp4"


def flipping(times: int, at: Callable[[], int] = lambda: 0) -> Callable[[str, bytes], bytes]:
    """Change a byte of the clip's first answers."""
    left = [times]

    def alter(key: str, body: bytes) -> bytes:
        if not key.endswith(CLIP) or not left[0]:
            return body
        left[0] -= 1
        changed = bytearray(body)
        changed[at()] ^= 1
        return bytes(changed)

    return alter


def test_a_byte_that_changes_on_its_way_is_noticed_by_the_etag_and_the_file_read_again(
    bucket: S3Store, tiny_source: Path, tmp_path: Path
) -> None:
    """The file came in parts; the next test has one that came whole."""
    url = bucket.upload(tiny_source, "set", checksums=False)
    part_bytes = 5 * 2**20
    content = random.Random(1).randbytes(2 * part_bytes + 99)
    (tmp_path / "large").write_bytes(content)
    path = f"{bucket.bucket}/set/{CLIP}"
    open_store(url).fs.put_file(str(tmp_path / "large"), path, chunksize=part_bytes)
    bucket.alter = flipping(1, at=lambda: 7)
    bucket.forget()
    target = download_tree(url, tmp_path / "here")
    assert (target / CLIP).read_bytes() == content
    assert bucket.sent_bytes[f"set/{CLIP}"] == 2 * len(content)


def test_a_file_that_stays_other_than_its_etag_says_is_an_error(
    bucket: S3Store, tiny_source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = bucket.upload(tiny_source, "set", checksums=False)
    bucket.alter = flipping(99)
    assert main(["convert", url, str(tmp_path / "out")]) == 3
    assert "does not have the listed content" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    bucket.alter = flipping(0)
    assert main(["convert", url, str(tmp_path / "out")]) == 0


def test_a_file_that_changes_while_it_arrives_is_never_half_of_each(
    bucket: S3Store, tiny_source: Path, tmp_path: Path
) -> None:
    """The library goes on where a body breaks off, whatever the object is by then."""
    content = random.Random(1).randbytes(3_000_000)
    url = bucket.upload(tiny_source, "set", checksums=False)
    store, path = open_store(url), f"{bucket.bucket}/set/{CLIP}"
    store.fs.pipe_file(path, content)
    other = content[::-1]
    bodies = 0

    def break_off(key: str, body: bytes) -> bytes:
        nonlocal bodies
        if not key.endswith(CLIP):
            return body
        bodies += 1
        if bodies > 1:
            return body
        open_store(url).fs.pipe_file(path, other)
        return body[: len(body) // 2]

    bucket.alter = break_off
    with pytest.raises(SourceChangedError):
        download_tree(url, tmp_path / "here")
    assert bodies > 1, "it went on"
    assert not (tmp_path / "here").exists()
    assert (download_tree(url, tmp_path / "here") / CLIP).read_bytes() == other


@pytest.mark.parametrize("case", ["no etag is an MD5", "one file is encrypted"])
def test_an_etag_that_is_no_md5_costs_a_second_look_and_refuses_nothing(
    bucket: S3Store, tiny_source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    url = bucket.upload(tiny_source, "set", checksums=False)
    monkeypatch.setattr("leconvert.transfer.store._THREADS", 1)
    fs = open_store(url).fs
    if case == "one file is encrypted":
        content = (tiny_source / CLIP).read_bytes()
        place = {"Bucket": bucket.bucket, "Key": f"set/{CLIP}"}
        fs.call_s3("put_object", **place, ServerSideEncryption="aws:kms", Body=content)
    find = type(fs).find

    def find_with_others(this: Any, path: str, **options: Any) -> dict[str, Any]:
        found: dict[str, Any] = find(this, path, **options)
        for name, seen in found.items():
            if case == "no etag is an MD5" or name.endswith(CLIP):
                seen["ETag"] = f'"{hashlib.sha256(name.encode()).hexdigest()[:32]}"'
        return found

    monkeypatch.setattr(type(fs), "find", find_with_others)
    bucket.forget()
    target = download_tree(url, tmp_path / "here")
    assert (target / CLIP).read_bytes() == (tiny_source / CLIP).read_bytes()
    twice = [
        name
        for name, sent in bucket.sent_bytes.items()
        if sent == 2 * (target / name.removeprefix("set/")).stat().st_size > 0
    ]
    assert len(twice) == 1
    assert case == "no etag is an MD5" or twice == [f"set/{CLIP}"]


def test_a_dataset_is_sent_with_its_info_last(
    url: str, result: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls(url, "put_file", monkeypatch)
    report = upload_tree(result, url)
    assert is_whole(url, result)
    assert calls.names[-1].endswith("/meta/info.json")
    assert sum(name.endswith("/meta/info.json") for name in calls.names) == 1
    assert report.sent == report.files == len(names(url))


def test_an_interrupted_upload_is_no_dataset_and_goes_on(
    url: str, result: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls(url, "put_file", monkeypatch)
    calls.before = lambda _: len(calls.names) == 3 and fail(ConnectionError("it broke"))
    with pytest.raises(StorageError, match=f"{url} failed: it broke"):
        upload_tree(result, url)
    assert "meta/info.json" not in names(url)
    calls.before = lambda _: None
    sent = list(calls.names)
    calls.names.clear()
    report = upload_tree(result, url)
    assert set(calls.names).isdisjoint(sent)
    assert report.sent == len(calls.names) < report.files == len(names(url))
    assert is_whole(url, result), "the claim is gone"


def test_a_place_where_something_is_is_refused(url: str, result: Path) -> None:
    upload_tree(result, url)
    with pytest.raises(TargetError, match=f"{url} is not empty"):
        upload_tree(result, url)


def test_a_bucket_that_is_not_there_is_made_only_where_that_is_asked_for(
    result: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with s3_store() as store:
        fs = open_store(f"s3://{store.bucket}").fs
        for command in ("push", "mirror"):
            url = f"s3://typo-{command}/x"
            assert main([command, str(result), url]) == 5
            assert f"The bucket typo-{command} of {url} does not exist." in capsys.readouterr().err
            fs.invalidate_cache()
            assert fs.ls("") == [store.bucket]
        assert main(["push", str(result), "s3://typo-push/x", "--create-bucket"]) == 0
        assert main(["push", str(result), f"s3://{store.bucket}/y", "--create-bucket"]) == 0
        fs.invalidate_cache()
        assert sorted(fs.ls("")) == [store.bucket, "typo-push"]
        assert is_whole("s3://typo-push/x", result)
    capsys.readouterr()
    assert main(["push", str(result), "--create-bucket"]) == 2
    assert "works only with a URL" in capsys.readouterr().err


def test_an_unfinished_upload_of_another_tree_is_refused(url: str, result: Path) -> None:
    store = open_store(url)
    store.fs.makedirs(store.root, exist_ok=True)
    store.fs.pipe_file(store.path(".leconvert-upload.json"), b'{"tree": "another"}')
    with pytest.raises(TargetError, match="1 file of another, unfinished upload"):
        upload_tree(result, url)


def test_an_upload_that_an_earlier_version_began_goes_on(url: str, result: Path) -> None:
    sizes = published_files(result).sizes
    content = {"format": "leconvert/upload", "version": 1, "tree": stores._digest(result, sizes)}
    store = open_store(url)
    store.fs.makedirs(store.root, exist_ok=True)
    store.fs.pipe_file(store.path(".leconvert-upload.json"), json.dumps(content).encode())
    upload_tree(result, url)
    assert names(url) == list(sizes)


@pytest.fixture
def other(result: Path, tmp_path: Path) -> Path:
    """A result with the same names, of which one has another content, and one more."""
    folder = Path(shutil.copytree(result, tmp_path / "other"))
    (folder / "README.md").write_text("# Another one\n")
    (folder / "notes.md").write_text("only here")
    return folder


def is_whole(url: str, tree: Path) -> bool:
    store = open_store(url)
    there = {name: store.fs.cat_file(store.path(name)) for name in names(url)}
    return there == {
        path.relative_to(tree).as_posix(): path.read_bytes()
        for path in tree.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("moment", ["before the claim", "while files are sent", "with the last"])
def test_of_two_uploads_to_one_empty_place_one_arrives_whole(
    url: str, result: Path, other: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], moment: str,
) -> None:  # fmt: skip
    ended: list[int] = []
    began: list[str] = []
    monkeypatch.setattr(stores, "_THREADS", 1)  # as signals are for the main thread

    def send_the_other(name: str) -> None:
        is_it = moment != "with the last" or name.endswith("meta/info.json")
        if is_it and not began:
            began.append(name)
            ended.append(main(["mirror", str(other), url]))

    method = "pipe_file" if moment == "before the claim" else "put_file"
    Calls(url, method, monkeypatch).before = send_the_other
    code = main(["mirror", str(result), url])
    said = capsys.readouterr().err
    if moment == "before the claim":
        assert (code, ended) == (5, [0])
        assert f"{url} is not empty" in said
        assert is_whole(url, other)
    else:
        assert (code, ended) == (0, [5])
        assert f"{url} is not empty" in said
        assert "of another, unfinished upload" in said
        assert is_whole(url, result)


def test_two_uploads_of_one_dataset_at_once_are_one(
    url: str, result: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls(url, "put_file", monkeypatch)
    calls.before = lambda _: (
        None if calls.names else (calls.names.append("x"), upload_tree(result, url))
    )
    upload_tree(result, url)
    assert is_whole(url, result)


def test_files_that_come_meanwhile_are_no_part_of_a_dataset(
    url: str, result: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, store = Calls(url, "put_file", monkeypatch), open_store(url)
    calls.before = lambda _: store.fs.pipe_file(store.path("data-of-others"), b"x")
    with pytest.raises(TargetError, match="Somebody else is uploading to") as caught:
        upload_tree(result, url)
    assert caught.value.details == ("data-of-others",)
    assert "meta/info.json" not in names(url)


def test_a_store_that_keeps_less_is_noticed(
    url: str, result: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def keep_less(this: Any, _: str, path: str) -> None:
        this.pipe_file(path, b"x")

    monkeypatch.setattr(type(open_store(url).fs), "put_file", keep_less)
    with pytest.raises(StorageError, match="stored 1 bytes of"):
        upload_tree(result, url)


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("nope://bucket/name", "cannot be read"),
        ("hf://datasets/a", "is on the Hub"),
        ("hf://datasets/a/b", "is on the Hub"),
        ("https://huggingface.co/datasets/a/b", "is on the Hub"),
        ("a/b", "may be a repo on the Hub or a folder"),
        ("s3:/bucket/name", "may be a URL or a folder"),
        ("host:/data/name", "may be a URL or a folder"),
    ],
)
def test_places_that_cannot_be_sent_to_are_refused(
    result: Path, where: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=said) as caught:
        upload_tree(result, where)
    if where.endswith("a/b"):
        assert f"leconvert push {result} --push-repo-id a/b" in str(caught.value.next_step)
    assert not (tmp_path / where.partition("/")[0]).exists()


@pytest.mark.parametrize("where", ["./a/b", "a/b"])
def test_a_folder_may_have_a_relative_path(
    result: Path, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if not where.startswith("."):
        Path("a").mkdir()
    upload_tree(result, where)
    assert Path("a/b/meta/info.json").is_file()


def test_a_library_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fsspec.core

    def missing(url: str) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    with pytest.raises(InstallationError) as caught:
        download_tree("s3://bucket/name", tmp_path / "here")
    assert caught.value.next_step == f"Run `{command_for_extra('s3')}`."


def test_only_a_complete_result_is_sent(
    small_source: Path, result: Path, url: str, tmp_path: Path
) -> None:
    with pytest.raises(SourceError, match=r"is v2.1, but only v3.0 datasets can be uploaded"):
        upload_tree(small_source, url)
    for lost in ("data", "videos/observation.images.top/chunk-000/file-000.mp4"):
        damaged = Path(shutil.copytree(result, tmp_path / lost.partition("/")[0]))
        (damaged / lost).rename(tmp_path / f"lost-{damaged.name}")
        with pytest.raises(VerificationError, match=r"is not a complete v3.0 dataset"):
            upload_tree(damaged, url)
    assert names(url) == []


def test_a_conversion_from_a_url_to_a_url(
    url: str, small_source: Path, result: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(url, small_source)
    out = tmp_path / "out"
    assert main(["convert", "--root", url, "--output", str(out), "--no-push"]) == 0
    assert digest_of(out) == digest_of(result)
    assert not source_dir(out).exists()
    capsys.readouterr()
    assert main(["push", str(out), f"{url}_v30", "--private"]) == 2
    assert "works only for the Hub" in capsys.readouterr().err
    assert main(["push", str(out), f"{url}_v30", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["url"] == f"{url}_v30"
    download_tree(f"{url}_v30", tmp_path / "back")
    info = json.loads((tmp_path / "back/meta/info.json").read_bytes())
    assert info["codebase_version"] == "v3.0"
    command = ["verify", str(out), "--source", url, "--bytes", "--scratch-dir", str(tmp_path)]
    before = sorted(tmp_path.iterdir())
    assert main(command) == 0
    assert sorted(tmp_path.iterdir()) == before


def test_episodes_that_a_dataset_in_a_store_has_gained_are_appended(
    url: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    for episodes in (2, 3):
        source = tmp_path / f"with_{episodes}"
        make_dataset(source, DatasetSpec(episodes=episodes, frames=[5, 4, 6][:episodes]))
        put(url, source)
        command = ["convert", "--root", url, "--output", str(out), "--append"]
        assert main([*command, "--no-push"]) == 0
        assert json.loads((out / "meta/info.json").read_bytes())["total_episodes"] == episodes


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--root", "memory://x"], 2, "No folder is given for the result of memory://x."),
        (["--root", "memory://x", "--output", "y", "--dry-run"], 2, "--dry-run cannot show a plan"),
        (
            ["--root", "memory://none/x", "--output", "y"],
            3,
            "memory://none/x does not exist or is empty",
        ),
        (
            ["--root", "hf://models/a/b"],
            2,
            ("hf://models/a/b is not an address of a dataset on the Hub."),
        ),
        (
            ["--root", "hf://datasets/a/b@v2.1", "--revision", "main"],
            2,
            "hf://datasets/a/b@v2.1 and --revision exclude each other.",
        ),
    ],
)
def test_bad_urls_are_told_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    arguments: list[str], code: int, said: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(["convert", *arguments]) == code
    assert said in capsys.readouterr().err


def test_a_server_that_is_asked_at_once_and_does_not_answer_is_a_store_that_fails(
    result: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unreachable(_: str) -> None:
        raise OSError(-2, "Name or service not known")

    monkeypatch.setattr("fsspec.core.url_to_fs", unreachable)
    assert main(["mirror", str(result), "ftp://nowhere/x"]) == 11
    said = capsys.readouterr().err
    assert "ftp://nowhere/x failed: [Errno -2] Name or service not known." in said
    assert "Check the address" in said
