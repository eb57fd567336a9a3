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
    signs = (
        "--drop-feature {camera}",
        "after these datasets in LIST_FILE",
        "after the dataset in ",
    )
    for sign in signs:
        places = browser.ask(
            """
            return [...document.querySelectorAll('td')]
              .filter(cell => cell.textContent.includes(arguments[0]))
              .map(cell => [cell.getBoundingClientRect().left, cell.getBoundingClientRect().right]);
            """.replace("arguments[0]", repr(sign))
        )
        assert all(0 <= left < right <= width for left, right in places)
        assert places or sign == signs[-1], sign
