"""Every command of the program, and the parser that knows them."""

from __future__ import annotations

from leconvert._version import __version__
from leconvert.cli.examples import examples_text
from leconvert.cli.parser import Parser

__all__ = ["COMMANDS", "build_parser", "command_module"]

# Name and one line of help; `leconvert.cli.<name>` declares options and runs.
COMMANDS = (
    ("convert", "convert a v2.x dataset to v3.0: plan, work, pack, verify, swap, push"),
    ("plan", "scan a dataset and write the plan that workers share"),
    ("work", "run one worker on a work dir, on any host"),
    ("submit", "hand a plan to SLURM: workers, and a packer after them"),
    ("pack", "assemble what the workers wrote and swap it into place"),
    ("status", "say how far a run is"),
    ("release", "give failed or stuck batches of a run back"),
    ("clean", "remove what finished and given-up runs left"),
    ("check", "say what is wrong with one dataset, v2.x or v3.0"),
    ("check-fs", "probe what leasing and the swap need of a file system"),
    ("doctor", "say what is installed here, and what is missing"),
    ("report", "tell the story of a run or a result on one page"),
    ("verify", "compare a result with its source"),
    ("push", "upload a v3.0 dataset to the Hub, in one commit"),
    ("mirror", "send a v3.0 dataset to a bucket or another store"),
    ("probe", "measure how fast, and how rightly, a v3.0 dataset loads"),
    ("demo", "make a small dataset, convert it, verify it"),
    ("completion", "print a script that completes command lines in a shell"),
)
_EXIT_CODES = """
exit codes:
   0 success                        9 not all batches are done
   2 wrong options                 10 the result differs from its source
   3 unusable source               11 disk full, read-only or failing
   4 source changed meanwhile      12 another process plans, packs or holds it
   5 target in the way             13 only one host may work here
   6 another plan is under way     14 the probe found wrong frames, or none
   7 damaged work dir              15 the Hub does not answer
   8 batches were set aside        16 the Hub's token is missing or refused
  17 the repo changed meanwhile    18 the scheduler is missing or refused
  19 a package is missing          70 a bug: please report it
 130 interrupted; the same command resumes
"""


def build_parser(wanted: str | None = None) -> Parser:
    """Return the parser of the whole program.

    A command's options are declared when it parses; ``declared()`` declares all of them.

    Args:
        wanted: A command whose options are declared at once; an unknown name is none.
    """
    parser = Parser(
        prog="leconvert",
        description="Convert LeRobot datasets from v2.x to v3.0.",
        epilog=examples_text("leconvert") + _EXIT_CODES,
    )
    parser.add_argument("--version", action="version", version=f"leconvert {__version__}")
    parser.add_commands("command", COMMANDS, command_module)
    if wanted in parser.commands:
        parser.commands[wanted].declare()
    return parser


def command_module(name: str) -> str:
    """Return the module that declares a command's options and runs it."""
    return f"leconvert.cli.{name.replace('-', '_')}"
