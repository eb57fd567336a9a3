"""Reads the pages of the documentation: their code blocks, and what is in backticks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

__all__ = ["ROOT", "Block", "blocks_of", "inline_code_of", "page_names"]

ROOT = Path(__file__).resolve().parents[2]
_NOT_RUN = re.compile(r"<!-- not run: (.+?) -->\s*\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """A code block.

    Attributes:
        page: The page's path below the repository's root.
        line: The line of its fence, from 1.
        language: What the fence names; empty if it names nothing, or where there is no fence.
        text: The code.
        not_run: Why it is not run, as the comment on the line before says; None without one.
        shows: The ``text`` block that follows with nothing between: what the code prints.
    """

    page: str
    line: int
    language: str
    text: str
    not_run: str | None = None
    shows: str | None = None

    @property
    def place(self) -> str:
        """Page and line, as editors know them."""
        return f"{self.page}:{self.line}"


def page_names() -> list[str]:
    """Return every page, README first."""
    docs = sorted(p.relative_to(ROOT).as_posix() for p in (ROOT / "docs").rglob("*.md"))
    return ["README.md", *docs]


@cache
def _tokens(page: str) -> tuple[Token, ...]:
    text = (ROOT / page).read_text("utf-8")
    return tuple(MarkdownIt("commonmark").enable("table").parse(text))


def blocks_of(page: str) -> list[Block]:
    """Return the code blocks of a page in order."""
    tokens = [*_tokens(page), None]
    blocks = []
    for i, token in enumerate(tokens):
        if token is None or token.type not in ("fence", "code_block"):
            continue
        before, after = tokens[i - 1] if i else None, tokens[i + 1]
        comment = before is not None and before.type == "html_block"
        reason = _NOT_RUN.search(before.content) if comment else None
        shows = after is not None and (after.type, after.info.strip()) == ("fence", "text")
        blocks.append(
            Block(
                page,
                token.map[0] + 1,
                token.info.strip(),
                token.content,
                reason[1] if reason else None,
                after.content if shows else None,
            )
        )
    return blocks


def inline_code_of(page: str) -> list[tuple[str, str]]:
    """Return what stands between single backticks, each with the place of its paragraph."""
    return [
        (f"{page}:{token.map[0] + 1}", child.content)
        for token in _tokens(page)
        if token.map
        for child in token.children or ()
        if child.type == "code_inline"
    ]
