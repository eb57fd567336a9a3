"""Records of settled batches: each is read once, as long as it stays."""

from __future__ import annotations

from leconvert.report.records import SettledBatches


def test_a_record_is_read_once_and_anew_after_it_was_released() -> None:
    asked: list[int] = []
    looks = SettledBatches(lambda batch_id: asked.append(batch_id) or len(asked))
    assert looks.look([3, 1]) == {1: 1, 3: 2}
    assert looks.look({1, 3}) == {1: 1, 3: 2}
    assert looks.look([3]) == {3: 2}
    assert looks.look([1, 3]) == {1: 3, 3: 2}
    assert asked == [1, 3, 1]


def test_a_record_that_cannot_be_used_is_told_and_asked_for_again() -> None:
    records = {1: "7", 2: "x", 4: "9"}
    looks = SettledBatches(lambda batch_id: int(records[batch_id]))
    assert looks.look([1, 2, 3, 4], most=3) == {1: 7}
    assert {number: type(why) for number, why in looks.errors.items()} == {
        2: ValueError,
        3: KeyError,
    }
    records[2] = "8"
    assert looks.look([1, 2, 3, 4]) == {1: 7, 2: 8, 4: 9}
    assert list(looks.errors) == [3]
