"""What a push would change, from listings alone."""

from __future__ import annotations

import pytest

from leconvert.remote.push_plan import (
    CommitShare,
    Owned,
    cameras_of,
    differs,
    fingerprint,
    plan_push,
    version_of,
)
from leconvert.transfer.store import RemoteFile

CAMERA = "observation.images.top"
INFO = {
    "codebase_version": "v2.1",
    "fps": 30,
    "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
    "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
    "features": {CAMERA: {"dtype": "video"}, "action": {"dtype": "float32"}},
}
OWNED = Owned(INFO)


def _remote(*paths: str) -> dict[str, RemoteFile]:
    return {path: RemoteFile(path, 1, "0" * 40) for path in paths}


@pytest.mark.parametrize(
    ("path", "owned"),
    [
        ("data/chunk-000/episode_000000.parquet", True),
        ("data/chunk-000/file-000.parquet", True),
        (f"videos/chunk-001/{CAMERA}/episode_001000.mp4", True),
        (f"videos/{CAMERA}/chunk-000/file-007.mp4", True),
        ("meta/episodes.jsonl", True),
        ("meta/episodes/chunk-000/file-000.parquet", True),
        ("meta/stats.json", True),
        ("videos/chunk-001/observation.images.side/episode_001000.mp4", False),
        ("data/chunk-000/episode_000000.parquet.bak", False),
        ("data/chunk-000/notes.txt", False),
        ("meta/modality.json", False),
        ("old/data/chunk-000/episode_000000.parquet", False),
        ("README.md", False),
    ],
)
def test_only_files_of_the_dataset_are_its_own(path: str, owned: bool) -> None:
    assert (path in OWNED) is owned


@pytest.mark.parametrize(
    "template", ["data/all.parquet", "data/{episode_index", "data/{video_key}.parquet", 7]
)
def test_a_template_that_names_no_episodes_owns_nothing(template: object) -> None:
    owned = Owned({**INFO, "data_path": template})
    assert "data/all.parquet" not in owned
    assert "data/chunk-000/file-000.parquet" in owned


def test_a_folder_goes_as_one_operation_and_without_a_dataset_nothing_is_deleted() -> None:
    episodes = [
        f"data/chunk-{chunk:03d}/episode_{n:06d}.parquet" for chunk in (0, 1) for n in (1, 2)
    ]
    clips = [f"videos/chunk-000/{CAMERA}/episode_{n:06d}.mp4" for n in (1, 2)]
    remote = _remote(*episodes, *clips, "README.md", "notes.md")
    plan = plan_push({"data/chunk-000/file-000.parquet": 5}, remote, set(), OWNED)
    assert plan.delete == (*episodes[:2], "data/chunk-001/", "videos/")
    assert plan.deleted_files == 6
    assert plan.kept == ("notes.md",)
    with_thumbs = _remote(*clips, "videos/chunk-000/thumbs.txt")
    plan = plan_push({}, with_thumbs, set(), OWNED)
    assert plan.delete == (f"videos/chunk-000/{CAMERA}/",)
    plan = plan_push({"meta/info.json": 1}, _remote("meta/tasks.jsonl", "a.csv"), set(), None)
    assert (plan.delete, plan.kept) == ((), ("a.csv", "meta/tasks.jsonl"))


def test_commits_stay_below_operations_and_bytes() -> None:
    sizes = {"a.json": 60, "b.json": 60, "c.mp4": 10**9, "d.mp4": 1, "e.mp4": 1}
    remote = _remote("data/chunk-000/episode_000001.parquet", "data/chunk-000/own.txt")
    plan = plan_push(sizes, remote, set(), OWNED)
    old = "data/chunk-000/episode_000001.parquet"
    assert plan.commits(sizes, operations=100, payload_bytes=1000) == [
        CommitShare(("a.json", "b.json", "c.mp4", "d.mp4", "e.mp4"), (old,))
    ]
    assert plan.commits(sizes, operations=4, payload_bytes=100) == [
        CommitShare(("a.json",), ()),
        CommitShare(("b.json", "c.mp4", "d.mp4"), ()),
        CommitShare(("e.mp4",), (old,)),
    ]
    shares = plan.commits(sizes, operations=2, payload_bytes=1000)
    assert shares[-1] == CommitShare((), (old,))
    assert all(len(share.add) + len(share.delete) == 1 for share in shares if share.add)


def test_a_result_is_recognised_by_version_rate_and_features() -> None:
    assert differs(INFO, {**INFO, "features": {"action": {}, "index": {}}}) is None
    assert differs(INFO, {**INFO, "fps": 15}) == "it has 30 frames per second, the result 15"
    new = {**INFO, "features": {"grip": {}}}
    assert differs(INFO, new) == "it has no feature 'grip'"
    assert version_of({"codebase_version": 3}) == "of no version"


def test_a_push_is_named_by_its_files_and_its_base() -> None:
    name = fingerprint({"a": 1, "b": 2}, "c0")
    assert name == fingerprint({"b": 2, "a": 1}, "c0")
    assert (
        len({name, fingerprint({"a": 1, "b": 3}, "c0"), fingerprint({"a": 1, "b": 2}, "c1")}) == 3
    )


@pytest.mark.parametrize("features", [None, [], "none", {"action": "float32"}])
def test_features_that_are_no_table_are_none(features: object) -> None:
    info = {**INFO, "features": features}
    assert cameras_of(info) == []
    assert f"videos/{CAMERA}/chunk-000/file-007.mp4" not in Owned(info)
    assert "data/chunk-000/file-000.parquet" in Owned(info)
    assert differs(info, INFO) == "it has no feature 'action'"
