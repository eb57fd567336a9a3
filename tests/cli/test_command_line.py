"""A command line that is wrong: one sentence, what was meant, and where to look it up."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest

from leconvert.cli.main import build_parser, main
from leconvert.cli.options import push_target
from leconvert.cli.sources import take_arguments
from leconvert.model.values import LayoutOptions
from leconvert.support.flags import (
    block_align,
    megabytes,
    seconds,
    size_in_bytes,
    some_seconds,
    whole,
)
from tests.program import Leconvert


def test_with_json_a_mistake_is_a_document_too(leconvert_here: Leconvert) -> None:
    refused = leconvert_here("convert", "--json", "--rot", "x", code=2)
    document = json.loads(refused.stdout)
    assert document["error"] == "UsageError"
    assert document["message"] == "There is no option --rot; did you mean --root?"
    assert document["next_step"] == "`leconvert convert --help` lists the options."


@pytest.mark.parametrize("words", [("hf://datasets/org/a",), ("--root", "hf://datasets/org/a")])
def test_options_of_a_push_go_with_a_url_of_the_hub(words: tuple[str, ...]) -> None:
    options = build_parser().parse_args(["convert", *words, "--private"])
    take_arguments(options)
    assert (options.repo_id, options.root) == ("org/a", None)
    assert (
        push_target(options, LayoutOptions(), None) is None
    )  # where it came from is known when it is here
    take_arguments(options)  # as a dry run does once more
    assert options.repo_id == "org/a"


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ("status --watch work", {"work_dir": Path("work"), "watch": 2.0}),
        ("status --watch 10 work", {"work_dir": Path("work"), "watch": 10.0}),
        ("status work --watch", {"work_dir": Path("work"), "watch": 2.0}),
        ("convert --report here out", {"dataset": "here", "report": Path()}),
        ("convert --report ORG/NAME out", {"dataset": "ORG/NAME", "report": Path()}),
        ("convert here --report a.html", {"dataset": "here", "report": Path("a.html")}),
        ("convert here --report=a", {"dataset": "here", "report": Path("a")}),
        ("convert --push-to-hub ORG/NAME", {"dataset": "ORG/NAME", "push_to_hub": "true"}),
        ("convert --push-to-hub False here", {"dataset": "here", "push_to_hub": "False"}),
        ("convert --push-to-hub --json here", {"dataset": "here", "push_to_hub": "true"}),
        ("fleet --push-to-hub list --work-dir w", {"list": Path("list"), "push_to_hub": "true"}),
    ],
)
def test_a_value_that_may_be_left_out_is_not_the_dataset(
    words: str, given: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    options = vars(build_parser().parse_args(words.split()))
    assert {name: options[name] for name in given} == given


@pytest.mark.parametrize("name", ["report", "find", "convert"])
def test_a_list_with_the_name_of_a_command_is_given_as_a_path(
    name: str, leconvert_here: Leconvert, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_text("# no dataset\n")
    options = ("-o", "out", "--work-dir", "work")
    refused = leconvert_here("fleet", name, *options, code=2)
    assert f"Write ./{name} for the file of that name." in refused.stderr
    assert "./" not in leconvert_here("fleet", f"./{name}", *options).stderr
    Path(name).rename("list.txt")
    assert "./" not in leconvert_here("fleet", "list.txt", "-o", "out", code=2).stderr


def test_negative_numbers_and_what_follows_two_hyphens_are_no_options(
    leconvert_here: Leconvert,
) -> None:
    assert "no option" not in leconvert_here("status", "none", "--watch", "-1").stderr
    assert "no option" not in leconvert_here("status", "--", "--none").stderr


def test_a_folder_whose_name_begins_with_a_hyphen_is_told_how_it_is_given(
    leconvert_here: Leconvert, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "-set").mkdir()
    refused = leconvert_here("convert", "--root", "-set", code=2)
    assert "  → Write ./-set for the file or folder of that name. " in refused.stderr
    assert "is not a LeRobot dataset" in leconvert_here("check", "./-set").stderr


def test_help_and_a_command_are_the_help_of_the_command(
    leconvert_here: Leconvert, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, same in ((["help"], ["--help"]), (["help", "clean"], ["clean", "--help"])):
        assert main(words) == 0
        told = capsys.readouterr().out
        assert main(same) == 0
        assert told == capsys.readouterr().out != ""


def test_n_is_dry_run_in_every_command_that_has_it_and_no_help_lists_it() -> None:
    for parser in build_parser().declared():
        names = parser._option_string_actions
        assert names.get("-n") is names.get("--dry-run")
        assert "-n," not in parser.format_help()
    assert build_parser().parse_args(["convert", "set", "-n"]).dry_run


def test_the_folder_above_datasets_is_told_how_many_lie_below(
    leconvert_here: Leconvert, small_source: Path, tmp_path: Path
) -> None:
    above = tmp_path / "recordings"
    for name in ("one", "org/two", ".hidden", "org/.hidden"):
        shutil.copytree(small_source / "meta", above / name / "meta")
    refused = leconvert_here("check", above, code=3).stderr
    assert f"{above} is not a dataset, but a folder with 2 datasets below it" in refused
    found = leconvert_here(*shlex.split(refused.split("`")[1])[1:]).stdout
    assert f"{above}/one" in found
    assert f"{above}/org/two" in found


def test_sizes_and_times_are_read_as_they_are_written() -> None:
    assert [size_in_bytes(text) for text in ("7", "1K", "20g", "3MiB", "2TB")] == [
        7, 1024, 20 * 1024**3, 3 * 1024**2, 2 * 1024**4,
    ]  # fmt: skip
    # A whole limit is stored as LeRobot stores it: without a point.
    assert [str(megabytes(text)) for text in ("100", "100.0", "0.5")] == ["100", "100", "0.5"]
    assert [block_align(text) for text in ("auto", "0", "4096")] == [None, 0, 4096]
    assert (seconds("0"), some_seconds("0.5"), whole(1)("1")) == (0.0, 0.5, 1)
