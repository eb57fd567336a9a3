"""Join clips into one MP4 in one pass, without touching a coded byte."""

from __future__ import annotations

import errno
import os
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import groupby, islice
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from leconvert.media.boxes import UnsupportedClipError, broken, unreadable
from leconvert.media.clip import ClipIndex, order_digest
from leconvert.media.header import FileSamples, build_header
from leconvert.media.index import read_clip_index, read_clip_indexes
from leconvert.model.values import Slice
from leconvert.support.errors import (
    SourceError,
    StorageError,
    TargetError,
    UnreadableSourceError,
    UsageError,
)
from leconvert.support.range_mover import RangeMover

# Whole blocks of this size are shared where a file system can; what is smaller is copied.
_BLOCK_BYTES = 4096


@dataclass(frozen=True, slots=True)
class CopiedFile:
    """How the bytes of a copy came.

    Attributes:
        size_bytes: Size of the file.
        copied_bytes: Bytes that were copied.
        cloned_bytes: Bytes whose blocks are shared with the source.
    """

    size_bytes: int
    copied_bytes: int
    cloned_bytes: int


def copy_file(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    on_bytes: Callable[[int], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    sync: bool = False,
) -> CopiedFile:
    """Copy a file, sharing its blocks where the file system can.

    The source is read only, and shares no inode with the copy. On any error the target is removed.

    Args:
        source: The file; a link to a file is followed.
        target: Must not exist.
        on_bytes: Called with the number of bytes as they arrive.
        should_stop: Asked now and then; when it answers True the copy ends.
        sync: Force the copy to the disk.

    Raises:
        UnreadableSourceError: The source cannot be read to its end.
        TargetError: The target exists already.
        StorageError: The target cannot be written.
        InterruptedRunError: ``should_stop`` said so.
    """
    name, new_name = os.fspath(source), os.fspath(target)
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise unreadable(name, error) from error
    try:
        size_bytes = os.fstat(descriptor).st_size
        destination = create_file(new_name)
        try:
            mover = RangeMover(
                destination,
                new_name,
                block_align=_BLOCK_BYTES,
                on_bytes=on_bytes,
                should_stop=should_stop,
            )
            mover.move(descriptor, name, 0, size_bytes, 0)
            if sync:
                os.fsync(destination)
        except BaseException:
            Path(new_name).unlink(missing_ok=True)
            raise
        finally:
            os.close(destination)
    finally:
        os.close(descriptor)
    return CopiedFile(size_bytes, mover.copied_bytes, mover.cloned_bytes)


class LastIndex:
    """The index of the file that a join cut last, so that the next join need not read it again.

    For joins one after another while the files stay as they are; it holds one index at most.
    """

    def __init__(self) -> None:
        self._index: ClipIndex | None = None

    def forget(self) -> None:
        """Hold none."""
        self._index = None

    def of(self, path: str) -> ClipIndex | None:
        """Return the index of a file if it is the one."""
        return self._index if self._index is not None and self._index.path == path else None

    def keep(self, index: ClipIndex, stop: int) -> None:
        """Hold an index if samples are left behind those that were cut out of the file."""
        self._index = index if stop < index.num_samples else None


@dataclass(frozen=True, slots=True)
class JoinedFile:
    """What :func:`join_clips` wrote.

    Attributes:
        size_bytes: Size of the file.
        header_bytes: Bytes before the first byte of media data: ``ftyp``, ``moov`` and the header
            of ``mdat``.
        samples: Coded samples in all.
        copied_bytes: Coded bytes that were copied.
        cloned_bytes: Coded bytes whose blocks are shared with their source.
        clip_digests: `order_digest` of each clip as it was read, in the order of clips.
    """

    size_bytes: int
    header_bytes: int
    samples: int
    copied_bytes: int
    cloned_bytes: int
    clip_digests: tuple[str, ...]


def join_clips(
    clips: Sequence[Slice],
    destination: str | os.PathLike[str],
    *,
    fps: Fraction,
    block_align: int = 0,
    scratch_dir: str | os.PathLike[str] | None = None,
    coded: Callable[[int], str] | None = None,
    last_index: LastIndex | None = None,
    is_whole: bool = False,
    on_bytes: Callable[[int], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    sync: bool = False,
) -> JoinedFile:
    """Join episodes into one MP4 whose frame *i* is shown at exactly i / fps.

    The bytes of the result are a function of the clips, ``fps`` and ``block_align`` alone: not of
    the file system, of how bytes were moved, or of whether the samples came from the original
    clips or from parts that this function joined before. On any error the destination is removed.

    Args:
        clips: Episodes in order; all of one decoder configuration.
        destination: Must not exist.
        fps: Frames a second.
        block_align: 0, or a block size in bytes: each episode then begins at its source offset
            modulo it (zeros between), so that whole blocks can be shared with the source.
        scratch_dir: Where clips that cannot be joined as they lie are remuxed, without
            re-encoding; the folder of the destination by default. Needs their size.
        coded: Says where the coded bytes of a clip are, by its place in ``clips``: a path that is
            valid until the next is asked for. For clips whose own files hold the index alone.
        last_index: What the join before held, and what this one leaves for the next.
        is_whole: Whether the one clip is a file that is copied with all its samples. Nothing is cut
            off and nothing follows, so that it may begin with any frame, as it did before.
        on_bytes: Called with the number of coded bytes as they arrive.
        should_stop: Asked now and then; when it answers True the join ends.
        sync: Force the file to the disk.

    Returns:
        Size and frames of the file, and how its bytes were moved.

    Raises:
        UnreadableSourceError: A clip is missing, damaged, shorter than its index says, does not
            begin with a keyframe, or shows a frame before it.
        SourceError: The clips do not share one decoder configuration.
        TargetError: The destination exists already.
        StorageError: The destination cannot be written.
        InterruptedRunError: ``should_stop`` said so.
        UsageError: No clips, or an impossible frame rate or alignment.
    """
    if not clips:
        raise UsageError("There are no clips to join.", path=os.fspath(destination))
    if block_align < 0:
        raise UsageError(f"A block alignment of {block_align} bytes is impossible.")
    target = os.fspath(destination)
    with ExitStack() as cleanup:
        scratch = _Scratch(scratch_dir, target, fps, cleanup)
        coded_bytes, digests, samples, first = _read_episodes(
            clips, scratch, LastIndex() if last_index is None else last_index, is_whole=is_whole
        )
        header = build_header(
            samples,
            fps=fps,
            sample_entry=first.sample_entry,
            geometry=first.geometry,
            block_align=block_align,
        )
        descriptor = create_file(target)
        try:
            mover = RangeMover(
                descriptor,
                target,
                block_align=block_align,
                on_bytes=on_bytes,
                should_stop=should_stop,
            )
            mover.write([header.content], 0)
            with _OpenedSource() as source:
                for place, (clip, runs, position) in enumerate(
                    zip(clips, coded_bytes.runs(), header.positions, strict=True)
                ):
                    # A clip that was remuxed was read whole, and lies in the scratch folder.
                    remuxed = coded_bytes.remuxed.get(place)
                    where = None if coded is None or remuxed else partial(coded, place)
                    source.open(remuxed or clip.path, where)
                    arrived = position
                    for start, length in runs:
                        mover.move(source.descriptor, source.path, start, length, arrived)
                        arrived += length
            if sync:
                os.fsync(descriptor)
        except BaseException:
            with suppress(OSError):
                Path(target).unlink()
            raise
        finally:
            os.close(descriptor)
    return JoinedFile(
        size_bytes=header.size_bytes,
        header_bytes=len(header.content),
        samples=samples.num_samples,
        copied_bytes=mover.copied_bytes,
        cloned_bytes=mover.cloned_bytes,
        clip_digests=tuple(digests),
    )


class _Scratch:
    """Remuxes clips that need it into a folder that goes when the join ends."""

    def __init__(
        self,
        parent: str | os.PathLike[str] | None,
        target: str,
        fps: Fraction,
        cleanup: ExitStack,
    ) -> None:
        self._num_remuxed = 0
        self._parent = parent
        self._target = target
        self._fps = fps
        self._cleanup = cleanup
        self._folder: Path | None = None

    def remuxed_index(self, path: str, reason: str) -> ClipIndex:
        from leconvert.media.pyav import remux_clip

        if self._folder is None:
            parent = Path(self._parent or Path(self._target).parent)
            try:
                self._folder = Path(
                    self._cleanup.enter_context(TemporaryDirectory(prefix=".remux-", dir=parent))
                )
            except OSError as error:
                raise StorageError(
                    f"{parent} cannot hold a remuxed clip: {error.strerror or error}.",
                    path=str(parent),
                    next_step="Make room or check the disk, then run the same command again.",
                ) from error
        plain = self._folder / f"{self._num_remuxed:06d}.mp4"
        remux_clip(path, plain, fps=self._fps)
        self._num_remuxed += 1
        try:
            return read_clip_index(plain)
        except UnsupportedClipError as error:
            raise broken(path, f"{reason}, and after a remux: {error.reason}") from error


_path = attrgetter("path")


class _CodedBytes:
    """Where the coded bytes of each episode lie in its file.

    A file can have tens of thousands of episodes, so that these are columns of numbers.

    Attributes:
        remuxed: The files of clips that were remuxed, by the place of their episode.
    """

    def __init__(self) -> None:
        self.remuxed: dict[int, str] = {}
        self._starts, self._lengths, self._stops = array("q"), array("q"), array("q")

    def add(self, runs: list[tuple[int, int]], remuxed: str | None) -> None:
        """Append an episode."""
        if remuxed is not None:
            self.remuxed[len(self._stops)] = remuxed
        for start, length in runs:
            self._starts.append(start)
            self._lengths.append(length)
        self._stops.append(len(self._starts))

    def runs(self) -> Iterator[Iterator[tuple[int, int]]]:
        """Yield start and length of each run of bytes of each episode."""
        runs, first = zip(self._starts, self._lengths, strict=True), 0
        for stop in self._stops:
            yield islice(runs, stop - first)
            first = stop


def _read_episodes(
    clips: Sequence[Slice], scratch: _Scratch, last: LastIndex, *, is_whole: bool
) -> tuple[_CodedBytes, list[str], FileSamples, ClipIndex]:
    """Return where each episode's bytes lie, its digest, all samples, and the first index."""
    coded_bytes = _CodedBytes()
    digests: list[str] = []
    samples = FileSamples()
    first: ClipIndex | None = None
    path, stop = clips[0].path, 0
    index = last.of(path)
    last.forget()
    # Episodes of one file follow each other: its index is not read once for each.
    names = [name for name, _ in groupby(clips, _path)]
    found = read_clip_indexes(names if index is None else names[1:], read_ahead=True)
    for clip in clips:
        if index is None or clip.path != path:
            path, answer = clip.path, next(found)
            if isinstance(answer, UnsupportedClipError):
                index = scratch.remuxed_index(path, answer.reason)
            elif isinstance(answer, UnreadableSourceError):
                raise answer
            else:
                index = answer
        if first is None:
            first = index
        elif index.config_key != first.config_key:
            raise SourceError(
                f"{clip.path} needs another decoder configuration than {clips[0].path}.",
                path=clip.path,
                next_step="Give them separate output files, as a new plan (--restart) does.",
            )
        start = clip.first or 0
        count = index.num_samples - start if clip.frames is None else clip.frames
        stop = start + count
        holds_others = clip.first is None and count < index.num_samples
        if start < 0 or count < 1 or stop > index.num_samples or holds_others:
            raise UnreadableSourceError(
                f"{clip.path} has {index.num_samples} frames, not {count} from frame {start} on.",
                path=clip.path,
            )
        sizes, keyframes = index.sizes[start:stop], index.keyframes[start:stop]
        if count < index.num_samples:
            _check_cut(index, clip.path, start, stop)
        elif not (keyframes[0] or is_whole):
            raise broken(clip.path, "it does not begin with a keyframe")
        lead = index.reordering(start, stop)
        if lead is not None and lead[0] and not is_whole:
            raise broken(clip.path, "it shows a frame before its first keyframe")
        runs = index.byte_runs(start, stop)
        samples.add(
            sizes,
            keyframes,
            lead,
            source_offset=runs[0][0],
            num_bytes=sum([length for _, length in runs]),
        )
        coded_bytes.add(runs, None if index.path == clip.path else index.path)
        digests.append(order_digest(sizes, keyframes, lead))
    assert first is not None
    assert index is not None
    last.keep(index, stop)
    return coded_bytes, digests, samples, first


def _check_cut(index: ClipIndex, path: str, start: int, stop: int) -> None:
    """Refuse to cut out samples that cannot be decoded without others, or are shown among them."""
    if not index.keyframes[start]:
        reason = f"frame {start} begins an episode and is no keyframe"
    elif not (index.can_cut(start) and index.can_cut(stop)):
        reason = f"other frames are shown among frames {start} to {stop - 1}, which are an episode"
    else:
        return
    raise UnreadableSourceError(
        f"{path} cannot be cut without encoding it again: {reason}.",
        path=path,
        next_step="Leave the episode out (--on-bad-episode drop).",
    )


class _OpenedSource:
    """The file that coded bytes are read from; it stays open while episodes of it follow."""

    def __init__(self) -> None:
        self.descriptor = -1
        self.path = ""
        self._name: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def open(self, name: str, where: Callable[[], str] | None) -> None:
        """Open a file unless it is; ``where`` tells where its coded bytes are, if elsewhere."""
        if name == self._name:
            return
        # Before the next is asked for: this one may have to make room for it.
        self._close()
        self.path = name if where is None else where()
        try:
            self.descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise unreadable(self.path, error) from error
        self._name = name

    def _close(self) -> None:
        if self._name is not None:
            self._name = None
            os.close(self.descriptor)


def create_file(target: str) -> int:
    """Create a file that must not exist, and return its descriptor."""
    try:
        return os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno == errno.EEXIST:
            raise TargetError(
                f"{target} exists already and is not overwritten.", path=target
            ) from error
        raise StorageError(
            f"{target} cannot be created: {error.strerror or error}.",
            path=target,
            next_step="Check the folder and its permissions, then run the same command again.",
        ) from error
