"""How the Hub would be reached, as `leconvert doctor` says it.

Doctor asks in a process of its own, because the client fixes its settings when it is imported;
here the same is asked directly.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import constants

from leconvert.transfer.client import HubAccess, hub_access

TOKEN = "hf_0123456789abcdef"

pytestmark = pytest.mark.usefixtures("lone_client")


def log_in() -> None:
    path = Path(constants.HF_TOKEN_PATH)
    path.parent.mkdir(parents=True)
    path.write_text(TOKEN)


@pytest.mark.parametrize("name", ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"])
def test_a_token_of_the_environment_comes_before_the_one_of_a_login(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    log_in()
    assert hub_access().token == "hf auth login"
    monkeypatch.setenv(name, TOKEN)
    assert hub_access().token == "HF_TOKEN"
    assert TOKEN not in repr(hub_access()), "where it is, never what it is"


@pytest.mark.parametrize("blank", ["", "  ", "\n"])
def test_a_variable_of_blanks_is_no_token(monkeypatch: pytest.MonkeyPatch, blank: str) -> None:
    monkeypatch.setenv("HF_TOKEN", blank)
    assert hub_access().token is None
    log_in()
    assert hub_access().token == "hf auth login"


def test_credentials_of_an_endpoint_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "https://me:geheim@mirror.example")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert hub_access() == HubAccess("https://***@mirror.example", None, is_offline=True)
