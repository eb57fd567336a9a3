"""How the Hub would be reached from here; nothing is asked of it."""

from __future__ import annotations

import os
from dataclasses import dataclass

from leconvert.workdir.secrets import without_secrets_in

__all__ = ["HubAccess", "hub_access"]


@dataclass(frozen=True, slots=True)
class HubAccess:
    """How the Hub would be reached.

    Attributes:
        endpoint: Its address, without credentials.
        token: Where a token is: ``HF_TOKEN`` or ``hf auth login``; None if there is none. The token
            itself is never kept here.
        is_offline: Whether ``HF_HUB_OFFLINE`` forbids to ask it.
    """

    endpoint: str
    token: str | None
    is_offline: bool


def hub_access() -> HubAccess:
    """Look at the environment, and at what ``hf auth login`` stored."""
    from huggingface_hub import constants, get_token

    token = None
    if get_token() is not None:
        given = os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN") or ""
        # The client takes a variable of blanks for none, too.
        token = "HF_TOKEN" if given.strip() else "hf auth login"
    return HubAccess(without_secrets_in(constants.ENDPOINT), token, bool(constants.HF_HUB_OFFLINE))
