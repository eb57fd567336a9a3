"""What SLURM's daemons are told of a cluster: the text of its ``slurm.conf``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Controller", "Node", "configuration"]

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
    """Where the controller runs.

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
        name: What SLURM calls it.
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
        controller: Where the controller runs.
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
