"""A dataset that is fetched: it arrives in a hidden folder and gets its name when it is whole.

The folder is ``.<name>.leconvert-download``, beside the place where the dataset will be. What is
complete lies in ``tree``, under its path; what is not lies in ``begun``, so that no file of any
dataset can have its name. One process at a time fetches to a place: ``lock`` excludes the others.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from leconvert.support.errors import BusyError, TargetError
from leconvert.support.storage_errors import storage_errors
from leconvert.workdir.fs import sync_dir, sync_tree
from leconvert.workdir.locks import hold_lock


def download_dir(target: Path) -> Path:
    """Return where a dataset is while it arrives: ``.<name>.leconvert-download``."""
    return target.with_name(f".{target.name.lstrip('.')}.leconvert-download")


def source_dir(target: Path) -> Path:
    """Return where the source of a result is brought: ``.<name>.leconvert-source`` beside it."""
    return target.with_name(f".{target.name}.leconvert-source")


def part_in(folder: Path, path: str) -> Path:
    """Return where a file is as long as it is not complete; the same place after a crash."""
    return folder / "begun" / hashlib.sha256(os.fsencode(path)).hexdigest()


def not_fetched_from(folder: Path, place: str, found: str | None) -> TargetError:
    """Return the error for a folder that is neither used as what was fetched nor replaced."""
    said = f"{folder} is there, and nothing says that it was fetched from {place}."
    if found is not None:
        said = f"{folder} was fetched from {found}, not from {place}."
    aside = folder.with_name(f"{folder.name.lstrip('.')}.other")
    return TargetError(
        said,
        path=str(folder),
        next_step=f"Move it away, `mv {shlex.quote(str(folder))} {shlex.quote(str(aside))}`, then "
        "run the same command again.",
    )


class Incoming:
    """A folder in which a dataset arrives; see `incoming`.

    Attributes:
        target: The dataset's place.
        folder: The hidden folder.
        tree: Complete files, under their paths.
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        self.folder = download_dir(target)
        self.tree = self.folder / "tree"

    def part(self, path: str) -> Path:
        """Return where a file is as long as it is not complete."""
        return part_in(self.folder, path)

    def keep(self, wanted: Collection[str]) -> None:
        """Remove files that are not wanted, what was begun of such, and folders without files.

        Their room is needed, and a file may be now where a folder was, or the other way round.
        """
        begun = self.folder / "begun"
        for folder in (self.tree, begun):
            folder.mkdir(exist_ok=True)
        parts = {self.part(path) for path in wanted}
        for path in begun.iterdir():
            if path not in parts:
                path.unlink()
        for path in sorted(self.tree.rglob("*"), reverse=True):  # what is in a folder before it
            if path.is_dir() and not path.is_symlink():
                with suppress(OSError):  # it holds something
                    path.rmdir()
            elif path.relative_to(self.tree).as_posix() not in wanted:
                path.unlink()

    def size_bytes(self) -> int:
        """Return the bytes that have arrived."""
        found = (path for name in ("tree", "begun") for path in (self.folder / name).rglob("*"))
        return sum(path.lstat().st_size for path in found if path.is_file())

    def take_back(self) -> None:
        """Let a dataset that was fetched before arrive again: what has not changed is there."""
        if self.tree.exists():
            shutil.rmtree(self.tree)
        self.target.rename(self.tree)

    def finish(self) -> None:
        """Force all of it to the disk and give it its name: **the commit point**."""
        sync_tree(self.tree)
        self.tree.rename(self.target)
        sync_dir(self.target.parent)


@contextmanager
def incoming(target: Path) -> Iterator[Incoming]:
    """Hold the folder in which a dataset arrives; what is in it stays for the next call."""
    arriving = Incoming(target)
    with storage_errors(arriving.folder), ExitStack() as stack:
        arriving.folder.mkdir(parents=True, exist_ok=True)
        lock = arriving.folder / "lock"
        try:
            stack.enter_context(hold_lock(lock, "download", run_id="-"))
        except (BusyError, FileNotFoundError) as error:  # or its holder ended at this moment
            raise BusyError(
                f"Another process fetches a dataset to {target}.",
                path=str(arriving.folder),
                next_step="Wait for it, or stop it; then run the same command again.",
            ) from error
        try:
            yield arriving
        finally:
            _remove_if_nothing_is_left(arriving.folder)


def _remove_if_nothing_is_left(folder: Path) -> None:
    with suppress(OSError):
        for name in ("begun", "tree"):
            with suppress(FileNotFoundError):
                (folder / name).rmdir()
        for path in folder.glob("lock*"):
            path.unlink()
        folder.rmdir()
