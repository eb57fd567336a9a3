"""Where on the Hub a run's source came from: a record in the run's work dir.

It is never part of the dataset. Whoever fetches a source from the Hub writes it; a push reads it,
to know where the result belongs and which commit it was made of.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from leconvert.workdir.durable import write_durably
from leconvert.workdir.records import encode_record, find_record

__all__ = ["Arrival", "Origin", "origin_path", "read_origin", "write_origin"]

_KIND = "origin"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Arrival:
    """How a source that is planned came to this machine.

    Attributes:
        origin: The dataset on the Hub.
        outline: How it is called where only its outline is here (`leconvert.hub.outline`), a URL
            with the commit; None where it was downloaded.
    """

    origin: Origin
    outline: str | None = None


@dataclass(frozen=True, slots=True)
class Origin:
    """A dataset on the Hub, at one commit.

    Attributes:
        repo_id: ``ORG/NAME``.
        revision: What was asked for: a tag, a branch, a commit.
        commit: The commit that it was, 40 hexadecimal digits.
    """

    repo_id: str
    revision: str
    commit: str


def origin_path(folder: Path) -> Path:
    """Return where the record of a run lies, given the run's folder or the work dir."""
    return folder / "origin.json"


def write_origin(folder: Path, origin: Origin, *, run_id: str) -> None:
    """Write or replace the record.

    Args:
        folder: The run's folder, or the work dir where there is no run yet.
        origin: Where the source came from.
        run_id: The run that it belongs to; empty before there is one.

    Raises:
        StorageError: The disk is full, read-only, or fails.
        FileNotFoundError: There is no such folder.
    """
    write_durably(origin_path(folder), encode_record(_KIND, _VERSION, run_id, asdict(origin)))


def read_origin(folder: Path) -> Origin | None:
    """Return the record, or None where the source is no copy from the Hub.

    Raises:
        WorkDirError: The record is torn, or of a version that this program does not know.
        StorageError: The disk fails.
    """
    record = find_record(origin_path(folder), _KIND, version=_VERSION)
    if record is None:
        return None
    return Origin(record["repo_id"], record["revision"], record["commit"])
