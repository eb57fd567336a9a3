"""The blocks of every page run, in their order, or say why they do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.docs.names import NAMES
from tests.docs.pages import Block, blocks_of, page_names
from tests.docs.sandbox import Sandbox
from tests.docs.told import as_told, without_figures

_RUNNABLE = ("sh", "python")


def _to_run(page: str) -> list[Block]:
    return [b for b in blocks_of(page) if b.language in _RUNNABLE and b.not_run is None]


# Pages that make all they need, and show what commands print.
_STORIES = ["docs/tutorial.md"]
_PAGES = [page for page in page_names() if _to_run(page) and page not in _STORIES]


@pytest.mark.parametrize("page", _PAGES)
def test_blocks_run(page: str, sandbox_of: Callable[[dict[str, Any]], Sandbox]) -> None:
    make_names = NAMES.get(page, dict)
    sandbox = sandbox_of(make_names())
    for block in _to_run(page):
        sandbox.run(block)


@pytest.mark.parametrize("page", _STORIES)
def test_stories_print_what_they_show(page: str, sandbox_of: Callable[..., Sandbox]) -> None:
    sandbox = sandbox_of({}, alone=True)
    for block in _to_run(page):
        said = as_told(sandbox.run(block), str(sandbox.folder))
        if block.shows is not None:
            hint = f"{block.place}: if this is right: python -m tests.docs.renew {page}"
            assert without_figures(said) == without_figures(block.shows), hint


def test_what_is_not_run_says_why() -> None:
    """Shown with ``pytest -s``: each block that is left out, and the reason that the page gives."""
    left_out = [b for page in page_names() for b in blocks_of(page) if b.not_run is not None]
    for block in left_out:
        print(f"{block.place}: {block.not_run}")
    assert [b.place for b in left_out if b.language not in _RUNNABLE] == []
    assert [b.place for b in left_out if len(b.not_run or "") < 10] == []
