"""Every file that a page names is there. Links are checked where the site is built."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import ROOT, inline_code_of, page_names

# Paths of this repository, in backticks, as far as they name a file or a folder.
_OURS = re.compile(r"(?:bench_logs|docs|scripts|src|tests)/[\w./-]*\w/?\Z")


@pytest.mark.parametrize("page", page_names())
def test_files_that_are_named_exist(page: str) -> None:
    named = [(place, code) for place, code in inline_code_of(page) if _OURS.match(code)]
    assert [f"{place}: {code}" for place, code in named if not (ROOT / code).exists()] == []
