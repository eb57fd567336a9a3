"""A SLURM cluster of some logical nodes on one machine: real daemons, private to one folder.

The daemons are children in the foreground, so they are ended by their ids, and the kernel ends them
too if whoever built the cluster dies. There is neither systemd nor cgroups; all nodes are this
machine under several names, so a node's cores are only SLURM's bookkeeping.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from lab_kit import SEARCHED, LabError, processes_that, require, run_tool, wait_until

__all__ = ["PACKAGES", "JobEnd", "SlurmCluster"]

PACKAGES = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "munged": "munge",
    "setpriv": "util-linux",
}
"""The packages by the program that tells whether they are there."""

_UP_SECONDS = 30.0
_END_SECONDS = 20.0
_HERE = "127.0.0.1"

# SLURM only keeps books here: no accounting, no affinity, no limits, and nodes whose cores and
# memory are said to be there. `cred_expire` is how long a requeued job waits; the default is two
# minutes. Jobs of `urgent` take the nodes of those of `batch`, which are requeued.
_CONFIGURATION = """\
ClusterName=lab
SlurmctldHost={host}({here})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CryptoType=crypto/munge
SlurmctldPort={port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/ended-jobs.txt
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=0,batch_sched_delay=0
ReturnToService=2
SlurmdTimeout=5
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
KillWait=20
MinJobAge=600
PartitionName=batch Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""
_NODE = (
    "NodeName={name} NodeHostname={host} NodeAddr={here} Port={port} CPUs=4 Sockets=1 "
    "CoresPerSocket=4 ThreadsPerCore=1 RealMemory=64000 State=UNKNOWN\n"
)


@dataclass(frozen=True, slots=True)
class JobEnd:
    """How a job ended, as the controller wrote it down.

    Attributes:
        name: Its name.
        state: ``COMPLETED``, ``FAILED``, ``CANCELLED`` and so on.
        nodes: Names of its nodes, such as ``n[1-2]``.
        started: Local time to the second, ISO 8601.
        ended: Likewise.
    """

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
        self.nodes = [f"n{number + 1}" for number in range(nodes)]
        self._configuration = self.folder / "slurm.conf"
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables by which SLURM's commands find this cluster and no other."""
        return os.environ | {"SLURM_CONF": str(self._configuration), "PATH": SEARCHED}

    def daemons(self) -> Mapping[str, int]:
        """Return the process ids of its daemons: ``munged``, ``slurmctld``, ``n1`` and so on."""
        return {name: process.pid for name, process in self._daemons.items()}

    @contextmanager
    def running(self) -> Iterator[SlurmCluster]:
        """Have the cluster for the length of a ``with`` block; its jobs end with it."""
        require("SLURM's daemons start jobs for others", PACKAGES)
        for name in ("state", *(f"spool/{node}" for node in self.nodes)):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o755)
        about = {"host": socket.gethostname().partition(".")[0], "here": _HERE}
        first, *ports = _free_ports(len(self.nodes) + 1)
        text = _CONFIGURATION.format(folder=self.folder, port=first, **about)
        for node, port in zip(self.nodes, ports, strict=True):
            text += _NODE.format(name=node, port=port, **about)
        self._configuration.write_text(text)
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        with ExitStack() as begun:
            try:
                begun.callback(self._end_daemons)
                self._start("munged", "munged", "--foreground", "--force", *(
                    f"--{name}={self.folder}/munge{end}"
                    for name, end in (("socket", ".socket"), ("key-file", ".key"),
                                      ("pid-file", "d.pid"), ("log-file", "d.log"),
                                      ("seed-file", "d.seed"))
                ))  # fmt: skip
                up = (self.folder / "munge.socket").exists
                wait_until(up, _UP_SECONDS, "The start of munged")
                self._start("slurmctld", "slurmctld", "-D", "-c")
                for node in self.nodes:
                    self.boot_node(node)
                wait_until(self._all_idle, _UP_SECONDS, "The start of all nodes")
                begun.callback(self._cancel_jobs)
                yield self
            except LabError as error:
                raise LabError(f"{error} Logs are in {self.folder}.") from error

    def run(self, *command: str) -> str:
        """Run one of SLURM's commands and return what it said."""
        return run_tool(command, environment=self.environment)

    def wait_for(self, job_ids: Sequence[str], seconds: float) -> list[JobEnd]:
        """Wait until jobs have ended and return how, in the order asked for."""
        wait_until(lambda: {*job_ids} <= {*self._ended()}, seconds, f"The end of jobs {job_ids}")
        ended = self._ended()
        return [ended[job_id] for job_id in job_ids]

    def _ended(self) -> dict[str, JobEnd]:
        """Return the jobs that have ended, by id; one that was requeued has not."""
        path = self.folder / "ended-jobs.txt"
        lines = path.read_text().splitlines() if path.exists() else ()
        jobs = [dict(re.findall(r"(\w+)=(\S*)", line)) for line in lines]
        fields = ("Name", "JobState", "NodeList", "StartTime", "EndTime")
        return {
            job["JobId"]: JobEnd(*(job[field] for field in fields))
            for job in jobs
            if job["JobState"] != "PENDING"
        }

    def crash_node(self, name: str) -> None:
        """Let a node lose its power: its daemon and everything of its jobs is killed at once."""
        self._kill(name)
        wanted = {"SLURM_CONF": str(self._configuration), "SLURMD_NODENAME": name}
        jobs = processes_that(lambda process: wanted.items() <= process.environ().items())
        # The parent of a job is the daemon's child no longer, and would tell of the job's end.
        steps = [step for job in jobs if (step := job.parent()) is not None and step not in jobs]
        for process in (*(step for step in steps if step.name() == "slurmstepd"), *jobs):
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def boot_node(self, name: str) -> None:
        """Start a node, or give a crashed one its power back."""
        self._start(name, "slurmd", "-D", "-N", name)

    def restart_controller(self) -> None:
        """Kill the controller and start it again; it finds its jobs in its state folder."""
        self._kill("slurmctld")
        self._start("slurmctld", "slurmctld", "-D")

    def answers(self) -> bool:
        """Tell whether the controller is there."""
        try:
            return "UP" in self.run("scontrol", "ping")
        except LabError:  # as it says while the controller is away
            return False

    def _start(self, name: str, *command: str) -> None:
        with (self.folder / f"{command[0]}.out").open("a") as log:
            self._daemons[name] = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", *command],
                env=self.environment, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def _kill(self, name: str) -> None:
        daemon = self._daemons.pop(name)
        daemon.kill()
        daemon.wait()

    def _end_daemons(self) -> None:
        while self._daemons:
            _, process = self._daemons.popitem()
            process.terminate()
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _all_idle(self) -> bool:
        if not self.answers():
            return False
        said = self.run("sinfo", "--noheader", "--format=%T %D")
        return said.split() == ["idle", str(len(self.nodes))]

    def _cancel_jobs(self) -> None:
        """End every job, so that no step outlives the daemon that would end it."""
        self.run("scancel", "--user=root", "--signal=KILL", "--full")
        self.run("scancel", "--user=root")
        wait_until(
            lambda: not self.run("squeue", "--noheader").strip(), _END_SECONDS, "The end of jobs"
        )


def _free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on now; the daemons take them within a second."""
    with ExitStack() as sockets:
        taken = [sockets.enter_context(socket.socket()) for _ in range(count)]
        for one in taken:
            one.bind((_HERE, 0))
        return [int(one.getsockname()[1]) for one in taken]
