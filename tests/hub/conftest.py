"""The Hub's fixtures, for the tests of the stand-in itself."""

from tests.hub.fixtures import api_of, hub, lone_client, pauses

__all__ = ["api_of", "hub", "lone_client", "pauses"]
