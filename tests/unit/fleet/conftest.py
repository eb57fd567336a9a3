"""A Hub for the tests of fleets."""

from tests.hub.fixtures import api_of, hub, lone_client, pauses

__all__ = ["api_of", "hub", "lone_client", "pauses"]
