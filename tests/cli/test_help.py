"""The help of every command: it fits, it has examples, and the examples are accepted."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path

import pytest

from leconvert.cli.main import COMMANDS as MAIN_COMMANDS
from leconvert.cli.main import build_parser
from leconvert.cli.parser import USUAL_OPTIONS, Parser, manual
from leconvert.support import errors

COMMANDS = {parser.prog: parser for parser in build_parser().declared()}


def test_every_command_has_examples_and_every_example_a_command() -> None:
    assert set(COMMANDS) == set(manual())
    assert all(map(_command_lines, COMMANDS))


def _names(places: str) -> list[str]:
    return [place.rpartition(":")[2].replace("_", "-") for place in places.split()]


def _command_lines(name: str) -> list[str]:
    lines = map(str.strip, manual()[name][1].splitlines())
    return [line for line in lines if not line.startswith("#")]


def test_the_parser_accepts_each_example() -> None:
    given = [(name, line) for name in COMMANDS for line in _command_lines(name)]
    for prog, line in given:
        words = shlex.split(line.partition(" > ")[0])
        assert " ".join(words).startswith(prog)
        options = build_parser().parse_args(words[1:])
        assert options.command == words[1]


@pytest.mark.parametrize("columns", [60, 80])
def test_the_help_fits_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for prog, parser in COMMANDS.items():
        text = parser.format_help()
        # Lines that are to be copied are not broken; they fit an ordinary terminal.
        text = text.partition("\nexamples:")[0] if columns < 80 else text
        assert max(map(len, text.splitlines())) <= columns, prog


def test_an_option_takes_the_same_kind_of_value_in_every_command() -> None:
    shown: dict[str, set[str]] = {}
    for parser in COMMANDS.values():
        for argument in parser.arguments():
            for option in argument.option_strings:
                # Of several jobs one can be meant by its name.
                metavar = str(argument.metavar).removeprefix("[NAME=]")
                shown.setdefault(option, set()).add(metavar)
    several = {option: values for option, values in shown.items() if len(values) > 1}
    assert several == {
        "--num-workers": {"N", "N|auto"},  # of a loader, of a conversion
        "--output": {"DIR", "FILE"},  # of a conversion, of a report
        "-o": {"DIR", "FILE"},
        "--report": {"FILE.html", "None"},  # of a split there are several, each beside its part
        "--source": {"SOURCE", "LABEL"},  # of `verify`, and what LeRobot's benchmark calls a source
    }


def test_every_error_has_a_code_that_the_help_and_the_table_explain() -> None:
    raised = {
        kind.exit_code
        for name in errors.__all__
        if isinstance(kind := getattr(errors, name), type)
        and issubclass(kind, errors.LeconvertError)
    }
    # 141 is the end of a reader of our output, which nothing raises.
    assert set(errors.EXIT_CODES) == raised | {0, 141}
    table = COMMANDS["leconvert explain"].format_help().partition("exit codes:")[2]
    for code, about in errors.EXIT_CODES.items():
        assert f" {code} {about.short}" in table
        assert about.meaning.endswith(".")
        assert about.remedy or code in {0, 141}
    assert max(map(len, table.splitlines())) <= 80


def test_the_help_shows_every_command_below_what_people_come_for() -> None:
    listed = COMMANDS["leconvert"].format_help().partition("COMMAND\n")[2].partition("\n\n")[0]
    headings = re.findall(r"^ {4}(\S.*):$", listed, re.MULTILINE)
    assert headings == [heading for heading in MAIN_COMMANDS if heading is not None]
    names = re.findall(r"^ {6}([a-z][a-z-]*) ", listed, re.MULTILINE)
    unlisted = _names(MAIN_COMMANDS[None])
    known = [name for places in MAIN_COMMANDS.values() for name in _names(places)]
    assert names == [name for name in known if name not in unlisted]
    assert set(known) == {prog.split()[1] for prog in COMMANDS if len(prog.split()) == 2}


def test_the_help_of_a_command_lists_usual_options_and_help_all_every_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    convert = COMMANDS["leconvert convert"]
    usual = convert.format_help()
    assert len(usual.splitlines()) < 100
    assert "--episodes LIST" in usual
    assert "--lease-seconds" not in usual
    with pytest.raises(SystemExit):
        build_parser().parse_args(["convert", "--help-all"])
    every = capsys.readouterr().out
    listed = set(re.findall(r"(?:^  |, )(--?[\w-]+)", every, re.MULTILINE))
    for each in convert.arguments():
        hidden = each.help == argparse.SUPPRESS
        assert all((option in listed) is not hidden for option in each.option_strings), each


def test_an_editing_command_lists_the_common_options_and_takes_all_of_a_conversion() -> None:
    common = {"--engine", "--work-dir", "--verify", "--dry-run", "--json", "--report"}
    of_convert = set(_options(COMMANDS["leconvert convert"]))
    for name in ("merge", "split", "trim", "repair"):
        listed = re.findall(r"--[a-z-]+(?= |$)", COMMANDS[f"leconvert {name}"].format_help())
        assert common <= set(listed), name
        # A repair lists the repairs.
        assert len(set(listed)) <= (32 if name == "repair" else 20), name
        missing = of_convert - set(_options(COMMANDS[f"leconvert {name}"]))
        assert not {"--retime", "--num-workers", "--nodes", "--quantiles"} & missing
        assert name == "repair" or not {"--layout", "--lease-seconds"} & missing


def _options(parser: Parser) -> list[str]:
    return [option for each in parser.arguments() for option in each.option_strings]


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        (
            "submit run --slurm nodes=8 --slurm partition=cpu --slurm extra=--exclusive",
            "submit run --nodes 8 --partition cpu --slurm-extra=--exclusive",
        ),
        (
            "convert a b --slurm workers_per_node=2 --slurm signal=60 --slurm time=02:00:00",
            "convert a b --workers-per-node 2 --signal 60 --time 02:00:00",
        ),
        (
            "convert a b --ray address=h:1 --ray resource=gpu=1 --ray ship-package --ray nodes=2",
            "convert a b --ray-address h:1 --ray-resource gpu=1 --ray-ship-package --nodes 2",
        ),
        (
            "probe submit --root a --slurm nodes=2 --slurm mem=stream_hub=64G --slurm qos=low",
            "probe submit --root a --nodes 2 --mem stream_hub=64G --qos low",
        ),
        (
            "probe resample --method slerp=pose[3:7] --method linear=action --method slerp=b",
            "probe resample --slerp pose[3:7] --linear action --slerp b",
        ),
    ],
)
def test_one_option_stands_for_many(settings: str, options: str) -> None:
    one, many = (vars(build_parser().parse_args(words.split())) for words in (settings, options))
    typed = one.pop("typed")
    assert one == many
    for flag, key in typed.items():
        assert flag in options
        assert key in settings.replace("_", "-")


def test_a_usual_option_is_an_option() -> None:
    known = {
        option
        for parser in COMMANDS.values()
        for argument in parser.arguments()
        for option in argument.option_strings
    }
    assert set(USUAL_OPTIONS) <= known


def test_the_docs_name_every_command_and_every_option_of_convert() -> None:
    page = Path(__file__).parents[2].joinpath("docs", "cli.md").read_text("utf-8")
    commands = {name for heading, of in MAIN_COMMANDS.items() if heading for name in _names(of)}
    rows = "\n".join(re.findall(r"^\| .*", page, re.MULTILINE))
    named = set(re.findall(r"`([a-z-]+)", rows))
    assert commands <= named
    assert isinstance(COMMANDS["leconvert convert"], Parser)
