"""Conversions on file systems that share extents: the same bytes, and hardly any new space."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.flat_options import as_objects
from tests.program import Leconvert
from tests.trees import digest_of

import leconvert
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset
from leconvert.workdir.fs import can_clone

_FIEMAP, _IS_SHARED = 0xC020660B, 0x2000
MAKERS = {"xfs": ["mkfs.xfs", "-q", "-m", "reflink=1"], "btrfs": ["mkfs.btrfs", "-q"]}


@pytest.fixture
def sharing_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A loop-mounted file system that shares extents."""
    maker = MAKERS[getattr(request, "param", "xfs")]
    if os.geteuid() != 0 or shutil.which(maker[0]) is None:
        pytest.skip(f"needs root and {maker[0]}")
    image, folder = tmp_path / "image", tmp_path / "disk"
    with image.open("wb") as file:
        file.truncate(512 * 1024**2)
    subprocess.run([*maker, str(image)], check=True, stdout=subprocess.DEVNULL)
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-o", "loop", str(image), str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a loop device here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture(scope="session")
def bulky_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Clips of about a megabyte, so that blocks are worth sharing."""
    camera = CameraSpec(
        key="observation.images.top", width=320, height=240, gop_size=2,
        noise_amplitude=127, target_clip_bytes=1_000_000, options={"preset": "ultrafast"},
    )  # fmt: skip
    spec = DatasetSpec(episodes=16, frames=30, cameras=(camera,), distinct_clips=2)
    return make_dataset(tmp_path_factory.mktemp("bulky") / "source", spec)


def used_bytes(disk: Path) -> int:
    subprocess.run(["sync", "-f", str(disk)], check=True)
    return shutil.disk_usage(disk).used


@pytest.mark.parametrize("sharing_disk", ["btrfs"], indirect=True)
def test_a_conversion_shares_its_video_with_the_source(
    sharing_disk: Path,
    bulky_source: Path,
    leconvert_here: Leconvert,
) -> None:
    source = Path(shutil.copytree(bulky_source, sharing_disk / "source"))
    videos = sum(path.stat().st_size for path in source.rglob("*.mp4"))
    places = ("--root", source, "--output", sharing_disk / "out")
    plan = leconvert_here("plan", *places, "--dry-run", "--json", code=0)
    assert json.loads(plan.stdout)["space"]["cloned"] is True
    before = used_bytes(sharing_disk)
    done = leconvert_here("convert", *places, "--json", "--episodes-per-batch", 5, code=0)
    report = json.loads(done.stdout)
    assert report["cloned_bytes"] > 0.97 * videos
    # Btrfs and XFS write some megabytes of their own; the bytes of the videos are not among them.
    assert used_bytes(sharing_disk) - before < 0.3 * videos
    leconvert_here("verify", sharing_disk / "out", "--source", source, "--bytes", code=0)


def extents_of(path: Path) -> list[tuple[int, int, bool]]:
    """Return place on the disk, length and whether it is shared of each extent (FIEMAP)."""
    most, entry = 256, struct.Struct("=QQQ16xI12x")
    with path.open("rb") as file:
        os.fsync(file.fileno())
        head = struct.pack("=QQIIII", 0, 2**64 - 1, 1, 0, most, 0)
        answer = bytearray(head + bytes(most * entry.size))
        fcntl.ioctl(file, _FIEMAP, answer)
    (number,) = struct.unpack_from("=I", answer, 20)
    found = entry.iter_unpack(answer[len(head) : len(head) + number * entry.size])
    return [(at, size, bool(flags & _IS_SHARED)) for _, at, size, flags in found]


def test_files_that_stay_as_they_are_share_all_their_extents_with_the_source(
    sharing_disk: Path, bulky_source: Path, leconvert_here: Leconvert
) -> None:
    source = Path(shutil.copytree(bulky_source, sharing_disk / "source"))
    videos = sum(path.stat().st_size for path in source.rglob("*.mp4"))
    before, untouched = used_bytes(sharing_disk), digest_of(source)
    out = sharing_disk / "out"
    overlay = ("--layout", "overlay", "--json")
    done = leconvert_here("convert", source, "--output", out, *overlay, code=0)
    report = json.loads(done.stdout)
    assert report["kept_files"] == report["files"] == 32
    assert used_bytes(sharing_disk) - before < 0.3 * videos
    theirs, ours = (sorted(root.rglob("*.mp4")) for root in (source, out))
    assert len(ours) == 16
    for clip, kept in zip(theirs, ours, strict=True):
        assert not kept.samefile(clip)
        assert extents_of(kept) == extents_of(clip)
        assert all(is_shared for _, _, is_shared in extents_of(kept))
    leconvert_here("verify", out, "--source", source, "--bytes", code=0)
    # What is written to the one is not written to the other.
    with ours[0].open("r+b") as file:
        file.write(b"other")
    assert digest_of(source) == untouched


def test_the_bytes_are_the_same_as_on_a_file_system_that_copies(
    sharing_disk: Path, bulky_source: Path, tmp_path: Path
) -> None:
    assert can_clone(sharing_disk, sharing_disk)
    source = Path(shutil.copytree(bulky_source, sharing_disk / "source"))
    shared = leconvert.convert(source, output=sharing_disk / "out")
    copied = leconvert.convert(bulky_source, output=tmp_path / "out")
    assert shared.cloned_bytes > 0
    assert digest_of(shared.output) == digest_of(copied.output)


def test_aligned_results_are_the_same_whoever_works(bulky_source: Path, tmp_path: Path) -> None:
    digests = set()
    for number, options in enumerate(({}, {"episodes_per_batch": 1, "max_workers": 3})):
        report = leconvert.convert(
            bulky_source, output=tmp_path / str(number), **as_objects(options)
        )
        digests.add(digest_of(report.output))
    assert len(digests) == 1
