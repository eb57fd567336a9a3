"""``leconvert split``: what it says, what it refuses, and that it can be given again."""

from __future__ import annotations

import json
from pathlib import Path

from tests.program import Leconvert
from tests.trees import digest_of


def test_a_dataset_is_split_priced_and_split_again(
    leconvert: Leconvert, small_source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "parts"
    command = ("split", small_source, "--output-dir", out, "--into", "train=0.6,val=0.4")
    dry = leconvert(*command, "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert dry.stdout.count("episodes, ") >= 2
    assert "Nothing was written." in dry.stdout
    sums = dry.stdout.splitlines()[-2]
    assert sums.startswith("Together 5 episodes, 44 frames in 2 parts; they need about ")
    assert not out.exists()
    done = leconvert(*command, "-j", "2")
    assert done.returncode == 0, done.stderr
    assert "train: episodes " in done.stdout
    assert "Converted 3 episodes" in done.stdout
    assert "Converted 2 episodes" in done.stdout
    before = digest_of(out)
    again = leconvert(*command)
    assert again.returncode == 0, again.stderr
    assert again.stdout.count("was finished before.") == 2
    told = json.loads(leconvert(*command, "--json").stdout)["parts"]
    assert [(part["name"], part["report"]) for part in told] == [("train", None), ("val", None)]
    for part in told:
        verified = leconvert("verify", part["output"], "--source", small_source)
        assert verified.returncode == 0, verified.stdout
    refused = leconvert(*command, "--seed", "2")
    assert refused.returncode == 5, refused.stderr
    assert digest_of(out) == before


def test_parts_that_cannot_be_are_refused_before_any_work(
    leconvert: Leconvert, small_source: Path, tmp_path: Path
) -> None:
    for into, said in (
        ("train=0.9,val=0.2", "the shares add up to 1.1, not to 1."),
        ("train=0.9,val=4", "val is a list of episodes, and another part a share."),
        ("train=0-2,val=4", "no part has 1 episode: 3."),
        ("../train=0-4", "cannot be the name of a part"),
        ("0.9,0.1", "names no part"),
    ):
        refused = leconvert("split", small_source, "--output-dir", tmp_path / "out", "--into", into)
        assert (refused.returncode, said in refused.stderr) == (2, True), refused.stderr
    assert list(tmp_path.iterdir()) == []
