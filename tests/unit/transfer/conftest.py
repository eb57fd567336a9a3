"""A Hub, and a small dataset behind a URL."""

from __future__ import annotations

from tests.hub.fixtures import api_of, hub, lone_client, pauses
from tests.unit.loading.conftest import _cache_of_fetched_bytes, in_memory, v30, v30_copy

__all__ = [
    "_cache_of_fetched_bytes",
    "api_of",
    "hub",
    "in_memory",
    "lone_client",
    "pauses",
    "v30",
    "v30_copy",
]
