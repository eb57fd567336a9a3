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
from collections.abc import Buffer, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

from leconvert._version import __version__
from leconvert.cli.output import print_findings, print_sentence
from leconvert.cli.parser import Parser, command_at, examples_text, nearest
from leconvert.support.errors import (
    REPORT_IT,
    FindingsError,
    InstallationError,
    InterruptedRunError,
    LeconvertError,
    UsageError,
)
from leconvert.support.storage_errors import storage_error
from leconvert.support.text import without_credentials

# Every command of the program, and the parser that knows them.


# By what people come for: name and one line of help.
COMMANDS = {
    "convert and edit": (
        ("convert", "convert a dataset, or a part of it"),
        ("merge", "merge datasets into one, without encoding a video"),
        ("split", "split a dataset: each episode into exactly one part"),
        ("trim", "cut frames off the beginning or the end of episodes"),
        ("repair", "repair what check finds in a v3.0 dataset"),
        ("fleet", "convert many datasets with one pool of workers"),
        ("undo", "put back what a conversion or repair replaced"),
        ("clean", "remove leftovers of finished and discarded runs"),
    ),
    "on many hosts": (
        ("plan", "scan a dataset and write a plan for workers"),
        ("work", "run one worker on a work dir, on any host"),
        ("submit", "start workers, then pack, as SLURM jobs"),
        ("pack", "assemble the result and put it in place"),
        ("status", "show the progress of a run"),
        ("release", "let workers try failed or stuck batches again"),
    ),
    "check, compare, publish and load": (
        ("check", "list what is wrong with a dataset, v2.x or v3.0"),
        ("verify", "compare a result with its source"),
        ("report", "write an HTML report of a run or a dataset"),
        ("push", "upload a v3.0 dataset to the Hub or to other storage"),
        ("probe", "measure how fast and correctly a dataset loads"),
    ),
    "first steps and help": (
        ("demo", "make a small dataset, convert it and compare both"),
        ("explain", "explain an exit code or a finding, and what to do"),
        ("doctor", "show missing packages, and test a file system"),
        ("completion", "print a script that completes command lines"),
    ),
    # Not listed: `doctor DIR` and `push RESULT URL` do the same.
    None: (
        ("check-fs", "test whether hosts can share a file system; the same as doctor DIR"),
        ("mirror", "upload a v3.0 dataset to a URL; the same as push RESULT URL"),
    ),
}
# Commands that share a module.
_BESIDE_OTHERS = {
    "check-fs": "doctor:check_fs",
    "clean": "upkeep:clean",
    "merge": "edit:merge",
    "mirror": "push:mirror",
    "release": "upkeep:release",
    "split": "edit:split",
    "trim": "edit:trim",
    "undo": "upkeep:undo",
}
# Commands that start workers, and what these import.
_FORKED_MODULES = dict.fromkeys(
    ("convert", "merge", "split", "trim"), ("leconvert.api", "leconvert.cli.work")
) | {"fleet": ("leconvert.fleet", "leconvert.cli.work")}
_MORE_HELP = """
`leconvert help COMMAND` lists options, `leconvert explain --help` exit codes.
"""


def build_parser(wanted: str | None = None) -> Parser:
    """Return the parser of the whole program.

    A command's options are declared when it parses; ``declared()`` declares all of them.
    """
    parser = Parser(
        prog="leconvert",
        description=("Convert LeRobot datasets or parts of them: v2.x to v3.0, v3.0 to v2.1."),
        epilog=examples_text("leconvert") + _MORE_HELP,
    )
    parser.add_argument("--version", action="version", version=f"leconvert {__version__}")
    parser.add_commands("command", COMMANDS, command_place)
    parser.advice = lambda words: _meant(words, parser.commands)
    if wanted in parser.commands:
        parser.commands[wanted].declare()
    return parser


def _meant(words: Sequence[str], commands: Collection[str]) -> str | None:
    """Return the commands that are meant by a dataset without one; None for any other mistake."""
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


def command_place(name: str) -> str:
    """Return where the command is that declares its options and runs; see `command_at`."""
    return f"leconvert.cli.{_BESIDE_OTHERS.get(name, name)}"


# Messages of a failed program, which are printed without fail.


def prepare_output() -> None:
    """Let nothing that is said fail: a name of any bytes, a terminal without UTF-8, no output.

    On stdout are results, and who cannot have them is told; on stderr is what goes on meanwhile,
    and a run does not end because nobody reads that any more.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by whoever called
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
            if name == "stderr":
                sys.stderr = _heard_or_not(stream)


def _heard_or_not(stream: io.TextIOWrapper) -> io.TextIOWrapper:
    """Return a stream to the same place whose writes do not fail."""
    return io.TextIOWrapper(
        io.BufferedWriter(_Unfailing(stream.fileno())),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=True,
    )


class _Unfailing(io.RawIOBase):
    """A descriptor that takes whatever is written, and loses what the system refuses."""

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
        except OSError:  # a pipe without a reader, a full disk, a terminal that was closed
            return memoryview(data).nbytes


def undecodable_path(error: UnicodeEncodeError) -> LeconvertError:
    """Return the error for a path that is not UTF-8, which a library cannot open.

    In the C locale Python reads names as UTF-8 nevertheless (PEP 540), unless it is told otherwise.
    In a locale of another encoding it does not. The name may be good then.
    """
    shown = ascii(error.object)[1:-1]
    encoding = sys.getfilesystemencoding()
    if encoding != "utf-8" and _is_utf_8(error.object):
        return UsageError(
            f"The path {shown} is UTF-8, but Python reads paths as {encoding} in this locale. No "
            "parquet file can be opened there.",
            path=shown,
            next_step="Set PYTHONUTF8=1, then run the same command again.",
        )
    return UsageError(
        f"The path {shown} is not UTF-8. No parquet file can be opened there.",
        path=shown,
        next_step="Rename the folder or file, then run the same command again.",
    )


def _is_utf_8(path: str) -> bool:
    try:
        os.fsencode(path).decode("utf-8")
    except UnicodeError:
        return False
    return True


def fail(error: LeconvertError, *, as_json: bool) -> int:
    """Tell an error on stderr, and as a record on stdout if that is asked; return its code.

    A URL that the user gave may hold a password, and both end up in logs.
    """
    if as_json:
        print(json.dumps(_public(error.as_record()), indent=2))
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


def _public(value: object) -> object:
    """Return a record with secrets taken out of its texts."""
    if isinstance(value, str):
        return without_credentials(value)
    if isinstance(value, dict):
        return {key: _public(held) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [_public(held) for held in value]
    return value


# The entry point: finds the command, and turns errors into sentences and exit codes.


def main(argv: Sequence[str] | None = None, *, forks: bool = False) -> int:
    """Run one command.

    Args:
        forks: This process is the program's own, which may be forked.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    # The words after `--` are not ours.
    ours = given.index("--") if "--" in given else len(given)
    arguments = [*map(with_hyphens, given[:ours]), *given[ours:]]
    as_json = "--json" in arguments
    try:
        options = _parsed(arguments)
        code = 0
        if options is not None:
            options.command_line = ["leconvert", *given]
            command = command_at(command_place(options.command))
            if forks and options.command in _FORKED_MODULES:
                from leconvert.support.forkserver import serve_forks

                serve_forks(_FORKED_MODULES[options.command])
            code = command.run(options)
        sys.stdout.flush()
    except LeconvertError as error:
        return fail(error, as_json=as_json)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            # Whoever read our output went away; a flush at exit would complain again.
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
        import traceback  # no other command pays for it

        traceback.print_exc()
        print("leconvert: This is a bug.", file=sys.stderr)
        print_sentence(f"  → {REPORT_IT}.", margin="    ")
        return LeconvertError.exit_code
    return code


def program() -> NoReturn:
    """Run as a program: like `main`, then end at once.

    Taking NumPy's and Arrow's modules apart takes 30 ms, a tenth of a small conversion, and frees
    what the system frees anyway. Nothing of ours waits for the interpreter's end.
    """
    # Python's own helpers, such as those of torch's DataLoader, would look for modules in the
    # current folder, where anything may lie.
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    # NumPy would start a thread for each core to multiply matrices, and they spin: a tenth of a
    # second of CPU time. Only what a probe trains multiplies any.
    if "probe" not in sys.argv:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        # Arrow would start a thread that looks after an allocator which it does not use, and a
        # process is forked only where it has no second thread.
        os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
        # Parsed JSON is many lists and hardly a cycle: looking for these took a twentieth.
        gc.set_threshold(100_000)
    prepare_output()
    code = main(forks=True)
    if forkserver := sys.modules.get("leconvert.support.forkserver"):
        forkserver.end_server()
    if helpers := sys.modules.get("multiprocessing.util"):
        # Semaphores of spawned workers have names, which Python would remove at its own end. Left
        # to its resource tracker they are called leaked.
        helpers._run_finalizers(0)  # noqa: SLF001
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        code = code or 120  # as Python ends where what it said cannot be written
    os._exit(code)


def _parsed(arguments: Sequence[str]) -> argparse.Namespace | None:
    """Return the options, or None where help or the version was asked for, and printed."""
    if arguments[:1] == ["help"]:  # `leconvert help COMMAND` is `leconvert COMMAND --help`
        arguments = [*arguments[1:], "--help"]
    try:
        options = build_parser().parse_args(arguments)
    except SystemExit:
        return None
    _refuse_empty_paths(arguments, options)
    return options


def _refuse_empty_paths(arguments: Sequence[str], options: argparse.Namespace) -> None:
    """Refuse ``--root "$DATASET"`` where DATASET is not set: as a path, nothing is this folder."""
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
    """Return ``--data-file-size-in-mb`` for ``--data_file_size_in_mb``, others as they are."""
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value


# Signals that ask a run to stop: the batch in hand goes back, and the run can be resumed.


_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


@contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """Yield an event that SIGINT, SIGTERM and SIGUSR1 set.

    A SIGINT after any of them, and a second SIGTERM, raise KeyboardInterrupt: whoever sends it does
    not want to wait. One SIGTERM behind another signal does not: Ctrl-C in a terminal reaches a
    worker, and so does the SIGTERM of the command that started it.
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
    """Let SIGINT, SIGTERM and SIGUSR1 end the block at once, also while it waits for an answer.

    It is for what goes on where it broke off, such as fetching a dataset. ``stop`` is set, too.
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
    Setting the event in this thread would then wait for ever.
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
