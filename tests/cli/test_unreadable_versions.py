"""Datasets of versions and storage formats that are not ours: every door refuses them alike.

Their files are those of a v3.0 dataset, so that a program that looks at nothing but the files, or
at the first digits of a version, would take them.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from leconvert.loading import EpisodeStream
from leconvert.support.errors import SourceError
from tests.hub import WRITE_TOKEN, StandIn
from tests.program import Leconvert
from tests.trees import snapshot

READS = "in its meta/info.json. leconvert reads v2.0, v2.1 and v3.0"
STORAGE = "stores its data as lance. leconvert reads only parquet and MP4 files"
OTHERS: dict[str, tuple[dict[str, str], str, str]] = {
    "v3.1": ({"codebase_version": "v3.1"}, f"has codebase_version 'v3.1' {READS}", "newer"),
    "v1.6": ({"codebase_version": "v1.6"}, f"has codebase_version 'v1.6' {READS}", "v1_to_v2.py"),
    "lance": (
        {"storage_format": "lance"},
        STORAGE,
        ("Export the dataset to parquet and MP4 with the program that wrote it"),
    ),
}
DOORS = (
    "convert {bad} --output {out} --layout streaming",
    "convert {bad} --output {out} --to v2.1",
    "convert {bad}",
    "convert {bad} --output {out} --dry-run",
    "plan {bad} --output {out} --work-dir {work}",
    "check {bad}",
    "check {bad} --plan-repairs",
    "repair {bad}",
    "repair {bad} --drop-feature action",
    "merge {good} {bad} --output {out}",
    "split {bad} --output-dir {out} --into a=0,b=1",
    "trim {bad} --output {out} --episode 0 --frames 0:2",
    "verify {good} --source {bad}",
    "probe run --root {bad}",
    "push {bad} --push-repo-id tester/arm --dry-run",
)


@pytest.fixture(params=list(OTHERS))
def other(
    request: pytest.FixtureRequest,
    small_result: Path,
    tmp_path: Path,
    edit_json: Callable[..., None],
) -> tuple[Path, str, str]:
    """A dataset that nobody here reads, what is said of it, and what helps."""
    changes, said, helps = OTHERS[request.param]
    bad = tmp_path / "datasets" / "bad"
    shutil.copytree(small_result, bad)
    edit_json(bad / "meta/info.json", **changes)
    return bad, said, helps


def test_every_command_and_the_loader_refuse_it_before_any_work(
    leconvert_here: Leconvert, small_result: Path, other: tuple[Path, str, str], tmp_path: Path
) -> None:
    bad, said, helps = other
    before = snapshot(tmp_path)
    for door in DOORS:
        words = door.format(
            good=small_result, bad=bad, out=tmp_path / "out", work=tmp_path / "work"
        )
        done = leconvert_here(*words.split())
        assert done.returncode == 3, (door, done)
        assert f"{bad} {said}." in done.stderr, door
        assert helps in done.stderr, door
        assert snapshot(tmp_path) == before, door
    with pytest.raises(SourceError) as caught:
        EpisodeStream(bad)
    assert caught.value.message == f"{bad} {said}."
    assert helps in (caught.value.next_step or "")


@pytest.mark.parametrize("other", ["v3.1", "lance"], indirect=True)
def test_a_fleet_finds_it_leaves_it_out_and_sets_it_aside(
    leconvert_here: Leconvert, other: tuple[Path, str, str], tmp_path: Path
) -> None:
    bad, said, _ = other
    for scan in ([], ["--no-scan"]):
        found = leconvert_here("fleet", "find", bad.parent, *scan, code=0)
        assert f"#   {bad} {said}." in found.stdout.splitlines(), scan
        assert all(line.startswith("#") for line in found.stdout.splitlines()), scan
    (tmp_path / "list").write_text(str(bad))
    done = leconvert_here(
        *("fleet", tmp_path / "list", "--output-dir", tmp_path / "out"),
        *("--work-dir", tmp_path / "work"),
        code=8,
    )
    assert f"{bad} {said}." in done.stdout + done.stderr
    assert not (tmp_path / "out" / "bad").exists()


def test_verify_holds_it_against_a_result(
    leconvert_here: Leconvert, small_result: Path, other: tuple[Path, str, str]
) -> None:
    done = leconvert_here("verify", other[0], "--source", small_result, code=10)
    assert re.search("codebase_version: expected v3.0|storage_format: expected no", done.stdout)


def test_it_is_refused_on_the_hub_and_not_replaced_there(
    leconvert_here: Leconvert, hub: StandIn, small_result: Path, other: tuple[Path, str, str],
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    bad, said, helps = other
    monkeypatch.setenv("HF_TOKEN", WRITE_TOKEN)
    hub.add_repo("tester/arm", bad, tags=("v3.0", "v3.1"))
    before = hub.repo("tester/arm").branches["main"]
    for words in (
        ("convert", "--repo-id", "tester/arm", "--output", tmp_path / "out"),
        ("convert", "--repo-id", "tester/arm", "--output", tmp_path / "out", "--to", "v2.1"),
        ("plan", "--repo-id", "tester/arm", "--output", tmp_path / "out"),
    ):
        done = leconvert_here(*words)
        assert done.returncode == 3, (words, done)
        assert f" {said}." in done.stderr, words
        assert helps in done.stderr, words
    found = leconvert_here("fleet", "find", "hf://tester")
    assert all(line.startswith("#") for line in found.stdout.splitlines()), found
    assert f" {said}." in found.stdout
    (tmp_path / "list").write_text("hf://datasets/tester/arm")
    priced = leconvert_here(
        *("fleet", tmp_path / "list", "--output-dir", tmp_path / "out", "--dry-run"),
        *("--work-dir", tmp_path / "work", "--json"),
    )
    assert json.loads(priced.stdout)["datasets"][0]["stops_at"] == ["SourceError"]
    pushed = leconvert_here("push", small_result, "--push-repo-id", "tester/arm")
    assert pushed.returncode == 17, pushed
    assert f"tester/arm {said}." in pushed.stderr
    assert hub.repo("tester/arm").branches["main"] == before
