"""The page's arithmetic and its HTML, without a browser."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from leconvert.report.charts import TimeAxis, rates
from leconvert.report.page import check_report_place, page, write_report
from leconvert.report.values import Attempt, AttemptEnd, StreamFigures
from leconvert.support.errors import UsageError
from leconvert.workdir.activity import Invocation
from tests.report.stories import BEGIN, HOSTILE, TOKEN, run_story


def attempt(began: float, ended: float, size: int = 100, **more: object) -> Attempt:
    whole = Attempt(0, 1, "t", "h", 1, AttemptEnd.DONE, began, ended, ended - began, size)
    return replace(whole, **more)  # type: ignore[arg-type]


class Checker(HTMLParser):
    """Checks that every element is closed in order."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: dict[str, int] = {}
        self.addresses: set[str | None] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses |= {value for key, value in attrs if key in {"href", "src", "data"}}
        self.tags[tag] = self.tags.get(tag, 0) + 1
        if tag not in {"meta", "link"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_text_is_escaped_and_secrets_of_others_records_are_hidden_once_more() -> None:
    stream = StreamFigures("<a href='x'>\x00b\u202ec\ud800", 1, 7, 1, 1, 7)
    host = attempt(BEGIN, BEGIN + 1, host='"><b>')
    html = page(replace(run_story(batches=1), streams=[stream], attempts=[host]))
    assert '">&lt;a href=&#39;x&#39;&gt;\ufffdb\ufffdc\\ud800</text>' in html
    assert '<li class="host" title="&#34;&gt;&lt;b&gt;">&#34;&gt;&lt;b&gt;</li>' in html
    html = page(replace(run_story(name=HOSTILE, batches=5), remarks=["a\x00b\u202ec\ud800"]))
    assert "<li>a\ufffdb\ufffdc\\ud800</li>" in html
    assert not set(html) & set("\x00\u202e\ud800\udcff")
    assert TOKEN not in page(run_story())
    odd = Invocation("work", ["leconvert", "--x", f"https://a:b@c/{TOKEN}"], "t", "h", 1, "now")
    html = page(replace(run_story(), invocations=[odd]))
    assert TOKEN not in html
    assert "a:b@" not in html


def test_every_element_is_closed_none_is_a_strangers_and_nothing_is_fetched() -> None:
    checker = Checker()
    html = page(run_story(name=HOSTILE, overnight=True))
    checker.feed(html)
    assert checker.open == []
    assert not checker.tags.keys() & {"script", "img", "iframe", "object", "form"}
    assert checker.tags["style"] == 1
    assert 'http-equiv="Content-Security-Policy" content="default-src \'none\'; ' in html
    assert {str(address)[:1] for address in checker.addresses - {"data:,"}} == {"#"}
    assert set(re.findall(r"url\((.)", html)) == {"#"}
    assert "@import" not in html


def test_a_page_is_small_and_made_in_linear_time(
    calls_of: Callable[[Callable[[], object]], int],
) -> None:
    assert len(page(run_story(batches=10_000, hosts=8, workers_a_host=8)).encode()) < 300_000
    few, many = (run_story(batches=n, hosts=8, workers_a_host=8) for n in (1_500, 3_000))
    once, twice = (calls_of(lambda story=story: page(story)) for story in (few, many))
    assert twice < 2.1 * once
    whole = run_story(batches=2_000, hosts=500, workers_a_host=1)
    assert whole.findings is not None
    many = replace(whole, findings=list(whole.findings) * 10_000)
    html = page(many)
    assert len(html.encode()) < 1_000_000
    assert "29,800 more are left out" in html
    assert "404 more hosts" in html


def test_an_axis_cuts_idle_stretches_and_throughput_adds_up() -> None:
    axis = TimeAxis([(100, 110), (105, 120), (50_000, 50_020)])
    [(start, stop, cut)] = axis.breaks
    assert (axis.began, axis.ended, axis.busy_seconds) == (100, 50_020, 40)
    assert (round(start, 3), round(stop, 3), cut) == (0.48, 0.52, 49_880)
    places = [axis.place(time) for time in (100, 110, 120, 20_000, 50_000, 50_010, 50_020)]
    assert places == sorted(places)
    assert places[0] == 0
    assert places[-1] == pytest.approx(1)
    assert axis.time(axis.place(50_010)) == pytest.approx(50_010)
    assert [seconds for _, seconds in axis.ticks()] == [0, 10, 49_900]
    axis = TimeAxis([(5, 5)])
    assert (axis.place(5), axis.place(6)) == (0, pytest.approx(1))
    assert rates([attempt(5, 5)], axis, 4)
    html = page(replace(run_story(batches=1, trouble=False), attempts=[attempt(5, 5)], packers=()))
    assert "Who worked when" in html
    attempts = [attempt(0, 10, 1000), attempt(5, 10, 500), attempt(0, 20, 300)]
    axis = TimeAxis([(0, 20)])
    found = rates(attempts, axis, 4)
    assert found == pytest.approx([115, 215, 15, 15])
    assert sum(rate * 5 for rate in found) == pytest.approx(1800)


def test_a_page_that_may_not_or_cannot_lie_somewhere_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "set").mkdir()
    for place, said in (
        ("set/x.html", "which must contain only files of the dataset"),
        ("set", "is a folder"),
        ("no/x.html", "does not exist"),
    ):
        with pytest.raises(UsageError, match=said):
            check_report_place(tmp_path / place, [tmp_path / "set"] if "x" in place else [])
    story = replace(run_story(batches=3), target=str(tmp_path / "set"), sources=[])
    with pytest.raises(UsageError):
        write_report(story, tmp_path / "set" / "x.html")
    size = write_report(story, tmp_path / "x.html")
    assert (tmp_path / "x.html").stat().st_size == size
    assert sorted(path.name for path in tmp_path.iterdir()) == ["set", "x.html"]
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(UsageError, match=f"may not write in the folder {tmp_path}"):
        check_report_place(tmp_path / "x.html", [])
