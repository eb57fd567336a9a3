"""On a file system that shares extents, joining moves almost nothing and gives the same bytes.

Each test makes its own file system in a loop-mounted image, which needs root, ``mkfs`` and a
kernel that has it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

import pytest
from clip_recipes import Recipe
from tests.packets import coded_packets

from leconvert.media import join_clips, read_clip_index
from leconvert.model.values import Slice

MEBIBYTE = 1024**2
IMAGE_BYTES = 1024 * MEBIBYTE
MKFS = {"xfs": ["mkfs.xfs", "-q", "-m", "reflink=1"], "btrfs": ["mkfs.btrfs", "-q"]}


@pytest.fixture(params=sorted(MKFS))
def reflink_dir(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    command = MKFS[request.param]
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    image, mount_point = tmp_path / "image", tmp_path / "mounted"
    mount_point.mkdir()
    with image.open("wb") as file:
        file.truncate(IMAGE_BYTES)
    subprocess.run([*command, str(image)], check=True, capture_output=True)
    mounted = subprocess.run(
        ["mount", "-o", "loop", str(image), str(mount_point)],
        check=False,
        capture_output=True,
        text=True,
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount {request.param} here: {mounted.stderr.strip()}")
    try:
        yield mount_point
    finally:
        subprocess.run(["umount", str(mount_point)], check=True)


def used_bytes(folder: Path) -> int:
    os.sync()
    facts = os.statvfs(folder)
    return (facts.f_blocks - facts.f_bfree) * facts.f_frsize


def test_whole_blocks_are_shared_and_the_bytes_are_those_of_a_copy(
    reflink_dir: Path, tmp_path: Path, make_clip: Callable[[Recipe], Path]
) -> None:
    # Constant quantiser 0 keeps the noise, and nothing looks for what would code it in fewer bytes:
    # several MiB a clip.
    params = "qp=0:bframes=2:b-adapt=0:keyint=6"
    lossless = (("preset", "ultrafast"), ("bf", "2"), ("x264-params", params))
    clips = []
    for seed in range(4):
        plain = make_clip(Recipe(size=512, frames=30, seed=seed, options=lossless))
        clips.append(reflink_dir / f"{seed}.mp4")
        shutil.copyfile(plain, clips[-1])
    media_bytes = sum(int(read_clip_index(clip).sizes.sum()) for clip in clips)
    assert media_bytes > 16 * MEBIBYTE
    ranges = [Slice(str(clip)) for clip in clips]

    before = used_bytes(reflink_dir)
    shared = reflink_dir / "joined.mp4"
    report = join_clips(ranges, shared, fps=Fraction(30), block_align=4096)
    taken = used_bytes(reflink_dir) - before
    assert report.cloned_bytes + report.copied_bytes == media_bytes
    assert report.copied_bytes < len(clips) * 2 * 4096
    assert taken < 0.03 * media_bytes

    copied = tmp_path / "joined.mp4"
    elsewhere = join_clips(ranges, copied, fps=Fraction(30), block_align=4096)
    assert elsewhere.cloned_bytes == 0
    assert copied.read_bytes() == shared.read_bytes()
    expected = [packet.sha256 for clip in clips for packet in coded_packets(clip)]
    assert [packet.sha256 for packet in coded_packets(shared)] == expected

    # Parts that share with the clips, joined again: the second join shares with the first.
    parts = []
    for half in (0, 2):
        part = reflink_dir / f"part-{half}.mp4"
        join_clips(ranges[half : half + 2], part, fps=Fraction(30), block_align=4096)
        parts += [Slice(str(part), 0, 30), Slice(str(part), 30, 30)]
    again = reflink_dir / "again.mp4"
    report = join_clips(parts, again, fps=Fraction(30), block_align=4096)
    assert report.cloned_bytes > 0.99 * media_bytes
    assert again.read_bytes() == copied.read_bytes()

    # A changed source does not change what was joined from it.
    clips[0].write_bytes(bytes(10))
    assert shared.read_bytes() == copied.read_bytes()
