"""What can go wrong with the lab itself, and with what it set out to show."""

from __future__ import annotations

__all__ = ["LabError", "ScenarioFailedError"]


class LabError(Exception):
    """The lab cannot be built or used; the message is one sentence with the next step."""


class ScenarioFailedError(Exception):
    """leconvert did not do what the scenario demands."""
