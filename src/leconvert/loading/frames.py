"""Camera frames of episodes, out of a bounded number of open decoders."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from leconvert.errors import UnreadableSourceError
from leconvert.loading.decoders import Backend, Clip, ClipDecoder, Codecs, open_clip, open_decoder
from leconvert.loading.files import Files
from leconvert.loading.metadata import DatasetMeta
from leconvert.loading.rows import EpisodeRows, RowReader
from leconvert.loading.tensors import WorkerCounters
from leconvert.model import IntArray

__all__ = ["EpisodePool", "FrameReader", "FrameRequest"]


_FileKey = tuple[str, int]


@dataclass(frozen=True, slots=True, eq=False)
class FrameRequest:
    """Frames of one camera."""

    camera: str  # the video feature
    places: IntArray  # place of the episode of each frame, shape (N,)
    frames: IntArray  # number within the episode, shape (N,)


# Called with places in a request, shape (n,), and their frames, shape (n, H, W, C), or the one
# frame of them all, shape (1, H, W, C).
Writer = Callable[[IntArray, torch.Tensor], None]
# Called with places in a request that cannot be decoded, and why.
Trouble = Callable[[IntArray, UnreadableSourceError], None]


class _Group(NamedTuple):
    """What one file gives to a request."""

    key: _FileKey
    members: IntArray
    ranks: IntArray
    write: Writer
    trouble: Trouble


class FrameReader:
    """Decodes frames by episode and number.

    It guarantees that a frame is the one asked for: its place in the file is counted, and its time
    checked, never guessed. It holds at most ``cache_size`` decoders, the longest unused of which is
    closed first. But for `need` it is for one thread.

    Args:
        meta: The dataset.
        files: Where its videos are.
        backend: What decodes.
        device: Where.
        cache_size: Decoders kept open.
        threads: Files that are decoded at a time; 0 for none but the caller's.
        counters: Told of hits, misses and evictions.
    """

    def __init__(
        self,
        meta: DatasetMeta,
        files: Files,
        *,
        backend: Backend,
        device: str,
        cache_size: int,
        threads: int,
        counters: WorkerCounters,
    ) -> None:
        self._meta = meta
        self._files = files
        self._backend = backend
        self._device = device
        self._threads = threads
        self._cache_size = max(cache_size, threads, 1)
        self._counters = counters
        self._clips: dict[_FileKey, Clip] = {}
        self._users: dict[_FileKey, int] = {}
        self._opening: dict[_FileKey, threading.Lock] = {}
        self._lock = threading.Lock()
        self._decoders: OrderedDict[_FileKey, ClipDecoder] = OrderedDict()
        self._codecs = Codecs() if threads < 2 else None
        self._pool = ThreadPoolExecutor(threads, "decode") if threads > 1 else None

    def need(self, place: int) -> int:
        """Fetch what an episode's frames are decoded from, once before its first; from any thread.

        Returns:
            Bytes that were fetched; nothing is where the files are local.
        """
        if self._files.is_local:
            return 0
        fetched = 0
        for key in self._keys(place):
            with self._lock:
                self._users[key] = self._users.get(key, 0) + 1
                opening = self._opening.setdefault(key, threading.Lock())
            with opening:
                clip = self._clip(key)
            clip.source.need(self._spans(clip, key, place))
            fetched += clip.source.take_fetched_bytes()
        return fetched

    def release(self, place: int) -> None:
        """Say that an episode's frames are not needed any more."""
        if self._files.is_local:
            return
        for key in self._keys(place):
            clip = self._clips[key]
            clip.source.release(self._spans(clip, key, place))
            with self._lock:
                self._users[key] -= 1
                if not self._users[key]:
                    self._forget(key)

    def read(self, requests: Sequence[tuple[FrameRequest, Writer, Trouble]]) -> None:
        """Decode frames and hand them to the writers, in any order.

        Frames that cannot be decoded are reported, and the others still come. With threads,
        writers are called from several at once.
        """
        groups = [group for request in requests for group in self._grouped(*request)]
        if self._pool is None:
            for group in groups:
                self._serve(group, self._decoder(group))
            return
        for first in range(0, len(groups), self._threads):
            # The decoders of these cannot push one another out.
            part = groups[first : first + self._threads]
            opened = [self._decoder(group) for group in part]
            list(self._pool.map(self._serve, part, opened))

    def _keys(self, place: int) -> list[_FileKey]:
        cameras = self._meta.episodes.cameras
        return [(camera, int(files.file[place])) for camera, files in cameras.items()]

    def _spans(self, clip: Clip, key: _FileKey, place: int) -> list[tuple[int, int]]:
        first = int(self._meta.episodes.cameras[key[0]].first[place])
        return clip.spans(first, int(self._meta.episodes.length[place]))

    def _grouped(self, request: FrameRequest, write: Writer, trouble: Trouble) -> list[_Group]:
        camera = self._meta.episodes.cameras[request.camera]
        files = camera.file[request.places]
        ranks = camera.first[request.places] + request.frames
        order = np.lexsort((ranks, files))
        heads = np.flatnonzero(np.diff(files[order])) + 1
        return [
            _Group(
                (request.camera, int(files[members[0]])), members, ranks[members], write, trouble
            )
            for members in np.split(order, heads)
        ]

    def _clip(self, key: _FileKey) -> Clip:
        clip = self._clips.get(key)
        if clip is None:
            path = self._meta.episodes.cameras[key[0]].paths[key[1]]
            keep = not self._files.is_local or self._uses_pyav(key[0])
            clip = open_clip(self._files.open(path), keep_index=keep)
            self._clips[key] = clip
        return clip

    def _uses_pyav(self, camera: str) -> bool:
        return self._backend == "pyav" or self._meta.is_depth(camera)

    def _decoder(self, group: _Group) -> ClipDecoder | UnreadableSourceError:
        decoder = self._decoders.get(group.key)
        if decoder is not None:
            self._counters.add("cache_hits")
            self._decoders.move_to_end(group.key)
            return decoder
        self._counters.add("cache_misses")
        try:
            decoder = open_decoder(
                self._clip(group.key),
                self._backend,
                device=self._device,
                is_depth=self._meta.is_depth(group.key[0]),
                codecs=self._codecs,
            )
        except UnreadableSourceError as error:
            return error
        self._decoders[group.key] = decoder
        while len(self._decoders) > self._cache_size:
            oldest, _ = self._decoders.popitem(last=False)
            self._counters.add("cache_evictions")
            if self._files.is_local:
                self._clips.pop(oldest, None)
        self._counters.put("cache_size", len(self._decoders))
        return decoder

    def _forget(self, key: _FileKey) -> None:
        self._decoders.pop(key, None)
        self._users.pop(key, None)
        self._opening.pop(key, None)
        clip = self._clips.pop(key, None)
        if clip is not None:
            clip.source.close()
        self._counters.put("cache_size", len(self._decoders))

    def _serve(self, group: _Group, decoder: ClipDecoder | UnreadableSourceError) -> None:
        if isinstance(decoder, UnreadableSourceError):
            group.trouble(group.members, decoder)
            return
        clip = self._clips[group.key]
        right = clip.is_right(group.ranks, float(self._meta.fps))
        members, ranks = group.members, group.ranks
        if not right.all():
            wrong = int(ranks[~right][0])
            group.trouble(
                members[~right],
                UnreadableSourceError(
                    f"{clip.source.name} has no frame {wrong} at its time.",
                    path=clip.source.name,
                    next_step="Convert the dataset again, or restore the file.",
                ),
            )
            members, ranks = members[right], ranks[right]
        if len(ranks):
            self._decode(group, decoder, members, ranks)

    def _decode(
        self, group: _Group, decoder: ClipDecoder, members: IntArray, ranks: IntArray
    ) -> None:
        """Decode frames of a group, each once however often it is wanted."""
        distinct, heads = np.unique(ranks, return_index=True)  # ranks ascend
        bounds = [*heads.tolist(), len(ranks)]
        try:
            for part, frames in decoder.decode(distinct):
                mine = members[bounds[part.start] : bounds[part.stop]]
                if len(mine) > len(frames) > 1:
                    counts = np.diff(bounds[part.start : part.stop + 1])
                    places = torch.from_numpy(np.repeat(np.arange(len(counts)), counts))
                    group.write(mine, frames[places])
                else:
                    group.write(mine, frames)
        except UnreadableSourceError as error:
            if len(distinct) == 1:
                group.trouble(members, error)
                return
            # Which of them is it? The others are still wanted.
            for rank in distinct.tolist():
                mine = ranks == rank
                self._decode(group, decoder, members[mine], ranks[mine])


# ------------------------------------------------------------------------------------------------
# The episodes that a worker mixes: their rows, and the bytes of their frames.


class EpisodePool:
    """Holds an episode from its first frame of an epoch until all ranks are past its last.

    With threads it fetches what comes next while others are decoded. That changes when bytes
    arrive, never which sample is next.

    Args:
        rows: Reads rows.
        frames: Decodes frames; told what will be asked for.
        fetch_workers: Threads that fetch ahead; 0 for none.
        counters: Told of episodes and bytes.
    """

    def __init__(
        self,
        rows: RowReader,
        frames: FrameReader,
        *,
        fetch_workers: int,
        counters: WorkerCounters,
    ) -> None:
        self._row_reader = rows
        self._frame_reader = frames
        self._counters = counters
        self._held: dict[int, EpisodeRows] = {}
        self._last_numbers: dict[int, int] = {}
        self._coming: dict[int, Future[int]] = {}
        self._fetchers = ThreadPoolExecutor(fetch_workers, "fetch") if fetch_workers else None

    def rows(self, place: int) -> EpisodeRows:
        """Return an episode's rows; it enters the pool if it is not there."""
        found = self._held.get(place)
        if found is None:
            coming = self._coming.pop(place, None)
            fetched = self._need(place) if coming is None else coming.result()
            found = self._held[place] = self._row_reader.read(place)
            self._counters.add("fetched_bytes", fetched)
            self._counters.add("episodes")
        return found

    def expect(self, places: Iterable[int]) -> None:
        """Begin to fetch episodes that will be wanted soon, the first one first."""
        if self._fetchers is None:
            return
        for place in places:
            if place not in self._held and place not in self._coming:
                self._coming[place] = self._fetchers.submit(self._need, place)

    def keep_until(self, places: IntArray, last_numbers: IntArray) -> None:
        """Say with which sample of the order each episode ends; of equal ones the last counts."""
        self._last_numbers.update(zip(places.tolist(), last_numbers.tolist(), strict=True))

    def leave_before(self, number: int) -> None:
        """Let the episodes go that ended before a sample of the order."""
        ended = [place for place, last in self._last_numbers.items() if last < number]
        for place in ended:
            self._leave(place)

    def _leave(self, place: int) -> None:
        del self._held[place]
        self._last_numbers.pop(place, None)
        self._row_reader.release(place)
        self._frame_reader.release(place)

    def clear(self) -> None:
        """Let every episode go."""
        for place, coming in self._coming.items():
            if not coming.cancel() and coming.exception() is None:
                self._row_reader.release(place)
                self._frame_reader.release(place)
        self._coming.clear()
        for place in list(self._held):
            self._leave(place)

    def _need(self, place: int) -> int:
        return self._row_reader.need(place) + self._frame_reader.need(place)
