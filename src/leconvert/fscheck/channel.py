"""How two hosts talk when they share nothing but the folder in question.

A message is a file, ``<role>-<number>.json``, made under another name and renamed. The receiver
lists the folder, which no file system answers wrongly for long, and then opens the file; it never
looks a name up before it was listed. Nothing here needs what is being probed: no link, no lock.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from leconvert.errors import IncompleteError
from leconvert.workdir.filesystem import LOCAL, FileSystem

__all__ = ["Channel", "checked", "open_sessions", "session_dir"]

_POLL_SECONDS = 0.002
_SESSION = re.compile(r"\.leconvert-check-peer-[A-Za-z0-9_-]+\Z")


def session_dir(folder: Path, token: str) -> Path:
    """Return the folder in which a peer and a leader meet."""
    return folder / f".leconvert-check-peer-{token}"


def open_sessions(folder: Path, *, fs: FileSystem = LOCAL) -> list[Path]:
    """Return the folders of peers that wait, or waited once, below ``folder``."""
    return [folder / name for name in fs.list_names(folder) if _SESSION.match(name)]


def checked(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an answer.

    Raises:
        OSError: It says that the other could not do what was asked.
    """
    if "error" in answer:
        raise OSError(answer["error"])
    return answer


class Channel:
    """Messages between ``leader`` and ``peer``, in order.

    Args:
        place: The session's folder.
        mine: This side's role.
        other: The other's.
        timeout_seconds: How long the other may be silent.
        clock: A monotonic clock in seconds.
        pause: Waits so many seconds.
        fs: File operations.
    """

    def __init__(
        self,
        place: Path,
        mine: str,
        other: str,
        *,
        timeout_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
        fs: FileSystem = LOCAL,
    ) -> None:
        self.place = place
        self.clock = clock
        self.pause = pause
        self.fs = fs
        self._mine = mine
        self._other = other
        self._timeout_seconds = timeout_seconds
        self._sent = 0
        self._received = 0

    def send(self, **fields: Any) -> None:
        """Send a message.

        Raises:
            OSError: It cannot be written.
        """
        self._sent += 1
        path = self.place / f"{self._mine}-{self._sent:04d}.json"
        temporary = path.with_name(f".{path.name}")
        self.fs.write_new(temporary, json.dumps(fields).encode(), sync=False)
        self.fs.replace(temporary, path)

    def receive(self, *, timeout_seconds: float | None = None) -> Mapping[str, Any]:
        """Wait for the other's next message.

        Raises:
            IncompleteError: It did not come in time.
        """
        path = self.place / f"{self._other}-{self._received + 1:04d}.json"
        limit = self._timeout_seconds if timeout_seconds is None else timeout_seconds
        until = self.clock() + limit
        while True:
            message = self._read(path)
            if message is not None:
                self._received += 1
                return message
            if self.clock() >= until:
                raise IncompleteError(
                    f"The {self._other} in {self.place.parent} did not answer for {limit:.0f} s.",
                    path=str(self.place),
                    next_step="Check that it still runs; then run both commands again.",
                )
            self.pause(_POLL_SECONDS)

    def ask(self, **fields: Any) -> Mapping[str, Any]:
        """Send a message and return the answer.

        Raises:
            OSError: The other could not do what was asked.
            IncompleteError: It did not answer.
        """
        self.send(**fields)
        return checked(self.receive())

    def _read(self, path: Path) -> Mapping[str, Any] | None:
        try:
            if path.name not in self.fs.list_names(path.parent):
                return None
            found = json.loads(self.fs.read_bytes(path))
        except (OSError, ValueError):
            return None  # not quite there yet: the next look will tell
        return found if isinstance(found, dict) else None
