"""Pieces that every section of the page is made of: headings, tables, facts, notes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from leconvert.report.markup import Content, Markup, element

__all__ = ["MOST_ROWS", "facts", "folded", "name", "note", "section", "table", "when"]

MOST_ROWS = 200
"""Rows of a table that is about single batches, episodes or findings; more are counted."""


def section(anchor: str, title: str, *content: Content) -> Markup:
    """Return a section with its heading."""
    return element(
        "section", element("h2", title, id=f"{anchor}-h"), *content,
        id=anchor, aria_labelledby=f"{anchor}-h",
    )  # fmt: skip


def name(text: str) -> Markup:
    """Return a path, a name or a word of a command line, as such; long ones may break anywhere."""
    return element("code", text)


def note(*content: Content) -> Markup:
    """Return a remark in smaller letters."""
    return element("p", *content, class_="note")


def table(
    caption: Content,
    head: Sequence[str],
    rows: Iterable[Sequence[Content]],
    *,
    numbers: Sequence[int] = (),
    long: Sequence[int] = (),
    most: int | None = None,
    quiet: bool = False,
) -> Markup:
    """Return a table that scrolls sideways by itself where the screen is narrow.

    Args:
        caption: What it shows.
        head: A heading a column; the first column heads its row.
        rows: Cells.
        numbers: Columns of numbers, which stand right.
        long: Columns of sentences or paths, which get room.
        most: Rows at most; the caption says how many more there are.
        quiet: The heading above says the same: the caption is for those who hear the page.
    """
    rows = list(rows)
    left_out = 0 if most is None else max(0, len(rows) - most)
    if left_out:
        rows = rows[:most]
        caption = [caption, f" (the first {most:,}; {left_out:,} more are left out)"]
    kinds = dict.fromkeys(numbers, "num") | dict.fromkeys(long, "long")
    heads = [
        element("th", text, scope="col", class_=kinds.get(column))
        for column, text in enumerate(head)
    ]
    body = [
        element(
            "tr",
            [
                element("th", cell, scope="row", class_=kinds.get(column))
                if column == 0
                else element("td", cell, class_=kinds.get(column))
                for column, cell in enumerate(row)
            ],
        )
        for row in rows
    ]
    whole = element(
        "table",
        _caption(caption, quiet=quiet and not left_out),
        element("thead", element("tr", heads)),
        element("tbody", body),
    )
    label = caption if isinstance(caption, str) else f"Table: {head[0]} and more"
    return element("div", whole, class_="scroll", tabindex=0, role="region", aria_label=label)


def facts(caption: Content, rows: Iterable[tuple[str, Content]]) -> Markup:
    """Return a table of names and what they stand for, below a heading that says the same."""
    body = [
        element("tr", element("th", term, scope="row"), element("td", meaning))
        for term, meaning in rows
        if meaning is not None
    ]
    return element("table", _caption(caption, quiet=True), element("tbody", body), class_="facts")


def _caption(words: Content, *, quiet: bool) -> Markup:
    if not quiet:
        return element("caption", words)
    return element("caption", element("span", words, class_="quiet"), class_="bare")


def folded(summary: Content, *content: Content) -> Markup:
    """Return something that opens on demand; on paper it is open."""
    return element("details", element("summary", summary), *content)


def when(seconds: float | None) -> str:
    """Return a point in time as ``2026-11-21 07:00:00 UTC``."""
    if seconds is None:
        return "not known"
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return "not known"
