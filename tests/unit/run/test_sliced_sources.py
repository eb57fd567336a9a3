"""Workers on a source whose files hold several episodes each, taken in any order and with gaps."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import leconvert
from leconvert import media, tables
from leconvert.api import run_worker
from leconvert.dataset.formats import open_dataset, v3
from leconvert.dataset.formats.v2 import SourcePaths, load_info
from leconvert.dataset.scan import changed_files, changes
from leconvert.model.repairs import Repairs
from leconvert.model.values import (
    DATA_STREAM,
    FileTable,
    LayoutOptions,
    Slice,
    Source,
    SourceScan,
    StreamScan,
    v3_file_key,
)
from leconvert.run.layout import cut_batches, layout_streams
from leconvert.run.leasing import read_done
from leconvert.support.errors import SourceChangedError
from leconvert.workdir.records import WorkDir
from leconvert.workdir.run import Manifest, OpenedRun, open_run, tool_versions, write_plan

REINDEXED = Repairs(computed_columns=("episode_index", "index"))
ORDER = (4, 3, 1, 0)
TOP = "videos/observation.images.top"
Plan = Callable[..., OpenedRun]


@pytest.fixture
def converted(small_source: Path, tmp_path: Path) -> Path:
    """The small source as a v3.0 dataset whose files hold two or three episodes each."""
    limits = LayoutOptions(data_file_size_in_mb=0.006, video_file_size_in_mb=0.008, block_align=0)
    leconvert.convert(small_source, output=tmp_path / "v3", layout=limits)
    return tmp_path / "v3"


def scanned(root: Path, stream: str) -> StreamScan:
    """Scan one stream of a sound v3.0 dataset."""
    dataset = v3.Dataset(root)
    slices, placed = dataset.slices(stream), dataset.episodes.placed[stream]
    frames = dataset.episodes.length
    files = [(root / path).stat() for path in slices.paths]
    table = FileTable(
        np.unique(v3_file_key(placed.chunk, placed.file)),
        np.array([file.st_size for file in files]),
        np.array([file.st_mtime_ns for file in files]),
        np.array([file.st_ino for file in files]),
    )
    share = frames / np.bincount(slices.file, weights=frames)[slices.file]
    size_bytes = (table.size_bytes[slices.file] * share).astype(np.int64)
    return StreamScan(
        stream, table, slices.file, slices.first, frames, size_bytes, size_bytes,
        np.zeros_like(frames), np.zeros_like(frames),
    )  # fmt: skip


@pytest.fixture
def plan(converted: Path, tmp_path: Path) -> Plan:
    """Plan to convert some episodes of the v3.0 dataset."""

    def planned(
        order: Sequence[int] = ORDER, repairs: Repairs = REINDEXED, **layout: Any
    ) -> OpenedRun:
        positions = np.array(order)
        dataset = v3.Dataset(converted)
        schema = pq.read_schema(next((converted / "data").rglob("*.parquet")))
        scan = SourceScan(
            sources=[Source(str(converted), "v3.0", "", (), repairs)],
            fps=dataset.declared.fps,
            episode_index=positions,
            length=dataset.episodes.length[positions],
            streams=[
                scanned(converted, stream).select(positions)
                for stream in (DATA_STREAM, *sorted(dataset.streams[1:]))
            ],
            data_schema=tables.serialize_schema(schema),
            findings=(),
        )
        options = LayoutOptions(block_align=0, **layout)
        streams = layout_streams(scan, options)
        batches = cut_batches(scan.streams, streams, options.episodes_per_batch)
        work = WorkDir(tmp_path / "work")
        manifest = Manifest(
            run_id="run", sources=scan.sources, target=str(tmp_path / "out"),
            options={}, versions=tool_versions(), fps=scan.fps,
            block_align=0, streams=streams, num_episodes=scan.num_episodes,
            num_frames=int(scan.length.sum()), source_bytes=scan.source_bytes,
            num_batches=len(batches), data_schema=scan.data_schema, findings=(),
        )  # fmt: skip
        write_plan(work.run("run"), manifest, scan, batches)
        work.set_current("run")
        return open_run(work.root)

    return planned


def written(run: OpenedRun) -> dict[tuple[str, int, int], Path]:
    """Return every shard that workers published, by stream, first position and stop."""
    found = {}
    for batch in run.batches:
        record = read_done(run.paths, run.manifest.run_id, batch.batch_id)
        for shard, entry in zip(batch.shards, record["shards"], strict=True):
            path = run.paths.root / record["attempt"] / entry["path"]
            found[shard.stream, shard.first, shard.stop] = path
    return found


def expected(source: Path, run: OpenedRun, folder: Path, shard: tuple[str, int, int]) -> bytes:
    """Join a shard from the v2.1 files of its episodes."""
    stream, first, stop = shard
    paths = list(SourcePaths(source, load_info(source)).absolute(stream, ORDER[first:stop]))
    target = folder / f"{stream.replace('/', '-')}-{first}-{stop}"
    if stream != DATA_STREAM:
        media.join_clips([Slice(path) for path in paths], target, fps=Fraction(30))
        return target.read_bytes()
    _, length = run.scan.lengths()
    starts = np.concatenate(([0], np.cumsum(length))).tolist()

    def repair(place: int) -> tables.RowRepair:
        position = first + place
        return tables.RowRepair(REINDEXED, run.manifest.fps, position, starts[position])

    slices = [Slice(path, frames=int(n)) for path, n in zip(paths, length[first:stop], strict=True)]
    schema = tables.deserialize_schema(run.manifest.data_schema)
    tables.join_tables(slices, target, schema=schema, repair=repair)
    return target.read_bytes()


@pytest.mark.parametrize("episodes_per_batch", [None, 1, 3])
def test_slices_in_any_order_give_what_the_clips_and_tables_of_their_episodes_give(
    small_source: Path, plan: Plan, tmp_path: Path, episodes_per_batch: int | None
) -> None:
    run = plan(episodes_per_batch=episodes_per_batch)
    files = run.scan.stream(TOP)[0].files
    assert 1 < len(files) < len(ORDER), "some files should hold several episodes"
    run_worker(run.work_dir.root)
    shards = written(run)
    assert len({first for stream, first, _ in shards if stream == TOP}) == (
        1 if episodes_per_batch is None else -(-len(ORDER) // episodes_per_batch)
    )
    for shard, path in shards.items():
        assert path.read_bytes() == expected(small_source, run, tmp_path, shard), shard


def test_a_second_worker_goes_on_where_the_first_one_ended(
    small_source: Path, plan: Plan, tmp_path: Path
) -> None:
    run = plan(episodes_per_batch=1)
    assert run_worker(run.work_dir.root, max_batches=2).batches_done == 2
    assert run_worker(run.work_dir.root).batches_done == run.manifest.num_batches - 2
    for shard, path in written(run).items():
        assert path.read_bytes() == expected(small_source, run, tmp_path, shard), shard


def test_statistics_of_slices_are_those_of_their_clips(small_source: Path, plan: Plan) -> None:
    from leconvert.dataset.statistics import clip_stats

    repairs = replace(REINDEXED, computed_stats=("observation.images.top",))
    run = plan((0, 1, 2, 4, 3), repairs)
    run_worker(run.work_dir.root)
    (path,) = [path for (stream, *_), path in written(run).items() if stream == TOP]
    lines = path.with_name(path.name + ".stats.jsonl").read_text().splitlines()
    found = [json.loads(line)["stats"]["observation.images.top"] for line in lines]
    clips = SourcePaths(small_source, load_info(small_source)).absolute(TOP, (0, 1, 2, 4, 3))
    lengths = run.scan.lengths()[1].tolist()
    assert found == [
        next(clip_stats(clip, [(0, length)], quantiles=False))
        for clip, length in zip(clips, lengths, strict=True)
    ]


def test_a_changed_file_is_told_once_whatever_number_of_episodes_it_holds(
    plan: Plan, converted: Path
) -> None:
    run = plan()
    files = run.scan.files(TOP)
    paths = open_dataset(converted)
    assert changed_files(paths, TOP, files) == []
    name = paths.relative(TOP, int(files.key[0]))
    os.utime(converted / name, ns=(1, 1))
    changed = f"{name}: replaced or changed after the plan"
    assert changed_files(paths, TOP, files) == [changed]
    with pytest.raises(SourceChangedError) as caught:
        run_worker(run.work_dir.root)
    assert caught.value.details == (changed,)


def test_a_shard_asks_for_the_files_of_its_episodes_alone_and_each_once(
    plan: Plan, converted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    real = changes.status_now

    def noted(path: str, folder: int | None = None) -> os.stat_result:
        above = Path() if folder is None else Path(f"/proc/self/fd/{folder}").readlink()
        asked.append(str(above / path))
        return real(path, folder)

    monkeypatch.setattr(changes, "status_now", noted)
    run = plan()
    for stop in (1, 2, 4):
        scan, index = run.scan.stream(TOP, 0, stop)
        assert index.tolist() == list(ORDER[:stop])
        paths = open_dataset(converted)
        changed_files(paths, TOP, scan.files)
        of_slices = [f"{converted}/{paths.relative(TOP, key)}" for key in scan.key.tolist()]
        assert asked == sorted(set(of_slices))
        asked.clear()


def test_a_plan_keeps_slices_in_their_order_and_every_file_once(
    plan: Plan, converted: Path
) -> None:
    run = plan((3, 3, 0, 4))
    whole = scanned(converted, TOP)
    found, index = run.scan.stream(TOP)
    assert index.tolist() == [3, 3, 0, 4]
    for name in ("key", "first", "frames", "size_bytes", "roll_bytes", "group"):
        wanted = getattr(whole, name)[[3, 3, 0, 4]]
        assert getattr(found, name).tolist() == wanted.tolist(), name
    assert found.files.key.tolist() == run.scan.files(TOP).key.tolist()
    assert found.files.key.tolist() == sorted({int(whole.key[n]) for n in (3, 0, 4)})
    part, _ = run.scan.stream(TOP, 2, 3)
    assert (part.key.tolist(), part.file.tolist(), len(part.files)) == ([whole.key[0]], [0], 1)
