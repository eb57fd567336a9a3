"""Conversions on the cluster: `leconvert submit` with everything going wrong, `--engine slurm`."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from lab_kit import EPISODES, LabError, Row, demand, ends_of, short_episodes, wait_until
from tree_digest import tree_digest

from slurm_lab.ground import Ground

_JOB_SECONDS = 240.0
# A worker that takes its time over a batch: the dataset is small, and there must be a middle in
# which nodes crash and jobs are requeued, which takes SLURM many seconds. Nothing is awaited.
_SLOWLY = """
import sys, time
from leconvert.cli import main
from leconvert.run.worker import ShardWriter
write = ShardWriter.write
def slowly(self, *arguments, **options):
    time.sleep({seconds})
    return write(self, *arguments, **options)
ShardWriter.write = slowly
sys.exit(main())
"""


def conversion(ground: Ground) -> Iterator[Row]:
    """Four workers and a packer convert a dataset while nothing goes wrong."""
    source, expected = short_episodes(ground.folder)
    work, result = _plan(ground, source, "quiet")
    sent = _submit(ground, work, f"{sys.executable} -m leconvert", nodes=2)
    (end,) = ground.cluster.wait_for([sent["packer_job"]], _JOB_SECONDS)
    demand(end.state == "COMPLETED", f"the packer ended as {end}: {_logs(work)}")
    demand(tree_digest(result) == expected, "the result differs from the inline run's")
    again = ground.leconvert("submit", str(work))
    demand("There is nothing to submit" in again, f"a second submission said: {again}")
    yield Row(
        "conversion",
        f"{EPISODES} episodes, 4 workers as an array, the packer after them",
        f"result byte-identical to the inline run's; packer on {end.nodes}",
    )


def troubled_conversion(ground: Ground) -> Iterator[Row]:
    """A node crashes, a worker is requeued, others are preempted, the controller restarts."""
    cluster = ground.cluster
    source, expected = short_episodes(ground.folder)
    work, result = _plan(ground, source, "troubled")
    sent = _submit(ground, work, slow_program(ground, 6.0), nodes=3)
    array = sent["worker_job"]
    _wait_for_done(work, 2)
    cluster.crash_node("n1")
    cluster.run("scontrol", "requeue", f"{array}_1")
    _wait_for_done(work, 5)
    cluster.restart_controller()
    wait_until(lambda: answers(ground), 30, "The controller's return")
    (urgent,) = cluster.run(
        "sbatch", "--parsable", "--partition=urgent", "--nodes=1", "--exclusive",
        "--wrap=sleep 2", "--output=/dev/null",
    ).split()  # fmt: skip
    cluster.boot_node("n1")
    ends = cluster.wait_for([urgent, sent["packer_job"]], _JOB_SECONDS)
    demand(ends[1].state == "COMPLETED", f"the packer ended as {ends[1]}: {_logs(work)}")
    demand(tree_digest(result) == expected, "the result differs from the inline run's")
    workers = len(list(work.glob("runs/*/workers/*.json")))
    demand(workers > 6, f"only {workers} workers ever came: nothing was started again")
    yield Row(
        "troubled-conversion",
        "6 workers on 3 nodes; n1 loses its power, a worker is requeued, the controller is killed "
        "and restarted, an urgent job preempts",
        f"result byte-identical to the inline run's; {workers} workers came in all; the urgent job "
        f"{ends[0].state} on {ends[0].nodes}",
    )


def engine(ground: Ground) -> Iterator[Row]:
    """One command each, with `--engine slurm`: to v3.0, back to v2.1, and a merge."""
    source, expected = short_episodes(ground.folder)
    asked = engine_options(f"{sys.executable} -m leconvert", nodes=2)
    shutil.copytree(ground.dataset, ground.folder / "again", dirs_exist_ok=True)
    commands = {
        "convert": ("convert", str(source), "engine-v30"),
        "convert --to v2.1": ("convert", "inline", "engine-v21", "--to", "v2.1"),
        "merge": ("merge", str(ground.dataset), "again", "-o", "engine-merged"),
    }
    for name, words in commands.items():
        for_itself = [f"{word}-alone" if word.startswith("engine-") else word for word in words]
        ground.leconvert(*for_itself, "-q")
        (work,) = (ground.folder / f"{word}-work" for word in words if word.startswith("engine-"))
        ground.leconvert(*words, "-q", "--work-dir", str(work), *asked)
        (result,) = (word for word in words if word.startswith("engine-"))
        digest = tree_digest(ground.folder / result)
        alone = tree_digest(ground.folder / f"{result}-alone")
        demand(digest == alone, f"{name}: the result differs from that without SLURM")
        demand(name != "convert" or digest == expected, "the result differs from the inline run's")
        jobs = len(list(work.glob("runs/*/jobs/*.json")))
        workers = len(list(work.glob("runs/*/workers/*.json")))
        yield Row(
            "engine",
            f"`leconvert {name} --engine slurm`",
            f"byte-identical to the result without it; {jobs} job array, {workers} workers came",
        )


def slow_program(ground: Ground, seconds: float) -> str:
    """Return the command line of a leconvert that takes its time over each batch."""
    program = ground.folder / f"slowly-{seconds}.py"
    program.write_text(_SLOWLY.format(seconds=seconds))
    return f"{sys.executable} {program}"


def engine_options(program: str, *, nodes: int) -> list[str]:
    """Return what a command that stays is told of its workers on the cluster."""
    return [
        *("--engine", "slurm", "--program", program, "--nodes", str(nodes)),
        *("--workers-per-node", "2", "--cpus-per-task", "2", "--mem", "1G"),
        *("--time", "00:10:00"),
    ]


def _plan(ground: Ground, source: Path, name: str) -> tuple[Path, Path]:
    work, result = ground.folder / f"{name}-work", ground.folder / name
    ground.leconvert(
        "plan", "--root", str(source), "--output", str(result), "--work-dir", str(work),
        "--episodes-per-batch", "1",
    )  # fmt: skip
    return work, result


def _submit(ground: Ground, work: Path, program: str, *, nodes: int) -> dict[str, str]:
    said = ground.leconvert(
        "submit", str(work), "--json", "--program", program, "--nodes", str(nodes),
        "--workers-per-node", "2", "--cpus-per-task", "2", "--mem", "1G", "--time", "00:10:00",
        "--lease-seconds", "4", "--signal", "30",
    )  # fmt: skip
    return dict(json.loads(said))


def _wait_for_done(work: Path, count: int) -> None:
    def done() -> bool:
        return len(list(work.glob("runs/*/done/*.json"))) >= count

    wait_until(done, _JOB_SECONDS, f"Batch {count} of {work.name}")


def answers(ground: Ground) -> bool:
    """Tell whether the controller is there."""
    try:
        return "UP" in ground.cluster.run("scontrol", "ping")
    except LabError:  # as it says while the controller is away
        return False


def _logs(work: Path) -> str:
    return ends_of(sorted(work.glob("runs/*/logs/*.log")))
