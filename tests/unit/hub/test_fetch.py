"""Files over a line that breaks: resumed, tried again, checked."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from tests.hub import Fault, StandIn

from leconvert.errors import HubAccessError, HubError, InterruptedRunError, UnreadableSourceError
from leconvert.hub.fetch import Fetcher, partial_path
from leconvert.hub.remote import HubRepo
from leconvert.hub.remote_file import RemoteFile

REPO = "tester/arm"
CLIP = hashlib.sha512(b"a clip").digest() * 40_000  # 2.4 MiB, in three chunks
NOTE = b"# An arm\n"


@pytest.fixture
def repo(hub: StandIn) -> HubRepo:
    kept = hub.add_repo(REPO, {"a.mp4": CLIP, "README.md": NOTE})
    return HubRepo(REPO, kept.branches["main"], hub.endpoint)


@pytest.fixture
def files(repo: HubRepo) -> dict[str, RemoteFile]:
    return {file.path: file for file in repo.list_files()}


def ranges(hub: StandIn) -> list[tuple[int, int]]:
    """Status and bytes of each answer to a request for a file."""
    return [(r.status, r.answer_bytes) for r in hub.log if "/resolve/" in r.path]


def store(hub: StandIn, content: bytes) -> None:
    hub.repo(REPO).large(hashlib.sha256(CLIP).hexdigest()).write_bytes(content)


class Paused:
    def __init__(self) -> None:
        self.seconds: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


def test_a_listing_names_each_files_hash(files: dict[str, RemoteFile]) -> None:
    assert files["a.mp4"].digest == hashlib.sha256(CLIP).hexdigest()
    blob = hashlib.sha1(b"blob %d\0" % len(NOTE) + NOTE).hexdigest()
    assert files["README.md"] == RemoteFile("README.md", len(NOTE), blob)


@pytest.mark.parametrize("name", ["a.mp4", "README.md"])
def test_a_file_arrives_whole(
    repo: HubRepo, files: dict[str, RemoteFile], tmp_path: Path, name: str
) -> None:
    arrived: list[int] = []
    Fetcher(repo).download(files[name], tmp_path / "it", on_bytes=arrived.append)
    assert (tmp_path / "it").read_bytes() == {"a.mp4": CLIP, "README.md": NOTE}[name]
    assert sum(arrived) == files[name].size_bytes
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["it"]


def test_a_body_that_breaks_off_goes_on_where_it_stopped(
    hub: StandIn, repo: HubRepo, files: dict[str, RemoteFile], tmp_path: Path
) -> None:
    first = 1 << 20
    hub.break_requests(Fault("truncate", path="/resolve/", keep_bytes=first + 5))
    Fetcher(repo, pause=Paused()).download(files["a.mp4"], tmp_path / "it")
    assert (tmp_path / "it").read_bytes() == CLIP
    (_, whole), (status, rest) = ranges(hub)
    assert (whole, status) == (len(CLIP), 206)
    assert len(CLIP) - first - 5 <= rest <= len(CLIP) - first


def test_an_interrupted_download_is_finished_by_the_next(
    hub: StandIn, repo: HubRepo, files: dict[str, RemoteFile], tmp_path: Path
) -> None:
    target = tmp_path / "it"
    arrived: list[int] = []
    with pytest.raises(InterruptedRunError):
        Fetcher(repo, should_stop=lambda: bool(arrived)).download(
            files["a.mp4"], target, on_bytes=arrived.append
        )
    assert not target.exists()
    left = partial_path(target).stat().st_size
    assert left == arrived[0] > 0
    Fetcher(repo).download(files["a.mp4"], target)
    assert target.read_bytes() == CLIP
    assert ranges(hub)[-1] == (206, len(CLIP) - left)


def test_wrong_bytes_are_thrown_away_and_fetched_again(
    hub: StandIn, repo: HubRepo, files: dict[str, RemoteFile], tmp_path: Path
) -> None:
    damaged = bytearray(CLIP)
    damaged[1_234_567] ^= 1
    store(hub, bytes(damaged))
    mend = Fault("none", path="/resolve/", interfere=lambda: store(hub, CLIP))
    hub.break_requests(Fault("none", path="/resolve/"), mend)
    arrived: list[int] = []
    Fetcher(repo).download(files["a.mp4"], tmp_path / "it", on_bytes=arrived.append)
    assert (tmp_path / "it").read_bytes() == CLIP
    assert ranges(hub) == [(200, len(CLIP))] * 2
    assert sum(arrived) == len(CLIP)


@pytest.mark.parametrize("wrong", [CLIP[::-1], CLIP + b"more"], ids=["other", "longer"])
def test_bytes_that_stay_wrong_are_an_error(
    hub: StandIn,
    repo: HubRepo,
    files: dict[str, RemoteFile],
    tmp_path: Path,
    wrong: bytes,
) -> None:
    store(hub, wrong)
    file = files["a.mp4"]
    if len(wrong) > len(CLIP):  # the stand-in sends no more than it lists, so less is expected
        file = RemoteFile(file.path, file.size_bytes - 4, file.digest)
    with pytest.raises(UnreadableSourceError, match="arrives with other content"):
        Fetcher(repo).download(file, tmp_path / "it")
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == []


def test_a_part_that_is_no_part_of_the_file_is_thrown_away(
    repo: HubRepo, files: dict[str, RemoteFile], tmp_path: Path
) -> None:
    target = tmp_path / "it"
    partial_path(target).write_bytes(b"of another commit")
    Fetcher(repo).download(files["a.mp4"], target)
    assert target.read_bytes() == CLIP


def test_a_hub_that_asks_to_wait_is_given_the_time(
    hub: StandIn, repo: HubRepo, files: dict[str, RemoteFile], tmp_path: Path
) -> None:
    paused = Paused()
    busy = Fault("status", path="/resolve/", status=429, headers={"Retry-After": "7"})
    hub.break_requests(busy, Fault("status", path="/resolve/", status=503))
    Fetcher(repo, pause=paused).download(files["a.mp4"], tmp_path / "it")
    assert [status for status, _ in ranges(hub)] == [429, 503, 200]
    assert 7 + 1 <= sum(paused.seconds) <= 7 + 2, "as asked, then half to all of two seconds"


def test_a_hub_that_stays_silent_is_given_up(
    hub: StandIn, repo: HubRepo, files: dict[str, RemoteFile], tmp_path: Path
) -> None:
    hub.break_requests(Fault("drop_before", path="/resolve/", times=None))
    paused = Paused()
    with pytest.raises(HubError, match=f"The Hub did not answer about {REPO}"):
        Fetcher(repo, pause=paused, tries=4).download(files["a.mp4"], tmp_path / "it")
    assert len(ranges(hub)) == 4
    assert len(paused.seconds) >= 3


def test_a_request_to_stop_ends_the_waiting(
    hub: StandIn, repo: HubRepo, files: dict[str, RemoteFile], tmp_path: Path
) -> None:
    hub.break_requests(Fault("status", path="/resolve/", status=503, times=None))
    paused = Paused()
    with pytest.raises(InterruptedRunError):
        Fetcher(repo, pause=paused, should_stop=lambda: bool(paused.seconds)).read(
            files["a.mp4"], 0, 10
        )
    assert len(paused.seconds) == 1


@pytest.mark.parametrize(("status", "error"), [(403, HubAccessError), (404, HubError)])
def test_what_will_not_change_is_not_tried_again(
    hub: StandIn,
    repo: HubRepo,
    files: dict[str, RemoteFile],
    status: int,
    error: type[Exception],
) -> None:
    hub.break_requests(Fault("status", path="/resolve/", status=status))
    with pytest.raises(error):
        Fetcher(repo).read(files["a.mp4"], 0, 10)
    assert len(ranges(hub)) == 1


@pytest.mark.parametrize(
    ("start", "stop"), [(0, 10), (1_000_000, 1_100_000), (len(CLIP) - 5, len(CLIP) + 99), (7, 7)]
)
def test_a_range_is_read(
    repo: HubRepo, files: dict[str, RemoteFile], start: int, stop: int
) -> None:
    assert Fetcher(repo).read(files["a.mp4"], start, stop) == CLIP[start:stop]


def test_a_range_that_breaks_off_goes_on(
    hub: StandIn, repo: HubRepo, files: dict[str, RemoteFile]
) -> None:
    hub.break_requests(Fault("truncate", path="/resolve/", keep_bytes=1 << 20))
    start, stop = 100, 2_000_000
    assert Fetcher(repo, pause=Paused()).read(files["a.mp4"], start, stop) == CLIP[start:stop]
