"""The entry point: finds the command, and turns errors into sentences and exit codes."""

from __future__ import annotations

import _thread
import argparse
import gc
import io
import json
import os
import shlex
import signal
import sys
import threading
from collections.abc import Buffer, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from leconvert._version import __version__
from leconvert.cli.output import print_findings, print_sentence
from leconvert.cli.parser import Parser, examples_text, nearest
from leconvert.support.errors import (
    REPORT_IT,
    FindingsError,
    InstallationError,
    InterruptedRunError,
    LeconvertError,
    UsageError,
)
from leconvert.support.extras import missing_package
from leconvert.support.storage_errors import machine_limits, storage_error, undecodable_path
from leconvert.support.text import record_without_credentials, without_credentials

# Every command of the program, and its parser.


# Their places, by what people come for; `commands.txt` says what each does.
COMMANDS: Mapping[str | None, str] = {
    "convert and edit": (
        "convert convert:merge convert:split convert:trim convert:repair fleet upkeep:undo "
        "upkeep:clean"
    ),
    "on many hosts": "work:plan work work:submit work:pack status upkeep:release",
    "check, compare, publish and load": "verify:check verify status:report push probe",
    "first steps and help": "demo explain doctor main:completion",
    # Not listed: `doctor DIR` and `push RESULT URL` are the same.
    None: "doctor:check_fs push:mirror",
}
# Commands that start workers, and the modules that these import.
_FORKED_MODULES = dict.fromkeys(
    ("convert", "merge", "split", "trim"), ("leconvert.api", "leconvert.cli.work")
) | {"fleet": ("leconvert.fleet", "leconvert.cli.work")}
_MORE_HELP = """
`leconvert help COMMAND` lists options, `leconvert explain --help` exit codes.
"""


def build_parser() -> Parser:
    """Return the parser of the whole program.

    The options of a command are declared when it parses. ``declared()`` declares them all.
    """
    parser = Parser(
        prog="leconvert",
        description=("Convert LeRobot datasets or parts of them: v2.x to v3.0, v3.0 to v2.1."),
        epilog=examples_text("leconvert") + _MORE_HELP,
    )
    parser.add_argument("--version", action="version", version=f"leconvert {__version__}")
    parser.add_commands("command", COMMANDS)
    parser.advice = lambda words: _meant(words, parser.commands)
    return parser


def _meant(words: Sequence[str], commands: Collection[str]) -> str | None:
    """Return commands for a line that begins with a dataset; None for any other mistake."""
    first, *others = words or [""]
    if first.startswith("-") or first in commands or nearest(first, [*commands]):
        return None
    if not (os.path.lexists(first) or "/" in first):
        return None
    if others:
        return f"Put a command first, such as `{shlex.join(['leconvert', 'convert', *words])}`."
    return (
        f"Put a command first: `leconvert check {shlex.quote(first)}` lists what is wrong with a "
        f"dataset, `leconvert convert {shlex.quote(first)}` converts it."
    )


# Messages of a failed program. Printing them never fails.


def prepare_output() -> None:
    """Let no output fail: not for names of any bytes, a terminal without UTF-8, or a closed pipe.

    stdout has results: a reader that cannot get them must learn it. stderr has only progress: a run
    goes on even if nobody can read it.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # the caller closed it
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
            if name == "stderr":
                sys.stderr = _heard_or_not(stream)


def _heard_or_not(stream: io.TextIOWrapper) -> io.TextIOWrapper:
    """Return a stream to the same place whose writes never fail."""
    return io.TextIOWrapper(
        io.BufferedWriter(_Unfailing(stream.fileno())),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=True,
    )


class _Unfailing(io.RawIOBase):
    """A descriptor that accepts all writes, and drops those that the system refuses."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer) -> int:
        try:
            return os.write(self._descriptor, data)
        except OSError:  # a pipe without a reader, a full disk, a closed terminal
            return memoryview(data).nbytes


def fail(error: LeconvertError, *, as_json: bool) -> int:
    """Print an error on stderr, with ``--json`` a record on stdout; return the exit code.

    A URL from the user may contain a password, and both streams end up in logs.
    """
    if as_json:
        with suppress(OSError):  # the error itself is what counts, and stderr tells it
            print(json.dumps(record_without_credentials(error.as_record()), indent=2))
    print_sentence(f"leconvert: {without_credentials(error.message)}", margin="  ")
    if isinstance(error, FindingsError):
        from leconvert.model.values import Finding

        # A remedy names no dataset if there are several.
        root = error.path if error.path and error.path in error.message else "DATASET"
        print_findings([Finding.from_record(finding) for finding in error.findings], root)
    for line in error.details:
        print_sentence(f"  {without_credentials(line)}", margin="    ")
    if error.next_step:
        print_sentence(f"  → {without_credentials(error.next_step)}", margin="    ")
    elif not isinstance(error, UsageError):
        step = f"`leconvert explain {shlex.quote(str(error.exit_code))}` says what to do."
        print_sentence(f"  → {step}", margin="    ")
    return error.exit_code


# Run a command.


def main(argv: Sequence[str] | None = None, *, forks: bool = False) -> int:
    """Run one command.

    Args:
        forks: Whether this process is the program's own, so that workers may be forked from it.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    # The words after `--` belong to another program.
    ours = given.index("--") if "--" in given else len(given)
    arguments = [*map(with_hyphens, given[:ours]), *given[ours:]]
    as_json = "--json" in arguments
    try:
        options = _parsed(arguments)
        code = 0
        if options is not None:
            options.command_line = ["leconvert", *given]
            if forks and options.command in _FORKED_MODULES:
                from leconvert.support.forkserver import serve_forks

                serve_forks(_FORKED_MODULES[options.command])
            with machine_limits():
                code = options.run(options)
        sys.stdout.flush()
    except LeconvertError as error:
        return fail(error, as_json=as_json)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            # The reader of our output ended. A flush at exit would complain again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 141
        return fail(storage_error(error), as_json=as_json)
    except UnicodeEncodeError as error:
        return fail(undecodable_path(error), as_json=as_json)
    except KeyboardInterrupt:
        again = "Run the same command again to continue."
        return fail(InterruptedRunError("interrupted", next_step=again), as_json=as_json)
    except ImportError as error:
        return fail(
            InstallationError(
                f"A Python package cannot be imported: {error}.",
                next_step="`leconvert doctor` lists what is installed and what is missing.",
            ),
            as_json=as_json,
        )
    except Exception:  # noqa: BLE001 - whatever is left is a bug, and its code says so
        import traceback  # no other command pays for this import

        traceback.print_exc()
        print("leconvert: This is a bug.", file=sys.stderr)
        print_sentence(f"  → {REPORT_IT}.", margin="    ")
        return LeconvertError.exit_code
    return code


def program() -> NoReturn:
    """Run as a program: like `main`, then end at once.

    Unloading NumPy and Arrow takes 30 ms, a tenth of a small conversion. The system frees the
    memory anyway, and nothing of ours waits for the interpreter's end.
    """
    # Python's own helper processes, such as those of torch's DataLoader, would otherwise look for
    # modules in the current folder, which may contain anything.
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    # NumPy would start a spinning thread for each core to multiply matrices: a tenth of a second of
    # CPU time. Only the training of a probe multiplies matrices.
    if "probe" not in sys.argv:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        # Arrow would start a thread for an allocator that it does not use. A process can be forked
        # only if it has a single thread.
        os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
        # Parsed JSON has many lists and hardly a cycle. The search for cycles took a twentieth of
        # the time.
        gc.set_threshold(100_000)
    prepare_output()
    code = main(forks=True)
    if forkserver := sys.modules.get("leconvert.support.forkserver"):
        forkserver.end_server()
    if helpers := sys.modules.get("multiprocessing.util"):
        # Semaphores of spawned workers have names, which Python removes when it ends normally.
        # Otherwise its resource tracker reports them as leaked.
        helpers._run_finalizers(0)  # noqa: SLF001
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        code = code or 120  # Python does the same if it cannot write its output
    os._exit(code)


def _parsed(arguments: Sequence[str]) -> argparse.Namespace | None:
    """Return the options; None if help or the version was asked for and printed."""
    if arguments[:1] == ["help"]:  # `leconvert help COMMAND` is `leconvert COMMAND --help`
        arguments = [*arguments[1:], "--help"]
    try:
        options = build_parser().parse_args(arguments)
    except SystemExit:
        return None
    _refuse_empty_paths(arguments, options)
    return options


def _refuse_empty_paths(arguments: Sequence[str], options: argparse.Namespace) -> None:
    """Refuse ``--root "$DATASET"`` with an unset DATASET: an empty path is the current folder."""
    empty = "" in arguments or any(
        word.startswith("--") and word.endswith("=") for word in arguments
    )
    if empty and Path() in vars(options).values():
        raise UsageError(
            "A path on the command line is empty.",
            next_step="Check that the shell variables in the command are set. A dot stands for the "
            "current folder.",
        )


def with_hyphens(argument: str) -> str:
    """Return ``--data-file-size-in-mb`` for ``--data_file_size_in_mb``, other words unchanged."""
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value


# Signals that stop a run: its current batches go back, and the run can be resumed.


_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


@contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """Yield an event that SIGINT, SIGTERM and SIGUSR1 set.

    A SIGINT after any of these signals, and a second SIGTERM, raise KeyboardInterrupt: the sender
    does not want to wait. A single SIGTERM after another signal does not. Ctrl-C in a terminal
    reaches a worker directly, and then the command that started the worker sends SIGTERM.
    """
    stop = threading.Event()
    came: set[int] = set()

    def ask(number: int) -> None:
        again = number in came if number == signal.SIGTERM else number == signal.SIGINT
        is_asked = bool(came) or stop.is_set()
        came.add(number)
        if is_asked and again:
            raise KeyboardInterrupt
        _set_aside(stop)

    with _handled(ask):
        yield stop


@contextmanager
def end_on_signals(stop: threading.Event | None = None) -> Iterator[None]:
    """Let SIGINT, SIGTERM and SIGUSR1 end the block at once, even while it waits for an answer.

    The block must be able to continue later where it stopped, as a download does. ``stop`` is also
    set.
    """

    def end(_number: int) -> None:
        if stop is not None:
            _set_aside(stop)
        raise KeyboardInterrupt

    with _handled(end):
        yield


def _set_aside(stop: threading.Event) -> None:
    """Set an event in a thread of its own.

    A signal may come while this thread holds the event's lock, such as at the beginning of a wait.
    If this thread then set the event itself, it would wait for ever.
    """
    _thread.start_new_thread(stop.set, ())


@contextmanager
def _handled(handle: Callable[[int], None]) -> Iterator[None]:
    def call(number: int, _frame: FrameType | None) -> None:
        handle(number)

    before = {number: signal.signal(number, call) for number in _STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# ``leconvert completion``.


_SHELLS = ("bash", "zsh", "fish")
# The metavar of an argument tells the kind of its value.
_FOLDERS = frozenset({
    "DATASET", "DIR", "DIR|URL", "DIR|last", "FOLDER", "RESULT", "SOURCE", "WORK_DIR",
    "WORK_DIR|DATASET",
})  # fmt: skip
_FILES = frozenset({"FILE", "LIST_FILE"})


def add_completion_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "shell", choices=_SHELLS, metavar="SHELL", help=("the shell: bash, zsh or fish")
    )


def run_completion(options: argparse.Namespace) -> int:
    """Print the script."""
    print(completion_script(options.shell))
    return 0


def completion_script(shell: str) -> str:
    """Return a script that completes commands, options, their choices, files and folders.

    The script needs no Python when it completes.
    """
    try:
        import shtab
    except ImportError:
        raise missing_package("This needs shtab", "completion") from None
    # A script is still used in terminals of another width.
    os.environ["COLUMNS"] = "100"
    parser = build_parser()
    for command in parser.declared():
        for argument in command.arguments():
            if argument.metavar in _FOLDERS:
                argument.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
            elif argument.metavar in _FILES:
                argument.complete = shtab.FILE  # type: ignore[attr-defined]
    return str(shtab.complete(parser, shell))
