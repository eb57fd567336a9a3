"""HTML that is safe by construction: whatever is not `Markup` is escaped.

Names of datasets, hosts and files, and messages of errors are strangers' text. They reach the page
as text only: never as a tag, a style or a link.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from typing import Union

__all__ = ["Content", "Markup", "element", "escaped", "joined"]

# Characters that HTML forbids, and those that turn the direction of all text after them.
_UNFIT = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u202a-\\u202e\\u2066-\\u2069\\ufffe\\uffff]"
)
_VOID_ELEMENTS = frozenset({"br", "col", "link", "meta"})


class Markup(str):
    """Text that is HTML already; made by `element` and `escaped` alone."""

    __slots__ = ()


Content = Union[str, int, None, Iterable["Content"]]  # noqa: UP007 - recursive: `|` needs a type


def escaped(text: object) -> Markup:
    """Return text as HTML; characters that no page may hold become a replacement character."""
    if isinstance(text, Markup):
        return text
    # Paths that are no UTF-8 come as lone surrogates, which cannot be written.
    whole = str(text).encode("utf-8", "backslashreplace").decode("utf-8")
    return Markup(html.escape(_UNFIT.sub("\N{REPLACEMENT CHARACTER}", whole), quote=True))


def joined(content: Content) -> Markup:
    """Return contents one after the other; None adds nothing."""
    if content is None:
        return Markup("")
    if isinstance(content, str | int):
        return escaped(content)
    return Markup("".join(map(joined, content)))


def element(name: str, /, *content: Content, **attributes: object) -> Markup:
    """Return one element.

    Args:
        name: The tag.
        content: What is in it.
        attributes: ``class_`` stands for ``class``, ``aria_label`` for ``aria-label``; None leaves
            an attribute out, True writes its name alone.
    """
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escaped(value)}"')
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID_ELEMENTS:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{joined(content)}</{name}>")
