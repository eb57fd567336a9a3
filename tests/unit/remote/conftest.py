"""A Hub with a small dataset, a result to push, and the source that it was made of."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import HfApi
from tests.hub import StandIn
from tests.hub.fixtures import api_of, hub, lone_client, pauses

from leconvert.api import convert
from leconvert.remote import sparse_snapshot as sparse
from leconvert.remote.provenance import read_provenance, write_provenance
from leconvert.remote.push import PushReport, push
from leconvert.support.progress import NO_PROGRESS
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset
from leconvert.transfer import options
from leconvert.transfer.options import PushOptions

__all__ = ["api_of", "hub", "lone_client", "pauses"]

REPO = "tester/arm"


@pytest.fixture(scope="session")
def result(small_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small dataset, converted to be pushed; do not change it."""
    target = tmp_path_factory.mktemp("result") / "out"
    convert(small_source, output=target, for_push=True)
    return target


@pytest.fixture
def result_copy(result: Path, tmp_path: Path) -> Path:
    """A copy of the result, without a record, that a test may change."""
    return Path(shutil.copytree(result, tmp_path / "changed"))


@pytest.fixture
def noted(result: Path, tmp_path: Path) -> Callable[..., Path]:
    """Copy the result, and note beside the copy what a test says of its source."""

    def copy(**origin: str) -> Path:
        target = tmp_path / "noted"
        if not target.exists():
            shutil.copytree(result, target)
        known = read_provenance(result)
        assert known is not None
        write_provenance(target, replace(known, source="", source_facts="", **origin))
        return target

    return copy


@pytest.fixture
def pushed(hub: StandIn, api_of: Callable[..., HfApi]) -> Callable[..., PushReport]:
    """Push as the owner of ``tester/arm``, without pauses."""

    def run(
        result: Path, repo_id: str = REPO, *, token: str | bool | None = None, **options: object
    ) -> PushReport:
        progress = options.pop("progress", NO_PROGRESS)
        return push(
            result,
            PushOptions(repo_id=repo_id, **options),  # type: ignore[arg-type]
            api=api_of() if token is None else api_of(token),
            pause=lambda _: None,
            progress=progress,  # type: ignore[arg-type]
        )

    return run


@pytest.fixture
def arm(hub: StandIn, small_source: Path) -> StandIn:
    """The Hub with a v2.1 dataset, tagged ``v2.1``."""
    hub.add_repo(REPO, small_source, tags=("v2.1",))
    return hub


@pytest.fixture
def only_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let outlines hold no episode's file whole, however small it is."""
    monkeypatch.setattr(sparse, "_WHOLE_TABLE_BYTES", 0)
    monkeypatch.setattr(sparse, "_WHOLE_CLIP_BYTES", 0)


@pytest.fixture(scope="session")
def large_clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A v2.1 dataset of six episodes and two cameras, with clips of 20 to 60 kB; not to change."""
    spec = DatasetSpec(
        episodes=6,
        frames=[12, 7, 9, 15, 5, 8],
        cameras=tuple(
            CameraSpec(
                key=f"observation.images.{name}", noise_amplitude=90, target_clip_bytes=size_bytes
            )
            for name, size_bytes in (("top", 60_000), ("wrist", 30_000))
        ),
        extra_files={"README.md": "# A dataset\n"},
    )
    return make_dataset(tmp_path_factory.mktemp("source") / "large", spec)


@pytest.fixture(autouse=True)
def own_scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers without a scratch folder fetch into the test's."""
    monkeypatch.setattr(options, "default_scratch_dir", lambda: tmp_path / "default-scratch")
