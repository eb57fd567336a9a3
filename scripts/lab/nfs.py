"""A real NFS lab on one machine: `python scripts/lab/nfs.py --help`, or see docs/lab.md."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lab_kit import LabError, run_lab
from nfs_lab import LabOptions, NfsLab
from nfs_lab.lab import DEFAULT_FOLDER, NFS_LEASE_SECONDS
from nfs_lab.requirements import kernel_version
from nfs_lab.scenarios import ALL, SCENARIOS, Ground, set_clock, set_latency


def lab_options(options: argparse.Namespace) -> LabOptions:
    """Return what the lab shall look like."""
    return LabOptions(
        clients=options.clients,
        file_system=options.fs,
        mount_options=options.mount_options,
    )


@contextmanager
def build(options: argparse.Namespace) -> Iterator[tuple[str, Ground]]:
    """Have a lab for the length of a ``with`` block."""
    with NfsLab(options.folder).running(lab_options(options)) as lab:
        yield (
            f"Linux {kernel_version()} on every host, {options.clients} hosts and a server with "
            f"{options.fs}, mount options {options.mount_options or 'by default'}, server's lease "
            f"{NFS_LEASE_SECONDS} s",
            Ground(lab),
        )


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
    scenario = verbs.add_parser("scenario", help="run scenarios in a lab of their own")
    scenario.add_argument(
        "names", nargs="*", default=list(ALL), help=f"default: {', '.join(ALL)}; or `brief`"
    )
    for verb, clients in ((up, 2), (scenario, 3)):
        verb.add_argument("--clients", type=int, default=clients, help=f"hosts ({clients})")
        verb.add_argument("--fs", choices=("ext4", "xfs"), default="ext4", help="of the export")
        verb.add_argument("--mount-options", default="", help="for the hosts; default: none")
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
            lab.up(lab_options(options))
        elif options.verb == "down":
            lab.down()
        elif options.verb == "scenario":
            return run_lab(options, SCENARIOS, build)
        else:
            return run_on_host(options, lab)
    except LabError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
