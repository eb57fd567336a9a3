"""Folders compared, by content alone or by everything a user would notice; what is open there."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from leconvert.dataset.formats.v3 import EpisodesReader
from leconvert.workdir.former import former_states

__all__ = ["digest_of", "former_of", "open_below", "read_episodes", "snapshot"]


def snapshot(root: Path) -> dict[str, tuple[int, int, str]]:
    """Return size, modification time and SHA-256 of every file below a folder."""
    return {
        path.relative_to(root).as_posix(): (
            path.stat().st_size,
            path.stat().st_mtime_ns,
            hashlib.sha256(path.read_bytes()).hexdigest(),
        )
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def digest_of(root: Path, *, but: str = "") -> str:
    """Return one digest over names and contents of all files below a folder but those of a name."""
    digest = hashlib.sha256()
    # Paths as texts: campaigns of faults do this thousands of times.
    found = [f"{folder}/{name}" for folder, _, names in os.walk(root) for name in names]
    for path in sorted(found):
        if not path.endswith(f"/{but}") and os.path.isfile(path):  # noqa: PTH113
            with open(path, "rb") as file:  # noqa: PTH123
                content = hashlib.sha256(file.read()).digest()
            digest.update(path[len(os.fspath(root)) + 1 :].encode() + b"\0" + content)
    return digest.hexdigest()


def open_below(*roots: Path) -> list[str]:
    """Return each descriptor's path of this process that is one of these paths or lies below one.

    All descriptors are no measure: threads and garbage of earlier tests close theirs at any time.
    """
    found = []
    for descriptor in os.listdir("/proc/self/fd"):  # noqa: PTH208 (names)
        with suppress(FileNotFoundError):  # the listing's own
            path = Path(f"/proc/self/fd/{descriptor}").readlink()
            if any(path.is_relative_to(root) for root in roots):
                found.append(str(path))
    return found


def former_of(result: Path) -> list[Path]:
    """Return the places of a result's former states, the newest first."""
    return [state.path for state in former_states([result])[result] if state.is_there]


def read_episodes(root: Path) -> pa.Table:
    """Return all of a v3.0 dataset's ``meta/episodes``."""
    blocks = EpisodesReader(root).blocks(lambda _name: True)
    return pa.concat_tables(blocks, promote_options="permissive")
