"""A Hub of our own with a small dataset, and the client alone with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.hub import StandIn
from tests.hub.fixtures import hub, lone_client, pauses

from leconvert.hub import outline as outlines

__all__ = ["REPO", "hub", "lone_client", "pauses"]

REPO = "tester/arm"


@pytest.fixture
def arm(hub: StandIn, small_source: Path) -> StandIn:
    """The Hub with a v2.1 dataset, tagged ``v2.1``."""
    hub.add_repo(REPO, small_source, tags=("v2.1",))
    return hub


@pytest.fixture
def only_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let outlines hold no episode's file whole, however small it is."""
    monkeypatch.setattr(outlines, "_WHOLE_TABLE_BYTES", 0)
    monkeypatch.setattr(outlines, "_WHOLE_CLIP_BYTES", 0)
