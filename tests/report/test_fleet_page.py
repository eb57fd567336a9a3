"""The page of a fleet: how it stands at a look, and what helps on any screen."""

from __future__ import annotations

from pathlib import Path

import pytest

from leconvert.fleet import DatasetState, DatasetStatus, FleetStatus, write_fleet_report
from tests.report.conftest import Browser
from tests.report.stories import HOSTILE
from tests.report.test_in_a_browser import CONTRASTS, SIZES

STEP = (
    "Write `--drop-feature observation.images.a_camera_of_a_long_name` after the dataset in "
    "LIST_FILE."
)


def aside(name: str, step: str = STEP) -> DatasetStatus:
    return DatasetStatus(
        name, "/data/rec", "/out/rec", DatasetState.SET_ASIDE,
        findings=[{"code": "missing-file", "severity": "error", "times": 2,
                   "helps": "--drop-feature {camera}"}],
        message="the video of episode 1, camera top, is missing: " + "videos/" * 12 + "1.mp4.",
        next_step=step, error="FindingsError",
    )  # fmt: skip


@pytest.fixture
def page(tmp_path: Path) -> Path:
    done = DatasetStatus("done", "/data/done", "/out/done", DatasetState.CONVERTED, episodes=3)
    rows = [done, *(aside(f"rec_{n:03d}") for n in range(30)), aside(HOSTILE, HOSTILE)]
    path = tmp_path / "fleet.html"
    write_fleet_report(FleetStatus("run", "/a work", rows), path, tmp_path / "fleet.csv")
    return path


def test_what_helps_is_on_a_small_screen(browser: Browser, page: Path) -> None:
    width, height = SIZES[0]
    browser.show(page, width=width, height=height, scheme="dark")
    assert browser.complaints() == []
    assert [url for url in browser.requests() if not url.startswith(("file:", "data:,"))] == []
    assert browser.overflow() <= 0
    assert [row for row in browser.ask(CONTRASTS) if row[1] < 4.5 or row[2] < 1] == []
    for sign in (
        "--drop-feature {camera}",
        "after these datasets in LIST_FILE",
        ("after the dataset in LIST_FILE"),
    ):
        places = browser.ask(
            """
            return [...document.querySelectorAll('td')]
              .filter(cell => cell.textContent.includes(arguments[0]))
              .map(cell => [cell.getBoundingClientRect().left, cell.getBoundingClientRect().right]);
            """.replace("arguments[0]", repr(sign))
        )
        assert all(0 <= left < right <= width for left, right in places)
        assert places or sign == "after the dataset in LIST_FILE", sign


def test_it_begins_with_how_it_stands_and_links_to_each_section(
    browser: Browser, page: Path
) -> None:
    browser.show(page)
    said = browser.ask("return document.querySelector('header').innerText")
    assert "Some datasets set aside" in said
    assert "leconvert fleet suggest '/a work' > policy.toml" in said
    tiles = browser.ask("return [...document.querySelectorAll('.tiles div')].map(t => t.innerText)")
    assert [tile.split("\n")[:2] for tile in tiles[:2]] == [["Converted", "1"], ["Set aside", "31"]]
    links = browser.ask("return [...document.querySelectorAll('nav a')].map(a => a.hash.slice(1))")
    names = browser.ask("return [...document.querySelectorAll('section')].map(s => s.id)")
    assert links == names
    files = browser.ask("return [...document.querySelectorAll('td a')].map(a => a.textContent)")
    assert files == ["fleet.csv"]
    # Thirty that need the same are one row, which names them all.
    rows = browser.ask("""
    return [...document.querySelectorAll('tbody tr')].map(row => row.innerText)
      .filter(text => text.includes('rec_017') && text.includes('LIST'))""")
    assert len(rows) == 1
    assert browser.ask("return document.querySelectorAll('script, img, iframe').length") == 0
