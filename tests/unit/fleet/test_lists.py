"""Lists of datasets, and policies: what each line means, and what is refused by file and line."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from leconvert.fleet import (
    FleetDataset,
    Line,
    Policy,
    PolicyRule,
    check_fleet,
    find_datasets,
    look_at_datasets,
    read_list,
    read_policy,
)
from leconvert.fleet.lists import conversion_from_record, conversion_record
from leconvert.model.repairs import RepairOptions
from leconvert.model.selection import EpisodeSelection
from leconvert.model.values import LayoutOptions
from leconvert.run.conversion import Conversion, ProofOptions
from leconvert.support.errors import UsageError


def dataset(folder: Path, version: str = "v2.1") -> Path:
    (folder / "meta").mkdir(parents=True)
    info = {"codebase_version": version, "total_episodes": 3}
    (folder / "meta/info.json").write_text(json.dumps(info))
    return folder


def parse(words: Sequence[str]) -> Line:
    """Read the few options that these tests write, as the command line reads all."""
    place, *left = words
    if "--bad" in left:
        raise UsageError("There is no option --bad.", next_step="Leave this trajectory out.")
    given = dict(itertools.pairwise(left))
    layout = LayoutOptions(layout=given.get("--layout", "reference"))
    repairs = RepairOptions(retime="--retime" in left)
    return Line(place, given.get("--name"), Conversion(layout=layout, repairs=repairs))


def read(text: str, folder: Path) -> list[tuple[str, str, bool]]:
    path = folder / "list.txt"
    path.write_bytes(os.fsencode(text))
    found = read_list(path, Path("/out"), parse, say=print)
    assert all(one.target == Path("/out") / one.name for one in found)
    return [(one.name, str(one.source), one.options.repairs.retime) for one in found]


def test_lines_are_paths_and_globs_from_the_folder_of_the_list(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a/one", "a/two", "a/# three", "b"):
        dataset(tmp_path / name)
    (tmp_path / "a/notes").mkdir()
    text = f"""\
# all of a
a/*
a/two --retime   # by wall clock
'a/# three' --name three # a name with a mark in it

{tmp_path}/b
"""
    assert read(text, tmp_path) == [
        ("b", str(tmp_path / "b"), False),
        ("one", str(tmp_path / "a/one"), False),
        ("three", str(tmp_path / "a/# three"), False),
        ("two", str(tmp_path / "a/two"), True),
    ]
    assert "line 2: left out 1 folder without meta/info.json" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a\nmissing\n", "list.txt, line 2: missing does not exist."),
        ("none*", "list.txt, line 1: none* matches no dataset."),
        ("a 'b", "list.txt, line 1: No closing quotation."),
        ("# nothing\n\na --bad", "list.txt, line 3: There is no option --bad."),
        ("list.txt", "list.txt, line 1: list.txt is not a folder."),
        ("* --name x", "line 1: --name can name only one result, but the line gives 2 datasets."),
        ("a --name ../x", "line 1: '../x' cannot be the name of a result."),
        ("a --name /x", "line 1: '/x' cannot be the name of a result."),
        ("a --name .x", "line 1: '.x' cannot be the name of a result."),
        ("a --name '\udcff'", "the name of the result '\\udcff' has a character"),
        ("s3://b/name", "line 1: s3://b/name is neither a folder nor a dataset on the Hub."),
        ("https://huggingface.co/o", "line 1: https://huggingface.co/o is neither a folder nor"),
        ("hf://org", "line 1: hf://org is neither a folder nor a dataset on the Hub."),
        ("a/missing", "line 1: a/missing does not exist."),
        ("org/a@v2.1 --name org/a\norg/a", "would be in the same place, both named org/a."),
        ("org/a@v2.1 --layout overlay", "--layout overlay leaves the files of"),
        ("# nothing", "list.txt contains no dataset."),
        ("a\nb --name a", "two results would be in the same place, both named a."),
        ("a\nb --name a/b", "two results would be in the same place, a/b lies inside a."),
    ],
)
def test_a_bad_line_is_refused_by_file_and_number(tmp_path: Path, text: str, said: str) -> None:
    dataset(tmp_path / "a")
    dataset(tmp_path / "b")
    with pytest.raises(UsageError) as caught:
        read(text, tmp_path)
    assert said in caught.value.message
    assert caught.value.next_step


def test_a_refusal_names_what_helps_and_a_collision_both_lines(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        read("'s3://bucket/a b'", tmp_path)
    command = "`leconvert convert --root 's3://bucket/a b' --output RESULT`"
    assert command in str(caught.value.next_step)
    one, other = (dataset(tmp_path / name) for name in ("x/pick", "y/pick"))
    with pytest.raises(UsageError) as caught:
        read("x/pick\n\ny/pick\n", tmp_path)
    assert caught.value.details == (f"line 1: {one}", f"line 3: {other}")
    assert "--name" in (caught.value.next_step or "")


def test_options_of_a_dataset_come_back_from_their_record() -> None:
    options = Conversion(
        layout=LayoutOptions(to="v2.1", episodes_per_batch=7),
        selection=EpisodeSelection(exclude_episodes="3-5", exclude_tasks=("a", "b")),
        repairs=RepairOptions(retime=True, accept=("stats-disagree",), drop_features=("x",)),
        proof=ProofOptions(verify="bytes"),
    )
    record = json.loads(json.dumps(conversion_record(options)))
    assert conversion_from_record(record) == options
    assert conversion_from_record(conversion_record(Conversion())) == Conversion()


def test_sources_results_and_work_dir_may_not_mix(tmp_path: Path) -> None:
    def places(source: str, target: str, work: str) -> None:
        one = FleetDataset("n", tmp_path / source, tmp_path / target)
        check_fleet([one], tmp_path / work)

    places("in/a", "out/a", "work")
    for source, target, work in (
        ("in/a", "in/a", "work"),
        ("in/a", "in/a/b", "work"),
        ("out/a/b", "out/a", "work"),
        ("in/a", "out/a", "in/a/work"),
        ("work/a", "out/a", "work"),
    ):
        with pytest.raises(UsageError):
            places(source, target, work)


def test_datasets_are_found_and_looked_at(tmp_path: Path) -> None:
    dataset(tmp_path / "org/b", "v3.0")
    dataset(tmp_path / "a")
    dataset(tmp_path / ".hidden/c")
    dataset(tmp_path / "a/inside")
    (tmp_path / "empty/meta").mkdir(parents=True)
    (tmp_path / "own").symlink_to(tmp_path / "a")
    found = list(look_at_datasets(tmp_path, find_datasets(tmp_path), scan=False))
    assert [(one.name, one.version, one.episodes) for one in found] == [
        ("a", "v2.1", 3),
        ("org/b", "v3.0", 3),
    ]
    seen = next(look_at_datasets(tmp_path, [tmp_path / "a"]))
    assert seen.problem is not None
    with pytest.raises(UsageError, match="is not a folder"):
        find_datasets(tmp_path / "nowhere")


def test_what_cannot_be_read_is_found_too_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "in"
    (dataset(root / "sound") / "meta/info.json").rename(tmp_path / "info.json")
    (root / "sound/meta/tasks.jsonl").touch()
    (root / "tables/data/chunk-000").mkdir(parents=True)
    (root / "tables/data/chunk-000/episode_000000.parquet").touch()
    dataset(root / "tables/inside")
    dataset(tmp_path / "elsewhere/one")
    (root / "link").symlink_to(tmp_path / "elsewhere/one")
    (root / "closed").mkdir()
    (root / "closed").chmod(0)
    real = os.scandir

    def scandir(path: Any = ".") -> Any:
        if str(path).endswith("closed"):  # as it is for who is not root
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    found = {one.name: one for one in look_at_datasets(root, find_datasets(root), scan=False)}
    assert list(found) == ["closed", "link", "sound", "tables", "tables/inside"]
    assert all(one.is_left_out for one in found.values())
    reasons = {name: str(one.problem) for name, one in found.items()}
    assert "Permission denied" in reasons["closed"]
    assert str(tmp_path / "elsewhere/one") in reasons["link"]
    assert "no meta/info.json" in reasons["sound"]
    assert "1 dataset below it" in reasons["tables"]


def test_a_folder_that_this_user_may_not_enter_ends_no_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset(tmp_path / "open")
    dataset(tmp_path / "private")
    status = Path.stat

    def stat(path: Path, **arguments: Any) -> Any:
        if "private/meta/" in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return status(path, **arguments)

    monkeypatch.setattr(Path, "stat", stat)
    assert find_datasets(tmp_path) == [tmp_path / "open", tmp_path / "private"]
    assert len(read("*", tmp_path)) == 2, "it is set aside with its reason"


# ------------------------------------------------------------------------------------------------
# Policies


def parse_flags(words: Sequence[str]) -> RepairOptions:
    if "--bad" in words:
        raise UsageError("There is no option --bad.")
    return RepairOptions(
        retime="--retime" in words,
        accept=tuple(word for word in words if not word.startswith("--")),
    )


def policy_of(text: str, folder: Path) -> Policy:
    path = folder / "policy.toml"
    path.write_text(text)
    return read_policy(path, parse_flags)


def test_a_rule_holds_for_its_datasets_and_findings_alone(tmp_path: Path) -> None:
    policy = policy_of(
        """
        [[rule]]
        datasets = ["lab/*", "/data/*"]
        findings = "timestamps"
        flags = "--retime"

        [[rule]]
        datasets = "lab/x"
        flags = ["--accept stats-disagree"]
        """,
        tmp_path,
    )
    assert Policy.from_record(json.loads(json.dumps(policy.as_record()))) == policy
    retimed = RepairOptions(retime=True)
    for name, source, codes, expected in (
        ("lab/y", "/in/y", ["timestamps"], retimed),
        ("y", "/data/y", ["frame-count", "timestamps"], retimed),
        ("y", "/in/y", ["timestamps"], None),
        ("lab/y", "/in/y", ["frame-count"], None),
        ("lab/x", "/in/x", ["timestamps"], replace(retimed, accept=("stats-disagree",))),
    ):
        one = FleetDataset(name, Path(source), Path("/out") / name)
        errors = [error(code) for code in codes]
        assert policy.after(one, policy.always(one), errors) == expected, (name, codes)
    tried = FleetDataset("lab/y", Path("/in/y"), Path("/out/y"))
    assert policy.after(tried, retimed, [error("timestamps")]) is None


def error(code: str, stream: str | None = None, *flags: str) -> dict[str, Any]:
    """Return what a rule looks at of an error's record."""
    return {"code": code, "stream": stream, "remedies": [{"flag": flag} for flag in flags]}


def test_a_rule_leaves_out_and_assumes_what_findings_name(tmp_path: Path) -> None:
    policy = policy_of(
        """
        [[rule]]
        findings = ["phantom-feature", "unloadable-feature"]
        flags = "--retime --drop-feature={column}"

        [[rule]]
        findings = "frame-rate"
        flags = "--assume-fps {fps}"

        [[rule]]
        findings = "codebase-version"
        flags = "--assume-version {version}"

        [[rule]]
        datasets = "lab/*"
        findings = "missing-file"
        flags = ["--drop-feature {camera}"]
        """,
        tmp_path,
    )
    assert policy.rules[0].flags == ("--retime", "--drop-feature {column}")
    assert Policy.from_record(json.loads(json.dumps(policy.as_record()))) == policy
    phantom = [
        error("phantom-feature", None, "--drop-feature force"),
        error("phantom-feature", "videos/top", "--drop-feature top"),
        error("unloadable-feature", None, "--drop-feature 'a b'"),
    ]
    missing = [error("missing-file", "videos/top", "--drop-feature top", "--on-bad-episode drop")]
    nameless = [error("missing-file", "data", "--on-bad-episode drop")]
    for name, errors, expected in (
        ("x", phantom, RepairOptions(retime=True, drop_features=("force", "a b"))),
        ("lab/x", missing, RepairOptions(drop_features=("top",))),
        ("x", missing, None),
        (
            "x",
            [error("frame-rate", None, "--assume-fps 30", "--retime")],
            RepairOptions(assume_fps="30"),
        ),
        *(
            (
                "x",
                [error("codebase-version", None, f"--assume-version {version}")],
                RepairOptions(assume_version=version),
            )
            for version in ("v2.0", "v3.0")
        ),
        ("lab/x", nameless, None),
    ):
        one = FleetDataset(name, Path("/x"), Path("/y"))
        assert policy.after(one, RepairOptions(), errors) == expected, (name, errors)


def test_rules_add_to_what_is_given_and_none_retimes_by_a_rate_that_is_in_doubt() -> None:
    one = FleetDataset("x", Path("/in/x"), Path("/out/x"))
    times = [error("timestamps", "data", "--retime")]
    policy = Policy((PolicyRule(("--retime",), findings=("timestamps",)),))
    assert policy.after(one, RepairOptions(), times) == RepairOptions(retime=True)
    assert policy.after(one, RepairOptions(), [*times, error("frame-rate")]) is None
    policy = Policy((PolicyRule(("--accept b",), findings=("timestamps",)),))
    both = RepairOptions(reindex=True, accept=("a", "b"))
    assert policy.after(one, RepairOptions(reindex=True, accept=("a",)), times) == both


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rule = 1", "write each rule below a line [[rule]]"),
        ("[[rules]]\nflags = '--retime'", "'rules' is unknown"),
        ("[[rule]]\nflag = '--retime'", "rule 1: 'flag' is unknown. The keys of a rule are "),
        ("[[rule]]\nfindings = 'timestamps'", "rule 1 allows nothing"),
        ("[[rule]]\nflags = 1", "rule 1: flags must be a text or a list of texts."),
        ("[[rule]]\nflags = '--bad'", "rule 1: There is no option --bad."),
        ("[[rule]]\nflags = '--retime'\nfindings = 'time'", "rule 1: there is no finding 'time'."),
        ("[[rule]]\nflags = '--assume-fps {fps}'", "works only in a rule with findings"),
        ("[[rule]]\nflags = '--drop-feature {all}'", "A rule may contain"),
        ("[[rule", "is not TOML"),
    ],
)
def test_a_policy_that_cannot_be_meant_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        policy_of(text, tmp_path)
    assert said in caught.value.message
    with pytest.raises(UsageError, match="The policy"):
        read_policy(tmp_path / "nowhere.toml", parse_flags)


def test_a_list_on_standard_input_starts_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset(tmp_path / "a")
    read_end, write_end = os.pipe()
    os.write(write_end, b"a\n")
    os.close(write_end)
    monkeypatch.chdir(tmp_path)
    try:
        found = read_list(Path(f"/dev/fd/{read_end}"), tmp_path / "out", parse, say=str)
    finally:
        os.close(read_end)
    assert [one.source for one in found] == [tmp_path / "a"]
