"""The page's arithmetic and its HTML, without a browser."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from leconvert.report import check_report_place, write_report
from leconvert.report.charts import TimeAxis, by_worker, durations, rates
from leconvert.report.page import page
from leconvert.report.values import (
    Attempt,
    AttemptEnd,
    Packer,
    RunReport,
    StoryState,
    StreamFigures,
)
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


def test_text_in_a_chart_is_escaped() -> None:
    stream = StreamFigures("<a href='x'>\x00b\u202ec\ud800", 1, 7, 1, 1, 7)
    host = attempt(BEGIN, BEGIN + 1, host='"><b>')
    html = page(replace(run_story(batches=1), streams=[stream], attempts=[host]))
    assert '">&lt;a href=&#39;x&#39;&gt;\ufffdb\ufffdc\\ud800</text>' in html
    assert '<li class="host" title="&#34;&gt;&lt;b&gt;">&#34;&gt;&lt;b&gt;</li>' in html


def test_characters_that_no_page_may_hold_are_replaced() -> None:
    html = page(replace(run_story(name=HOSTILE, batches=5), remarks=["a\x00b\u202ec\ud800"]))
    assert "<li>a\ufffdb\ufffdc\\ud800</li>" in html
    assert not set(html) & set("\x00\u202e\ud800\udcff")


def test_every_element_is_closed_and_none_is_a_strangers() -> None:
    checker = Checker()
    checker.feed(page(run_story(name=HOSTILE, overnight=True)))
    assert checker.open == []
    assert not checker.tags.keys() & {"script", "img", "iframe", "object", "form"}
    assert checker.tags["style"] == 1


def test_nothing_on_the_page_is_fetched() -> None:
    html = page(run_story(name=HOSTILE))
    assert 'http-equiv="Content-Security-Policy" content="default-src \'none\'; ' in html
    checker = Checker()
    checker.feed(html)
    assert {str(address)[:1] for address in checker.addresses - {"data:,"}} == {"#"}
    assert set(re.findall(r"url\((.)", html)) == {"#"}
    assert "@import" not in html


def test_templates_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first = page(run_story(batches=1))
    monkeypatch.setattr("jinja2.Environment.compile", None)
    assert page(run_story(batches=1)) == first


def test_secrets_of_others_records_are_hidden_once_more() -> None:
    assert TOKEN not in page(run_story())
    odd = Invocation("work", ["leconvert", "--x", f"https://a:b@c/{TOKEN}"], "t", "h", 1, "now")
    html = page(replace(run_story(), invocations=[odd]))
    assert TOKEN not in html
    assert "a:b@" not in html


def test_a_page_of_ten_thousand_batches_is_small_and_made_in_linear_time(
    calls_of: Callable[[Callable[[], object]], int],
) -> None:
    few, many = (run_story(batches=n, hosts=8, workers_a_host=8) for n in (5_000, 10_000))
    assert len(page(many).encode()) < 300_000
    once, twice = (calls_of(lambda story=story: page(story)) for story in (few, many))
    assert twice < 2.1 * once


def test_findings_and_hosts_by_the_ten_thousand_are_counted_not_listed() -> None:
    whole = run_story(batches=2_000, hosts=500, workers_a_host=1)
    assert whole.findings is not None
    many = replace(whole, findings=list(whole.findings) * 10_000)
    html = page(many)
    assert len(html.encode()) < 1_000_000
    assert "29,800 more are left out" in html
    assert "404 more hosts" in html


def test_idle_stretches_are_cut_short_and_the_rest_keeps_its_order() -> None:
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


def test_a_short_pause_is_not_cut() -> None:
    axis = TimeAxis([(0, 10), (35, 45)])
    assert axis.breaks == []
    assert axis.place(22.5) == 0.5


def test_a_run_of_no_length_has_an_axis() -> None:
    axis = TimeAxis([(5, 5)])
    assert (axis.place(5), axis.place(6)) == (0, pytest.approx(1))
    assert rates([attempt(5, 5)], axis, 4)
    html = page(replace(run_story(batches=1, trouble=False), attempts=[attempt(5, 5)], packers=()))
    assert "Who worked when" in html


def test_throughput_adds_up_to_the_bytes_that_were_done() -> None:
    attempts = [attempt(0, 10, 1000), attempt(5, 10, 500), attempt(0, 20, 300)]
    axis = TimeAxis([(0, 20)])
    found = rates(attempts, axis, 4)
    assert found == pytest.approx([115, 215, 15, 15])
    assert sum(rate * 5 for rate in found) == pytest.approx(1800)


def test_durations_are_counted_in_even_steps_or_by_a_factor() -> None:
    even = durations([1, 1, 2, 3, 4, 5])
    assert (even[0].low, even[-1].high, sum(b.count for b in even)) == (1, 5, 6)
    assert even[1].low - even[0].low == pytest.approx(even[2].low - even[1].low)
    wide = durations([0.01, 0.1, 1, 10, 100])
    assert wide[1].low / wide[0].low == pytest.approx(wide[2].low / wide[1].low)
    assert sum(b.count for b in wide) == 5
    assert [(b.low, b.count) for b in durations([2.0] * 7)] == [(2.0, 7)]


def test_workers_of_one_host_stand_together_in_order() -> None:
    attempts = [attempt(3, 4, host="b"), attempt(1, 2, host="a", pid=12, token="x"),
                attempt(0, 1, host="a", pid=3, token="y")]  # fmt: skip
    assert list(by_worker(attempts)) == [("a", 3, "y"), ("a", 12, "x"), ("b", 1, "t")]
    html = page(replace(run_story(batches=1), attempts=attempts, packers=()))
    assert re.findall(r'<li class="(?:host|worker p16)" title="([^"]*)">', html) == [
        "a", "worker 3", "worker 12", "b", "worker 1",
    ]  # fmt: skip


def test_a_plateau_of_throughput_is_reached_at_its_beginning() -> None:
    html = page(replace(run_story(batches=1), attempts=[attempt(BEGIN, BEGIN + 7)], packers=()))
    assert "at most 14 B/s, 0 s after the beginning." in html


def test_a_packer_that_waits_for_workers_does_not_keep_an_idle_night_uncut() -> None:
    night = 14 * 3600
    packer = Packer(1, "h", 9, "finished", {"began": BEGIN, "finished": BEGIN + night + 20})
    attempts = [attempt(BEGIN, BEGIN + 5), attempt(BEGIN + night, BEGIN + night + 10)]
    html = page(replace(run_story(batches=1), attempts=attempts, packers=[packer]))
    assert "No worker worked for 13 h 59 min in all" in html


def test_a_page_that_cannot_be_written_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(UsageError, match=f"may not write in the folder {tmp_path}"):
        check_report_place(tmp_path / "x.html", [])


def test_the_page_may_not_lie_in_a_dataset(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    with pytest.raises(UsageError, match="which must contain only files of the dataset"):
        check_report_place(tmp_path / "set" / "x.html", [tmp_path / "set"])
    with pytest.raises(UsageError, match="is a folder"):
        check_report_place(tmp_path / "set", [])
    with pytest.raises(UsageError, match="does not exist"):
        check_report_place(tmp_path / "no" / "x.html", [])
    story = replace(run_story(batches=3), target=str(tmp_path / "set"), sources=[])
    with pytest.raises(UsageError):
        write_report(story, tmp_path / "set" / "x.html")
    size = write_report(story, tmp_path / "x.html")
    assert (tmp_path / "x.html").stat().st_size == size
    assert sorted(path.name for path in tmp_path.iterdir()) == ["set", "x.html"]


@pytest.mark.parametrize("state", list(StoryState))
def test_every_state_is_said_in_a_word_and_a_sentence(state: StoryState) -> None:
    html = page(replace(run_story(batches=3), state=state))
    assert f"</span> {state.value.capitalize()}</p>" in html


def test_a_run_that_nobody_worked_on_says_so(tmp_path: Path) -> None:
    story: RunReport = replace(run_story(batches=3), attempts=(), packers=(), invocations=())
    assert "No worker has worked on a batch yet." in page(story)


def test_figures_of_the_probe_are_told_or_why_there_are_none() -> None:
    html = page(run_story(batches=3))
    assert "<td>1,234</td>" in html
    assert "<td>1.31 s</td>" in html
    none = {"error": "ProbeError", "message": "torch is <not> installed."}
    html = page(replace(run_story(batches=3), probe=none))
    assert "The speed could not be measured: torch is &lt;not&gt; installed." in html
    assert 'id="loading"' not in page(replace(run_story(batches=3), probe=None))


def test_mixed_versions_are_named() -> None:
    story = run_story(batches=3)
    assert "different versions of" not in page(story)
    other = Invocation("work", None, "t", "h", 1, "now", {"pyarrow": "18.0.0"})
    html = page(replace(story, invocations=[*story.invocations, other]))
    assert "different versions of pyarrow." in html
    assert "leconvert.work(…) in Python" in html
