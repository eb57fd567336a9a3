"""One cluster: munge, a controller, and a daemon a node, from `running` to its end.

The daemons are children in the foreground, so they are ended by their ids, and the kernel ends them
too if whoever built the cluster dies. There is neither systemd nor cgroups; all nodes are this
machine under several names, so a node's cores are only SLURM's bookkeeping.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from lab_kit import SEARCHED, LabError, require, run_tool, wait_until

_UP_SECONDS = 30.0
_END_SECONDS = 20.0
_HERE = "127.0.0.1"
# The state that the controller writes for a job that it puts back into the queue.
_REQUEUED = "PENDING"


PACKAGES = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "munged": "munge",
    "setpriv": "util-linux",
}
"""The packages by the program that tells whether they are there."""


_CORES_A_NODE = 4
_MB_A_NODE = 64000

# SLURM only keeps books here: no accounting, no affinity, no limits. `cred_expire` is how long a
# requeued job waits; the default is two minutes.
_GENERAL = """\
ClusterName=lab
SlurmctldHost={controller.host}({controller.address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CryptoType=crypto/munge
SlurmctldPort={controller.port}
StateSaveLocation={controller.state}
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={logs}/slurmctld.log
SlurmdLogFile={logs}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc={logs}/ended-jobs.txt
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=0,batch_sched_delay=0
ReturnToService=2
SlurmdTimeout={silence}
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
KillWait=20
MinJobAge=600
"""
_NODE = (
    "NodeName={node.name} NodeHostname={node.host} NodeAddr={node.address} Port={node.port} "
    "CPUs={cores} Sockets=1 CoresPerSocket={cores} ThreadsPerCore=1 RealMemory={mb} "
    "State=UNKNOWN\n"
)
# Jobs of `urgent` take the nodes of those of `batch`, which are requeued.
_PARTITIONS = (
    "PartitionName=batch Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1\n"
    "PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF\n"
)


@dataclass(frozen=True, slots=True)
class Controller:
    """The host of the controller.

    Attributes:
        host: Its host's name.
        address: IP address.
        port: TCP port.
        state: Folder of what must outlive it.
    """

    host: str
    address: str
    port: int
    state: Path


@dataclass(frozen=True, slots=True)
class Node:
    """One node.

    Attributes:
        name: Its name in SLURM.
        host: The name that its host has; several nodes may share one.
        address: IP address.
        port: TCP port of its daemon.
    """

    name: str
    host: str
    address: str
    port: int


def configuration(
    controller: Controller,
    nodes: Iterable[Node],
    *,
    folder: Path,
    logs: Path,
    silence_seconds: int = 5,
) -> str:
    """Return the text of ``slurm.conf``.

    A node's cores and memory are said to be there whether they are or not: the lab's jobs are
    small, and only SLURM's books matter.

    Args:
        controller: The host of the controller.
        nodes: The nodes.
        folder: For each daemon's own files, the socket of munge among them.
        logs: For logs, and the list of jobs that have ended.
        silence_seconds: A node that says nothing for so long counts as dead.
    """
    general = _GENERAL.format(
        controller=controller, folder=folder, logs=logs, silence=silence_seconds
    )
    lines = [_NODE.format(node=node, cores=_CORES_A_NODE, mb=_MB_A_NODE) for node in nodes]
    return general + "".join(lines) + _PARTITIONS


@dataclass(frozen=True, slots=True)
class JobEnd:
    """How a job ended, as the controller wrote it down.

    Attributes:
        job_id: Its id.
        name: Its name.
        state: ``COMPLETED``, ``FAILED``, ``CANCELLED`` and so on.
        nodes: Names of its nodes, such as ``n[1-2]``.
        started: Local time to the second, ISO 8601.
        ended: Likewise.
    """

    job_id: str
    name: str
    state: str
    nodes: str
    started: str
    ended: str


class SlurmCluster:
    """A cluster in a folder of its own.

    Args:
        folder: For its state and logs; made if missing, kept at the end.
        nodes: Logical nodes, called ``n1``, ``n2`` and so on.
    """

    def __init__(self, folder: Path, nodes: int = 3) -> None:
        self.folder = folder.absolute()
        self.nodes = nodes
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._logs = ExitStack()

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables by which SLURM's commands find this cluster and no other."""
        return os.environ | {"SLURM_CONF": str(self._configuration), "PATH": SEARCHED}

    @property
    def version(self) -> str:
        """SLURM's version."""
        return self.run("sinfo", "--version").strip()

    def daemons(self) -> Mapping[str, int]:
        """Return the process ids of its daemons: ``munged``, ``slurmctld``, ``n1`` and so on."""
        return {name: process.pid for name, process in self._daemons.items()}

    @contextmanager
    def running(self) -> Iterator[SlurmCluster]:
        """Have the cluster for the length of a ``with`` block; its jobs end with it.

        Raises:
            LabError: It cannot be built.
        """
        require("SLURM's daemons start jobs for others", PACKAGES)
        self._write_configuration()
        with self._logs, ExitStack() as begun:
            try:
                begun.callback(self._end_daemons)
                self._start()
                wait_until(self._all_idle, _UP_SECONDS, "The start of all nodes")
                begun.callback(self._cancel_jobs)
                yield self
            except LabError as error:
                raise LabError(f"{error} Logs are in {self.folder}.") from error

    def run(self, *command: str) -> str:
        """Run one of SLURM's commands and return what it said.

        Raises:
            LabError: It failed.
        """
        return run_tool(command, environment=self.environment)

    def wait_for(self, job_ids: Sequence[str], seconds: float) -> list[JobEnd]:
        """Wait until jobs have ended and return how, in the order asked for.

        Raises:
            LabError: They do not end in time.
        """
        wait_until(lambda: set(job_ids) <= set(self.ended()), seconds, f"The end of jobs {job_ids}")
        ended = self.ended()
        return [ended[job_id] for job_id in job_ids]

    def ended(self) -> dict[str, JobEnd]:
        """Return the jobs that have ended, by id; one that was requeued has not."""
        path = self.folder / "ended-jobs.txt"
        ends: dict[str, JobEnd] = {}
        for line in path.read_text().splitlines() if path.exists() else ():
            facts = dict(re.findall(r"(\w+)=(\S*)", line))
            if facts["JobState"] == _REQUEUED:
                continue
            ends[facts["JobId"]] = JobEnd(
                facts["JobId"], facts["Name"], facts["JobState"], facts["NodeList"],
                facts["StartTime"], facts["EndTime"],
            )  # fmt: skip
        return ends

    @property
    def _configuration(self) -> Path:
        return self.folder / "slurm.conf"

    def _write_configuration(self) -> None:
        for name in ("state", *(f"spool/n{number}" for number in range(1, self.nodes + 1))):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        host = socket.gethostname().partition(".")[0]
        ports = _free_ports(self.nodes + 1)
        controller = Controller(host, _HERE, ports[0], self.folder / "state")
        nodes = [Node(f"n{n}", host, _HERE, port) for n, port in enumerate(ports[1:], start=1)]
        text = configuration(controller, nodes, folder=self.folder, logs=self.folder)
        self._configuration.write_text(text)
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        self.folder.chmod(0o755)

    def crash_node(self, name: str) -> None:
        """Let a node lose its power: its daemon and everything of its jobs is killed at once."""
        daemon = self._daemons.pop(name)
        daemon.kill()
        daemon.wait()
        jobs = [process for process in psutil.process_iter() if self._runs_on(process, name)]
        # The parent of a job is the daemon's child no longer, and would tell of the job's end.
        steps = [step for job in jobs if (step := job.parent()) is not None and step not in jobs]
        for process in (*(step for step in steps if step.name() == "slurmstepd"), *jobs):
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def boot_node(self, name: str) -> None:
        """Give a crashed node its power back."""
        self._daemon(name, "slurmd", "-D", "-N", name)

    def restart_controller(self) -> None:
        """Kill the controller and start it again; it finds its jobs in its state folder."""
        daemon = self._daemons.pop("slurmctld")
        daemon.kill()
        daemon.wait()
        self._daemon("slurmctld", "slurmctld", "-D")

    def _runs_on(self, process: psutil.Process, node: str) -> bool:
        """Tell whether a process belongs to a job of this cluster on a node."""
        try:
            said = process.environ()
        except psutil.Error:
            return False
        return (said.get("SLURM_CONF"), said.get("SLURMD_NODENAME")) == (
            str(self._configuration),
            node,
        )

    def _start(self) -> None:
        self._daemon(
            "munged", "munged", "--foreground", "--force", f"--socket={self.folder}/munge.socket",
            f"--key-file={self.folder}/munge.key", f"--pid-file={self.folder}/munged.pid",
            f"--log-file={self.folder}/munged.log", f"--seed-file={self.folder}/munged.seed",
        )  # fmt: skip
        socket_path = self.folder / "munge.socket"
        wait_until(socket_path.exists, _UP_SECONDS, "The start of munged")
        self._daemon("slurmctld", "slurmctld", "-D", "-c")
        for number in range(1, self.nodes + 1):
            self.boot_node(f"n{number}")

    def _daemon(self, name: str, *command: str) -> None:
        log = self._logs.enter_context((self.folder / f"{command[0]}.out").open("a"))
        self._daemons[name] = subprocess.Popen(
            ["setpriv", "--pdeathsig", "TERM", *command],
            env=self.environment, stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def _end_daemons(self) -> None:
        while self._daemons:
            _end(self._daemons.popitem()[1])

    def _all_idle(self) -> bool:
        try:
            said = self.run("sinfo", "--noheader", "--format=%T %D")
        except LabError:  # the controller is not there yet
            return False
        return said.split() == ["idle", str(self.nodes)]

    def _cancel_jobs(self) -> None:
        """End every job, so that no step outlives the daemon that would end it."""
        self.run("scancel", "--user=root", "--signal=KILL", "--full")
        self.run("scancel", "--user=root")
        wait_until(
            lambda: not self.run("squeue", "--noheader").strip(), _END_SECONDS, "The end of jobs"
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on now; the daemons take them within a second."""
    with ExitStack() as sockets:
        taken = [sockets.enter_context(socket.socket()) for _ in range(count)]
        for one in taken:
            one.bind((_HERE, 0))
        return [int(one.getsockname()[1]) for one in taken]
