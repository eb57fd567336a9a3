"""What a power failure leaves: what was forced to the disk, and of the rest as much as you like.

Only this survives for sure: a file's bytes as they were when the file was last forced to the disk,
and the names in a folder as they were when the folder was. Everything else may be there or not, in
any order, whatever the file system. `PowerModel` follows the operations of a `WatchedDisk` and
knows both sides; `PowerModel.fail` turns a folder into one of the extremes (`Loss`).

Folders are told apart from the one at the top: a rename there and removals below it are made
durable by different calls, so one may survive without the other.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

__all__ = ["Loss", "PowerModel"]

# Taken before anybody watches: what the model does to the disk is no operation of the program.
_link, _open, _read, _fstat, _close = os.link, os.open, os.read, os.fstat, os.close

_WRITES = frozenset(
    {"write", "pwrite", "writev", "pwritev", "copy_file_range", "sendfile", "clone"}
    | {"ftruncate", "truncate", "posix_fallocate"}
)
_RENAMES = frozenset({"rename", "replace", "rename_no_replace"})
_RANDOM = re.compile(r"[0-9a-f]{6,}|\d+")
_REMOVALS = frozenset({"unlink", "remove", "rmdir"})


class Loss(StrEnum):
    """Which of the things that were not forced to the disk are gone."""

    ALL = "names and data lost"
    DATA = "data lost"
    NAMES = "names lost"
    TOP = "data lost, names lost in the topmost folder"
    BELOW = "data lost, names lost below the topmost folder"

    @property
    def keeps_data(self) -> bool:
        """Whether files have the bytes that were written last."""
        return self is Loss.NAMES

    def keeps_names(self, *, top: bool) -> bool:
        """Whether a folder has the names that it was given last."""
        return self is Loss.DATA or (self is Loss.TOP and not top) or (self is Loss.BELOW and top)


@dataclass(slots=True)
class _Node:
    """A file or folder.

    ``names`` are a folder's entries as programs see them, ``kept_names`` as they are on the disk.
    ``version`` counts what was written to a file; ``kept`` are the bytes of ``kept_version``.
    """

    is_folder: bool
    names: dict[str, int] = field(default_factory=dict)
    kept_names: dict[str, int] = field(default_factory=dict)
    version: int = 0
    kept_version: int = -1
    kept: bytes = b""
    kept_times: tuple[int, int] | None = None


class PowerModel:
    """Follows what a program does below a folder, and what of it is on the disk for sure.

    What is there at the beginning is on the disk. Removed files live on in another folder until
    the model is done with, since their names may come back.

    Args:
        root: The folder, without symbolic links in its path.
        graveyard: A folder that does not exist, beside it on the same file system.
    """

    def __init__(self, root: Path, graveyard: Path) -> None:
        self._root = root
        self._graveyard = graveyard
        graveyard.mkdir()
        self._nodes: list[_Node] = []
        self._add_existing(root)

    def _add_existing(self, path: Path) -> int:
        node = _Node(path.is_dir())
        self._nodes.append(node)
        number = len(self._nodes) - 1
        if node.is_folder:
            for name in sorted(os.listdir(path)):  # noqa: PTH208
                node.names[name] = self._add_existing(path / name)
            node.kept_names = dict(node.names)
        else:
            self._keep_content(node, str(path))
        return number

    def before(self, name: str, paths: tuple[str, ...]) -> None:
        """Save a file that an operation may take the last name of."""
        if name not in _REMOVALS | _RENAMES:
            return
        number = self._find(paths[-1])
        if number is None or self._nodes[number].is_folder:
            return
        with suppress(FileExistsError):  # saved when it lost another name
            _link(paths[-1], self._graveyard / str(number))

    def after(self, name: str, paths: tuple[str, ...]) -> None:
        """Follow an operation that succeeded."""
        if name == "exchange":
            one, other = self._place(paths[0]), self._place(paths[1])
            if one is not None and other is not None:
                (first, name_there), (second, name_here) = one, other
                first[name_there], second[name_here] = second[name_here], first[name_there]
        elif name in _RENAMES or name == "link":
            source, target = self._place(paths[0]), self._place(paths[1])
            if source is not None and target is not None:
                target[0][target[1]] = source[0][source[1]]
                if name != "link":
                    del source[0][source[1]]
        elif (place := self._place(paths[0])) is None:
            if paths[0] == str(self._root) and name in {"fsync", "fdatasync"}:
                self._nodes[0].kept_names = dict(self._nodes[0].names)
        elif name in _REMOVALS:
            place[0].pop(place[1], None)
        elif name == "mkdir" or (name == "open" and place[1] not in place[0]):
            self._nodes.append(_Node(name == "mkdir"))
            place[0][place[1]] = len(self._nodes) - 1
        elif place[1] in place[0]:
            self._touch(name, self._nodes[place[0][place[1]]], paths[0])

    def _touch(self, name: str, node: _Node, path: str) -> None:
        if name in {"fsync", "fdatasync"}:
            if node.is_folder:
                node.kept_names = dict(node.names)
            else:
                self._keep_content(node, path)
        elif name in _WRITES or name == "open":  # an open that makes a file empties it too
            node.version += 1

    def _keep_content(self, node: _Node, path: str) -> None:
        descriptor = _open(path, os.O_RDONLY)
        try:
            seen = _fstat(descriptor)
            node.kept = b"".join(iter(lambda: _read(descriptor, 1 << 20), b""))
        finally:
            _close(descriptor)
        node.kept_times = (seen.st_atime_ns, seen.st_mtime_ns)
        node.kept_version = node.version

    def signature(self, loss: Loss) -> tuple[tuple[str, int, int], ...]:
        """Return what a failure now would leave: paths, and which file with which content.

        Equal values are equal folders, but for numbers and random digits in names.
        """
        return tuple(self._signs(loss, 0, "", set()))

    def _signs(
        self, loss: Loss, number: int, folder: str, seen: set[int]
    ) -> Iterator[tuple[str, int, int]]:
        for name, child in self._entries(loss, number, seen):
            node, path = self._nodes[child], f"{folder}/{_RANDOM.sub('#', name)}"
            yield path, child, node.version if loss.keeps_data else node.kept_version
            if node.is_folder:
                yield from self._signs(loss, child, path, seen)

    def _entries(self, loss: Loss, number: int, seen: set[int]) -> list[tuple[str, int]]:
        node = self._nodes[number]
        names = node.names if loss.keeps_names(top=number == 0) else node.kept_names
        entries = []
        for name, child in names.items():
            if self._nodes[child].is_folder:
                if child in seen:
                    continue  # renamed from one folder to another: that is one step everywhere
                seen.add(child)
            entries.append((name, child))
        return entries

    def fail(self, loss: Loss) -> None:
        """Turn the folder into what a failure now leaves. Nobody may use it meanwhile.

        Files keep their inodes, and their times where they keep their bytes.
        """
        paths: dict[int, Path] = {}
        self._locate(0, self._root, paths)
        after = self._root.with_name(f"{self._root.name}-after")
        after.mkdir()
        self._build(loss, 0, after, paths, set())
        gone = self._root.with_name(f"{self._root.name}-gone")
        self._root.rename(gone)
        after.rename(self._root)
        shutil.rmtree(gone)
        self.forget()

    def forget(self) -> None:
        """Remove what was kept of removed files."""
        shutil.rmtree(self._graveyard, ignore_errors=True)

    def _locate(self, number: int, path: Path, paths: dict[int, Path]) -> None:
        paths[number] = path
        for name, child in self._nodes[number].names.items():
            self._locate(child, path / name, paths)

    def _build(
        self, loss: Loss, number: int, folder: Path, paths: dict[int, Path], seen: set[int]
    ) -> None:
        for name, child in self._entries(loss, number, seen):
            node, path = self._nodes[child], folder / name
            if node.is_folder:
                path.mkdir()
                self._build(loss, child, path, paths, seen)
                continue
            path.hardlink_to(paths.get(child, self._graveyard / str(child)))
            if not loss.keeps_data and node.version != node.kept_version:
                path.write_bytes(node.kept)
                if node.kept_times is not None:
                    os.utime(path, ns=node.kept_times)

    def _place(self, path: str) -> tuple[dict[str, int], str] | None:
        folder, _, name = path.rpartition("/")
        number = self._find(folder)
        return None if number is None else (self._nodes[number].names, name)

    def _find(self, path: str) -> int | None:
        root = str(self._root)
        if path == root:
            return 0
        if not path.startswith(f"{root}/"):
            return None
        number: int | None = 0
        for name in path[len(root) + 1 :].split("/"):
            number = None if number is None else self._nodes[number].names.get(name)
        return number
