"""The tables under ``meta/``: each episode's statistics once, copied or computed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.trees import read_episodes

import leconvert
from leconvert.dataset.formats import v2
from leconvert.model.repairs import RepairOptions, Repairs
from leconvert.model.values import DATA_STREAM
from leconvert.run.packer.assembly import write_meta
from leconvert.support.errors import WorkDirError
from leconvert.testing import DatasetSpec, edit_info, edit_lines, edit_table, make_dataset
from leconvert.testing import with_column as column
from leconvert.workdir.run import OpenedRun


def stats_of(dataset: Path) -> dict[str, dict[str, list[float]]]:
    return dict(json.loads((dataset / "meta/stats.json").read_bytes()))


def test_statistics_count_once_where_rows_have_to_be_written_again(
    source_copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The last line needs a wider type than the first ones, so all rows are asked for again.
    monkeypatch.setattr(v2, "BLOCK_EPISODES", 2)
    edit_lines(
        source_copy,
        "episodes",
        lambda lines: [line.update(score=n if n < 4 else 4.5) for n, line in enumerate(lines)],
    )
    leconvert.convert(source_copy, output=tmp_path / "out")
    rows = read_episodes(tmp_path / "out")
    assert rows.column("score").to_pylist() == [0.0, 1.0, 2.0, 3.0, 4.5]
    assert stats_of(tmp_path / "out")["action"]["count"] == [44]


def test_a_source_without_statistics_gets_those_of_its_data(tmp_path: Path) -> None:
    spec = DatasetSpec(episodes=3, frames=[4, 1, 6], cameras=())
    without, source = (make_dataset(tmp_path / name, spec) for name in ("without", "with"))
    (without / "meta/episodes_stats.jsonl").unlink()
    recompute = RepairOptions(recompute_stats=True)
    leconvert.convert(without, output=tmp_path / "computed", repairs=recompute)
    leconvert.convert(source, output=tmp_path / "again", repairs=recompute)
    assert stats_of(tmp_path / "computed")["action"]["count"] == [11]
    assert stats_of(tmp_path / "computed") == stats_of(tmp_path / "again")


@pytest.mark.parametrize("damage", ["torn", "undeclared"])
def test_what_an_interrupted_step_to_v21_left_in_a_v20_dataset_is_not_used(
    small_source: Path, source_copy: Path, tmp_path: Path, damage: str
) -> None:
    # LeRobot's step writes the table of statistics first and the version last.
    edit_info(source_copy, lambda info: info.update(codebase_version="v2.0"))
    table = source_copy / "meta/episodes_stats.jsonl"
    if damage == "torn":
        table.write_bytes(table.read_bytes()[:-100])
    else:
        edit_lines(source_copy, "episodes_stats", lambda lines: lines[0]["stats"].update(x=[0]))
    out = tmp_path / "out"
    leconvert.convert(source_copy, output=out)
    info = json.loads((source_copy / "meta/info.json").read_bytes())
    assert stats_of(out).keys() == info["features"].keys()
    assert leconvert.verify_pair(out, source_copy, depth="bytes").ok


def test_a_torn_file_of_computed_statistics_is_named(planned: OpenedRun, tmp_path: Path) -> None:
    (planned_source,) = planned.manifest.sources
    source = replace(planned_source, repairs=Repairs(computed_stats=("action",)))
    run = replace(planned, manifest=replace(planned.manifest, sources=[source]))
    torn = tmp_path / "torn.stats.jsonl"
    torn.write_text('{"episode_index": 0, "stats": {}}\n{"episode_ind')
    tree = tmp_path / "tree"
    (tree / "meta").mkdir(parents=True)
    with pytest.raises(WorkDirError, match="is damaged") as caught:
        write_meta(run, tree, {DATA_STREAM: [(0, torn)]})
    assert caught.value.path == str(torn)
    assert "--restart" in str(caught.value.next_step)
    assert str(planned.work_dir.root) in str(caught.value.next_step)
    assert not (tree / "meta/info.json").exists()


def test_an_undeclared_column_is_left_out_of_a_right_result(tmp_path: Path) -> None:
    spec = DatasetSpec(episodes=3, frames=4, cameras=())
    source = make_dataset(tmp_path / "source", spec)
    for episode in range(3):
        edit_table(source, episode, lambda table: column(table, "extra", pa.array([1] * 4)))
    # A table that is left out need not be readable.
    (source / "data/chunk-000/episode_000000.parquet").write_bytes(b"torn")
    out = tmp_path / "out"
    repairs = RepairOptions(drop_features=("extra",), on_bad_episode="drop")
    leconvert.convert(source, output=out, repairs=repairs)
    assert leconvert.verify_pair(out, source, depth="bytes").ok
    [table] = (out / "data").rglob("*.parquet")
    assert "extra" not in pq.read_schema(table).names
