"""Every link leads somewhere, and every file that a page names is there."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from posixpath import normpath
from urllib.parse import urlsplit

import pytest

from tests.docs.pages import ROOT, anchors_of, inline_code_of, links_of, page_names

# Paths of this repository, in backticks, as far as they name a file or a folder.
_OURS = re.compile(r"(?:bench_logs|docs|scripts|src|tests)/[\w./-]*\w/?\Z")


@pytest.mark.parametrize("page", page_names())
def test_links_lead_to_files_and_headings_that_exist(page: str) -> None:
    broken = []
    for link in links_of(page):
        parts = urlsplit(link.target)
        if parts.scheme:
            good = parts.scheme in ("https", "http") and "." in parts.netloc
        else:
            path = normpath(PurePosixPath(page).parent / parts.path) if parts.path else page
            good = not path.startswith("../") and (ROOT / path).exists()
            if good and parts.fragment:
                good = path.endswith(".md") and parts.fragment in anchors_of(path)
        if not good:
            broken.append(f"{page}:{link.line}: {link.target}")
    assert not broken


@pytest.mark.parametrize("page", page_names())
def test_files_that_are_named_exist(page: str) -> None:
    named = [code for code in inline_code_of(page) if _OURS.match(code.target)]
    missing = [f"{page}:{c.line}: {c.target}" for c in named if not (ROOT / c.target).exists()]
    assert not missing


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, waiting = set(), ["README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached:
            continue
        reached.add(page)
        for link in links_of(page):
            parts = urlsplit(link.target)
            if not parts.scheme and parts.path.endswith(".md"):
                waiting.append(normpath(PurePosixPath(page).parent / parts.path))
    assert sorted(set(page_names()) - reached) == []


def test_anchors_are_made_as_github_makes_them() -> None:
    anchors = anchors_of("docs/cli.md")
    assert {"convert", "work-work_dir", "status-work_dir", "when-it-stops"} <= anchors
    assert "on-nfs-measured" in anchors_of("docs/leasing.md")
