"""The slices of trimmed episodes: fewer rows, and the samples without which no frame decodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from leconvert import media
from leconvert.errors import UsageError
from leconvert.findings import Observation
from leconvert.model import DATA_STREAM, IntArray, Misfit
from leconvert.source.episodes import EpisodePaths, Slices, index_of_remuxed
from leconvert.text import shown

__all__ = ["trimmed_slices"]

Intervals = Mapping[int, tuple[int, int]]


def trimmed_slices(
    slices: Sequence[Slices],
    paths: EpisodePaths,
    episode_index: IntArray,
    length: IntArray,
    intervals: Intervals,
    fps: Fraction,
    to: str,
) -> tuple[list[Slices], list[Observation]]:
    """Return the slices of all streams once some episodes are trimmed, and what cannot be cut.

    The index of each of their clips is read again. Nothing is said of what could not be read.

    Args:
        slices: Those of whole episodes.
        paths: Where the files are.
        episode_index: Index of each episode, ascending, shape (E,).
        length: Frames of each, shape (E,).
        intervals: The first frame that stays of an episode, and the one after the last, by its
            index.
        to: The version that is to be written.

    Raises:
        UsageError: v2.1 is to be written, whose clips cannot hold what a cut between keyframes
            needs beside the frames.
    """
    found, remarks = [], []
    clips: dict[int, list[_Clip]] = {}
    for each in slices:
        numbers, first = each.numbers.copy(), each.first.copy()
        size_bytes, lead = each.size_bytes.copy(), each.lead.copy()
        readable = each.is_readable & ~each.is_missing
        for episode, (begin, stop) in intervals.items():
            at = int(np.searchsorted(episode_index, episode))
            samples = int(numbers[at, 3])
            numbers[at, 5] |= int(Misfit.SHARED)
            if not readable[at] or samples < length[at]:
                continue  # why is said
            if each.stream == DATA_STREAM:
                first[at] += begin
                numbers[at, 4] = numbers[at, 4] * (stop - begin) // samples
                size_bytes[at] = size_bytes[at] * (stop - begin) // samples
                numbers[at, 3] = stop - begin
                continue
            (path,) = paths.absolute(each.stream, [episode])
            clip = _index(path, fps)
            own = int(first[at] + lead[at])
            clips.setdefault(episode, []).append(
                _Clip(clip, own, int(first[at]), int(first[at]) + samples)
            )
            cut = clips[episode][-1].cut(begin, stop)
            if cut is None:
                relative = paths.relative(each.stream, episode)
                said = f"{shown(relative)}: no keyframe begins what frames {begin}:{stop} of "
                said += f"episode {episode} need; without encoding they cannot be cut out."
                remarks.append(Observation("no-keyframe", said, episode, each.stream, relative))
                continue
            first[at], lead[at] = own + cut[0], begin - cut[0]
            numbers[at, 3] = cut[1] - cut[0]
            size_bytes[at] = numbers[at, 4] = clip.sizes[own + cut[0] : own + cut[1]].sum()
        found.append(replace(each, numbers=numbers, first=first, size_bytes=size_bytes, lead=lead))
    if to == "v2.1":
        for episode, found_clips in clips.items():
            _check_held_by_v21(episode, found_clips, *intervals[episode])
    return found, remarks


def _index(path: str, fps: Fraction) -> media.ClipIndex:
    try:
        return media.read_clip_index(path)
    except media.UnsupportedClipError:
        return index_of_remuxed(path, fps)


class _Clip(NamedTuple):
    """An episode's part of a video file.

    Attributes:
        clip: The file's index.
        own: The episode's first frame, in the order of presentation.
        begin: The first sample of its slice.
        end: The one after the last.
    """

    clip: media.ClipIndex
    own: int
    begin: int
    end: int

    def cut(self, first: int, stop: int) -> tuple[int, int] | None:
        """Return what has to be cut out for some frames of the episode, in its own count."""
        cut = self.clip.cut_around(
            self.own + first, self.own + stop, begin=self.begin, end=self.end
        )
        return None if cut is None else (cut[0] - self.own, cut[1] - self.own)


def _check_held_by_v21(episode: int, clips: Sequence[_Clip], first: int, stop: int) -> None:
    """Refuse cuts that take along what a clip of v2.1, which is one episode, has no place for."""
    wider, before = (first, stop), (-1, -1)
    while wider != before:  # what one camera needs may not be a cut of another
        before = wider
        cuts = [clip.cut(*wider) or wider for clip in clips]
        wider = min(cut[0] for cut in cuts), max(cut[1] for cut in cuts)
    if wider != (first, stop):
        raise UsageError(
            f"Frames {first}:{stop} of episode {episode} are not between keyframes, and a clip of "
            "v2.1 begins and ends with its episode.",
            next_step=f"Give --frames {wider[0]}:{wider[1]}, or write v3.0, which holds the frames "
            "that are needed beside them.",
        )
