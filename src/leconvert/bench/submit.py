"""The jobs of a benchmark on SLURM: which there are, their scripts, and how they are submitted.

Jobs of one benchmark run one after the other, whatever becomes of the one before: two at a time
would share a network or a file server, and each would measure the other.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from leconvert.bench.options import (
    MODES,
    SCENARIOS,
    SOURCES,
    Resources,
    Source,
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

Places = Mapping[Source, str]
"""The folder or URL of each source, as far as it is known."""

_DEVICES = ("cpu", "cuda")

Matrix = Sequence[tuple[Source, str, str]]
"""Every combination of where the files are, what a sample is, and what decodes it."""


def parse_matrix(sources: str, modes: str, devices: str) -> Matrix:
    """Return the matrix that three lists span; the source changes slowest, the device fastest."""
    wanted = _listed("sources", sources, SOURCES)
    return list(
        product(
            [source for source in SOURCES if source in wanted],
            _listed("modes", modes, MODES),
            _listed("devices", devices, _DEVICES),
        )
    )


def parse_places(
    given: Sequence[str],
    *,
    repo_id: str | None,
    root: str | None,
    data_files_root: str | None = None,
) -> Places:
    """Return where each source's dataset is, as far as that is known.

    Where data and videos are elsewhere, that is where ``meta/`` is.
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
                f"--root-of {text} does not say where a source is.",
                next_step=f"Write SOURCE=URL, with one of {', '.join(SOURCES)}.",
            )
        places[label] = place
    if "bucket" in places:  # warming is a setting of the server: the address stays
        places.setdefault("warmed_bucket", places["bucket"])
    return places


def _listed(what: str, text: str, known: Sequence[str]) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    spelled = {name.replace("-", "_"): name for name in known}
    found = [spelled.get(name.replace("-", "_")) for name in names]
    if not found or None in found:
        raise UsageError(
            f"--{what} {text} is not a list of {what}.",
            next_step=f"Choose among {', '.join(known)}.",
        )
    return tuple(dict.fromkeys(name for name in found if name is not None))


_RESOURCES = ("nodes", "cpus", "mem", "time", "gpus")
_ALL = ""

GivenResources = Mapping[str, Sequence[str]]
"""By resource what the command line says: ``8`` for all jobs, ``stream_hub=8`` for one."""

_AS_USUAL: GivenResources = {}

ResourceChanges = Mapping[str, Mapping[str, int | str]]
"""What the command line changes: by job's name the changed fields; the empty name is for all."""


def asked_resources(given: GivenResources, usual: Resources | None = None) -> Resources:
    """Return the resources of a job that has no name to be meant by."""
    return changed(usual or Resources(), parse_resource_changes(given, []))


def changed(resources: Resources, changes: ResourceChanges, name: str = _ALL) -> Resources:
    """Return the resources of the job of that name: its own changes beat those for all."""
    return replace(resources, **{**changes.get(_ALL, {}), **changes.get(name, {})})  # type: ignore[arg-type]


def parse_resource_changes(given: GivenResources, names: Sequence[str]) -> ResourceChanges:
    """Return what ``--cpus 8``, ``--cpus stream_hub=8`` and their like say."""
    by_job: dict[str, dict[str, int | str]] = {}
    for resource in _RESOURCES:
        for text in given.get(resource, ()):
            name, _, value = text.rpartition("=")
            name = name.replace("-", "_")
            if name and name not in names:
                raise UsageError(
                    f"--{resource} {text}: {name} is not among what is submitted.",
                    next_step=f"Choose among {', '.join(names)}."
                    if names
                    else "Leave the name out.",
                )
            by_job.setdefault(name, {})[resource] = _checked(resource, value)
    return by_job


def _checked(resource: str, value: str) -> int | str:
    if resource in {"mem", "time"}:
        if (check_memory if resource == "mem" else check_time)(value):
            return value
    elif value.isdecimal() and int(value) >= (0 if resource == "gpus" else 1):
        return int(value)
    raise UsageError(
        f"--{resource} {value} makes no sense.",
        next_step="Write --nodes 2, --cpus 16, --mem 64G, --time 00:30:00 or --gpus 1, or "
        "NAME=VALUE for one job.",
    )


@dataclass(frozen=True, slots=True)
class Job:
    """One job of a chain."""

    name: str  # names the job and its log
    arguments: tuple[str, ...]  # what follows the program's name: a whole ``leconvert`` command
    # What it asks for; every node runs the command as a rank, or of a training every GPU.
    resources: Resources
    # Whether it is a training: its ranks talk to each other, and after a preemption it can go on
    # where it stopped. A benchmark must not: its second start would find warm caches.
    trains: bool = False

    @property
    def tasks_of_node(self) -> int:
        """Processes that run the command on each node."""
        return max(1, self.resources.gpus) if self.trains else 1

    @property
    def cpus_of_task(self) -> int:
        """Cores of each of them."""
        return max(1, self.resources.cpus // self.tasks_of_node)


def plan_scenarios(
    names: str | None,
    *,
    places: Places,
    passed_on: Sequence[str] = (),
    resources: GivenResources = _AS_USUAL,
) -> tuple[Job, ...]:
    """Return a job a scenario of a list, or of all."""
    scenarios = parse_scenarios(names or ",".join(SCENARIOS))
    changes = parse_resource_changes(resources, [scenario.name for scenario in scenarios])
    return tuple(
        Job(
            f"probe-{scenario.name}",
            _run(scenario.source, places, f"--scenario={scenario.name}", passed_on=passed_on),
            _with_gpu(changed(scenario.resources, changes, scenario.name), _devices(passed_on)),
        )
        for scenario in scenarios
    )


def plan_matrix(
    sources: str,
    modes: str,
    devices: str,
    *,
    places: Places,
    passed_on: Sequence[str] = (),
    resources: GivenResources = _AS_USUAL,
) -> tuple[Job, ...]:
    """Return a job for each combination of three lists."""
    matrix = parse_matrix(sources, modes, devices)
    changes = parse_resource_changes(resources, sorted({source for source, _, _ in matrix}))
    return tuple(
        Job(
            f"probe-{source}-{mode}-{device}",
            _run(
                source, places,
                f"--source={source}", f"--mode={mode}", f"--decode-device={device}",
                passed_on=passed_on,
            ),
            _with_gpu(changed(Resources(), changes, source), {device}),
        )
        for source, mode, device in matrix
    )  # fmt: skip


def _run(source: Source, places: Places, *words: str, passed_on: Sequence[str]) -> tuple[str, ...]:
    return ("probe", "run", *words, *_root_option(source, places), *passed_on)


def summary_job(out_dir: str) -> Job:
    """Return the last job of a chain: the table, the CSV and the plots of all results."""
    return Job(
        name="probe-summary",
        arguments=("probe", "summarize", out_dir),
        resources=Resources(cpus=1, mem="4G", time="00:10:00"),
    )


def training_job(
    passed_on: Sequence[str], *, out_dir: str, resume_from: str | None, resources: GivenResources
) -> Job:
    """Return the job of a training that resumes by itself when SLURM starts it anew."""
    resumed = () if resume_from is None else (f"--resume-from={resume_from}",)
    asked = asked_resources(resources, Resources(time="04:00:00"))
    return Job(
        name="probe-train",
        arguments=("probe", "train", *passed_on, f"--out-dir={out_dir}", *resumed),
        resources=_with_gpu(asked, _devices(passed_on)),
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


def _with_gpu(resources: Resources, devices: Collection[str]) -> Resources:
    return replace(resources, gpus=max(1, resources.gpus)) if "cuda" in devices else resources


# Job scripts and ``sbatch`` lines as text; nothing here starts anything.
#
# Nothing in a script names a place of the machine that wrote it: SLURM runs a job in the folder,
# and with the environment, in which it was submitted.


_FIRST_PORT, _PORTS = 20000, 10000


def job_script(job: Job, site: Site) -> str:
    """Return the script of a job.

    With several nodes ``srun`` starts the command once a node, and of a training once a GPU; each
    process finds its rank in SLURM's variables. Ranks that the submitting shell happens to export
    would go before those, and every process would have the same; so they are unset. Ranks that talk
    to each other are told where rank 0 listens: on the node that runs the script.
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
        # A port of the job's own, should another job share its first node.
        f"export MASTER_PORT=$(({_FIRST_PORT} + SLURM_JOB_ID % {_PORTS}))",
        # A rank that died leaves the others waiting for its gradients.
        f"{start} --kill-on-bad-exit=1 {command}",
        "",
    ]
    return "\n".join(lines)


def batch_jobs(jobs: Sequence[Job], site: Site, *, log_dir: str) -> list[BatchJob]:
    """Return what ``sbatch`` is given for a chain: each job after the one before."""
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
    """Return a shell script that submits the jobs, each after the one before."""
    return submission_script(batch_jobs(jobs, site, log_dir=log_dir), log_dir=log_dir)


@dataclass(frozen=True, slots=True)
class SubmittedJob:
    """A job in the scheduler's queue."""

    job_id: str  # SLURM's id
    name: str  # the job's name
    log: str  # where its output will be
    after: str | None  # the id of the job that it waits for, or None


def submit_chain(jobs: Sequence[Job], site: Site, *, log_dir: str) -> tuple[SubmittedJob, ...]:
    """Submit jobs, each after the one before."""
    try:
        Path(log_dir).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{log_dir}: {error.strerror}.", path=log_dir) from error
    job_ids = submit(batch_jobs(jobs, site, log_dir=log_dir))
    return tuple(
        SubmittedJob(job_id, job.name, f"{log_dir}/{job.name}-{job_id}.out", after)
        for job, job_id, after in zip(jobs, job_ids, (None, *job_ids), strict=False)
    )
