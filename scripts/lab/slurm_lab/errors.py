"""What can go wrong with the cluster itself."""

from __future__ import annotations

__all__ = ["ClusterError"]


class ClusterError(Exception):
    """The cluster cannot be built or used; the message is one sentence with the next step."""
