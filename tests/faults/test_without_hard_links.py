"""Conversions on FAT and exFAT: no hard links, no symbolic ones, times in steps of two seconds.

One host works there alone, and whatever stops it, the same command ends in the bytes of any other
file system.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.disks import Disk, mounted_disk
from tests.program import Leconvert
from tests.trees import digest_of, snapshot

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Disk]:
    with mounted_disk(tmp_path) as disk:
        yield disk


@pytest.fixture
def linkless_disk(mounted: Disk) -> Path:
    return mounted.folder


def test_a_conversion_gives_the_bytes_of_any_other_and_leaves_nothing(
    linkless_disk: Path, small_source: Path, quiet_digest: str, leconvert_here: Leconvert
) -> None:
    source = Path(shutil.copytree(small_source, linkless_disk / "set"))
    with pytest.raises(OSError, match="Operation not permitted"):
        os.link(source / "README.md", linkless_disk / "link")
    before = snapshot(source)
    done = leconvert_here("convert", "--root", source, "--num-workers", 2, code=0)
    assert "Only this host" in done.stderr
    assert digest_of(source) == quiet_digest
    assert snapshot(linkless_disk / "set_old") == before
    assert {path.name for path in linkless_disk.iterdir()} == {"set", "set_old"}


def test_a_killed_run_is_resumed_and_shards_stay_until_it_is_finished(
    linkless_disk: Path, small_source: Path, quiet_digest: str, leconvert_here: Leconvert
) -> None:
    work, out = linkless_disk / "work", linkless_disk / "out"
    places = ("--output", out, "--work-dir", work)
    leconvert_here("plan", "--root", small_source, *places, code=0)
    (record,) = work.glob("runs/*/one_host.json")
    assert json.loads(record.read_bytes())["reason"] == "EPERM"
    leconvert_here("work", work, "--max-batches", 1, code=0)
    holding = (
        "import sys\n"
        "from pathlib import Path\n"
        "from leconvert.run.leasing import LeaseStore, WorkerIdentity\n"
        "from leconvert.workdir.run import open_run\n"
        "run = open_run(Path(sys.argv[1]))\n"
        "store = LeaseStore(run.paths, WorkerIdentity.of_this_process())\n"
        "lease = next(filter(None, map(store.claim, range(len(run.batches)))))\n"
        "(lease.attempt_dir / 'half').write_bytes(b'half a shard')\n"
        "print(lease.batch_id, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holding, str(work)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as holder:  # fmt: skip
        assert holder.stdout is not None
        held = int(holder.stdout.readline())
        holder.send_signal(signal.SIGKILL)
    leconvert_here("work", work, "--lease-seconds", 5, code=0)
    (run,) = work.glob("runs/*")
    assert len(list((run / "leases" / f"{held:06d}").glob("000?"))) == 2
    assert list(run.glob("attempts/*/*/*.mp4"))
    packed = leconvert_here("pack", work, "--no-wait", code=0)
    assert "0 taken from the work dir" in packed.stdout
    assert digest_of(out) == quiet_digest
    assert not (run / "attempts").exists()


def test_a_run_goes_on_after_its_source_was_mounted_anew(
    mounted: Disk, small_source: Path, quiet_digest: str, leconvert_here: Leconvert, tmp_path: Path
) -> None:
    """Inode numbers are made up there as files are looked at: they do not tell a change."""
    source = Path(shutil.copytree(small_source, mounted.folder / "set"))
    out, work = tmp_path / "out", tmp_path / "work"
    places = ("--root", source, "--output", out, "--work-dir", work)
    leconvert_here("plan", *places, code=0)
    leconvert_here("work", work, "--max-batches", 1, code=0)
    inodes = [path.stat().st_ino for path in sorted(source.rglob("*"))]
    mounted.mount_anew()
    names = sorted(source.rglob("*"), reverse=True)
    assert [path.stat().st_ino for path in names][::-1] != inodes
    leconvert_here("convert", *places, code=0)
    assert digest_of(out) == quiet_digest
