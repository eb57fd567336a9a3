"""``leconvert trim``: what it says, what it refuses, and that it goes back."""

from __future__ import annotations

import json
from pathlib import Path

from tests.program import Leconvert
from tests.trees import digest_of


def test_episodes_are_trimmed_beside_the_source_and_in_place(
    leconvert: Leconvert, source_copy: Path, tmp_path: Path
) -> None:
    before, out = digest_of(source_copy), tmp_path / "out"
    wanted = ("--episode", "0", "--frames", "3:9", "--episode", "4", "--frames", "5:")
    dry = leconvert("trim", source_copy, "-o", out, *wanted, "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert "Pictures of 2 cameras in 2 of 5 episodes will be decoded" in dry.stdout
    assert "5 episodes, 33 frames" in dry.stdout
    assert list(tmp_path.iterdir()) == [source_copy]

    done = leconvert("trim", source_copy, "-o", out, *wanted, "--verify", "bytes", "-j", "2")
    assert done.returncode == 0, done.stderr
    assert "episode 0 trimmed to its frames 3:9, episode 4 trimmed to its frames 5:15" in (
        " ".join(done.stdout.split())
    )
    assert digest_of(source_copy) == before
    verified = leconvert("verify", out, "--source", source_copy, "--bytes")
    assert verified.returncode == 0, verified.stdout
    again = leconvert("trim", source_copy, "-o", out, *wanted)
    assert (again.returncode, "There is nothing to do." in again.stdout) == (0, True)
    other = leconvert("trim", source_copy, "-o", out, "--episode", "0", "--frames", "3:8")
    assert other.returncode == 5, other.stdout

    told = json.loads(leconvert("trim", source_copy, *wanted, "--json").stdout)
    assert told["repairs"]["trimmed_episodes"] == [[0, 3, 9], [4, 5, 15]]
    undone = leconvert("undo", source_copy)
    assert undone.returncode == 0, undone.stderr
    assert digest_of(source_copy) == before


def test_frames_that_cannot_be_are_refused_before_any_work(
    leconvert: Leconvert, small_source: Path, tmp_path: Path
) -> None:
    for words, said in (
        (("--episode", "0", "--frames", "12:13"), "Episode 0 has 12 frames; --frames 12:13"),
        (("--episode", "0", "--frames=-3:5"), "--frames takes FROM:TO"),
        (("--episode", "0", "--frames", "5"), "--frames takes FROM:TO"),
        (("--episode", "0", "--frames", "0:"), "is all of it"),
        (("--episode", "9", "--frames", "0:1"), "the dataset has no episode 9."),
        (
            ("--episode", "0", "--episode", "1", "--frames", "0:1"),
            "--episode is given 2 times and --frames 1 time.",
        ),
    ):
        refused = leconvert("trim", small_source, "-o", tmp_path / "out", *words)
        assert refused.returncode == 2, refused.stderr
        assert said in " ".join(refused.stderr.split()), refused.stderr
    assert list(tmp_path.iterdir()) == []
