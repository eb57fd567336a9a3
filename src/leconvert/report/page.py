"""A story as one page: HTML with its style in it, no script, nothing that is fetched."""

from __future__ import annotations

from leconvert._version import __version__
from leconvert.report.gantt import signs
from leconvert.report.markup import Markup, element
from leconvert.report.overview import conversion_section, header
from leconvert.report.parts import note
from leconvert.report.proof import findings_section, loading_section, verification_section
from leconvert.report.style import STYLE
from leconvert.report.surroundings import environment_section
from leconvert.report.values import Story
from leconvert.report.work import work_section

__all__ = ["page"]

# Should anything on the page ever ask for something, the browser refuses.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_CONTENTS = (
    ("conversion", "What was converted"),
    ("findings", "Findings and repairs"),
    ("verification", "Verification"),
    ("work", "Work"),
    ("loading", "Loading"),
    ("environment", "Commands and environment"),
)


def page(story: Story) -> str:
    """Return the page; it takes time and room linear in attempts, findings and streams at most."""
    sections = {
        "conversion": conversion_section(story),
        "findings": findings_section(story),
        "verification": verification_section(story),
        "work": work_section(story),
        "loading": loading_section(story),
        "environment": environment_section(story),
    }
    links = [
        element("li", element("a", title, href=f"#{anchor}"))
        for anchor, title in _CONTENTS
        if sections[anchor] is not None
    ]
    body = element(
        "body",
        signs(),
        header(story),
        element("nav", element("ul", links), aria_label="Sections"),
        element("main", _remarks(story), list(sections.values())),
        element(
            "footer",
            f"Gathered {story.generated:%Y-%m-%d %H:%M:%S} UTC by leconvert {__version__}. "
            "Times are UTC.",
        ),
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("link", rel="icon", href="data:,"),
        element("title", f"{story.name or 'dataset'}: leconvert report"),
        element("style", Markup(STYLE)),
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _remarks(story: Story) -> Markup | None:
    if not story.remarks:
        return None
    shown = [element("li", remark) for remark in story.remarks[:10]]
    if len(story.remarks) > len(shown):
        shown.append(element("li", f"and {len(story.remarks) - len(shown):,} more"))
    return element(
        "aside", note("Not everything could be read:"), element("ul", shown), class_="remarks"
    )  # fmt: skip
