"""The swap: every crash point, every file system, every predecessor that will not die."""

from __future__ import annotations

import errno
import itertools
import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.faults.faulty_files import KINDS, CrashError, FaultyFileSystem, MakeFs, nfs

from leconvert.support.errors import BusyError, StorageError, TargetError, WorkDirError
from leconvert.workdir.former import former_dir
from leconvert.workdir.fs import LOCAL, FileSystem
from leconvert.workdir.records import Journal, PackStep, RunPaths, WorkDir
from leconvert.workdir.swap import (
    TREE_RECORD,
    Action,
    SwapOutcome,
    SwapPlan,
    TreeState,
    adopt_staging,
    check_target,
    marked_by,
    next_action,
    next_recovery,
    old_dir,
    recover_swap,
    staging_generations,
    swap_into_place,
)

OLD, NEW = "the v2.1 tree", "the v3.0 tree"
MOST_POINTS = 400


@dataclass
class Place:
    """A target with its run, as one packer after another sees it."""

    root: Path
    run: RunPaths
    in_place: bool
    as_former: bool = False

    @property
    def target(self) -> Path:
        return self.root / "set"

    @property
    def old(self) -> Path | None:
        if not self.in_place:
            return None
        return former_dir(self.target, "r1") if self.as_former else old_dir(self.target)

    def journal(self, fs: FileSystem) -> Journal:
        return Journal(self.run.using(fs))

    def packs(self, fs: FileSystem) -> SwapOutcome:
        """What every packer does, from its start to the swap."""
        journal = self.journal(fs)
        journal.begin()
        outcome = recover_swap(journal, self.target)
        if outcome is SwapOutcome.COMPLETED:
            return outcome
        staging = adopt_staging(self.target, journal)
        (staging / "content").write_text(NEW)
        swap_into_place(SwapPlan(self.target, staging, self.old), journal)
        return SwapOutcome.COMPLETED

    def begins(self) -> tuple[Journal, Path]:
        """The begin of a packer: its journal and its tree."""
        journal = self.journal(LOCAL)
        journal.begin()
        return journal, adopt_staging(self.target, journal)

    def dies(self, fs: FileSystem) -> None:
        with pytest.raises(CrashError):
            self.packs(fs)

    def points_that_differ(self, make_fs: MakeFs) -> list[int]:
        fs = make_fs(None)
        return fs.points_that_differ(self.root, lambda: self.packs(fs))

    def is_whole(self) -> bool:
        return content(self.target) in {OLD, NEW} if self.in_place else True

    def check_finished(self, *, litter: bool = False) -> None:
        assert content(self.target) == NEW
        assert sorted(path.name for path in self.target.iterdir()) == ["content"]
        old = [] if self.old is None else [self.old.name]
        for name in old:
            assert content(self.root / name) == OLD
        names = sorted(path.name for path in self.root.iterdir() if path.name != "work")
        if litter:
            stale = [name for name in names if name.startswith(".set.leconvert-r1.")]
            assert all(content(self.root / name) != OLD for name in stale)
            names = [name for name in names if name not in stale]
        assert names == ["set", *old]


def content(tree: Path) -> str | None:
    try:
        return (tree / "content").read_text()
    except FileNotFoundError:
        return None


def make_place(root: Path, *, in_place: bool, as_former: bool = False) -> Place:
    root.mkdir(parents=True)
    run = WorkDir(root / "work").run("r1")
    run.journal.mkdir(parents=True)
    place = Place(root, run, in_place, as_former)
    if in_place:
        place.target.mkdir()
        (place.target / "content").write_text(OLD)
    return place


CASES = [pytest.param(True, id="in-place"), pytest.param(False, id="fresh")]


@pytest.mark.parametrize("make_fs", KINDS)
@pytest.mark.parametrize("in_place", CASES)
def test_the_new_tree_takes_the_targets_place(
    tmp_path: Path, make_fs: MakeFs, in_place: bool
) -> None:
    place = make_place(tmp_path / "p", in_place=in_place)
    assert place.packs(make_fs(None)) is SwapOutcome.COMPLETED
    place.check_finished()
    assert place.journal(LOCAL).read().step is PackStep.SWAPPED


@pytest.mark.parametrize("make_fs", KINDS)
@pytest.mark.parametrize("in_place", CASES)
def test_a_crash_at_any_point_is_finished_by_the_next_packer(
    tmp_path: Path, make_fs: MakeFs, in_place: bool
) -> None:
    gaps = 0
    points = make_place(tmp_path / "quiet", in_place=in_place).points_that_differ(make_fs)
    assert len(points) > 12
    for point in points:
        place = make_place(tmp_path / f"{point}", in_place=in_place)
        place.dies(make_fs(point))
        gaps += not place.is_whole()
        place.packs(make_fs(None))
        place.check_finished()
    # With an exchange a reader never finds nothing; with two renames only between them.
    assert (gaps > 0) == (in_place and make_fs is nfs)


@pytest.mark.parametrize("make_fs", KINDS)
@pytest.mark.parametrize("in_place", CASES)
def test_a_crash_of_the_recovery_itself_is_recovered_too(
    tmp_path: Path, make_fs: MakeFs, in_place: bool
) -> None:
    _crash_twice(tmp_path, make_fs, in_place=in_place, every=9)


@pytest.mark.slow
@pytest.mark.parametrize("make_fs", KINDS)
@pytest.mark.parametrize("in_place", CASES)
def test_a_crash_of_every_recovery_is_recovered_too(
    tmp_path: Path, make_fs: MakeFs, in_place: bool
) -> None:
    _crash_twice(tmp_path, make_fs, in_place=in_place, every=1)


def _crash_twice(tmp_path: Path, make_fs: MakeFs, *, in_place: bool, every: int) -> None:
    """Crash at every point, and then at every so many-th of what follows, from another one on."""
    crashes = 0
    for first in make_place(tmp_path / "quiet", in_place=in_place).points_that_differ(make_fs):
        place = make_place(tmp_path / f"{first}", in_place=in_place)
        place.dies(make_fs(first))
        for second in list(place.points_that_differ(make_fs))[first % every :: every]:
            place = make_place(tmp_path / f"{first}-{second}", in_place=in_place)
            place.dies(make_fs(first))
            place.dies(make_fs(second))
            crashes += 1
            place.packs(make_fs(None))
            place.check_finished()
    assert crashes > 100 // every


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOENT, errno.ESTALE])
@pytest.mark.parametrize("operation", ["exchange", "rename_no_replace", "replace"])
def test_a_move_that_happened_but_reported_an_error_counts(
    tmp_path: Path, operation: str, code: int
) -> None:
    for nth in itertools.count():
        place = make_place(tmp_path / f"{nth}", in_place=True)
        fs = nfs() if operation == "replace" else FaultyFileSystem()
        planned = fs.pending_faults
        fs.fail(operation, code, happens=True, skip=nth)
        place.packs(fs)
        place.check_finished()
        if fs.pending_faults > planned:
            assert nth > 0, "the fault came up at least once"
            return


@pytest.mark.parametrize("make_fs", KINDS)
def test_a_packer_that_was_superseded_before_its_exchange_fails_and_moves_nothing(
    tmp_path: Path, make_fs: MakeFs
) -> None:
    place = make_place(tmp_path / "p", in_place=True)
    zombie_fs = make_fs(None)
    # The successor does all its work while the first packer is frozen right before its exchange.
    zombie_fs.before("exchange", lambda: _ignore(place.packs(make_fs(None))))
    with pytest.raises((BusyError, TargetError)):
        place.packs(zombie_fs)
    place.check_finished()


def test_a_superseded_packer_without_exchange_does_not_move_the_target_for_a_moment(
    tmp_path: Path,
) -> None:
    place = make_place(tmp_path / "p", in_place=True)
    zombie_fs = nfs()

    zombie_fs.before("exchange", lambda: _ignore(place.begins()))
    with pytest.raises(BusyError):
        place.packs(zombie_fs)
    assert ("rename_no_replace", place.target) not in zombie_fs.operations
    assert content(place.target) == OLD


@pytest.mark.parametrize("as_former", [False, True], ids=["old", "former"])
@pytest.mark.parametrize("make_fs", KINDS)
def test_a_packer_frozen_at_any_point_cannot_undo_its_successor(
    tmp_path: Path, make_fs: MakeFs, as_former: bool
) -> None:
    """The successor runs to its end at every fifth point; then the zombie goes on."""
    for point in range(as_former, MOST_POINTS, 5):
        place = make_place(tmp_path / f"{point}", in_place=True, as_former=as_former)
        zombie_fs = _FreezingFileSystem(
            point, lambda place=place: _ignore(place.packs(make_fs(None)))
        )
        if make_fs is nfs:
            zombie_fs.fail("exchange", errno.EINVAL, times=None)
            zombie_fs.fail("rename_no_replace", errno.EINVAL, times=None)
        with suppress(BusyError, TargetError, FileNotFoundError):
            place.packs(zombie_fs)
        if zombie_fs.froze:
            # Whoever finished: nothing is lost, and one more run settles what is left. What the
            # zombie built after it was superseded may lie about, but nothing of the old tree.
            assert place.packs(make_fs(None)) is SwapOutcome.COMPLETED
            place.check_finished(litter=True)
        else:
            assert point > 20
            return
    pytest.fail("the packer never came to its end")


class _FreezingFileSystem(FaultyFileSystem):
    def __init__(self, freeze_at: int, meanwhile: Callable[[], None]) -> None:
        super().__init__()
        self._freeze_at = freeze_at
        self._meanwhile = meanwhile
        self.froze = False

    def _point(self) -> None:
        if self.points == self._freeze_at and not self.froze:
            self.froze = True
            self._meanwhile()
        super()._point()


def _ignore(_: object) -> None:
    return None


def test_a_failed_rename_leaves_everything_and_says_what_to_do(tmp_path: Path) -> None:
    for code, error in [(errno.EROFS, StorageError), (errno.EBUSY, TargetError)]:
        place = make_place(tmp_path / f"{code}", in_place=True)
        fs = FaultyFileSystem()
        fs.fail("exchange", code)
        with pytest.raises(error) as caught:
            place.packs(fs)
        assert isinstance(caught.value, StorageError | TargetError)
        assert caught.value.next_step
        assert content(place.target) == OLD
        place.packs(FaultyFileSystem())
        place.check_finished()


def test_a_target_that_appeared_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    place = make_place(tmp_path / "p", in_place=False)
    fs = nfs()

    def somebody_else() -> None:
        place.target.mkdir()
        (place.target / "theirs").write_text("precious")

    fs.before("rename_no_replace", somebody_else)
    with pytest.raises(TargetError) as caught:
        place.packs(fs)
    assert (place.target / "theirs").read_text() == "precious"
    assert any("new tree of this run" in line for line in caught.value.details)


def test_a_rolled_back_swap_can_begin_anew(tmp_path: Path) -> None:
    place, fs = _killed_between_the_renames(tmp_path), nfs()
    for generation in staging_generations(place.target, place.journal(LOCAL)):
        tree = place.root / f".set.leconvert-r1.{generation}"
        (tree / "content").unlink()
        (tree / ".leconvert-tree.json").unlink()
        tree.rmdir()
    journal = place.journal(fs)
    journal.begin()
    assert recover_swap(journal, place.target) is SwapOutcome.ROLLED_BACK
    assert content(place.target) == OLD
    place.packs(fs)
    place.check_finished()


def test_a_target_lost_by_a_dead_zombie_is_put_back_even_while_packing(tmp_path: Path) -> None:
    place = _killed_between_the_renames(tmp_path)
    journal = place.journal(nfs())
    journal.begin()
    journal.write(PackStep.PACKING)
    assert recover_swap(journal, place.target) is SwapOutcome.ROLLED_BACK
    assert content(place.target) == OLD
    place.packs(nfs())
    place.check_finished()


def _killed_between_the_renames(folder: Path) -> Place:
    """Return a place whose only packer died when nothing stood at the target."""
    for point in make_place(folder / "quiet", in_place=True).points_that_differ(nfs):
        place = make_place(folder / f"{point}", in_place=True)
        place.dies(nfs(point))
        if content(place.target) is None:
            return place
    raise AssertionError("no packer died there")


MISSING_, NEW_, OTHER_ = TreeState.MISSING, TreeState.NEW, TreeState.OTHER


@pytest.mark.parametrize("make_fs", KINDS)
def test_the_place_of_a_former_state_is_found_where_its_journal_is_no_longer_the_newest(
    tmp_path: Path, make_fs: MakeFs
) -> None:
    """The predecessor's note of the swap came when its successor had begun, and it died there."""
    noted = 0
    quiet = make_place(tmp_path / "quiet", in_place=True, as_former=True)
    for point in quiet.points_that_differ(make_fs):
        place = make_place(tmp_path / f"{point}", in_place=True, as_former=True)
        place.dies(make_fs(point))
        is_moved = content(place.target) != OLD
        if not is_moved or (content(place.target) and marked_by(place.target) is None):
            continue
        noted += 1
        journal = place.journal(make_fs(None))
        journal.begin()
        raw = place.run.journal_record(2).read_bytes()  # as if nothing was noted when it began
        record = json.loads(raw) | {"swap": None, "step": "packing"}
        place.run.journal_record(2).write_text(json.dumps(record))
        recover_swap(journal, place.target)
        place.packs(make_fs(None))
        place.check_finished()
    assert noted > 2


def test_a_table_of_what_a_packer_does_next() -> None:
    in_place = {
        (OTHER_, NEW_, MISSING_): Action.EXCHANGE,
        (MISSING_, NEW_, OTHER_): Action.MOVE_NEW_IN,
        (NEW_, OTHER_, MISSING_): Action.SET_OLD_ASIDE,
        (NEW_, MISSING_, OTHER_): Action.DONE,
        (MISSING_, MISSING_, OTHER_): Action.RESTORE_OLD,
        (MISSING_, MISSING_, NEW_): Action.RESTORE_OLD,
        (MISSING_, OTHER_, OTHER_): Action.RESTORE_OLD,
        (OTHER_, MISSING_, MISSING_): Action.SUPERSEDED,
        (OTHER_, MISSING_, OTHER_): Action.SUPERSEDED,
        (NEW_, MISSING_, MISSING_): Action.SUPERSEDED,
        (MISSING_, NEW_, MISSING_): Action.REFUSE,
        (OTHER_, NEW_, OTHER_): Action.REFUSE,
        (NEW_, OTHER_, OTHER_): Action.REFUSE,
        (MISSING_, MISSING_, MISSING_): Action.REFUSE,
        (MISSING_, OTHER_, MISSING_): Action.REFUSE,
        (OTHER_, OTHER_, MISSING_): Action.REFUSE,
    }
    for (target, staging, old), action in in_place.items():
        assert next_action(target, staging, old, keep_old=True) is action
    fresh = {
        (MISSING_, NEW_): Action.MOVE_NEW_IN,
        (NEW_, MISSING_): Action.DONE,
        (NEW_, OTHER_): Action.DONE,
        (MISSING_, MISSING_): Action.SUPERSEDED,
        (OTHER_, MISSING_): Action.SUPERSEDED,
        (OTHER_, NEW_): Action.REFUSE,
        (OTHER_, OTHER_): Action.REFUSE,
        (MISSING_, OTHER_): Action.REFUSE,
    }
    for (target, staging), action in fresh.items():
        assert next_action(target, staging, MISSING_, keep_old=False) is action


def test_a_table_of_what_the_next_process_does_about_it() -> None:
    in_place = {
        (OTHER_, NEW_, MISSING_): Action.NOT_STARTED,
        (OTHER_, NEW_, OTHER_): Action.NOT_STARTED,
        (OTHER_, MISSING_, MISSING_): Action.NOT_STARTED,
        (OTHER_, MISSING_, OTHER_): Action.NOT_STARTED,
        (MISSING_, NEW_, OTHER_): Action.RESTORE_OLD,
        (MISSING_, MISSING_, OTHER_): Action.RESTORE_OLD,
        (MISSING_, OTHER_, OTHER_): Action.RESTORE_OLD,
        (NEW_, OTHER_, MISSING_): Action.SET_OLD_ASIDE,
        (NEW_, MISSING_, OTHER_): Action.DONE,
        (NEW_, MISSING_, MISSING_): Action.DONE,
        (NEW_, OTHER_, OTHER_): Action.REFUSE,
        (MISSING_, NEW_, MISSING_): Action.REFUSE,
        (MISSING_, MISSING_, MISSING_): Action.REFUSE,
        (MISSING_, OTHER_, MISSING_): Action.REFUSE,
        (OTHER_, OTHER_, MISSING_): Action.REFUSE,
    }
    for (target, staging, old), action in in_place.items():
        assert next_recovery(target, staging, old, keep_old=True) is action
    fresh = {
        (MISSING_, NEW_): Action.NOT_STARTED,
        (MISSING_, MISSING_): Action.NOT_STARTED,
        (OTHER_, NEW_): Action.NOT_STARTED,
        (OTHER_, MISSING_): Action.NOT_STARTED,
        (NEW_, MISSING_): Action.DONE,
        (NEW_, OTHER_): Action.DONE,
        (MISSING_, OTHER_): Action.REFUSE,
        (OTHER_, OTHER_): Action.REFUSE,
    }
    for (target, staging), action in fresh.items():
        assert next_recovery(target, staging, MISSING_, keep_old=False) is action


def test_a_tree_that_is_not_new_never_replaces_one_that_is() -> None:
    for target, staging, old in itertools.product(TreeState, repeat=3):
        for keep_old in (True, False):
            action = next_action(target, staging, old, keep_old=keep_old)
            later = next_recovery(target, staging, old, keep_old=keep_old)
            assert later not in {Action.EXCHANGE, Action.MOVE_NEW_IN}, "nothing was compared"
            if action in {Action.EXCHANGE, Action.MOVE_NEW_IN}:
                assert staging is TreeState.NEW
                assert target is not TreeState.NEW
            if action is Action.EXCHANGE:
                assert old is TreeState.MISSING
            for any_action in (action, later):
                if any_action is Action.SET_OLD_ASIDE:
                    assert (target, old) == (TreeState.NEW, TreeState.MISSING)
                if any_action is Action.RESTORE_OLD:
                    assert target is TreeState.MISSING


def test_targets_that_cannot_be_swapped_are_refused_with_a_next_step(tmp_path: Path) -> None:
    target = tmp_path / "set"
    target.mkdir()
    dangling = tmp_path / "dangling"
    dangling.symlink_to(tmp_path / "nowhere")
    link = tmp_path / "link"
    link.symlink_to(target)
    file = tmp_path / "file"
    file.write_text("x")
    refused = [
        (target, None, "exists already"),
        (dangling, None, "leads nowhere"),
        (link, old_dir(link), "symbolic link"),
        (file, old_dir(file), "not a folder"),
        (tmp_path / "gone", old_dir(tmp_path / "gone"), "is gone"),
        (tmp_path / "a" / "b", None, "does not exist"),
        (file / "a" / "b", None, "file is not a folder"),
        (Path("/proc"), Path("/proc_old"), "mount point"),
    ]
    for path, old, said in refused:
        with pytest.raises(TargetError, match=said) as caught:
            check_target(path, old)
        assert caught.value.next_step
    check_target(target, old_dir(target))
    check_target(tmp_path / "fresh", None)


@pytest.mark.parametrize("kind", ["folder", "file", "dangling link"])
def test_an_old_tree_that_exists_is_never_overwritten(tmp_path: Path, kind: str) -> None:
    place = make_place(tmp_path / "p", in_place=True)
    old = tmp_path / "p" / "set_old"
    if kind == "folder":
        old.mkdir()
    elif kind == "file":
        old.write_text("precious")
    else:
        old.symlink_to(tmp_path / "nowhere")
    with pytest.raises(TargetError, match="set_old exists already") as caught:
        place.packs(FaultyFileSystem())
    assert f"Rename {old}" in str(caught.value.next_step)
    assert content(place.target) == OLD


def test_a_forced_conversion_keeps_an_equal_looking_result_apart(tmp_path: Path) -> None:
    # Old and new have the same info.json; only the run's own record tells them apart.
    place = make_place(tmp_path / "p", in_place=True)
    (place.target / "content").write_text(NEW)
    (place.target / "damaged").write_text("x")
    place.packs(FaultyFileSystem())
    assert not (place.target / "damaged").exists()
    assert (tmp_path / "p" / "set_old" / "damaged").exists()


def test_an_adopted_tree_keeps_what_its_predecessor_built(tmp_path: Path) -> None:
    place = make_place(tmp_path / "p", in_place=False)
    first, tree = place.begins()
    (tree / "content").write_text(NEW)
    second, adopted = place.begins()
    assert content(adopted) == NEW
    assert staging_generations(place.target, place.journal(LOCAL)) == [2]
    with pytest.raises(BusyError):
        adopt_staging(place.target, first)
    with pytest.raises(BusyError):
        first.write(PackStep.SWAPPED)
    assert adopt_staging(place.target, second) == adopted, "repeating it is harmless"


def test_two_packers_that_begin_at_once_get_different_generations(tmp_path: Path) -> None:
    place = make_place(tmp_path / "p", in_place=False)
    fs = FaultyFileSystem()
    fs.before("link", lambda: _ignore(place.journal(LOCAL).begin()))
    with pytest.raises(BusyError):
        place.journal(fs).begin()
    assert place.journal(LOCAL).read().generation == 1


def test_the_journal_hands_its_notes_to_the_next_packer(tmp_path: Path) -> None:
    place = make_place(tmp_path / "p", in_place=False)
    first = place.journal(LOCAL)
    first.begin()
    first.write(PackStep.SWAPPED, notes={"pushed": ["a"]})
    state = place.journal(LOCAL).begin()
    assert (state.generation, state.step, state.notes) == (2, PackStep.SWAPPED, {"pushed": ["a"]})


def test_an_exchange_that_says_yes_and_does_nothing_is_not_believed_for_ever(
    tmp_path: Path,
) -> None:
    class Idle(FaultyFileSystem):
        def exchange(self, one: Path, other: Path) -> None:  # noqa: ARG002
            self.operations.append(("exchange", one))

    place = make_place(tmp_path / "p", in_place=True)
    fs = Idle()
    with pytest.raises(TargetError, match="somebody moved folders of this run") as caught:
        place.packs(fs)
    assert [name for name, _ in fs.operations].count("exchange") < 20
    assert [line.rpartition(": ")[2] for line in caught.value.details] == [
        "another tree",
        "the new tree of this run",
        "does not exist",
    ]
    assert content(place.target) == OLD
    place.packs(FaultyFileSystem())
    place.check_finished()


@pytest.mark.parametrize("raw", [b"", b"{", b'{"format": "leconvert/tree", "version": 9}'])
def test_a_tree_whose_record_is_not_ours_is_another_tree(tmp_path: Path, raw: bytes) -> None:
    place = make_place(tmp_path / "p", in_place=True)
    (place.target / TREE_RECORD).write_bytes(raw)
    assert place.packs(FaultyFileSystem()) is SwapOutcome.COMPLETED
    assert content(place.target) == NEW
    assert (place.root / "set_old" / TREE_RECORD).read_bytes() == raw, "kept as it was"


def test_a_packer_frozen_before_it_makes_its_tree_takes_it_away_again(tmp_path: Path) -> None:
    place = make_place(tmp_path / "p", in_place=False)
    fs = FaultyFileSystem()
    journal = place.journal(fs)
    journal.begin()
    # It listed no tree; then its successor made one and swapped it in.
    fs.before("make_dir", lambda: _ignore(place.packs(FaultyFileSystem())))
    with pytest.raises(BusyError, match="Another packer took over"):
        adopt_staging(place.target, journal)
    place.check_finished()


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOENT])
def test_an_adoption_whose_answer_was_lost_counts(tmp_path: Path, code: int) -> None:
    place, fs = make_place(tmp_path / "p", in_place=True), FaultyFileSystem()
    place.begins()
    fs.fail("replace", code, match=".set.leconvert-r1.1", happens=True)
    place.packs(fs)
    place.check_finished()


def test_an_adoption_that_failed_leaves_the_tree_to_the_next(tmp_path: Path) -> None:
    place, fs = make_place(tmp_path / "p", in_place=True), FaultyFileSystem()
    place.begins()
    fs.fail("replace", errno.EROFS, match=".set.leconvert-r1.1")
    with pytest.raises(StorageError, match="read-only") as caught:
        place.packs(fs)
    assert caught.value.path == str(place.root)
    assert staging_generations(place.target, place.journal(LOCAL)) == [1]
    place.packs(FaultyFileSystem())
    place.check_finished()


def test_only_a_packer_that_began_writes_the_journal(tmp_path: Path) -> None:
    place = make_place(tmp_path / "p", in_place=False)
    with pytest.raises(RuntimeError, match="began"):
        place.journal(LOCAL).write(PackStep.SWAPPED)
    assert place.journal(LOCAL).generations() == []
    place.run.journal.rmdir()
    assert place.journal(LOCAL).generations() == [], "of a run that is half planned"
    assert place.journal(LOCAL).read().generation == 0


def test_a_step_of_a_later_release_is_refused_with_the_record_that_names_it(tmp_path: Path) -> None:
    place = make_place(tmp_path / "p", in_place=False)
    place.journal(LOCAL).begin()
    record = place.run.journal_record(1)
    record.write_bytes(record.read_bytes().replace(b'"packing"', b'"polishing"'))
    with pytest.raises(WorkDirError, match="does not know") as caught:
        place.journal(LOCAL).begin()
    assert caught.value.path == str(record)
    assert place.journal(LOCAL).generations() == [1], "nothing was written"


def test_a_target_in_a_folder_that_cannot_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, _: Path(path) != tmp_path)
    with pytest.raises(TargetError, match=f"may not write in the folder {tmp_path}") as caught:
        check_target(tmp_path / "set", None)
    assert caught.value.path == str(tmp_path / "set")
    assert "another folder" in str(caught.value.next_step)


# --- whose tree it is ----------------------------------------------------------------------------


def test_a_tree_without_the_runs_mark_is_never_taken_for_a_new_one(tmp_path: Path) -> None:
    place = make_place(tmp_path / "p", in_place=True)
    theirs = place.root / ".set.leconvert-r1.1"
    theirs.mkdir()
    (theirs / "content").write_text("precious")
    with pytest.raises(TargetError, match="does not have the mark of run") as caught:
        place.packs(FaultyFileSystem())
    assert caught.value.path == str(theirs)
    assert content(theirs) == "precious"
    theirs.rename(place.root / "theirs")  # as the message says
    place.packs(FaultyFileSystem())
    assert content(place.target) == NEW


def test_a_tree_that_a_crash_left_empty_or_with_half_a_mark_is_this_runs(tmp_path: Path) -> None:
    for raw in (None, b"", b'{"format": "lec'):
        place = make_place(tmp_path / f"{raw!r}", in_place=True)
        tree = place.root / ".set.leconvert-r1.1"
        tree.mkdir()
        if raw is not None:
            (tree / TREE_RECORD).write_bytes(raw)
        place.packs(FaultyFileSystem())
        place.check_finished()


def test_a_packer_that_lost_its_lock_does_not_build_in_the_users_old_tree(tmp_path: Path) -> None:
    """The first packer exchanges while the second, which began meanwhile, takes its tree over."""
    place = make_place(tmp_path / "p", in_place=True)
    tree = place.root / ".set.leconvert-r1.1"
    second_fs = FaultyFileSystem()
    second_fs.before("replace", lambda: LOCAL.exchange(tree, place.target), match=tree.name)

    def second_takes_over() -> None:
        second = place.journal(second_fs)
        second.begin()
        with pytest.raises(BusyError, match="took over"):
            adopt_staging(place.target, second)

    fs = FaultyFileSystem()
    fs.before("exchange", second_takes_over)
    with pytest.raises(BusyError):
        place.packs(fs)
    [kept] = place.root.glob(".set.leconvert-r1.*")
    assert content(kept) == OLD
    assert sorted(path.name for path in kept.iterdir()) == ["content"]
    assert content(place.target) == NEW
    assert place.packs(FaultyFileSystem()) is SwapOutcome.COMPLETED, (
        "by its mark, whatever the journal says"
    )
    place.check_finished()


@pytest.mark.parametrize("make_fs", KINDS)
@pytest.mark.parametrize("nth", range(4))
def test_two_runs_that_swap_at_one_target_in_the_same_moment_lose_nothing(
    tmp_path: Path, make_fs: MakeFs, nth: int
) -> None:
    """Their work dirs differ, and so their locks and journals; nothing else keeps them apart."""
    place = make_place(tmp_path / "p", in_place=True)
    other = Place(place.root, WorkDir(place.root / "other").run("r2"), in_place=True)
    other.run.journal.mkdir(parents=True)
    ended: list[str] = []

    def other_packs() -> None:
        with suppress(TargetError):
            other.packs(make_fs(None))
            ended.append("other")

    fs = make_fs(None)
    moment = ("exchange", "rename_no_replace", "replace", "sync_dir")[nth]
    fs.before(moment, other_packs, match="/p/.set" if nth < 3 else "/p")
    with suppress(TargetError):
        place.packs(fs)
        ended.append("mine")
    assert len(ended) == 1, "one of the two says that it is done"
    assert content(place.target) == NEW
    assert content(place.root / "set_old") == OLD
    lost = "r1" if ended == ["other"] else "r2"
    left = [path for path in place.root.iterdir() if path.name.startswith(".set.leconvert-")]
    met = not fs.pending_faults or make_fs is nfs
    assert [(content(path), f"-{lost}." in path.name) for path in left] == [(NEW, True)] * met
    assert not (place.target / TREE_RECORD).exists()


def test_another_runs_tree_that_comes_out_of_the_target_is_exchanged_back(tmp_path: Path) -> None:
    place = make_place(tmp_path / "p", in_place=True)
    other = Place(place.root, WorkDir(place.root / "other").run("r2"), in_place=True)
    other.run.journal.mkdir(parents=True)
    other_fs = FaultyFileSystem()
    other_fs.crash_before("rename_no_replace")

    def other_exchanges() -> None:
        with pytest.raises(CrashError):
            other.packs(other_fs)

    fs = FaultyFileSystem()
    fs.before("exchange", other_exchanges)
    with pytest.raises(TargetError, match="Another run put its result at"):
        place.packs(fs)
    assert (place.target / TREE_RECORD).read_bytes().count(b'"r2"') == 1
    assert content(place.root / ".set.leconvert-r2.1") == OLD
    assert content(place.root / ".set.leconvert-r1.1") == NEW
    assert not (place.root / "set_old").exists()
    other.packs(FaultyFileSystem())
    assert content(place.root / "set_old") == OLD


@pytest.mark.parametrize("make_fs", KINDS)
@pytest.mark.parametrize("when", ["before_exchange", "came_out"])
def test_a_last_look_that_fails_leaves_everything_where_it_was(
    tmp_path: Path, make_fs: MakeFs, when: str
) -> None:
    place = make_place(tmp_path / "p", in_place=True)
    journal = place.journal(make_fs(None))
    journal.begin()
    staging = adopt_staging(place.target, journal)
    (staging / "content").write_text(NEW)
    seen: list[str | None] = []

    def not_the_planned_one(*trees: Path) -> None:
        seen.extend(map(content, trees))
        raise TargetError("not what was planned")

    plan = SwapPlan(place.target, staging, place.old)
    with pytest.raises(TargetError, match="not what was planned"):
        swap_into_place(plan, journal, **{when: not_the_planned_one})  # type: ignore[arg-type]
    assert seen == ([OLD] if when == "came_out" else [])
    assert (content(place.target), content(staging)) == (OLD, NEW)


def test_a_second_rename_that_fails_takes_the_first_one_back(tmp_path: Path) -> None:
    place = make_place(tmp_path / "p", in_place=True)
    fs = nfs()
    fs.fail("replace", errno.EIO, match="/p/.set.leconvert-r1.1")
    with pytest.raises(StorageError):
        place.packs(fs)
    assert content(place.target) == OLD
    place.packs(nfs())
    place.check_finished()
