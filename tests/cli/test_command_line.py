"""A command line that is wrong: one sentence, what was meant, and where to look it up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from leconvert.cli.main import build_parser
from leconvert.cli.options import push_target, take_arguments
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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "No command is given."),
        ("con", "There is no command 'con'; did you mean convert?"),
        ("xyzzy", "There is no command 'xyzzy'."),
        ("probe rnu", "There is no command 'rnu'; did you mean run?"),
        ("probe", "No command is given."),
        ("convert --ouput out", "There is no option --ouput; did you mean --output?"),
        ("convert --root a --out=out", "There is no option --out; did you mean --output?"),
        ("--jsn status work", "There is no option --jsn."),
        ("probe run --loaders", "There is no option --loaders; did you mean --loader?"),
        ("convert --xyzzy", "There is no option --xyzzy."),
        ("convert -x", "There is no option -x."),
        ("convert a b c", "'c' is one argument too many."),
        ("convert --overwrite", "There is no option --overwrite; did you mean "
         "--force-conversion?"),
        ("convert --force", "There is no option --force; did you mean --force-conversion?"),
        ("push r --force", "There is no option --force."),
        ("convert --resume", "There is no option --resume."),
        ("convert --yes", "There is no option --yes."),
        ("convert --source a", "There is no option --source; did you mean --root?"),
        ("convert --output-dir a", "There is no option --output-dir; did you mean --output?"),
        ("convert --jobs 2", "There is no option --jobs; did you mean --num-workers?"),
        ("convert --no-verfy", "There is no option --no-verfy; did you mean --no-verify?"),
        ("convert --layout stream", "--layout takes reference, streaming, episode-files or overlay,"
         " not 'stream'; did you mean streaming?"),
        ("convert --output", "--output needs a value."),
        ("probe resample --columns", "--columns needs a value."),
        ("convert --restart=yes", "--restart takes no value, but 'yes' was given."),
        ("verify", "RESULT, --source are missing."),
        ("verify out", "--source is missing."),
        ("release", "WORK_DIR|DATASET is missing."),
        ("verify out --souce in", "There is no option --souce; did you mean --source?"),
        ("verify out --source in --bytes --structure", "--structure and --bytes exclude each "
         "other."),
        ("verify out --source in --sample half", "--sample takes a number, not 'half'."),
        ("work my_run --max-batches two", "--max-batches takes a whole number of at least 1, not "
         "'two'."),
        ("convert --max-workers 0", "--max-workers takes a whole number of at least 1, not '0'."),
        ("convert --num-workers -3", "--num-workers takes auto or a whole number of at least 1, "
         "not '-3'."),
        ("convert --num-workers some", "--num-workers takes auto or a whole number of at least 1, "
         "not 'some'."),
        ("convert --engine slrum", "--engine takes inline, local, ray or slurm, not 'slrum'; did "
         "you mean slurm?"),
        ("submit my_run --nodes 0", "--nodes takes a whole number of at least 1, not '0'."),
        ("verify out --source in --decode -1", "--decode takes a whole number of at least 0, not "
         "'-1'."),
        ("work my_run --lease-seconds soon", "--lease-seconds takes a number of seconds above 0, "
         "not 'soon'."),
        ("work my_run --lease-seconds inf", "--lease-seconds takes a number of seconds above 0, "
         "not 'inf'."),
        ("work my_run --max-idle-seconds -1", "--max-idle-seconds takes a number of seconds of at "
         "least 0, not '-1'."),
        ("convert --data-file-size-in-mb 0", "--data-file-size-in-mb takes a number of MB above 0, "
         "not '0'."),
        ("work my_run --scratch-limit 20X", "--scratch-limit takes a size such as 500M or 20G, not "
         "'20X'."),
        ("convert --block-align some", "--block-align takes auto, 0 or a number of bytes such as "
         "4096, not 'some'."),
        ("convert --output s3://bucket/name", "--output s3://bucket/name is no folder; convert to "
         "one, and send it there with `leconvert push`."),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence(leconvert_here: Leconvert, words: str, said: str) -> None:
    refused = leconvert_here(*words.split())
    assert refused.returncode == 2
    assert refused.stdout == ""
    sentence, step = refused.stderr.splitlines()
    assert sentence == f"leconvert: {said}"
    assert step.startswith("  → ")
    assert step.endswith("--help` lists what there is.")


def test_with_json_a_mistake_is_a_document_too(leconvert_here: Leconvert) -> None:
    refused = leconvert_here("convert", "--json", "--rot", "x")
    assert refused.returncode == 2
    document = json.loads(refused.stdout)
    assert document["error"] == "UsageError"
    assert document["message"] == "There is no option --rot; did you mean --root?"
    assert document["next_step"] == "`leconvert convert --help` lists what there is."


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("convert a --root b", "a and --root b are two sources."),
        ("convert a --repo-id org/b", "a and --repo-id org/b are two sources."),
        ("convert org/a --repo-id org/b", "org/a and --repo-id org/b are two sources."),
        ("convert a b -o c", "b and --output c are two places for one result."),
        ("convert --root a -o b --private", "--private says how to push, and nothing would be "
         "pushed."),
        ("convert --root a -o b --private --dry-run", "--private says how to push, and nothing "
         "would be pushed."),
        ("convert --root a --probe-seconds 3", "--probe-seconds goes with --probe."),
        ("convert a b --loader-workers 4", "--loader-workers goes with --layout streaming."),
        ("convert a b --scratch-limit 3G", "--scratch-limit is for files that workers fetch from "
         "the Hub; a is no dataset of the Hub."),
        ("convert --repo-id org/a --scratch-dir b", "--scratch-dir is for files that workers fetch "
         "batch by batch; here the whole of org/a would be downloaded first."),
        ("convert --root s3://bucket/a -o b --repo-id org/a", "s3://bucket/a and --repo-id org/a "
         "are two sources."),
        ("verify a --source b --seed 3", "--seed goes with --sample, --decode or --deep."),
        ("verify a --source b --scratch-dir c", "--scratch-dir is for a source that a URL names, "
         "and b is a folder."),
    ],
)  # fmt: skip
def test_options_that_say_two_things_or_nothing_are_refused(
    leconvert_here: Leconvert, words: str, said: str
) -> None:
    refused = leconvert_here(*words.split())
    assert refused.returncode == 2
    assert refused.stderr.splitlines()[0] == f"leconvert: {said}"


@pytest.mark.parametrize("words", [("hf://datasets/org/a",), ("--root", "hf://datasets/org/a")])
def test_options_of_a_push_go_with_a_url_of_the_hub(
    words: tuple[str, ...],
) -> None:
    options = build_parser().parse_args(["convert", *words, "--private"])
    take_arguments(options)
    assert (options.repo_id, options.root) == ("org/a", None)
    assert (
        push_target(options, LayoutOptions(), None) is None
    )  # where it came from is known when it is here
    take_arguments(options)  # as a dry run does once more
    assert options.repo_id == "org/a"


@pytest.mark.parametrize(
    ("word", "does"),
    [
        ("--overwrite", "--force-conversion replaces a v3.0 dataset at the target and keeps it"),
        ("--resume", "the same command resumes an interrupted run"),
        ("--input", "--root names the dataset's folder"),
        ("--workers", "--num-workers says how many processes work"),
        ("--yes", "Nothing is ever asked"),
    ],
)
def test_a_word_of_other_programs_is_answered_with_what_is_meant_here(
    leconvert_here: Leconvert, word: str, does: str
) -> None:
    assert does in leconvert_here("convert", word).stderr


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


def test_a_word_that_may_be_a_page_or_the_place_of_a_dataset_is_refused(
    leconvert_here: Leconvert, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = leconvert_here("convert", "set", "--report", "page")
    assert refused.returncode == 2
    assert "Write --report=page for the page" in refused.stderr


@pytest.mark.parametrize("name", ["report", "find", "convert"])
def test_a_list_with_the_name_of_a_command_is_given_as_a_path(
    name: str, leconvert_here: Leconvert, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_text("# no dataset\n")
    options = ("-o", "out", "--work-dir", "work")
    refused = leconvert_here("fleet", name, *options)
    assert refused.returncode == 2
    assert f"give it as ./{name}." in refused.stderr
    assert "./" not in leconvert_here("fleet", f"./{name}", *options).stderr


def test_negative_numbers_and_what_follows_two_hyphens_are_no_options(
    leconvert_here: Leconvert,
) -> None:
    assert "no option" not in leconvert_here("status", "none", "--watch", "-1").stderr
    assert "no option" not in leconvert_here("status", "--", "--none").stderr


@pytest.mark.parametrize(
    "words",
    [
        ("convert", "--root", ""),
        ("convert", "--root=", "--dry-run"),
        ("convert", "--root", "there", "--output", ""),
        ("check", ""),
        ("clean", ""),
    ],
)
def test_a_variable_that_is_not_set_is_not_the_folder_one_is_in(
    leconvert_here: Leconvert, words: tuple[str, ...]
) -> None:
    refused = leconvert_here(*words)
    assert refused.returncode == 2
    assert refused.stderr.startswith("leconvert: An argument is empty where a path is needed.\n")


def test_a_folder_whose_name_begins_with_a_hyphen_is_told_how_it_is_given(
    leconvert_here: Leconvert, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "-set").mkdir()
    refused = leconvert_here("convert", "--root", "-set")
    assert refused.returncode == 2
    assert "  → What is called so here is given as ./-set. " in refused.stderr
    assert "is not a LeRobot dataset" in leconvert_here("check", "./-set").stderr


def test_a_dot_is_the_folder_one_is_in(leconvert_here: Leconvert) -> None:
    assert "is not a LeRobot dataset" in leconvert_here("check", ".").stderr


def test_sizes_and_times_are_read_as_they_are_written() -> None:
    assert [size_in_bytes(text) for text in ("7", "1K", "20g", "3MiB", "2TB")] == [
        7, 1024, 20 * 1024**3, 3 * 1024**2, 2 * 1024**4,
    ]  # fmt: skip
    # A whole limit is stored as LeRobot stores it: without a point.
    assert [str(megabytes(text)) for text in ("100", "100.0", "0.5")] == ["100", "100", "0.5"]
    assert [block_align(text) for text in ("auto", "0", "4096")] == [None, 0, 4096]
    assert (seconds("0"), some_seconds("0.5"), whole(1)("1")) == (0.0, 0.5, 1)
