"""``leconvert probe``: commands of its own below it, each imported only when it runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

__all__ = ["add_arguments", "run"]

# Name and one line of help; `leconvert.cli.probe_<name>` declares options and runs.
_COMMANDS = (
    ("run", "measure one loader on one dataset"),
    ("limit", "measure how fast the same files decode without any loader"),
    ("diagnose", "decode one frame, and say what is installed and what is missing"),
    ("summarize", "make a table, a CSV and plots from many results"),
    ("resample", "measure how fast trajectories of many rates are brought to one"),
    ("submit", "send scenarios to a SLURM cluster"),
    ("train", "an example that trains from a stream, and resumes"),
)
# These never load a decoder, so FFmpeg need not be found for them.
_WITHOUT_DECODING = frozenset({"resample", "submit", "summarize"})


class _LazyParser(argparse.ArgumentParser):
    """A command's parser that imports the command when it is asked to parse for it."""

    module_name: str | None = None

    def declare(self) -> None:
        """Declare the command's options, unless they are."""
        if self.module_name is not None:
            import_module(self.module_name).add_arguments(self)
            self.module_name = None

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[Any, list[str]]:
        """Declare the command's options, then parse."""
        self.declare()
        return super().parse_known_args(args, namespace)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the commands."""
    commands = parser.add_subparsers(
        dest="probe_command", metavar="COMMAND", required=True, parser_class=_LazyParser
    )
    for name, line in _COMMANDS:
        command = commands.add_parser(name, help=line, description=f"{line.capitalize()}.")
        command.module_name = f"leconvert.cli.probe_{name}"


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    if _runs_as_program() and options.probe_command not in _WITHOUT_DECODING:
        from leconvert.probe.ffmpeg import start_again_with_ffmpeg

        start_again_with_ffmpeg()
    code: int = _module(options.probe_command).run(options)
    return code


def _runs_as_program() -> bool:
    """Tell whether this process is ours, so that it may be replaced by a new one."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    started_as_module = spec is not None and spec.name == "leconvert.__main__"
    return started_as_module or sys.argv[0].endswith(("/leconvert", "\\leconvert"))


def _module(command: str) -> ModuleType:
    return import_module(f"leconvert.cli.probe_{command}")
