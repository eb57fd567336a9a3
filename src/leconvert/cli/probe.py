"""``leconvert probe``: commands of its own below it, each imported only when it runs."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module

from leconvert.cli.parser import Parser

# Name and one line of help; `leconvert.cli.probe_<name>` declares options and runs.
_COMMANDS = (
    ("run", "measure one loader on one dataset"),
    ("limit", "measure how fast the same files decode without any loader"),
    ("diagnose", "decode one frame, and say what is installed and what is missing"),
    ("summarize", "make a table, a CSV and plots from many results"),
    ("resample", "measure how fast trajectories of many rates are brought to one"),
    ("submit", "send scenarios to a SLURM cluster"),
    ("train", "an example that trains from a stream, and resumes"),
    ("train-lerobot", "LeRobot's own training program, from a stream"),
)
# These never load a decoder, so FFmpeg need not be found for them.
_WITHOUT_DECODING = frozenset({"resample", "submit", "summarize"})


def add_arguments(parser: Parser) -> None:
    """Declare the commands."""
    parser.add_commands("probe_command", {"": _COMMANDS}, _module_name)


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    if _runs_as_program() and options.probe_command not in _WITHOUT_DECODING:
        from leconvert.bench import start_again_with_ffmpeg

        start_again_with_ffmpeg()
    code: int = import_module(_module_name(options.probe_command)).run(options)
    return code


def _runs_as_program() -> bool:
    """Tell whether this process is ours, so that it may be replaced by a new one."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    started_as_module = spec is not None and spec.name == "leconvert.__main__"
    return started_as_module or sys.argv[0].endswith(("/leconvert", "\\leconvert"))


def _module_name(command: str) -> str:
    return f"leconvert.cli.probe_{command.replace('-', '_')}"
