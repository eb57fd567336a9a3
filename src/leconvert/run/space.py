"""The disk space that a conversion needs in addition to its source, and whether it is there."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

from leconvert.model.values import DATA_STREAM, Batch, StreamScan
from leconvert.support.errors import StorageError
from leconvert.support.storage_errors import storage_errors
from leconvert.support.text import amount, count
from leconvert.support.values import dataclass
from leconvert.workdir.former import count_former
from leconvert.workdir.fs import CANNOT_LINK, can_clone
from leconvert.workdir.swap import META

# A clip that shares extents with its source needs no space for its bytes, but two partial blocks
# and half a block of padding before it.
_BLOCKS_A_CLIP = 3


@dataclass(frozen=True, slots=True)
class Room:
    """The free and the needed space of one file system.

    Attributes:
        folder: A folder on it.
        bytes_needed: Space that the conversion needs there; an estimate.
        free_bytes: Free space; None if the file system does not report it.
    """

    folder: str
    bytes_needed: int
    free_bytes: int | None

    @property
    def suffices(self) -> bool:
        """Whether there is enough space, as far as is known."""
        return self.free_bytes is None or self.free_bytes >= self.bytes_needed


@dataclass(frozen=True, slots=True)
class SpaceNeeded:
    """The space that a conversion needs in addition to its source.

    Attributes:
        cloned: Whether video bytes will be shared with the source instead of copied.
        twice_bytes: Bytes that exist twice on one file system until the swap.
        rooms: One file system, or two if the work dir is on another one.
        former_states: Number of datasets that earlier runs put aside at the target; no run removes
            them.
        former_bytes: Bytes of their files, some of which may be the result's own.
    """

    cloned: bool
    twice_bytes: int
    rooms: tuple[Room, ...]
    former_states: int = 0
    former_bytes: int = 0


def space_needed(
    sources: Sequence[Path],
    target: Path,
    work_dir: Path,
    block_align: int,
    streams: Sequence[StreamScan],
    batches: Iterable[Batch],
    *,
    has_links: bool | None = None,
    is_migration: bool = False,
) -> SpaceNeeded:
    """Estimate the space that a plan needs. Tables under ``meta/`` are not counted.

    Workers write shards into the work dir. The packer brings them into the new tree beside the
    target, and they stay until the tree is in place. So the result's bytes exist twice if the
    packer cannot link a shard:

    =============================  ==============================  ===========================
    a result's file                work dir on the target's        work dir on another one
                                   file system
    =============================  ==============================  ===========================
    one shard, hard links          once                            once on each
    one shard, no hard links       twice                           once on each
    joined from several shards     twice                           once on each
    =============================  ==============================  ===========================

    Args:
        sources: The sources that are on this machine.
        target: The folder of the result.
        work_dir: The folder of the shards.
        block_align: Block alignment of episodes in video files, in bytes; 0 for none.
        streams: The scan of each stream.
        batches: The work.
        has_links: Whether a shard can be linked into the result; None to try.
        is_migration: Whether the kept files are stand-ins, which need no space.
    """
    work_folder, target_folder = existing_folder(work_dir), existing_folder(target.parent)

    @cache
    def shares_files() -> bool:  # called only if the answer matters, since trying writes a block
        return bool(sources) and all(can_clone(source, work_folder) for source in sources)

    shares_source = bool(block_align) and shares_files()
    scans = {scan.stream: scan for scan in streams}
    plain_bytes = shard_bytes = part_bytes = 0
    for batch in batches:
        for shard in batch.shards:
            sizes = scans[shard.stream].size_bytes[shard.first : shard.stop]
            size_bytes = int(sizes.sum())
            plain_bytes += size_bytes
            if shard.keep and (is_migration or shares_files()):
                size_bytes = 0
            elif shares_source and shard.stream != DATA_STREAM:
                size_bytes = _BLOCKS_A_CLIP * block_align * len(sizes)
            shard_bytes += size_bytes
            part_bytes += 0 if shard.whole else size_bytes
    if not is_one_file_system(work_folder, target_folder):
        rooms = (_room(target_folder, plain_bytes), _room(work_folder, shard_bytes))
        return SpaceNeeded(cloned=shares_source, twice_bytes=0, rooms=rooms)
    # A joined file shares extents with its shards, and these with the source.
    if has_links is None:
        has_links = can_link(work_folder, target_folder, f".{target.name}.leconvert-probe")
    twice_bytes = part_bytes if has_links else shard_bytes
    room = _room(target_folder, shard_bytes + twice_bytes)
    return SpaceNeeded(cloned=shares_source, twice_bytes=twice_bytes, rooms=(room,))


def space_of_meta(target: Path) -> SpaceNeeded:
    """Estimate the space of a new ``meta/`` as the size of the old one."""
    sizes = [path.stat().st_size for path in (target / META).rglob("*") if path.is_file()]
    return SpaceNeeded(cloned=False, twice_bytes=0, rooms=(_room(target, sum(sizes)),))


def check_room(space: SpaceNeeded, target: Path, taken: Mapping[str, int] = {}) -> None:
    """Refuse a conversion that certainly does not fit.

    Args:
        space: The space that it needs.
        target: The folder of the result.
        taken: Free bytes that others will take, by the room's folder.

    Raises:
        StorageError: It does not fit.
    """
    for known in space.rooms:
        free_bytes = known.free_bytes
        if free_bytes is None:
            continue
        room = replace(known, free_bytes=max(0, free_bytes - taken.get(known.folder, 0)))
        if room.suffices:
            continue
        is_target = room.folder == str(target.parent)
        why = (
            " while the workers' files and the result exist side by side"
            if space.twice_bytes
            else ""
        )
        other = "--output" if is_target else "--work-dir"
        raise StorageError(
            f"{room.folder} has only {amount(room.free_bytes or 0)} free, but the "
            f"{'result needs' if is_target else 'files of the workers need'} about "
            f"{amount(room.bytes_needed)}{why}.",
            path=room.folder,
            next_step=_free_former(target)
            + f"Free disk space or choose another {other}. Nothing was written.",
        )


def _free_former(target: Path) -> str:
    former_states, former_bytes = count_former([target])
    if not former_states:
        return ""
    clean = f"leconvert clean --of {shlex.quote(str(target))} --old"
    return (
        f"`{clean}` removes former states of the result that the result still contains: "
        f"{count(former_states, 'state')}, up to {amount(former_bytes)}. "
    )


def free_bytes_of(folder: Path) -> int | None:
    """Return the free space for this user; None if the file system does not report it.

    Some programs behind FUSE answer ``statvfs`` with zeros, or not at all; this does not mean
    "full".
    """
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return None
    return usage.free if usage.total else None


def can_link(folder: Path, other: Path, name: str) -> bool:
    """Return whether a file in one folder can be linked into another, by trying.

    The files of the test are removed; after a crash, the next test removes them. If the first
    folder cannot be written, or another process tests the same name at the same time, the answer is
    unknown, and True is returned.
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
        # On a read-only disk even removing a missing file is an error, so look first.
        with storage_errors(path), suppress(FileNotFoundError):
            path.lstat()
            path.unlink()
    return linked


def _room(folder: Path, bytes_needed: int) -> Room:
    return Room(str(folder), bytes_needed, free_bytes_of(folder))


def existing_folder(folder: Path) -> Path:
    """Return a folder, or the nearest one above it that exists."""
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    return folder


def is_one_file_system(one: Path, other: Path) -> bool:
    """Return whether two paths are on one mounted file system."""
    return os.stat(one).st_dev == os.stat(other).st_dev  # noqa: PTH116 - st_dev alone
