"""The interface for progress; the command line draws it, a library call may ignore it."""

from __future__ import annotations

from typing import Protocol, Self


class Stage(Protocol):
    """A part of the work with a known amount, such as *scan* or *work*."""

    def advance(self, amount: int) -> None:
        """Report that ``amount`` more units are done; any thread may call it."""

    def __enter__(self) -> Self:
        """Begin the stage."""

    def __exit__(self, *_: object) -> None:
        """End the stage, finished or not."""


class Progress(Protocol):
    """Receives the stages of a run."""

    def stage(self, name: str, total: int, unit: str) -> Stage:
        """Return a stage; for the unit ``%`` only the share is shown, not amounts."""

    def say(self, line: str) -> None:
        """Show the user one line."""


class _SilentStage:
    def advance(self, amount: int) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class SilentProgress:
    """Progress that is not shown."""

    def stage(self, name: str, total: int, unit: str) -> Stage:  # noqa: ARG002 - the protocol's
        """Return a stage that counts nothing."""
        return _SilentStage()

    def say(self, line: str) -> None:
        """Drop the line."""


NO_PROGRESS: Progress = SilentProgress()
