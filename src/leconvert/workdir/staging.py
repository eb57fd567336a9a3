"""New trees while packers build them: where they are, and whose they are.

A tree lies beside its target under a name that carries its packer's generation. The next packer
first renames it to its own name (`adopt_staging`): then every rename and exchange that a
predecessor may still send, after being frozen for an hour, finds nothing to move.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from leconvert.errors import BusyError
from leconvert.workdir.durable import storage_errors, sync_dir
from leconvert.workdir.filesystem import LOCAL, FileSystem
from leconvert.workdir.journal import Journal

__all__ = [
    "adopt_staging",
    "is_listed",
    "staging_dir",
    "staging_generations",
    "staging_trees",
    "superseded",
]


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


def adopt_staging(target: Path, journal: Journal, *, create: bool = True) -> Path | None:
    """Make the run's staging tree this packer's own, whoever began it.

    Call it after ``journal.begin()`` and `recover_swap`.

    Args:
        target: Where the tree will go.
        journal: The run's journal; its generation names the tree.
        create: Whether to make an empty tree where there is none.

    Returns:
        The tree, or None where there is none and none was to be made.

    Raises:
        BusyError: A newer packer has it.
        StorageError: The folder above cannot be written.
    """
    fs = journal.fs
    mine = staging_dir(target, journal.run_id, journal.generation)
    found = staging_generations(target, journal.run_id, fs=fs)
    if found and found[-1] > journal.generation:
        raise superseded(mine)
    if not found and not create:
        return None
    with storage_errors(mine.parent):
        if not found:
            fs.make_dir(mine)
            if journal.read().generation != journal.generation:
                # Frozen since the list above: the tree was not missing but swapped in.
                fs.remove_dir(mine)
                raise superseded(mine)
        elif found[-1] != journal.generation:
            last = staging_dir(target, journal.run_id, found[-1])
            try:
                fs.replace(last, mine)
            except OSError:
                # The answer of a rename may be lost; what is there now is what counts.
                if is_listed(last, fs) or not is_listed(mine, fs):
                    raise
    sync_dir(mine.parent, fs=fs)
    return mine


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
