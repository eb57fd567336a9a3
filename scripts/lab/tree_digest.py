"""Prints one SHA-256 over the names and contents of all files below a folder."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path


def tree_digest(root: Path) -> str:
    """Return the digest; an empty folder adds nothing, a file's times neither.

    Raises:
        NotADirectoryError: There is no such folder.
    """
    # An NFS client that once looked for the folder in vain believes that for half a minute, unless
    # it lists the folder above.
    list(root.parent.iterdir())
    if not root.is_dir():
        raise NotADirectoryError(root)
    digest = hashlib.sha256()
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


if __name__ == "__main__":
    print(tree_digest(Path(sys.argv[1])))
