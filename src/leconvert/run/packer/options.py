"""What a packer is told, what it reports, and how it asks whoever runs the workers.

`ProofOptions` also says what stands in the way before any work is done.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from leconvert.support.errors import TargetError, UsageError
from leconvert.workdir.former import former_dir
from leconvert.workdir.fs import is_there
from leconvert.workdir.run import exchanged_place
from leconvert.workdir.swap import check_target, codebase_version, is_converted, old_dir

_DEPTHS = ("structure", "bytes", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofOptions:
    """What is proven before the result takes its place, and what it may replace and remove then.

    Attributes:
        verify: ``structure``, ``bytes`` or ``none``: what is proven before the swap. None proves
            the structure, or the bytes where the source is to be removed.
        force_conversion: Replace a dataset of the version that is written at the target; it is
            kept as ``<target>_old``.
        delete_source: Remove the source that the result replaced, once the result is in place and
            nothing would be lost.
        keep_as_former: Keep what is replaced as an append does, under a name that nobody else can
            have (`leconvert.workdir.former`), not as ``<target>_old``; not in place.
        max_wait_seconds: How long to wait for the lock of a packer that gives no sign of life.
    """

    verify: str | None = None
    force_conversion: bool = False
    delete_source: bool = False
    keep_as_former: bool = False
    max_wait_seconds: float = 120.0

    @property
    def depth(self) -> str:
        """What is proven before the swap."""
        return self.verify or ("bytes" if self.delete_source else "structure")

    def as_arguments(self) -> list[str]:
        """Return the options of ``leconvert pack`` that say the same."""
        waits = self.max_wait_seconds != ProofOptions().max_wait_seconds
        return [
            f"--verify={self.depth}",
            *(["--force-conversion"] if self.force_conversion else []),
            *(["--delete-source"] if self.delete_source else []),
            *([f"--max-wait-seconds={self.max_wait_seconds:g}"] if waits else []),
        ]

    def check_source(self, *, is_outline: bool) -> None:
        """Refuse a proof that needs the whole source where only its outline is here."""
        if self.verify == "bytes" and is_outline:
            raise UsageError(
                "--verify bytes needs the whole source on this machine, and it is on the Hub.",
                next_step="Use --verify structure, and `leconvert verify --bytes` with a download.",
            )

    def check_proof(self, source: Path, target: Path) -> None:
        """Refuse a proof that there is not, or that is too little to remove the source."""
        if self.depth not in _DEPTHS:
            raise UsageError(f"--verify takes {', '.join(_DEPTHS)}, not {self.verify!r}.")
        if self.delete_source and self.depth != "bytes":
            raise UsageError(
                f"--delete-source demands --verify bytes, not {self.depth}.",
                next_step="Leave --verify out: --delete-source then compares every byte.",
            )
        if self.delete_source and source != target:
            raise UsageError(
                f"--delete-source removes a source that was replaced; {source} is not touched when "
                f"the result goes to {target}.",
                next_step="Leave --delete-source out. `leconvert verify "
                f"{shlex.quote(str(target))} --source {shlex.quote(str(source))} --bytes` proves "
                "afterwards that the result holds all of it.",
            )

    def check_target(
        self, source: Path, target: Path, to: str, layout: str = "", *, appends: bool = False
    ) -> None:
        """Refuse a target that something stands in, before any work is done."""
        self.check_proof(source, target)
        old = self.old_place(source, target, to, layout, appends=appends)
        check_target(exchanged_place(source, target, layout), old)

    def old_place(
        self,
        source: Path,
        target: Path,
        to: str,
        layout: str = "",
        *,
        appends: bool = False,
        run_id: str = "0",
    ) -> Path | None:
        """Return where the tree at the target goes, None where the target must be free.

        Args:
            source: The source's folder; the target itself where it is converted in place.
            target: Where the result goes.
            to: The version that is written.
            layout: The layout.
            appends: Whether episodes are added to what is at the target.
            run_id: The run, where there is one by now.
        """
        if appends and self.force_conversion:
            raise UsageError(
                "--append keeps the files of the result that is there, and --force-conversion "
                "replaces them.",
                next_step="Leave one of them out.",
            )
        if source == target:
            return old_dir(exchanged_place(source, target, layout))
        if not is_there(target):
            return None
        version = codebase_version(target)
        if not is_converted(target, to):
            raise TargetError(
                f"{target} exists and is no {to} dataset.",
                path=str(target),
                next_step="Choose another --output, or move it away.",
            )
        if not self.force_conversion and not appends:
            raise TargetError(
                f"{target} already holds a {version} dataset.",
                path=str(target),
                next_step="Nothing needs to be done if it is this one; --append adds the episodes "
                "that its source has gained; --force-conversion replaces it and keeps it as "
                f"{old_dir(target)}.",
            )
        is_former = appends or self.keep_as_former
        return former_dir(target, run_id) if is_former else old_dir(target)


@dataclass(frozen=True, slots=True)
class PackReport:
    """What the packer did.

    Attributes:
        target: The result.
        kept: Where the replaced dataset is, or None.
        linked: Files that were linked into the tree.
        copied: Shards that had to be copied, because the work dir is on another file system
            or on one without hard links.
        joined: Files that were joined from parts.
        cloned_bytes: Coded video bytes that the workers shared with the source.
        copied_bytes: Coded video bytes that they copied.
        verified: The depth of the check.
        removed: The replaced source, where it was removed on request.
        kept_because: Why it was kept although it was to be removed.
        verified_because: Why less was compared than was asked for; None otherwise.
    """

    target: Path
    kept: Path | None
    linked: int
    copied: int
    joined: int
    cloned_bytes: int
    copied_bytes: int
    verified: str
    removed: Path | None = None
    kept_because: str | None = None
    verified_because: str | None = None

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-serialisable mapping."""
        record = asdict(self)
        record["target"] = str(self.target)
        for name in ("kept", "removed"):
            record[name] = None if record[name] is None else str(record[name])
        return record


class WorkerMonitor:
    """Waits for workers that nobody here knows of: they may come at any time.

    Attributes:
        pause_seconds: How long the packer waits at least between two looks at the work dir.
    """

    pause_seconds = 1.0

    def working(self) -> bool:
        """Say whether anybody works, or may yet come to work."""
        return True

    def saw_done(self, batch_ids: Collection[int]) -> None:
        """Hear of batches that are done since the last call."""

    def saw_the_end(self) -> None:
        """Hear that every batch is settled, or that nobody works any more."""

    def remarks(self) -> Sequence[str]:
        """Return lines that say why nobody works any more."""
        return ()
