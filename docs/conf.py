"""How Sphinx makes the site of these pages; scripts/docs runs it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from sphinx.application import Sphinx

DOCS = Path(__file__).resolve().parent
README = DOCS.parent / "README.md"
sys.path[:0] = [str(DOCS.parent / "src"), str(DOCS.parent / "scripts")]

from leconvert import __version__  # noqa: E402
from make_reference import write_pages  # noqa: E402

project = "leconvert"
release = __version__
extensions = ["myst_parser"]
myst_heading_anchors = 4  # links to headings as the Git forges know them
html_theme = "furo"
html_title = f"leconvert {release}"
html_show_copyright = html_show_sphinx = html_copy_source = False
# A record or a terminal is shown as it is.
highlight_language = "none"

# The pages whose links are the table of contents: what they link below a heading, in that order.
_MAPS = ("index", "formats/index")
_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def _complete(app: Sphinx, page: str, text: list[str]) -> None:
    """Begin the site with the README, and give each map its table of contents."""
    up = "../" * page.count("/")
    if page == "index":
        app.env.note_dependency(str(README))
        readme = README.read_text("utf-8").replace("](docs/", "](")
        text[0] = f"{readme}\n{text[0].replace('# ', '## ', 1)}"
    text[0] = text[0].replace("](../README.md)", f"]({up}index.md)")
    if page in _MAPS:
        text[0] += _contents((DOCS / f"{page}.md").read_text("utf-8"))


def _contents(text: str) -> str:
    """Return the tables of contents of a map, one a heading; a page is in the first of them."""
    seen: set[str] = set()
    tables = []
    first, *rest = _HEADING.split(text)
    for title, part in zip(["Start", *rest[::2]], [first, *rest[1::2]], strict=True):
        links = (urlsplit(link) for link in _LINK.findall(part))
        pages = [link.path.removesuffix(".md") for link in links if link.path.endswith(".md")]
        new = [page for page in dict.fromkeys(pages) if page not in seen and ".." not in page]
        seen.update(new)
        if new:
            tables.append(
                f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n" + "\n".join(new) + "\n```\n"
            )
    return "".join(tables)


def setup(app: Sphinx) -> None:
    """Write the pages that come from the code, before any page is read."""
    write_pages()
    app.connect("source-read", _complete)
