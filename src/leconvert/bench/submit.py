"""The jobs of a benchmark on SLURM, their scripts, and their submission.

Jobs of one benchmark run one after another, whatever the outcome of the previous one: two at a time
would share a network or a file server, and each would measure the other.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from leconvert.bench.options import (
    MODES,
    SCENARIOS,
    SOURCES,
    Resources,
    RunOptions,
    Source,
    TrainOptions,
    parse_scenarios,
)
from leconvert.run.engines.options import Site, check_memory, check_time
from leconvert.run.engines.slurm import (
    BatchJob,
    sbatch_words,
    script_head,
    submission_script,
    submit,
)
from leconvert.support.errors import StorageError, UsageError
from leconvert.support.flags import as_arguments, flags_of
from leconvert.support.values import dataclass

Places = Mapping[Source, str]
"""The folder or URL of each source, as far as known."""

_DEVICES = ("cpu", "cuda")


def parse_places(
    given: Sequence[str],
    *,
    repo_id: str | None,
    root: str | None,
    data_files_root: str | None = None,
) -> Places:
    """Return the dataset's folder or URL for each source, as far as known.

    If data and videos are elsewhere, it is the folder or URL of ``meta/``.

    Raises:
        UsageError: An item of ``given`` is not ``SOURCE=URL``.
    """
    places: dict[Source, str] = {}
    if repo_id:
        places["hub"] = f"hf://datasets/{repo_id}"
        places["bucket"] = places["hub"] if data_files_root else f"hf://buckets/{repo_id}"
    if root:
        places["local"] = root
    for text in given:
        name, equals, place = text.partition("=")
        label = next((source for source in SOURCES if source == name.replace("-", "_")), None)
        if label is None or not equals or not place:
            raise UsageError(
                f"--root-of {text} is not of the form SOURCE=URL.",
                next_step=f"Write SOURCE=URL, with one of {', '.join(SOURCES)}.",
            )
        places[label] = place
    if "bucket" in places:  # warming is a setting of the server: the address stays
        places.setdefault("warmed_bucket", places["bucket"])
    return places


def _listed[Name: str](what: str, text: str, known: Sequence[Name]) -> tuple[Name, ...]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    spelled = {name.replace("-", "_"): name for name in known}
    found = [spelled.get(name.replace("-", "_")) for name in names]
    if not found or None in found:
        raise UsageError(
            f"--{what} {text} is not a list of {what}.",
            next_step=f"Choose among {', '.join(known)}.",
        )
    return tuple(dict.fromkeys(name for name in found if name is not None))


GivenResources = Mapping[str, Sequence[str]]
"""The command line's values for each resource: ``8`` for all jobs, ``stream_hub=8`` for one."""

_AS_USUAL: GivenResources = {}


def asked_resources(
    given: GivenResources, usual: Resources, name: str = "", names: Collection[str] = ()
) -> Resources:
    """Return the resources of a job: its own values override those for all jobs.

    Args:
        given: The command line's values.
        usual: The resources that the command line does not name.
        name: The job's name on the command line; empty if its command submits no other.
        names: The names of all jobs of the command.
    """
    of_all: dict[str, Any] = {}
    its_own: dict[str, Any] = {}
    for resource in (told.field for told in flags_of(Resources)):
        for text in given.get(resource, ()):
            asked, _, value = text.rpartition("=")
            asked = asked.replace("-", "_")
            if asked and asked not in names:
                raise UsageError(
                    f"--{resource} {text} names the job {asked!r}, but this command submits no "
                    "such job.",
                    next_step=f"Choose among {', '.join(names)}."
                    if names
                    else "Leave the name out.",
                )
            checked = _checked(resource, value)
            if asked in {"", name}:
                (its_own if asked else of_all)[resource] = checked
    return replace(usual, **of_all | its_own)


def _checked(resource: str, value: str) -> int | str:
    if resource in {"mem", "time"}:
        if (check_memory if resource == "mem" else check_time)(value):
            return value
    elif value.isdecimal() and int(value) >= (0 if resource == "gpus" else 1):
        return int(value)
    raise UsageError(
        f"--{resource} {value} is not a valid value.",
        next_step="Write --nodes 2, --cpus 16, --mem 64G, --time 00:30:00 or --gpus 1, or "
        "NAME=VALUE for one job.",
    )


@dataclass(frozen=True, slots=True)
class Job:
    """One job of a chain."""

    name: str  # name of the job and its log
    arguments: tuple[str, ...]  # the arguments of the ``leconvert`` command
    # Its resources; every node runs the command as a rank, in a training every GPU.
    resources: Resources
    # Whether it is a training: its ranks communicate, and it can continue after a preemption. A
    # benchmark must not continue: its second start would find warm caches.
    trains: bool = False

    @property
    def tasks_of_node(self) -> int:
        """Number of processes that run the command on each node."""
        return max(1, self.resources.gpus) if self.trains else 1

    @property
    def cpus_of_task(self) -> int:
        """Number of cores of each process."""
        return max(1, self.resources.cpus // self.tasks_of_node)


def plan_scenarios(
    names: str | None,
    wanted: RunOptions,
    *,
    places: Places,
    passed_on: Sequence[str] = (),
    resources: GivenResources = _AS_USUAL,
) -> tuple[Job, ...]:
    """Return a job for each scenario of a list, or for all scenarios."""
    scenarios = parse_scenarios(names or ",".join(SCENARIOS))
    known = [scenario.name for scenario in scenarios]
    return tuple(
        _job(
            f"probe-{scenario.name}",
            "run",
            replace(wanted, scenario=scenario.name, root=_root_of(scenario.source, places)),
            passed_on,
            asked_resources(resources, scenario.resources, scenario.name, known),
        )
        for scenario in scenarios
    )


def plan_matrix(
    sources: str,
    modes: str,
    devices: str,
    wanted: RunOptions,
    *,
    places: Places,
    passed_on: Sequence[str] = (),
    resources: GivenResources = _AS_USUAL,
) -> tuple[Job, ...]:
    """Return a job for each combination of three lists; the device changes fastest."""
    listed = _listed("sources", sources, SOURCES)
    known = [source for source in SOURCES if source in listed]
    return tuple(
        _job(
            f"probe-{source}-{mode}-{device}",
            "run",
            replace(
                wanted,
                source=source,
                mode=mode,
                decode_device=device,
                root=_root_of(source, places),
            ),
            passed_on,
            asked_resources(resources, Resources(), source, known),
        )
        for source, mode, device in product(
            known, _listed("modes", modes, MODES), _listed("devices", devices, _DEVICES)
        )
    )


def _job(
    name: str,
    command: str,
    options: RunOptions,
    words: Sequence[str],
    asked: Resources,
    **more: Any,
) -> Job:
    """Return a job of ``probe``, with a GPU if its command uses one."""
    if any(each.startswith("cuda") for each in (options.device, options.decode_device)):
        asked = replace(asked, gpus=max(1, asked.gpus))
    return Job(name, ("probe", command, *as_arguments(options), *words), asked, **more)


def summary_job(out_dir: str) -> Job:
    """Return the last job of a chain: the table, the CSV and the plots of all results."""
    return Job(
        name="probe-summary",
        arguments=("probe", "summarize", out_dir),
        resources=Resources(cpus=1, mem="4G", time="00:10:00"),
    )


def training_job(loading: RunOptions, options: TrainOptions, *, resources: GivenResources) -> Job:
    """Return the job of a training, which resumes by itself when SLURM starts it again."""
    if not options.dummy:
        options = replace(options, resume_from=options.resume_from or "last")
    asked = asked_resources(resources, Resources(time="04:00:00"))
    return _job("probe-train", "train", loading, as_arguments(options), asked, trains=True)


def _root_of(source: Source, places: Places) -> str | None:
    place = places.get(source)
    if place is None and source != "local":
        raise UsageError(
            f"The URL for the source '{source}' is unknown.",
            next_step=f"Add --root-of {source}=URL.",
        )
    return place  # of a local dataset None for the one in the cache, found by its --repo-id


# Job scripts and ``sbatch`` lines as text; no code here starts a process.
#
# Scripts contain no paths of the machine that wrote them: SLURM runs a job in the folder, and with
# the environment, in which it was submitted.


_FIRST_PORT, _PORTS = 20000, 10000


def job_script(job: Job, site: Site) -> str:
    """Return the script of a job.

    With several nodes ``srun`` starts the command once per node, in a training once per GPU. Each
    process finds its rank in SLURM's variables. Rank variables that the submitting shell exports
    would take precedence, and every process would have the same rank, so the script unsets them.
    Ranks that communicate get the address of rank 0, which runs on the node of the script.
    """
    lines = [*script_head(site), "unset RANK WORLD_SIZE LOCAL_RANK"]
    command = site.command(*job.arguments)
    nodes, tasks = job.resources.nodes, job.resources.nodes * job.tasks_of_node
    if tasks == 1:
        return "\n".join((*lines, f"exec {command}", ""))
    # From SLURM 22.05 on srun no longer takes --cpus-per-task from sbatch.
    start = f"srun --nodes={nodes} --ntasks={tasks} --cpus-per-task={job.cpus_of_task}"
    if not job.trains:
        return "\n".join((*lines, f"{start} {command}", ""))
    lines += [
        "export MASTER_ADDR=$(hostname)",
        # A port for each job, since another job may share its first node.
        f"export MASTER_PORT=$(({_FIRST_PORT} + SLURM_JOB_ID % {_PORTS}))",
        # A rank that died leaves the others waiting for its gradients.
        f"{start} --kill-on-bad-exit=1 {command}",
        "",
    ]
    return "\n".join(lines)


def batch_jobs(jobs: Sequence[Job], site: Site, *, log_dir: str) -> list[BatchJob]:
    """Return the arguments for ``sbatch`` of a chain; each job waits for the previous one."""
    made = []
    for number, job in enumerate(jobs):
        asked = job.resources
        words = sbatch_words(
            job.name,
            site,
            nodes=asked.nodes,
            tasks=f"--ntasks-per-node={job.tasks_of_node}",
            cpus=job.cpus_of_task,
            mem=asked.mem,
            time=asked.time,
            gpus=asked.gpus,
            can_restart=job.trains,
        )
        log = f"--output={log_dir}/%x-%j.out"
        after = number - 1 if number else None
        made.append(BatchJob(job.name, (*words, log), job_script(job, site), after))
    return made


def chain_script(jobs: Sequence[Job], site: Site, *, log_dir: str) -> str:
    """Return a shell script that submits the jobs, each after the previous one."""
    return submission_script(batch_jobs(jobs, site, log_dir=log_dir), log_dir=log_dir)


@dataclass(frozen=True, slots=True)
class SubmittedJob:
    """A job in the scheduler's queue."""

    job_id: str  # SLURM's id
    name: str  # the job's name
    log: str  # path of its output
    after: str | None  # id of the job that it waits for, or None


def submit_chain(jobs: Sequence[Job], site: Site, *, log_dir: str) -> tuple[SubmittedJob, ...]:
    """Submit jobs, each after the previous one.

    Raises:
        StorageError: The log folder cannot be made.
    """
    try:
        Path(log_dir).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{log_dir}: {error.strerror}.", path=log_dir) from error
    job_ids = submit(batch_jobs(jobs, site, log_dir=log_dir))
    return tuple(
        SubmittedJob(job_id, job.name, f"{log_dir}/{job.name}-{job_id}.out", after)
        for job, job_id, after in zip(jobs, job_ids, (None, *job_ids), strict=False)
    )
