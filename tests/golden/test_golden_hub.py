"""Records of version 1 that lie beside datasets from and for the Hub parse for ever."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from leconvert.remote.provenance import (
    Origin,
    Provenance,
    origin_path,
    provenance_path,
    read_origin,
    read_provenance,
)
from leconvert.remote.sparse_snapshot import open_sparse_snapshot
from leconvert.remote.stores import read_notes
from leconvert.support.errors import WorkDirError
from leconvert.transfer.hub import HubStore
from leconvert.transfer.store import RemoteFile

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


def test_a_record_of_files_is_read(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(GOLDEN.with_name("v2_hub"), tmp_path / "hub"))
    assert read_provenance(folder / "out") == Provenance(
        options={"layout": "streaming", "loader_workers": 4},
        changes=("timestamp computed",),
        source="/data/arm_old",
        source_facts="c" * 64,
        files={
            "data/chunk-000/file-000.parquet": (5_000_001, "b" * 64),
            "meta/info.json": (812, "a" * 64),
        },
    )


def test_both_are_refused_in_a_version_of_the_future(folder: Path) -> None:
    change(origin_path(folder), version=2)
    change(provenance_path(folder / "out"), version=3)
    with pytest.raises(WorkDirError, match="version 2"):
        read_origin(folder)
    with pytest.raises(WorkDirError, match="version 3"):
        read_provenance(folder / "out")


@pytest.mark.parametrize(("version", "url"), [(1, None), (2, "s3://bucket/arm")])
def test_what_was_fetched_by_url_is_read(version: int, url: str | None) -> None:
    found, files = read_notes(GOLDEN.with_name(f"v{version}_mirror"))
    assert found == url, "version 1 does not say"
    mark = 'ETag="9a0364b9e99bb480dd25e1f0284c8555"'
    assert files == {"meta/info.json": RemoteFile("meta/info.json", 813, mark=mark)}


def test_an_outline_is_read(folder: Path) -> None:
    made = open_sparse_snapshot(folder / "outlines" / COMMIT / "tree")
    assert made.store == HubStore("tester/arm", COMMIT)
    assert made.origin == Origin("tester/arm", "v2.1", COMMIT)
    assert (made.size_bytes, made.largest_bytes) == (5_000_813, 5_001_216)
    clip = "videos/chunk-000/observation.images.top/episode_000000.mp4"
    assert made.find([clip, "meta/info.json"]) == [
        (RemoteFile(clip, 5_000_001, "b" * 64), False),
        (RemoteFile("meta/info.json", 812, "a" * 40), True),
    ]
