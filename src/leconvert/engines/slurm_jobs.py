"""Which jobs workers and a packer are for SLURM; plain values in, plain values out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from leconvert.engines.sbatch import BatchJob
from leconvert.engines.site import Site, check_memory, check_time, script_head
from leconvert.errors import UsageError

__all__ = ["SlurmOptions", "packer_job", "worker_job"]

_WORKERS, _PACKER = "leconvert-work", "leconvert-pack"


@dataclass(frozen=True, slots=True)
class SlurmOptions:
    """What workers ask SLURM for.

    Each worker is one element of a job array, which SLURM starts, preempts and starts again by
    itself, on whatever node has room.

    Attributes:
        nodes: How many nodes' worth of workers.
        workers_per_node: Workers of a node's worth; there are ``nodes * workers_per_node``.
        cpus_per_task: Cores of a worker.
        mem: Memory of a worker, and of the packer, as ``--mem`` spells it, such as ``4G``.
        time: The longest run time of a worker, ``HH:MM:SS``.
        constraint: Features that a node must have, or None.
        signal_seconds: A worker is asked to hand back so long before its time is over. SLURM may
            be a minute late.
        extra: Further options of ``sbatch``, as they are.
        site: Account, partition, quality of service, and how the program is found.

    Raises:
        UsageError: A number or a size makes no sense.
    """

    nodes: int = 1
    workers_per_node: int = 4
    cpus_per_task: int = 1
    # The first round figure above what `leconvert.workforce.worker_bytes` expects of the largest
    # dataset of scripts/bench_worker_memory.py.
    mem: str = "1G"
    time: str = "04:00:00"
    constraint: str | None = None
    signal_seconds: int = 120
    extra: Sequence[str] = ()
    site: Site = field(default_factory=Site)

    def __post_init__(self) -> None:
        for name in ("nodes", "workers_per_node", "cpus_per_task", "signal_seconds"):
            if getattr(self, name) < 1:
                option = name.replace("_", "-")
                raise UsageError(f"--{option} must be at least 1, not {getattr(self, name)}.")
        if not check_memory(self.mem):
            raise UsageError(f"--mem {self.mem} makes no sense.", next_step="Write --mem 4G.")
        if not check_time(self.time):
            raise UsageError(
                f"--time {self.time} makes no sense.", next_step="Write --time 04:00:00."
            )
        for option in self.extra:
            if not option.startswith("-"):
                raise UsageError(
                    f"--slurm-extra {option!r} is no option of sbatch.",
                    next_step="Write --slurm-extra=--exclusive, once an option.",
                )

    @property
    def workers(self) -> int:
        """How many workers there are."""
        return self.nodes * self.workers_per_node


def worker_job(
    options: SlurmOptions, count: int, arguments: Sequence[str], *, log_dir: str
) -> BatchJob:
    """Return the array of workers.

    The script becomes the worker (``exec``), so that the signal before the time limit, and those of
    a preemption, reach it: it hands its batch back and ends. An element that is preempted, or whose
    node fails, is put back into the queue and comes as a new worker; its log goes on.

    Args:
        options: What it asks for.
        count: How many workers.
        arguments: What follows ``leconvert work``.
        log_dir: Where logs go, as ``slurm-JOB_ELEMENT.log``.
    """
    words = (
        *_asked(options, _WORKERS),
        f"--array=0-{count - 1}",
        f"--signal=B:USR1@{options.signal_seconds}",
        f"--output={log_dir}/slurm-%A_%a.log",
        *options.extra,
    )
    return BatchJob(_WORKERS, words, _script(options, ("work", *arguments)))


def packer_job(
    options: SlurmOptions, arguments: Sequence[str], *, log_dir: str, after: int | None
) -> BatchJob:
    """Return the packer's job.

    It begins when every worker has ended, however that was, and waits for none: where batches are
    missing it says which.

    Args:
        options: What it asks for; the same as a worker.
        arguments: What follows ``leconvert pack``.
        log_dir: Where its log goes, as ``slurm-JOB-pack.log``.
        after: The position of the workers' job in what is submitted; None if all work is done.
    """
    words = (
        *_asked(options, _PACKER),
        f"--output={log_dir}/slurm-%j-pack.log",
        *options.extra,
    )
    script = _script(options, ("pack", *arguments, "--no-wait"))
    return BatchJob(_PACKER, words, script, after=after)


def _asked(options: SlurmOptions, name: str) -> tuple[str, ...]:
    return (
        "sbatch",
        "--parsable",
        f"--job-name={name}",
        "--nodes=1",
        "--ntasks=1",
        f"--cpus-per-task={options.cpus_per_task}",
        f"--mem={options.mem}",
        f"--time={options.time}",
        *(() if options.constraint is None else (f"--constraint={options.constraint}",)),
        *options.site.sbatch_options(),
        "--requeue",
        "--open-mode=append",
    )


def _script(options: SlurmOptions, arguments: Sequence[str]) -> str:
    lines = (
        *script_head(options.site),
        # A job starts in the folder that it was submitted from: `python -m leconvert` must not
        # take a user's inspect.py there for Python's own.
        "export PYTHONSAFEPATH=1",
        f"exec {options.site.command(*arguments)}",
        "",
    )
    return "\n".join(lines)
