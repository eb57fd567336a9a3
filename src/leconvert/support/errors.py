"""Every error that leconvert raises on purpose, and the exit code of each.

An error's class decides the program's exit code; `EXIT_CODES` explains each code and what to do.
Every error is one sentence that names the path, and most carry ``next_step``, the advice for this
very case. Errors survive pickling, so that they can cross a process boundary with their fields: all
fields are in ``__dict__``, and all arguments except the message have defaults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, TypedDict, Unpack

__all__ = [
    "EXIT_CODES",
    "REPORT_IT",
    "BatchesFailedError",
    "BusyError",
    "EngineError",
    "ExitCode",
    "FindingsError",
    "HubAccessError",
    "HubConflictError",
    "HubError",
    "HubSourceChangedError",
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


REPORT_IT = (
    "Report it on the issues page of leconvert's repository, with everything that was printed and "
    "the output of `leconvert doctor`"
)
"""The advice for a bug; a sentence without its full stop."""


class ExitCode(NamedTuple):
    """The explanation of an exit code.

    Attributes:
        short: The meaning in a few words.
        meaning: The cases in which the code occurs.
        remedy: The advice; empty for a success.
    """

    short: str
    meaning: str
    remedy: str


EXIT_CODES: Mapping[int, ExitCode] = MappingProxyType(
    {
        0: ExitCode("success", "The command did what was asked.", ""),
        2: ExitCode(
            "wrong options",
            "The command line is wrong, or options contradict each other.",
            "Read the message. `leconvert COMMAND --help` lists the options.",
        ),
        3: ExitCode(
            "unusable source",
            "The source has errors and cannot be converted as it is, or `check` found errors. Each "
            "error is listed with a code.",
            "Add the options that the list names, or repair the source. `leconvert check DATASET "
            "--plan-repairs` prints the command that loses least. `leconvert explain CODE` "
            "explains a finding.",
        ),
        4: ExitCode(
            "source changed meanwhile",
            "The source changed after the conversion was planned. Nothing was moved or removed.",
            "If the new state of the source is right, run the command again with `--restart`. If "
            "the result is in place already, do what the message says.",
        ),
        5: ExitCode(
            "target in the way",
            "Something exists at the target already, or another run converted the dataset "
            "meanwhile.",
            "Choose another `--output`, or move away what the message names.",
        ),
        6: ExitCode(
            "another plan is under way",
            "The work dir holds an unfinished run with another source, other options or other "
            "library versions, or the worker's run was discarded.",
            "Give the options of that run to finish it, `--restart` to begin a new run, or another "
            "`--work-dir`.",
        ),
        7: ExitCode(
            "damaged work dir",
            "The work dir is damaged, or it is from another program, another version or another "
            "user.",
            "`--restart` begins a new run. If another user made the work dir, do what the message "
            "says.",
        ),
        8: ExitCode(
            "batches failed",
            "Batches failed as often as `--max-attempts` allows. All other batches are done. From "
            "`fleet`: datasets were set aside (not converted), and all others are converted.",
            "Fix the cause that `leconvert status WORK_DIR` shows. Then run `leconvert release "
            "WORK_DIR --failed` and the same command again; for a fleet, only the same "
            "command again.",
        ),
        9: ExitCode(
            "not all batches are done",
            "Some batches are not done, and no worker works on them.",
            "Run the same command again, or start workers with `leconvert work WORK_DIR`.",
        ),
        10: ExitCode(
            "result and source differ",
            "The result does not match its source. Nothing was replaced or removed, and the new "
            "dataset stays for inspection.",
            f"Do what the message says. If the message names no cause: {REPORT_IT}.",
        ),
        11: ExitCode(
            "disk full, failing or read-only",
            "The disk is full or fails, or this user may not read or write there.",
            "Free disk space, repair the disk, or give this user the permission that the message "
            "names. Then run the same command again.",
        ),
        12: ExitCode(
            "another process is at work",
            "Another process plans or packs this run, works on the batch, puts another result in "
            "the same place, or did this conversion meanwhile. `pack` ends with this code at "
            "once if another packer runs, and after `--max-wait-seconds` if another packer "
            "is silent.",
            "Wait for the other process. `leconvert status WORK_DIR` shows its progress.",
        ),
        13: ExitCode(
            "only one host may work here",
            "Only one host may work on this run, because of its file system or `--one-host`, and "
            "this is another host. From `doctor DIR --peer`: several hosts must not share "
            "this file system.",
            "Work on the host that planned, or begin a new run with a work dir on another file "
            "system.",
        ),
        14: ExitCode(
            "the probe loaded wrong or no frames",
            "A probe loaded wrong frames, unreadable frames or no frames, or it cannot measure on "
            "this host.",
            "Do what the message says. `leconvert probe diagnose` shows what can decode "
            "video here.",
        ),
        15: ExitCode(
            "the Hub does not answer",
            "The Hub does not answer, or it has no such repo or revision.",
            "Check the name, the network and `HF_ENDPOINT`, then run the same command again.",
        ),
        16: ExitCode(
            "the Hub's token is missing or refused",
            "The token for the Hub is missing or wrong, or it does not allow what was asked.",
            "Log in with `hf auth login`, or set `HF_TOKEN` to a token that may write.",
        ),
        17: ExitCode(
            "the repo changed meanwhile",
            "The repo on the Hub changed meanwhile, or its content prevents the push.",
            "Do what the message says, then run the same command again.",
        ),
        18: ExitCode(
            "the scheduler is missing or refused",
            "Workers could not be started: this host has no scheduler, or the scheduler refused a "
            "job. Nothing of the run is lost.",
            "Correct what the scheduler's message names, then submit again.",
        ),
        19: ExitCode(
            "a package is missing",
            "A Python package is missing or cannot be imported, or the system is Windows.",
            "`leconvert doctor` names the package and the command that installs it.",
        ),
        70: ExitCode("a bug", "leconvert has a bug.", f"{REPORT_IT}."),
        130: ExitCode(
            "interrupted",
            "A signal stopped the command. Finished work stays finished.",
            "Run the same command again to continue.",
        ),
        141: ExitCode(
            "nobody reads the output",
            "The program that read the output ended before the command did, as `head` does.",
            "",
        ),
    }
)
"""Meaning and remedy of each exit code."""


class _Told(TypedDict, total=False):
    path: str | None
    next_step: str | None
    details: Sequence[str]


class LeconvertError(Exception):
    """The base of all errors of leconvert.

    Args:
        message: One sentence that says what is wrong, with the path if there is one.
        path: The file or folder that it is about.
        next_step: The advice to the user, as one sentence; shown below the message.
        details: Further lines, for example one per missing file.
        findings: Problems of a source that have a code, as mappings of the fields of
            `leconvert.model.values.Finding`.
    """

    exit_code: ClassVar[int] = 70

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        next_step: str | None = None,
        details: Sequence[str] = (),
        findings: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.path = path
        self.next_step = next_step
        self.details = tuple(details)
        self.findings: Sequence[Mapping[str, Any]] = tuple(findings)

    def as_record(self) -> dict[str, Any]:
        """Return the error as a JSON-serialisable mapping, for ``--json`` and failure records."""
        record = {
            "error": type(self).__name__,
            "message": self.message,
            "path": self.path,
            "next_step": self.next_step,
            "details": list(self.details),
            "exit_code": self.exit_code,
        }
        return {**record, "findings": list(self.findings)} if self.findings else record


class UsageError(LeconvertError):
    """Options contradict each other or make no sense."""

    exit_code = 2


class UnfitFilesError(UsageError):
    """Files cannot stay unchanged at their paths, as the layout requires; see ``findings``.

    Attributes:
        moves: The `leconvert.run.planner.MovedBytes` with ``--fetch-unfit``, if that helps; else
            None.
    """

    moves: Any = None


class SourceError(LeconvertError):
    """The source cannot be converted as it is; ``details`` lists the findings."""

    exit_code = 3


class FindingsError(SourceError):
    """The scan found errors in the source: ``findings`` has them, and warnings beside them."""


class UnreadableSourceError(SourceError):
    """A file of the source is missing, truncated, or not of the kind that its name says.

    Args:
        message: As for all errors.
        code: The code of a scan's finding about such a file.
        told: As for all errors; ``path`` is the file.
    """

    def __init__(
        self, message: str, *, code: str = "unreadable-file", **told: Unpack[_Told]
    ) -> None:
        finding = {"code": code, "severity": "error", "message": message, "path": told.get("path")}
        others = {"episode": None, "stream": None, "remedy": None, "remedies": ()}
        super().__init__(message, **told, findings=[{**finding, **others}])


class SourceChangedError(SourceError):
    """The source changed after it was planned; ``details`` lists the changes."""

    exit_code = 4


class TargetError(LeconvertError):
    """The target cannot be written, or something there would be overwritten."""

    exit_code = 5


class PlanMismatchError(LeconvertError):
    """A run with another source or other options is under way; ``details`` compares them."""

    exit_code = 6


class WorkDirError(LeconvertError):
    """The work dir is damaged, foreign, or of an unknown version."""

    exit_code = 7


class BatchesFailedError(LeconvertError):
    """Some batches failed in all their attempts; ``details`` names each."""

    exit_code = 8


class IncompleteError(LeconvertError):
    """Not all batches are done; ``details`` lists the missing ones."""

    exit_code = 9


class VerificationError(LeconvertError):
    """The result does not match its source; ``details`` lists the differences."""

    exit_code = 10


class StorageError(LeconvertError):
    """The disk is full, read-only, or fails; or files, memory or threads reach a limit."""

    exit_code = 11


class BusyError(LeconvertError):
    """Another process holds this run's planner's or packer's lock, or one of its batches."""

    exit_code = 12


class OneHostOnlyError(LeconvertError):
    """The file system lacks what several hosts need; only one host may work."""

    exit_code = 13


class ProbeError(LeconvertError):
    """A probe loaded wrong or unreadable frames, or none at all, or cannot measure on this host."""

    exit_code = 14


class HubError(LeconvertError):
    """The Hub does not answer, or has no such repo or revision."""

    exit_code = 15


class HubUnavailableError(HubError):
    """The Hub did not answer, or failed. It is unknown whether the request had an effect.

    Args:
        message: As for all errors.
        wait_seconds: How long the Hub asked to wait before the next request; 0 if it did not.
        told: As for all errors.
    """

    def __init__(self, message: str, *, wait_seconds: float = 0.0, **told: Unpack[_Told]) -> None:
        super().__init__(message, **told)
        self.wait_seconds = wait_seconds


class HubAccessError(LeconvertError):
    """The token for the Hub is missing, wrong, or does not allow what was asked."""

    exit_code = 16


class HubConflictError(LeconvertError):
    """The repo changed meanwhile, or holds something that stands in the way."""

    exit_code = 17


class HubSourceChangedError(HubConflictError):
    """The repo on the Hub no longer holds the dataset that was converted."""


class EngineError(LeconvertError):
    """Workers could not be started: there is no scheduler here, or it refused them."""

    exit_code = 18


class InstallationError(LeconvertError):
    """A package that is needed is missing or does not load, or the system is Windows."""

    exit_code = 19


class InterruptedRunError(LeconvertError):
    """A signal stopped the run; what is done stays done and the same command resumes it."""

    exit_code = 130
