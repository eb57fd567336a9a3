"""Which jobs a benchmark is made of; plain values in, plain values out.

Jobs of one benchmark run one after the other, whatever becomes of the one before: two at a time
would share a network or a file server, and each would measure the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from leconvert.errors import UsageError
from leconvert.probe.matrix import Matrix, Places
from leconvert.probe.resources import ResourceChanges, Resources
from leconvert.probe.scenarios import Scenario, Source

__all__ = [
    "Job",
    "plan_matrix",
    "plan_scenarios",
    "summary_job",
    "training_job",
]


@dataclass(frozen=True, slots=True)
class Job:
    """One job of a chain.

    Attributes:
        name: Names the job and its log.
        arguments: What follows the program's name: a whole ``leconvert`` command.
        resources: What it asks for; with several nodes every node runs the command as a rank.
        trains: Whether it is a training: its ranks talk to each other, and after a preemption it
            can go on where it stopped. A benchmark must not: its second start would find warm
            caches.
    """

    name: str
    arguments: tuple[str, ...]
    resources: Resources
    trains: bool = False


def plan_scenarios(
    scenarios: Sequence[Scenario],
    *,
    places: Places,
    passed_on: Sequence[str],
    changes: ResourceChanges,
) -> tuple[Job, ...]:
    """Return a job a scenario.

    Args:
        scenarios: What to run, in this order.
        places: Where each source's files are; see `parse_places`.
        passed_on: Further arguments of ``probe run``, the same for all.
        changes: What differs from the scenarios' own resources.

    Raises:
        UsageError: It is not known where a scenario's files are.
    """
    return tuple(
        Job(
            name=f"probe-{scenario.name}",
            arguments=(
                "probe", "run",
                f"--scenario={scenario.name}",
                *_root_option(scenario.source, places),
                *passed_on,
            ),
            resources=_with_gpu(
                changes.applied(scenario.name, scenario.resources), "cuda" in _devices(passed_on)
            ),
        )
        for scenario in scenarios
    )  # fmt: skip


def plan_matrix(
    matrix: Matrix,
    *,
    places: Places,
    passed_on: Sequence[str],
    changes: ResourceChanges,
) -> tuple[Job, ...]:
    """Return a job a combination; the source changes slowest, the device fastest.

    Args:
        matrix: The combinations.
        places: Where each source's files are.
        passed_on: Further arguments of ``probe run``, the same for all.
        changes: What differs from the usual resources, by source.

    Raises:
        UsageError: It is not known where a source's files are.
    """
    return tuple(
        Job(
            name=f"probe-{source}-{mode}-{device}",
            arguments=(
                "probe", "run",
                f"--source={source}",
                f"--mode={mode}",
                f"--decode-device={device}",
                *_root_option(source, places),
                *passed_on,
            ),
            resources=_with_gpu(changes.applied(source, Resources()), device == "cuda"),
        )
        for source in matrix.sources
        for mode in matrix.modes
        for device in matrix.devices
    )  # fmt: skip


def summary_job(out_dir: str) -> Job:
    """Return the last job of a chain: the table, the CSV and the plots of all results."""
    return Job(
        name="probe-summary",
        arguments=("probe", "summarize", out_dir),
        resources=Resources(cpus=1, mem="4G", time="00:10:00"),
    )


def training_job(
    passed_on: Sequence[str], *, out_dir: str, resume_from: str | None, changes: ResourceChanges
) -> Job:
    """Return the job of a training that resumes by itself when SLURM starts it anew.

    Args:
        passed_on: Arguments of ``probe train``.
        out_dir: Where checkpoints go.
        resume_from: A checkpoint, ``last``, or None for a dummy run, which has none.
        changes: What differs from the usual resources.
    """
    resumed = () if resume_from is None else (f"--resume-from={resume_from}",)
    return Job(
        name="probe-train",
        arguments=("probe", "train", *passed_on, f"--out-dir={out_dir}", *resumed),
        resources=_with_gpu(
            changes.applied_to_all(Resources(time="04:00:00")),
            "cuda" in _devices(passed_on),
        ),
        trains=True,
    )


def _root_option(source: Source, places: Places) -> tuple[str, ...]:
    place = places.get(source)
    if place is not None:
        return (f"--root={place}",)
    if source == "local":  # the dataset's place in the cache, found by its --repo-id
        return ()
    raise UsageError(
        f"It is not known where the files of source {source} are.",
        next_step=f"Say so with --root-of {source}=URL.",
    )


def _devices(passed_on: Sequence[str]) -> set[str]:
    return {
        argument.partition("=")[2].partition(":")[0]
        for argument in passed_on
        if argument.startswith(("--device=", "--decode-device="))
    }


def _with_gpu(resources: Resources, needed: bool) -> Resources:
    return replace(resources, gpus=max(1, resources.gpus)) if needed else resources
