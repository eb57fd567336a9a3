"""Complete sets of faults take many minutes: they run only where a marker is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("markexpr"):
        return
    slow = [
        item
        for item in items
        if item.path.is_relative_to(HERE) and item.get_closest_marker("slow") is not None
    ]
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if item not in slow]
