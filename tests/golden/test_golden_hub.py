"""Records of version 1 that lie beside datasets from and for the Hub parse for ever."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from leconvert.errors import WorkDirError
from leconvert.hub.origin import Origin, origin_path, read_origin
from leconvert.hub.outline import open_outline
from leconvert.hub.provenance import Provenance, provenance_path, read_provenance
from leconvert.hub.remote import HubRepo
from leconvert.hub.remote_file import RemoteFile

GOLDEN = Path(__file__).parent / "v1_hub"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN, tmp_path / "hub"))


def change(path: Path, **keys: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_bytes()) | keys))


@pytest.mark.parametrize("later_keys", [{}, {"of_a_later_release": [1]}])
def test_both_are_read(folder: Path, later_keys: dict[str, object]) -> None:
    for path in (origin_path(folder), provenance_path(folder / "out")):
        change(path, **later_keys)
    assert read_origin(folder) == Origin("tester/arm", "v2.1", COMMIT)
    assert read_provenance(folder / "out") == Provenance(
        repo_id="tester/arm",
        revision="v2.1",
        commit=COMMIT,
        options={"layout": "streaming", "retime": True},
        findings={"frame-count": 2},
        changes=("timestamp computed",),
        pushed=True,
    )


def test_both_are_refused_in_a_version_of_the_future(folder: Path) -> None:
    for path in (origin_path(folder), provenance_path(folder / "out")):
        change(path, version=2)
    with pytest.raises(WorkDirError, match="version 2"):
        read_origin(folder)
    with pytest.raises(WorkDirError, match="version 2"):
        read_provenance(folder / "out")


def test_an_outline_is_read(folder: Path) -> None:
    made = open_outline(folder / "outlines" / COMMIT / "tree")
    assert made.repo == HubRepo("tester/arm", COMMIT)
    assert made.origin == Origin("tester/arm", "v2.1", COMMIT)
    assert (made.size_bytes, made.largest_bytes) == (5_000_813, 5_001_216)
    clip = "videos/chunk-000/observation.images.top/episode_000000.mp4"
    assert made.listing().find([clip, "meta/info.json"]) == [
        (RemoteFile(clip, 5_000_001, "b" * 64), False),
        (RemoteFile("meta/info.json", 812, "a" * 40), True),
    ]
