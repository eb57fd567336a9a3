"""The page in a real browser: nothing is fetched, nothing overflows, everything can be read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from leconvert.model.values import Finding
from leconvert.report.values import AttemptEnd, RunReport, StoryState, Verification
from tests.report.conftest import Browser
from tests.report.stories import HOSTILE, run_story

A4_WIDTH = 688  # 210 mm without the margins, at 96 pixels an inch
SIZES = [(390, 844), (1440, 900)]

# Every piece of text that is shown, with its colour and the colour behind it. Text that is only
# for those who hear the page is clipped to nothing and left out.
CONTRASTS = """
function parse(text) {
  const parts = text.match(/[0-9.]+/g).map(Number);
  return {rgb: parts.slice(0, 3), alpha: parts.length > 3 ? parts[3] : 1};
}
function light(rgb) {
  const [r, g, b] = rgb.map(v => v / 255).map(
    v => v <= 0.04045 ? v / 12.92 : Math.pow((v + 0.055) / 1.055, 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
function behind(node) {
  for (let at = node; at; at = at.parentElement) {
    const colour = parse(getComputedStyle(at).backgroundColor);
    if (colour.alpha === 1) return colour.rgb;
    if (colour.alpha > 0) throw new Error('half a background');
  }
  return [255, 255, 255];
}
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
const found = [];
while (walker.nextNode()) {
  const node = walker.currentNode, parent = node.parentElement;
  if (!node.data.trim() || ['title', 'desc'].includes(parent.tagName)) continue;
  if (parent.closest('.quiet') || !parent.checkVisibility()) continue;
  const style = getComputedStyle(parent);
  const ink = parse(parent.closest('svg') ? style.fill : style.color);
  const a = light(ink.rgb), b = light(behind(parent));
  found.push([node.data.trim().slice(0, 40),
              (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), ink.alpha]);
}
return found;
"""


@pytest.fixture(scope="module")
def story() -> RunReport:
    return run_story(overnight=True)


def _stories() -> Iterator[tuple[str, RunReport]]:
    whole = run_story()
    yield "finished", whole
    held = [
        replace(attempt, end=AttemptEnd.HELD) if attempt.batch_id > 110 else attempt
        for attempt in whole.attempts
    ]
    yield (
        "under way",
        replace(whole, state=StoryState.UNFINISHED, attempts=held, verification=None, packers=(),
                probe={"error": "ProbeError", "message": "torch is not installed."}),
    )  # fmt: skip
    differs = Verification("structure", False, {"files": 3}, 1.0, 40, ["a: b: expected c, found d"])
    yield "differs", replace(whole, state=StoryState.DIFFERS, verification=differs)
    alone = RunReport(
        "result", StoryState.RESULT_ONLY, datetime.now(UTC), "/data/result", episodes=5
    )
    yield "result only", replace(alone, streams=whole.streams)
    nameless = replace(whole, attempts=[replace(a, began=None, ended=None) for a in whole.attempts])
    yield "without times", replace(nameless, invocations=(), packers=())
    odd = [Finding(HOSTILE, "error", HOSTILE, 3, HOSTILE, HOSTILE, HOSTILE)] * 3
    hostile = run_story(name=HOSTILE, batches=30)
    yield "hostile", replace(hostile, findings=odd, remarks=[HOSTILE] * 20)


STORIES = dict(_stories())


SMALL_AND_LIGHT, LARGE_AND_DARK = (SIZES[0], "light"), (SIZES[1], "dark")


# Colours do not depend on the size, nor does what overflows on the colours; a whole page has all.
@pytest.mark.parametrize(
    ("name", "size", "scheme"),
    [
        *((name, *SMALL_AND_LIGHT) for name in ("finished", "under way", "result only", "hostile")),
        *((name, *LARGE_AND_DARK) for name in ("finished", "differs", "without times")),
    ],
    ids=str,
)
def test_a_page_fits_is_legible_and_asks_for_nothing(
    browser: Browser, name: str, size: tuple[int, int], scheme: str
) -> None:
    story = STORIES[name]
    browser.show(story, width=size[0], height=size[1], scheme=scheme)
    assert browser.complaints() == []
    assert [url for url in browser.requests() if not url.startswith(("file:", "data:,"))] == []
    assert browser.overflow() <= 0
    shown = browser.ask(CONTRASTS)
    assert len(shown) > 15
    assert [row for row in shown if row[1] < 4.5 or row[2] < 1] == []


def test_a_dark_reader_gets_a_dark_page_and_paper_is_white_with_nothing_folded_or_cut_off(
    browser: Browser, story: RunReport
) -> None:
    colours = "return [getComputedStyle(document.body).backgroundColor, "
    colours += "getComputedStyle(document.body).color]"
    opened = (
        "return [...document.querySelectorAll('details > :not(summary)')]"
        ".map(part => part.checkVisibility() && part.getBoundingClientRect().height > 20)"
    )
    for scheme, expected in (
        ("light", ["rgb(246, 247, 248)", "rgb(21, 25, 30)"]),
        ("dark", ["rgb(17, 20, 24)", "rgb(233, 236, 240)"]),
    ):
        browser.show(story, scheme=scheme)
        assert browser.ask(colours) == expected
        assert set(browser.ask(opened)) == {False}
    browser.show(story, scheme="dark", medium="print", width=A4_WIDTH)
    assert browser.ask(colours) == ["rgb(255, 255, 255)", "rgb(21, 25, 30)"]
    assert [row for row in browser.ask(CONTRASTS) if row[1] < 4.5] == []
    assert set(browser.ask(opened)) == {True}
    printed = browser.command("Page.printToPDF", printBackground=True)
    assert len(printed["data"]) > 10_000
    assert browser.overflow() <= 0


def test_every_chart_has_a_title_words_and_a_table(browser: Browser, story: RunReport) -> None:
    browser.show(story)
    charts = browser.ask("""
    return [...document.querySelectorAll('svg[role=img]')].map(chart => ({
      title: document.getElementById(chart.getAttribute('aria-labelledby')).textContent,
      words: document.getElementById(chart.getAttribute('aria-describedby')).textContent,
      caption: chart.closest('figure').querySelector('figcaption').textContent,
    }))""")
    assert [chart["title"] for chart in charts] == [
        "Size of each stream", "Who worked when", "Throughput over time", "How long batches took",
    ]  # fmt: skip
    for chart in charts:
        assert len(chart["words"]) > 40
        assert len(chart["caption"]) > 40
    tables = browser.ask("return [...document.querySelectorAll('caption')].map(c => c.textContent)")
    assert {
        "Streams, in bytes", "What each worker did", "Throughput, by tenths of the chart",
        "Batches by duration",
    } <= set(tables)  # fmt: skip
    assert browser.ask("return document.querySelectorAll('table:not(:has(caption))').length") == 0
    unlabelled = "svg:not([role=img]):not([aria-hidden]):not(svg svg)"
    assert browser.ask(f"return document.querySelectorAll('{unlabelled}').length") == 0


def test_what_went_wrong_has_a_sign_not_only_a_colour(browser: Browser, story: RunReport) -> None:
    browser.show(story)
    signs = browser.ask("""
    return [...document.querySelectorAll('.gantt use')].map(use => {
      const box = use.getBoundingClientRect();
      return [use.href.baseVal, box.width > 4 && box.height > 3];
    })""")
    assert sorted(signs) == [
        [f"#sign-{end}", True]
        for end in (*["again"] * 5, "error", "handed-back", "late", "lost", "void")
    ]
    legend = browser.ask("return document.querySelector('.legend').innerText")
    for word in ("done", "error", "lost", "handed back", "late", "void", "later attempt"):
        assert word in legend


def test_a_hostile_name_is_text_and_nothing_else(browser: Browser) -> None:
    story = replace(
        run_story(name=HOSTILE, batches=30),
        findings=[Finding(HOSTILE, "error", HOSTILE, 3, HOSTILE, HOSTILE, HOSTILE)],
        kept_source=HOSTILE, options={HOSTILE: HOSTILE}, remarks=[HOSTILE],
        probe={"error": HOSTILE, "message": HOSTILE},
    )  # fmt: skip
    browser.show(story)
    assert browser.complaints() == []
    assert (
        browser.ask("return document.querySelectorAll('script, img, iframe, object').length") == 0
    )
    assert browser.ask("return document.title").startswith("<script>document.title='owned'")
    heading = browser.ask("return document.querySelector('h1').textContent")
    assert heading.startswith("<script>document.title='owned'</script>\"'><img src=x onerror=")
    assert heading.endswith("&\ufffdgnp\ufffd\\udcff")
    handlers = "[...document.querySelectorAll('*')].flatMap(e => e.getAttributeNames())"
    assert browser.ask(f"return {handlers}.filter(name => name.startsWith('on'))") == []


def test_ten_thousand_batches_are_still_a_page(browser: Browser, tmp_path: Path) -> None:
    story = run_story(batches=10_000, hosts=8, workers_a_host=8)
    width, height = SIZES[0]
    browser.show(story, width=width, height=height)
    assert browser.complaints() == []
    assert browser.overflow() <= 0
    assert browser.ask("return document.querySelectorAll('.rows .worker').length") == 65
    assert browser.ask("return document.querySelectorAll('*').length") < 12_000
    browser.photograph(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 50_000
