"""The Hub's fixtures, for commands that ask it."""

from tests.hub.fixtures import api_of, hub, lone_client, pauses

__all__ = ["api_of", "hub", "lone_client", "pauses"]
