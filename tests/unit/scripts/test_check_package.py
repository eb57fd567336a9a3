"""What belongs into an archive, and what does not."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest
from tests.scripts import loaded_script

WHEEL = (
    "leconvert/py.typed", "leconvert/_version.py", "leconvert/cli/main.py",
    "leconvert-0.1.0.dist-info/METADATA", "leconvert-0.1.0.dist-info/licenses/LICENSE",
)  # fmt: skip
SDIST = tuple(
    f"leconvert-0.1.0/{name}"
    for name in ("src/leconvert/py.typed", "pyproject.toml", "README.md", "CHANGELOG.md",
                 "LICENSE", "docs/cli.md", "PKG-INFO")
)  # fmt: skip


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    with loaded_script("check_package") as module:
        yield module


def test_a_wheel_holds_the_package_its_types_and_the_licence(script: ModuleType) -> None:
    assert script.trouble_in_wheel(WHEEL) == []
    assert script.trouble_in_wheel(WHEEL[1:]) == ["the wheel lacks leconvert/py.typed"]
    assert script.trouble_in_wheel(WHEEL[:-1]) == ["the wheel lacks the licence"]
    assert script.trouble_in_wheel([*WHEEL, "tests/test_a.py"]) == ["the wheel holds tests"]


def test_an_sdist_holds_what_builds_it_and_no_tests(script: ModuleType) -> None:
    assert script.trouble_in_sdist(SDIST) == []
    assert script.trouble_in_sdist(SDIST[:3]) == [
        "the sdist lacks CHANGELOG.md", "the sdist lacks LICENSE", "the sdist lacks docs/cli.md",
    ]  # fmt: skip
    assert script.trouble_in_sdist([*SDIST, "leconvert-0.1.0/tests/a.py"]) == [
        "the sdist holds tests"
    ]
