"""Bringing files over: tried again, resumed where they broke off, and checked.

A file has its final name only when what lies on the disk is what the listing says, by hash; before,
it has another, and whoever fetches it next, in this process or another, goes on behind what is
there. Bytes that turn out wrong are thrown away and fetched anew.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from leconvert.errors import HubError, InterruptedRunError, UnreadableSourceError
from leconvert.hub.errors_of import hub_errors
from leconvert.hub.remote import Body, HubRepo, TransientError
from leconvert.hub.remote_file import RemoteFile
from leconvert.workdir.durable import storage_errors

__all__ = ["Fetcher"]

_TRIES = 7
_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 30.0
_LONGEST_ASKED_SECONDS = 600.0
_WRONG_CONTENTS = 2
_SECONDS_BETWEEN_LOOKS = 0.5
_NEVER = threading.Event()


class _Read(Protocol):
    def __call__(self, body: Body) -> None: ...


class _BrokenOffError(Exception):
    """The answer ended before the file did."""


class Fetcher:
    """Fetches files of one repo at one commit. Threads may share it.

    Args:
        repo: Where they are.
        should_stop: Asked between chunks and while it waits.
        pause: Waits so many seconds.
        tries: How often in a row it is tried without a single byte arriving.
    """

    def __init__(
        self,
        repo: HubRepo,
        *,
        should_stop: Callable[[], bool] = lambda: False,
        pause: Callable[[float], object] = _NEVER.wait,
        tries: int = _TRIES,
    ) -> None:
        self._repo = repo
        self._should_stop = should_stop
        self._pause = pause
        self._tries = tries

    def read(self, file: RemoteFile, start: int, stop: int) -> bytes:
        """Return a range of a file's bytes.

        Raises:
            HubError: The store does not answer, or has no such file.
            HubAccessError: The token does not allow it.
            InterruptedRunError: ``should_stop`` said so.
        """
        stop = min(stop, file.size_bytes)
        found = bytearray()

        def take(body: Body) -> None:
            skip = start + len(found) - body.start
            for chunk in body.chunks:
                self._check_stop(file)
                found.extend(chunk[max(skip, 0) :])
                skip -= min(skip, len(chunk)) if skip > 0 else 0
                if len(found) >= stop - start:
                    return
            raise _BrokenOffError

        if start < stop:
            self._try(file, lambda: (start + len(found), stop), take)
        return bytes(found[: max(stop - start, 0)])

    def download(
        self,
        file: RemoteFile,
        target: Path,
        part: Path,
        *,
        on_bytes: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Bring a whole file to a path that does not exist; its folder does.

        Args:
            file: The file.
            target: Where it goes when it is whole.
            part: Where it arrives, in the same file system; what is there is gone on with. Nobody
                else may write there.
            on_bytes: Called with the number of bytes as they arrive, those found there included.

        Raises:
            UnreadableSourceError: What arrives is not what the listing says, again and again.
            HubError: The store does not answer, or has no such file.
            HubAccessError: The token does not allow it.
            InterruptedRunError: ``should_stop`` said so; what has arrived stays.
            StorageError: The disk is full, or fails.
            OSError: The local file system failed otherwise.
        """
        for _ in range(_WRONG_CONTENTS):
            self._complete(file, part, on_bytes)
            if file.is_content_of(part):
                part.replace(target)
                return
            on_bytes(-part.stat().st_size)
            part.unlink()
        raise UnreadableSourceError(
            f"{file.path} of {self._repo.name} arrives with other content than the listing says.",
            path=file.path,
            next_step="Try again later; if it stays so, the stored file is damaged.",
        )

    def _complete(self, file: RemoteFile, part: Path, on_bytes: Callable[[int], None]) -> None:
        with storage_errors(part), part.open("ab") as out:
            if out.tell():
                on_bytes(out.tell())

            def take(body: Body) -> None:
                skip = out.tell() - body.start
                for chunk in body.chunks:
                    self._check_stop(file)
                    fresh = chunk[skip:] if skip > 0 else chunk
                    skip -= min(skip, len(chunk)) if skip > 0 else 0
                    with storage_errors(part):  # or a disk's time-out were taken for the Hub's
                        out.write(fresh)
                    on_bytes(len(fresh))
                    if out.tell() > file.size_bytes:
                        return  # it is not the file; the hash will say so
                if out.tell() < file.size_bytes:
                    raise _BrokenOffError

            if out.tell() < file.size_bytes:
                self._try(file, lambda: (out.tell(), None), take)

    def _try(
        self, file: RemoteFile, rest: Callable[[], tuple[int, int | None]], take: _Read
    ) -> None:
        """Ask for the rest of a file until it is all there.

        Args:
            file: The file.
            rest: Says what is still missing.
            take: Reads an answer; raises `_BrokenOffError` where it was too short.
        """
        failures = 0
        at = rest()[0]
        while True:
            start, stop = rest()
            if start > at:  # something arrived: the line works
                failures, at = 0, start
            try:
                with self._repo.open(file.path, start, stop) as body:
                    if body.start > start:
                        raise _BrokenOffError
                    take(body)
                return
            except (TransientError, _BrokenOffError) as error:
                if rest()[0] == start:
                    failures += 1
                if failures >= self._tries:
                    raise self._gave_up(file, error) from error
                asked = error.wait_seconds if isinstance(error, TransientError) else 0.0
                self._wait(file, failures, asked)

    def _wait(self, file: RemoteFile, failures: int, asked_seconds: float) -> None:
        # Spread out, so that workers that failed together do not come back together.
        longest = min(_FIRST_PAUSE_SECONDS * 2**failures, _LONGEST_PAUSE_SECONDS)
        left = longest * (0.5 + random.random() / 2)  # noqa: S311 - no secret
        left = max(left, min(asked_seconds, _LONGEST_ASKED_SECONDS))
        while left > 0:
            self._check_stop(file)
            self._pause(min(left, _SECONDS_BETWEEN_LOOKS))
            left -= _SECONDS_BETWEEN_LOOKS

    def _check_stop(self, file: RemoteFile) -> None:
        if self._should_stop():
            raise InterruptedRunError(
                f"Stopped while fetching {file.path}.",
                path=file.path,
                next_step="Run the same command again to go on.",
            )

    def _gave_up(self, file: RemoteFile, error: Exception) -> Exception:
        if isinstance(error, TransientError):
            try:
                with hub_errors(self._repo.repo_id, self._repo.commit):
                    raise error.cause
            except HubError as told:
                return told
        return HubError(
            f"{file.path} of {self._repo.name} breaks off again and again.",
            path=file.path,
            next_step="Check the network, then run the same command again; it goes on.",
        )
