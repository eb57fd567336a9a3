"""Writes what commands print now into the pages that show it.

python -m tests.docs.renew docs/tutorial.md
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from tests.docs.pages import ROOT, blocks_of
from tests.docs.sandbox import Sandbox
from tests.docs.told import as_told


def renew(page: str) -> None:
    """Run a page that makes all it needs, and replace the output that it shows."""
    blocks = blocks_of(page)
    lines = (ROOT / page).read_text("utf-8").splitlines(keepends=True)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        sandbox = Sandbox(Path(folder), None, {})
        said = [
            sandbox.run(b) if b.language in ("sh", "python") and b.not_run is None else ""
            for b in blocks
        ]
        os.chdir(ROOT)
    for i in reversed(range(len(blocks) - 1)):
        if blocks[i].shows is not None and blocks[i].language in ("sh", "python"):
            shown = blocks[i + 1]
            end = shown.line + shown.text.count("\n")
            lines[shown.line : end] = [as_told(said[i], str(folder))]
    (ROOT / page).write_text("".join(lines), "utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        renew(name)
