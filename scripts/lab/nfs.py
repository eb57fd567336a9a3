"""An NFS lab by hand: `python scripts/lab/nfs.py --help`, or see docs/lab.md.

`run.py nfs` runs its scenarios.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from lab_kit import LabError
from nfs_lab import LabOptions, NfsLab
from nfs_lab.lab import DEFAULT_FOLDER
from nfs_lab.scenarios import set_clock, set_latency


def run_on_host(options: argparse.Namespace, lab: NfsLab) -> int:
    """Do one thing to one host of a lab that is up."""
    guest = lab.host(options.host)
    match options.verb:
        case "exec":
            done = guest.run(options.command, environment=lab.environment())
            sys.stdout.write(done.out)
            sys.stderr.write(done.err)
            return done.code if done.code >= 0 else 128 - done.code
        case "kill":
            guest.power_off()
        case "boot":
            lab.boot(guest.name)
        case "freeze":
            guest.freeze()
        case "thaw":
            guest.thaw()
        case "latency":
            set_latency(guest, options.milliseconds)
        case "clock":
            set_clock(guest, options.hours)
    return 0


def parser() -> argparse.ArgumentParser:
    """Declare the verbs."""
    top = argparse.ArgumentParser(description=__doc__)
    top.add_argument("--folder", type=Path, default=DEFAULT_FOLDER, help="the lab's own folder")
    verbs = top.add_subparsers(dest="verb", required=True)
    up = verbs.add_parser("up", help="build a lab: a server and hosts that mount its disk")
    up.add_argument("--clients", type=int, default=2, help="hosts (2)")
    up.add_argument("--fs", choices=("ext4", "xfs"), default="ext4", help="of the export")
    up.add_argument("--mount-options", default="", help="for the hosts; default: none")
    verbs.add_parser("down", help="end a lab, whatever state it is in")
    for name, what in (
        ("exec", "run a command on a host; the share is /mnt/work there"),
        ("kill", "take a host's power away"),
        ("boot", "give it back"),
        ("freeze", "stop a host in its tracks"),
        ("thaw", "let it go on"),
        ("latency", "delay what a host sends"),
        ("clock", "set a host's clock off this machine's"),
    ):
        verb = verbs.add_parser(name, help=what)
        verb.add_argument("host", help="server, host1, host2, …")
        if name == "exec":
            verb.add_argument("command", nargs=argparse.REMAINDER)
        elif name == "latency":
            verb.add_argument("milliseconds", type=float)
        elif name == "clock":
            verb.add_argument("hours", type=float)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    lab = NfsLab(options.folder)
    try:
        if options.verb == "up":
            lab.up(LabOptions(options.clients, options.fs, options.mount_options))
        elif options.verb == "down":
            lab.down()
        else:
            return run_on_host(options, lab)
    except LabError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
