"""How Sphinx makes the site of these pages; scripts/docs runs it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from docutils import nodes

if TYPE_CHECKING:
    from sphinx.application import Sphinx

DOCS = Path(__file__).resolve().parent
README = DOCS.parent / "README.md"
sys.path[:0] = [str(DOCS.parent / "src"), str(DOCS.parent / "scripts")]

from leconvert import __version__  # noqa: E402
from make_reference import write_pages  # noqa: E402

project = "leconvert"
release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
autodoc_member_order = "bysource"
autodoc_mock_imports = ["torch"]  # the site is built without it
default_role = "code"  # of docstrings
napoleon_use_ivar = True
python_maximum_signature_line_length = 90
myst_heading_anchors = 4  # links to headings as the Git forges know them
html_theme = "furo"
html_title = f"leconvert {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_copyright = html_show_sphinx = html_copy_source = False
# A record or a terminal is shown as it is.
highlight_language = "none"
smartquotes = False  # `--` in a text is an option, not a dash

# The pages whose links are the table of contents: what they link below a heading, in that order.
_MAPS = ("index", "formats/index")
_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
# `--video-file-size-in-mb` is as long as a code may be that no line breaks.
_SHORT_CODE = 24
_UNIT = re.compile(r"(?<=\d) (?=(?:s|ms|µs|min|h|[kKMGT]i?B|%|Hz)\b|%)")


def _complete(app: Sphinx, page: str, text: list[str]) -> None:
    """Begin the site with the README, and give each map its table of contents."""
    up = "../" * page.count("/")
    text[0] = text[0].replace("](../README.md)", f"]({up}index.md)")
    text[0] = text[0].replace("](../CHANGELOG.md)", f"]({up}changelog.md)")
    contents = _contents(text[0]) if page in _MAPS else ""
    if page == "index":
        app.env.note_dependency(str(README))
        text[0] = f"{_moved(README)}\n{text[0].replace('# ', '## ', 1)}"
    text[0] += contents


def _moved(page: Path) -> str:
    """Return a page of the repository's root as it reads among the pages of docs."""
    return page.read_text("utf-8").replace("](docs/", "](")


def _contents(text: str) -> str:
    """Return the tables of contents of a map, one a heading; a page is in the first of them."""
    seen = {"index"}
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


def _keep_together(_app: Sphinx, page: nodes.document) -> None:
    """Let no line break a short piece of code, or part a number and its unit."""
    for code in page.findall(nodes.literal):
        if len(code.astext()) <= _SHORT_CODE:
            code["classes"].append("short")
    for text in list(page.findall(nodes.Text)):
        if _UNIT.search(text) and not isinstance(text.parent, nodes.literal | nodes.literal_block):
            text.parent.replace(text, nodes.Text(_UNIT.sub("\N{NO-BREAK SPACE}", text)))


def setup(app: Sphinx) -> None:
    """Write the pages that come from the code, before any page is read."""
    write_pages()
    (DOCS / "changelog.md").write_text(_moved(README.with_name("CHANGELOG.md")), "utf-8")
    app.connect("source-read", _complete)
    app.connect("doctree-read", _keep_together)
