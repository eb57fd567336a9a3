"""What can go wrong with the cluster itself."""

from __future__ import annotations

__all__ = ["RayLabError"]


class RayLabError(Exception):
    """The cluster cannot be built or used; the message is one sentence with the next step."""
