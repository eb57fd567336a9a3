"""A batch that fails leaves no thread that goes on with it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from leconvert.loading import EpisodeStream
from leconvert.loading.episodes import FrameReader
from leconvert.support.errors import UnreadableSourceError

_PATIENCE_S = 10.0


class SlowWork:
    """A method that fails at the first call; the others begin before that, and take longer."""

    def __init__(self, work: Any, *, slow: int) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._left = slow
        self._are_begun = threading.Event()
        self.calls = 0
        self.running = 0

    def __get__(self, instance: object, _: type) -> Callable[..., Any]:
        return partial(self, instance)

    def __call__(self, *arguments: Any) -> Any:
        with self._lock:
            self.calls += 1
            self.running += 1
            is_first = self.calls == 1
            if not is_first:
                self._left -= 1
            if self._left <= 0:
                self._are_begun.set()
        try:
            assert self._are_begun.wait(_PATIENCE_S)
            if is_first:
                raise UnreadableSourceError("the store fails")
            time.sleep(0.3)  # the first one has failed by then
            return self._work(*arguments)
        finally:
            with self._lock:
                self.running -= 1


@pytest.mark.parametrize("method", ["need_frames", "_give"], ids=["fetch", "write"])
def test_no_thread_goes_on_with_frames_of_a_failed_batch(
    in_memory: str, v30: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    if method == "need_frames":
        stream = EpisodeStream(in_memory, video_fetch_workers=2, cache_size_in_gb=0)
    else:
        stream = EpisodeStream(v30, video_fetch_workers=3)
        next(stream.batches(4))
    slow = SlowWork(getattr(FrameReader, method), slow=2)
    monkeypatch.setattr(FrameReader, method, slow)

    with pytest.raises(UnreadableSourceError, match="the store fails"):
        next(stream.batches(4))

    assert slow.calls > 2
    assert slow.running == 0
