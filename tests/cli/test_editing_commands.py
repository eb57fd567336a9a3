"""``leconvert split``, ``trim`` and ``repair``: what they say, and that they can be given again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.program import Leconvert
from tests.trees import digest_of


@pytest.mark.parametrize(
    ("command", "results"),
    [
        ("split {v21} --output-dir out --into a=0-2,b=3-4", {"out/a": "work/a", "out/b": "work/b"}),
        ("repair {v30} -o out --quantiles", {"out": "work"}),
    ],
)
def test_an_editing_command_keeps_its_run_where_it_is_told_and_writes_a_report(
    leconvert_here: Leconvert,
    small_source: Path,
    small_result: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    results: dict[str, str],
) -> None:
    monkeypatch.chdir(tmp_path)
    words = command.format(v21=small_source, v30=small_result).split()
    common = "--work-dir work --report --verify bytes --engine local -j 2 --quiet"
    dry = leconvert_here(*words, *common.replace("--report ", "").split(), "--dry-run")
    assert (dry.returncode, dry.stdout) == (0, ""), dry.stderr
    assert not list(tmp_path.iterdir())
    done = leconvert_here(*words, *common.split())
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    for result, work_dir in results.items():
        assert leconvert_here("check", tmp_path / result).returncode == 0
        assert tmp_path.joinpath(f"{result}.report.html").is_file()
        told = leconvert_here("status", work_dir, "--json")
        assert json.loads(told.stdout)["target"] == str(tmp_path / result)
        assert json.loads(told.stdout)["packed"] is True


def test_a_dataset_is_split_priced_and_split_again(
    leconvert_here: Leconvert, small_source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "parts"
    command = ("split", small_source, "--output-dir", out, "--into", "train=0.6,val=0.4")
    dry = leconvert_here(*command, "--dry-run", code=0)
    assert dry.stdout.count("episodes, ") >= 2
    assert "Nothing was written." in dry.stdout
    sums = dry.stdout.splitlines()[-2]
    assert sums.startswith("In all: 5 episodes, 44 frames in 2 parts. Disk space needed: about ")
    assert not out.exists()
    done = leconvert_here(*command, "-j", "2", code=0)
    assert "train: episodes " in done.stdout
    assert "Converted 3 episodes" in done.stdout
    assert "Converted 2 episodes" in done.stdout
    before = digest_of(out)
    again = leconvert_here(*command, code=0)
    assert again.stdout.count("was finished before and matches the source (compared now") == 2
    told = json.loads(leconvert_here(*command, "--json").stdout)["parts"]
    assert [(part["name"], part["report"]) for part in told] == [("train", None), ("val", None)]
    alone = ("--into", "a=0-3,b=4", "--dry-run")
    assert "b: episode 4, " in leconvert_here(*command[:-2], *alone, code=0).stdout
    for part in told:
        leconvert_here("verify", part["output"], "--source", small_source, code=0)
    leconvert_here(*command, "--seed", "2", code=5)
    assert digest_of(out) == before


def test_episodes_are_trimmed_beside_the_source_and_in_place(
    leconvert_here: Leconvert, source_copy: Path, tmp_path: Path
) -> None:
    before, out = digest_of(source_copy), tmp_path / "out"
    wanted = ("--episode", "0", "--frames", "3:9", "--episode", "4", "--frames", "5:")
    dry = leconvert_here("trim", source_copy, "-o", out, *wanted, "--dry-run", code=0)
    assert "Pictures of 2 cameras in 2 of 5 episodes will be decoded" in dry.stdout
    assert "5 episodes, 33 frames" in dry.stdout
    assert list(tmp_path.iterdir()) == [source_copy]

    done = leconvert_here("trim", source_copy, "-o", out, *wanted, "--verify", "bytes", "-j", "2")
    assert done.returncode == 0, done.stderr
    assert "episode 0 trimmed to its frames 3:9, episode 4 trimmed to its frames 5:15" in (
        " ".join(done.stdout.split())
    )
    assert digest_of(source_copy) == before
    leconvert_here("verify", out, "--source", source_copy, "--bytes", code=0)
    again = leconvert_here("trim", source_copy, "-o", out, *wanted)
    assert (again.returncode, "There is nothing to do." in again.stdout) == (0, True)
    leconvert_here("trim", source_copy, "-o", out, "--episode", "0", "--frames", "3:8", code=5)

    told = json.loads(leconvert_here("trim", source_copy, *wanted, "--json").stdout)
    assert told["repairs"]["trimmed_episodes"] == [[0, 3, 9], [4, 5, 15]]
    leconvert_here("undo", source_copy, code=0)
    assert digest_of(source_copy) == before
