"""One host of the lab: a kernel as a process, and a mailbox to have commands run on it.

The mailbox is a folder of this machine that the guest sees as well:

    settings.sh         what the guest is: name, address, role
    up                  the guest made this when it was ready
    inbox/<id>.json     a command for the guest's agent; it takes the file away
    <id>.out, <id>.err  what the command wrote
    <id>.code           its exit code; appears, complete, when it ended
    events/             for programs that report, and wait, while they run
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from lab_kit import LabError, wait_until

from nfs_lab.network import Network
from nfs_lab.requirements import preload

MAILBOX = "/mnt/lab"
"""The path of a guest's own mailbox, as the guest sees it."""

INSIDE = Path(__file__).resolve().parent / "inside"
"""Programs that run in a guest; it sees this machine's folders, read-only."""

# A host tells by making files in its mailbox; times are measured by when they are seen.
LOOK_SECONDS = 0.01
_BOOT_SECONDS = 60.0
_COMMAND_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Finished:
    """A command that ended in a guest.

    Attributes:
        code: Its exit code; negative for a signal.
        out: Its stdout.
        err: Its stderr.
        seconds: From sending it to seeing that it ended, on this machine's clock.
    """

    code: int
    out: str
    err: str
    seconds: float


class GuestCommand:
    """A command under way in a guest.

    Attributes:
        events: Folder for what the command reports while it runs.
    """

    def __init__(self, guest: Guest, name: str) -> None:
        self._guest = guest
        self.name = name
        self.events = guest.mailbox / "events"
        self._began = time.monotonic()

    @property
    def ended(self) -> bool:
        """Whether it ended."""
        return (self._guest.mailbox / f"{self.name}.code").exists()

    def wait(self, seconds: float = _COMMAND_SECONDS) -> Finished:
        """Wait for the end.

        Raises:
            LabError: It does not end in time, or its host is off.
        """
        what = f"The end of a command on {self._guest.name}"
        wait_until(
            lambda: self.ended,
            seconds,
            what,
            alive=lambda: self._guest.is_on,
            look_seconds=LOOK_SECONDS,
        )
        mailbox = self._guest.mailbox
        return Finished(
            int((mailbox / f"{self.name}.code").read_text()),
            (mailbox / f"{self.name}.out").read_text(errors="replace"),
            (mailbox / f"{self.name}.err").read_text(errors="replace"),
            time.monotonic() - self._began,
        )


class Guest:
    """One host. Making the object starts nothing; its state is on disk and in its process.

    Args:
        folder: The lab's folder.
        network: The lab's network.
        name: Host name.
        number: Decides the address.
    """

    def __init__(self, folder: Path, network: Network, name: str, number: int) -> None:
        self.name = name
        self.address = network.address(number)
        self._number = number
        self.mailbox = folder / "hosts" / name
        self._folder = folder
        self._network = network
        self._process: subprocess.Popen[bytes] | None = None

    def boot(
        self, settings: Mapping[str, str], *, memory_mb: int, disk: Path | None = None
    ) -> None:
        """Start the kernel; see `wait_until_up`. Orders to an earlier boot go, its events stay.

        Args:
            settings: Shell variables for ``init.sh``.
            memory_mb: Its memory in MiB.
            disk: A file that becomes its block device.

        Raises:
            LabError: It is on already.
        """
        if self.is_on:
            raise LabError(f"{self.name} is on already.")
        shutil.rmtree(self.mailbox / "inbox", ignore_errors=True)
        (self.mailbox / "up").unlink(missing_ok=True)
        for folder in (self.mailbox / "inbox", self.mailbox / "events", self._folder / "ids"):
            folder.mkdir(parents=True, exist_ok=True)
        known = {"LAB_HOST": self.name, "LAB_ADDRESS": self.address, **settings}
        lines = [f"{name}={shlex.quote(value)}\n" for name, value in known.items()]
        (self.mailbox / "settings.sh").write_text("".join(lines))
        self._network.add_tap(self.name)
        command = [
            *self._network.enter(),
            # Its own process ids: when the first process goes, the kernel takes all the others.
            "unshare", "--pid", "--fork", "--kill-child", "--mount-proc",
            *preload(self._folder), "linux.uml",
            f"mem={memory_mb}M",
            "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro",
            f"init={INSIDE / 'init.sh'}",
            "con=null", "con0=null,fd:1", "quiet",
            f"umid={self.name}-{secrets.token_hex(3)}",
            f"uml_dir={self._folder / 'ids'}",
            f"eth0=tuntap,{self._network.tap(self.name)},{self._network.hardware_address(self._number)}",
            f"LAB_MAILBOX={self.mailbox}",
        ]  # fmt: skip
        if disk is not None:
            command.append(f"ubd0={disk}")
        with (self.mailbox / "console.log").open("wb") as console:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C at the lab's terminal is not a power loss
            )
        created = psutil.Process(self._process.pid).create_time()
        self._record.write_text(json.dumps({"pid": self._process.pid, "created": created}))

    def wait_until_up(self) -> None:
        """Wait until the guest takes commands.

        Raises:
            LabError: It does not come up; the message ends with what its console said last.
        """
        try:
            wait_until(
                (self.mailbox / "up").exists,
                _BOOT_SECONDS,
                f"The start of {self.name}",
                alive=lambda: self.is_on,
                look_seconds=LOOK_SECONDS,
            )
        except LabError as error:
            said = b""
            for log in ("console.log", "init.log"):
                with suppress(OSError):
                    said += (self.mailbox / log).read_bytes()[-400:]
            raise LabError(f"{error} It said: {said.decode(errors='replace').strip()}") from error

    @property
    def is_on(self) -> bool:
        """Whether its process runs (or is frozen)."""
        return self._kernel() is not None

    def power_off(self) -> None:
        """Take its power away: nothing is flushed, nobody is told. Harmless if it is off."""
        process = self._kernel()
        if process is not None:
            process.kill()  # by id; `unshare --kill-child` and the pid namespace do the rest
        if self._process is not None:
            self._process.wait()
        wait_until(lambda: not self.is_on, 10, f"The end of {self.name}", look_seconds=LOOK_SECONDS)
        self._record.unlink(missing_ok=True)

    def freeze(self) -> None:
        """Stop the host in its tracks: like a suspended machine, or a scheduler that forgot it."""
        self._signal_kernel(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen host go on; it does not know how long it was away, except by its clocks."""
        self._signal_kernel(signal.SIGCONT)

    def start(
        self, command: Sequence[str], *, environment: Mapping[str, str] | None = None
    ) -> GuestCommand:
        """Start a command in the guest and return at once; it runs beside others."""
        name = secrets.token_hex(4)
        order = {"argv": list(command), "environment": dict(environment or {})}
        path = self.mailbox / "inbox" / f"{name}.json"
        aside = self.mailbox / f"{name}.order"
        aside.write_text(json.dumps(order))
        started = GuestCommand(self, name)
        aside.replace(path)
        return started

    def run(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        seconds: float = _COMMAND_SECONDS,
    ) -> Finished:
        """Run a command in the guest to its end, whatever its exit code.

        Raises:
            LabError: It does not end in time, or the host is off.
        """
        return self.start(command, environment=environment).wait(seconds)

    def shell(self, script: str) -> str:
        """Run a line of shell in the guest and return what it wrote.

        Raises:
            LabError: It fails.
        """
        done = self.run(["bash", "-c", script])
        if done.code:
            raise LabError(f"`{script}` failed on {self.name}: {(done.err or done.out).strip()}")
        return done.out

    @property
    def _record(self) -> Path:
        return self._folder / "hosts" / f"{self.name}.json"

    def _kernel(self) -> psutil.Process | None:
        # The start time tells our process from a later one that got the same id.
        try:
            record = json.loads(self._record.read_bytes())
            process = psutil.Process(record["pid"])
            same = abs(process.create_time() - record["created"]) < 1
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        except (OSError, ValueError, psutil.NoSuchProcess):
            return None

    def _signal_kernel(self, number: signal.Signals) -> None:
        process = self._kernel()
        children = process.children() if process is not None else []
        if not children:
            raise LabError(f"{self.name} is off.")
        # The kernel is the one child of `unshare`; the guest's own processes hang on it.
        os.kill(children[0].pid, number)
