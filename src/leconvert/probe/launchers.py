"""Job scripts and ``sbatch`` lines as text; nothing here starts anything.

Nothing in a script names a place of the machine that wrote it: SLURM runs a job in the folder, and
with the environment, in which it was submitted.
"""

from __future__ import annotations

from collections.abc import Sequence

from leconvert.engines.sbatch import BatchJob, submission_script
from leconvert.engines.site import Site, script_head
from leconvert.probe.submit import Job

__all__ = ["batch_jobs", "chain_script", "job_script", "sbatch_line"]

_FIRST_PORT, _PORTS = 20000, 10000


def sbatch_line(job: Job, site: Site, *, log_dir: str) -> tuple[str, ...]:
    """Return the ``sbatch`` command line of a job whose script comes on standard input.

    Args:
        job: The job.
        site: Account and partition.
        log_dir: Where its log goes, as ``NAME-ID.out``.
    """
    asked = job.resources
    return (
        "sbatch",
        "--parsable",
        f"--job-name={job.name}",
        f"--nodes={asked.nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={asked.cpus}",
        f"--mem={asked.mem}",
        f"--time={asked.time}",
        *((f"--gpus-per-node={asked.gpus}",) if asked.gpus else ()),
        *site.sbatch_options(),
        # A job that is started anew goes on in its old log.
        *(("--requeue", "--open-mode=append") if job.trains else ("--no-requeue",)),
        f"--output={log_dir}/%x-%j.out",
    )


def job_script(job: Job, site: Site) -> str:
    """Return the script of a job.

    With several nodes ``srun`` starts the command once a node; each finds its rank in SLURM's
    variables. Ranks that the submitting shell happens to export would go before those, and every
    node would have the same; so they are unset. Ranks that talk to each other are told where rank 0
    listens: on the node that runs the script.

    Args:
        job: The job.
        site: How the program is found.
    """
    lines = [*script_head(site), "unset RANK WORLD_SIZE LOCAL_RANK"]
    command = site.command(*job.arguments)
    nodes = job.resources.nodes
    if nodes == 1:
        return "\n".join((*lines, f"exec {command}", ""))
    # From SLURM 22.05 on srun no longer takes --cpus-per-task from sbatch.
    start = f"srun --nodes={nodes} --ntasks={nodes} --cpus-per-task={job.resources.cpus}"
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
    return [
        BatchJob(
            job.name,
            sbatch_line(job, site, log_dir=log_dir),
            job_script(job, site),
            after=number - 1 if number else None,
        )
        for number, job in enumerate(jobs)
    ]


def chain_script(jobs: Sequence[Job], site: Site, *, log_dir: str) -> str:
    """Return a shell script that submits the jobs, each after the one before."""
    return submission_script(batch_jobs(jobs, site, log_dir=log_dir), log_dir=log_dir)
