"""What is cut into many files is opened and parsed once, however many there are."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tests.plans import open_or_plan

import leconvert
from leconvert import LayoutOptions, WorkerOptions, media
from leconvert.api import run_worker
from leconvert.dataset.formats.v3 import USUAL_NAMES
from leconvert.media import index as indices
from leconvert.run.leasing import read_done
from leconvert.run.packer import pack_run
from leconvert.run.proof import verify_pair
from leconvert.support import parallel
from leconvert.tables import data_file
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset


def parsed(source: Path, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count, from now on, how often the index or the footer of each file of a source is read."""
    seen: Counter[str] = Counter()
    fetch, opened, by_arrow = (
        indices.stored_index,
        data_file.OpenedTable.__init__,
        data_file.open_parquet,
    )

    def note(path: object) -> None:
        if Path(str(path)).is_relative_to(source) and "meta" not in Path(str(path)).parts:
            seen[Path(str(path)).relative_to(source).parts[0]] += 1

    def fetched(path: str, *rest: object, **options: object) -> object:
        note(path)
        return fetch(path, *rest, **options)  # type: ignore[arg-type]

    def table(self: data_file.OpenedTable, path: str) -> None:
        note(path)
        opened(self, path)

    def arrow(path: str, **options: int) -> object:
        note(path)
        return by_arrow(path, **options)

    monkeypatch.setattr(indices, "stored_index", fetched)
    monkeypatch.setattr(data_file.OpenedTable, "__init__", table)
    monkeypatch.setattr(data_file, "open_parquet", arrow)
    return seen


def test_to_write_many_small_files_reads_the_source_no_oftener_than_to_write_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []
    # Threads that wait for slow files would each read what they compare.
    monkeypatch.setattr(parallel, "is_waiting", lambda _cpu, _wall: False)
    for episodes in (3, 12):
        folder = tmp_path / str(episodes)
        spec = DatasetSpec(
            episodes=episodes, frames=5, cameras=(CameraSpec(key="observation.images.top"),)
        )
        source = folder / "source"
        leconvert.convert(make_dataset(folder / "v21", spec), output=source)
        with monkeypatch.context() as patches:
            seen = parsed(source, patches)
            # A batch each, whose worker does what many workers would do one after another.
            leconvert.convert(
                source,
                output=folder / "out",
                layout=LayoutOptions(to="v2.1", episodes_per_batch=1),
                workers=WorkerOptions(max_workers=1),
            )
            assert verify_pair(folder / "out", source, depth="bytes").ok
        counts.append(dict(seen))
    assert counts[0].keys() == counts[1].keys() == {"data", "videos"}
    # Who writes a file's last episode before others reads it once more.
    assert all(counts[1][kind] <= counts[0][kind] + 2 for kind in counts[0]), counts


def test_the_result_holds_the_files_that_workers_wrote(small_source: Path, tmp_path: Path) -> None:
    run = open_or_plan(small_source, tmp_path / "out", tmp_path / "work")
    run_worker(run.work_dir.root)
    inodes: dict[str, int] = {}
    copied = 0
    for batch in run.batches:
        record = read_done(run.paths, batch.batch_id)
        for shard, written in zip(batch.shards, record["shards"], strict=True):
            path = run.paths.root / record["attempt"] / written["path"]
            inodes[USUAL_NAMES.path(shard.stream, shard.number)] = path.stat().st_ino
            copied += written.get("copied_bytes", 0)
    packed = pack_run(run)
    assert (packed.linked, packed.copied, packed.joined) == (len(inodes), 0, 0)
    assert {
        path.relative_to(tmp_path / "out").as_posix(): path.stat().st_ino
        for folder in ("data", "videos")
        for path in (tmp_path / "out" / folder).rglob("file-*")
    } == inodes
    # And the workers moved each coded byte of the sources once.
    clips = small_source.rglob("*.mp4")
    assert copied == sum(int(media.read_clip_index(clip).sizes.sum()) for clip in clips)
