"""Frames as PyAV decodes them, for tests that compare pictures."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from leconvert.media.boxes import broken
from leconvert.media.pyav import opened_video, seek_frames

__all__ = ["decode_frames"]


def decode_frames(
    path: str | os.PathLike[str], ranks: Iterable[int] | None = None
) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
    """Decode frames of a video.

    Yields:
        Rank and RGB picture, uint8 of shape (height, width, 3), in ascending order of rank.
    """
    if ranks is None:
        with opened_video(path) as (container, stream):
            for rank, frame in enumerate(container.decode(stream)):
                yield rank, frame.to_ndarray(format="rgb24")
        return
    wanted = sorted(set(ranks))
    if not wanted:
        return

    name = os.fspath(path)
    if wanted[0] < 0:
        raise broken(name, f"there is no frame {wanted[0]}")
    with opened_video(name) as (container, stream):
        yield from seek_frames(container, stream, name, wanted)
