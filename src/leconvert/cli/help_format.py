"""How the help of a command is laid out, where argparse's own way does not serve."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

__all__ = ["HelpFormatter", "short_usage"]


class HelpFormatter(argparse.HelpFormatter):
    """Fills a text of one line; leaves one of several as it is."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" in text.strip():
            return "".join(indent + line for line in text.splitlines(keepends=True))
        return super()._fill_text(text, width, indent)


def short_usage(program: str, arguments: Iterable[argparse.Action]) -> str:
    """Return the usage with no options but those that must be given.

    Args:
        program: The program's words, such as ``leconvert probe run``.
        arguments: Its options and positional arguments.
    """
    words = []
    for action in arguments:
        name = str(action.metavar or action.dest)
        if action.option_strings and action.required:
            words.append(f"{action.option_strings[0]} {name}")
        elif not action.option_strings:
            words.append(name if action.required else f"[{name}]")
    return " ".join([program, "[OPTION ...]", *words])
