"""The first process of a guest once it is set up: runs what is put into its mailbox.

It looks into the mailbox again and again: the folder belongs to another machine, whose changes
nothing announces. Should this program end, the kernel stops, which is what a lab wants.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

MAILBOX = Path("/mnt/lab")
_LOOK_SECONDS = 0.02


def start(order: Path) -> tuple[int, str]:
    """Start the command of an order; return its process id and the order's name."""
    wanted = json.loads(order.read_bytes())
    order.unlink()
    name = order.stem
    create = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    files = [
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(MAILBOX / f"{name}.out"), create, 0o644),
        (os.POSIX_SPAWN_OPEN, 2, str(MAILBOX / f"{name}.err"), create, 0o644),
    ]
    environment = dict(os.environ) | wanted["environment"]
    argv = wanted["argv"]
    return os.posix_spawnp(argv[0], argv, environment, file_actions=files, setsid=True), name


def tell(name: str, code: int) -> None:
    """Say how a command ended; the file appears complete."""
    aside = MAILBOX / f"{name}.coming"
    aside.write_text(str(code))
    aside.replace(MAILBOX / f"{name}.code")


def main() -> None:
    running: dict[int, str] = {}
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (MAILBOX / "up").touch()
    while True:
        for entry in sorted((MAILBOX / "inbox").iterdir()):
            try:
                pid, name = start(entry)
            except OSError as error:
                (MAILBOX / f"{entry.stem}.out").touch()
                (MAILBOX / f"{entry.stem}.err").write_text(f"{error}\n")
                tell(entry.stem, 127)
                continue
            running[pid] = name
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            pid = 0
        if pid == 0:
            # Commands come as files that another kernel makes: nothing notifies of them here.
            time.sleep(_LOOK_SECONDS)
        elif pid in running:  # others are orphans that came to the first process
            tell(running.pop(pid), os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
