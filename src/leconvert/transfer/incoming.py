"""A downloaded dataset: it arrives in a hidden folder and gets its name when it is complete.

The folder is ``.<name>.leconvert-download``, beside the dataset's future path. Complete files are
in ``tree``, under their paths. Incomplete files are in ``begun``, outside the tree, so their names
cannot collide with a dataset's files. One process at a time downloads to a path: ``lock`` excludes
others.
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
from leconvert.support.file_calls import folded_name, is_same_path
from leconvert.support.storage_errors import storage_errors
from leconvert.workdir.fs import sync_dir, sync_tree
from leconvert.workdir.locks import hold_lock


def download_dir(target: Path) -> Path:
    """Return the folder of an incoming dataset: ``.<name>.leconvert-download``."""
    return target.with_name(f".{target.name.lstrip('.')}.leconvert-download")


def source_dir(target: Path) -> Path:
    """Return the folder for the source of a result: ``.<name>.leconvert-source`` beside it."""
    return target.with_name(f".{target.name}.leconvert-source")


def part_in(folder: Path, path: str) -> Path:
    """Return the path of a file while it is incomplete; the same one after a crash."""
    return folder / "begun" / hashlib.sha256(os.fsencode(path)).hexdigest()


def not_fetched_from(folder: Path, place: str, found: str | None) -> TargetError:
    """Return the error for a folder that is neither used as a download nor replaced."""
    said = f"{folder} exists, but no record says that it was downloaded from {place}."
    if found is not None:
        said = f"{folder} was downloaded from {found}, not from {place}."
    aside = folder.with_name(f"{folder.name.lstrip('.')}.other")
    return TargetError(
        said,
        path=str(folder),
        next_step=f"Move the folder away with `mv {shlex.quote(str(folder))} "
        f"{shlex.quote(str(aside))}`, then run the same command again.",
    )


class Incoming:
    """A folder in which a dataset arrives; see `incoming`.

    Attributes:
        target: The dataset's path.
        folder: The hidden folder.
        tree: Complete files, under their paths.
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        self.folder = download_dir(target)
        self.tree = self.folder / "tree"

    def part(self, path: str) -> Path:
        """Return the path of a file while it is incomplete."""
        return part_in(self.folder, path)

    def keep(self, wanted: Collection[str]) -> None:
        """Remove files that are not wanted, their incomplete parts, and folders without files.

        Their room is needed, and a file may now have the name of an earlier folder, or the reverse.
        """
        begun = self.folder / "begun"
        for folder in (self.tree, begun):
            folder.mkdir(exist_ok=True)
        parts = {self.part(path) for path in wanted}
        spelled = {folded_name(path): path for path in wanted if not path.isascii()}
        for path in begun.iterdir():
            if path not in parts:
                path.unlink()
        for path in sorted(self.tree.rglob("*"), reverse=True):  # children before their folder
            if path.is_dir() and not path.is_symlink():
                with suppress(OSError):  # the folder is not empty
                    path.rmdir()
            else:
                name = path.relative_to(self.tree).as_posix()
                other = spelled.get(folded_name(name))
                is_other = other and is_same_path(str(path), str(self.tree / other))
                if name not in wanted and not is_other:
                    path.unlink()

    def size_bytes(self) -> int:
        """Return the number of bytes that have arrived."""
        found = (path for name in ("tree", "begun") for path in (self.folder / name).rglob("*"))
        return sum(path.lstat().st_size for path in found if path.is_file())

    def take_back(self) -> None:
        """Move an earlier download back, to arrive again: unchanged files are already there."""
        if self.tree.exists():
            shutil.rmtree(self.tree)
        self.target.rename(self.tree)

    def finish(self) -> None:
        """Sync everything to disk and give it its name: **the commit point**."""
        sync_tree(self.tree)
        self.tree.rename(self.target)
        sync_dir(self.target.parent)


@contextmanager
def incoming(target: Path) -> Iterator[Incoming]:
    """Hold the folder in which a dataset arrives; its files stay for the next call.

    Raises:
        BusyError: Another process downloads to the same path.
    """
    arriving = Incoming(target)
    with storage_errors(arriving.folder), ExitStack() as stack:
        arriving.folder.mkdir(parents=True, exist_ok=True)
        lock = arriving.folder / "lock"
        try:
            stack.enter_context(hold_lock(lock, "download", run_id="-"))
        except (BusyError, FileNotFoundError) as error:  # or its holder ended at this moment
            raise BusyError(
                f"Another process is downloading a dataset to {target}.",
                path=str(arriving.folder),
                next_step="Wait for that process or stop it. Then run the same command again.",
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
