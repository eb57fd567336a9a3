"""A look at a run starts fast: it imports no more than it needs."""

from __future__ import annotations

import subprocess
import sys


def test_a_status_needs_neither_datasets_nor_pages() -> None:
    code = "import sys, leconvert.report.status; print('\\n'.join(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(ran.stdout.split())
    assert "leconvert.report.status" in loaded
    assert not loaded & {"leconvert.report.values", "leconvert.dataset.formats", "markupsafe"}
