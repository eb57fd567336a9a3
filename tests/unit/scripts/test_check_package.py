"""What belongs into an archive, what does not, and what it has to require."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

from packaging.requirements import Requirement

SCRIPT = "check_package"

WHEEL = (
    "leconvert/py.typed", "leconvert/_version.py", "leconvert/cli/main.py",
    "leconvert/cli/commands.txt", "leconvert/report/templates/report.html",
    "leconvert-0.1.0.dist-info/METADATA", "leconvert-0.1.0.dist-info/licenses/LICENSE",
)  # fmt: skip
SDIST = tuple(
    f"leconvert-0.1.0/{name}"
    for name in ("src/leconvert/py.typed", "pyproject.toml", "README.md", "CHANGELOG.md",
                 "LICENSE", "docs/cli.md", "PKG-INFO")
)  # fmt: skip


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


ROOT = Path(__file__).resolve().parents[3]
MODULE_OF = {"pyyaml": "yaml"}
IMPORTED = re.compile(r"^ *(?:import|from(?= \S+ import )) (\w+)", re.MULTILINE)
# Used where they happen to be, and done without elsewhere; the last is for type checkers alone.
LOOKED_FOR = {"PIL", "pynvml", "_typeshed"}


def test_a_lowest_installation_is_asked_for_what_every_installation_needs(
    script: ModuleType,
) -> None:
    metadata = (
        "Name: leconvert\nRequires-Dist: av>=15.1\nRequires-Dist: torch>=2.7; extra == 'probe'\n"
        "Requires-Dist: numpy>=2\n\nRequires-Dist: of the description\n"
    )
    assert script.requirements_of(metadata) == ["av>=15.1", "numpy>=2"]


def test_nothing_is_imported_that_another_package_happens_to_bring() -> None:
    about = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    optional = [line for extra in about["optional-dependencies"].values() for line in extra]
    required = {Requirement(line).name for line in [*about["dependencies"], *optional]}
    allowed = {MODULE_OF.get(name, name) for name in required} | LOOKED_FOR
    undeclared = {
        f"{path.name} imports {name}"
        for path in (ROOT / "src").rglob("*.py")
        for name in IMPORTED.findall(path.read_text("utf-8"))
        if name not in allowed | sys.stdlib_module_names | {"leconvert"}
    }
    assert undeclared == set()
