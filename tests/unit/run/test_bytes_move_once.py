"""By default nothing is written twice: what a worker wrote is what the result holds."""

from __future__ import annotations

from pathlib import Path

from tests.plans import open_or_plan

from leconvert import media
from leconvert.api import run_worker
from leconvert.dataset.formats.v3 import USUAL_NAMES
from leconvert.run.leasing import read_done
from leconvert.run.packer import pack_run


def test_the_result_holds_the_very_files_that_the_workers_wrote(
    small_source: Path, tmp_path: Path
) -> None:
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
