"""Pieces that every section of the page is made of: headings, tables, facts, notes."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Union

__all__ = [
    "MOST_ROWS",
    "STYLE",
    "Content",
    "Markup",
    "element",
    "escaped",
    "facts",
    "folded",
    "joined",
    "name",
    "note",
    "section",
    "table",
    "when",
]


# ------------------------------------------------------------------------------------------------
# HTML that is safe by construction: whatever is not `Markup` is escaped.
#
# Names of datasets, hosts and files, and messages of errors are strangers' text. They reach the
# page as text only: never as a tag, a style or a link.


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
    """Return one element."""
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escaped(value)}"')
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID_ELEMENTS:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{joined(content)}</{name}>")


# ------------------------------------------------------------------------------------------------
# Pieces that every section of the page is made of: headings, tables, facts, notes.


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
    """Return a table that scrolls sideways by itself where the screen is narrow."""
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


# ------------------------------------------------------------------------------------------------
# The page's style: system fonts, light and dark by the reader's preference, light on paper.
#
# Colours are chosen for a contrast of 4.5 with what they stand on (3 for bars), in both schemes;
# the tests compute it from the page. No meaning hangs on colour: bars that went wrong carry a
# sign.


_LIGHT = """
--page:#f6f7f8;--surface:#fff;--ink:#15191e;--soft:#525a64;--rule:#d9dde2;--link:#0b5cad;
--done:#3673b5;--done-line:#3673b5;--area:#c5d9ee;--error:#b3261e;--lost:#8f5400;--other:#5c6570;
--held:#7a4fb0;--packer:#2c7a5b;--good:#17603f;--good-page:#e0f1e8;--bad:#8f1d16;--bad-page:#fbe6e4;
"""
_DARK = """
--page:#111418;--surface:#191d22;--ink:#e9ecf0;--soft:#a9b2bd;--rule:#333a43;--link:#8cc0f7;
--done:#5b9bdd;--done-line:#7db3ea;--area:#27496c;--error:#ff8d83;--lost:#f0b25c;--other:#9aa5b1;
--held:#b797ea;--packer:#5fbf98;--good:#8fd9b6;--good-page:#16301f;--bad:#ffb3ab;--bad-page:#3b1714;
"""

STYLE = f"""
:root{{color-scheme:light dark;{_LIGHT.strip()}}}
@media screen and (prefers-color-scheme:dark){{:root{{{_DARK.strip()}}}}}
*{{box-sizing:border-box}}
html{{-webkit-text-size-adjust:100%;scroll-behavior:smooth}}
body{{margin:0 auto;padding:2rem clamp(1rem,4vw,3rem) 3rem;max-width:72rem;background:var(--page);
color:var(--ink);font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif;
overflow-wrap:anywhere}}
h1,h2,h3{{line-height:1.2;text-wrap:balance;margin:0}}
h1{{font-size:clamp(1.7rem,1.2rem + 2.4vw,2.6rem);letter-spacing:-.02em}}
h2{{font-size:1.35rem;letter-spacing:-.01em;margin-bottom:1rem}}
h3{{font-size:1.02rem;margin:2.2rem 0 .6rem}}
p{{margin:.6rem 0;max-width:46rem}}
a{{color:var(--link);text-underline-offset:.18em}}
code{{font:.86em/1.45 ui-monospace,"SF Mono",Menlo,Consolas,monospace;unicode-bidi:isolate}}
:focus-visible{{outline:2px solid var(--link);outline-offset:2px}}
.hidden{{position:absolute}}
.kicker{{margin:0 0 .3rem;color:var(--soft);font-size:.85rem;letter-spacing:.02em}}
.state{{display:inline-block;margin:.9rem 0 .2rem;padding:.15rem .75rem;border-radius:999px;
font-weight:600;font-size:.92rem;background:var(--surface);border:1px solid var(--soft)}}
.state.good{{color:var(--good);background:var(--good-page);border-color:currentColor}}
.state.bad{{color:var(--bad);background:var(--bad-page);border-color:currentColor}}
.lead{{font-size:1.08rem}}
.tiles{{display:grid;grid-template-columns:repeat(auto-fit,minmax(9.5rem,1fr));gap:.75rem;
margin:1.4rem 0 0}}
.tiles div{{background:var(--surface);border:1px solid var(--rule);border-radius:.6rem;
padding:.7rem .9rem}}
.tiles dt{{color:var(--soft);font-size:.82rem}}
.tiles dd{{margin:.1rem 0 0;font-size:1.35rem;font-weight:650;letter-spacing:-.01em;
font-variant-numeric:tabular-nums;line-height:1.3}}
.tiles .remark{{display:block;font-size:.82rem;font-weight:400;color:var(--soft);letter-spacing:0}}
nav ul{{display:flex;flex-wrap:wrap;gap:.3rem 1.1rem;list-style:none;margin:1.5rem 0 0;padding:0;
font-size:.92rem}}
section,.remarks{{background:var(--surface);border:1px solid var(--rule);border-radius:.8rem;
margin-top:1.4rem;padding:1.4rem clamp(1rem,2.6vw,2rem) 1.6rem;scroll-margin-top:1rem}}
.remarks{{border-color:var(--lost)}}
.note,figcaption,footer{{color:var(--soft);font-size:.88rem}}
ul{{margin:.5rem 0;padding-left:1.2rem}}
footer{{margin-top:2rem}}
figure{{margin:1rem 0 .4rem}}
figcaption{{margin-top:.5rem;max-width:46rem}}
details{{margin:.8rem 0}}
summary{{cursor:pointer;color:var(--link);font-size:.92rem;width:fit-content}}
.scroll{{overflow-x:auto;margin:.8rem 0}}
.scroll th,.scroll td{{overflow-wrap:break-word}}
.scroll .long{{min-width:15rem;overflow-wrap:anywhere}}
.quiet{{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}}
table{{border-collapse:collapse;width:100%;font-size:.9rem;line-height:1.4}}
caption{{text-align:left;color:var(--soft);font-size:.86rem;padding:0 0 .45rem;caption-side:top}}
caption.bare{{padding:0;line-height:0}}
th,td{{text-align:left;vertical-align:top;padding:.4rem .9rem .4rem 0;
border-bottom:1px solid var(--rule);min-width:3.5rem}}
thead th{{color:var(--soft);font-weight:600;font-size:.84rem;vertical-align:bottom;
border-bottom-color:var(--soft)}}
tbody th{{font-weight:500}}
.num{{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums;overflow-wrap:normal}}
th:last-child,td:last-child{{padding-right:0}}
.facts th{{width:11rem;color:var(--soft);font-weight:500}}
svg.chart{{display:block;overflow:visible}}
svg text{{font:12px system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif;
fill:var(--soft);font-variant-numeric:tabular-nums}}
svg text.small{{font-size:11px}}
.grid{{stroke:var(--rule)}}.base{{stroke:var(--soft)}}
.mean{{stroke:var(--ink);stroke-dasharray:5 4}}
.cut{{fill:url(#hatch)}}.hatching{{stroke:var(--soft);stroke-width:1;fill:none}}
.area{{fill:var(--area);stroke:var(--done-line);stroke-width:1.5;vector-effect:non-scaling-stroke}}
.bar,.b-done{{fill:var(--done)}}
.before{{fill:var(--surface);stroke:var(--done);stroke-width:1.5}}
.gantt path,.sample rect{{stroke:var(--surface);stroke-width:1;vector-effect:non-scaling-stroke}}
.gantt path.merged{{stroke:none}}
.b-error{{fill:var(--error)}}.b-lost{{fill:var(--lost)}}
.b-handed-back,.b-late,.b-void{{fill:var(--other)}}
.gantt path.b-held,.sample .b-held{{fill:var(--surface);stroke:var(--held);stroke-width:2}}
.b-packer{{fill:var(--packer)}}
.sign path{{fill:none;stroke:var(--ink);stroke-width:2;stroke-linecap:round;stroke-linejoin:round}}
.sign path.halo{{stroke:var(--surface);stroke-width:6}}
.gantt{{display:grid;grid-template-columns:minmax(0,10rem) minmax(0,1fr);gap:0 .8rem}}
.rows{{list-style:none;margin:4px 0 0;padding:0;font-size:12px;color:var(--soft)}}
.rows li{{white-space:nowrap;overflow:hidden;text-overflow:ellipsis}}
.rows .host{{height:20px;line-height:22px;color:var(--ink);font-weight:600}}
.rows .p16{{height:16px;line-height:16px}}
.rows .p11{{height:11px;line-height:11px;font-size:10px}}
.legend{{display:flex;flex-wrap:wrap;gap:.2rem 1.2rem;list-style:none;margin:.4rem 0 .9rem;
padding:0;font-size:.86rem;color:var(--soft)}}
.legend svg{{vertical-align:-3px}}
@media (max-width:40rem){{
body{{padding-top:1.3rem;font-size:15px}}
.tiles{{grid-template-columns:1fr 1fr;gap:.5rem}}.tiles dd{{font-size:1.15rem}}
.gantt{{grid-template-columns:minmax(0,5.4rem) minmax(0,1fr);gap:0 .4rem}}
.scroll table{{width:max-content;min-width:100%}}.scroll th,.scroll td{{max-width:17rem}}
.facts,.facts tbody,.facts tr,.facts th,.facts td{{display:block;width:auto}}
.facts caption{{display:block}}
.facts th{{border:0;padding-bottom:0;font-size:.84rem}}.facts td{{padding-top:.05rem}}
}}
@media (prefers-reduced-motion:reduce){{html{{scroll-behavior:auto}}}}
@page{{margin:14mm}}
@media print{{
body{{background:#fff;padding:0;max-width:none;font-size:10.5pt;
print-color-adjust:exact;-webkit-print-color-adjust:exact}}
nav{{display:none}}
section{{border:0;padding:0;margin-top:1.6rem}}
section,.tiles div{{break-inside:auto}}
figure,tr,.tiles div{{break-inside:avoid}}
h2,h3,caption{{break-after:avoid}}
.scroll{{overflow:visible}}.scroll table{{font-size:8.5pt}}
.scroll th,.scroll td{{min-width:0;padding-right:.6rem}}.scroll code{{overflow-wrap:anywhere}}
.scroll .long{{min-width:8rem}}
summary{{color:var(--ink)}}
details::details-content{{content-visibility:visible;block-size:auto;height:auto}}
}}
"""
