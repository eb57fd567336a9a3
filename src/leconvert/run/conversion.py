"""The request for a conversion: its result, its workers, its proof; and its observer.

The command line, the Python API and a fleet's list each make a `Conversion`. The planner, the
workers and the packer take it unchanged. Its parts are groups of options that check themselves.
"""

from __future__ import annotations

import shlex
import threading
from collections.abc import Sequence
from dataclasses import field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from leconvert.model.repairs import RepairOptions
from leconvert.model.selection import EpisodeSelection
from leconvert.model.values import LayoutOptions
from leconvert.run.engines import Engine, check_engine
from leconvert.support.errors import TargetError, UsageError
from leconvert.support.flags import (
    as_arguments,
    flag,
    make_numbers_own,
    seconds,
    some_seconds,
    whole,
    whole_number,
    worker_count,
)
from leconvert.support.progress import NO_PROGRESS, Progress
from leconvert.support.values import dataclass
from leconvert.transfer.options import PushOptions, ScratchOptions
from leconvert.workdir.former import former_dir
from leconvert.workdir.fs import is_there
from leconvert.workdir.records import WorkDir
from leconvert.workdir.swap import (
    check_target,
    codebase_version,
    exchanged_place,
    is_converted,
    old_dir,
)

if TYPE_CHECKING:
    from leconvert.remote.provenance import Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """The run to plan or join, and the hosts that may work on it.

    Attributes:
        restart: Give up a run under way and begin a new one.
        one_host: Let only this host work on the run.
        allow_mixed_versions: Join a run that other library versions planned.
    """

    restart: bool = flag(False, "discard the unfinished run and begin a new one")
    one_host: bool = flag(
        False,
        "let only this host work on the run; needed if `leconvert doctor DIR --peer` says that "
        "hosts must not share the file system",
    )
    allow_mixed_versions: bool = flag(
        False, "work even if this host has other library versions than the host that planned"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """The workers of a conversion: threads of this process, processes, or an engine's workers.

    Attributes:
        orchestrate: Work in processes that lease batches, instead of threads of this process. With
            None, the number that is given below decides. If neither is given, processes are used
            for many small files, which are slow in threads because of Python's lock.
        num_workers: Number of processes; ``auto`` lets the engine decide, or the cores and free
            memory of this machine. None with ``orchestrate`` or ``engine`` means the same.
        max_workers: Number of threads; None lets cores and free memory decide, at most 4.
        engine: The engine that starts the workers, such as
            ``leconvert.run.engines.SlurmEngine(...)``; meanwhile this process packs. None for this
            machine.

    Raises:
        UsageError: A number is below 1, or two of them contradict each other.
    """

    orchestrate: bool | None = flag(
        None,
        "--orchestrate is --engine local, --no-orchestrate is --engine inline; more workers can "
        "join with `leconvert work`",
        may_be_negated=True,
    )
    num_workers: int | Literal["auto"] | None = flag(
        None,
        "number of worker processes; auto, and --engine local: as many as cores and memory allow",
        "N|auto",
        worker_count,
        names=("-j", "--num-workers"),
    )
    max_workers: int | None = flag(
        None, "number of worker threads, with --engine inline", "N", whole(1)
    )
    engine: Engine | None = None

    def __post_init__(self) -> None:
        for name, value in (("num_workers", self.num_workers), ("max_workers", self.max_workers)):
            if value not in (None, "auto"):
                object.__setattr__(self, name, whole_number(name, value, 1))
        if self.num_workers is not None and self.max_workers is not None:
            raise UsageError(
                "--num-workers (processes) and --max-workers (threads) exclude each other. Give "
                "one of them."
            )
        if self.engine is not None:
            check_engine(self.engine)
            if self.max_workers is not None or self.orchestrate is False:
                raise UsageError(
                    "An engine starts processes, but max_workers counts threads. Give "
                    "num_workers instead."
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseOptions:
    """The rules for leases.

    Attributes:
        lease_seconds: A batch whose holder is silent for this long is taken over.
        max_attempts: A batch fails after this many errors.
        trouble_seconds: A worker whose disk or mount fails tries again for this long before it
            ends.

    Raises:
        UsageError: A number is out of its range.
    """

    lease_seconds: float = flag(
        60.0,
        "seconds of silence after which another worker takes over a batch (default: 60)",
        "S",
        some_seconds,
    )
    max_attempts: int = flag(
        3, "errors after which a batch counts as failed (default: 3)", "N", whole(1)
    )
    trouble_seconds: float = flag(
        0.0,
        "seconds to keep trying when the disk or a network mount fails (default: 120)",
        "S",
        seconds,
        names=("--max-trouble-seconds",),
    )

    def __post_init__(self) -> None:
        make_numbers_own(self)
        if not self.trouble_seconds >= 0:
            raise UsageError(f"trouble_seconds must be at least 0, not {self.trouble_seconds}.")
        if not self.lease_seconds > 0:
            raise UsageError(f"lease_seconds must be above 0, not {self.lease_seconds}.")
        if self.lease_seconds > threading.TIMEOUT_MAX:  # the heartbeat could not wait for it
            raise UsageError(f"lease_seconds is too large: {self.lease_seconds}.")
        whole_number("max_attempts", self.max_attempts, 1)

    def as_arguments(self) -> list[str]:
        """Return the options of ``leconvert work`` that mean the same."""
        return as_arguments(self, with_defaults=True)


_DEPTHS = ("structure", "bytes", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofOptions:
    """The proof before the swap, and the datasets that the result may replace and remove.

    Attributes:
        verify: The depth of the proof before the swap: ``structure``, ``bytes`` or ``none``. None
            means ``bytes`` if the source is to be removed, else ``structure``.
        force_conversion: Replace a dataset at the target that already has the version to write; it
            is kept as ``<target>_old``.
        delete_source: Remove the source that the result replaced, when the result is in place and
            nothing would be lost.
        keep_as_former: Keep the replaced dataset as an append does, under a unique name
            (`leconvert.workdir.former`) instead of ``<target>_old``; not in place.
        max_wait_seconds: How long to wait for the lock of a packer that gives no sign of life.
    """

    verify: str | None = flag(
        None,
        "how the result is compared with the source before it is put in place (default: structure; "
        "bytes with --delete-source)",
        choices=_DEPTHS,
    )
    force_conversion: bool = flag(
        False,
        "convert again although the target holds a result, which is kept as <target>_old",
    )
    delete_source: bool = flag(
        False,
        "after a conversion in place: remove the source if every byte of the source is proven to "
        "be in the result",
    )
    keep_as_former: bool = False
    max_wait_seconds: float = flag(
        120.0,
        "seconds to wait if a packer on another host gives no sign of life; if another packer is "
        "running, this command ends at once (default: 120)",
        "S",
        seconds,
    )

    @property
    def depth(self) -> str:
        """The depth of the proof before the swap."""
        return self.verify or ("bytes" if self.delete_source else "structure")

    def as_arguments(self) -> list[str]:
        """Return the options of ``leconvert pack`` that mean the same."""
        return as_arguments(replace(self, verify=self.depth))

    def check_source(self, *, is_outline: bool) -> None:
        """Refuse a proof that needs the whole source if only its outline is here.

        Raises:
            UsageError: The proof is ``bytes``.
        """
        if self.verify == "bytes" and is_outline:
            raise UsageError(
                "--verify bytes needs the whole source on this machine, but the source is on the "
                "Hub.",
                next_step="Use --verify structure. Later, `leconvert verify --bytes` can compare "
                "every byte with a downloaded source.",
            )

    def check_proof(self, source: Path, target: Path) -> None:
        """Refuse an unknown proof, or one that is not enough for removing the source.

        Raises:
            UsageError: The proof is unknown or not enough, or the source would not be replaced.
        """
        if self.depth not in _DEPTHS:
            raise UsageError(f"--verify takes {', '.join(_DEPTHS)}, not {self.verify!r}.")
        if self.delete_source and self.depth != "bytes":
            raise UsageError(
                f"--delete-source needs --verify bytes, not {self.depth}.",
                next_step="Leave --verify out: --delete-source then compares every byte.",
            )
        if self.delete_source and source != target:
            raise UsageError(
                "--delete-source works only if the result takes the place of its source. The "
                f"result goes to {target}, so the source stays.",
                next_step="Leave --delete-source out. After the conversion, `leconvert verify "
                f"{shlex.quote(str(target))} --source SOURCE --bytes` proves that the result "
                "contains all of the source.",
            )

    def check_target(
        self, source: Path, target: Path, to: str, layout: str, *, appends: bool
    ) -> None:
        """Refuse a target that is not free, before any work is done."""
        self.check_proof(source, target)
        old = self.old_place(source, target, to, layout, appends=appends)
        check_target(exchanged_place(source, target, layout), old)

    def old_place(
        self,
        source: Path,
        target: Path,
        to: str,
        layout: str,
        *,
        appends: bool,
        run_id: str = "0",
    ) -> Path | None:
        """Return the new path of the tree at the target; None if there is no such tree.

        Args:
            source: The source's folder; for a conversion in place, the target itself.
            target: The folder of the result.
            to: The version to write.
            layout: The layout.
            appends: Whether episodes are added to the dataset at the target.
            run_id: The run, if there is one.

        Raises:
            TargetError: The target must be free, and is not.
            UsageError: The options contradict each other.
        """
        if appends and self.force_conversion:
            raise UsageError(
                "--append keeps the files of the existing result, but --force-conversion replaces "
                "them.",
                next_step="Give one of the two options.",
            )
        if source == target:
            return old_dir(exchanged_place(source, target, layout))
        if not is_there(target):
            return None
        version = codebase_version(target)
        if not is_converted(target, to):
            raise TargetError(
                f"{target} exists already and is not a {to} dataset.",
                path=str(target),
                next_step=f"Choose another folder for the result, or move {target} away.",
            )
        if not self.force_conversion and not appends:
            raise TargetError(
                f"{target} already holds a {version} dataset.",
                path=str(target),
                next_step="If this is the wanted result, there is nothing to do. If the source has "
                "new episodes, `leconvert convert --append` adds them. --force-conversion converts "
                f"again and keeps the old result as {old_dir(target)}.",
            )
        is_former = appends or self.keep_as_former
        return former_dir(target, run_id) if is_former else old_dir(target)


@dataclass(frozen=True, slots=True)
class Places:
    """The folders that a conversion reads and writes, absolute.

    Attributes:
        sources: The source, or several to merge, in their order.
        target: The folder of the result.
        work_dir: The folder of the run's state.
        arrival: How the only source came from the Hub; None for local datasets.
    """

    sources: Sequence[Path]
    target: Path
    work_dir: Path
    arrival: Origin | None = None

    @property
    def source(self) -> Path:
        """The first source."""
        return self.sources[0]

    @property
    def in_place(self) -> bool:
        """Whether the result takes the place of its source."""
        return self.source == self.target

    @property
    def outline(self) -> str | None:
        """The URL of the source if its files are on the Hub; None if they are on this machine."""
        return None if self.arrival is None else self.arrival.outline

    @property
    def is_migration(self) -> bool:
        """Whether the result is for the Hub only, and files stay there."""
        return self.outline is not None and self.target == WorkDir.migrated(self.source)

    @property
    def source_name(self) -> str:
        """Name of the source, or of all sources, in messages and plans."""
        return self.outline or ", ".join(map(str, self.sources))


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """Everything that is requested of a conversion, except its `Places`.

    Two conversions make the same result from the same source if their ``layout``, ``repairs`` and
    ``selection`` are equal; the other fields decide how it is made, proven and pushed.

    Attributes:
        layout: The version to write, and how episodes are cut into files and batches.
        repairs: The changes that are allowed.
        selection: The episodes to convert, and their frames.
        plan: Whether to join or give up a run under way, and who may work on it.
        workers: The workers.
        leases: Lease time and attempts.
        proof: The proof before the swap, and the datasets that the result may replace and remove.
        scratch: The folder for files that workers fetch from a source on the Hub.
        push: The repo that the result is pushed to; None for no push.

    Raises:
        TypeError: A field holds options of another kind.
    """

    layout: LayoutOptions = LayoutOptions()
    repairs: RepairOptions = RepairOptions()
    selection: EpisodeSelection = EpisodeSelection()
    plan: PlanOptions = PlanOptions()
    workers: WorkerOptions = WorkerOptions()
    leases: LeaseOptions = LeaseOptions()
    proof: ProofOptions = ProofOptions()
    scratch: ScratchOptions = ScratchOptions()
    push: PushOptions | None = None

    def __post_init__(self) -> None:
        for each in fields(self):
            given, kind = getattr(self, each.name), type(each.default)
            if each.default is not None and not isinstance(given, kind):
                raise TypeError(f"{each.name} must be {kind.__name__}(...), not {given!r}.")

    @property
    def changes_anything(self) -> bool:
        """Whether the result differs from the result of a conversion without options."""
        return bool(self.layout != LayoutOptions() or self.repairs.as_record() or self.selection)

    def result_record(self) -> dict[str, Any]:
        """Return the options that decide the result; manifests keep them, to compare on resume."""
        return {
            **self.layout.as_record(),
            **self.repairs.as_record(),
            **self.selection.as_record(),
        }

    def check_target(self, source: Path, target: Path) -> None:
        """Refuse a target that is not free, before any work is done."""
        layout = self.layout
        self.proof.check_target(source, target, layout.to, layout.layout, appends=layout.append)

    def work_arguments(self, *, fetches: bool) -> list[str]:
        """Return the options of ``leconvert work`` that mean the same.

        Args:
            fetches: Whether workers fetch files of the source.
        """
        return [
            *self.leases.as_arguments(),
            *(["--allow-mixed-versions"] if self.plan.allow_mixed_versions else []),
            *(self.scratch.as_arguments() if fetches else []),
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """The means of a caller to stop a conversion and to watch it.

    Attributes:
        stop: Set from another thread to stop; the run can be resumed.
        progress: Receives the progress.
        command: The command line, for the run's records; secrets are removed from it.

    Raises:
        TypeError: ``stop`` or ``progress`` is something else.
    """

    stop: threading.Event = field(default_factory=threading.Event)
    progress: Progress = NO_PROGRESS
    command: Sequence[str] | None = None

    def __post_init__(self) -> None:
        for name, kind, method in (
            ("stop", "a threading.Event", "is_set"),
            ("progress", "a Progress", "stage"),
        ):
            given = getattr(self, name)
            if not hasattr(given, method):
                raise TypeError(f"{name} must be {kind}, not {given!r}.")
