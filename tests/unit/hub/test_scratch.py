"""Workers of one host share a scratch folder and its limit."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from leconvert.errors import InterruptedRunError, UsageError
from leconvert.hub.remote_file import RemoteFile
from leconvert.hub.scratch import ScratchOptions, ScratchSlot, hold_slot

BLOCK = 4096


def of(*blocks: int) -> list[RemoteFile]:
    return [RemoteFile(f"{n}.mp4", size * BLOCK) for n, size in enumerate(blocks)]


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def interrupted(slot: ScratchSlot, blocks: int) -> None:
    """Leave a part of a file and end as a stopped worker does."""
    (slot.files_dir / "0.mp4.part").write_bytes(b"x" * blocks * BLOCK)
    raise InterruptedRunError("stopped")


def never() -> bool:
    return False


def no_pause(seconds: float) -> None:
    pytest.fail("nobody should have to wait")


@pytest.fixture
def slot(tmp_path: Path) -> Callable[[int | None, ExitStack], ScratchSlot]:
    def take(blocks: int | None, cleanup: ExitStack) -> ScratchSlot:
        limit = None if blocks is None else blocks * BLOCK
        return cleanup.enter_context(hold_slot(ScratchOptions(tmp_path, limit), "run"))

    return take


Take = Callable[[int | None, ExitStack], ScratchSlot]


def test_without_a_limit_all_is_granted(slot: Take) -> None:
    with ExitStack() as cleanup:
        mine = slot(None, cleanup)
        with mine.reserved(of(5, 9), should_stop=never, pause=no_pause) as granted:
            assert granted == 14 * BLOCK


def test_each_of_several_gets_a_share(slot: Take) -> None:
    with ExitStack() as cleanup:
        first, second, third = (slot(12, cleanup) for _ in range(3))
        assert len({one.files_dir for one in (first, second, third)}) == 3
        shares = [
            cleanup.enter_context(one.reserved(of(*sizes), should_stop=never, pause=no_pause))
            for one, sizes in ((first, (1,) * 20), (second, (6, 6)), (third, (1, 1)))
        ]
        assert shares == [4 * BLOCK, 6 * BLOCK, 2 * BLOCK]


def test_who_finds_no_room_waits_until_there_is(slot: Take) -> None:
    with ExitStack() as cleanup:
        first, second = slot(3, cleanup), slot(3, cleanup)
        held = ExitStack()
        held.enter_context(first.reserved(of(2), should_stop=never, pause=no_pause))
        pauses: list[float] = []

        def other_ends(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 3:
                held.close()

        with second.reserved(of(2), should_stop=never, pause=other_ends) as granted:
            assert granted == 2 * BLOCK
        assert len(pauses) == 3


def test_a_request_to_stop_ends_the_waiting(slot: Take) -> None:
    with ExitStack() as cleanup:
        first, second = slot(3, cleanup), slot(3, cleanup)
        cleanup.enter_context(first.reserved(of(2), should_stop=never, pause=no_pause))
        with (
            pytest.raises(InterruptedRunError),
            second.reserved(of(2), should_stop=lambda: True, pause=no_pause),
        ):
            pytest.fail("there was no room")


def test_a_limit_below_the_largest_file_names_the_smallest_that_does(slot: Take) -> None:
    with ExitStack() as cleanup:
        mine = slot(3, cleanup)
        with (
            pytest.raises(UsageError) as caught,
            mine.reserved(of(1, 4), should_stop=never, pause=no_pause),
        ):
            pytest.fail("there can be no room")
    assert caught.value.next_step is not None
    assert f"--scratch-limit {4 * BLOCK}" in caught.value.next_step


def test_parts_of_a_killed_worker_are_used_and_all_else_removed(slot: Take, tmp_path: Path) -> None:
    left = tmp_path / "run/slot-0/files"
    left.mkdir(parents=True)
    for name in ("0.mp4.part", "1.mp4.part", "1.mp4", "other.mp4.part"):
        (left / name).write_bytes(b"x" * BLOCK)
    with ExitStack() as cleanup:
        mine = slot(None, cleanup)
        assert mine.files_dir == left
        with mine.reserved(of(2, 2), should_stop=never, pause=no_pause):
            assert names_in(left) == ["0.mp4.part", "1.mp4.part"]


def test_parts_that_the_room_does_not_hold_are_removed(slot: Take, tmp_path: Path) -> None:
    left = tmp_path / "run/slot-0/files"
    left.mkdir(parents=True)
    for name in ("0.mp4.part", "1.mp4.part"):
        (left / name).write_bytes(b"x" * BLOCK)
    with ExitStack() as cleanup:
        mine = slot(3, cleanup)
        with mine.reserved(of(2, 2), should_stop=never, pause=no_pause) as granted:
            assert granted == 3 * BLOCK
            assert names_in(left) == ["0.mp4.part"]


def test_what_dead_workers_left_goes_when_its_room_is_needed(slot: Take, tmp_path: Path) -> None:
    with ExitStack() as cleanup:
        mine = slot(3, cleanup)
        left = tmp_path / "run/slot-1/files/0.mp4.part"
        left.parent.mkdir(parents=True)
        left.write_bytes(b"x" * 2 * BLOCK)
        with mine.reserved(of(1), should_stop=never, pause=no_pause):
            assert left.exists()
        with mine.reserved(of(2), should_stop=never, pause=no_pause):
            assert not left.exists()


def test_after_an_error_parts_stay_and_count(slot: Take, tmp_path: Path) -> None:
    with ExitStack() as cleanup:
        first, second = slot(4, cleanup), slot(4, cleanup)
        with (
            pytest.raises(InterruptedRunError),
            first.reserved(of(2), should_stop=never, pause=no_pause),
        ):
            interrupted(first, 2)
        with second.reserved(of(1, 1, 1), should_stop=never, pause=no_pause) as granted:
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
    with pytest.raises(UsageError, match="holds nothing"):
        ScratchOptions(limit_bytes=limit)
