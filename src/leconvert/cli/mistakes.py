"""What is wrong with a command line, and what may have been meant; pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import takewhile

__all__ = ["nearest", "unknown_options", "worded"]

_NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+")
# What argparse says, and what it means; in this order.
_WORDED = tuple(
    (re.compile(pattern), said)
    for pattern, said in (
        (r"^argument (\S+): ", r"\1 "),
        (r"expected (?:at least )?one argument", "needs a value"),
        (r"ignored explicit argument (.*)", r"takes no value, but \1 was given"),
        (r"not allowed with argument (\S+)", r"and \1 exclude each other"),
        (r"invalid (?:int|whole_number) value: (.*)", r"takes a whole number, not \1"),
        (r"invalid float value: (.*)", r"takes a number, not \1"),
        (r"the following arguments are required: COMMAND", "No command is given"),
        (r"the following arguments are required: (\S+)$", r"\1 is missing"),
        (r"the following arguments are required: (.*)", r"\1 are missing"),
    )
)


def worded(message: str) -> str:
    """Return what argparse says as a sentence of ours."""
    for pattern, said in _WORDED:
        message = pattern.sub(said, message)
    return message if message.endswith(("?", ".")) else f"{message}."


def unknown_options(words: Iterable[str], known: Container[str]) -> Iterator[str]:
    """Yield the names of options that are not known, up to a ``--``.

    Args:
        words: A command line.
        known: Every option, with its hyphens.
    """
    for word in takewhile(lambda word: word != "--", words):
        name = word.partition("=")[0]
        # As argparse has it: a word with a space in it is a value.
        if not word.startswith("-") or word == "-" or " " in name or name in known:
            continue
        if _NEGATIVE_NUMBER.fullmatch(word):
            continue
        if word.startswith("--") or word[:2] not in known:  # -oFILE is -o FILE
            yield name


def nearest(word: str, known: Sequence[str]) -> str:
    """Return ``; did you mean NAME?`` for the known name that is most alike, or an empty string."""
    found = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    # What was cut short is nearer than difflib thinks.
    found = found or [name for name in known if len(word) > 2 and name.startswith(word)][:1]
    return f"; did you mean {found[0]}?" if found else ""
