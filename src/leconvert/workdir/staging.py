"""New trees while packers build them: where they are, and whose they are.

A tree lies beside its target under a name that carries its packer's generation. The next packer
first renames it to its own name (`adopt_staging`): then every rename and exchange that a
predecessor may still send, after being frozen for an hour, finds nothing to move.

**A name does not tell what is in a tree**: after an exchange the user's own dataset lies there. A
small record in the tree, ``.leconvert-tree.json``, names the run that made it. It is written when
the tree is made and removed when the tree stands at the target. Nothing is written into a tree, and
nothing of it is removed, that does not carry the run's mark. Unlike inode numbers the mark survives
every file system's rename, and unlike ``info.json`` it differs between two conversions of the same
source.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from leconvert.errors import BusyError, TargetError, WorkDirError
from leconvert.workdir.durable import storage_errors, sync_dir
from leconvert.workdir.filesystem import LOCAL, FileSystem
from leconvert.workdir.journal import Journal
from leconvert.workdir.records import encode_record, read_record

__all__ = [
    "TREE_RECORD",
    "adopt_staging",
    "is_listed",
    "is_new_tree",
    "marked_by",
    "run_of",
    "staging_dir",
    "staging_generations",
    "staging_trees",
    "superseded",
    "take_over",
]

TREE_RECORD = ".leconvert-tree.json"
_TREE_VERSION = 1
_STILL_OPEN = ".nfs"  # what an NFS client makes of a removed file that somebody has open


def staging_dir(target: Path, run_id: str, generation: int) -> Path:
    """Return where a packer builds the new tree: ``.<name>.leconvert-<run id>.<generation>``.

    Args:
        target: Where the tree will go; symbolic links are followed first.
        run_id: The run.
        generation: The packer's generation, from 1.
    """
    real = Path(os.path.realpath(target))
    return real.with_name(f".{real.name}.leconvert-{run_id}.{generation}")


def staging_generations(target: Path, run_id: str, *, fs: FileSystem = LOCAL) -> list[int]:
    """Return the generations of a run whose new tree is there, ascending.

    Raises:
        FileNotFoundError: The folder that would hold the target does not exist.
        StorageError: It cannot be read.
    """
    real = Path(os.path.realpath(target))
    pattern = re.compile(re.escape(f".{real.name}.leconvert-{run_id}.") + r"([0-9]+)\Z")
    with storage_errors(real.parent):
        names = fs.list_names(real.parent)
    return sorted(int(found[1]) for name in names if (found := pattern.match(name)))


def staging_trees(target: Path, *, fs: FileSystem = LOCAL) -> list[tuple[str, Path]]:
    """Return the new trees of all runs that lie beside a target: run id and path, sorted.

    Those that are being removed (`leconvert.workdir.removal`) are among them.

    Raises:
        FileNotFoundError: The folder that would hold the target does not exist.
        StorageError: It cannot be read.
    """
    real = Path(os.path.realpath(target))
    name, rest = re.escape(f".{real.name}.leconvert-"), r"\.[0-9]+(?:\.removed)?\Z"
    pattern = re.compile(name + r"([A-Za-z0-9][A-Za-z0-9_-]*)" + rest)
    with storage_errors(real.parent):
        names = fs.list_names(real.parent)
    return [(found[1], real.with_name(name)) for name in names if (found := pattern.match(name))]


def run_of(tree: Path) -> str:
    """Return the run that a new tree's name names."""
    return tree.name.rpartition(".leconvert-")[2].partition(".")[0]


def marked_by(tree: Path, *, fs: FileSystem = LOCAL) -> str | None:
    """Return the run whose mark a tree carries; None for any other tree, or where there is none."""
    try:
        record = read_record(tree / TREE_RECORD, "tree", version=_TREE_VERSION, fs=fs)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except WorkDirError:
        return None  # torn, or of another program's making
    return str(record.get("run_id"))


def is_new_tree(tree: Path, run_id: str, *, fs: FileSystem = LOCAL) -> bool:
    """Tell whether a run made this tree: it carries the run's mark, or holds nothing at all yet.

    A mark that a crash tore is nothing: it is on the disk before anything is put beside it.

    Raises:
        FileNotFoundError: There is no such tree.
        StorageError: It cannot be read.
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
    """Make the run's new tree this packer's own, whoever began it; make one where there is none.

    Call it after ``journal.begin()`` and `leconvert.workdir.swap.recover_swap`.

    Args:
        target: Where the tree will go.
        journal: The run's journal; its generation names the tree.

    Returns:
        The tree, which carries the run's mark.

    Raises:
        BusyError: A newer packer has it, or swapped it in meanwhile.
        TargetError: What has its name is not a tree that this run made; it was not touched.
        StorageError: The folder above cannot be written.
    """
    fs = journal.fs
    mine = staging_dir(target, journal.run_id, journal.generation)
    found = staging_generations(target, journal.run_id, fs=fs)
    if found and found[-1] > journal.generation:
        raise superseded(mine)
    if not found:
        with storage_errors(mine.parent):
            fs.make_dir(mine)
            if journal.read().generation != journal.generation:
                # Frozen since the list above: the tree was not missing but swapped in.
                fs.remove_dir(mine)
                raise superseded(mine)
    else:
        _check_made_here(staging_dir(target, journal.run_id, found[-1]), target, journal)
        take_over(target, found[-1], journal)
        # A predecessor may have exchanged it for the target since it was looked at.
        _check_made_here(mine, target, journal)
    _mark(mine, journal)
    sync_dir(mine.parent, fs=fs)
    return mine


def take_over(target: Path, generation: int, journal: Journal) -> Path:
    """Rename what has a predecessor's name, whatever it is, so that nobody else can move it."""
    fs = journal.fs
    mine = staging_dir(target, journal.run_id, journal.generation)
    if generation != journal.generation:
        last = staging_dir(target, journal.run_id, generation)
        with storage_errors(mine.parent):
            try:
                fs.replace(last, mine)
            except OSError:
                # The answer of a rename may be lost; what is there now is what counts.
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
        f"{tree} does not carry the mark of run {journal.run_id}, so this run did not make it.",
        path=str(tree),
        next_step="It was not touched. Look at what it holds, move it to a name of its own, and "
        "run the same command again.",
    )


def _mark(tree: Path, journal: Journal) -> None:
    # Written in place, without a temporary file that a crash would leave in the dataset.
    record, fs = tree / TREE_RECORD, journal.fs
    if marked_by(tree, fs=fs) == journal.run_id:
        return
    try:
        with storage_errors(record):
            with suppress(FileNotFoundError):
                fs.remove_file(record)
            fs.write_new(
                record, encode_record("tree", _TREE_VERSION, journal.run_id, {}), sync=True
            )
            fs.sync_dir(tree)
    except FileNotFoundError:
        raise superseded(tree) from None


def superseded(staging: Path) -> BusyError:
    """Return the error for a tree that is no longer this packer's, ready to raise."""
    return BusyError(
        f"{staging} was taken over by another packer.",
        path=str(staging),
        next_step="Let it finish; `leconvert status` shows how far it is.",
    )


def is_listed(path: Path, fs: FileSystem) -> bool:
    """Tell whether a folder lists a name; an NFS client that looks for it alone may be wrong."""
    return path.name in fs.list_names(path.parent)
