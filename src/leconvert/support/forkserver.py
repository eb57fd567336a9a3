"""Further Python processes: forked from a process with the needed imports, or started from scratch.

A process that is started from scratch spends a quarter of a second of a core on importing NumPy,
Arrow and this package; a fork spends a hundredth. A program calls `serve_forks` early, while it has
a single thread. The process that this leaves behind, the *server*, only forks on request. So it
never has a second thread, whose locks a fork would find held. A program that uses leconvert as a
library has no server, and processes are started from scratch.

Either way they run ``python -P -m MODULE`` with only the given standard files, in a session of
their own. Not guaranteed: that they see changes of the environment or of the current folder after
`serve_forks`.

**Ends.** The server ends with the program, however the program ends, since its socket is closed.
The processes that it started do not end with it; they end when their input ends, or when they are
done. A pipe, which the process and the server hold, reports the end of a process: it gives the
status, or nothing if both were killed.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import traceback
import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import NoReturn

from leconvert.support.machine import has_one_thread, open_descriptors

type PythonProcess = ForkedProcess | subprocess.Popen[bytes]

_STANDARD = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))
_NUMBER = struct.Struct("q")
_MOST_REQUEST_BYTES = 128 * 1024
_UNKNOWN_CODE = 255


def start_python(
    module: str, arguments: Sequence[str], files: tuple[int, int, int]
) -> PythonProcess:
    """Start ``python -P -m MODULE ARGUMENTS``, by a fork if there is a server.

    Args:
        module: The module.
        arguments: Its arguments.
        files: Descriptors of its standard input, output and error output; they stay open here.

    Raises:
        OSError: No process can be started.
    """
    if _server is not None:
        with suppress(ConnectionError, EOFError):  # the server was killed
            return _server.start([module, *arguments], files)
    stdin, stdout, stderr = files
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module, *arguments],
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,  # Ctrl-C is for the parent
    )


class ForkedProcess:
    """A process that the server started, with the used part of `subprocess.Popen`'s interface."""

    def __init__(self, pid: int, told: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._told = told

    def poll(self) -> int | None:
        """Return its exit code if it has ended; a signal that killed it as a negative number."""
        return self._ended_within(0)

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit code once it has ended.

        Raises:
            subprocess.TimeoutExpired: It has not ended after ``timeout`` seconds.
        """
        code = self._ended_within(timeout)
        if code is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired([sys.executable], timeout)
        return code

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it ended at this moment
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it by SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _ended_within(self, seconds: float | None) -> int | None:
        if self.returncode is None:
            ready = select.poll()
            ready.register(self._told, select.POLLIN)
            if ready.poll(None if seconds is None else seconds * 1000):
                said = os.read(self._told, _NUMBER.size)
                os.close(self._told)
                self.returncode = (
                    os.waitstatus_to_exitcode(_NUMBER.unpack(said)[0]) if said else _UNKNOWN_CODE
                )
        return self.returncode


class _Server:
    """The server, as the program sees it; `_serve` is the server's own code."""

    def __init__(self, pid: int, requests: socket.socket) -> None:
        self._pid = pid
        self._requests = requests
        self._is_used = False

    def start(self, words: Sequence[str], files: tuple[int, int, int]) -> ForkedProcess:
        """Have a process started.

        Each answer comes through the pipe of its own process. So threads may make requests at the
        same time, and an interrupt leaves no answer that another request would take for its own.
        """
        told, tells = os.pipe()
        try:
            try:
                self._is_used = True
                socket.send_fds(self._requests, [json.dumps(words).encode()], [*files, tells])
            finally:
                os.close(tells)
            said = os.read(told, _NUMBER.size)
            if not said:
                raise EOFError("the server ended")
            (pid,) = _NUMBER.unpack(said)
            if pid < 0:
                raise OSError(-pid, os.strerror(-pid))
            return ForkedProcess(pid, told)
        except BaseException:
            os.close(told)
            raise

    def end(self) -> None:
        """End the server; processes that it started go on.

        A server that started any process is waited for, so that its resource usage counts as this
        process's.
        """
        self._requests.close()
        if self._is_used:
            with suppress(ChildProcessError):
                os.waitpid(self._pid, 0)


_server: _Server | None = None


def serve_forks(modules: Iterable[str]) -> None:
    """Import modules, and leave a server behind that forks processes from now on.

    If this process already has further threads, the modules are only imported.
    """
    global _server  # noqa: PLW0603 - a process has one
    for module in modules:
        import_module(module)
    if _server is not None or not has_one_thread():
        return
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # otherwise both processes would write the buffered text
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        pid = os.fork()
    except OSError:  # no memory for it; starting processes from scratch may fail in the same way
        ours.close()
        theirs.close()
        return
    if pid == 0:
        try:
            ours.close()
            _serve(theirs)
        finally:
            os._exit(1)
    theirs.close()
    _server = _Server(pid, ours)


def serves_forks() -> bool:
    """Return whether there is a server: a process is cheap then."""
    return _server is not None


def end_server() -> None:
    """End the server, if there is one."""
    global _server  # noqa: PLW0603
    if _server is not None:
        _server.end()
        _server = None


def _serve(requests: socket.socket) -> NoReturn:
    """Fork on request, and report the end of each process, until the program ends."""
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(len(_STANDARD)):
        os.dup2(nowhere, descriptor)
    _close_all_but(requests.fileno())
    # A process that ends wakes the server through this pipe; the signal handler itself does
    # nothing.
    woken, wakes = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wakes, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes)
    gc.freeze()  # pages that are not written stay shared
    events = select.poll()
    events.register(requests, select.POLLIN)
    events.register(woken, select.POLLIN)
    told: dict[int, int] = {}
    while True:
        ready = dict(events.poll())
        if woken in ready:
            os.read(woken, 4096)
            _tell_ends(told)
        if requests.fileno() not in ready:
            continue
        said, files, _, _ = socket.recv_fds(requests, _MOST_REQUEST_BYTES, len(_STANDARD) + 1)
        if not said:
            os._exit(0)
        *standard, tells = files
        try:
            pid = os.fork()
        except OSError as error:
            pid = -(error.errno or 1)
        if pid == 0:
            requests.detach()
            _become(json.loads(said), standard, tells)
        with suppress(BrokenPipeError):
            os.write(tells, _NUMBER.pack(pid))
        if pid > 0:
            told[pid] = tells
        for descriptor in standard if pid > 0 else files:
            os.close(descriptor)


def _tell_ends(told: dict[int, int]) -> None:
    """Collect all processes that have ended, and report their status."""
    while told:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        tells = told.pop(pid)
        with suppress(BrokenPipeError):
            os.write(tells, _NUMBER.pack(status))
        os.close(tells)


def _become(words: Sequence[str], standard: Sequence[int], tells: int) -> NoReturn:
    """Run a module as the program of this process, which was just forked."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        for descriptor, given in enumerate(standard):
            os.dup2(given, descriptor)
        os.set_inheritable(tells, False)
        _close_all_but(tells)
        for descriptor, (name, mode) in enumerate(_STANDARD):
            lines = 1 if name == "stderr" else -1
            setattr(sys, name, os.fdopen(descriptor, mode, lines, closefd=False))
        module, *arguments = words
        sys.argv = [module, *arguments]
        # The module is already imported, so it exists twice: as itself and as the main program.
        warnings.filterwarnings("ignore", category=RuntimeWarning, module="runpy")
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - as Python's own end
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def _close_all_but(kept: int) -> None:
    for descriptor in open_descriptors():
        if descriptor >= len(_STANDARD) and descriptor != kept:
            with suppress(OSError):  # the descriptor of the listing itself is already closed
                os.close(descriptor)
