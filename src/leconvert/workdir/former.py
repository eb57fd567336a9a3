"""Former states: trees that an append, or a fleet's new conversion, put aside, and their records.

A conversion in place keeps the dataset as ``<target>_old``, a name that users know and may use
themselves. Appends and fleets happen repeatedly, and nobody watches each time. So a tree that they
put aside gets a name that cannot be anybody else's, ``<target>.former-<run id>``, and a record of
leconvert beside it, ``.<target>.former-<run id>``, that describes it. **No run removes a former
state.** `leconvert.run.upkeep` does, on request and after a comparison.

**Order of writes.** The packer holds the target's lock. It writes the record and syncs it to disk,
then the journal names the place, then the swap moves the tree there. A kill leaves:

======================  =========================  ================================================
killed                  what is there              what it counts as
======================  =========================  ================================================
before the record       nothing new, or a torn     nothing; the run writes it again
                        record
before the tree is      a record and no tree       nothing; the run writes it again when it
at its place                                       continues, else ``clean --old`` removes it
after that              both                       a former state
======================  =========================  ================================================

So a tree with such a name has its record, unless somebody removed the record or made the tree. A
tree without a record, or one that differs from its record, is not known to be ours. It is reported
and kept.

Not guaranteed: that the record is true for a tree to which somebody writes while it is put aside.
That tree is then reported as changed, and kept.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, fields, replace
from pathlib import Path

from leconvert.support.errors import LeconvertError, WorkDirError
from leconvert.support.file_calls import folded_name, is_same_path
from leconvert.support.storage_errors import raise_storage_trouble, storage_errors
from leconvert.support.values import dataclass
from leconvert.workdir.fs import LOCAL, FileSystem, is_folder, is_there, names_in
from leconvert.workdir.records import beside, encode_record, read_record
from leconvert.workdir.swap import TREE_RECORD, old_dir

_KIND = "former"
_VERSION = 1
_NAME = re.compile(r"(?P<target>.+)\.former-(?P<run_id>[A-Za-z0-9][A-Za-z0-9_-]*)\Z", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeFacts:
    """Facts that identify a tree that was put aside, also after it was moved or copied.

    Attributes:
        meta_digest: `leconvert.dataset.scan.meta_digest`: the content of the tables below
            ``meta/``.
        files_digest: SHA-256 over path, size and modification time of every file.
        num_files: Number of files.
        size_bytes: Bytes of these files, including files that are hard links to the result's.
    """

    meta_digest: str
    files_digest: str
    num_files: int
    size_bytes: int

    @classmethod
    def of(cls, tree: Path, meta_digest: str) -> TreeFacts:
        """Look at every file of a tree without opening any."""
        digest, num_files, size_bytes = hashlib.sha256(), 0, 0
        for name, seen in _files(tree):
            line = f"{name}\0{seen.st_size}\0{seen.st_mtime_ns}\n"
            digest.update(line.encode(errors="surrogateescape"))
            num_files += 1
            size_bytes += seen.st_size
        return cls(
            meta_digest=meta_digest,
            files_digest=digest.hexdigest(),
            num_files=num_files,
            size_bytes=size_bytes,
        )


def _files(tree: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield name and status of each file of a tree except its mark, in one order everywhere."""

    def on_error(error: OSError) -> None:
        # A folder that a failing disk does not list is not an empty one.
        raise_storage_trouble(error, tree)

    for folder, subfolders, names in os.walk(tree, onerror=on_error):
        subfolders.sort()
        for path in (Path(folder, name) for name in sorted(names) if name != TREE_RECORD):
            with storage_errors(path):
                yield str(path.relative_to(tree)), path.lstat()


@dataclass(frozen=True, slots=True)
class FormerState:
    """A path beside a target at which a former state is, was, or was to be.

    Attributes:
        path: The path.
        run_id: The run that put it aside, or was about to.
        number: Counts a target's former states, the newest highest; 0 without a record.
        result_digest: `TreeFacts.files_digest` of the tree that replaced it; empty without a
            record.
        old_inode: The inode of ``<target>_old`` at that time; 0 if there was none. A folder with
            another inode was put there later.
        facts: The facts of the former state; None without a readable record.
        is_there: Whether anything is at the path.
    """

    path: Path
    run_id: str
    number: int
    result_digest: str
    old_inode: int
    facts: TreeFacts | None
    is_there: bool

    @property
    def record(self) -> Path:
        """Path of its record."""
        return _record_of(self.path)


def former_dir(target: Path, run_id: str) -> Path:
    """Return the path for a former state of a target: ``<target>.former-<run id>``."""
    return beside(target, f"{{}}.former-{run_id}")


def former_target(place: Path) -> Path | None:
    """Return the target of which a path could be a former state, by its name; else None."""
    found = _NAME.match(place.name)
    return None if found is None else place.with_name(found["target"])


def is_former(place: Path) -> bool:
    """Return whether a record beside a folder says that it is a former state."""
    found = _NAME.match(place.name)
    return found is not None and _read(place, found["run_id"], LOCAL) is not None


def former_states(
    targets: Iterable[Path], *, fs: FileSystem = LOCAL
) -> dict[Path, list[FormerState]]:
    """Return the former states of targets, for each the newest first.

    Each parent folder is listed once, for all of its targets.
    """
    wanted = {target: Path(os.path.realpath(target)) for target in targets}
    listed: dict[Path, dict[str, list[FormerState]]] = {}
    for real in wanted.values():
        if real.parent not in listed:
            listed[real.parent] = _in_folder(real.parent, fs)
    return {
        target: [
            replace(state, path=ours)
            for state in listed[real.parent].get(folded_name(real.name), [])
            if _is_at(state, ours := former_dir(real, state.run_id))
        ]
        for target, real in wanted.items()
    }


def _is_at(state: FormerState, ours: Path) -> bool:
    """Return whether a state that was listed is at a target's path for it."""
    return is_same_path(str(state.path), str(ours)) or is_same_path(
        str(state.record), str(_record_of(ours))
    )


def count_former(targets: Iterable[Path]) -> tuple[int, int]:
    """Return the number of former states of targets, and their bytes, for display.

    Their files may be hard links to those of the results, so at most this many bytes can be freed.
    """
    found: list[FormerState] = []
    with suppress(LeconvertError, OSError):
        found = [each for states in former_states(targets).values() for each in states]
    there = [each for each in found if each.is_there]
    return len(there), sum(each.facts.size_bytes for each in there if each.facts is not None)


def write_former(
    target: Path, new: Path, run_id: str, facts: TreeFacts, *, fs: FileSystem = LOCAL
) -> None:
    """Write the record of a tree that is about to be put aside; call it under the target's lock.

    Args:
        target: The target.
        new: The tree that will replace it.
        run_id: The run.
        facts: The facts of the tree at the target.
        fs: The file operations.
    """
    before = former_states([target], fs=fs)[target]
    fields_of_record = {
        "number": 1 + max((each.number for each in before if each.run_id != run_id), default=0),
        "result_digest": TreeFacts.of(new, "").files_digest,
        "old_inode": old.lstat().st_ino if is_there(old := old_dir(target)) else 0,
        **asdict(facts),
    }
    record = _record_of(former_dir(target, run_id))
    # Write in place: after a crash, a temporary file would stay beside the user's data. A torn
    # record says nothing, and nothing is moved before it is complete.
    with storage_errors(record):
        with suppress(FileNotFoundError):
            fs.remove_file(record)
        raw = encode_record(_KIND, _VERSION, run_id, fields_of_record)
        fs.write_new(record, raw, sync=True)
        fs.sync_dir(record.parent)


def stands_as_left(target: Path) -> bool:
    """Return whether a result is unchanged since the run that put a former state aside.

    Names, sizes and times decide. False only means that nothing proves it.
    """
    newest = next(iter(former_states([target])[target]), None)
    if newest is None or not newest.result_digest:
        return False
    return TreeFacts.of(target, "").files_digest == newest.result_digest


def _record_of(place: Path) -> Path:
    return place.with_name(f".{place.name}")


def _in_folder(folder: Path, fs: FileSystem) -> dict[str, list[FormerState]]:
    """Return the former states in a folder by `folded_name` of their target's name."""
    names = set(names_in(folder, fs=fs))
    found: dict[str, list[FormerState]] = {}
    candidates = {name for name in names if ".former-" in name}
    candidates |= {name[1:] for name in candidates if name.startswith(".")}
    for name in sorted(candidates):
        matched = _NAME.match(name)
        if matched is None:
            continue
        place = folder / name
        state = _read(place, matched["run_id"], fs) if f".{name}" in names else None
        if state is not None:
            state = replace(state, is_there=name in names)
        elif name in names and is_folder(place):
            state = FormerState(place, matched["run_id"], 0, "", 0, None, is_there=True)
        else:
            continue  # somebody else's file
        found.setdefault(folded_name(matched["target"]), []).append(state)
    for states in found.values():
        states.sort(key=lambda state: (-state.number, state.path))
    return found


def _read(place: Path, run_id: str, fs: FileSystem) -> FormerState | None:
    try:
        record = read_record(_record_of(place), _KIND, version=_VERSION, run_id=run_id, fs=fs)
        return FormerState(
            place,
            run_id,
            int(record["number"]),
            str(record["result_digest"]),
            int(record["old_inode"]),
            TreeFacts(**{each.name: record[each.name] for each in fields(TreeFacts)}),
            is_there=False,
        )
    except (WorkDirError, OSError, KeyError, TypeError, ValueError):
        return None  # torn, or another program's
