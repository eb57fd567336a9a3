"""Every code block has a language that says what it is, and every command in it is one."""

from __future__ import annotations

import ast
import re

import pytest

from tests.docs.commands import commands_of, parsed
from tests.docs.pages import ROOT, Block, blocks_of, page_names

# The generated page of Python has directives of Sphinx.
LANGUAGES = {"{eval-rst}", "sh", "python", "text", "toml", "yaml", "json"}
_SCRIPT = re.compile(r"\b(?:python3? )?((?:scripts|\.ci)/[\w./-]+)")


@pytest.mark.parametrize("page", page_names())
def test_blocks_are_fenced_and_say_their_language(page: str) -> None:
    odd = [f"{b.place}: {b.language!r}" for b in blocks_of(page) if b.language not in LANGUAGES]
    assert not odd, f"fence these blocks, with one of {sorted(LANGUAGES)}"


def _shell_blocks() -> list[Block]:
    return [b for page in page_names() for b in blocks_of(page) if b.language == "sh"]


@pytest.mark.parametrize("block", _shell_blocks(), ids=lambda block: block.place)
def test_commands_are_ours(block: Block) -> None:
    """Those of blocks that are not run as well: their options exist, and so do the scripts."""
    for command in commands_of(block.text):
        if command.leconvert is not None:
            parsed(command.leconvert)
    for name in _SCRIPT.findall(block.text):
        assert (ROOT / name).exists(), f"{block.place}: {name}"


def test_python_blocks_are_python() -> None:
    blocks = [b for page in page_names() for b in blocks_of(page) if b.language == "python"]
    for block in blocks:
        ast.parse(block.text, block.place)
    assert blocks
