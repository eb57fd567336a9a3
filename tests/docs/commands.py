"""Splits shell blocks into commands, and parses those that are leconvert's."""

from __future__ import annotations

import argparse
import re
import shlex
from dataclasses import dataclass

from leconvert.cli.main import build_parser, with_hyphens
from leconvert.support.errors import UsageError

__all__ = ["Command", "commands_of", "parsed"]

# What only a shell can do; blocks that need it are not taken apart.
_SHELL = re.compile(r"[|&;<>$`*?]")
_STARTS = (("leconvert",), ("python3", "-m", "leconvert"), ("python", "-m", "leconvert"))
_REDIRECTIONS = ("|", "||", ">", ">>", "2>", "&")


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a shell block: a line with its continuations, or what stands between ``&&``.

    Attributes:
        text: The command, without its comment.
        words: Its words without the comment.
        simple: Whether it needs no shell.
    """

    text: str
    words: tuple[str, ...]
    simple: bool

    @property
    def leconvert(self) -> tuple[str, ...] | None:
        """The arguments, if it is a command of leconvert."""
        for start in _STARTS:
            if self.words[: len(start)] == start:
                rest = self.words[len(start) :]
                end = next((i for i, word in enumerate(rest) if word in _REDIRECTIONS), len(rest))
                return rest[:end]
        return None

    @property
    def written_to(self) -> str | None:
        """The file that its output goes to, if that is all that it needs a shell for."""
        *rest, sign, name = ("", "", *self.words)
        needs_more = sign != ">" or any(_SHELL.search(word) for word in (*rest, name))
        return None if needs_more else name


def commands_of(text: str) -> list[Command]:
    """Return the commands of a shell block; one with a here-document is a single command."""
    if "<<" in text:
        return [Command(text, (), simple=False)]
    commands = []
    for line in text.replace("\\\n", " ").splitlines():
        words = tuple(shlex.split(line, comments=True))
        for command in _parts(words):
            simple = not any(_SHELL.search(word) for word in command)
            text = shlex.join(command) if simple else line
            commands.append(Command(text, command, simple))
    return commands


def _parts(words: tuple[str, ...]) -> list[tuple[str, ...]]:
    parts: list[list[str]] = [[]]
    for word in words:
        if word == "&&":
            parts.append([])
        else:
            parts[-1].append(word)
    return [tuple(part) for part in parts if part]


def parsed(arguments: tuple[str, ...]) -> argparse.Namespace:
    """Return what the program's own parser makes of a command.

    Raises:
        ValueError: It refuses; the message is its own.
    """
    given = [with_hyphens(argument) for argument in arguments]
    try:
        return build_parser().parse_args(given)
    except UsageError as error:
        raise ValueError(f"leconvert {shlex.join(arguments)}: {error}") from error
    except SystemExit as end:
        raise ValueError(f"leconvert {shlex.join(arguments)} ends with {end.code}") from end
