"""What the client raises becomes one sentence, one next step and one code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from huggingface_hub import HfApi, constants
from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError
from huggingface_hub.utils import httpx
from tests.hub import Fault, StandIn

from leconvert.remote.repo import Repo
from leconvert.support.errors import (
    HubAccessError,
    HubConflictError,
    HubError,
    HubUnavailableError,
    LeconvertError,
)
from leconvert.transfer.client import hub_errors, make_api

REPO = "tester/arm"
Client = Callable[..., HfApi]


def _ask(api: HfApi, repo_id: str = REPO, revision: str | None = None) -> None:
    with hub_errors(repo_id, revision):
        api.repo_info(repo_id, repo_type="dataset", revision=revision)


@pytest.mark.parametrize(
    ("status", "error", "code"),
    [
        (400, HubError, 15),
        (401, HubAccessError, 16),
        (403, HubAccessError, 16),
        (409, HubConflictError, 17),
        (412, HubConflictError, 17),
        (429, HubUnavailableError, 15),
        (500, HubUnavailableError, 15),
        (503, HubUnavailableError, 15),
    ],
)
def test_an_answer_becomes_an_error_with_a_code(
    hub: StandIn, api_of: Client, status: int, error: type[LeconvertError], code: int
) -> None:
    hub.break_requests(Fault("status", status=status, times=None))
    with pytest.raises(LeconvertError) as caught:
        _ask(api_of())
    assert type(caught.value) is error
    assert caught.value.exit_code == code
    assert REPO in caught.value.message
    assert caught.value.message.endswith(".")
    assert "\n" not in caught.value.message
    assert caught.value.next_step


def test_what_does_not_exist_is_named(hub: StandIn, api_of: Client) -> None:
    hub.add_repo(REPO)
    with pytest.raises(HubError, match="The Hub has no dataset"):
        _ask(api_of(), "tester/none")
    with pytest.raises(HubError, match=r"tester/arm has no revision v9\."):
        _ask(api_of(), revision="v9")
    with pytest.raises(HubError, match="is not the name of a repo"):
        _ask(api_of(), "a b")


def test_no_answer_is_told_apart_from_offline_mode(
    hub: StandIn, api_of: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.break_requests(Fault("drop_before", times=None))
    with pytest.raises(HubUnavailableError, match="The Hub did not answer a request about"):
        _ask(api_of())
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(HubError, match="HF_HUB_OFFLINE is set") as caught:
        _ask(make_api())
    assert type(caught.value) is HubError


@pytest.mark.parametrize("fault", [Fault("drop_before", times=None), Fault("status", status=503)])
def test_only_a_push_is_told_that_what_was_sent_is_not_sent_again(
    hub: StandIn, api_of: Client, fault: Fault
) -> None:
    said = []
    for sends in (True, False):
        hub.break_requests(replace(fault, times=None))
        with pytest.raises(HubUnavailableError) as caught, hub_errors(REPO, sends=sends):
            api_of().repo_info(REPO, repo_type="dataset")
        said.append(str(caught.value.next_step))
    pushing, fetching = said
    assert pushing.endswith(
        "Run the same command again. Files that the Hub has are not uploaded again."
    )
    assert fetching.endswith("Run the same command again.")


def test_a_push_that_fails_is_told_as_a_push(hub: StandIn, api_of: Client) -> None:
    hub.break_requests(Fault("drop_before", times=None))
    with pytest.raises(HubUnavailableError) as caught:
        Repo(api_of(), REPO).create(private=True)
    assert "Files that the Hub has are not uploaded again" in str(caught.value.next_step)


def test_an_answer_that_cannot_be_read_is_no_answer(hub: StandIn, api_of: Client) -> None:
    hub.break_requests(Fault("status", status=200, body=b"<html>", times=None))
    with pytest.raises(HubUnavailableError, match="The Hub did not answer a request about"):
        _ask(api_of())


def test_an_error_that_is_not_the_hubs_stays_what_it_is_also_in_a_thread(hub: StandIn) -> None:
    with pytest.raises(ValueError, match="mine"), hub_errors(REPO):
        raise ValueError("mine")
    with pytest.raises(RuntimeError, match="mine"), hub_errors(REPO):
        raise RuntimeError("mine") from KeyError("x")


def test_a_file_that_the_commit_lacks_is_named_as_the_hub_names_it(
    hub: StandIn, api_of: Client
) -> None:
    gone = Fault(
        "status", status=404, headers={"X-Error-Code": "EntryNotFound"}, body=b"", times=None
    )
    hub.break_requests(gone)
    with pytest.raises(HubError, match=f"{REPO}: status 404") as caught:
        _ask(api_of())
    assert type(caught.value) is HubError
    assert "the repo may have changed" in str(caught.value.next_step)


def test_a_command_that_needs_a_token_without_one_says_how_to_log_in() -> None:
    with (
        pytest.raises(HubAccessError, match="needs a token for the Hub") as caught,
        hub_errors(REPO),
    ):
        raise LocalTokenNotFoundError("Token is required")
    assert "hf auth login" in str(caught.value.next_step)


def answer(status: int) -> HfHubHTTPError:
    request = httpx.Request("POST", "https://hub.example")
    return HfHubHTTPError("no", response=httpx.Response(status, request=request))


@pytest.mark.parametrize(
    ("cause", "error"),
    [
        (answer(403), HubAccessError),
        (answer(503), HubUnavailableError),
        (httpx.ConnectError("refused"), HubUnavailableError),
        (ConnectionResetError("reset"), HubUnavailableError),
    ],
)
def test_what_broke_a_thread_of_an_upload_is_told_and_not_that_a_thread_broke(
    cause: Exception, error: type[LeconvertError]
) -> None:
    with pytest.raises(LeconvertError) as caught, hub_errors(REPO):
        raise RuntimeError("Error while uploading 'data/x' to the Hub.") from cause
    assert type(caught.value) is error
    assert "Error while uploading" not in caught.value.message


@pytest.mark.parametrize(
    ("status", "headers", "seconds"),
    [
        (429, {"Retry-After": "7"}, 7),
        (429, {"RateLimit": '"api";r=0;t=55'}, 55),
        (429, {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, 0),
        (429, {}, 0),
        (503, {"Retry-After": "7"}, 7),
        (500, {"RateLimit": '"api";r=400;t=55'}, 0),
    ],
)
def test_what_the_hub_asks_to_wait_is_read_from_either_header(
    hub: StandIn, api_of: Client, status: int, headers: dict[str, str], seconds: float
) -> None:
    hub.break_requests(Fault("status", status=status, headers=headers, times=None))
    with pytest.raises(HubUnavailableError) as caught:
        _ask(api_of())
    assert caught.value.wait_seconds == seconds
