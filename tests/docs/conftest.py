"""A sandbox for the blocks of a page."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.docs.places import Places, Templates, make_templates
from tests.docs.sandbox import Sandbox, make_programs
from tests.hub import WRITE_TOKEN, StandIn
from tests.hub.fixtures import hub, lone_client, pauses

__all__ = ["hub", "lone_client", "pauses"]


@pytest.fixture(scope="session")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Templates:
    return make_templates(tmp_path_factory.mktemp("docs"))


@pytest.fixture
def sandbox_of(
    tmp_path: Path, templates: Templates, hub: StandIn, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Sandbox]:
    """Make a sandbox, with datasets or ``alone``; ``HF_ENDPOINT`` is a Hub on this machine."""
    folder = tmp_path / "page"
    folder.mkdir()
    programs = make_programs(tmp_path / "programs")
    for name, value in (
        ("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}"),
        ("HF_TOKEN", WRITE_TOKEN),
        ("HF_LEROBOT_HOME", str(tmp_path / "lerobot")),
        ("HF_HUB_OFFLINE", "0"),
        ("XDG_CACHE_HOME", str(tmp_path / "cache")),
        ("TMPDIR", str(tmp_path)),
        ("COLUMNS", "100"),
    ):
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(folder)

    def make(names: dict[str, Any], *, alone: bool = False) -> Sandbox:
        return Sandbox(folder, None if alone else Places(templates, hub), names)

    return make
