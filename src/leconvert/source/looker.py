"""One block of a source's episodes, looked at: sizes, parquet footers, MP4 headers."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from leconvert import media, tables
from leconvert.errors import UnreadableSourceError
from leconvert.model import DATA_STREAM, Finding, IntArray
from leconvert.source.changes import FileFacts, signed_inode
from leconvert.source.legacy import EPISODES_PATH
from leconvert.source.paths import SourcePaths

__all__ = ["Block", "Looker"]

# How far LeRobot lets a frame lie from the timestamp that asks for it.
_LEROBOT_TOLERANCE_SECONDS = 1e-4


class _Facts(NamedTuple):
    """What a scan keeps of one slice; for a file that cannot be read, all zero."""

    size_bytes: int = 0
    mtime_ns: int = 0
    inode: int = 0
    frames: int = 0
    roll_bytes: int = 0
    config: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Some consecutive episodes: for each stream numbers of shape (n, 5), and configurations."""

    numbers: list[IntArray]
    configs: list[list[str]]
    findings: list[Finding]


@dataclass(frozen=True, slots=True)
class _Remark:
    """A finding before it knows where it was made."""

    code: str
    message: str
    severity: str = "error"


class Looker:
    """Looks at one block of episodes after another.

    Threads may share it, and it can be sent to another process: it holds nothing that changes.

    Args:
        paths: Where the source's files are.
        fps: Frames a second.
        streams: What to look at in each episode.
        episode_index: Indices of all episodes, shape (E,).
        length: Their frames, shape (E,).
    """

    def __init__(
        self,
        paths: SourcePaths,
        fps: Fraction,
        streams: Sequence[str],
        episode_index: IntArray,
        length: IntArray,
    ) -> None:
        self._paths = paths
        self._fps = fps
        self._streams = streams
        self._episode_index = episode_index
        self._length = length

    def __call__(self, first: int, stop: int) -> Block:
        """Look at the episodes at places ``first`` to ``stop``."""
        block = Block([], [], [])
        indices = self._episode_index[first:stop].tolist()
        lengths = self._length[first:stop].tolist()
        for stream in self._streams:
            paths = list(self._paths.absolute(stream, indices))
            clips = None if stream == DATA_STREAM else media.read_clip_indexes(paths)
            seen: list[_Facts] = []
            for index, length, path in zip(indices, lengths, paths, strict=True):
                remarks: list[_Remark] = []
                clip = None if clips is None else next(clips)
                try:
                    facts = (
                        self._table(path, length, remarks)
                        if clip is None
                        else self._clip(path, clip, length, remarks)
                    )
                except FileNotFoundError:
                    remarks.append(_Remark("missing-file", f"{path} is missing."))
                    facts = _Facts()
                except UnreadableSourceError as error:
                    remarks.append(_Remark("unreadable-file", error.message))
                    facts = _Facts()
                except OSError as error:
                    said = f"{path} cannot be read: {error.strerror or error}."
                    remarks.append(_Remark("unreadable-file", said))
                    facts = _Facts()
                seen.append(facts)
                for remark in remarks:
                    block.findings.append(
                        Finding(
                            remark.code,
                            remark.severity,
                            remark.message,
                            episode=index,
                            stream=stream,
                            path=self._paths.relative(stream, index),
                        )
                    )
            block.numbers.append(np.array([facts[:-1] for facts in seen], dtype=np.int64))
            block.configs.append([facts.config for facts in seen])
        return block

    def _table(self, path: str, length: int, remarks: list[_Remark]) -> _Facts:
        file = FileFacts.of(path)
        footer = tables.read_data_footer(path)
        if footer.rows != length:
            said = f"{path} has {footer.rows} rows, {EPISODES_PATH} says {length}."
            remarks.append(_Remark("row-count", said))
        elif footer.timestamp_range is not None:
            begin, end = footer.timestamp_range
            last = float((length - 1) / self._fps)
            if max(abs(begin), abs(end - last)) >= _LEROBOT_TOLERANCE_SECONDS:
                said = (
                    f"{path} has timestamps from {begin:g} to {end:g} s, its {length} frames stand "
                    f"at 0 to {last:g} s; LeRobot will not find frames by such timestamps."
                )
                remarks.append(_Remark("timestamps", said, "warning"))
        return _Facts(
            file.size_bytes,
            file.mtime_ns,
            signed_inode(file.inode),
            footer.rows,
            footer.uncompressed_bytes,
        )

    def _clip(
        self,
        path: str,
        clip: media.ClipIndex | UnreadableSourceError,
        length: int,
        remarks: list[_Remark],
    ) -> _Facts:
        file = FileFacts.of(path)
        if isinstance(clip, media.UnsupportedClipError):
            said = f"{path} will be remuxed: {clip.reason}."
            remarks.append(_Remark("remux", said, "info"))
            clip = _index_of_remuxed(path, self._fps)
        elif isinstance(clip, UnreadableSourceError):
            raise clip
        if clip.num_samples != length:
            said = f"{path} has {clip.num_samples} frames, {EPISODES_PATH} says {length}."
            remarks.append(_Remark("frame-count", said))
        elif not clip.keyframes[0]:
            remarks.append(_Remark("no-keyframe", f"{path} does not begin with a keyframe."))
        elif late := clip.frames_off_their_place(self._fps):
            said = (
                f"{path} stores {late} of {length} frames half a frame or more away from their "
                "place at i/fps; frames are placed by their order."
            )
            remarks.append(_Remark("frame-times", said, "warning"))
        if clip.other_tracks:
            said = f"{path} also holds {', '.join(clip.other_tracks)} tracks, which are left out."
            remarks.append(_Remark("other-tracks", said, "warning"))
        return _Facts(
            file.size_bytes,
            file.mtime_ns,
            signed_inode(file.inode),
            clip.num_samples,
            file.size_bytes,
            clip.config_key,
        )


def _index_of_remuxed(path: str, fps: Fraction) -> media.ClipIndex:
    folder = tempfile.mkdtemp(prefix="leconvert-scan-")
    try:
        plain = f"{folder}/clip.mp4"
        media.remux_clip(path, plain, fps=fps)
        return media.read_clip_index(plain)
    finally:
        shutil.rmtree(folder)
