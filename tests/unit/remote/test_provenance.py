"""What a result remembers of where it came from."""

from __future__ import annotations

from pathlib import Path

from leconvert.model.repairs import DroppedEpisode, Repairs
from leconvert.model.values import Finding
from leconvert.remote.provenance import Origin, Provenance, read_provenance, write_provenance


def test_findings_are_counted_and_repairs_told_in_words() -> None:
    findings = [
        Finding(code, "warning", "Seen.") for code in ("stale-stats", "remux", "stale-stats")
    ]
    repairs = Repairs(
        dropped_episodes=(DroppedEpisode(3, "missing-file"),), computed_columns=("timestamp",)
    )
    origin = Origin("tester/arm", "v2.1", "0" * 40)
    made = Provenance.of(origin, {"layout": "streaming"}, findings, repairs)
    assert made == Provenance(
        repo_id="tester/arm",
        revision="v2.1",
        commit="0" * 40,
        options={"layout": "streaming"},
        findings={"stale-stats": 2, "remux": 1},
        changes=tuple(repairs.summary()),
    )
    assert len(made.changes) == 2


def test_a_local_source_has_no_repo() -> None:
    assert Provenance.of(None, {}) == Provenance()


def test_a_record_is_read_as_it_was_written_and_lies_beside_the_result(tmp_path: Path) -> None:
    result = tmp_path / "out"
    assert read_provenance(result) is None
    told = Provenance(
        "tester/arm", "main", "1" * 40, {"a": 1}, {"remux": 2}, ("x",), pushed=True,
        source="hf://datasets/tester/arm", files={"meta/info.json": (1, "a" * 64)},
        merged=(Origin("tester/leg", "main", "2" * 40), Origin("", "", "")),
    )  # fmt: skip
    write_provenance(result, told, run_id="run")
    assert read_provenance(result) == told
    assert [path.name for path in tmp_path.iterdir()] == [".out.leconvert-provenance"]
