"""What is said of several sources beside what is said of each."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import leconvert
from leconvert import ProofOptions, RepairOptions
from leconvert.support.errors import FindingsError, SourceError
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
        replace(SPEC, extra_files={"README.md": "one", ".gitattributes": "one"}),
        replace(
            SPEC, extra_files={"README.md": "two", ".gitattributes": "two", "notes.txt": "more"}
        ),
    )
    report = leconvert.merge(sources, output=tmp_path / "out", proof=BYTES)
    (finding,) = report.findings
    assert (finding.code, finding.path) == ("merged-file", "README.md")
    assert "1 file left behind" in finding.message
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
    assert str(sources[1]) in finding.message


def test_a_merge_of_some_datasets_with_quantiles_says_that_it_has_none_of_all(
    tmp_path: Path,
) -> None:
    sources = make(tmp_path, replace(SPEC, quantiles=True), SPEC)
    (finding,) = leconvert.merge(sources, output=tmp_path / "out", proof=BYTES).findings
    assert (finding.code, finding.severity) == ("merged-quantiles", "info")
    assert finding.remedy == "--quantiles"
    assert str(sources[1]) in finding.message
    assert "q01" not in stats_of(tmp_path / "out")["action"]
    quantiles = RepairOptions(quantiles=True)
    report = leconvert.merge(sources, output=tmp_path / "all", repairs=quantiles, proof=BYTES)
    assert not report.findings
    assert "q01" in stats_of(tmp_path / "all")["action"]


def test_bounds_of_quantiles_are_told_where_they_are_aggregated(tmp_path: Path) -> None:
    pictured = replace(SPEC, image_keys=("observation.images.still",), quantiles=True)
    sources = make(tmp_path, pictured, pictured)
    findings = leconvert.merge(sources, output=tmp_path / "out", proof=BYTES).findings
    assert [finding.code for finding in findings] == ["quantile-bounds", "quantile-bounds"]
    sources[1] = make_dataset(tmp_path / "other", replace(pictured, quantiles=False))
    findings = leconvert.merge(sources, output=tmp_path / "mixed", proof=BYTES).findings
    assert [finding.code for finding in findings] == ["merged-quantiles"]


def stats_of(root: Path) -> dict[str, Any]:
    stats: dict[str, Any] = json.loads((root / "meta/stats.json").read_text())
    return stats


def test_a_column_that_one_source_has_and_does_not_declare_can_be_left_out(tmp_path: Path) -> None:
    sources = make(tmp_path, SPEC, SPEC)
    for path in sorted(sources[1].glob("data/*/*.parquet")):
        table = pq.read_table(path)
        pq.write_table(table.append_column("extra", pa.array([1.0] * len(table))), path)
    with pytest.raises(FindingsError) as caught:
        leconvert.merge(sources, output=tmp_path / "out")
    (error,) = (each for each in caught.value.findings if each["severity"] == "error")
    flags = [remedy["flag"] for remedy in error["remedies"]]
    assert flags == ["--declare-features", "--drop-feature extra"]
    repairs = RepairOptions.of_flags(flags[1:])
    report = leconvert.merge(sources, output=tmp_path / "out", repairs=repairs, proof=BYTES)
    assert report.episodes == 4
