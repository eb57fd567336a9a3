"""Workers of one host share a scratch folder and its limit."""

from __future__ import annotations

import errno
import fcntl
import getpass
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import count
from pathlib import Path

import pytest
from tests.trees import open_below

from leconvert.support.errors import InterruptedRunError, StorageError, UsageError
from leconvert.transfer import options, scratch
from leconvert.transfer.options import ScratchOptions
from leconvert.transfer.scratch import ScratchSlot, hold_slot
from leconvert.transfer.store import RemoteFile, part_in

BLOCK = 4096


def of(*blocks: int) -> list[RemoteFile]:
    return [RemoteFile(f"{n}.mp4", size * BLOCK) for n, size in enumerate(blocks)]


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def interrupted(slot: ScratchSlot, blocks: int) -> None:
    """Leave a part of a file and end as a stopped worker does."""
    (slot.files_dir / "0.mp4.part").write_bytes(b"x" * blocks * BLOCK)
    raise InterruptedRunError("stopped")


def no_pause(_: float) -> None:
    pytest.fail("nobody should have to wait")


Take = Callable[[int | None], ScratchSlot]


@pytest.fixture
def slot(tmp_path: Path) -> Iterator[Take]:
    with ExitStack() as held:

        def take(blocks: int | None) -> ScratchSlot:
            limit = None if blocks is None else blocks * BLOCK
            return held.enter_context(hold_slot(ScratchOptions(tmp_path, limit), "run"))

        yield take


def reserve(
    slot: ScratchSlot,
    *blocks: int,
    should_stop: Callable[[], bool] = lambda: False,
    pause: Callable[[float], object] = no_pause,
) -> AbstractContextManager[int]:
    return slot.reserved(of(*blocks), should_stop=should_stop, pause=pause)


def test_a_slot_that_is_taken_while_its_last_holder_leaves_stays(
    slot: Take, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked, taken = scratch._locked, list[ScratchSlot]()

    @contextmanager
    def interrupted_lock(root: Path) -> Iterator[None]:
        with locked(root):
            yield
        with monkeypatch.context() as patch:
            patch.setattr(scratch, "_locked", locked)
            if not taken:  # as another process might, once this one has left the lock
                taken.append(slot(None))

    with hold_slot(ScratchOptions(tmp_path), "run"):
        monkeypatch.setattr(scratch, "_locked", interrupted_lock)
    assert taken[0].files_dir.is_dir()
    with reserve(taken[0], 5) as granted:
        assert granted == 5 * BLOCK


def test_without_a_limit_all_is_granted(slot: Take) -> None:
    with reserve(slot(None), 5, 9) as granted:
        assert granted == 14 * BLOCK


def test_each_of_several_gets_a_share(slot: Take) -> None:
    slots = [slot(12) for _ in range(3)]
    assert len({one.files_dir for one in slots}) == 3
    with ExitStack() as held:
        wanted = ((1,) * 20, (6, 6), (1, 1))
        shares = [
            held.enter_context(reserve(one, *blocks))
            for one, blocks in zip(slots, wanted, strict=True)
        ]
        assert shares == [4 * BLOCK, 6 * BLOCK, 2 * BLOCK]


def test_who_finds_no_room_waits_until_there_is(slot: Take) -> None:
    first, second = slot(3), slot(3)
    held = ExitStack()
    held.enter_context(reserve(first, 2))
    pauses: list[float] = []

    def other_ends(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            held.close()

    with reserve(second, 2, pause=other_ends) as granted:
        assert granted == 2 * BLOCK
    assert len(pauses) == 3


def test_a_request_to_stop_ends_the_waiting(slot: Take) -> None:
    first, second = slot(3), slot(3)
    stopped = reserve(second, 2, should_stop=lambda: True)
    with reserve(first, 2), pytest.raises(InterruptedRunError), stopped:
        pytest.fail("there was no room")


@pytest.mark.parametrize(("limit", "kept"), [(None, 2), (3, 1)], ids=["all", "what has room"])
def test_parts_of_a_killed_worker_are_used_as_far_as_there_is_room_and_all_else_removed(
    slot: Take, tmp_path: Path, limit: int | None, kept: int
) -> None:
    left = tmp_path / "run/slot-0/files"
    parts = [part_in(left, name) for name in ("0.mp4", "1.mp4")]
    for path in (*parts, part_in(left, "other.mp4"), left / "whole/1.mp4"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * BLOCK)
    mine = slot(limit)
    assert mine.files_dir == left
    with reserve(mine, 2, 2) as granted:
        assert granted == (limit or 4) * BLOCK
        assert set(names_in(left)) == {path.name for path in parts[:kept]}


def test_what_dead_workers_left_goes_when_its_room_is_needed(slot: Take, tmp_path: Path) -> None:
    mine = slot(3)
    left = tmp_path / "run/slot-1/files/0.mp4.part"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"x" * 2 * BLOCK)
    with reserve(mine, 1):
        assert left.exists()
    with reserve(mine, 2):
        assert not left.exists()


def test_what_a_dead_worker_left_counts_until_its_successor_has_reserved(
    slot: Take, tmp_path: Path
) -> None:
    left = part_in(tmp_path / "run/slot-0/files", "0.mp4")
    left.parent.mkdir(parents=True)
    left.write_bytes(b"x" * 2 * BLOCK)
    successor, other = slot(3), slot(3)
    stopped = reserve(other, 2, should_stop=lambda: True)
    with pytest.raises(InterruptedRunError), stopped:
        pytest.fail("there was no room")
    waiting = reserve(successor, 3, should_stop=lambda: True)
    with reserve(other, 1):
        assert left.exists()
        with pytest.raises(InterruptedRunError), waiting:
            pytest.fail("there was no room")
    assert not left.exists(), "or two that wait would wait for each other for ever"
    with reserve(other, 3) as granted:
        assert granted == 3 * BLOCK


def test_after_an_error_parts_stay_and_count(slot: Take) -> None:
    first, second = slot(4), slot(4)
    with pytest.raises(InterruptedRunError), reserve(first, 2):
        interrupted(first, 2)
    with reserve(second, 1, 1, 1) as granted:
        assert granted == 2 * BLOCK


def test_the_last_to_leave_removes_the_folder(tmp_path: Path) -> None:
    options = ScratchOptions(tmp_path)
    with hold_slot(options, "run"):
        with hold_slot(options, "run") as second:
            (second.files_dir / "left").write_bytes(b"x")
        assert (tmp_path / "run").is_dir()
    assert not (tmp_path / "run").exists()


def test_what_an_interrupted_worker_left_stays_for_the_next(tmp_path: Path) -> None:
    options = ScratchOptions(tmp_path)
    with pytest.raises(InterruptedRunError), hold_slot(options, "run") as slot:
        interrupted(slot, 1)
    with hold_slot(options, "run") as slot:
        assert names_in(slot.files_dir) == ["0.mp4.part"]


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_that_holds_nothing_is_refused(limit: int) -> None:
    with pytest.raises(UsageError, match="must be above 0 bytes"):
        ScratchOptions(limit_bytes=limit)


def test_the_default_folder_is_the_users_own_even_without_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nameless() -> str:
        raise OSError("no name for this user id")

    monkeypatch.undo()  # the folder that tests have instead
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(getpass, "getuser", lambda: "ada")
    assert options.default_scratch_dir() == tmp_path / "leconvert-scratch-ada"
    monkeypatch.setattr(getpass, "getuser", nameless)
    assert options.default_scratch_dir() == tmp_path / f"leconvert-scratch-{os.getuid()}"
    place = ScratchOptions().place("run")
    assert place == tmp_path / f"leconvert-scratch-{os.getuid()}" / "run"


def test_a_folder_that_is_a_file_is_refused_with_what_helps(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    with (
        pytest.raises(StorageError, match="cannot be used for scratch files") as caught,
        hold_slot(ScratchOptions(tmp_path / "notes"), "run"),
    ):
        pytest.fail("there is no folder")
    assert caught.value.path == str(tmp_path / "notes" / "run")
    assert caught.value.next_step == "Give a local folder with --scratch-dir."


@pytest.mark.parametrize("refused", [1, 2], ids=["the folder's", "the slot's"])
def test_a_lock_that_cannot_be_had_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    flock, calls = fcntl.flock, count(1)

    def no_locks(descriptor: int, operation: int) -> None:
        if next(calls) == refused:
            raise OSError(errno.ENOLCK, "No locks available")
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with (
        pytest.raises(StorageError, match="No locks available"),
        hold_slot(ScratchOptions(tmp_path), "run"),
    ):
        pytest.fail("it is not locked")
    assert open_below(tmp_path) == []


def test_a_lock_file_that_went_while_it_was_waited_for_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, removed = fcntl.flock, []

    def last_one_leaves(descriptor: int, operation: int) -> None:
        if len(removed) < 2:
            # The last holder removes the folder; the second time somebody made it again.
            removed.append(os.fstat(descriptor).st_ino)
            (tmp_path / "run/lock").unlink()
            if len(removed) == 2:
                (tmp_path / "run/lock").touch()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", last_one_leaves)
    with hold_slot(ScratchOptions(tmp_path), "run"):
        assert len(removed) == 2
        assert (tmp_path / "run/lock").exists()


def test_a_slot_whose_lock_file_is_gone_is_held_by_nobody(slot: Take, tmp_path: Path) -> None:
    first = slot(4)
    half_removed = tmp_path / "run/slot-1/files/0.mp4.part"
    half_removed.parent.mkdir(parents=True)
    half_removed.write_bytes(b"x" * 4 * BLOCK)
    with reserve(first, 4) as granted:
        assert granted == 4 * BLOCK
        assert not half_removed.exists()


def test_a_reservation_is_only_noted_under_the_lock_that_others_read_it_under(
    slot: Take, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note, locked = ScratchSlot._note, []

    def watched(one: ScratchSlot, size_bytes: int) -> None:
        with (tmp_path / "run/lock").open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                locked.append(size_bytes)
        note(one, size_bytes)

    monkeypatch.setattr(ScratchSlot, "_note", watched)
    with reserve(slot(4), 2):
        pass
    assert locked == [2 * BLOCK, 0]


def test_a_note_that_a_full_disk_left_empty_reserves_nothing(slot: Take, tmp_path: Path) -> None:
    slot(4)
    (tmp_path / "run/slot-0/reserved").write_text("")
    with reserve(slot(4), 4) as granted:
        assert granted == 4 * BLOCK
