"""The parser behind every command: lazy, without abbreviations, and with errors as sentences."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from itertools import takewhile
from typing import Any, NoReturn

from leconvert.cli.examples import examples_text
from leconvert.cli.help_format import HelpFormatter, short_usage
from leconvert.cli.mistakes import nearest, unknown_options, worded
from leconvert.errors import UsageError

__all__ = ["Parser"]

_LONGEST_USAGE = 240  # characters; a longer one hides what matters


class Parser(argparse.ArgumentParser):
    """A command's parser.

    It imports its command's module when it first parses, so that only the command that runs pays.
    An option is accepted by its whole name alone: an abbreviation would come to mean something else
    with the next option. Whatever is wrong with a command line is raised as `UsageError`.

    Args:
        module: The module whose ``add_arguments`` declares the options; None if they are declared
            otherwise.
        options: As for `argparse.ArgumentParser`.
    """

    def __init__(self, *, module: str | None = None, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=HelpFormatter, **options)
        self._module = module
        self.commands: dict[str, Parser] = {}

    def add_commands(
        self, dest: str, commands: Iterable[tuple[str, str]], module_of: Callable[[str], str]
    ) -> None:
        """Add commands below this one.

        Args:
            dest: The attribute that tells which one was given.
            commands: Name and one line of help of each.
            module_of: Returns the module of a command.
        """
        below = self.add_subparsers(dest=dest, metavar="COMMAND", title="commands", required=True)
        for name, line in commands:
            self.commands[name] = below.add_parser(
                name,
                help=line,
                description=f"{line[0].upper()}{line[1:]}.",
                module=module_of(name),
            )

    def declare(self) -> None:
        """Declare the options and examples, unless that was done."""
        if self._module is None:
            return
        module, self._module = self._module, None
        import_module(module).add_arguments(self)
        self.epilog = examples_text(self.prog)
        if len(self.format_usage()) > _LONGEST_USAGE:
            self.usage = short_usage(self.prog, self._actions)

    def declared(self) -> Iterator[Parser]:
        """Yield this parser and all below it, with every option declared."""
        self.declare()
        yield self
        for command in self.commands.values():
            yield from command.declared()

    def arguments(self) -> list[argparse.Action]:
        """Return options and positional arguments, in the order of the help."""
        return list(self._actions)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[Any, list[str]]:
        """Declare the options, then parse; nothing unknown is left over.

        Raises:
            UsageError: An argument is unknown, missing, or has a value that it does not take.
        """
        self.declare()
        words = sys.argv[1:] if args is None else list(args)
        own = takewhile(lambda word: word.startswith("-"), words) if self.commands else words
        self._refuse_unknown_options(own)
        options, left = super().parse_known_args(words, namespace)
        if left:
            self._refuse_words(left)
        return options, left

    def error(self, message: str) -> NoReturn:
        """Raise what argparse found, worded as our own errors are."""
        raise UsageError(worded(message), next_step=self._help_step())

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print; unlike argparse's own, let the caller know where that cannot be done."""
        (file or sys.stderr).write(message)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a value that is no choice, and name the nearest that is."""
        if action.choices is None or value in action.choices:
            return
        choices = [str(choice) for choice in action.choices]
        near = nearest(str(value), choices)
        if self.commands and not action.option_strings:
            raise UsageError(
                f"There is no command {str(value)!r}{near or '.'}", next_step=self._help_step()
            )
        last = f"{', '.join(choices[:-1])} or {choices[-1]}" if choices[1:] else choices[0]
        raise argparse.ArgumentError(action, f"takes {last}, not {value!r}{near}")

    def _refuse_unknown_options(self, words: Iterable[str]) -> None:
        known = self._option_string_actions
        for name in unknown_options(words, known):
            near = nearest(name, [option for option in known if option.startswith("--")])
            step = self._help_step()
            if os.path.lexists(name):
                step = f"What is called so here is given as {shlex.quote(f'./{name}')}. {step}"
            raise UsageError(f"There is no option {name}{near or '.'}", next_step=step)

    def _refuse_words(self, words: Sequence[str]) -> NoReturn:
        step = self._help_step()
        if "--root" in self._option_string_actions:
            step = f"A dataset's folder is given as --root {shlex.quote(words[0])}. {step}"
        raise UsageError(f"{words[0]!r} is one argument too many.", next_step=step)

    def _help_step(self) -> str:
        return f"`{self.prog} --help` lists what there is."
