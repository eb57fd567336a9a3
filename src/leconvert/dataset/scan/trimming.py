"""The slices of trimmed episodes: fewer rows, and all samples that their frames need.

A clip of v2.1 contains only the frames of its episode, so a cut for it begins at a keyframe.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from leconvert import media
from leconvert.dataset.findings import Observation
from leconvert.dataset.formats import Dataset
from leconvert.dataset.scan.v2 import index_of_remuxed
from leconvert.model.values import DATA_STREAM, IntArray, Misfit, StreamScan
from leconvert.support.errors import UsageError
from leconvert.support.text import count, shown
from leconvert.support.values import dataclass

Intervals = Mapping[int, tuple[int, int]]


@dataclass(frozen=True, slots=True, eq=False)
class Trimming:
    """The whole episodes of a source, of which some are trimmed.

    Intervals are the first kept frame and the frame after the last kept one, by episode.

    Attributes:
        dataset: The source.
        slices: Their slices.
        episode_index: Their indices, ascending, shape (E,).
        length: Their numbers of frames, shape (E,).
        to: The version to write.
    """

    dataset: Dataset
    slices: Sequence[StreamScan]
    episode_index: IntArray
    length: IntArray
    to: str

    def trimmed_slices(self, intervals: Intervals) -> tuple[list[StreamScan], list[Observation]]:
        """Return the slices of all streams after a trim, and the cuts that are impossible.

        The index of each clip of these episodes is read again. Unreadable clips have findings
        already.
        """
        if not intervals:
            return list(self.slices), []
        found, remarks = [], []
        clips: dict[int, list[_Clip]] = {}
        for each in self.slices:
            names = ("first", "frames", "size_bytes", "roll_bytes", "lead", "misfit")
            columns = {name: getattr(each, name).copy() for name in names}
            first, frames, size_bytes, roll_bytes, lead, misfit = columns.values()
            readable, keys = each.is_readable & ~each.is_missing, each.key
            for episode, (begin, stop) in intervals.items():
                at = int(np.searchsorted(self.episode_index, episode))
                samples = int(frames[at])
                misfit[at] |= int(Misfit.SHARED)
                if not readable[at] or samples < stop:
                    continue  # the finding says why
                if each.stream == DATA_STREAM:
                    first[at] += begin
                    roll_bytes[at] = roll_bytes[at] * (stop - begin) // samples
                    size_bytes[at] = size_bytes[at] * (stop - begin) // samples
                    frames[at] = stop - begin
                    continue
                relative = self.dataset.relative(each.stream, int(keys[at]))
                path = f"{self.dataset.root}/{relative}"
                clip = _clip(path, self.dataset.fps, each, at)
                clips.setdefault(episode, []).append(clip)
                cut = clip.cut(begin, stop)
                what = f"frames {begin}:{stop} of episode {episode}"
                said = f"{what} cannot be cut out without encoding: no keyframe comes before them."
                if cut is None or (said := clip.doubt(path, cut, what)):
                    said = f"{shown(relative)}: {said}"
                    remarks.append(Observation("no-keyframe", said, episode, each.stream, relative))
                    continue
                first[at], lead[at] = clip.own + cut[0], begin - cut[0]
                frames[at] = cut[1] - cut[0]
                size_bytes[at] = roll_bytes[at] = clip.size_bytes(*cut)
            found.append(replace(each, **columns))
        if self.to == "v2.1":
            for episode in clips.keys() - {remark.episode for remark in remarks}:
                at = int(np.searchsorted(self.episode_index, episode))
                _check_held_by_v21(
                    episode, clips[episode], *intervals[episode], int(self.length[at])
                )
        return found, remarks

    def salvaged_intervals(
        self, whole_frames: Mapping[int, int], chosen: Intervals
    ) -> dict[int, tuple[int, int]]:
        """Return the kept frames of damaged episodes whose first frames have rows and pictures.

        A clip of v2.1 ends where no later frame is needed.

        Args:
            whole_frames: The number of first frames of damaged episodes that agree.
            chosen: The frames that the user wants, for some episodes.
        """
        found = {}
        for episode, whole in whole_frames.items():
            first, stop = chosen.get(episode, (0, whole))
            stop = min(stop, whole)
            if self.to == "v2.1" and first < stop:
                at = int(np.searchsorted(self.episode_index, episode))
                first, stop = _held_by_v21(self._clips(at), first, stop) or (first, first)
            if first < stop and (episode in chosen or first == 0):
                found[episode] = first, stop
        return found

    def _clips(self, at: int) -> list[_Clip]:
        """Return the clips of the episode at a position."""
        return [
            _clip(path, self.dataset.fps, each, at)
            for each in self.slices
            if each.stream != DATA_STREAM
            for path in self.dataset.absolute(each.stream, [int(each.key[at])])
        ]

    def trimmed_before(self, intervals: Intervals) -> Iterator[Observation]:
        """Yield the episodes that v2.1 cannot hold, since they were trimmed between keyframes.

        Episodes that are trimmed now get no finding.
        """
        if self.to != "v2.1":
            return
        videos = [each for each in self.slices if each.stream != DATA_STREAM]
        wider: dict[int, list[StreamScan]] = {}
        for each in videos:
            is_part = (each.misfit & int(Misfit.SHARED)) != 0
            for at in np.flatnonzero(is_part & (each.frames > self.length)).tolist():
                if int(self.episode_index[at]) not in intervals:
                    wider.setdefault(at, []).append(each)
        within: dict[int, tuple[int, int]] = {}
        for at in wider:
            if any(each.frames[at] < self.length[at] for each in videos):
                continue  # that camera has a finding already
            if (found := _held_by_v21(self._clips(at), 0, int(self.length[at]))) is not None:
                within[at] = found
        words = ["leconvert", "trim", str(self.dataset.root), "-o", "NEW"]
        for at, (first, stop) in sorted(within.items()):
            words += ["--episode", str(self.episode_index[at]), "--frames", f"{first}:{stop}"]
        command = f"{shlex.join(words)} --to v2.1"
        for at, found_slices in sorted(wider.items()):
            episode, stream = int(self.episode_index[at]), found_slices[0].stream
            relative = self.dataset.relative(stream, int(found_slices[0].key[at]))
            said = f"{shown(relative)}: episode {episode} was trimmed and needs "
            said += (
                "frames beside the kept ones, but a clip of v2.1 contains only the frames of "
                "its episode."
            )
            if at in within:
                first, stop = within[at]
                said += (
                    f" Frames {first}:{stop} of its {self.length[at]} need no others: `{command}`."
                )
            yield Observation("no-keyframe", said, episode, stream, relative)


def _held_by_v21(clips: Sequence[_Clip], first: int, stop: int) -> tuple[int, int] | None:
    """Return the longest part of an interval that needs no frame outside it, in any camera."""
    begin = next(
        (
            frame
            for frame in range(first, stop)
            if all(clip.clip.begins_at(clip.own + frame) for clip in clips)
        ),
        stop,
    )
    end = next(
        (
            frame
            for frame in range(stop, begin, -1)
            if all(clip.clip.can_cut(clip.own + frame) for clip in clips)
        ),
        begin,
    )
    return None if begin == end else (begin, end)


def _clip(path: str, fps: Fraction, slices: StreamScan, at: int) -> _Clip:
    """Return the slice of one episode; the index of its file is read again."""
    try:
        clip = media.read_clip_index(path)
    except media.TruncatedClipError as error:
        clip = error.index
    except media.UnsupportedClipError:
        clip, _ = index_of_remuxed(path, fps)
    begin = int(slices.first[at])
    own, end = begin + int(slices.lead[at]), begin + int(slices.frames[at])
    return _Clip(clip, own, begin, end)


class _Clip(NamedTuple):
    """An episode's part of a video file.

    Attributes:
        clip: The file's index.
        own: The episode's first frame, in presentation order.
        begin: The first sample of its slice.
        end: The sample after the last one.
    """

    clip: media.ClipIndex
    own: int
    begin: int
    end: int

    def cut(self, first: int, stop: int) -> tuple[int, int] | None:
        """Return the frames to cut out for some frames of the episode, in its own count."""
        cut = self.clip.cut_around(
            self.own + first, self.own + stop, begin=self.begin, end=self.end
        )
        return None if cut is None else (cut[0] - self.own, cut[1] - self.own)

    def size_bytes(self, first: int, stop: int) -> int:
        """Return the bytes of a cut, counted from the episode's first frame."""
        return int(self.clip.sizes[self.own + first : self.own + stop].sum())

    def doubt(self, path: str, cut: tuple[int, int], what: str) -> str:
        """Return why the frames of a cut would not decode as in the file; empty if they do.

        A decoder starts at any keyframe that a file lists, as do LeRobot and our statistics. The
        first sample is not checked: a reader of the whole file also starts there. A clip that has
        to be remuxed is not checked: its keyframes come from FFmpeg.
        """
        if self.clip.path != path:
            return ""
        first, stop = self.own + cut[0], self.own + cut[1]
        false = [sample for sample in self.clip.false_keyframes(first, stop) if sample]
        if not false:
            return ""
        frame = int(self.clip.ranks[false[0]]) - self.own
        more = f" and {count(len(false) - 1, 'other')}" if len(false) > 1 else ""
        return (
            f"{what} cannot be cut out as they are: the table of keyframes lists frame "
            f"{frame}{more}, but no decoder can start there (the encoder refreshed "
            "pictures step by step, or the table is wrong). Encode the clip again with "
            "whole keyframes, or do not trim this episode."
        )


def _check_held_by_v21(
    episode: int, clips: Sequence[_Clip], first: int, stop: int, length: int
) -> None:
    """Refuse cuts with frames outside the episode, which a clip of v2.1 cannot contain."""
    wider, before = (first, stop), (-1, -1)
    while wider != before:  # the frames that one camera needs may not be a cut of another
        before = wider
        cuts = [clip.cut(*wider) or wider for clip in clips]
        wider = min(cut[0] for cut in cuts), max(cut[1] for cut in cuts)
    if wider == (first, stop):
        return
    found = [wider, _held_by_v21(clips, first, stop)]
    # An episode that was trimmed before has no more frames on that side.
    intervals = [
        f"{each[0]}:{each[1]}"
        for each in found
        if each is not None and each[0] >= 0 and each[1] <= length and each != (0, length)
    ]
    held = f"Give --frames {' or '.join(intervals)}, or write v3.0" if intervals else "Write v3.0"
    raise UsageError(
        f"Frames {first}:{stop} of episode {episode} cannot be decoded without frames before or "
        "after them, but a clip of v2.1 contains only the frames of its episode.",
        next_step=f"{held}, which can store these other frames.",
    )
