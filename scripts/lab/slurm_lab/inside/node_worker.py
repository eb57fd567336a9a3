"""`leconvert` as SLURM starts it on a host of the NFS lab: observed, and halted where the lab asks.

    node_worker.py work WORK_DIR …

While the host's mailbox holds the file ``events/halt``, whose text is a place such as
``leconvert.run.worker:ShardWriter.write#1``, each new process halts there; see
``observed_leconvert``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

EVENTS = Path("/mnt/lab/events")
OBSERVED = Path(__file__).resolve().parents[2] / "nfs_lab" / "inside" / "observed_leconvert.py"


def main() -> None:
    verb, work_dir = sys.argv[1:3]
    conversion = Path(work_dir).parent.name
    name = f"{conversion}-{verb}-{os.environ['SLURM_JOB_ID']}-{os.getpid()}"
    command = [sys.executable, str(OBSERVED), "--events", str(EVENTS), "--name", name]
    halt = EVENTS / "halt"
    if halt.name in os.listdir(EVENTS):  # noqa: PTH208 - the file is made outside this kernel
        command += ["--halt", halt.read_text()]
    os.execv(command[0], [*command, "--", *sys.argv[1:]])


if __name__ == "__main__":
    main()
