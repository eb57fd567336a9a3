"""What can go wrong with a lab itself, and with what it set out to show."""

from __future__ import annotations

__all__ = ["LabError", "ScenarioFailedError", "demand"]


class LabError(Exception):
    """The lab cannot be built or used; the message is one sentence with the next step."""


class ScenarioFailedError(Exception):
    """leconvert did not do what the scenario demands."""


def demand(holds: bool, otherwise: str) -> None:
    """Stop the scenario unless what it demands holds.

    Raises:
        ScenarioFailedError: It does not.
    """
    if not holds:
        raise ScenarioFailedError(otherwise)
