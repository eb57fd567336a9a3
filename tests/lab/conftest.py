"""A lab takes root and minutes: tests with the marker run only where they are asked for by it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

LAB = Path(__file__).resolve().parents[2] / "scripts" / "lab"
sys.path.insert(0, str(LAB))

_LEFT_OUT = pytest.StashKey[int]()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the lab's tests out unless ``-m`` speaks of them."""
    if "lab" in config.option.markexpr:
        return
    left_out = [item for item in items if item.get_closest_marker("lab")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
        config.stash[_LEFT_OUT] = len(left_out)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say aloud that they did not run."""
    left_out = terminalreporter.config.stash.get(_LEFT_OUT, 0)
    if left_out:
        terminalreporter.write_line(
            f"{left_out} tests of the labs did NOT run. As root: "
            '`scripts/test -m "lab and not slow"` (minutes), `scripts/test -m lab` (all).'
        )
