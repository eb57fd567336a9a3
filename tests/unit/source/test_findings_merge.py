"""What is said of several sources beside what is said of each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import leconvert
from leconvert import ProofOptions, RepairOptions
from leconvert.errors import SourceError
from leconvert.testing import DatasetSpec, make_dataset

BYTES = ProofOptions(verify="bytes")
SPEC = DatasetSpec(episodes=2, frames=[4, 3], cameras=())


def make(folder: Path, *specs: DatasetSpec) -> list[Path]:
    roots = [folder / f"source{number}" for number in range(len(specs))]
    for root, spec in zip(roots, specs, strict=True):
        make_dataset(root, spec)
    return roots


def test_files_that_come_along_are_the_first_sources(tmp_path: Path) -> None:
    sources = make(
        tmp_path,
        replace(SPEC, extra_files={"README.md": "one"}),
        replace(SPEC, extra_files={"README.md": "two", "notes.txt": "more"}),
    )
    report = leconvert.merge(sources, output=tmp_path / "out", proof=BYTES)
    (finding,) = report.findings
    assert (finding.code, finding.path) == ("merged-file", "README.md")
    assert (tmp_path / "out/README.md").read_text() == "one"
    assert (tmp_path / "out/notes.txt").read_text() == "more"


def test_robots_of_other_types_are_merged_where_that_is_accepted(tmp_path: Path) -> None:
    sources = make(tmp_path, SPEC, replace(SPEC, robot_type="arm"))
    with pytest.raises(SourceError) as caught:
        leconvert.merge(sources, output=tmp_path / "out")
    assert caught.value.details[-1].split() == ["robot_type", "generated", "arm"]
    accepted = RepairOptions(accept=("robot-type",))
    report = leconvert.merge(sources, output=tmp_path / "out", repairs=accepted, proof=BYTES)
    (finding,) = report.findings
    assert (finding.code, finding.severity) == ("robot-type", "repaired")


def test_splits_that_are_not_in_the_result_are_told(tmp_path: Path) -> None:
    halves = {"splits": {"train": "0:1", "val": "1:2"}}
    sources = make(tmp_path, SPEC, replace(SPEC, extra_info=halves))
    (finding,) = leconvert.merge(sources, output=tmp_path / "out").findings
    assert (finding.code, finding.severity) == ("merged-splits", "info")
    assert finding.message.startswith(str(sources[1]))
