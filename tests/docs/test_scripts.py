"""Every script and every benchmark is there for a page, for CI, or for another script."""

from __future__ import annotations

import pytest

from tests.docs.pages import ROOT, page_names
from tests.scripts import SCRIPTS, loaded_script


@pytest.fixture(scope="module")
def pages() -> str:
    """All pages, and what CI runs, in one line."""
    texts = [(ROOT / name).read_text("utf-8") for name in (*page_names(), ".ci/run")]
    return " ".join(" ".join(texts).split())  # a line may end within a command


def test_every_script_is_named(pages: str) -> None:
    scripts = [path for path in SCRIPTS.iterdir() if path.is_file()]
    imports = "\n".join(path.read_text("utf-8") for path in scripts)
    assert [
        path.name
        for path in scripts
        if f"scripts/{path.name}" not in pages and f"from {path.stem} import" not in imports
    ] == []


def test_every_case_of_the_benchmarks_is_named(pages: str) -> None:
    with loaded_script("bench") as bench:
        assert [case for case in bench.CASES if f"bench.py {case}" not in pages] == []
