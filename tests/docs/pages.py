"""Reads the pages of the documentation: their code blocks, headings and links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.token import Token

__all__ = [
    "ROOT",
    "Block",
    "Link",
    "anchors_of",
    "blocks_of",
    "inline_code_of",
    "links_of",
    "page_names",
]

ROOT = Path(__file__).resolve().parents[2]
_NOT_RUN = re.compile(r"<!-- not run: (.+?) -->\s*\Z", re.DOTALL)
_PUNCTUATION = re.compile(r"[^\w\- ]")


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


@dataclass(frozen=True, slots=True)
class Link:
    """A link or an image, and the page and line of its paragraph."""

    page: str
    line: int
    target: str


def page_names() -> list[str]:
    """Return every page, README first."""
    docs = sorted(p.relative_to(ROOT).as_posix() for p in (ROOT / "docs").rglob("*.md"))
    return ["README.md", *docs]


@cache
def _tokens(page: str) -> tuple[Token, ...]:
    text = (ROOT / page).read_text("utf-8")
    return tuple(MarkdownIt("commonmark").enable("table").parse(text))


def _walk(page: str) -> Iterator[tuple[Token, int]]:
    """Yield every token, inline ones too, with the line of its block."""
    for token in _tokens(page):
        line = token.map[0] + 1 if token.map else 0
        yield token, line
        for child in token.children or ():
            yield child, line


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


def links_of(page: str) -> list[Link]:
    """Return the links and images of a page in order."""
    found = []
    for token, line in _walk(page):
        target = token.attrs.get("href") or token.attrs.get("src")
        if target is not None:
            found.append(Link(page, line, unquote(str(target))))
    return found


def inline_code_of(page: str) -> list[Link]:
    """Return what stands between single backticks, as if they were links."""
    return [Link(page, line, t.content) for t, line in _walk(page) if t.type == "code_inline"]


@cache
def anchors_of(page: str) -> frozenset[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    tokens = _tokens(page)
    counts: dict[str, int] = {}
    anchors = set()
    for token, following in pairwise(tokens):
        if token.type != "heading_open":
            continue
        words = "".join(
            c.content for c in following.children or () if c.type in ("text", "code_inline")
        )
        slug = _PUNCTUATION.sub("", words.lower()).replace(" ", "-")
        seen = counts.get(slug, 0)
        counts[slug] = seen + 1
        anchors.add(f"{slug}-{seen}" if seen else slug)
    return frozenset(anchors)
