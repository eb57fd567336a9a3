"""The parser of every command: lazy, without abbreviations, and with errors as sentences."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
import textwrap
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from itertools import batched, takewhile, zip_longest
from pathlib import Path
from typing import Any, NoReturn

from leconvert.support.errors import UsageError

# The purpose of each command, and the examples at the end of its help. ``commands.txt`` has a block
# for each command, which begins with the command in brackets; a line ends before column 80.


@cache
def manual() -> Mapping[str, tuple[str, str]]:
    """Return the purpose of each command, and its examples: comments, each with a command line."""
    text = Path(__file__).with_name("commands.txt").read_text(encoding="utf-8")
    _, *blocks = re.split(r"^\[(.*)\] ?(.*)\n", text, flags=re.MULTILINE)
    return {prog: (does, examples) for prog, does, examples in batched(blocks, 3)}


def examples_text(prog: str) -> str:
    """Return the end of a command's help."""
    return f"examples:\n{manual()[prog][1]}"


# The form of the help, where argparse's own does not fit.


class HelpFormatter(argparse.HelpFormatter):
    """Fills a text of one line, with breaks between words only; keeps a text of several lines."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        words = " ".join(text.split())
        return textwrap.wrap(words, width, break_on_hyphens=False, break_long_words=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" in text.strip():
            return "".join(indent + line for line in text.splitlines(keepends=True))
        return super()._fill_text(text, width, indent)


class _HelpAll(argparse._HelpAction):  # noqa: SLF001
    """Prints the help with every option."""

    def __call__(self, parser: argparse.ArgumentParser, *how: Any) -> None:
        """Print the help, and exit."""
        assert isinstance(parser, Parser)
        parser.usual_options = None
        super().__call__(parser, *how)


# Options that `--help` lists for a command with many; `--help-all` lists all that are not hidden.
# An editing command lists these and its own.
EDITING_OPTIONS = frozenset({
    "--dry-run", "--engine", "--force-conversion", "--help", "--help-all", "--json",
    "--num-workers", "--output", "--quiet", "--report", "--restart", "--verify", "--work-dir",
})  # fmt: skip
USUAL_OPTIONS = EDITING_OPTIONS | {
    "--append", "--data-file-size-in-mb", "--delete-source", "--episodes",
    "--layout", "--on-bad-episode", "--output-dir", "--plan-only", "--policy", "--push-repo-id",
    "--quantiles", "--retime", "--slurm", "--to", "--video-file-size-in-mb",
}  # fmt: skip
_USAGE_COLUMNS = 53


def short_usage(program: str, arguments: Iterable[argparse.Action]) -> str:
    """Return the usage with only the required options."""
    words = []
    for action in arguments:
        name = str(action.metavar or action.dest)
        if action.option_strings and action.required:
            words.append(f"{action.option_strings[0]} {name}")
        elif not action.option_strings:
            words.append(name if action.required else f"[{name}]")
    lines = [f"{program} [OPTION ...]"]
    for word in words:
        if len(lines[-1]) + len(word) < _USAGE_COLUMNS:
            lines[-1] += f" {word}"
        else:
            lines.append(" " * len("usage: ") + word)
    return "\n".join(lines)


# Mistakes in a command line, and suggestions. Pure functions.


_NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+")
# Messages of argparse and our wording, in the order in which they are tried.
_WORDED = tuple(
    (re.compile(pattern), said)
    for pattern, said in (
        (r"^argument (?:-\w/)?(\S+): ", r"\1 "),
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


def translate_argparse_error(message: str) -> str:
    """Return a message of argparse in our wording."""
    for pattern, said in _WORDED:
        message = pattern.sub(said, message)
    return message if message.endswith(("?", ".")) else f"{message}."


def unknown_options(words: Iterable[str], known: Container[str]) -> Iterator[str]:
    """Yield the unknown options, up to a ``--``."""
    for word in takewhile(lambda word: word != "--", words):
        name = word.partition("=")[0]
        # As in argparse: a word that contains a space is a value.
        if not word.startswith("-") or word == "-" or " " in name or name in known:
            continue
        if _NEGATIVE_NUMBER.fullmatch(word):
            continue
        if word.startswith("--") or word[:2] not in known:  # -oFILE is -o FILE
            yield name


def nearest(word: str, known: Sequence[str]) -> str:
    """Return ``; did you mean NAME?`` for a misspelled or shortened name, otherwise nothing."""
    near = [(edits(word, name), name) for name in known]
    found = [name for number, name in sorted(near) if number <= _edits_allowed(name)][:1]
    # A shortened name.
    found = found or [name for name in known if len(word) > 2 and name.startswith(word)][:3]
    return f"; did you mean {' or '.join(found)}?" if found else ""


def _edits_allowed(name: str) -> int:
    """Return how many letters of a name may be wrong: one in four, at least one."""
    return max(1, len(name.lstrip("-")) // 4)


def edits(one: str, other: str) -> int:
    """Return the number of letters to add, remove, change or swap to turn one word into another."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for place, letter in enumerate(one):
        last, before, row = before, row, [place + 1]
        for at, wanted in enumerate(other):
            cost = min(row[at] + 1, before[at + 1] + 1, before[at] + (letter != wanted))
            if place and at and letter == other[at - 1] and one[place - 1] == wanted:
                cost = min(cost, last[at - 1] + 1)
            row.append(cost)
    return row[-1]


# Words of other programs: the option here, and what it does.
_MEANT = {
    word: meaning
    for words, *meaning in (
        (
            "--overwrite --force --replace",
            "--force-conversion",
            "converts again. A dataset that exists at the target is kept as <target>_old",
        ),
        (
            "--resume --continue",
            "--restart",
            "begins a new run. Without it, the same command resumes an interrupted run",
        ),
        (
            "--source --src --input --input-dir --dataset",
            "--root",
            "is the dataset's folder or URL",
        ),
        (
            "--out --out-dir --output-dir --destination --target",
            "--output",
            "is the folder for the result",
        ),
        ("--workers --jobs --processes", "--num-workers", "is the number of worker processes"),
    )
    for word in words.split()
}
# Suggested only for a misspelling of their own name: these options remove a safeguard.
_SAFEGUARDS = (
    "--accept",
    "--allow-mixed-versions",
    "--delete-source",
    "--force-conversion",
    "--force-push",
    "--no-verify",
    "--restart",
)


def meant_option(name: str, known: Sequence[str]) -> tuple[str, str | None]:
    """Return the answer to an unknown option: a suggestion, and what it does."""
    option, does = _MEANT.get(name, ("", ""))
    if option in known:
        if option == "--restart":  # what was meant happens without it
            return "", f"{option} {does}."
        return f"; did you mean {option}?", f"{option} {does}."
    if name in ("--yes", "-y"):
        return "", "leconvert never asks for a confirmation: leave the option out."
    offered = [option for option in known if option not in _SAFEGUARDS or edits(name, option) <= 1]
    return nearest(name, offered), None


# Options with an optional value.


class OptionalValue(argparse._StoreAction):  # noqa: SLF001
    """An option with an optional value; a dataset may follow it.

    The next word is the value only if it looks like one. A word after ``=`` always is.

    Args:
        looks_right: Returns whether a word looks like a value.
        otherwise: The value if none is given, as text.
    """

    def __init__(self, *, looks_right: Callable[[str], bool], otherwise: str, **named: Any) -> None:
        super().__init__(nargs="?", **named)
        self.looks_right = looks_right
        self.otherwise = otherwise


# One option that stands for many.


class Settings(argparse.Action):
    """``--slurm KEY=VALUE`` means ``--KEY=VALUE``, an option that is accepted but not listed.

    Args:
        actions: The options.
        prefix: The beginning of their names, which the keys leave out.
    """

    def __init__(
        self,
        option_strings: Sequence[str],
        dest: str,
        *,
        actions: Iterable[argparse.Action],
        prefix: str = "",
        help: str,  # noqa: A002 - as argparse calls it
        metavar: str = "KEY=VALUE",
        default: str = argparse.SUPPRESS,
    ) -> None:
        super().__init__(option_strings, dest, default=default, metavar=metavar)
        self.actions = {
            action.option_strings[-1].removeprefix("--").removeprefix(prefix): action
            for action in actions
        }
        self.helps = {key: action.help or "" for key, action in self.actions.items()}
        keys = f"{metavar.partition('=')[0].lower()}s"
        self.help = f"{help}; may be given several times; {keys}: {', '.join(self.actions)}"

    def spelled(self, key: str) -> str:
        """Return a key with the metavar of its value."""
        action = self.actions[key]
        return key if action.nargs == 0 else f"{key}={action.metavar}"

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,  # noqa: ARG002 - argparse's signature
    ) -> None:
        """Perform the option of this key."""
        key, equals, value = values.partition("=")
        key = key.replace("_", "-")
        action = self.actions.get(key)
        if action is None:
            near = nearest(key, list(self.actions))
            raise argparse.ArgumentError(self, f"has no key {key!r}{near}")
        if bool(equals) == (action.nargs == 0):
            raise argparse.ArgumentError(self, f"takes {self.spelled(key)}, not {values!r}")
        words = [value] if equals else []
        flag, typed = action.option_strings[-1], f"{self.option_strings[-1]} {key}"
        try:
            action(parser, namespace, parser._get_values(action, words), flag)  # noqa: SLF001
        except argparse.ArgumentError as error:
            raise argparse.ArgumentError(self, f"{key} {error.message}") from None
        namespace.typed = {**getattr(namespace, "typed", {}), flag: typed}


def with_values(words: Sequence[str], options: Mapping[str, argparse.Action]) -> Iterator[str]:
    """Yield the words of a command line; an optional value that was left out is added."""
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        action = options.get(word)
        if word == "--":
            options = {}
        if isinstance(action, OptionalValue) and not action.looks_right(following):
            yield f"{word}={action.otherwise}"
        else:
            yield word


# The parser itself.


_LONGEST_USAGE = 240  # characters; a longer value hides the message


class Parser(argparse.ArgumentParser):
    """A command's parser.

    The module of a command is imported when it first parses, so that no command pays for another;
    then ``run`` of the options is the function that runs the command.
    Only the whole name of an option is accepted: an abbreviation could get another meaning with the
    next option. Every mistake in a command line raises `UsageError`.

    Attributes:
        usual_options: The options that the help lists; None for all.
        commands: The parsers of the commands below this one, by name.
        advice: Returns the next step for words that do not parse; None if it knows none.
    """

    def __init__(self, *, place: str | None = None, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=HelpFormatter, **options)
        self._place = place
        self.usual_options: frozenset[str] | None = None
        self.commands: dict[str, Parser] = {}
        self._usual_command: Callable[[Sequence[str]], str | None] = lambda _: None
        self.advice: Callable[[list[str]], str | None] = lambda _: None

    def add_commands(
        self,
        dest: str,
        commands: Mapping[str | None, str],
        *,
        usual: Callable[[Sequence[str]], str | None] = lambda _: None,
    ) -> None:
        """Add commands below this one.

        Args:
            dest: The option that gets the name of the given command.
            commands: By their heading in the help, the places of commands in this package: a
                module, or ``MODULE:NAME`` if the module has several. Commands below None are not
                listed: another command does the same.
            usual: Returns the command for words that name none.
        """
        self._usual_command = usual
        below = self.add_subparsers(dest=dest, metavar="COMMAND", title="commands", required=True)
        listed = below._choices_actions  # noqa: SLF001 - the lines of the help
        for heading, places in commands.items():
            named = {place.rpartition(":")[2].replace("_", "-"): place for place in places.split()}
            if heading:  # shtab looks up a command by the name of each line, so this needs one
                listed.append(argparse.Action([], dest=next(iter(named)), metavar=f"{heading}:"))
            for name, place in named.items():
                does, _ = manual()[f"{self.prog} {name}"]
                how: dict[str, Any] = {"description": f"{does[0].upper()}{does[1:]}."}
                if heading is not None:  # a command without help is not listed
                    how["help"] = does
                self.commands[name] = below.add_parser(name, place=place, **how)
                if heading:
                    listed[-1].metavar = f"  {name}"

    def declare(self) -> None:
        """Declare the options and examples, if that was not done."""
        if self._place is None:
            return
        (module, _, name), self._place = self._place.partition(":"), None
        found = import_module(f"leconvert.cli.{module}")
        getattr(found, f"add_{name}_arguments" if name else "add_arguments")(self)
        if not self.commands:
            self.set_defaults(run=getattr(found, f"run_{name}" if name else "run"))
        if dry_run := self._option_string_actions.get("--dry-run"):
            self._option_string_actions.setdefault("-n", dry_run)  # as in rsync; not listed
        if self.usual_options is not None:
            self.add_argument(
                "--help-all", action=_HelpAll, default=argparse.SUPPRESS,
                help="show every option, and exit",
            )  # fmt: skip
        self.epilog = examples_text(self.prog) + (self.epilog or "")
        if len(self.format_usage()) > _LONGEST_USAGE:
            self.usage = short_usage(self.prog, self._actions)

    def declared(self) -> Iterator[Parser]:
        """Yield this parser and all below it, with every option declared."""
        self.declare()
        yield self
        for command in self.commands.values():
            yield from command.declared()

    def format_help(self) -> str:
        """Return the help; for a command with many options, only the usual ones."""
        usual = self.usual_options
        if usual is None:
            return super().format_help()
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        for group in self._action_groups:
            shown = [
                action
                for action in group._group_actions  # noqa: SLF001
                if not action.option_strings or not usual.isdisjoint(action.option_strings)
            ]
            if shown:
                formatter.start_section(group.title)
                formatter.add_arguments(shown)
                formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help()

    def arguments(self) -> list[argparse.Action]:
        """Return options and positional arguments, in the order of the help."""
        return list(self._actions)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[Any, list[str]]:
        """Declare the options, then parse; every word must be known."""
        self.declare()
        words = sys.argv[1:] if args is None else list(args)
        usual = None
        if words and words[0] not in (*self.commands, "-h", "--help"):
            usual = self._usual_command(words)
        try:
            return self._parsed([usual, *words] if usual else words, namespace)
        except UsageError as error:
            if not usual and words and self._usual_command(words) and Path(words[0]).is_file():
                path = shlex.quote(f"./{words[0]}")
                error.next_step = f"Write {path} for the file of that name. {error.next_step}"
            if not self._unknown_options(words):  # a command with one would be refused as well
                error.next_step = self.advice(words) or error.next_step
            raise

    def _parsed(
        self, words: list[str], namespace: argparse.Namespace | None
    ) -> tuple[Any, list[str]]:
        words = list(with_values(words, self._option_string_actions))
        self._refuse_unknown_options(words)
        options, left = super().parse_known_args(words, namespace)
        if left:
            self._refuse_words(left, options)
        return options, left

    def error(self, message: str) -> NoReturn:
        """Raise an error of argparse as one of ours."""
        raise UsageError(translate_argparse_error(message), next_step=self._help_step())

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print. Unlike argparse's own, this raises an error if it cannot print."""
        (file or sys.stderr).write(message)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a value that is not among the choices, and name the nearest choice."""
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

    def _unknown_options(self, words: Iterable[str]) -> list[str]:
        own = takewhile(lambda word: word.startswith("-"), words) if self.commands else words
        return list(unknown_options(own, self._option_string_actions))

    def _refuse_unknown_options(self, words: Iterable[str]) -> None:
        for name in self._unknown_options(words):
            long = [option for option in self._option_string_actions if option.startswith("--")]
            near, does = meant_option(name, long)
            step = self._help_step()
            if self.commands and not near:
                lists = f"`{self.prog} COMMAND --help` lists the options."
                step = f"Put options after the command. {lists}"
            elif does:
                step = f"{does} {step}"
            if os.path.lexists(name):
                here = shlex.quote(f"./{name}")
                step = f"Write {here} for the file or folder of that name. {step}"
            raise UsageError(f"There is no option {name}{near or '.'}", next_step=step)

    def _refuse_words(self, words: Sequence[str], options: argparse.Namespace) -> NoReturn:
        takes = [action for action in self._actions if not action.option_strings]
        # argparse fills all arguments from the first group of adjacent words.
        if any(
            action.nargs in ("*", "+") or getattr(options, action.dest, None) is None
            for action in takes
        ):
            raise UsageError(
                f"{words[0]!r} stands apart from the other arguments.",
                next_step="Put all arguments together, before the options or after them. "
                f"{self._help_step()}",
            )
        named = " and ".join(str(action.metavar or action.dest) for action in takes)
        said = f": `{self.prog}` takes only {named}" if named else ""
        raise UsageError(
            f"{words[0]!r} is one argument too many{said}.",
            next_step=f"Leave {words[0]!r} out. {self._help_step()}",
        )

    def _help_step(self) -> str:
        return f"`{self.prog} --help` lists the {'commands' if self.commands else 'options'}."


# Arguments that most commands have.


def hide(*actions: argparse.Action) -> None:
    """Accept options without listing them. Another option does the same."""
    for action in actions:
        action.help = argparse.SUPPRESS


def add_place_of_run(parser: argparse.ArgumentParser, **more: Any) -> None:
    """Add the work dir of a run, or a dataset of the run; ``more`` goes to argparse."""
    parser.add_argument(
        "work_dir",
        type=Path,
        metavar="WORK_DIR|DATASET",
        help="the work dir of a run; or, for a run without --work-dir, its result, or its source "
        "if that is in the same folder as the result",
        **more,
    )


def add_output(
    parser: argparse._ActionsContainer, *, dry_run: str | None = None, quiet: bool = False
) -> None:
    """Add ``--json``; with ``quiet`` also ``--quiet``, with a help for it also ``--dry-run``."""
    if dry_run is not None:
        parser.add_argument("--dry-run", action="store_true", help=dry_run)
    if quiet:
        parser.add_argument(
            "-q", "--quiet", action="store_true", help="show only problems: no progress, no summary"
        )
    parser.add_argument(
        "--json", action="store_true", help="print the outcome as one JSON document on stdout"
    )
