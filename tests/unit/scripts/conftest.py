"""The script that a module of tests is about, and rows of its logs."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from tests.scripts import loaded_script


@pytest.fixture(scope="module")
def script(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """The script, or the case of the benchmarks, that the module's ``SCRIPT`` names."""
    with loaded_script(request.module.SCRIPT) as module:
        yield module


@pytest.fixture(scope="session")
def measured_row() -> Any:
    """Make a row of a log: ``measured_row(runner, wall_seconds)``."""

    def make(runner: str, wall_seconds: float, **changes: Any) -> dict[str, Any]:
        row = {"runner": runner, "wall_seconds": wall_seconds, "user_seconds": 1.0}
        return row | {"system_seconds": 0.5, "peak_rss_bytes": 100_000_000} | changes

    return make
