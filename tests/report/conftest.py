"""One headless Chromium for all tests of the page; the system's own, nothing is downloaded."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from leconvert.report.page import page
from leconvert.report.values import RunReport

MISSING = [tool for tool in ("chromium", "chromedriver") if shutil.which(tool) is None]


class Browser:
    """A page as a reader sees it: at a size, in a scheme, on a screen or on paper.

    Args:
        driver: Selenium's driver.
        folder: Where pages are written to be opened.
    """

    def __init__(self, driver: Any, folder: Path) -> None:
        self.driver = driver
        self._folder = folder
        self._shown: list[RunReport] = []

    def command(self, name: str, **arguments: object) -> Any:
        return self.driver.execute_cdp_cmd(name, arguments)

    def show(
        self,
        story: RunReport | Path,
        *,
        width: int = 1440,
        height: int = 900,
        scheme: str = "light",
        medium: str = "screen",
    ) -> None:
        """Open a story's page, after emptying the log; or a page that was written."""
        path = story if isinstance(story, Path) else self._written(story)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.command("Emulation.setEmulatedMedia", media=medium, features=[feature])
        self.command(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 500,
        )  # fmt: skip
        self.driver.get_log("browser")
        self.driver.get_log("performance")
        self.driver.get(path.as_uri())

    def _written(self, story: RunReport) -> Path:
        number = next((n for n, shown in enumerate(self._shown) if shown is story), None)
        if number is None:
            number = len(self._shown)
            self._shown.append(story)
            (self._folder / f"page-{number}.html").write_text(page(story), encoding="utf-8")
        return self._folder / f"page-{number}.html"

    def ask(self, script: str) -> Any:
        """Return what a script in the page says."""
        return self.driver.execute_script(script)

    def overflow(self) -> int:
        """Return how many pixels the page is wider than the window."""
        root = "document.documentElement"
        return int(self.ask(f"return {root}.scrollWidth - {root}.clientWidth"))

    def complaints(self) -> list[str]:
        """Return what the console said since the page was opened."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Return every address that was asked for since the page was opened, itself included."""
        import json

        found = []
        for entry in self.driver.get_log("performance"):
            event = json.loads(entry["message"])["message"]
            if event["method"] == "Network.requestWillBeSent":
                found.append(event["params"]["request"]["url"])
        return found

    def photograph(self, path: Path) -> None:
        """Save the whole page as a picture, for people to look at."""
        shot = self.command("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if MISSING:
        pytest.skip(f"{' and '.join(MISSING)} are not installed: no page can be looked at")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(
        options=options, service=Service(executable_path=shutil.which("chromedriver"))
    )
    try:
        yield Browser(driver, tmp_path_factory.mktemp("pages"))
    finally:
        driver.quit()


@pytest.fixture
def calls_of() -> Callable[[Callable[[], object]], int]:
    """Return how many function calls something takes: what grows with time, without a clock."""
    import sys

    def count(action: Callable[[], object]) -> int:
        calls = 0

        def hear(_frame: object, event: str, _argument: object) -> None:
            nonlocal calls
            calls += event in {"call", "c_call"}

        sys.setprofile(hear)
        try:
            action()
        finally:
            sys.setprofile(None)
        return calls

    return count
