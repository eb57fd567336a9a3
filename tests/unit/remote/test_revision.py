"""Which commit is meant, and whether a dataset is there that can be converted."""

from __future__ import annotations

import json

import pytest
from tests.hub import StandIn

from leconvert.remote.provenance import Origin
from leconvert.remote.source import check_convertible, find_converted, resolve_revision
from leconvert.support.errors import HubError, SourceError
from leconvert.transfer.hub import HubStore

REPO = "tester/arm"


def info_of(version: object) -> dict[str, bytes]:
    return {"meta/info.json": json.dumps({"codebase_version": version}).encode()}


def test_of_the_tags_those_count_that_are_called_as_a_version_that_is_read(hub: StandIn) -> None:
    repo = hub.add_repo(REPO, info_of("v2.1"), tags=("v2.10", "v2.1.3", "v3.1", "paper", "v2.x"))
    assert resolve_revision(REPO).revision == "main"
    assert resolve_revision(REPO, to="v2.1").revision == "main"
    hub.add_commit(REPO, info_of("v2.0"))
    repo.tags.update({"v2.0": repo.branches["main"], "v2.1": repo.tags["v2.x"]})
    assert resolve_revision(REPO).revision == "v2.1"
    assert resolve_revision(REPO).commit == repo.tags["v2.1"]


def test_a_repo_without_tags_and_without_main_has_nothing_to_convert(hub: StandIn) -> None:
    repo = hub.add_repo(REPO)
    repo.branches["trunk"] = repo.branches.pop("main")
    with pytest.raises(HubError, match=f"{REPO} has no revision main"):
        resolve_revision(REPO)
    assert resolve_revision(REPO, "trunk").commit == repo.branches["trunk"]


@pytest.mark.parametrize(
    "content",
    [b"{", b"[]", b"{}", b'{"codebase_version": 3}', b"\xff\xfe"],
    ids=["cut off", "a list", "no version", "a number", "no text"],
)
def test_an_info_that_names_no_version_is_no_dataset(hub: StandIn, content: bytes) -> None:
    repo = hub.add_repo(REPO, {"meta/info.json": content}, tags=("v3.0",))
    found = Origin(REPO, "main", repo.branches["main"])
    with pytest.raises(SourceError) as caught:
        check_convertible(found, HubStore(found.repo))
    assert caught.value.message == (
        f"{REPO} at main is not a LeRobot dataset: it has no meta/info.json with a "
        "codebase_version."
    )
    assert find_converted(REPO) is None, "a tag alone makes no v3.0 dataset"


def test_the_tag_that_holds_a_v3_dataset_is_found(hub: StandIn) -> None:
    repo = hub.add_repo(REPO, info_of("v2.1"), tags=("v2.1", "v3.1"))
    repo.tags["v3.0"] = hub.add_commit(REPO, info_of("v3.0"))
    found = find_converted(REPO)
    assert found is not None
    assert (found.revision, found.commit) == ("v3.0", repo.tags["v3.0"])


def test_the_way_back_begins_with_the_newest_v3_tag(hub: StandIn) -> None:
    hub.add_repo(REPO, info_of("v2.0"), tags=("v2.0",))
    assert resolve_revision(REPO, to="v2.1").revision == "v2.0"
    commit = hub.add_commit(REPO, info_of("v3.0"))
    assert resolve_revision(REPO, to="v2.1").revision == "v2.0", "main is not named"
    hub.repo(REPO).tags["v3.0"] = commit
    found = resolve_revision(REPO, to="v2.1")
    assert (found.revision, found.commit) == ("v3.0", commit)
    assert resolve_revision(REPO).revision == "v2.0"
    assert find_converted(REPO, "v2.1") is None
    hub.repo(REPO).tags["v2.1"] = hub.add_commit(REPO, info_of("v2.1"))
    converted = find_converted(REPO, "v2.1")
    assert converted is not None
    assert converted.revision == "v2.1"
