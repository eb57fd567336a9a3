"""Files over a line that breaks: resumed, tried again, checked."""

from __future__ import annotations

import errno
import hashlib
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from huggingface_hub import HfApi
from huggingface_hub.utils import httpx
from tests.hub import Fault, StandIn

from leconvert.support.errors import (
    HubAccessError,
    HubError,
    InterruptedRunError,
    SourceError,
    StorageError,
    UnreadableSourceError,
)
from leconvert.support.progress import NO_PROGRESS
from leconvert.transfer.hub import Body, HubStore
from leconvert.transfer.store import NameGate, RemoteFile, download_all, fetch_file, incoming

REPO = "tester/arm"
CLIP = hashlib.sha512(b"a clip").digest() * 40_000  # 2.4 MiB, in three chunks
NOTE = b"# An arm\n"


@pytest.fixture
def repo(hub: StandIn) -> HubStore:
    kept = hub.add_repo(REPO, {"a.mp4": CLIP, "README.md": NOTE})
    return HubStore(REPO, kept.branches["main"], hub.endpoint)


@pytest.fixture
def files(repo: HubStore) -> dict[str, RemoteFile]:
    return {file.path: file for file in repo.list_files()}


def ranges(hub: StandIn) -> list[tuple[int, int]]:
    """Status and bytes of each answer to a request for a file."""
    return [(r.status, r.answer_bytes) for r in hub.log if "/resolve/" in r.path]


def store(hub: StandIn, content: bytes) -> None:
    hub.repo(REPO).large(hashlib.sha256(CLIP).hexdigest()).write_bytes(content)


class Fetch:
    """Fetches ``a.mp4``, or another file, to ``it`` as a store of the repo does."""

    def __init__(self, repo: HubStore, files: dict[str, RemoteFile], folder: Path) -> None:
        self.repo, self.files = repo, files
        self.target, self.part = folder / "it", folder / "it.part"
        self.arrived: list[int] = []

    def __call__(self, file: RemoteFile | str = "a.mp4", **options: Any) -> bytes:
        listed = self.files[file] if isinstance(file, str) else file
        on_bytes = options.pop("on_bytes", self.arrived.append)
        store = options.pop("store", None) or replace(self.repo, **options)
        fetch_file(store, listed, self.target, self.part, on_bytes=on_bytes)
        return self.target.read_bytes()


@pytest.fixture
def fetch(repo: HubStore, files: dict[str, RemoteFile], tmp_path: Path) -> Fetch:
    return Fetch(repo, files, tmp_path)


def test_a_listing_names_each_files_hash(files: dict[str, RemoteFile]) -> None:
    assert files["a.mp4"].digest == hashlib.sha256(CLIP).hexdigest()
    blob = hashlib.sha1(b"blob %d\0" % len(NOTE) + NOTE).hexdigest()
    assert files["README.md"] == RemoteFile("README.md", len(NOTE), blob)


@pytest.mark.parametrize("name", ["a.mp4", "README.md"])
def test_a_file_arrives_whole(fetch: Fetch, name: str) -> None:
    content = fetch(name)
    assert content == {"a.mp4": CLIP, "README.md": NOTE}[name]
    assert sum(fetch.arrived) == len(content)
    assert not fetch.part.exists()


def test_a_body_that_breaks_off_goes_on_where_it_stopped(hub: StandIn, fetch: Fetch) -> None:
    first = 1 << 20
    hub.break_requests(Fault("truncate", path="/resolve/", keep_bytes=first + 5))
    assert fetch() == CLIP
    (_, whole), (status, rest) = ranges(hub)
    assert (whole, status) == (len(CLIP), 206)
    assert len(CLIP) - first - 5 <= rest <= len(CLIP) - first


def test_an_interrupted_download_is_finished_by_the_next(hub: StandIn, fetch: Fetch) -> None:
    with pytest.raises(InterruptedRunError):
        fetch(should_stop=lambda: bool(fetch.arrived))
    assert not fetch.target.exists()
    left = fetch.part.stat().st_size
    assert left == fetch.arrived[0] > 0
    assert fetch() == CLIP
    assert ranges(hub)[-1] == (206, len(CLIP) - left)


def test_wrong_bytes_are_thrown_away_and_fetched_again(hub: StandIn, fetch: Fetch) -> None:
    damaged = bytearray(CLIP)
    damaged[1_234_567] ^= 1
    store(hub, bytes(damaged))
    mend = Fault("none", path="/resolve/", interfere=lambda: store(hub, CLIP))
    hub.break_requests(Fault("none", path="/resolve/"), mend)
    assert fetch() == CLIP
    assert ranges(hub) == [(200, len(CLIP))] * 2
    assert sum(fetch.arrived) == len(CLIP)


def test_a_file_that_is_another_when_its_rest_is_asked_for_is_fetched_anew(
    hub: StandIn, fetch: Fetch
) -> None:
    """As of a store behind the Hub that has another copy: half of each is never kept."""
    other = Fault("none", path="/resolve/", interfere=lambda: store(hub, CLIP[::-1]))
    mend = Fault("none", path="/resolve/", interfere=lambda: store(hub, CLIP))
    hub.break_requests(Fault("truncate", path="/resolve/", keep_bytes=1 << 20), other, mend)
    assert fetch() == CLIP
    assert [status for status, _ in ranges(hub)] == [200, 206, 200]


@pytest.mark.parametrize("wrong", [CLIP[::-1], CLIP + b"more"], ids=["other", "longer"])
def test_bytes_that_stay_wrong_are_an_error(hub: StandIn, fetch: Fetch, wrong: bytes) -> None:
    store(hub, wrong)
    file = fetch.files["a.mp4"]
    if len(wrong) > len(CLIP):  # the stand-in sends no more than it lists, so less is expected
        file = RemoteFile(file.path, file.size_bytes - 4, file.digest)
    with pytest.raises(UnreadableSourceError, match="does not have the listed content"):
        fetch(file)
    assert not fetch.target.exists()
    assert not fetch.part.exists()


def test_a_part_that_is_no_part_of_the_file_is_thrown_away(fetch: Fetch) -> None:
    fetch.part.write_bytes(b"of another commit")
    assert fetch() == CLIP


def test_what_counts_is_what_lies_on_the_disk(hub: StandIn, fetch: Fetch) -> None:
    def damage(size_bytes: int) -> None:
        fetch.arrived.append(size_bytes)
        if len(fetch.arrived) == 1:
            with fetch.part.open("r+b") as part:
                part.write(b"damage")

    assert fetch(on_bytes=damage) == CLIP
    assert ranges(hub) == [(200, len(CLIP))] * 2
    assert sum(fetch.arrived) == len(CLIP)


def test_a_hub_that_asks_to_wait_is_given_the_time(
    hub: StandIn, fetch: Fetch, pauses: list[float]
) -> None:
    busy = Fault("status", path="/resolve/", status=429, headers={"Retry-After": "7"})
    hub.break_requests(busy, Fault("status", path="/resolve/", status=503))
    fetch()
    assert [status for status, _ in ranges(hub)] == [429, 503, 200]
    assert 7 + 0.5 + 1 <= sum(pauses) <= 7 + 1 + 2, "as asked, and growing pauses besides"


def test_a_hub_that_stays_silent_is_given_up(
    hub: StandIn, fetch: Fetch, pauses: list[float]
) -> None:
    hub.break_requests(Fault("drop_before", path="/resolve/", times=None))
    with pytest.raises(HubError, match="The Hub did not answer a request about"):
        fetch(tries=4)
    assert len(ranges(hub)) == 4
    assert len(pauses) >= 3


@pytest.mark.parametrize("asked", ["listing", "range"])
def test_a_request_to_stop_ends_the_waiting(
    hub: StandIn, repo: HubStore, files: dict[str, RemoteFile], pauses: list[float], asked: str
) -> None:
    hub.break_requests(Fault("status", path="/resolve/|/tree/", status=503, times=None))
    store = replace(repo, should_stop=lambda: bool(pauses))
    pauses.clear()
    ask = {
        "listing": lambda: [*store.list_files()],
        "range": lambda: store.read(files["a.mp4"], 0, 10),
    }[asked]
    with pytest.raises(InterruptedRunError):
        ask()
    assert len(pauses) == 1


@pytest.mark.parametrize(("status", "error"), [(403, HubAccessError), (404, HubError)])
def test_what_will_not_change_is_not_tried_again(
    hub: StandIn, repo: HubStore, files: dict[str, RemoteFile], status: int, error: type[Exception]
) -> None:
    hub.break_requests(Fault("status", path="/resolve/", status=status))
    with pytest.raises(error):
        repo.read(files["a.mp4"], 0, 10)
    assert len(ranges(hub)) == 1


@pytest.mark.parametrize(
    ("start", "stop"), [(0, 10), (1_000_000, 1_100_000), (len(CLIP) - 5, len(CLIP) + 99), (7, 7)]
)
def test_a_range_is_read(
    repo: HubStore, files: dict[str, RemoteFile], start: int, stop: int
) -> None:
    assert repo.read(files["a.mp4"], start, stop) == CLIP[start:stop]


def test_a_range_that_breaks_off_goes_on(
    hub: StandIn, repo: HubStore, files: dict[str, RemoteFile]
) -> None:
    hub.break_requests(Fault("truncate", path="/resolve/", keep_bytes=1 << 20))
    start, stop = 100, 2_000_000
    assert repo.read(files["a.mp4"], start, stop) == CLIP[start:stop]


# --- answers that a proxy or a broken store gives ---------------------------------------------


class Answers(HubStore):
    """A store that gets bodies that are planned, whatever it asks for."""

    asked: list[tuple[int, int | None]]
    bodies: list[tuple[int, bytes]]

    def __init__(self, repo: HubStore, *bodies: tuple[int, bytes], **options: Any) -> None:
        super().__init__(repo.repo_id, repo.commit, **options)
        vars(self).update(asked=[], bodies=list(bodies))

    @contextmanager
    def open(self, _path: str, start: int = 0, stop: int | None = None) -> Iterator[Body]:
        self.asked.append((start, stop))
        first, content = self.bodies.pop(0)
        pieces = [content[place : place + 7] for place in range(0, len(content), 7)]
        yield Body(first, iter(pieces))


def test_a_store_that_answers_with_more_than_was_asked_is_cut_to_it(repo: HubStore) -> None:
    text = bytes(range(100))
    answers = Answers(repo, (0, text[:40]), (30, text[30:]))
    assert answers.read(RemoteFile("a", 100), 25, 90) == text[25:90]
    assert answers.asked == [(25, 90), (40, 90)]


def test_a_whole_file_that_comes_again_from_its_beginning_is_not_appended_twice(
    repo: HubStore, fetch: Fetch
) -> None:
    text = bytes(range(100))
    file = RemoteFile("a", 100, hashlib.sha256(text).hexdigest())
    answers = Answers(repo, (0, text[:50]), (0, text))
    assert fetch(file, store=answers) == text
    assert answers.asked == [(0, None), (50, None)]


def test_an_answer_that_begins_too_late_is_never_used(repo: HubStore) -> None:
    text = bytes(range(100))
    answers = Answers(repo, (50, text[50:]), (10, text[10:]))
    assert answers.read(RemoteFile("a", 100), 10, 20) == text[10:20]


def test_a_file_that_always_ends_too_early_is_given_up_by_its_name(
    repo: HubStore, fetch: Fetch
) -> None:
    answers = Answers(repo, (0, b""), (0, b""), (0, b""), tries=3)
    with pytest.raises(HubError) as caught:
        fetch(RemoteFile("a.mp4", 100), store=answers)
    assert caught.value.message == (
        f"The download of a.mp4 of {repo.name} breaks off again and again."
    )
    assert caught.value.path == "a.mp4"
    assert len(answers.asked) == 3


def test_bytes_that_arrive_renew_the_patience(repo: HubStore) -> None:
    text = bytes(range(40))
    bodies = ((place, text[place : place + 10]) for place in range(0, 40, 10))
    assert Answers(repo, *bodies, tries=1).read(RemoteFile("a", 40), 0, 40) == text


def test_a_disk_that_does_not_answer_is_not_taken_for_the_hub(
    fetch: Fetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Path.open

    class Disk(BytesIO):
        name = str(fetch.part)

        def write(self, _data: object) -> int:
            raise TimeoutError(errno.ETIMEDOUT, "Connection timed out")

    def on_the_disk(path: Path, mode: str = "r", **options: Any) -> Any:
        return Disk() if path == fetch.part else opened(path, mode, **options)

    monkeypatch.setattr(Path, "open", on_the_disk)
    with pytest.raises(StorageError, match="the server does not answer") as caught:
        fetch()
    assert caught.value.path == str(fetch.part)


@pytest.mark.parametrize("place", [None, "bytes */100", "lines 10-20/100"])
def test_a_part_of_a_file_that_does_not_say_which_is_no_answer(
    repo: HubStore, files: dict[str, RemoteFile], monkeypatch: pytest.MonkeyPatch, place: str | None
) -> None:
    import huggingface_hub

    asked = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.headers["Range"])
        headers = {} if place is None else {"Content-Range": place}
        return httpx.Response(206, content=CLIP[:100], headers=headers)

    transport = httpx.MockTransport(answer)
    monkeypatch.setattr(huggingface_hub, "get_session", lambda: httpx.Client(transport=transport))
    with pytest.raises(HubError, match="did not say which bytes they are"):
        replace(repo, tries=2).read(files["a.mp4"], 10, 20)
    assert asked == ["bytes=10-19"] * 2


def test_a_listing_that_fails_often_but_never_twice_at_one_place_comes_to_its_end(
    repo: HubStore, monkeypatch: pytest.MonkeyPatch, pauses: list[float]
) -> None:
    from huggingface_hub.hf_api import RepoFile

    asked = []

    def entries(*_: object, **__: object) -> Iterator[RepoFile]:
        asked.append(0)
        for number in range(9):
            if number == len(asked):
                raise ConnectionError("reset by peer")
            yield RepoFile(path=str(number), size=1, oid="0" * 40)

    monkeypatch.setattr(HfApi, "list_repo_tree", entries)
    found = [file.path for file in replace(repo, tries=2).list_files()]
    assert found == [str(number) for number in range(9)]
    assert len(asked) == 9
    assert pauses


@pytest.mark.parametrize("path", ["/etc/passwd", "meta/../../x", ".."])
def test_a_name_that_leads_outside_is_refused(
    repo: HubStore, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    from huggingface_hub.hf_api import RepoFile

    entry = RepoFile(path=path, size=1, oid="0" * 40)
    monkeypatch.setattr(HfApi, "list_repo_tree", lambda *_, **__: [entry])
    with pytest.raises(SourceError, match="has a file with the unsafe name"):
        list(repo.list_files())


# What is fetched for a command alone lies in a folder that the command removes, also while a thread
# still waits for a server, for as long as it takes.


class Late:
    """A store of two files: the first fails; the second thread is held where a test wants it."""

    name = "late"

    def __init__(self, held_at: str) -> None:
        self.reached, self.release = threading.Event(), threading.Event()
        self.held_at = held_at

    def hold(self) -> None:
        self.reached.set()
        assert self.release.wait(60)

    def fetch(self, file: RemoteFile, out: BinaryIO, **_: object) -> None:
        if file.path == "fails":
            assert self.reached.wait(60)
            raise HubError("no such file")
        if self.held_at == "fetch":
            self.hold()
        out.write(b"late")


@pytest.mark.parametrize("held_at", ["look", "folder", "open", "fetch", "name"])
def test_no_thread_makes_a_file_in_a_folder_that_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held_at: str
) -> None:
    late, others = Late(held_at), set(threading.enumerate())  # pools of other tests have the name
    folder = tmp_path / "source"
    with incoming(folder / "arm") as arriving:
        target, part = arriving.tree / "data/late", arriving.part("data/late")
        part.parent.mkdir()

        def is_here(file: RemoteFile) -> bool:
            if held_at == "look" and file.path != "fails":
                late.hold()
            return False

        def held_before(method: str, path: Path) -> None:
            """Hold the thread that works on the disk until its folder is about to be left."""
            plain = getattr(Path, method)

            def call(self: Path, *args: Any, **options: Any) -> Any:
                if self == path and threading.current_thread().name.startswith("fetch"):
                    late.hold()
                return plain(self, *args, **options)

            monkeypatch.setattr(Path, method, call)

        if (step := {"folder": ("mkdir", target.parent), "open": ("open", part),
                     "name": ("replace", part)}.get(held_at)) is not None:  # fmt: skip
            held_before(*step)
            # Whoever closes the gate waits for a thread that is in it.
            closed = NameGate.close

            def close(gate: NameGate) -> None:
                late.release.set()
                closed(gate)

            monkeypatch.setattr(NameGate, "close", close)
        with pytest.raises(HubError):
            download_all(
                lambda _: late,
                [RemoteFile("fails", 1), RemoteFile("data/late", 4)],
                arriving,
                is_here=is_here,
                size_bytes=5,
                stop=threading.Event(),
                progress=NO_PROGRESS,
            )
        before = {path for path in folder.rglob("*") if path.is_file()}
        waits = [each for each in {*threading.enumerate()} - others if each.name[:5] == "fetch"]
        if step is None:
            shutil.rmtree(folder)
            before = set()
        late.release.set()
        for each in waits:
            each.join()
        assert {path for path in folder.rglob("*") if path.is_file()} == before
        assert folder.exists() == (step is not None)
