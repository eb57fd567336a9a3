"""What a commit holds beside what a conversion in a folder writes, file by file and by hash."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

from leconvert import LayoutOptions, convert
from tests.hub.store import Repo

__all__ = ["contents", "converted", "hashes"]

_OF_A_PUSH = ("README.md", ".gitattributes")


def contents(repo: Repo, commit: str) -> dict[str, str]:
    """Return the SHA-256 of each file of a commit, but for what a push writes besides."""
    found = {}
    for path, entry in repo.tree(commit).items():
        if path not in _OF_A_PUSH:
            content = repo.content(entry)
            assert content is not None
            found[path] = hashlib.sha256(content.read_bytes()).hexdigest()
    return found


def hashes(root: Path) -> dict[str, str]:
    """Return the same of a folder."""
    paths = {path.relative_to(root).as_posix(): path for path in root.rglob("*") if path.is_file()}
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest()
        for name, path in paths.items()
        if name not in _OF_A_PUSH
    }


def converted(source: Path, folder: Path, layout: str, **options: Any) -> Path:
    """Return what a conversion of a folder makes; of an overlay the dataset with its new meta/."""
    if layout == "overlay":
        root = Path(shutil.copytree(source, folder / "overlaid"))
        convert(root, layout=LayoutOptions(layout=layout), **options)
        shutil.rmtree(root / "meta_old")
        return root
    convert(source, output=folder / "ours", layout=LayoutOptions(layout=layout), **options)
    return folder / "ours"
