"""Runs the blocks of one page, in order, in a folder of its own."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from leconvert.cli import main
from tests.docs.commands import Command, commands_of, parsed
from tests.docs.pages import ROOT, Block
from tests.docs.places import REPO, Places

__all__ = ["BOUND", "SHORTER", "Sandbox", "make_programs"]

# What pages say, and what it is here. All other names are taken as they stand.
BOUND = {
    "ORG/NAME": REPO,
    "ORG/NEW": "tester/new",
    "ORG/{name}": "tester/{{name}}",
    "hf://ORG": "hf://tester",
    "s3://BUCKET": "file://{folder}/bucket",
    "/shared/": "{folder}/shared/",
    "/shared ": "{folder}/shared ",
    "/local/disk": "{folder}/local",
    # Each worker is a process, which takes a second to start; so are those of a fleet below.
    "--num-workers 4": "--num-workers 1",
    "num_workers=4": "num_workers=1",
}

# Options that these commands get besides, so that they take no longer than they must.
_SHORT_RUN = ("--warmup-batches", "1", "--num-batches", "2", "--batch-size", "4")
SHORTER: dict[tuple[str, ...], tuple[str, ...]] = {
    **{("fleet", path): ("--max-workers", "1") for path in ("list.txt", "hub.txt")},
    ("probe", "run"): (*_SHORT_RUN, "--num-workers", "0", "--probe-samples", "2"),
    ("probe", "limit"): ("--duration-s", "0.1", "--processes", "1"),
    ("probe", "train"): ("--steps", "2", "--num-workers", "0", "--batch-size", "2"),
    ("probe", "resample"): (
        *("--max-trajectories", "4", "--batch-sizes", "2", "--repeats", "1", "--num-workers", "0"),
        *("--warmup-batches", "1", "--train-epochs", "1"),
    ),
}

# What a block may start; others say why they are not run.
_PROGRAMS = frozenset({"cat", "cp", "find", "ls", "mkdir", "mv", "python", "python3", "rm"})

_SBATCH = """\
#!/bin/sh
# Takes jobs and forgets them.
cat > /dev/null
echo 1
"""


def make_programs(folder: Path) -> Path:
    """Make a folder for ``PATH``: this leconvert, this Python, and an idle scheduler."""
    folder.mkdir()
    path = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    start = f"#!/bin/sh\nPYTHONPATH={path} exec {sys.executable}"
    programs = {
        "leconvert": f'{start} -m leconvert "$@"\n',
        "python": f'{start} "$@"\n',
        "python3": f'{start} "$@"\n',
        "sbatch": _SBATCH,
    }
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


class Sandbox:
    """A folder with what the blocks of a page need; the caller has made it the current one.

    Args:
        folder: The current folder.
        places: Provides datasets and work dirs; None for a page that makes all it needs, whose
            commands then run as they stand.
        names: Variables that the page's Python takes for granted.
    """

    def __init__(self, folder: Path, places: Places | None, names: dict[str, Any]) -> None:
        self.folder = folder
        self._places = places
        self._names = names

    def run(self, block: Block) -> str:
        """Run a block of shell or Python and return what it printed.

        Raises:
            AssertionError: A command failed; the message names its place.
        """
        text = block.text
        for name, here in BOUND.items():
            text = text.replace(name, here.format(folder=self.folder))
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said):
                if block.language == "python":
                    if self._places is not None:
                        self._places.before_python(text)
                    exec(compile(text, block.place, "exec"), self._names)
                else:
                    for command in commands_of(text):
                        self._run_command(command)
        except Exception as error:
            raise AssertionError(f"{block.place}: {error!r}\n{said.getvalue()}") from error
        return said.getvalue()

    def _run_command(self, command: Command) -> None:
        arguments = command.leconvert
        if arguments is not None and self._places is not None:
            shorter = next((v for k, v in SHORTER.items() if arguments[: len(k)] == k), ())
            arguments = (*arguments, *shorter)
            with contextlib.redirect_stdout(io.StringIO()):
                self._places.before_command(parsed(arguments))
        written = command.written_to
        if arguments is not None and (command.simple or written is not None):
            with contextlib.ExitStack() as stack:
                if written is not None:
                    file = stack.enter_context((self.folder / written).open("w"))
                    stack.enter_context(contextlib.redirect_stdout(file))
                code = main(arguments)
            assert code == 0, f"{command.text} ended with {code}"
        else:
            allowed = arguments is not None or _PROGRAMS.issuperset(command.words[:1] or ("",))
            assert allowed, f"{command.text}: no block may run that; say why it is not run"
            self._run_in_a_shell(command)

    def _run_in_a_shell(self, command: Command) -> None:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command.text],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        print(done.stdout, end="")
        assert done.returncode == 0, f"{command.text} ended with {done.returncode}: {done.stderr}"
