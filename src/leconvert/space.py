"""How much room a conversion takes, on which file systems, and whether it is there.

Workers write shards into the work dir; the packer brings them into the new tree beside the target,
and they stay until the tree has taken its place. So the result's bytes stand twice wherever the
packer cannot give a shard a second name:

=============================  ==============================  ===========================
a result's file                work dir on the target's        work dir on another one
                               file system
=============================  ==============================  ===========================
one shard, hard links          once                            once on each
one shard, no hard links       twice                           once on each
joined from several shards     twice                           once on each
=============================  ==============================  ===========================

Where extents are shared with what is copied from, a clip takes two ragged blocks and half a block
of padding before it instead of its bytes. Tables under ``meta/`` are not counted.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from leconvert.errors import StorageError
from leconvert.model import DATA_STREAM, Batch, StreamScan
from leconvert.text import amount
from leconvert.workdir.extents import can_clone
from leconvert.workdir.filesystem import CANNOT_LINK
from leconvert.workdir.trouble import storage_errors

__all__ = ["Room", "SpaceNeeded", "can_link", "check_room", "free_bytes_of", "space_needed"]

_BLOCKS_A_CLIP = 3


@dataclass(frozen=True, slots=True)
class Room:
    """What one file system has and is asked for.

    Attributes:
        folder: A folder on it.
        bytes_needed: Space that the conversion takes there, about.
        free_bytes: Free space; None where the file system does not tell.
    """

    folder: str
    bytes_needed: int
    free_bytes: int | None

    @property
    def suffices(self) -> bool:
        """Whether there is enough, as far as anybody can tell."""
        return self.free_bytes is None or self.free_bytes >= self.bytes_needed


@dataclass(frozen=True, slots=True)
class SpaceNeeded:
    """What a conversion takes beside its source.

    Attributes:
        cloned: Whether video bytes will be shared with the source instead of copied.
        twice_bytes: Bytes that stand twice on one file system until the swap.
        rooms: One file system, or two where the work dir is on another one.
    """

    cloned: bool
    twice_bytes: int
    rooms: tuple[Room, ...]


def space_needed(
    source: Path | None,
    target: Path,
    work_dir: Path,
    block_align: int,
    streams: Sequence[StreamScan],
    batches: Iterable[Batch],
    *,
    has_links: bool | None = None,
) -> SpaceNeeded:
    """Reckon the space that a plan takes.

    Args:
        source: The dataset; None where it is not here, so that nothing is shared with it.
        target: Where the result will stand; its folder exists.
        work_dir: Where shards are written; need not exist.
        block_align: Block alignment of episodes in video files, in bytes; 0 for none.
        streams: What the scan learned, all episodes.
        batches: The work.
        has_links: Whether shards can be linked into place; None tries it.

    Raises:
        StorageError: The disk fails.
    """
    work_folder, target_folder = _existing(work_dir), target.parent
    shares_source = source is not None and bool(block_align) and can_clone(source, work_folder)
    scans = {scan.stream: scan for scan in streams}
    plain_bytes = shard_bytes = part_bytes = 0
    for batch in batches:
        for shard in batch.shards:
            sizes = scans[shard.stream].size_bytes[shard.first : shard.stop]
            size_bytes = int(sizes.sum())
            plain_bytes += size_bytes
            if shares_source and shard.stream != DATA_STREAM:
                size_bytes = _BLOCKS_A_CLIP * block_align * len(sizes)
            shard_bytes += size_bytes
            part_bytes += 0 if shard.whole else size_bytes
    if not _is_one_file_system(work_folder, target_folder):
        rooms = (_room(target_folder, plain_bytes), _room(work_folder, shard_bytes))
        return SpaceNeeded(cloned=shares_source, twice_bytes=0, rooms=rooms)
    # What is joined shares extents with its shards as these do with the source.
    if has_links is None:
        has_links = can_link(work_folder, target_folder, f".{target.name}.leconvert-probe")
    twice_bytes = part_bytes if has_links else shard_bytes
    room = _room(target_folder, shard_bytes + twice_bytes)
    return SpaceNeeded(cloned=shares_source, twice_bytes=twice_bytes, rooms=(room,))


def check_room(space: SpaceNeeded, target: Path) -> None:
    """Refuse a conversion that certainly does not fit.

    Raises:
        StorageError: A file system says that it has less than is needed.
    """
    for room in space.rooms:
        if room.free_bytes is None or room.suffices:
            continue
        is_target = room.folder == str(target.parent)
        why = " while shards and result stand side by side" if space.twice_bytes else ""
        other = "--output" if is_target else "--work-dir"
        raise StorageError(
            f"{room.folder} has {amount(room.free_bytes)} free, the "
            f"{'result needs' if is_target else 'shards need'} about "
            f"{amount(room.bytes_needed)}{why}.",
            path=room.folder,
            next_step=f"Free some space or choose another {other}; nothing was written.",
        )


def free_bytes_of(folder: Path) -> int | None:
    """Return the room for this user, or None where the file system does not tell.

    Some programs behind FUSE answer ``statvfs`` with zeros, or not at all: that is not "full".
    """
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return None
    return usage.free if usage.total else None


def can_link(folder: Path, other: Path, name: str) -> bool:
    """Tell whether a file in one folder can get a second name in another, by trying.

    What is made is removed again; what a crash leaves is removed by the next try. Nobody can tell,
    and it counts as yes, where the first folder cannot be written, and where somebody else tries
    with the same name at the same time.

    Args:
        folder: The first folder.
        other: The second one.
        name: A name that nothing else has in either.

    Raises:
        StorageError: What was made cannot be removed.
    """
    first, second = folder / name, other / f"{name}-link"
    try:
        for path in (first, second):
            path.unlink(missing_ok=True)
        first.touch(exist_ok=False)
        os.link(first, second)
    except OSError as error:
        linked = error.errno not in CANNOT_LINK | {errno.EXDEV}
    else:
        linked = True
    for path in (first, second):
        # On a read-only disk even removing nothing is an error, so look first.
        with storage_errors(path), suppress(FileNotFoundError):
            path.lstat()
            path.unlink()
    return linked


def _room(folder: Path, bytes_needed: int) -> Room:
    return Room(str(folder), bytes_needed, free_bytes_of(folder))


def _existing(folder: Path) -> Path:
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    return folder


def _is_one_file_system(one: Path, other: Path) -> bool:
    return os.stat(one).st_dev == os.stat(other).st_dev  # noqa: PTH116 - st_dev alone
