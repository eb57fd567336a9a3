"""A conversion by SLURM on hosts that share an NFS mount alone, with everything going wrong.

A controller and three nodes are hosts with kernels of their own.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lab_kit import Row, demand, require, wait_until
from nfs_lab import Guest, LabOptions, NfsLab
from nfs_lab.conversion import Conversion, events_of
from nfs_lab.requirements import kernel_version
from nfs_lab.scenarios import Ground

from slurm_lab.cluster import PACKAGES
from slurm_lab.guests import GuestCluster

FOLDER = Path("/dev/shm/leconvert-slurm-nfs-lab")
"""The folder of the lab by default."""

_HOSTS = 4  # one of them for the controller
_MEMORY_MB = 768  # two workers and a daemon

_WORKER = Path(__file__).resolve().parent / "inside" / "node_worker.py"
_PLACE = "leconvert.run.worker:ShardWriter.write#1"
_SECONDS = 300.0
_WORKERS_A_NODE = 2
_WITHOUT_CONTROLLER = 3


@contextmanager
def build(options: Namespace) -> Iterator[tuple[str, GuestCluster]]:
    """Have the lab and the cluster for the length of a ``with`` block."""
    require("SLURM's daemons start jobs for others", PACKAGES)
    options_of_lab = LabOptions(clients=_HOSTS, memory_mb=_MEMORY_MB)
    with NfsLab(options.folder).running(options_of_lab) as lab:
        cluster = GuestCluster(lab)
        cluster.start()
        yield (
            f"{cluster.version}, a controller and {len(cluster.nodes)} nodes on hosts of their own "
            f"(Linux {kernel_version()}) that mount one NFS server's disk",
            cluster,
        )


def troubled_conversion(cluster: GuestCluster) -> Iterator[Row]:
    """Workers are preempted, a node loses its power, and so does the controller's host.

    All workers halt in the middle of their first batch: those of the first node until it loses its
    power, those of the second until the first is back, and those of the third, which are preempted,
    until they have come again. So nothing waits for luck.
    """
    ground = Ground(cluster.lab)
    first, second, third = cluster.nodes
    run = _Run(ground, cluster, "troubled")
    for guest in cluster.nodes:
        run.halt_file(guest).write_text(_PLACE)
    sent = run.submit()
    for guest in cluster.nodes:
        run.wait_for_halted(guest, _WORKERS_A_NODE)

    urgent = cluster.run(
        "sbatch", "--parsable", "--partition=urgent", f"--nodelist={third.name}", "--exclusive",
        "--wrap=true", "--output=/dev/null",
    ).strip()  # fmt: skip
    array = sent["worker_job"]
    wait_until(
        lambda: ("RUNNING", third.name) not in cluster.states(array).values(),
        _SECONDS,
        f"The preemption on {third.name}",
    )
    run.let_go(third)
    wait_until(lambda: cluster.states(urgent)[urgent][0] == "COMPLETED", _SECONDS, "The urgent job")
    run.wait_for_halted(third, 2 * _WORKERS_A_NODE)  # they came again

    for guest in cluster.nodes:
        run.halt_file(guest).unlink()
    held = {entry["batch"] for entry in run.told(first, "claimed", won=True)}
    first.power_off()
    cluster.head.power_off()
    run.let_go(third)
    wait_until(
        lambda: len(run.done()) >= _WITHOUT_CONTROLLER, _SECONDS, "Work without a controller"
    )
    ground.lab.boot(cluster.head.name)
    cluster.start_controller()
    ground.lab.boot(first.name)
    cluster.start_node(first)
    wait_until(
        lambda: len(run.told(first, "began")) == 2 * _WORKERS_A_NODE,
        _SECONDS,
        f"The return of the workers of {first.name}",
    )
    run.let_go(second)
    run.wait_for_result(sent)
    run.check_result()

    done = run.done()
    demand(len(held) == _WORKERS_A_NODE, f"{first.name} held {held} when it lost its power.")
    kept = [batch for batch in held if done[batch]["generation"] < 2]
    demand(not kept, f"Batches {kept} of {first.name} were not taken over.")
    again = sum(len(run.told(guest, "began")) for guest in cluster.nodes) - sent["workers"]
    demand(again == 2 * _WORKERS_A_NODE, f"{again} workers were started again.")
    yield Row(
        "slurm-troubled-conversion",
        f"{run.name}, {run.conversion.batches} batches, {sent['workers']} workers on "
        f"{len(cluster.nodes)} hosts; an urgent job preempts the workers of {third.name}; then "
        f"{first.name}, in mid-batch, and the controller's host lose their power, and come back "
        f"when the preempted workers, which came again, have done {_WITHOUT_CONTROLLER} batches",
        f"byte-identical to the inline run without NFS; `verify --bytes` on another host passes; "
        f"batches {sorted(held)} of {first.name} were taken over; {again} workers were started "
        f"again; batches a host {run.shares()}",
    )
    run.conversion.remove()


SCENARIOS: Mapping[str, Callable[[GuestCluster], Iterator[Row]]] = {
    "troubled-conversion": troubled_conversion,
}
"""Every scenario by name."""


class _Run:
    """One planned conversion of a dataset that lies on the share."""

    def __init__(self, ground: Ground, cluster: GuestCluster, name: str) -> None:
        self._ground, self._cluster = ground, cluster
        original = ground.large()
        self.name = Path(original).name
        self.conversion = Conversion(ground.lab, f"slurm-{name}", original)
        self._expected = ground.digest_of(original)
        source = self.conversion.source = f"{self.conversion.folder}/source"
        head = cluster.head
        head.shell(f"mkdir -p {self.conversion.folder} && cp -r {original} {source}")
        self.conversion.plan(head)

    def submit(self) -> dict[str, Any]:
        """Submit the run on the head, as a user on the login node would."""
        said = self._cluster.run(
            sys.executable, "-m", "leconvert", "submit", self.conversion.work_dir, "--json",
            "--program", f"{sys.executable} {_WORKER}", "--nodes", str(len(self._cluster.nodes)),
            "--workers-per-node", str(_WORKERS_A_NODE), "--cpus-per-task", "2", "--mem", "1G",
            "--time", "00:20:00", "--signal", "30", "--verify", "bytes",
            "--lease-seconds", str(self.conversion.lease_seconds),
        )  # fmt: skip
        return dict(json.loads(said))

    def wait_for_result(self, sent: Mapping[str, Any]) -> None:
        """Wait until the packer has ended, and demand that it did so well."""
        job = sent["packer_job"]
        ended = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")

        def state() -> str:
            return self._cluster.states(job)[job][0] if self._cluster.answers() else ""

        wait_until(lambda: state() in ended, _SECONDS, "The packer's end")
        demand(state() == "COMPLETED", f"The packer ended as {state()}: {self._logs()}")

    def check_result(self) -> None:
        """Demand the bytes of an inline run, and one publication of every batch."""
        here = self._cluster.nodes[-1]
        digest = self.conversion.digest(here)
        demand(digest == self._expected, "The result differs from the inline run's.")
        self.conversion.leconvert(
            here, "verify", self.conversion.target(), "--source", self.conversion.source, "--bytes"
        )
        won = Counter(
            entry["batch"]
            for guest in self._cluster.nodes
            for entry in self.told(guest, "published", outcome="won")
        )
        demand(
            won == Counter(range(self.conversion.batches)),
            f"Of {self.conversion.batches} batches, publications: {dict(won)}",
        )

    def halt_file(self, guest: Guest) -> Path:
        """Return the file that makes new workers on a host halt; see ``node_worker.py``."""
        return guest.mailbox / "events" / "halt"

    def wait_for_halted(self, guest: Guest, count: int) -> None:
        """Wait until so many workers of a host have halted in mid-batch."""
        wait_until(
            lambda: len(self.told(guest, "halted")) == count,
            _SECONDS,
            f"Halt number {count} on {guest.name}",
        )

    def let_go(self, guest: Guest) -> None:
        """Let the halted workers of a host go on."""
        for log in self._events(guest):
            log.with_suffix(".go").touch()

    def told(self, guest: Guest, event: str, **fields: object) -> list[dict[str, Any]]:
        """Return the events of one kind, with these fields, of all workers of a host."""
        return [each for log in self._events(guest) for each in events_of(log, event, **fields)]

    def _events(self, guest: Guest) -> list[Path]:
        return sorted((guest.mailbox / "events").glob(f"{self.conversion.name}-work-*.jsonl"))

    def done(self) -> dict[int, dict[str, Any]]:
        """Return the records of all batches that are done, as the server's disk has them."""
        said = self._ground.lab.server.shell(
            f"find /mnt/disk/export/{self.conversion.name}/work/runs -path '*/done/*.json' "
            "-exec cat {} +"
        )
        records = [json.loads(line) for line in said.splitlines()]
        return {record["batch_id"]: record for record in records}

    def shares(self) -> str:
        """Return how many batches each host published."""
        counts = Counter(record["host"] for record in self.done().values())
        return ", ".join(f"{host} {number}" for host, number in sorted(counts.items()))

    def _logs(self) -> str:
        return self._ground.lab.server.shell(
            f"tail -n 5 /mnt/disk/export/{self.conversion.name}/work/runs/*/logs/*.log"
        )
