"""The check of licences, by packages that were never published."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = "check_licences"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path; packages come by `_install`."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def _install(folder: Path, name: str, *lines: str) -> None:
    about = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    about.mkdir()
    head = ("Metadata-Version: 2.4", f"Name: {name}", "Version: 1.0")
    (about / "METADATA").write_text("\n".join([*head, *lines]) + "\n")


@pytest.mark.parametrize(
    ("line", "allowed"),
    [
        ("License-Expression: MIT", True),
        ("License-Expression: MIT OR GPL-3.0-only", True),
        ("License-Expression: MIT AND GPL-3.0-only", False),
        ("License-Expression: (GPL-3.0-only OR BSD-3-Clause) AND Apache-2.0", True),
        ("License-Expression: Apache-2.0 WITH LLVM-exception", True),
        ("License-Expression: AGPL-3.0-or-later", False),
        ("Classifier: License :: OSI Approved :: BSD License", True),
        ("Classifier: License :: OSI Approved :: GNU General Public License v3 (GPLv3)", False),
        ("License: Apache 2.0", True),
        ("License: see the file", False),
        ("Summary: says nothing", False),
    ],
)
def test_what_a_package_declares_decides(
    script: ModuleType, installed: Path, line: str, allowed: bool
) -> None:
    _install(installed, "leconvert-made-up", line)
    assert script.is_allowed(script.declared_by("leconvert-made-up")) is allowed


def test_an_expression_counts_before_what_is_older(script: ModuleType, installed: Path) -> None:
    _install(
        installed,
        "leconvert-made-up",
        "License-Expression: GPL-3.0-only",
        "License: MIT",
        "Classifier: License :: OSI Approved :: MIT License",
    )
    declared = script.declared_by("leconvert-made-up")
    assert declared.says == "GPL-3.0-only"
    assert not script.is_allowed(declared)


def test_packages_are_followed_through_extras_and_markers(
    script: ModuleType, installed: Path
) -> None:
    _install(
        installed,
        "made-up-a",
        "Requires-Dist: made-up-b[fast]>=1",
        'Requires-Dist: made-up-c; sys_platform == "none"',
        "Requires-Dist: made-up-missing",
    )
    _install(
        installed,
        "made-up-b",
        'Requires-Dist: made-up-d; extra == "fast"',
        'Requires-Dist: made-up-c; extra == "slow"',
    )
    _install(installed, "made-up-c")
    _install(installed, "made-up-d", "Requires-Dist: made_up.a")  # a circle
    assert script.reached_from(["made-up-a"]) == ["made-up-a", "made-up-b", "made-up-d"]


def test_cuda_is_allowed_where_an_extra_brings_it_and_not_as_a_need(script: ModuleType) -> None:
    cuda = script.Declared("nvidia-cublas", "LicenseRef-NVIDIA-Proprietary")
    assert script.is_allowed(cuda, is_needed=False)
    assert not script.is_allowed(cuda)
