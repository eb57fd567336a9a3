"""Every error that leconvert raises on purpose, and the exit code of each.

    LeconvertError                70   something that should not happen; please report it
    ├── UsageError                 2   options that contradict each other or make no sense
    ├── SourceError                3   the source cannot be converted as it is
    │   ├── FindingsError          3   the scan found errors, all of which it lists
    │   ├── UnreadableSourceError  3   a file of the source is missing, truncated or of another kind
    │   └── SourceChangedError     4   the source changed after it was planned
    ├── TargetError                5   the target cannot be written, or would be overwritten
    ├── PlanMismatchError          6   a run with another source or other options is under way
    ├── WorkDirError               7   the work dir is damaged, foreign, or of an unknown version
    ├── BatchesFailedError         8   batches used up their attempts; the others are done
    ├── IncompleteError            9   not all batches are done yet
    ├── VerificationError         10   the result does not match its source
    ├── StorageError              11   the disk is full, read-only, or fails
    ├── BusyError                 12   another process plans, packs, or holds a batch of this run
    ├── OneHostOnlyError          13   the file system lets only one host work
    ├── ProbeError                14   a probe loaded wrong frames, or none, or cannot measure here
    ├── HubError                  15   the Hub does not answer, or has no such repo or revision
    │   └── HubUnavailableError   15   no answer, or a failure of its own: the outcome is unknown
    ├── HubAccessError            16   the Hub's token is missing, wrong, or may not do this
    ├── HubConflictError          17   the repo changed meanwhile, or holds something in the way
    ├── EngineError               18   workers could not be started: no scheduler, or it refused
    ├── InstallationError         19   a needed package is missing or does not load; not Linux
    └── InterruptedRunError      130   stopped by a signal; the run can be resumed

Codes 0 (success) and 2 (argparse's own) complete the list. Every error is one sentence that names
the path, and most carry ``next_step``: what to do about it. Errors survive pickling, so that they
can cross a process boundary with their fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

__all__ = [
    "BatchesFailedError",
    "BusyError",
    "EngineError",
    "FindingsError",
    "HubAccessError",
    "HubConflictError",
    "HubError",
    "HubUnavailableError",
    "IncompleteError",
    "InstallationError",
    "InterruptedRunError",
    "LeconvertError",
    "OneHostOnlyError",
    "PlanMismatchError",
    "ProbeError",
    "SourceChangedError",
    "SourceError",
    "StorageError",
    "TargetError",
    "UnreadableSourceError",
    "UsageError",
    "VerificationError",
    "WorkDirError",
]


class LeconvertError(Exception):
    """The base of all errors here.

    Args:
        message: One sentence that says what is wrong, with the path where there is one.
        path: The file or folder that it is about.
        next_step: What the user can do, as one sentence; shown below the message.
        details: Further lines, for example one per missing file.
    """

    exit_code: ClassVar[int] = 70

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        next_step: str | None = None,
        details: Sequence[str] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.path = path
        self.next_step = next_step
        self.details = tuple(details)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.path, self.next_step, self.details))

    def as_record(self) -> dict[str, Any]:
        """Return the error as a JSON-serialisable mapping, for ``--json`` and failure records."""
        return {
            "error": type(self).__name__,
            "message": self.message,
            "path": self.path,
            "next_step": self.next_step,
            "details": list(self.details),
            "exit_code": self.exit_code,
        }


def _rebuild(
    cls: type[LeconvertError],
    message: str,
    path: str | None,
    next_step: str | None,
    details: tuple[str, ...],
) -> LeconvertError:
    return cls(message, path=path, next_step=next_step, details=details)


class UsageError(LeconvertError):
    """Options contradict each other or make no sense."""

    exit_code = 2


class SourceError(LeconvertError):
    """The source cannot be converted as it is; ``details`` lists the findings."""

    exit_code = 3


class FindingsError(SourceError):
    """The scan found errors in the source.

    Args:
        message: As for all errors.
        path: The source.
        next_step: As for all errors.
        findings: Each of them, and warnings beside them, as a mapping of the fields of
            `leconvert.model.Finding`.
    """

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        next_step: str | None = None,
        details: Sequence[str] = (),
        findings: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        super().__init__(message, path=path, next_step=next_step, details=details)
        self.findings = tuple(findings)

    def __reduce__(self) -> tuple[Any, ...]:
        rebuild, arguments = super().__reduce__()
        return rebuild, arguments, {"findings": self.findings}

    def as_record(self) -> dict[str, Any]:
        """Return the error with its findings."""
        return {**super().as_record(), "findings": list(self.findings)}


class UnreadableSourceError(SourceError):
    """A file of the source is missing, truncated, or not what its name says."""


class SourceChangedError(SourceError):
    """The source changed after it was planned; ``details`` lists what."""

    exit_code = 4


class TargetError(LeconvertError):
    """The target cannot be written, or something there would be overwritten."""

    exit_code = 5


class PlanMismatchError(LeconvertError):
    """A run with another source or other options is under way; ``details`` compares them."""

    exit_code = 6


class WorkDirError(LeconvertError):
    """The work dir is damaged, foreign, or of a version that this program does not know."""

    exit_code = 7


class BatchesFailedError(LeconvertError):
    """Some batches used up their attempts and were set aside; ``details`` names each."""

    exit_code = 8


class IncompleteError(LeconvertError):
    """Not all batches are done; ``details`` says what is missing."""

    exit_code = 9


class VerificationError(LeconvertError):
    """The result does not match its source; ``details`` lists the differences."""

    exit_code = 10


class StorageError(LeconvertError):
    """The disk is full, read-only, or fails."""

    exit_code = 11


class BusyError(LeconvertError):
    """Another process holds the planner's or the packer's lock of this run, or a batch of it."""

    exit_code = 12


class OneHostOnlyError(LeconvertError):
    """The file system does not keep what several hosts rely on; one may work."""

    exit_code = 13


class ProbeError(LeconvertError):
    """A probe loaded wrong or unreadable frames, or none at all, or cannot measure on this host."""

    exit_code = 14


class HubError(LeconvertError):
    """The Hub does not answer, or has no such repo or revision."""

    exit_code = 15


class HubUnavailableError(HubError):
    """The Hub did not answer, or failed: what was asked may have been done or not.

    Args:
        message: As for all errors.
        path: As for all errors.
        next_step: As for all errors.
        details: As for all errors.
        wait_seconds: How long the Hub asked to wait before the next request; 0 if it did not.
    """

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        next_step: str | None = None,
        details: Sequence[str] = (),
        wait_seconds: float = 0.0,
    ) -> None:
        super().__init__(message, path=path, next_step=next_step, details=details)
        self.wait_seconds = wait_seconds

    def __reduce__(self) -> tuple[Any, ...]:
        rebuild, arguments = super().__reduce__()
        return rebuild, arguments, {"wait_seconds": self.wait_seconds}


class HubAccessError(LeconvertError):
    """The token for the Hub is missing, wrong, or does not allow what was asked."""

    exit_code = 16


class HubConflictError(LeconvertError):
    """The repo on the Hub changed meanwhile, or holds something that stands in the way."""

    exit_code = 17


class EngineError(LeconvertError):
    """Workers could not be started: there is no scheduler here, or it refused them."""

    exit_code = 18


class InstallationError(LeconvertError):
    """A package that is needed is missing or does not load, or the system is not Linux."""

    exit_code = 19


class InterruptedRunError(LeconvertError):
    """A signal stopped the run; what is done stays done and the same command resumes it."""

    exit_code = 130
