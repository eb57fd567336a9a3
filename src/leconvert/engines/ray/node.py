"""What a Ray task does on a node: one worker, as a process of its own.

Ray is sent this function as it stands here, so that nodes need no matching version of this module:
all it uses is imported inside it. The worker is a child of Ray's process, not that process itself:
its signals, its memory and its log are then its own, and what kills it does not look like a crash
of Ray's.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["work_on_this_node"]


def work_on_this_node(
    program: Sequence[str], arguments: Sequence[str], log: str, grace_seconds: float
) -> tuple[str, int | None, str]:
    """Run a worker to its end; when Ray cancels the task, ask it to hand back first.

    Returns:
        The host's name; the worker's exit code, None if none could be started; and then why.
    """
    import importlib.util
    import os
    import signal
    import socket
    import subprocess
    import sys
    import time

    host = socket.gethostname()
    if importlib.util.find_spec("leconvert") is None:
        return host, None, f"leconvert is not installed on {host} (--ray-ship-package sends it)"
    folder = os.path.dirname(log)  # noqa: PTH120 - imported here as everything is
    try:
        output = open(log, "ab")  # noqa: SIM115, PTH123 - closed below
    except OSError as error:
        return host, None, f"{host} cannot write to {folder}: {error.strerror}"
    with output:
        worker = subprocess.Popen(
            [sys.executable, *program, str(os.getpid()), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    asked_at = None
    # Ray cancels a task as by Ctrl-C, which Python ignores where Ray itself was started with SIGINT
    # ignored: shells do so to whatever they start in the background.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Ray interrupts the main thread between two lines of Python, so no call may take long. It does
    # so again and again if it is asked to.
    while True:
        try:
            code = worker.poll()
            if code is not None:
                return host, code, ""
            if asked_at is not None and time.monotonic() - asked_at > grace_seconds:
                worker.kill()
            time.sleep(0.1)
        except KeyboardInterrupt:
            asked_at = time.monotonic() if asked_at is None else asked_at
            worker.send_signal(signal.SIGTERM)
