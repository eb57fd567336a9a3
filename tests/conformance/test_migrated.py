"""An overlay that was pushed: LeRobot downloads it and loads each frame of the source.

`tests/faults/test_migration_requests.py` holds what is migrated on the Hub against conversions.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import comparison
import pytest
from comparison import V21Source
from tests.hub import WRITE_TOKEN, StandIn
from tests.hub.fixtures import hub, lone_client, pauses
from tests.trees import digest_of

from leconvert.cli.main import main
from leconvert.run.proof import verify_pair
from leconvert.testing import DatasetSpec, make_dataset

__all__ = ["hub", "lone_client", "pauses"]

REPO = "tester/arm"


def test_lerobot_loads_each_frame_of_a_local_overlay_that_was_pushed(
    hub: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Locally ``meta_old`` stays beside ``meta``; it is not sent. ``undo`` and v2.1 go on here."""
    from lerobot.datasets import LeRobotDataset

    monkeypatch.setenv("HF_TOKEN", WRITE_TOKEN)
    source = make_dataset(tmp_path / "source", DatasetSpec(episodes=3, frames=(12, 7, 9)))
    local = Path(shutil.copytree(source, tmp_path / "local"))
    repo = hub.add_repo(REPO, source)
    first = repo.branches["main"]
    push = ["--push-repo-id", REPO, "--quiet"]
    assert main(["convert", str(local), "--layout", "overlay", *push]) == 0
    old = {entry["lfs"] for path, entry in repo.tree(first).items() if "episode_" in path}
    assert len(old) == 6
    assert not [r for r in hub.log if r.method == "PUT" and r.path.rsplit("/", 1)[1] in old]
    assert repo.tags == {"v2.1": first, "v3.0": repo.branches["main"]}
    assert not [path for path in repo.tree(repo.tags["v3.0"]) if path.startswith("meta_old")]

    root = tmp_path / "downloaded"
    opened = LeRobotDataset(REPO, root=root, video_backend="pyav")
    assert (opened.revision, len(opened)) == ("v3.0", sum(V21Source.open(source).lengths))
    comparison.assert_every_frame_is_the_sources(
        root, V21Source.open(source), "torchcodec", window=10
    )
    # What was downloaded has no meta_old; its way back is a conversion.
    assert main(["convert", str(root), str(tmp_path / "back"), "--to", "v2.1", "--quiet"]) == 0
    assert verify_pair(tmp_path / "back", source, depth="bytes").differences == ()
    assert main(["undo", str(local)]) == 0
    assert digest_of(local / "meta") == digest_of(source / "meta")
