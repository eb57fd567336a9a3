"""Which files are on the disk when: forced orders of fetching and reading."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from leconvert.support.errors import HubError, InterruptedRunError
from leconvert.transfer import scratch as windows
from leconvert.transfer.scratch import Window
from leconvert.transfer.store import RemoteFile, part_in

BLOCK = 4096


class Store:
    """Fetches when it is told to, and writes down what is on the disk whenever that changes."""

    def __init__(self, folder: Path, *, held: bool = False) -> None:
        self.folder = folder
        self.fetched: list[str] = []
        self.begun: dict[str, threading.Event] = {}
        self.gates: dict[str, threading.Event] = {}
        self.errors: dict[str, Exception] = {}
        self.in_flight_bytes = self.most_bytes = 0  # the second: on the disk or in flight
        self._held = held
        self._lock = threading.Lock()

    def gate(self, name: str) -> threading.Event:
        with self._lock:
            return self.gates.setdefault(name, threading.Event())

    def began(self, name: str) -> threading.Event:
        with self._lock:
            return self.begun.setdefault(name, threading.Event())

    def __call__(self, file: RemoteFile, target: Path) -> None:
        with self._lock:
            self.in_flight_bytes += file.size_bytes
            self.most_bytes = max(self.most_bytes, self.on_disk() + self.in_flight_bytes)
        self.began(file.path).set()
        if self._held:
            assert self.gate(file.path).wait(10)
        with self._lock:
            self.in_flight_bytes -= file.size_bytes
            if file.path in self.errors:
                target.write_bytes(b"refused")
                raise self.errors[file.path]
            target.write_bytes(b"x" * file.size_bytes)
            self.fetched.append(file.path)

    def on_disk(self) -> int:
        # Meanwhile another thread may remove what was refused.
        return windows.bytes_in(self.folder)


def files(*blocks: int) -> list[RemoteFile]:
    return [RemoteFile(f"clips/{n}.mp4", size * BLOCK) for n, size in enumerate(blocks)]


@pytest.fixture
def window_of(tmp_path: Path) -> Iterator[Callable[..., Window]]:
    made: list[Window] = []

    def make(listed: list[RemoteFile], store: Store, blocks: int, **options: object) -> Window:
        window = Window(
            listed,
            tmp_path,
            store,
            budget_bytes=blocks * BLOCK,
            should_stop=options.get("should_stop", lambda: False),  # type: ignore[arg-type]
        )
        made.append(window)
        return window

    yield make
    for window in made:
        window.__exit__(None)


@pytest.mark.parametrize("blocks", [3, 4, 7, 100])
def test_files_come_in_order_within_the_room(
    window_of: Callable[..., Window], tmp_path: Path, blocks: int
) -> None:
    listed = files(1, 3, 2, 2, 1, 3, 1, 1, 1, 2)
    store = Store(tmp_path)
    with window_of(listed, store, blocks) as window:
        for place, file in enumerate(listed):
            assert Path(window.path(place)).stat().st_size == file.size_bytes
        assert store.fetched.count("clips/0.mp4") == 1
        assert len(store.fetched) == len(listed)
    assert store.most_bytes <= blocks * BLOCK
    assert store.on_disk() == 0


def test_a_second_pass_fetches_only_what_had_to_go(
    window_of: Callable[..., Window], tmp_path: Path
) -> None:
    listed = files(1, 1, 1, 1)
    roomy, tight = Store(tmp_path), Store(tmp_path)
    with window_of(listed, roomy, 4) as window:
        for place in (0, 1, 2, 3, 0, 1, 2, 3):
            assert Path(window.path(place)).exists()
    assert len(roomy.fetched) == 4
    with window_of(listed, tight, 2) as window:
        for place in (0, 1, 2, 3, 0, 1, 2, 3):
            assert Path(window.path(place)).exists()
    assert 6 <= len(tight.fetched) <= 8
    assert tight.most_bytes <= 2 * BLOCK


def test_the_file_that_is_read_stays_while_others_arrive(
    window_of: Callable[..., Window], tmp_path: Path
) -> None:
    store = Store(tmp_path, held=True)
    with window_of(files(1, 1, 1), store, 2) as window:
        store.gate("clips/0.mp4").set()
        first = Path(window.path(0))
        store.gate("clips/1.mp4").set()
        assert store.began("clips/1.mp4").wait(10)
        assert not store.began("clips/2.mp4").is_set(), "there is no room beside the first two"
        assert first.exists()
        assert Path(window.path(1)).exists()
        assert store.began("clips/2.mp4").wait(10), "the first made room"
        assert not first.exists()
        store.gate("clips/2.mp4").set()
        assert Path(window.path(2)).exists()


def test_an_error_is_told_to_whoever_needs_the_file(
    window_of: Callable[..., Window], tmp_path: Path
) -> None:
    store = Store(tmp_path)
    store.errors["clips/1.mp4"] = HubError("no answer")
    with window_of(files(1, 1, 1), store, 1) as window:
        assert Path(window.path(0)).exists()
        with pytest.raises(HubError, match="no answer"):
            window.path(1)
        assert not (tmp_path / "clips/1.mp4").exists(), "what was refused does not stay"
        del store.errors["clips/1.mp4"]
        assert Path(window.path(1)).exists(), "asked again, it is fetched again"


def test_a_part_that_a_failed_fetch_left_counts_until_its_room_is_needed(
    window_of: Callable[..., Window], tmp_path: Path
) -> None:
    store = Store(tmp_path)
    listed = files(1, 1, 2)
    window = window_of(listed, store, 2)
    store.errors["clips/1.mp4"] = HubError("no answer")
    left = part_in(tmp_path, "clips/1.mp4")
    assert Path(window.path(0)).exists()
    with pytest.raises(HubError):
        window.path(1)
    left.parent.mkdir()
    left.write_bytes(b"x" * BLOCK)
    assert Path(window.path(2)).stat().st_size == 2 * BLOCK
    assert not left.exists()
    assert store.most_bytes <= 2 * BLOCK


def test_a_request_to_stop_ends_the_waiting(
    window_of: Callable[..., Window], tmp_path: Path
) -> None:
    store = Store(tmp_path, held=True)
    window = window_of(files(1, 1), store, 2, should_stop=store.began("clips/0.mp4").is_set)
    with pytest.raises(InterruptedRunError):
        window.path(0)
    for name in ("clips/0.mp4", "clips/1.mp4"):
        store.gate(name).set()


def test_a_fetch_that_never_began_is_given_up_at_the_end(
    window_of: Callable[..., Window], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "_THREADS", 1)
    store = Store(tmp_path, held=True)
    window = window_of(files(1, 1, 1), store, 3)
    monkeypatch.setattr(windows, "_THREADS", 2)  # so the second one waits for the only thread
    window._should_stop = store.began("clips/0.mp4").is_set
    with pytest.raises(InterruptedRunError):
        window.path(0)
    shutdown = window._pool.shutdown

    def shut_down(**options: bool) -> None:
        shutdown(wait=False, cancel_futures=True)  # what waits goes first, then what is begun ends
        store.gate("clips/0.mp4").set()
        shutdown(**options)

    monkeypatch.setattr(window._pool, "shutdown", shut_down)
    window.__exit__(None)
    assert store.fetched == ["clips/0.mp4"]
    assert not store.began("clips/1.mp4").is_set()
    assert store.on_disk() == 0
