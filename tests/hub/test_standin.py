"""The real client against the stand-in: what it is told is what is there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, close_session
from huggingface_hub.errors import (
    HfHubHTTPError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import httpx

from tests.hub import OTHER_TOKEN, READ_TOKEN, WRITE_TOKEN, Fault, StandIn

REPO = "tester/arm"
Client = Callable[..., HfApi]
OF_DATASET = {"repo_id": REPO, "repo_type": "dataset"}
BIG = bytes(range(256)) * 100


def _commit(api: HfApi, files: dict[str, bytes], **options: object) -> str:
    operations = [CommitOperationAdd(path, content) for path, content in files.items()]
    info = api.create_commit(
        **OF_DATASET,
        operations=operations,
        commit_message="add",
        **options,  # type: ignore[arg-type]
    )
    return str(info.oid)


def _paths(api: HfApi, revision: str = "main") -> list[str]:
    return [
        entry.path
        for entry in api.list_repo_tree(**OF_DATASET, revision=revision, recursive=True)
        if hasattr(entry, "size")
    ]


def test_a_commit_adds_deletes_and_reads_back(hub: StandIn, api_of: Client, tmp_path: Path) -> None:
    api = api_of()
    api.create_repo(REPO, repo_type="dataset", private=True)
    first = _commit(api, {"README.md": b"# An arm\n", "data/a.parquet": BIG})
    assert api.repo_info(**OF_DATASET).sha == first
    assert _paths(api) == [".gitattributes", "README.md", "data/a.parquet"]
    downloaded = api.hf_hub_download(
        filename="data/a.parquet", local_dir=tmp_path / "copy", **OF_DATASET
    )
    assert Path(downloaded).read_bytes() == BIG

    api.create_commit(
        **OF_DATASET,
        operations=[CommitOperationDelete("data/", is_folder=True)],
        commit_message="delete",
        parent_commit=first,
    )
    assert _paths(api) == [".gitattributes", "README.md"]
    assert _paths(api, first) == [".gitattributes", "README.md", "data/a.parquet"]
    commits = api.list_repo_commits(**OF_DATASET)
    assert [commit.title for commit in commits] == ["delete", "add", "initial commit"]


def test_a_large_file_goes_up_once_whole_or_in_parts(hub: StandIn, api_of: Client) -> None:
    hub.add_repo(REPO)
    hub.limits.part_bytes = 10_000
    _commit(api_of(), {"one.mp4": b"short", "parts.mp4": BIG})
    sent = sorted(r.body_bytes for r in hub.log if r.method == "PUT")
    assert sent == [5, 5_600, 10_000, 10_000]
    before = len(hub.log)
    _commit(api_of(), {"again.mp4": BIG})
    assert [r for r in hub.log[before:] if r.method == "PUT"] == []
    entries = api_of().get_paths_info(paths=["again.mp4"], **OF_DATASET)
    assert entries[0].size == len(BIG)


def test_listings_come_in_pages(hub: StandIn, api_of: Client) -> None:
    hub.add_repo(REPO, {f"meta/{n:02d}.json": b"{}" for n in range(7)})
    hub.limits.page_size = 3
    assert len(_paths(api_of(False))) == 8
    assert sum("/tree/" in r.path for r in hub.log) == 3


@pytest.mark.parametrize(
    ("wanted", "status", "expected"),
    [
        ("bytes=10-19", 206, BIG[10:20]),
        ("bytes=-5", 206, BIG[-5:]),
        ("bytes=25590-", 206, BIG[25590:]),
        ("bytes=99999-", 416, None),
    ],
)
def test_a_range_is_served(hub: StandIn, wanted: str, status: int, expected: bytes | None) -> None:
    hub.add_repo(REPO, {"a.mp4": BIG})
    url = f"{hub.endpoint}/datasets/{REPO}/resolve/main/a.mp4"
    answer = httpx.get(url, headers={"Range": wanted})
    assert answer.status_code == status
    if expected is not None:
        assert answer.content == expected


def test_a_stale_parent_and_an_existing_tag_are_refused(hub: StandIn, api_of: Client) -> None:
    hub.add_repo(REPO)
    api = api_of()
    first = _commit(api, {"a.json": b"1"})
    _commit(api, {"a.json": b"2"})
    with pytest.raises(HfHubHTTPError, match="412"):
        _commit(api, {"a.json": b"3"}, parent_commit=first)
    api.create_tag(**OF_DATASET, tag="v3.0")
    with pytest.raises(HfHubHTTPError, match="409"):
        api.create_tag(**OF_DATASET, tag="v3.0", revision=first)
    api.delete_tag(**OF_DATASET, tag="v3.0")
    api.create_tag(**OF_DATASET, tag="v3.0", revision=first)
    assert api.list_repo_refs(**OF_DATASET).tags[0].target_commit == first


def test_a_pull_request_is_opened_written_and_merged(hub: StandIn, api_of: Client) -> None:
    hub.add_repo(REPO, {"a.json": b"1", "b.json": b"1"})
    api = api_of()
    pull = api.create_pull_request(**OF_DATASET, title="Two commits")
    for name in ("c.json", "d.json"):
        _commit(api, {name: b"3"}, revision=f"refs/pr/{pull.num}")
    assert _paths(api) == [".gitattributes", "a.json", "b.json"]
    hub.add_commit(REPO, {"b.json": b"2"})
    api.change_discussion_status(**OF_DATASET, discussion_num=pull.num, new_status="open")
    api.merge_pull_request(**OF_DATASET, discussion_num=pull.num)
    assert _paths(api) == [".gitattributes", "a.json", "b.json", "c.json", "d.json"]
    details = api.get_discussion_details(**OF_DATASET, discussion_num=pull.num)
    assert (details.status, details.merge_commit_oid) == ("merged", api.repo_info(**OF_DATASET).sha)


def test_a_stranger_may_propose_but_not_write(hub: StandIn, api_of: Client) -> None:
    hub.add_repo(REPO)
    stranger = api_of(OTHER_TOKEN)
    with pytest.raises(HfHubHTTPError, match="403"):
        _commit(stranger, {"a.json": b"1"})
    info = stranger.create_commit(
        **OF_DATASET,
        operations=[CommitOperationAdd("a.json", b"1")],
        commit_message="please",
        create_pr=True,
    )
    assert info.pr_revision == "refs/pr/1"
    assert _paths(api_of(False), "refs/pr/1") == [".gitattributes", "a.json"]


def test_tokens_decide_what_is_seen_and_done(hub: StandIn, api_of: Client) -> None:
    hub.add_repo(REPO, private=True)
    assert api_of(WRITE_TOKEN).whoami()["name"] == "tester"
    for token in (False, OTHER_TOKEN):
        with pytest.raises(RepositoryNotFoundError):
            api_of(token).repo_info(**OF_DATASET)
    assert api_of(READ_TOKEN).repo_info(**OF_DATASET).private
    with pytest.raises(HfHubHTTPError, match="403"):
        _commit(api_of(READ_TOKEN), {"a.json": b"1"})
    with pytest.raises(HfHubHTTPError, match="Invalid credentials"):
        api_of("hf_unknown").repo_info(**OF_DATASET)


def test_what_is_missing_is_named(hub: StandIn, api_of: Client) -> None:
    hub.add_repo(REPO)
    with pytest.raises(RevisionNotFoundError):
        api_of().repo_info(**OF_DATASET, revision="v9")
    with pytest.raises(RemoteEntryNotFoundError):
        api_of().hf_hub_download(filename="no.json", **OF_DATASET)
    with pytest.raises(RepositoryNotFoundError):
        api_of().repo_info("tester/none", repo_type="dataset")


def test_a_dropped_answer_and_a_refusal_are_tried_again(
    hub: StandIn, api_of: Client, pauses: list[float]
) -> None:
    hub.add_repo(REPO)
    retry = Fault("status", method="PUT", status=429, headers={"Retry-After": "7"})
    hub.break_requests(retry, Fault("drop_after", method="PUT"))
    _commit(api_of(), {"a.mp4": BIG})
    seen = [(r.status, r.fault) for r in hub.log if r.method == "PUT"]
    assert seen == [(429, "status"), (0, "drop_after"), (200, None)]
    assert pauses == [8.0, 2]


def test_a_cut_body_is_noticed_by_the_client(hub: StandIn) -> None:
    hub.add_repo(REPO, {"a.mp4": BIG})
    hub.break_requests(Fault("truncate", keep_bytes=100))
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.get(f"{hub.endpoint}/datasets/{REPO}/resolve/main/a.mp4")


def test_a_second_stand_in_serves_what_the_first_kept(hub: StandIn, api_of: Client) -> None:
    hub.add_repo(REPO, {"a.mp4": BIG}, tags=("v2.1",))
    close_session()
    with StandIn(hub.folder) as second:
        api = HfApi(endpoint=second.endpoint, token=False)
        assert _paths(api, "v2.1") == [".gitattributes", "a.mp4"]
        close_session()
