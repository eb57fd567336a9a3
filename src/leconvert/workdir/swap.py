"""Puts a finished tree in the place of another, so that a crash at any moment loses nothing.

Three paths matter: the *target*, the *staging* tree beside it, and *old*, the final path of a tree
that was at the target: ``<target>_old`` or a path of the run's own (`leconvert.workdir.former`).
The journal names it, so that a process that recovers a swap uses the same path. The new tree is
recognised by its mark (`mark_tree`).

**What exists decides the next step, never what an operation reported**: two pure tables,
`next_action` and `next_recovery`, look only at the three paths. If the file system exchanges two
names in one step, a reader always finds a whole dataset at the target. Elsewhere (NFS) there is
none for a moment between two renames.

**A tree that is being built** is beside its target under a name with its packer's generation. The
next packer first renames it to its own name (`adopt_staging`). Then every rename and exchange that
a predecessor may still send, after being frozen for an hour, finds nothing to move.

**A name does not prove the content of a tree**: after an exchange the user's own dataset is there.
A small record in the tree, ``.leconvert-tree.json``, names the run that made it. It is written when
the tree is made and removed when the tree is at the target. A tree without the run's mark is never
written to, and nothing is removed from it. Unlike inode numbers the mark survives every file
system's rename, and unlike ``info.json`` it differs between two conversions of the same source.

**Only a process that has just compared the new tree with its source puts it in place**
(`swap_into_place`). A process that comes after a crash (`recover_swap`) gives the old tree its name
if the exchange has happened, and otherwise takes everything back: the tree is then compared again.

**The tree that comes out of the target is checked before it gets its name.** If another run put its
own tree there at the same moment, the two are exchanged back.

**A removal that was frozen removes only its own folder.** It goes from folder to folder by their
handles, and no rename of a parent folder stops it. Suppose a packer was frozen half way through
removing its tree, lost its lock and came back: it would go on in the tree after its successor
adopted it, completed it and put it in place. So nothing is removed under a name that another
process may take up.

**A new tree is removed only if it carries its run's mark.** It first gets another name, as a work
dir does (`leconvert.workdir.removal`). The mark is read after that, and is removed last, so a
process that continues a removal sees whose tree it is.

A lock beside the target (`leconvert.workdir.locks.target_lock`) keeps runs with other work dirs
away, as far as locks can.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum, StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from leconvert.model.values import OVERLAY
from leconvert.model.versions import V3_VERSION
from leconvert.support.errors import (
    BusyError,
    LeconvertError,
    StorageError,
    TargetError,
    UsageError,
    WorkDirError,
)
from leconvert.support.file_calls import CANNOT_FLAG, is_mount_point, is_same_path
from leconvert.support.machine import may_act_for_owners
from leconvert.support.storage_errors import lacking_right, raise_storage_trouble, storage_errors
from leconvert.workdir.fs import (
    LOCAL,
    FileSystem,
    is_there,
    remove_tree,
    sync_dir,
    sync_tree,
)
from leconvert.workdir.records import (
    Journal,
    PackStep,
    WorkDir,
    beside,
    default_work_dir,
    encode_record,
    read_record,
    removed_folder,
)


class TreeState(Enum):
    """The content of one of the three paths."""

    MISSING = "missing"
    NEW = "new"
    OTHER = "other"


class Action(Enum):
    """The next step."""

    DONE = "done"
    NOT_STARTED = "nothing is moved"
    EXCHANGE = "exchange target and staging, or move the target to old"
    MOVE_NEW_IN = "rename staging to target"
    SET_OLD_ASIDE = "rename staging, which holds the old tree, to old"
    RESTORE_OLD = "rename old back to target"
    SUPERSEDED = "leave everything: another packer has the tree"
    REFUSE = "leave everything"


def next_action(target: TreeState, staging: TreeState, old: TreeState, *, keep_old: bool) -> Action:
    """Return the next step of the process that has just compared the new tree; a pure table."""
    missing, new, other = TreeState.MISSING, TreeState.NEW, TreeState.OTHER
    if target is new and keep_old and old is missing:
        return Action.SET_OLD_ASIDE if staging is other else Action.SUPERSEDED
    if target is new:
        return Action.REFUSE if keep_old and staging is other else Action.DONE
    if staging is new:
        if target is missing:
            return Action.REFUSE if keep_old and old is missing else Action.MOVE_NEW_IN
        return Action.EXCHANGE if keep_old and old is missing else Action.REFUSE
    if target is other:
        return Action.SUPERSEDED if staging is missing else Action.REFUSE
    # There is nothing at the target and no new tree beside it: a tree at `old` belongs there.
    if keep_old and old is not missing:
        return Action.RESTORE_OLD
    return Action.SUPERSEDED if staging is missing and not keep_old else Action.REFUSE


def next_recovery(
    target: TreeState, staging: TreeState, old: TreeState, *, keep_old: bool
) -> Action:
    """Return the next step of a process that finds another one's unfinished swap; a pure table.

    It has compared nothing, so it puts no new tree in place. After the exchange it gives the old
    tree its name; before the exchange it takes the swap back.
    """
    missing, new, other = TreeState.MISSING, TreeState.NEW, TreeState.OTHER
    if target is new:
        if keep_old and staging is other:
            return Action.SET_OLD_ASIDE if old is missing else Action.REFUSE
        return Action.DONE
    if staging is other:
        return Action.RESTORE_OLD if target is missing and old is not missing else Action.REFUSE
    if target is other or not keep_old:
        return Action.NOT_STARTED
    return Action.REFUSE if old is missing else Action.RESTORE_OLD


TREE_RECORD = ".leconvert-tree.json"
META = "meta"
"""The folder of a dataset that an overlay in place exchanges; other conversions exchange the
dataset.
"""
META_STAGING = f".{META}.leconvert-"
"""Prefix of names in a dataset's folder while this exchange is prepared."""
_TREE_VERSION = 1
_STILL_OPEN = ".nfs"  # an NFS client's name for a removed file that a process has open


def staging_dir(target: Path, run_id: str, generation: int) -> Path:
    """Return the path of a packer's new tree: ``.<name>.leconvert-<run id>.<generation>``."""
    return beside(target, f".{{}}.leconvert-{run_id}.{generation}")


def staging_generations(target: Path, journal: Journal) -> list[int]:
    """Return the generations of a run whose new tree exists, ascending.

    The folder is not listed, since thousands of results may be in it. Each packer begins its
    journal before its tree, so the journal knows all generations.
    """
    places = {
        number: staging_dir(target, journal.run_id, number) for number in journal.generations()
    }
    there = {path.name for path in _those_there(list(places.values()), journal.fs)}
    return [number for number, path in places.items() if path.name in there]


def trees_of_run(target: Path, journal: Journal) -> list[Path]:
    """Return the new trees of one run, also those being removed, without listing the folder."""
    numbers = journal.generations()
    trees = [
        staging_dir(place, journal.run_id, number)
        for place in (target, target / META)
        for number in numbers
    ]
    places = [place for tree in trees for place in (tree, removed_folder(tree))]
    return _those_there(places, journal.fs)


def _those_there(places: Sequence[Path], fs: FileSystem) -> list[Path]:
    there = set[Path]()
    for folder in dict.fromkeys(place.parent for place in places):
        names = [place.name for place in places if place.parent == folder]
        with suppress(FileNotFoundError, NotADirectoryError), storage_errors(folder):
            there.update(folder / name for name in fs.names_among(folder, names))
    return [place for place in places if place in there]


def staging_trees(target: Path) -> list[tuple[str, Path]]:
    """Return the new trees of all runs beside a target, or beside ``meta/`` in it.

    The folders are listed. Trees that are being removed (`leconvert.workdir.removal`) are included.

    Returns:
        Run id and path, sorted in each folder.
    """
    inside = []
    with suppress(FileNotFoundError, NotADirectoryError):
        inside = _trees_beside(target / META)
    return _trees_beside(target) + inside


def _trees_beside(target: Path) -> list[tuple[str, Path]]:
    real = Path(os.path.realpath(target))
    with storage_errors(real.parent):
        names = LOCAL.list_names(real.parent)
    trees = []
    for name in names:
        if (found := _TREE_NAME.search(name)) is not None:
            tree = real.with_name(f".{real.name}{found[0]}")
            if is_same_path(str(real.with_name(name)), str(tree)):
                trees.append((found[1], tree))
    return trees


_TREE_NAME = re.compile(r"\.leconvert-([A-Za-z0-9][A-Za-z0-9_-]*)\.[0-9]+(?:\.removed)?\Z")


def run_of(tree: Path) -> str:
    """Return the run in a new tree's name."""
    return tree.name.rpartition(".leconvert-")[2].partition(".")[0]


def marked_by(tree: Path, *, fs: FileSystem = LOCAL) -> str | None:
    """Return the run whose mark a tree carries; None for any other tree, or if there is no tree."""
    try:
        record = read_record(tree / TREE_RECORD, "tree", version=_TREE_VERSION, fs=fs)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except WorkDirError:
        return None  # torn, or another program's
    return str(record.get("run_id"))


def is_new_tree(tree: Path, run_id: str, *, fs: FileSystem = LOCAL) -> bool:
    """Return whether a run made this tree: it carries the run's mark, or is still empty.

    A torn mark counts as none: the mark is synced to disk before anything is put beside it.

    Raises:
        FileNotFoundError: There is no tree.
    """
    owner = marked_by(tree, fs=fs)
    if owner is not None:
        return owner == run_id
    with storage_errors(tree):
        try:
            names = fs.list_names(tree)
        except NotADirectoryError:
            return False
    return all(name == TREE_RECORD or name.startswith(_STILL_OPEN) for name in names)


def adopt_staging(target: Path, journal: Journal) -> Path:
    """Make the run's new tree this packer's own, whoever began it; make one if there is none.

    Call it after ``journal.begin()`` and `recover_swap`.

    Returns:
        The tree, which carries the run's mark.

    Raises:
        BusyError: Another packer took over.
        TargetError: A tree of that name does not carry the run's mark.
    """
    fs = journal.fs
    mine = staging_dir(target, journal.run_id, journal.generation)
    found = staging_generations(target, journal)
    if found and found[-1] > journal.generation:
        raise superseded(mine)
    if not found:
        with storage_errors(mine.parent):
            fs.make_dir(mine)
            if journal.read().generation != journal.generation:
                # This packer was frozen since the look above: the tree was not missing, but swapped
                # in.
                fs.remove_dir(mine)
                raise superseded(mine)
    else:
        _check_made_here(staging_dir(target, journal.run_id, found[-1]), target, journal)
        take_over(target, found[-1], journal)
        # A predecessor may have exchanged it for the target since the check.
        _check_made_here(mine, target, journal)
    mark_tree(mine, journal.run_id, fs=fs)
    sync_dir(mine.parent, fs=fs)
    return mine


def take_over(target: Path, generation: int, journal: Journal) -> Path:
    """Rename a predecessor's tree, whatever it holds, so that no other process can move it."""
    fs = journal.fs
    mine = staging_dir(target, journal.run_id, journal.generation)
    if generation != journal.generation:
        last = staging_dir(target, journal.run_id, generation)
        with storage_errors(mine.parent):
            try:
                fs.replace(last, mine)
            except OSError:
                # The answer of a rename may be lost; what exists now decides.
                if is_listed(last, fs) or not is_listed(mine, fs):
                    raise
        sync_dir(mine.parent, fs=fs)
    return mine


def _check_made_here(tree: Path, target: Path, journal: Journal) -> None:
    try:
        if is_new_tree(tree, journal.run_id, fs=journal.fs):
            return
    except FileNotFoundError:
        raise superseded(tree) from None
    if marked_by(target, fs=journal.fs) == journal.run_id:
        raise superseded(tree)
    raise TargetError(
        f"{tree} does not have the mark of run {journal.run_id}, so this run did not make it.",
        path=str(tree),
        next_step="The folder was not touched. Look at its content, give it another name, then "
        "run the same command again.",
    )


def mark_tree(tree: Path, run_id: str, *, fs: FileSystem = LOCAL) -> None:
    """Write a run's mark into a tree, which identifies it wherever it is moved.

    Raises:
        BusyError: The tree is gone, since another packer took over.
    """
    # Written in place: after a crash, a temporary file would stay in the dataset.
    record = tree / TREE_RECORD
    if marked_by(tree, fs=fs) == run_id:
        return
    try:
        with storage_errors(record):
            with suppress(FileNotFoundError):
                fs.remove_file(record)
            fs.write_new(record, encode_record("tree", _TREE_VERSION, run_id, {}), sync=True)
            fs.sync_dir(tree)
    except FileNotFoundError:
        raise superseded(tree) from None


def remove_new_tree(tree: Path, run_id: str) -> None:
    """Remove a packer's new tree, also after an interrupted removal.

    Raises:
        TargetError: The tree does not carry the run's mark.
    """
    doomed = tree if is_being_removed(tree) else removed_folder(tree)
    with suppress(FileNotFoundError):
        _check_mark(tree, run_id)
        if doomed != tree:
            with storage_errors(tree):
                tree.rename(doomed)
            try:
                # A packer that was frozen may have exchanged it for the target since.
                _check_mark(doomed, run_id)
            except TargetError:
                with storage_errors(tree):
                    doomed.rename(tree)
                raise
    # As for a work dir: a half-removed tree must not come back under a name that is taken up.
    sync_dir(tree.parent)
    with suppress(FileNotFoundError):
        _check_mark(doomed, run_id)
        for path in list(doomed.iterdir()):
            if path.is_dir() and not path.is_symlink():
                remove_tree(path)
            elif path.name != TREE_RECORD:
                with storage_errors(path), suppress(FileNotFoundError):
                    path.unlink()
        remove_tree(doomed)


def _check_mark(tree: Path, run_id: str) -> None:
    if not is_new_tree(tree, run_id):
        raise TargetError(
            f"{tree} does not have the mark of run {run_id}, so it may be a dataset.",
            path=str(tree),
            next_step="The folder was not touched. Look at its content, then give it another name.",
        )


def remove_left_trees(target: Path, journal: Journal) -> None:
    """Remove the trees of a run whose removal was interrupted."""
    for tree in trees_of_run(target, journal):
        if is_being_removed(tree):
            with suppress(TargetError):  # it stays: `leconvert clean` names it
                remove_new_tree(tree, journal.run_id)


def is_being_removed(tree: Path) -> bool:
    """Return whether this is the name of a new tree whose removal began."""
    return tree.suffix == removed_folder(tree).suffix


def superseded(staging: Path) -> BusyError:
    """Return the error for a tree that is no longer this packer's, ready to raise."""
    return BusyError(
        f"Another packer took over {staging}.",
        path=str(staging),
        next_step="Let the other packer finish. `leconvert status` shows its progress.",
    )


def is_listed(path: Path, fs: FileSystem) -> bool:
    """Return whether a folder has a name; an NFS client that looks up just the name may err."""
    return bool(fs.names_among(path.parent, [path.name]))


# "." and ".leconvert-<run id of 22 characters>.<generation>.removed" around the target's name; or
# "." and ".former-<run id>.leconvert-removed".
_LONGEST_ADDITION = 50
_MOST_TRIES = 8
# Errors that say nothing about whether folders can be renamed.
_OF_THE_DISK = frozenset(
    {errno.EIO, errno.ESTALE, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ETIMEDOUT}
)

_SOURCE_TABLE = "meta/episodes.jsonl"
_RESULT_TABLE = "meta/episodes"


def info_path(root: Path) -> Path:
    """Return the path of the file that describes the dataset in a folder."""
    return root / "meta/info.json"


def old_dir(target: Path) -> Path:
    """Return where the tree at a target is kept: ``<target>_old``, as in LeRobot's script."""
    return beside(target, "{}_old")


def source_dir(target: Path) -> Path:
    """Return the folder for a source that is downloaded for one conversion, beside its result."""
    return target.with_name(f".{target.name}.leconvert-source")


def removed_old_dir(target: Path) -> Path:
    """Return the name of the tree kept at `old_dir` while it is removed."""
    return removed_dir(old_dir(target))


def removed_dir(kept: Path) -> Path:
    """Return the name of a tree that was put aside while it is removed."""
    return kept.with_name(f".{kept.name}.leconvert-removed")


def result_aside(target: Path, version: str = "v3.0") -> Path:
    """Return the path at which an undo keeps the result: ``<target>_v30`` or ``_v21``."""
    return beside(target, f"{{}}_{version.replace('.', '')}")


def exchanged_place(source: Path, target: Path, layout: str) -> Path:
    """Return the folder that a swap exchanges: the target, or an overlay's ``meta/`` in place."""
    return target / META if source == target and layout == OVERLAY else target


def overlaid_meta(root: Path) -> Path | None:
    """Return the path of the v2.x ``meta/`` that an overlay in place replaced; None without one.

    It also exists while the folder has no ``meta/``, between two renames of a swap.
    """
    kept = old_dir(root / META)
    is_v2 = (kept / "episodes.jsonl").is_file()
    return kept if is_v2 and not has_source_tables(root) else None


def kept_meta(root: Path) -> frozenset[str]:
    """Return the names of folders that an overlay, or its undo, keeps in a dataset's folder."""
    places = (old_dir(root / META), result_aside(root / META))
    return frozenset(place.name for place in places if (place / _INFO_NAME).is_file())


def codebase_version(root: Path) -> str | None:
    """Return a dataset's ``codebase_version``, or None if there is no readable dataset.

    Raises:
        StorageError: The disk fails, so the version is not known.
    """
    path = info_path(root)
    try:
        # Opening a pipe would wait for a writer.
        version = json.loads(path.read_bytes()).get("codebase_version") if path.is_file() else None
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise_storage_trouble(error, path)  # if the disk fails, its content is not known
        return None
    return version if isinstance(version, str) else None


def is_converted(root: Path, to: str = V3_VERSION) -> bool:
    """Return whether a dataset of the version is here, judged by its files, too."""
    if codebase_version(root) != to:
        return False
    has_result_table = (root / _RESULT_TABLE).is_dir()
    if to == V3_VERSION:  # tools leave a table of v2.x beside those of v3.0
        return has_result_table or not has_source_tables(root)
    return has_source_tables(root) and not has_result_table


def has_source_tables(root: Path) -> bool:
    """Return whether a v2.x dataset's table of episodes is here, which v3.0 does not read."""
    return (root / _SOURCE_TABLE).is_file()


def check_target(target: Path, old: Path | None) -> None:
    """Refuse a target that a swap could not replace; call it before any work is done, too.

    Args:
        target: The target.
        old: The path for the tree at the target; None if nothing must be there.

    Raises:
        TargetError: The target cannot be replaced.
    """
    if target.is_symlink():
        raise refusal(
            target,
            f"{target} is a symbolic link" + ("" if target.exists() else " that leads nowhere"),
            "Give the folder that the link leads to, or another name.",
        )
    _check_parent(target)
    parent = target.parent
    longest = os.pathconf(parent, "PC_NAME_MAX") - _LONGEST_ADDITION
    if len(os.fsencode(target.name)) > longest:
        raise refusal(
            target,
            f"The name {target.name} is too long: leconvert makes folders with this name "
            f"and up to {_LONGEST_ADDITION} further bytes",
            f"Choose an --output whose name has at most {longest} bytes.",
        )
    if not os.access(parent, os.W_OK | os.X_OK):
        said, helps = lacking_right(parent, "wx", "write in the folder")
        raise refusal(target, said.rstrip("."), f"{helps} Or choose another folder for the result.")
    if old is None:
        if is_there(target):
            raise refusal(
                target,
                f"{target} exists already",
                "Choose another folder for the result, or move the existing one away.",
            )
        return
    if not target.is_dir():
        raise refusal(
            target,
            f"{target} is not a folder" if is_there(target) else f"{target} is gone",
            "Give the folder of the dataset.",
        )
    if is_mount_point(target):
        raise refusal(
            target,
            f"{target} is a mount point and cannot be renamed",
            "Convert into another folder with --output.",
        )
    if _only_its_owner_may_rename(target):
        raise refusal(
            target,
            f"{target} cannot be renamed: it belongs to another user, and in {parent} only owners "
            "may rename (its sticky bit is set)",
            "Convert into a folder of your own with --output, or work as the user to whom "
            "the dataset belongs.",
        )
    if is_there(old):
        raise refusal(
            old,
            f"{old} exists already, but the dataset at {target} would be kept there",
            f"Rename {old}. Or `leconvert clean --of {shlex.quote(str(target))} --old` "
            f"removes it if every byte of it is proven to be in {target}.",
        )


def try_renames(target: Path, *, fs: FileSystem = LOCAL) -> None:
    """Rename empty folders beside a target as the swap will do; call it before any work.

    In some folders one can make names but not change them: append-only folders (``chattr +a``), and
    some mounts of object stores. This test cannot show the properties of the target itself, such as
    its owner or a mount on it; `check_target` checks these.

    Raises:
        TargetError: Folders cannot be renamed there.
    """
    # Fixed names: folders that a dead process left are reused, and a folder of thousands is not
    # listed.
    one, other = (
        target.with_name(f".{target.name}.leconvert-try-{os.geteuid()}-{end}") for end in (1, 2)
    )
    failure = OSError()
    for _ in range(_MOST_TRIES):
        with storage_errors(target.parent):
            one.mkdir(0o700, exist_ok=True)
            other.mkdir(0o700, exist_ok=True)
        try:
            _exchange_if_possible(one, other, fs)
            other.rmdir()
            fs.replace(one, other)
        except OSError as error:
            failure = error
            # A planner with another work dir may have reused them.
            if error.errno != errno.ENOENT:
                break
        else:
            return
        finally:
            for path in (one, other) * 2:  # a single error of the disk leaves none there
                with suppress(OSError):
                    path.rmdir()
    if failure.errno in _OF_THE_DISK:
        with storage_errors(target.parent):
            raise failure
    raise refusal(
        target,
        f"Folders in {target.parent} cannot be renamed: {failure.strerror}",
        "Choose an --output in another folder.",
    ) from failure


def _exchange_if_possible(one: Path, other: Path, fs: FileSystem) -> None:
    try:
        fs.exchange(one, other)
    except OSError as error:
        if error.errno not in CANNOT_FLAG:
            raise


def _only_its_owner_may_rename(target: Path) -> bool:
    above, there = target.parent.stat(), target.lstat()
    if not above.st_mode & stat.S_ISVTX or os.geteuid() in {above.st_uid, there.st_uid}:
        return False
    return not may_act_for_owners()


def refusal(path: Path, message: str, next_step: str) -> TargetError:
    """Return the error that refuses a target; it adds the sentence's full stop."""
    return TargetError(f"{message}.", path=str(path), next_step=next_step)


_MOST_STEPS = 8
_INFO_NAME = "info.json"
_INFO_PATH = f"{META}/{_INFO_NAME}"

TreeStates = tuple[TreeState, TreeState, TreeState]


class SwapOutcome(StrEnum):
    """The outcome of recovering an interrupted swap."""

    NOT_STARTED = "not-started"
    ROLLED_BACK = "rolled-back"
    COMPLETED = "completed"


class SwapPlan(NamedTuple):
    """The three paths of a swap; all are siblings.

    Attributes:
        target: Path for the new tree; not a symbolic link.
        staging: The new tree, in this packer's own folder.
        old: Path for the tree that is at the target; None if there must be none.
    """

    target: Path
    staging: Path
    old: Path | None


def swap_into_place(
    plan: SwapPlan,
    journal: Journal,
    *,
    before_exchange: Callable[[], None] | None = None,
    came_out: Callable[[Path], None] | None = None,
) -> None:
    """Put the finished tree at ``plan.staging`` in the target's place.

    Everything in it must be complete and verified by this process, and the files' contents must be
    on the disk; this function syncs only their names.

    Write order: names of the new tree; journal ``swapping``; the moves; journal ``swapped``; the
    new tree's mark is removed. After a crash `recover_swap` completes the swap or takes it back.

    Args:
        plan: The three paths.
        journal: The run's journal.
        before_exchange: Called right before the first move, for example to check once more whether
            the source changed. If it raises, the swap stops with nothing moved.
        came_out: Called with the tree that was at the target, before that tree gets its name. If it
            raises, the swap is taken back.

    Raises:
        TargetError: The target cannot be replaced, or another run put its result there.
        BusyError: Another packer took over.
    """
    fs = journal.fs
    check_target(plan.target, plan.old)
    check_no_other_swap(plan.target, journal.run_id, fs=fs)
    if marked_by(plan.staging, fs=fs) != journal.run_id:
        raise superseded(plan.staging)
    sync_tree(plan.staging, files=False, fs=fs)
    seen = _content(plan.target, fs)
    if before_exchange is not None:
        before_exchange()

    def check(tree: Path) -> None:
        if _content(tree, fs) != seen:
            raise refusal(
                plan.target,
                f"Another run put its result at {plan.target} at the same moment",
                "Look at that result before you convert again with --force-conversion.",
            )
        if came_out is not None:
            came_out(tree)

    journal.write(
        PackStep.SWAPPING,
        swap={"target": str(plan.target), "old": None if plan.old is None else str(plan.old)},
    )
    _swap(plan, has_mark_of(journal.run_id, fs), check, fs)
    _finish(plan.target, journal)


def recover_marked(plan: SwapPlan, run_id: str) -> SwapOutcome:
    """Complete or take back an `exchange_trees` of a repair; call it under the target's lock.

    It compares nothing and deletes nothing. A new tree that was not put in place stays at its path.
    """
    if marked_by(plan.target) != run_id:
        # Between two renames the new tree is beside the target; without it, this run moved nothing
        # here.
        is_gone = not is_listed(plan.target, LOCAL) and marked_by(plan.staging) == run_id
        if not is_gone or plan.old is None or not is_listed(plan.old, LOCAL):
            return SwapOutcome.NOT_STARTED
    outcome = _settle(plan, run_id, LOCAL)
    if outcome is SwapOutcome.COMPLETED:
        remove_mark(plan.target, run_id)
    return outcome


def exchange_trees(
    plan: SwapPlan,
    *,
    is_new: Callable[[Path], bool],
    came_out: Callable[[Path], None],
    run_id: str = "-",
    fs: FileSystem = LOCAL,
) -> None:
    """Put a tree in the target's place without a journal: the three paths alone show the state.

    A repair puts its new tree there, and an undo the source that was kept. The tree must be
    complete, on the disk, and compared by this process, which holds the target's lock. After a
    crash the same call completes the exchange; nothing is deleted.

    Args:
        plan: The three paths; ``staging`` is the tree, and ``old`` the path for the tree at the
            target, None exactly if there must be none.
        is_new: Recognises the tree that goes in, wherever it is.
        came_out: Called with the tree that was at the target, before that tree gets its name. If it
            raises, the moves are taken back.
        run_id: The mark that a tree at the target may carry.
        fs: The file operations.
    """
    if plan.old is None or (not is_new(plan.target) and is_listed(plan.target, fs)):
        check_target(plan.target, plan.old)  # nothing was moved yet
        check_no_other_swap(plan.target, run_id, fs=fs)
        sync_tree(plan.staging, files=False, fs=fs)
    _swap(plan, is_new, came_out, fs)


def take_back_undo(
    target: Path,
    *,
    kept: Path | None = None,
    aside: Path,
    is_source: Callable[[Path], bool],
    fs: FileSystem = LOCAL,
) -> None:
    """Put the result back at the target if an undo was interrupted; otherwise do nothing."""
    plan = SwapPlan(target, kept or old_dir(target), aside)
    seen = _look(plan, is_source, fs)
    if _came_out(plan, seen) is not None:
        _take_back(plan, seen, fs)


def has_mark_of(run_id: str, fs: FileSystem = LOCAL) -> Callable[[Path], bool]:
    """Return a function that recognises the trees with a run's mark."""
    return lambda tree: marked_by(tree, fs=fs) == run_id


def check_no_other_swap(target: Path, run_id: str, *, fs: FileSystem = LOCAL) -> None:
    """Refuse a target at which another run has put its tree without completing its swap.

    Raises:
        TargetError: The target carries another run's mark.
    """
    owner = marked_by(target, fs=fs)
    if owner not in {None, run_id}:
        raise refusal(
            target,
            f"{target} is the result of run {owner}, which is not finished",
            "Run the command of that run again to finish it. If its work dir does not "
            f"exist any more, give {target} another name.",
        )


def recover_swap(journal: Journal, target: Path) -> SwapOutcome:
    """Complete or take back a swap that was interrupted, if there was one.

    Call it after ``journal.begin()``, before anything looks at the target: between two renames the
    dataset is not there. It compares nothing and deletes nothing.

    Returns:
        ``COMPLETED`` if an earlier process put the new tree in place; the caller must check whether
        it is still there and complete. ``ROLLED_BACK`` if the old tree was put back,
        ``NOT_STARTED`` if nothing had been moved.
    """
    state, swap, fs = journal.read(), journal.last_swap(), journal.fs
    # The mark counts more than the journal: a packer that lost its lock may have swapped while this
    # one began, and recorded it in a record that nobody reads.
    is_in = marked_by(target, fs=fs) == journal.run_id
    if state.is_packed:
        _finish(target, journal)
        return SwapOutcome.COMPLETED
    if not is_in and (swap is None or (state.step is PackStep.PACKING and is_listed(target, fs))):
        return SwapOutcome.NOT_STARTED
    # While packing, the target can be missing only because a superseded packer died between its two
    # renames (a swap without an exchange). That is repaired like a swap of our own.
    found = _generation_to_settle(target, journal, is_in=is_in)
    # Take it over first: once it has our name, no other process can move it.
    staging = staging_dir(target, journal.run_id, journal.generation)
    if found is not None:
        take_over(target, found, journal)
    old = old_of_swap(target, swap)
    if old is None and is_in and found is not None:
        old = old_dir(target) if marked_by(staging, fs=fs) != journal.run_id else None
    plan = SwapPlan(target, staging, old)
    outcome = _settle(plan, journal.run_id, fs)
    if outcome is SwapOutcome.COMPLETED:
        _finish(target, journal)
    else:
        journal.write(PackStep.PACKING)
    return outcome


def old_of_swap(target: Path, swap: Mapping[str, Any] | None) -> Path | None:
    """Return the path that a journal's swap gives the tree at the target; None if it has none."""
    name = (swap or {}).get("old")
    return None if name is None else Path(os.path.realpath(target)).with_name(Path(name).name)


def _generation_to_settle(target: Path, journal: Journal, *, is_in: bool) -> int | None:
    """Return the generation of the old tree if the new one is in, else the newest generation."""
    generations = staging_generations(target, journal)
    if is_in:
        others = [
            number
            for number in generations
            if marked_by(staging_dir(target, journal.run_id, number), fs=journal.fs)
            != journal.run_id
        ]
        return others[-1] if others else None
    return generations[-1] if generations else None


def _swap(
    plan: SwapPlan,
    is_new: Callable[[Path], bool],
    check: Callable[[Path], None],
    fs: FileSystem,
) -> None:
    """Put the new tree in, or raise with everything as it was, as far as the disk allows."""
    failure: OSError | None = None
    for _ in range(_MOST_STEPS):
        seen = _look(plan, is_new, fs)
        action = next_action(*seen, keep_old=plan.old is not None)
        if action is Action.DONE:
            sync_dir(plan.target.parent, fs=fs)
            return
        if action is Action.SUPERSEDED:
            raise superseded(plan.staging)
        if action is Action.REFUSE:
            if plan.old is not None and seen[:2] == (TreeState.NEW, TreeState.OTHER):
                # Another run that swapped here put something at `old` meanwhile.
                _take_back(plan, seen, fs)
            raise _unexpected(plan, seen)
        if (where := _came_out(plan, seen)) is not None:
            try:
                check(where)
            except (LeconvertError, OSError):
                _take_back(plan, seen, fs)
                raise
        try:
            _act(action, plan, fs)
        except OSError as error:
            if _look(plan, is_new, fs) == seen:
                # It reported an error and nothing moved. One attempt is enough: the state is known.
                failure = error
                break
        sync_dir(plan.target.parent, fs=fs)
    seen = _look(plan, is_new, fs)
    if failure is None:
        raise _unexpected(plan, seen)
    if seen[0] is TreeState.MISSING and plan.old is not None:
        _take_back(plan, seen, fs)  # readers must not be without a dataset until the next run
    with storage_errors(plan.target):
        if failure.errno in {errno.EBUSY, errno.EXDEV}:
            raise refusal(
                plan.target,
                f"{plan.target} cannot be renamed: {failure.strerror}",
                "Convert into another folder with --output.",
            ) from failure
        raise failure


def _settle(plan: SwapPlan, run_id: str, fs: FileSystem) -> SwapOutcome:
    """Complete or take back a swap that another process began."""
    is_new = has_mark_of(run_id, fs)
    restored = False
    for _ in range(_MOST_STEPS):
        seen = _look(plan, is_new, fs)
        action = next_recovery(*seen, keep_old=plan.old is not None)
        if action is Action.DONE:
            sync_dir(plan.target.parent, fs=fs)
            return SwapOutcome.COMPLETED
        if action is Action.NOT_STARTED:
            return SwapOutcome.ROLLED_BACK if restored else SwapOutcome.NOT_STARTED
        is_foreign = action is Action.SET_OLD_ASIDE and marked_by(plan.staging, fs=fs) is not None
        if action is Action.REFUSE or is_foreign:
            raise _unexpected(plan, seen)
        try:
            _act(action, plan, fs)
        except OSError:
            if _look(plan, is_new, fs) == seen:
                with storage_errors(plan.target):
                    raise
        restored = restored or action is Action.RESTORE_OLD
        sync_dir(plan.target.parent, fs=fs)
    raise _unexpected(plan, _look(plan, is_new, fs))


def _came_out(plan: SwapPlan, seen: TreeStates) -> Path | None:
    """Return the path of the tree that was at the target and has just been taken away."""
    if plan.old is None:
        return None
    if seen[0] is TreeState.NEW and seen[1] is TreeState.OTHER:
        return plan.staging
    if seen[0] is TreeState.MISSING and seen[1] is TreeState.NEW:
        return plan.old
    return None


def _take_back(plan: SwapPlan, seen: TreeStates, fs: FileSystem) -> None:
    # A tree that cannot be moved back stays where it is; the next run recognises that state.
    with suppress(OSError):
        if seen[0] is TreeState.NEW:
            fs.exchange(plan.staging, plan.target)
        elif plan.old is not None:
            _rename(plan.old, plan.target, fs)
        fs.sync_dir(plan.target.parent)


def _act(action: Action, plan: SwapPlan, fs: FileSystem) -> None:
    if action is Action.MOVE_NEW_IN:
        _rename(plan.staging, plan.target, fs)
    elif plan.old is None:
        raise AssertionError(action)
    elif action is Action.SET_OLD_ASIDE:
        _rename(plan.staging, plan.old, fs)
    elif action is Action.RESTORE_OLD:
        _rename(plan.old, plan.target, fs)
    else:
        try:
            fs.exchange(plan.staging, plan.target)
        except OSError as error:
            if error.errno not in CANNOT_FLAG:
                raise
            # A superseded packer must not move the target away: look again right before.
            if is_listed(plan.staging, fs):
                _rename(plan.target, plan.old, fs)


def _rename(source: Path, target: Path, fs: FileSystem) -> None:
    try:
        fs.rename_no_replace(source, target)
    except OSError as error:
        if error.errno not in CANNOT_FLAG:
            raise
        # A plain rename of a folder replaces at most an empty folder.
        fs.replace(source, target)


def _look(plan: SwapPlan, is_new: Callable[[Path], bool], fs: FileSystem) -> TreeStates:
    places = (plan.target, plan.staging, plan.old)
    with storage_errors(plan.target.parent):
        names = fs.names_among(
            plan.target.parent, [place.name for place in places if place is not None]
        )
    target, staging, old = (
        TreeState.MISSING
        if place is None or place.name not in names
        else TreeState.NEW
        if is_new(place)
        else TreeState.OTHER
        for place in places
    )
    return target, staging, old


def _content(tree: Path, fs: FileSystem) -> tuple[bytes | None, ...]:
    """Return what distinguishes a tree from another run's: its mark, if any, and its info.

    A tree is a dataset, or the ``meta/`` of one.
    """

    def read(path: Path) -> bytes | None:
        with storage_errors(path):
            try:
                return fs.read_bytes(path)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                return None

    return tuple(read(tree / name) for name in (TREE_RECORD, _INFO_PATH, _INFO_NAME))


def _finish(target: Path, journal: Journal) -> None:
    if journal.read().step in {PackStep.PACKING, PackStep.SWAPPING}:
        journal.write(PackStep.SWAPPED)
    remove_mark(target, journal.run_id, fs=journal.fs)


def remove_mark(target: Path, run_id: str, *, fs: FileSystem = LOCAL) -> None:
    """Remove a run's mark from a tree, if the tree carries it."""
    record = target / TREE_RECORD
    if marked_by(target, fs=fs) == run_id:
        with storage_errors(record), suppress(FileNotFoundError):
            fs.remove_file(record)
        sync_dir(target, fs=fs)


def _unexpected(plan: SwapPlan, seen: TreeStates) -> TargetError:
    words = {
        TreeState.MISSING: "does not exist",
        TreeState.NEW: "the new tree of this run",
        TreeState.OTHER: "another tree",
    }
    places = [plan.target, plan.staging, *([plan.old] if plan.old is not None else [])]
    return TargetError(
        f"The result cannot be put in place at {plan.target}: somebody moved folders of this run.",
        path=str(plan.target),
        details=[f"{place}: {words[state]}" for place, state in zip(places, seen, strict=False)],
        next_step=f"Move the dataset that you want to keep: its new place is {plan.target}. Move "
        "the other folders of this run to another place. Then run the same command again.",
    )


def check_places(
    source: Path,
    target: Path,
    work_dir: Path,
    *,
    outlined: bool = False,
    makes_folder: bool = False,
) -> None:
    """Refuse paths that would mix source, target and work dir.

    Args:
        source: The source.
        target: The folder of the result.
        work_dir: The folder of the run's state.
        outlined: Whether the source is an outline, which lies in the work dir.
        makes_folder: Whether the caller makes the folder of the target.

    Raises:
        UsageError: One path is inside another.
        StorageError: The work dir is not a folder.
        TargetError: The folder of the target does not exist.
    """
    places = {"source": source, "target": target, "work dir": work_dir}
    for inner, outer in (
        # A target in the source also puts its default work dir there, so name the target.
        ("target", "source"),
        ("source", "target"),
        ("work dir", "source"),
        ("work dir", "target"),
        ("target", "work dir"),
        ("source", "work dir"),
    ):
        if (inner, outer) in {("target", "source"), ("source", "target")} and source == target:
            continue
        if (inner, outer) == ("source", "work dir") and outlined:
            continue
        if (inner, outer) == ("target", "work dir") and target == WorkDir.migrated(source):
            continue
        if lies_in(places[inner], places[outer]):
            raise UsageError(
                f"The {inner} {places[inner]} lies inside the {outer} {places[outer]}.",
                path=str(places[inner]),
                next_step="Choose folders side by side.",
            )
    if is_there(work_dir) and not work_dir.is_dir():
        raise StorageError(
            f"Cannot use {work_dir} as a work dir: it is not a folder.",
            path=str(work_dir),
            next_step="Give a folder, or a path that does not exist yet.",
        )
    _check_parent(target, makes_folder=makes_folder)


def _check_parent(target: Path, *, makes_folder: bool = False) -> None:
    """Refuse a target whose folder does not exist or is none."""
    nearest = nearest_above(target)
    if not nearest.is_dir():
        raise refusal(target, f"{nearest} is not a folder", "Choose another folder for the result.")
    if nearest != target.parent and not makes_folder:
        said = f"The folder {target.parent} does not exist"
        raise refusal(target, said, "Make this folder first.")


def nearest_above(path: Path) -> Path:
    """Return the first of the places above an absolute path that exists."""
    return next(place for place in path.parents if is_there(place))


def lies_in(inner: Path, outer: Path) -> bool:
    """Return whether a resolved path is a folder or lies in it, also in another spelling."""
    if inner.is_relative_to(outer):
        return True
    parts = inner.parts[: len(outer.parts)]
    return is_same_path(str(Path(*parts)), str(outer))


def is_same_folder(one: Path, other: Path) -> bool:
    """Return whether two resolved paths are one folder, which may be mounted twice."""
    with suppress(OSError):
        return is_same_path(str(one), str(other)) or one.samefile(other)
    return False


def source_as_output(source: Path) -> UsageError:
    """Return the error that refuses the source itself as output."""
    return UsageError(
        f"--output is the source itself, {source}. A conversion with --output never changes "
        "its source.",
        path=str(source),
        next_step="Leave --output out to convert in place. The source is then kept as "
        f"{source.name}_old.",
    )


def work_dir_beside(target: Path) -> Path:
    """Return the default work dir beside a target, unless it may be a trap.

    The records in a work dir say what is renamed and removed. So in a folder where anybody may make
    folders, a work dir of another user is used only if the user names it. In a folder where only
    some users may write, they trust each other; and a user who names a work dir trusts everybody
    who can write there.

    Raises:
        WorkDirError: Another user made it, in a folder where anybody may write.
    """
    work = WorkDir(default_work_dir(target))
    with suppress(FileNotFoundError, NotADirectoryError):
        for path in _records(work):
            if _may_be_planted(path):
                raise WorkDirError(
                    f"{path} belongs to another user (user id {path.lstat().st_uid}), and "
                    f"everybody may write to {path.parent}. leconvert uses such a work "
                    "dir only if the command names it with --work-dir.",
                    path=str(path),
                    next_step="If you trust that user, add `--work-dir "
                    f"{shlex.quote(str(work.root))}`, or run `leconvert clean "
                    f"{shlex.quote(str(work.root))}`. Otherwise use another --work-dir.",
                )
    return work.root


def _records(work: WorkDir) -> Iterator[Path]:
    """Yield the paths that others could plant, from the work dir down."""
    yield work.root
    yield from sorted(work.root.iterdir())
    for run_id in work.list_runs():
        run = work.run(run_id)
        yield run.root
        yield from sorted(run.root.iterdir())
        if run.journal.is_dir():
            yield from sorted(run.journal.iterdir())


def _may_be_planted(path: Path) -> bool:
    above, owner = path.parent.stat(), path.lstat().st_uid
    if not above.st_mode & stat.S_IWOTH or owner in {0, os.geteuid(), above.st_uid}:
        return False
    # Files of this user may belong to another one: on an NFS server that does not trust this host's
    # root, and on mounts with an owner of their own.
    with suppress(OSError), tempfile.TemporaryFile(dir=path.parent) as own:
        return owner != os.fstat(own.fileno()).st_uid
    return True
