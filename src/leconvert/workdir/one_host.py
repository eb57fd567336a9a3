"""The record of a run that one host alone may work on, and who that is.

It exists where the work dir has no hard links, and where the user asked for it (``--one-host``):
then hard links decide among the processes of that host as they would among many. The host that
planned the run may work on it, after a reboot too; every other one is refused.

The record names the boot and the mount through which the run is used. Who comes back after a
reboot or a new mount replaces it; a process that goes on working looks at it once a second. So if
two machines pass for one (images copied with their machine id and name), or one host has mounted a
file system twice, the one that was there before notices and stops.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from leconvert.errors import OneHostOnlyError, WorkDirError
from leconvert.workdir.durable import storage_errors, write_durably
from leconvert.workdir.exclusion import Exclusion, OneHostFileSystem, probe_exclusion
from leconvert.workdir.filesystem import LOCAL, FileSystem
from leconvert.workdir.host import HostIdentity
from leconvert.workdir.paths import RunPaths
from leconvert.workdir.records import encode_record, find_record

__all__ = ["ASKED_FOR", "OneHost", "check_still_alone", "come_in", "plan_one_host", "read_one_host"]

ONE_HOST_VERSION = 1
ASKED_FOR = "asked for"
"""The reason in the record of a run with hard links, which was planned with ``--one-host``."""


@dataclass(frozen=True, slots=True)
class OneHost:
    """Who may work on a run without hard links, and how its processes exclude each other.

    Attributes:
        host: The host.
        device: Device number of the run's folder there: another one is another mount.
        exclusion: How names are given once.
        reason: What the attempt to make a hard link ended in, or `ASKED_FOR`.
    """

    host: HostIdentity
    device: int
    exclusion: Exclusion
    reason: str

    @property
    def has_links(self) -> bool:
        """Whether the work dir has hard links all the same."""
        return self.exclusion is Exclusion.LINK

    @property
    def remark(self) -> str:
        """One sentence that says what follows from it."""
        if self.has_links:
            return f"As --one-host asks, only this host, {self.host.name}, may work on the run."
        return (
            f"The work dir has no hard links ({self.reason}): only this host, {self.host.name}, "
            "may work on the run, and finished files are copied into place."
        )

    def file_system(self, run: RunPaths) -> FileSystem:
        """Return the file operations that every process of this run must publish with."""
        if self.has_links:
            return LOCAL
        return OneHostFileSystem(self.exclusion, run.naming_lock)


def plan_one_host(
    run: RunPaths, run_id: str, *, asked_for: bool = False, fs: FileSystem = LOCAL
) -> OneHost | None:
    """Probe a new run's folder, and record this host if it has no hard links or is to be alone.

    Call it when the run's folders are there and its manifest is not.

    Args:
        run: Paths of the run.
        run_id: The run.
        asked_for: Whether the user wants one host even where there are hard links.
        fs: File operations.

    Raises:
        StorageError: Nothing makes a name exclusive here; or the disk is full, read-only, or fails.
    """
    exclusion, reason = probe_exclusion(run.attempts_dir, run.done_dir, run.naming_lock, fs=fs)
    if exclusion is None:
        if not asked_for:
            return None
        exclusion, reason = Exclusion.LINK, ASKED_FOR
    planned = OneHost(HostIdentity.of_this_host(), _device(run.root), exclusion, reason)
    _write(run, run_id, planned, fs)
    return planned


def read_one_host(run: RunPaths, run_id: str, *, fs: FileSystem = LOCAL) -> OneHost | None:
    """Return the record of a run, or None where any number of hosts may work.

    Raises:
        WorkDirError: It cannot be used.
        StorageError: It cannot be read.
    """
    fields = find_record(run.one_host, "one-host", version=ONE_HOST_VERSION, run_id=run_id, fs=fs)
    if fields is None:
        return None
    try:
        return OneHost(
            HostIdentity.from_fields(fields),
            int(fields["device"]),
            Exclusion(fields["exclusion"]),
            str(fields["reason"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise WorkDirError(
            f"{run.one_host} does not say who may work on the run: {error}.",
            path=str(run.one_host),
            next_step="Use the leconvert version that wrote it, or start a new run with --restart.",
        ) from error


def come_in(run: RunPaths, run_id: str, planned: OneHost, *, fs: FileSystem = LOCAL) -> OneHost:
    """Refuse every host but the one that planned the run; note its present boot and mount.

    Returns:
        The record as it is now.

    Raises:
        OneHostOnlyError: This is another host.
        StorageError: The record cannot be replaced.
    """
    here = HostIdentity.of_this_host()
    if not here.is_same_host(planned.host):
        raise OneHostOnlyError(
            f"Only {planned.host.name} may work on run {run_id}, which it planned"
            f"{_because(run, planned)} This host is {here.name}"
            f"{', another one' * (here.name == planned.host.name)}.",
            path=str(run.root),
            next_step=f"Run the command on {planned.host.name}; or begin anew with --restart, here "
            + (
                "or without --one-host."
                if planned.has_links
                else "or with a --work-dir that has hard links (ext4, XFS, NFS)."
            ),
        )
    now = replace(planned, host=replace(planned.host, boot=here.boot), device=_device(run.root))
    if now != planned:
        _write(run, run_id, now, fs)
    return now


def check_still_alone(run: RunPaths, run_id: str, mine: OneHost, *, fs: FileSystem = LOCAL) -> None:
    """Check that nobody came in through another boot or mount since this process did.

    Args:
        run: Paths of the run.
        run_id: The run.
        mine: What `come_in` returned to this process.
        fs: File operations.

    Raises:
        OneHostOnlyError: Somebody did.
        StorageError: The record cannot be read.
    """
    now = read_one_host(run, run_id, fs=fs)
    if now is not None and now != mine:
        raise OneHostOnlyError(
            f"Run {run_id} is used through another host or mount now, by one that calls itself "
            f"{now.host.name} as well; only one may work there.",
            path=str(run.root),
            next_step="Let that one finish. Two machines with the same /etc/machine-id and name "
            "should get ids of their own.",
        )


def _because(run: RunPaths, planned: OneHost) -> str:
    if planned.has_links:
        return " with --one-host."
    return (
        f": {run.root} has no hard links ({planned.reason}), without which two hosts cannot tell "
        "who was first."
    )


def _write(run: RunPaths, run_id: str, record: OneHost, fs: FileSystem) -> None:
    fields = {
        **record.host.as_fields(),
        "device": record.device,
        "exclusion": record.exclusion.value,
        "reason": record.reason,
    }
    write_durably(run.one_host, encode_record("one-host", ONE_HOST_VERSION, run_id, fields), fs=fs)


def _device(folder: Path) -> int:
    with storage_errors(folder):
        return os.stat(folder).st_dev  # noqa: PTH116 - st_dev alone
