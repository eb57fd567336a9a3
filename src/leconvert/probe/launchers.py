"""Job scripts and ``sbatch`` lines as text; nothing here starts anything.

Nothing in a script names a place of the machine that wrote it: SLURM runs a job in the folder, and
with the environment, in which it was submitted.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from leconvert.errors import UsageError
from leconvert.probe.submit import Job

__all__ = ["Site", "chain_script", "job_script", "sbatch_line", "site_from"]

_END = "JOB"
_FIRST_PORT, _PORTS = 20000, 10000


@dataclass(frozen=True, slots=True)
class Site:
    """What a cluster wants to know of whoever submits, and how the program is found on a node.

    Attributes:
        account: Who pays.
        partition: Which nodes.
        qos: Quality of service.
        conda_env: A conda environment to activate, by name or folder.
        program: The program's command line on a node.
    """

    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    conda_env: str | None = None
    program: str = "leconvert"


def site_from(
    environment: Mapping[str, str],
    *,
    account: str | None = None,
    partition: str | None = None,
    qos: str | None = None,
    conda_env: str | None = None,
    program: str = "leconvert",
) -> Site:
    """Return a site: what was given, else ACCOUNT, PARTITION and QOS of the environment.

    Raises:
        UsageError: The program's command line is empty.
    """
    if not shlex.split(program):
        raise UsageError("--program needs the command that starts leconvert on a node.")
    return Site(
        account=account or environment.get("ACCOUNT") or None,
        partition=partition or environment.get("PARTITION") or None,
        qos=qos or environment.get("QOS") or None,
        conda_env=conda_env,
        program=program,
    )


def sbatch_line(job: Job, site: Site, *, log_dir: str, after: str | None = None) -> tuple[str, ...]:
    """Return the ``sbatch`` command line of a job whose script comes on standard input.

    Args:
        job: The job.
        site: Account and partition.
        log_dir: Where its log goes, as ``NAME-ID.out``.
        after: The id of the job that must have ended before, however it ended.
    """
    asked = job.resources
    optional = (
        ("gpus-per-node", str(asked.gpus) if asked.gpus else None),
        ("account", site.account),
        ("partition", site.partition),
        ("qos", site.qos),
    )
    return (
        "sbatch",
        "--parsable",
        f"--job-name={job.name}",
        f"--nodes={asked.nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={asked.cpus}",
        f"--mem={asked.mem}",
        f"--time={asked.time}",
        *(f"--{name}={value}" for name, value in optional if value is not None),
        # A job that is started anew goes on in its old log.
        *(("--requeue", "--open-mode=append") if job.trains else ("--no-requeue",)),
        f"--output={log_dir}/%x-%j.out",
        *(() if after is None else (f"--dependency=afterany:{after}",)),
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
    lines = ["#!/bin/bash"]
    if site.conda_env is not None:
        # Conda's own scripts read unset variables: strictness begins behind them.
        lines += [
            'source "$(conda info --base)/etc/profile.d/conda.sh"',
            f"conda activate {shlex.quote(site.conda_env)}",
        ]
    lines += ["set -euo pipefail", "unset RANK WORLD_SIZE LOCAL_RANK"]
    command = shlex.join((*shlex.split(site.program), *job.arguments))
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


def chain_script(jobs: Sequence[Job], site: Site, *, log_dir: str) -> str:
    """Return a shell script that submits the jobs, each after the one before.

    It calls ``sbatch`` with the very words and scripts that `leconvert.probe.slurm.submit_chain`
    would.
    """
    lines = ["#!/bin/bash", "set -euo pipefail", f"mkdir -p {shlex.quote(log_dir)}"]
    for number, job in enumerate(jobs, start=1):
        words = sbatch_line(job, site, log_dir=log_dir)
        line = shlex.join(words)
        if number > 1:
            line += f' --dependency="afterany:$job{number - 1}"'
        script = job_script(job, site)
        lines += [
            "",
            f"job{number}=$({line} <<'{_END}'",
            f"{script}{_END}",
            ")",
            # With several clusters the answer is ID;CLUSTER.
            f"job{number}=${{job{number}%%;*}}",
            f'echo "$job{number} {job.name}"',
        ]
    return "\n".join((*lines, ""))
