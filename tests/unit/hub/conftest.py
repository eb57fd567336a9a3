"""A Hub of our own with a small dataset, and the client alone with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.hub import StandIn
from tests.hub.fixtures import hub, lone_client, pauses

from leconvert.hub import outline as outlines
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset

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


@pytest.fixture(scope="session")
def large_clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A v2.1 dataset of six episodes and two cameras, with clips of 20 to 60 kB; not to change."""
    spec = DatasetSpec(
        episodes=6,
        frames=[12, 7, 9, 15, 5, 8],
        cameras=tuple(
            CameraSpec(
                key=f"observation.images.{name}",
                noise_amplitude=90,
                target_clip_bytes=size_bytes,
            )
            for name, size_bytes in (("top", 60_000), ("wrist", 30_000))
        ),
        extra_files={"README.md": "# A dataset\n"},
    )
    return make_dataset(tmp_path_factory.mktemp("source") / "large", spec)
