"""What a result remembers of where it came from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from leconvert import convert
from leconvert.model.repairs import RepairOptions
from leconvert.remote.provenance import (
    NOTES,
    Origin,
    Provenance,
    known_origin,
    origin_path,
    provenance_path,
    read_origin,
    read_provenance,
    write_origin,
    write_provenance,
)
from leconvert.support.errors import WorkDirError
from leconvert.testing import DatasetSpec, make_dataset


def test_findings_are_counted_and_repairs_told_in_words(tmp_path: Path) -> None:
    source = make_dataset(tmp_path / "source", DatasetSpec(episodes=3, frames=6, cameras=()))
    for number in (0, 1):
        (source / f"data/chunk-000/episode_{number:06d}.parquet").unlink()
    repairs = RepairOptions(on_bad_episode="drop")
    convert(source, output=tmp_path / "out", for_push=True, repairs=repairs)
    made = read_provenance(tmp_path / "out")
    assert made is not None
    assert (made.repo_id, made.merged, made.source) == ("", (), str(source))
    assert made.options == {"on_bad_episode": "drop"}
    assert made.findings == {"missing-file": 2}
    assert made.changes[0] == "2 episodes left out"
    assert made.files.keys() >= {"meta/info.json", "data/chunk-000/file-000.parquet"}


def test_the_origin_of_a_run_is_read_back(tmp_path: Path) -> None:
    assert read_origin(tmp_path) is None
    origin = Origin("tester/arm", "v2.1", "a" * 40)
    write_origin(tmp_path, origin, run_id="r1")
    assert read_origin(tmp_path) == origin
    record = json.loads(origin_path(tmp_path).read_bytes())
    assert list(record) == ["format", "version", "run_id", "repo_id", "revision", "commit"]
    assert (record["format"], record["version"]) == ("leconvert/origin", 1)
    origin_path(tmp_path).write_text('{"format": "leconvert/origin", "version": 2, "run_id": ""}')
    with pytest.raises(WorkDirError, match="version 2"):
        read_origin(tmp_path)


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
    assert [*tmp_path.iterdir()] == [provenance_path(result)]
    assert provenance_path(result).name == ".out.leconvert-provenance"


def test_a_record_without_its_fields_is_damaged(tmp_path: Path) -> None:
    write_provenance(tmp_path / "out", Provenance("tester/arm", "main", "1" * 40), run_id="run")
    write_origin(tmp_path, Origin("tester/arm", "v2.1", "a" * 40), run_id="run")
    for path, name in (
        (provenance_path(tmp_path / "out"), "changes"),
        (origin_path(tmp_path), "commit"),
    ):
        record = json.loads(path.read_bytes())
        del record[name]
        path.write_text(json.dumps(record))
    with pytest.raises(WorkDirError, match="is damaged"):
        read_provenance(tmp_path / "out")
    with pytest.raises(WorkDirError, match="is damaged"):
        read_origin(tmp_path)
    (tmp_path / NOTES).mkdir(parents=True)
    origin_path(tmp_path).rename(origin_path(tmp_path / NOTES))
    assert known_origin(tmp_path) is None
