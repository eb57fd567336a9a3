"""The script that a module of tests is about."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest
from tests.scripts import loaded_script


@pytest.fixture(scope="module")
def script(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """The script, or the case of the benchmarks, that the module's ``SCRIPT`` names."""
    with loaded_script(request.module.SCRIPT) as module:
        yield module
