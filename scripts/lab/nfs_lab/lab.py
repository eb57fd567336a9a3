"""One lab: a server and its clients, from `up` to `down`."""

from __future__ import annotations

import compileall
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from lab_kit import LabError, run_tool

from nfs_lab.guest import INSIDE, Guest
from nfs_lab.network import Network
from nfs_lab.requirements import MODULES, kernel_version, prepare, require

DEFAULT_FOLDER = Path("/dev/shm/leconvert-nfs-lab")
"""Memory, so that the server's disk is not this machine's, which others use too."""

MOUNT = "/mnt/work"
"""The mount point of the share on every client."""

SHARED = "/mnt/shared"
"""The mount point of the lab's folder ``shared`` in every guest, read-only."""

_SERVER = "server"
_SERVER_NUMBER = 20
_FIRST_CLIENT_NUMBER = 30
_FORMAT = "leconvert-nfs-lab"
_LIBRARY_PATH = "LD_LIBRARY_PATH"


NFS_LEASE_SECONDS = 10
"""After so long without a word the server may give a client's locks away, and so long it waits for
its clients after a restart. A real server's default is 90."""


@dataclass(frozen=True, slots=True)
class LabOptions:
    """The options of a lab.

    Attributes:
        clients: Hosts besides the server.
        file_system: The file system of the export: ``ext4``, or ``xfs``, which shares extents.
        mount_options: For ``mount -o`` on the clients; empty for the defaults.
        disk_mb: The server's disk, in MiB; only what is written takes room.
        memory_mb: Memory of each host in MiB.
    """

    clients: int = 2
    file_system: str = "ext4"
    mount_options: str = ""
    disk_mb: int = 2048
    memory_mb: int = 512


class NfsLab:
    """A server and its clients.

    `up` builds it, `down` takes away all of it, and works from any state and from another process:
    nothing is known only to the process that built the lab.

    Args:
        folder: Everything of the lab that is on disk; must not exist, or be a lab's.
    """

    def __init__(self, folder: Path = DEFAULT_FOLDER) -> None:
        self.folder = folder.absolute()
        token = hashlib.blake2b(str(self.folder).encode(), digest_size=4).hexdigest()
        self.network = Network(f"nfs-lab-{token}")
        self.shared = self.folder / "shared"

    @property
    def options(self) -> LabOptions:
        """How this lab was built.

        Raises:
            LabError: It was not.
        """
        try:
            record = json.loads(self._record.read_bytes())
        except (OSError, ValueError) as error:
            raise LabError(f"There is no lab in {self.folder}; `up` builds one.") from error
        if record.get("format") != _FORMAT:
            raise LabError(f"{self.folder} is not a lab's folder.")
        return LabOptions(**record["options"])

    @property
    def server(self) -> Guest:
        """The host with the disk."""
        return Guest(self.folder, self.network, _SERVER, _SERVER_NUMBER)

    @property
    def clients(self) -> list[Guest]:
        """The hosts that mount it: ``host1``, ``host2`` and so on."""
        return [self._client(number) for number in range(1, self.options.clients + 1)]

    def host(self, name: str) -> Guest:
        """Return a host by name.

        Raises:
            LabError: There is none of that name.
        """
        hosts = {guest.name: guest for guest in (self.server, *self.clients)}
        if name not in hosts:
            raise LabError(f"There is no host {name}; there are {', '.join(hosts)}.")
        return hosts[name]

    def up(self, options: LabOptions) -> None:
        """Build the lab and wait until every client has mounted the share.

        Raises:
            LabError: There is a lab already, or it cannot be built; what was built is then gone.
        """
        require(options.file_system)
        if self._record.exists() or self.network.exists:
            raise LabError(f"There is a lab in {self.folder} already; `down` ends it.")
        if self.folder.exists() and any(self.folder.iterdir()):
            raise LabError(f"{self.folder} is not empty and not a lab's; choose another folder.")
        try:
            self.shared.mkdir(parents=True)
            self._record.write_text(json.dumps({"format": _FORMAT, "options": asdict(options)}))
            prepare(self.folder)
            self._make_disk(options)
            self.network.create()
            self.boot_server(new_disk=True)
            for guest in self.clients:
                self._boot_client(guest, options)
            for guest in self.clients:
                guest.wait_until_up()
        except BaseException:
            self.down()
            raise

    def down(self) -> None:
        """End every process of the lab by its id and remove what it made; harmless to repeat.

        Raises:
            LabError: The folder holds something that is not a lab.
        """
        # A kernel whose builder was killed at once may not have entered the namespace yet.
        argument = self._kernel_argument
        for process in psutil.process_iter(["cmdline"]):
            if argument in (process.info["cmdline"] or []):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        self.network.remove()
        if not self.folder.exists():
            return
        if any(self.folder.iterdir()):
            _ = self.options  # refuses what is not a lab's
        shutil.rmtree(self.folder)

    @contextmanager
    def running(self, options: LabOptions) -> Iterator[NfsLab]:
        """Have a lab for the length of a ``with`` block; one that was left behind goes first."""
        require(options.file_system)
        self.down()
        self.up(options)
        try:
            yield self
        finally:
            self.down()

    def boot_server(self, *, new_disk: bool = False) -> Guest:
        """Start the server, for the first time or again on the same disk, and wait for it."""
        options, guest = self.options, self.server
        settings = {
            "LAB_ROLE": "server",
            "LAB_NFS_LEASE": str(NFS_LEASE_SECONDS),
            "LAB_NEW_DISK": "yes" if new_disk else "",
        }
        guest.boot(
            {**self._settings(), **settings}, memory_mb=options.memory_mb, disk=self.folder / "disk"
        )
        guest.wait_until_up()
        return guest

    def boot(self, name: str) -> Guest:
        """Start a client again after its power was gone, and wait for it."""
        guest = self.host(name)
        if guest.name == _SERVER:
            return self.boot_server()
        self._boot_client(guest, self.options)
        guest.wait_until_up()
        return guest

    def environment(self) -> dict[str, str]:
        """Return the variables with which a guest's Python finds leconvert.

        It is a copy, taken at the first call: what somebody edits meanwhile does not mix with it.
        """
        copy = self.shared / "src"
        if not copy.exists():
            shutil.copytree(INSIDE.parents[3] / "src", copy)
            # Guests cannot write there, and compiling everything at each start takes seconds.
            compileall.compile_dir(copy, quiet=2)
        known = {
            "PYTHONPATH": f"{SHARED}/src",
            "PYTHONDONTWRITEBYTECODE": "1",
            "HF_HUB_OFFLINE": "1",
        }
        if _LIBRARY_PATH in os.environ:
            known[_LIBRARY_PATH] = os.environ[_LIBRARY_PATH]
        return known

    def python(self, program: Path | str, *arguments: object) -> list[str]:
        """Return the command of a Python program that lies on this machine."""
        return [sys.executable, str(program), *map(str, arguments)]

    @property
    def _kernel_argument(self) -> str:
        return f"uml_dir={self.folder / 'ids'}"  # see `Guest.boot`

    @property
    def _record(self) -> Path:
        return self.folder / "lab.json"

    def _client(self, number: int) -> Guest:
        return Guest(self.folder, self.network, f"host{number}", _FIRST_CLIENT_NUMBER + number)

    def _settings(self) -> Mapping[str, str]:
        return {
            "LAB_SHARED": str(self.shared),
            "LAB_MODULES": str(MODULES / kernel_version()),
            "LAB_PYTHON": sys.executable,
            "LAB_AGENT": str(INSIDE / "agent.py"),
        }

    def _boot_client(self, guest: Guest, options: LabOptions) -> None:
        settings = {
            "LAB_ROLE": "client",
            "LAB_SERVER": self.server.address,
            "LAB_MOUNT_OPTIONS": options.mount_options,
        }
        guest.boot({**self._settings(), **settings}, memory_mb=options.memory_mb)

    def _make_disk(self, options: LabOptions) -> None:
        disk = self.folder / "disk"
        with disk.open("wb") as file:
            file.truncate(options.disk_mb * 2**20)
        command = ["mkfs." + options.file_system, "-q", str(disk)]
        run_tool(command, otherwise=f"{disk} cannot be formatted")
