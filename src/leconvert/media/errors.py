"""The one error of its own that reading clips needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from leconvert.errors import UnreadableSourceError

__all__ = ["UnsupportedClipError"]


class UnsupportedClipError(UnreadableSourceError):
    """A clip that may well be sound, but whose samples cannot be joined as they lie.

    A remux into a plain MP4 (:func:`leconvert.media.remux_clip`) may help; that it will is not
    promised.

    Args:
        reason: Why, in a few words that fit into a table ("fragmented MP4").
        path: The clip.
    """

    def __init__(
        self,
        reason: str,
        *,
        path: str | None = None,
        next_step: str | None = None,
        details: Sequence[str] = (),
    ) -> None:
        super().__init__(
            f"{path} cannot be joined as it is: {reason}.",
            path=path,
            next_step=next_step or "Remux it into a plain MP4 (ffmpeg -i IN -c copy OUT.mp4).",
            details=details,
        )
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (self.reason, self.path, self.next_step, self.details))


def _rebuild(
    reason: str, path: str | None, next_step: str | None, details: tuple[str, ...]
) -> UnsupportedClipError:
    return UnsupportedClipError(reason, path=path, next_step=next_step, details=details)
