"""Benchmarks, trainings and conversions on a SLURM cluster of logical nodes of one machine."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from lab_kit import Row, demand, wait_until

from leconvert.bench import Job, Resources, submit_chain
from leconvert.run.engines.options import Site
from slurm_lab.cluster import JobEnd
from slurm_lab.engine import engine, fleet
from slurm_lab.ground import JOB_SECONDS, LENGTHS, PROGRAM, SMALL, Ground, build

__all__ = ["SCENARIOS", "build"]

# One rank: writes down which frames it got in an epoch, and where it ran.
_RANK = """
import json, os, sys
from pathlib import Path
from leconvert.loading import EpisodeStream, StreamLoader
stream = EpisodeStream(sys.argv[1])
frames = [int(i) for batch in StreamLoader(stream, batch_size=4, num_workers=2)
          for i in batch["index"]]
said = {"rank": stream.rank, "world_size": stream.world_size, "frames": frames,
        "node": os.environ["SLURMD_NODENAME"]}
Path(sys.argv[2], f"rank{stream.rank}.json").write_text(json.dumps(said))
"""


def chain(ground: Ground) -> Iterator[Row]:
    """Three scenarios and the summary, one after the other, the last scenario on two nodes."""
    ends = ground.submitted(
        "--scenarios", "mmap_local,stream_hub,stream_bucket_2node", "--root", str(ground.dataset),
        "--root-of", f"hub=file://{ground.dataset}", "--root-of", f"bucket={ground.dataset}",
        "--out-dir", "chain",
    )  # fmt: skip
    demand([end.state for end in ends] == ["COMPLETED"] * 4, f"jobs ended as {ends}")
    demand(_one_after_the_other(ends), f"jobs overlapped: {ends}")
    results = ground.results("chain")
    ranks = [(r["options"]["scenario"], r["options"]["rank"]) for r in results]
    expected = [
        ("mmap_local", 0), ("stream_bucket_2node", 0), ("stream_bucket_2node", 1), ("stream_hub", 0)
    ]  # fmt: skip
    demand(ranks == expected, f"results are {ranks}")
    of_two = [r for r in results if r["options"]["world_size"] == 2]
    loaded = [r["loaded_episodes"] for r in of_two]
    # Ranks get as many frames each, so the episode at the border is loaded in parts by both.
    demand(
        len(LENGTHS) <= sum(loaded) <= len(LENGTHS) + 1 and max(loaded) < len(LENGTHS),
        f"the two nodes loaded {loaded} episodes",
    )
    demand((ground.folder / "chain/summary.csv").exists(), "there is no summary.csv")
    yield Row(
        "chain",
        "mmap_local, stream_hub, stream_bucket_2node, summary as a chain of `afterany`",
        f"{_names(ends)}; each began after the one before had ended; one result a rank, "
        f"{loaded[0]} + {loaded[1]} episodes on {ends[2].nodes}",
    )


def failure(ground: Ground) -> Iterator[Row]:
    """The first of three jobs fails; the others run."""
    ends = ground.submitted(
        "--sources", "local,hub", "--modes", "single,sarm-action", "--no-summary",
        "--root", str(ground.folder / "nothing"), "--root-of", f"hub=file://{ground.dataset}",
        "--out-dir", "failure",
    )  # fmt: skip
    states = [end.state for end in ends]
    demand(states == ["FAILED", "FAILED", "COMPLETED", "COMPLETED"], f"jobs ended as {ends}")
    modes = sorted(r["options"]["mode"] for r in ground.results("failure"))
    demand(modes == ["sarm-action", "single"], f"results are of {modes}")
    yield Row(
        "failure",
        "a matrix of 2 sources and 2 modes; the first source is missing",
        f"{', '.join(states)}: a job that fails does not hold up the next",
    )


def two_ranks(ground: Ground) -> Iterator[Row]:
    """Two nodes stream one epoch; their frames are disjoint and together complete."""
    out_dir = ground.folder / "ranks"
    out_dir.mkdir()
    job = Job(
        "ranks",
        ("-c", _RANK, str(ground.dataset), str(out_dir)),
        Resources(nodes=2, cpus=2, mem="4G", time="00:10:00"),
    )
    with _environment(ground.cluster.environment):
        (sent,) = submit_chain([job], Site(program=sys.executable), log_dir=str(out_dir))
    (end,) = ground.cluster.wait_for([sent.job_id], JOB_SECONDS)
    demand(end.state == "COMPLETED", f"the job ended as {end}: {Path(sent.log).read_text()}")
    said = [json.loads((out_dir / f"rank{rank}.json").read_bytes()) for rank in range(2)]
    frames = [len(rank["frames"]) for rank in said]
    together = sorted(said[0]["frames"] + said[1]["frames"])
    demand(together == list(range(sum(LENGTHS))), "frames are missing or came twice")
    demand(said[0]["node"] != said[1]["node"], f"both ranks ran on {said[0]['node']}")
    yield Row(
        "two ranks",
        "`srun` starts a rank on each of two nodes; its variables say which",
        f"{frames[0]} frames on {said[0]['node']}, {frames[1]} on {said[1]['node']}: disjoint and "
        f"together all {sum(LENGTHS)}",
    )


def requeue(ground: Ground) -> Iterator[Row]:
    """A training on two nodes is requeued in its middle and ends as if it never had been."""
    arguments = (
        "probe", "train", "--submit", "--json", "--program", PROGRAM, *SMALL, "--nodes", "2",
        "--root", str(ground.dataset), "--batch-size", "4", "--steps", "150", "--save-every", "10",
        "--log-every", "1",
    )  # fmt: skip

    def rows(name: str) -> list[dict[str, Any]]:
        log = ground.folder / name / "train.jsonl"
        lines = log.read_text().splitlines() if log.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    sent = [
        json.loads(ground.leconvert(*arguments, "--out-dir", name))
        for name in ("requeued", "whole")
    ]
    first = sent[0]["job_id"]
    wait_until(lambda: len(rows("requeued")) >= 40, JOB_SECONDS, "Step 40")
    ground.cluster.run("scontrol", "requeue", first)
    ends = ground.cluster.wait_for([job["job_id"] for job in sent], 2 * JOB_SECONDS)
    demand([end.state for end in ends] == ["COMPLETED"] * 2, f"jobs ended as {ends}")
    log = (ground.folder / sent[0]["log"]).read_text()
    begun = [line for line in log.splitlines() if line.startswith("steps ")]
    resumed = len(begun) == 1 and "resumed from step" in begun[0]
    demand(resumed, f"it did not continue from a checkpoint: {begun}")
    losses = {name: [(r["step"], r["loss"]) for r in rows(name)] for name in ("requeued", "whole")}
    demand(len(losses["whole"]) == 150, "the log of the whole run has gaps")
    demand(losses["requeued"] == losses["whole"], "losses differ after the requeue")
    yield Row(
        "requeue",
        "a training on two nodes is requeued after step 40 of 150",
        f"SLURM starts it again, it says `{' '.join(begun[0].split())}`; its 150 losses are, to "
        "the last bit, those of a run that never stopped",
    )


SCENARIOS: Mapping[str, Callable[[Ground], Iterator[Row]]] = {
    "chain": chain,
    "failure": failure,
    "two-ranks": two_ranks,
    "requeue": requeue,
    "engine": engine,
    "fleet": fleet,
}
"""Every scenario by name."""


def _one_after_the_other(ends: list[JobEnd]) -> bool:
    return all(a.ended <= b.started for a, b in pairwise(ends))


def _names(ends: list[JobEnd]) -> str:
    return ", ".join(f"{end.name.removeprefix('probe-')} on {end.nodes}" for end in ends)


@contextmanager
def _environment(changed: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(changed)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
