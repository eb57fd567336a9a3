"""The files in a dataset's folder that belong to the dataset.

``docs/cli.md`` has them as a table. Code that deletes keeps every unknown file. Code that uploads
leaves out every file that could be private.
"""

from __future__ import annotations

import errno
import json
import os
import shlex
import stat
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path, PurePosixPath

from leconvert.support.errors import SourceError, UnreadableSourceError
from leconvert.support.file_calls import folded_name, is_same_path
from leconvert.support.storage_errors import CHECK_DISK, denied, storage_errors
from leconvert.support.text import count, shown
from leconvert.support.values import dataclass
from leconvert.workdir.records import WorkDir
from leconvert.workdir.swap import (
    META,
    META_STAGING,
    TREE_RECORD,
    info_path,
    kept_meta,
    overlaid_meta,
)

CARD_BEGIN = "<!-- leconvert: this part is written anew with every push -->"
EPISODE_FOLDERS = ("data", "videos")
GIT_FILES = frozenset({".gitattributes"})
"""Every repo on the Hub and every download of it has these. They do not belong to the dataset."""
UPLOAD_CLAIM = ".leconvert-upload-"
"""Prefix of an object that is in other storage until an upload is complete."""
UPLOAD_MARKER = ".leconvert-upload.json"
"""Its name in earlier versions."""

_SHOWN = 20
_EPISODE_PREFIXES = tuple(f"{folder}/" for folder in EPISODE_FOLDERS)
# These may be links: parts of a dataset can be on several disks.
_PARTS = frozenset({*EPISODE_FOLDERS, "meta"})
_PART_PREFIXES = tuple(f"{folder}/" for folder in _PARTS)
_TOOL_FOLDERS = frozenset({".cache", ".git"})
_LITTER = frozenset({".DS_Store", "Thumbs.db", "desktop.ini", TREE_RECORD, UPLOAD_MARKER})
# macOS writes these beside files, on file systems without its extended attributes (exFAT, SMB).
_APPLE_DOUBLE, _APPLE_DOUBLE_MAGIC = "._", bytes.fromhex("00051607")
# Nothing else below `.cache` is known: LeRobot's own home is `~/.cache/huggingface/lerobot`.
_RECORDS = ".cache/leconvert/"
_CLIENT = ".cache/huggingface/"
_CLIENT_FILES = frozenset({f"{_CLIENT}{name}" for name in (".gitignore", "CACHEDIR.TAG")})
_CLIENT_FOLDERS = (f"{_CLIENT}download/", f"{_CLIENT}upload/")
_CLIENT_SUFFIXES = (".metadata", ".lock", ".incomplete")


def is_download(root: Path) -> bool:
    """Return whether a dataset's folder was downloaded, or stands for a dataset on the Hub."""
    if any((root / folder).is_dir() for folder in (_RECORDS, f"{_CLIENT}download")):
        return True
    # ``snapshots/COMMIT`` of the client's cache, and ``outlines/COMMIT/tree`` of a work dir.
    folders = [root.parent, root.parent.parent]
    return folders[0].name == "snapshots" or folders[1] == WorkDir(folders[1].parent).outlines_dir


class Links:
    """Resolves links of a dataset.

    Args:
        root: The dataset's folder.
        with_parts: Whether ``data``, ``meta`` and ``videos`` belong to the dataset even if they are
            links to other disks, as in a source.
    """

    def __init__(self, root: Path, *, with_parts: bool) -> None:
        self._root = root
        real = Path(os.path.realpath(root))
        folders = [real]
        # A snapshot in the Hub client's cache has links to the blobs beside it.
        if real.parent.name == "snapshots":
            folders.append(real.parent.parent / "blobs")
        if with_parts:
            folders += [root / part for part in sorted(_PARTS)]
        self._inside = [f"{os.path.realpath(folder)}{os.sep}" for folder in folders]

    def target(self, path: str) -> str | None:
        """Resolve a path of the dataset to a path below it; None if it leads out of the dataset.

        A path that is not a link leads to itself.
        """
        place = os.path.join(self._root, path)  # noqa: PTH118 - once for every file
        if not os.path.islink(place):  # noqa: PTH114
            return path
        real = os.path.realpath(place)
        for folder in self._inside:
            if f"{real}{os.sep}".startswith(folder):
                return real[len(folder) :]
        return None


class Spelling:
    """Spells listed names as ``info.json`` does.

    Some file systems of macOS list an accented letter as its two parts, but find the file by either
    spelling. The names of cameras come from ``info.json``, and those of files from a listing.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._declared: dict[str, str] | None = None

    def of(self, path: str) -> str:
        """Return the spelling of a listed path in the dataset."""
        if path.isascii():
            return path
        if self._declared is None:
            self._declared = {folded_name(each): each for each in _declared_names(self._root)}
        spelled = f"{self._root}/"
        for part in path.split("/"):
            declared = self._declared.get(folded_name(part), part)
            spelled += declared if is_same_path(spelled + part, spelled + declared) else part
            spelled += "/"
        return spelled[len(f"{self._root}/") : -1]


def _declared_names(root: Path) -> Iterator[str]:
    """Yield the names of files and folders that ``info.json`` spells."""
    try:
        info = json.loads(info_path(root).read_bytes())
        for path in (*info["features"], info.get("data_path"), info.get("video_path")):
            yield from str(path).split("/")
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return  # other code reports it


@contextmanager
def dataset_with_meta(root: Path, meta: Path) -> Iterator[Path]:
    """Yield a folder of links: the files of a dataset's episodes, and another ``meta/``.

    Other files of the dataset's folder are left out.
    """
    with tempfile.TemporaryDirectory(prefix="leconvert-overlay-") as folder:
        view = Path(folder) / root.name
        view.mkdir()
        for part, place in ((META, meta), *((part, root / part) for part in EPISODE_FOLDERS)):
            if place.exists():
                (view / part).symlink_to(place)
        yield view


@contextmanager
def overlaid_pair(result: Path, sources: Sequence[Path]) -> Iterator[tuple[Path, Sequence[Path]]]:
    """Yield a result and its sources as datasets.

    If the source is the ``meta/`` that an overlay in place replaced, both are views of the files
    that they share.
    """
    if list(sources) != [overlaid_meta(result)]:
        yield result, sources
        return
    with (
        dataset_with_meta(result, result / META) as ours,
        dataset_with_meta(result, sources[0]) as theirs,
    ):
        yield ours, [theirs]


@contextmanager
def kept_dataset(place: Path) -> Iterator[Path]:
    """Yield a kept source as a dataset. After an overlay in place, only ``meta/`` was kept."""
    if place != overlaid_meta(place.parent):
        yield place
        return
    with dataset_with_meta(place.parent, place) as view:
        yield view


def files_below(
    root: Path, folder: str = "", *, passed_over: Collection[str] = ()
) -> Iterator[tuple[str, bool]]:
    """Yield every name of a dataset except folders, and whether it is a file, in any order.

    Links to folders are not followed, except ``data``, ``meta`` and ``videos``. Links to folders
    below ``data`` and ``videos`` are left out: files of episodes may lie elsewhere.
    """
    ignored = _TOOL_FOLDERS.union(passed_over, kept_meta(root))

    def is_ignored(path: str) -> bool:
        return path in ignored or path.startswith(META_STAGING)

    for path, entry in _names(
        root, folder, lambda path, entry: not is_ignored(path) and _is_part(path, entry)
    ):
        if is_ignored(path):
            continue
        if entry.is_file(follow_symlinks=False):
            yield path, True
        elif not (path.startswith(_EPISODE_PREFIXES) and _is_folder(entry)):
            yield path, _is_file(entry)


def names_to_keep(root: Path) -> Iterator[str]:
    """Yield every name in a dataset's folder that is lost if the folder is deleted, in any order.

    Links to folders are names, too. Only ``data``, ``meta`` and ``videos`` are entered if they are
    links.
    """
    for path, _ in _names(root, "", _is_part):
        if not path.startswith(_RECORDS) and not _is_of_the_client(path):
            yield path


@dataclass(frozen=True, slots=True)
class Published:
    """The files of a dataset's folder that may be uploaded.

    Attributes:
        sizes: The size in bytes of every file, by its path, sorted.
        left_out: Why a file or folder stays here, by its path, sorted.
    """

    sizes: dict[str, int]
    left_out: dict[str, str]

    def remarks(self) -> Iterator[str]:
        """Yield a line for each name that stays here, and the number of those beyond the first."""
        for path, reason in islice(self.left_out.items(), _SHOWN):
            yield f"Left out {shown(path)}: {reason}."
        if len(self.left_out) > _SHOWN:
            yield f"Left out {count(len(self.left_out) - _SHOWN, 'more name')}."


def _is_utf_8(name: str) -> bool:
    with suppress(UnicodeEncodeError):
        return bool(name.encode())
    return False


def published_files(root: Path) -> Published:
    """Return the files of a dataset's folder that may be uploaded, and those left out.

    Links are followed as long as they stay in the folder.
    """
    links, kept = Links(root, with_parts=False), kept_meta(root)

    def reason_to_leave_out(path: str, entry: os.DirEntry[str]) -> str | None:
        if entry.name.startswith("."):
            return "the name begins with a dot"
        if not _is_utf_8(entry.name):
            return "the name is not UTF-8, which the Hub and other stores require"
        if path in kept:
            return "the earlier meta/, which `leconvert undo` puts back"
        target = links.target(path)
        if target is None:
            if path in _PARTS or path.startswith(_PART_PREFIXES):
                raise _incomplete(root, path)
            return "a link that leads out of the dataset"
        if target != path and "/." in f"/{target}":
            return "a link to a name that begins with a dot"
        if _is_file(entry):
            return None
        if not _is_folder(entry):
            return "no file"
        return "a link to a folder that it lies in" if _leads_back(root, path) else None

    sizes, left_out = {}, {}
    for path, entry in _names(
        root, "", lambda *at: _is_folder(at[1]) and reason_to_leave_out(*at) is None
    ):
        reason = reason_to_leave_out(path, entry)
        if reason is not None:
            left_out[path] = reason
        else:
            with storage_errors(entry.path):
                sizes[path] = entry.stat().st_size
    return Published(dict(sorted(sizes.items())), dict(sorted(left_out.items())))


def _names(
    root: Path, folder: str, enter: Callable[[str, os.DirEntry[str]], bool]
) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield every name below a folder that is not entered and not litter, in any order."""
    folders, spelling = [folder], Spelling(root)
    while folders:
        folder = folders.pop()
        place = f"{root}/{folder}"[:-1]
        try:
            with os.scandir(place) as entries:
                for entry in entries:
                    path = spelling.of(folder + entry.name)
                    if entry.is_file(follow_symlinks=False):
                        if not _is_litter(entry) and not path.startswith(UPLOAD_CLAIM):
                            yield path, entry
                    elif enter(path, entry):
                        folders.append(f"{path}/")
                    else:
                        yield path, entry
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                continue  # not a folder, or no longer
            message = f"The folder {shown(place)} cannot be listed: {error.strerror}."
            next_step = CHECK_DISK
            if error.errno == errno.EACCES:
                message, next_step = denied(place)
            raise UnreadableSourceError(message, path=place, next_step=next_step) from error


def _is_litter(entry: os.DirEntry[str]) -> bool:
    if not entry.name.startswith(_APPLE_DOUBLE):
        return entry.name in _LITTER
    # A name proves nothing. The content tells that macOS wrote it about another file.
    with suppress(OSError), open(entry.path, "rb") as file:  # noqa: PTH123
        return file.read(len(_APPLE_DOUBLE_MAGIC)) == _APPLE_DOUBLE_MAGIC
    return False


def _is_part(path: str, entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False) or (path in _PARTS and _is_folder(entry))


def _is_of_the_client(path: str) -> bool:
    return path in _CLIENT_FILES or (
        path.startswith(_CLIENT_FOLDERS) and path.endswith(_CLIENT_SUFFIXES)
    )


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Return whether this is a folder, or a link to one: files of episodes may be elsewhere."""
    try:
        return entry.is_dir()
    except OSError:  # a circular link
        return False


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:
        return False


def _leads_back(root: Path, path: str) -> bool:
    """Return whether a link leads to a folder on its own path, whose files are listed already."""
    if not (root / path).is_symlink():
        return False
    real = f"{os.path.realpath(root / path)}{os.sep}"
    return any(
        f"{os.path.realpath(root / folder)}{os.sep}".startswith(real)
        for folder in PurePosixPath(path).parents
    )


def _incomplete(root: Path, path: str) -> SourceError:
    return SourceError(
        f"{shown(str(root / path))} is a link that leads out of the dataset. Files outside "
        "the dataset are never uploaded.",
        path=str(root / path),
        next_step="If the file belongs to the dataset, make a copy without links, `cp -rL "
        f"{shlex.quote(str(root))} COPY`, and give the copy.",
    )


def special_files(root: Path) -> Iterator[str]:
    """Yield pipes, sockets and devices below a dataset's folder, and links to them.

    Opening a pipe may wait for ever, and some devices never end.
    """
    for path, is_file in files_below(root):
        if not is_file:
            with suppress(OSError):  # a link that leads to nothing
                if not stat.S_ISDIR((root / path).stat().st_mode):
                    yield path
