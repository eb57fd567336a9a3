"""Where a result came from: a record beside the result, for its card and for a push that goes on.

A conversion that shall be pushed writes it before it begins and completes it when it is done. It
stays: a later push of the same result writes the same card by it. It is never part of the dataset.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from leconvert.hub.origin import Origin
from leconvert.model import Finding
from leconvert.repairs import Repairs
from leconvert.workdir.durable import write_durably
from leconvert.workdir.records import encode_record, find_record

__all__ = [
    "Provenance",
    "noted_origin",
    "provenance_path",
    "read_provenance",
    "write_provenance",
]

_KIND = "provenance"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a result came from, as far as it is known.

    Attributes:
        repo_id: The repo that its source came from; empty for a local one.
        revision: What was asked for there.
        commit: The commit that it was.
        options: Options that decided the result's bytes, those that are not the default.
        findings: Codes of findings about the source, with the number of times.
        changes: What was changed beside the format, a few words each.
        pushed: Whether a push of it was completed.
    """

    repo_id: str = ""
    revision: str = ""
    commit: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    findings: Mapping[str, int] = field(default_factory=dict)
    changes: Sequence[str] = ()
    pushed: bool = False

    @classmethod
    def of(
        cls,
        origin: Origin | None,
        options: Mapping[str, Any],
        findings: Iterable[Finding] = (),
        repairs: Mapping[str, Any] | None = None,
    ) -> Provenance:
        """Return what is known of a conversion.

        Args:
            origin: Where its source came from; None for a local one.
            options: Options that are not the default.
            findings: What the scan found.
            repairs: What was changed, as ``meta/repairs.json`` says it.
        """
        counts = Counter(finding.code for finding in findings)
        changes = Repairs.from_record(repairs).summary() if repairs else []
        place = asdict(origin) if origin is not None else {}
        return cls(**place, options=dict(options), findings=dict(counts), changes=tuple(changes))


def provenance_path(result: Path) -> Path:
    """Return where the record of a result lies: ``<parent>/.<name>.leconvert-provenance``."""
    real = Path(os.path.realpath(result))
    return real.with_name(f".{real.name}.leconvert-provenance")


def write_provenance(result: Path, provenance: Provenance, *, run_id: str = "") -> None:
    """Write or replace the record.

    Args:
        result: The result's folder, which need not exist yet; its parent must.
        provenance: What is known.
        run_id: The run, where there is one.

    Raises:
        StorageError: The disk is full, read-only, or fails.
        FileNotFoundError: The parent folder does not exist.
    """
    record = encode_record(_KIND, _VERSION, run_id, asdict(provenance))
    write_durably(provenance_path(result), record)


def read_provenance(result: Path) -> Provenance | None:
    """Return the record of a result; None where there is none.

    Raises:
        WorkDirError: The record is torn, or of a version that this program does not know.
        StorageError: The disk fails.
    """
    record = find_record(provenance_path(result), _KIND, version=_VERSION)
    if record is None:
        return None
    return Provenance(
        repo_id=record["repo_id"],
        revision=record["revision"],
        commit=record["commit"],
        options=record["options"],
        findings=record["findings"],
        changes=tuple(record["changes"]),
        pushed=record["pushed"],
    )


def noted_origin(result: Path) -> Origin | None:
    """Return where the source of a result came from; None where it was local, or nobody knows.

    Raises:
        WorkDirError: The record is torn, or of a version that this program does not know.
        StorageError: The disk fails.
    """
    known = read_provenance(result)
    if known is None or not known.repo_id:
        return None
    return Origin(known.repo_id, known.revision, known.commit)
