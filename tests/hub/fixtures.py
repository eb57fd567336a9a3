"""Fixtures: a Hub, and the client as a user has it, alone with that Hub."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from huggingface_hub.utils import httpx

from tests.hub.access import WRITE_TOKEN
from tests.hub.standin import StandIn

if TYPE_CHECKING:
    from huggingface_hub import HfApi

__all__ = [
    "CutOff",
    "api_of",
    "cut_after",
    "hub",
    "lone_client",
    "only_loopback",
    "pauses",
    "xet_hub",
]


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that the client, or we, would have waited before the Hub is asked again."""
    from huggingface_hub.utils import _http

    from leconvert.transfer import client

    waited: list[float] = []
    monkeypatch.setattr(_http, "time", SimpleNamespace(sleep=waited.append))
    monkeypatch.setattr(client, "pause", waited.append)
    return waited


def only_loopback() -> httpx.Client:
    """Make the client's sessions, which refuse to ask any other host."""
    from huggingface_hub.utils import _http

    def check(request: httpx.Request) -> None:
        if request.url.host != "127.0.0.1":
            raise AssertionError(f"a test asked {request.url}")

    # As the client makes it, but for certificates, whose loading takes longer than a push.
    return httpx.Client(
        event_hooks={"request": [_http.hf_request_event_hook, check]},
        follow_redirects=True,
        timeout=60,
        verify=False,
    )


@pytest.fixture
def lone_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pauses: list[float]
) -> Iterator[None]:
    """The client online, without the user's token and caches, and without Xet for now."""
    import huggingface_hub
    from huggingface_hub import constants
    from huggingface_hub.utils import _detect_agent, _http

    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_LEROBOT_HOME"):
        monkeypatch.delenv(name, raising=False)
    home = tmp_path / "hf_home"
    monkeypatch.setenv("HF_HOME", str(home))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(home / "token"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    # Now and then the client asks first which programs it may be run by; tests count requests.
    monkeypatch.setattr(_detect_agent, "_get_registry", lambda: _detect_agent._EMPTY_REGISTRY)
    huggingface_hub.set_client_factory(only_loopback)
    yield
    huggingface_hub.set_client_factory(_http.default_client_factory)


@contextlib.contextmanager
def _serving(folder: Path, monkeypatch: pytest.MonkeyPatch, *, xet: bool) -> Iterator[StandIn]:
    from huggingface_hub import constants

    with StandIn(folder, xet=xet) as standin:
        template = f"{standin.endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setenv("HF_ENDPOINT", standin.endpoint)
        monkeypatch.setattr(constants, "ENDPOINT", standin.endpoint)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", not xet)
        yield standin


@pytest.fixture
def hub(tmp_path: Path, lone_client: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """An empty Hub that ``HF_ENDPOINT`` names; large files go up as with Git LFS."""
    with _serving(tmp_path / "hub", monkeypatch, xet=False) as standin:
        yield standin


@pytest.fixture
def xet_hub(
    tmp_path: Path, lone_client: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StandIn]:
    """The same, but large files go through Xet, to a store in a folder."""
    with _serving(tmp_path / "hub", monkeypatch, xet=True) as standin:
        yield standin


@pytest.fixture
def api_of(hub: StandIn) -> Callable[..., HfApi]:
    """Make the client of somebody; a token of False is nobody's."""
    from huggingface_hub import HfApi

    def make(token: str | bool = WRITE_TOKEN) -> HfApi:
        return HfApi(endpoint=hub.endpoint, token=token)

    return make


class CutOff(BaseException):
    """The process that asks the Hub ends here."""


@contextlib.contextmanager
def cut_after(number: int) -> Iterator[None]:
    """End the process when the answer to a request has come; threads end too."""
    import huggingface_hub

    seen = 0

    def count(_: httpx.Response) -> None:
        nonlocal seen
        seen += 1
        if seen >= number:
            raise CutOff

    def session() -> httpx.Client:
        made = only_loopback()
        made.event_hooks["response"].append(count)
        return made

    huggingface_hub.set_client_factory(session)
    try:
        yield
    finally:
        huggingface_hub.set_client_factory(only_loopback)
