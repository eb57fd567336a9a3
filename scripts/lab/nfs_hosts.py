"""The NFS lab: several hosts with kernels of their own around one NFS server, on one machine.

    python scripts/lab/nfs_hosts.py --clients 2 --file-system xfs

A host is a User-Mode-Linux kernel: a process of this machine, with a page cache, a clock, a boot id
and an NFS client of its own. So a power loss is a SIGKILL, a frozen host is a SIGSTOP, and neither
can be told from the real thing by the other hosts. As a program it builds a lab and gives a Python
prompt; the lab ends with the prompt. `run.py nfs` runs scenarios.

A host's mailbox is a folder of this machine that the guest sees as well, under `MAILBOX`:

    up                  the guest made this when it was ready
    inbox/<id>.json     a command for the guest's agent; it takes the file away
    <id>.out, <id>.err  what the command wrote
    <id>.code           its exit code; appears, complete, when it ended
    events/             for programs that report, and wait, while they run
"""

from __future__ import annotations

import argparse
import code
import compileall
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from lab_kit import REPOSITORY, LabError, Network, demand, require, run_tool, wait_until

MOUNT = "/mnt/work"
"""The mount point of the share on every client; the server has it at `EXPORT`."""
EXPORT = "/mnt/disk/export"
SHARED = "/mnt/shared"
"""The mount point of the lab's folder ``shared`` in every guest, read-only."""
MAILBOX = "/mnt/lab"
INSIDE = Path(__file__).resolve().parent / "inside"
"""Programs that run in a guest; it sees this machine's folders, read-only."""

NFS_LEASE_SECONDS = 10
"""After so long without a word the server may give a client's locks away, and so long it waits for
its clients after a restart. A real server's default is 90."""

# A host tells by making files in its mailbox; times are measured by when they are seen.
LOOK_SECONDS = 0.01
_BOOT_SECONDS = 60.0
_COMMAND_SECONDS = 300.0
_SERVER_NUMBER, _FIRST_CLIENT_NUMBER = 20, 31
_SUBNET, _BRIDGE = "10.99.0", "bridge0"
_DISK_BYTES = 2 * 2**30  # only what is written takes room
_MEMORY_MB = 512  # of each host
_MODULES = Path("/usr/lib/uml/modules")  # Debian's folder, a folder a version of its kernel
_PACKAGES = {
    "linux.uml": "user-mode-linux",
    "mount.nfs4": "nfs-common",
    "rpc.nfsd": "nfs-kernel-server",
    "modprobe": "kmod",
    "ethtool": "ethtool",
    "ip": "iproute2",
    "mkfs.ext4": "e2fsprogs",
    "mkfs.xfs": "xfsprogs",
}


type Finished = subprocess.CompletedProcess[str]
"""A command that ended in a guest."""


class Command:
    """A command under way in a guest."""

    def __init__(self, guest: Guest, name: str) -> None:
        self.guest = guest
        self._files = guest.mailbox / name

    @property
    def ended(self) -> bool:
        """Whether it ended."""
        return self._files.with_suffix(".code").exists()

    def wait(self, seconds: float = _COMMAND_SECONDS) -> Finished:
        """Wait for the end."""
        self.guest.wait_until(lambda: self.ended, seconds, "The end of a command")
        code, out, err = (
            self._files.with_suffix(end).read_text(errors="replace")
            for end in (".code", ".out", ".err")
        )
        return subprocess.CompletedProcess(self._files.name, int(code), out, err)


class Guest:
    """One host.

    Args:
        lab: Its lab.
        name: Host name.
        number: Decides the address.
        settings: Variables for ``init.sh``.
        disk: A file that becomes its block device.
    """

    def __init__(
        self,
        lab: NfsLab,
        name: str,
        number: int,
        settings: Mapping[str, str],
        disk: Path | None = None,
    ) -> None:
        self.name = name
        self.address = f"{_SUBNET}.{number}"
        self.mailbox = lab.folder / "hosts" / name
        self._lab, self._number, self._settings, self._disk = lab, number, settings, disk
        self._process: subprocess.Popen[bytes] | None = None
        (self.mailbox / "events").mkdir(parents=True)
        self._tap = f"tap-{name}"
        network = lab.network
        run_tool(network.entered("ip", "tuntap", "add", self._tap, "mode", "tap"))
        # The guest's driver takes packets as they are: a checksum left to hardware is never made.
        run_tool(network.entered("ethtool", "-K", self._tap, "tx", "off"))
        network.ip("link", "set", self._tap, "master", _BRIDGE, "up")

    @property
    def is_on(self) -> bool:
        """Whether its process runs (or is frozen)."""
        return self._process is not None and self._process.poll() is None

    def start_kernel(self, **settings: str) -> None:
        """Start the kernel; see `boot`. Orders to an earlier boot go, its events stay."""
        demand(not self.is_on, f"{self.name} is on already.")
        shutil.rmtree(self.mailbox / "inbox", ignore_errors=True)
        (self.mailbox / "inbox").mkdir()
        (self.mailbox / "up").unlink(missing_ok=True)
        known = {"MAILBOX": self.mailbox, "HOST": self.name, "ADDRESS": self.address}
        known |= {**self._settings, **settings}
        command = self._lab.network.entered(
            # Its own process ids: when the first process goes, the kernel takes all the others.
            "unshare", "--pid", "--fork", "--kill-child", "--mount-proc",
            *self._lab.preload, "linux.uml",
            f"mem={_MEMORY_MB}M",
            "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro",
            f"init={INSIDE / 'init.sh'}",
            "con=null", "con0=null,fd:1", "quiet",
            f"umid={self.name}-{secrets.token_hex(3)}", f"uml_dir={self._lab.folder / 'ids'}",
            # The same hardware address at every boot, or its peers look in vain.
            f"eth0=tuntap,{self._tap},02:00:00:00:00:{self._number:02x}",
            *([] if self._disk is None else [f"ubd0={self._disk}"]),
            *(f"LAB_{name}={value}" for name, value in known.items()),
        )  # fmt: skip
        with (self.mailbox / "console.log").open("wb") as console:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                env=os.environ | {"PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"},
                start_new_session=True,  # Ctrl-C at the lab's terminal is not a power loss
            )

    def boot(self, **settings: str) -> None:
        """Start the kernel, and wait until the guest takes commands."""
        self.start_kernel(**settings)
        self.wait_until_up()

    def wait_until_up(self) -> None:
        """Wait until the guest takes commands; see `boot`."""
        try:
            self.wait_until((self.mailbox / "up").exists, _BOOT_SECONDS, "The start")
        except LabError as error:
            said = b""
            for log in ("console.log", "init.log"):
                with suppress(OSError):
                    said += (self.mailbox / log).read_bytes()[-400:]
            raise LabError(f"{error} It said: {said.decode(errors='replace').strip()}") from error

    def wait_until(self, ready: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait for what the host brings about."""

        def is_ready() -> bool:
            is_on = self.is_on  # before the look: it may have told, and lost its power then
            if ready():
                return True
            demand(is_on, f"{what} on {self.name} did not happen: the host is off.")
            return False

        wait_until(is_ready, seconds, f"{what} on {self.name}", look_seconds=LOOK_SECONDS)

    def power_off(self) -> None:
        """Take its power away: nothing is flushed, nobody is told. Harmless if it is off."""
        if self._process is not None:
            self._process.kill()  # `unshare --kill-child` and the pid namespace do the rest
            self._process.wait()

    def freeze(self) -> None:
        """Stop the host in its tracks: like a suspended machine, or a scheduler that forgot it."""
        self._signal_kernel(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen host go on; it does not know how long it was away, except by its clocks."""
        self._signal_kernel(signal.SIGCONT)

    def _signal_kernel(self, number: signal.Signals) -> None:
        demand(self.is_on, f"{self.name} is off.")
        assert self._process is not None
        # The kernel is the one child of `unshare`; the guest's own processes hang on it.
        (kernel,) = psutil.Process(self._process.pid).children()
        os.kill(kernel.pid, number)

    def set_clock(self, hours: float) -> None:
        """Set the clock so many hours before (negative) or after this machine's."""
        self.shell(f"date -s @{time.time() + hours * 3600:.3f}")

    def set_latency(self, milliseconds: float) -> None:
        """Delay every packet that the host sends; 0 takes the delay away."""
        self.shell("tc qdisc del dev eth0 root 2>/dev/null || true")
        if milliseconds:
            self.shell(f"tc qdisc add dev eth0 root netem delay {milliseconds}ms")

    def start(self, *command: object) -> Command:
        """Start a command in the guest and return at once; it runs beside others."""
        name = secrets.token_hex(4)
        order = {"argv": [str(word) for word in command], "environment": self._lab.environment}
        aside = self.mailbox / f"{name}.order"
        aside.write_text(json.dumps(order))
        aside.replace(self.mailbox / "inbox" / f"{name}.json")
        return Command(self, name)

    def run(self, *command: object) -> Finished:
        """Run a command in the guest to its end, whatever its exit code."""
        return self.start(*command).wait()

    def shell(self, script: str) -> str:
        """Run a line of shell in the guest and return what it wrote."""
        done = self.run("bash", "-c", script)
        said = (done.stderr or done.stdout).strip()
        demand(done.returncode == 0, f"`{script}` failed on {self.name}: {said}")
        return done.stdout


class NfsLab:
    """A server and its clients, ``host1``, ``host2`` and so on, from `running` to its end.

    Every process of the lab is in its namespace, and dies with the process that built the lab.

    Args:
        folder: Everything of the lab that is on disk; made if missing, kept at the end.
        clients: Hosts besides the server.
        file_system: The file system of the export: ``ext4``, or ``xfs``, which shares extents.
        mount_options: For ``mount -o`` on the clients; empty for the defaults.
    """

    server: Guest
    clients: list[Guest]

    def __init__(
        self,
        folder: Path,
        clients: int = 3,
        file_system: str = "ext4",
        mount_options: str = "",
    ) -> None:
        self.folder = folder.absolute()
        self.shared = self.folder / "shared"
        self.file_system, self.mount_options = file_system, mount_options
        self.network = Network()
        self.preload: list[str] = []
        self._number = clients

    @property
    def kernel(self) -> str:
        """The version of the guests' kernel."""
        found = sorted(path.parent.name for path in _MODULES.glob("*/modules.dep"))
        demand(bool(found), f"{_MODULES} holds no kernel's modules: reinstall user-mode-linux.")
        return found[-1]

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables with which a guest's Python finds leconvert."""
        known = {
            "PYTHONPATH": f"{SHARED}/src", "PYTHONDONTWRITEBYTECODE": "1", "HF_HUB_OFFLINE": "1"
        }  # fmt: skip
        return known | {k: v for k, v in os.environ.items() if k == "LD_LIBRARY_PATH"}

    @contextmanager
    def running(self) -> Iterator[NfsLab]:
        """Have the lab for the length of a ``with`` block; its clients have mounted the share."""
        require("The lab makes network namespaces and kernels", _PACKAGES)
        demand(
            Path("/dev/net/tun").exists(),
            "There is no /dev/net/tun: load the module `tun`, or give the container the device.",
        )
        # A copy: what somebody edits meanwhile does not mix with it. Guests cannot write there, and
        # compiling everything at each start takes seconds.
        shutil.copytree(REPOSITORY / "src", self.shared / "src")
        compileall.compile_dir(self.shared / "src", quiet=2)
        (self.folder / "ids").mkdir()
        self._let_run_on_wide_registers()
        disk = self.folder / "disk"
        with disk.open("wb") as file:
            file.truncate(_DISK_BYTES)
        run_tool([f"mkfs.{self.file_system}", "-q", str(disk)])
        try:
            self.network.create(_BRIDGE)
            self.network.ip("addr", "add", f"{_SUBNET}.254/24", "dev", _BRIDGE)
            about = {
                "SHARED": str(self.shared), "MODULES": str(_MODULES / self.kernel),
                "PYTHON": sys.executable, "AGENT": str(INSIDE / "agent.py"),
            }  # fmt: skip
            of_server = {**about, "ROLE": "server", "NFS_LEASE": str(NFS_LEASE_SECONDS)}
            self.server = Guest(self, "server", _SERVER_NUMBER, of_server, disk)
            self.server.boot(NEW_DISK="yes")
            about |= {"ROLE": "client", "SERVER": self.server.address}
            about["MOUNT_OPTIONS"] = self.mount_options
            self.clients = [
                Guest(self, f"host{n + 1}", _FIRST_CLIENT_NUMBER + n, about)
                for n in range(self._number)
            ]
            for guest in self.clients:
                guest.start_kernel()
            for guest in self.clients:
                guest.wait_until_up()
            yield self
        finally:
            self.network.remove()

    def _let_run_on_wide_registers(self) -> None:
        """Build the library that guests need on processors with AMX; see ``wide_registers.c``."""
        if "amx_tile" not in Path("/proc/cpuinfo").read_text().split():
            return
        require("The lab compiles a library", {"cc": "gcc libc6-dev"})
        library = self.folder / "wide_registers.so"
        source = INSIDE / "wide_registers.c"
        run_tool(["cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(source), "-ldl"])
        self.preload = ["env", f"LD_PRELOAD={library}"]


def main(arguments: Sequence[str]) -> int:
    """Build a lab and give a Python prompt."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--clients", type=int, default=2, help="hosts (2)")
    parser.add_argument("--file-system", choices=("ext4", "xfs"), default="ext4")
    parser.add_argument("--mount-options", default="", help="for the hosts; default: none")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="lab-", dir="/dev/shm") as folder:
        try:
            with NfsLab(Path(folder), **vars(options)).running() as lab:
                hosts = {guest.name: guest for guest in (lab.server, *lab.clients)}
                code.interact(f"{', '.join(hosts)}; the share is {MOUNT}", local=hosts)
        except LabError as error:
            print(error, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
