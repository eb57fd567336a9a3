"""A push where large files go through Xet: what the Hub holds already is not sent."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import HfApi
from tests.hub import WRITE_TOKEN, Fault, StandIn
from tests.hub.fixtures import xet_hub
from tests.unit.remote.conftest import REPO

from leconvert.remote.push import push
from leconvert.support.errors import HubUnavailableError
from leconvert.transfer.options import PushOptions

__all__ = ["xet_hub"]


@pytest.fixture
def api(xet_hub: StandIn, small_source: Path) -> HfApi:
    """The client of a user whose repo holds the v2.1 dataset."""
    made = HfApi(endpoint=xet_hub.endpoint, token=WRITE_TOKEN)
    made.create_repo(REPO, repo_type="dataset")
    made.upload_folder(repo_id=REPO, repo_type="dataset", folder_path=small_source)
    return made


def test_a_push_through_xet_reads_back_and_a_second_sends_nothing(
    xet_hub: StandIn, api: HfApi, result: Path, tmp_path: Path
) -> None:
    assert xet_hub.xet is not None
    before, _ = xet_hub.xet.sent()
    report = push(result, PushOptions(repo_id=REPO), api=api)
    after, shards = xet_hub.xet.sent()
    assert 0 < after - before < report.added_bytes
    assert not [r for r in xet_hub.log if r.method == "PUT"]

    copy = Path(
        api.snapshot_download(
            REPO, repo_type="dataset", revision="v3.0", local_dir=tmp_path / "copy"
        )
    )
    for path in result.rglob("*"):
        if path.is_file() and path.name != "README.md":
            assert (copy / path.relative_to(result)).read_bytes() == path.read_bytes()
    assert push(result, PushOptions(repo_id=REPO), api=api).added == 0
    assert xet_hub.xet.sent() == (after, shards)


def test_contents_that_went_up_before_a_push_failed_are_not_sent_again(
    xet_hub: StandIn, api: HfApi, result: Path
) -> None:
    assert xet_hub.xet is not None
    xet_hub.break_requests(Fault("drop_before", path="/commit/", times=None))
    with pytest.raises(HubUnavailableError):
        push(result, PushOptions(repo_id=REPO), api=api, pause=lambda _: None)
    blocks, _ = xet_hub.xet.sent()
    xet_hub.break_requests()
    assert push(result, PushOptions(repo_id=REPO), api=api).tag == "set"
    assert xet_hub.xet.sent()[0] == blocks
