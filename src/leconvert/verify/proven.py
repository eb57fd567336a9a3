"""What an interrupted verification had already proven, so that the next one goes on from there.

One file per pair of datasets and options, named by their fingerprint: if any file that was compared
was replaced or touched since (size, modification time, inode), if the tables lead elsewhere, the
options differ or the host was started anew, the fingerprint is another and nothing is taken over.
After a crash of the host even an untouched file may have lost bytes that never reached the disk.

Lines are only appended, one a piece without differences. A line that was torn, or glued to another
by two verifications of the same pair at a time, is no piece: that one is compared again. So nothing
here is forced to the disk, and what cannot be written is done without. It does not prove that a
file was not changed with its times set back.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy.typing as npt

from leconvert._version import __version__
from leconvert.errors import UsageError, WorkDirError
from leconvert.home import home_folder
from leconvert.model import output_path
from leconvert.verify.pieces import Comparer, Piece
from leconvert.verify.routes import file_runs
from leconvert.workdir.host import boot_id
from leconvert.workdir.records import decode_record, encode_record

__all__ = ["ProvenPieces", "default_folder", "fingerprint", "is_worth_recording"]

_KIND, _VERSION = "proven", 1
_WRITE_EVERY_SECONDS = 1.0
_FORGOTTEN_AFTER_SECONDS = 30 * 24 * 3600.0
_FILES_AT_A_TIME = 1024
# From here on it is worth to look at every file's times beforehand.
_SECONDS_WORTH_RECORDING = 5.0


class ProvenPieces:
    """The record of one verification.

    Args:
        folder: Where records are; made where there is none.
        key: The fingerprint.
        fresh: Forget what an earlier one had proven.
        clock: A monotonic clock in seconds.

    Attributes:
        pieces: What was proven before this one.
    """

    def __init__(
        self,
        folder: Path,
        key: str,
        *,
        fresh: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = folder / f"{key}.jsonl"
        self._key = key
        self._clock = clock
        self._written_at = clock()
        self._waiting: list[Piece] = []
        with suppress(OSError):
            _remove_forgotten(folder)
        if fresh:
            self.finish()
        self.pieces = frozenset(self._read())

    def add(self, piece: Piece) -> None:
        """Note a piece that has no differences; it is written within a second or with `flush`."""
        self._waiting.append(piece)
        if self._clock() - self._written_at >= _WRITE_EVERY_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Append what waits."""
        self._written_at = self._clock()
        if not self._waiting:
            return
        lines = b"".join(json.dumps(piece).encode() + b"\n" for piece in self._waiting)
        self._waiting.clear()
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab", buffering=0) as file:
                if not file.tell():
                    lines = encode_record(_KIND, _VERSION, self._key, {}) + lines
                file.write(lines)

    def finish(self) -> None:
        """Remove the record: the verification came to its end."""
        self._waiting.clear()
        with suppress(OSError):
            self.path.unlink()

    def _read(self) -> Iterator[Piece]:
        try:
            head, *lines = self.path.read_bytes().split(b"\n")
            decode_record(head, _KIND, version=_VERSION, path=self.path, run_id=self._key)
        except (OSError, ValueError, WorkDirError):
            self.finish()  # none, or one that nobody can read
            return
        for line in lines:
            with suppress(ValueError, TypeError):
                stream, *places = json.loads(line)
                yield Piece(stream, *places)


def default_folder() -> Path | None:
    """Return where a verification by hand records: ``$XDG_CACHE_HOME/leconvert/verify``.

    None, and it does not record, where the user has no home folder.
    """
    cache = os.environ.get("XDG_CACHE_HOME")
    try:
        home = Path(cache) if cache else home_folder() / ".cache"
    except UsageError:
        return None
    return home / "leconvert" / "verify"


def is_worth_recording(seconds: float) -> bool:
    """Tell whether a verification that takes so long may well be interrupted.

    Never where it is not known which boot of the host this is.
    """
    return seconds >= _SECONDS_WORTH_RECORDING and bool(boot_id())


def fingerprint(compare: Comparer) -> str:
    """Return 40 hexadecimal digits that stand for all that a proof depends on.

    What ``meta`` holds takes part by its content, as far as pieces depend on it; it is compared
    each time. Every data and video file of both sides takes part by path, size, time and inode; the
    result's own folder may have been renamed since.
    """
    digest = hashlib.blake2b(digest_size=20)
    repairs = compare.episodes.repairs.as_record()
    options = [__version__, boot_id(), str(compare.paths.root), repairs]
    head = [*options, compare.read_bytes, compare.info.raw]
    digest.update(json.dumps(head, sort_keys=True, default=str).encode())
    arrays: list[npt.NDArray[Any]] = [
        compare.episodes.index,
        compare.compared_lengths,
        compare.episodes.length,
    ]
    routes = compare.routes
    for by_stream in (routes.file_number, routes.from_timestamp, routes.to_timestamp):
        arrays += by_stream.values()
    for array in arrays:
        digest.update(array.tobytes())
    for facts in _facts(compare):
        digest.update(facts)
    return digest.hexdigest()


def _facts(compare: Comparer) -> Iterator[bytes]:
    indices = compare.episodes.index.tolist()
    for stream in compare.routes.file_number:
        yield from _stated("", compare.paths.absolute(stream, indices))
    yield from _stated(f"{compare.result}/", _result_files(compare))


def _stated(folder: str, paths: Iterable[str]) -> Iterator[bytes]:
    remaining = iter(paths)
    while block := list(islice(remaining, _FILES_AT_A_TIME)):
        yield "\n".join(_fact(folder, path) for path in block).encode()


def _fact(folder: str, path: str) -> str:
    try:
        found = os.stat(folder + path)  # noqa: PTH116 - called for every file of both datasets
    except OSError as error:
        return f"{path}\0{error.errno}"
    facts = (found.st_size, found.st_mtime_ns, found.st_dev, found.st_ino)
    return "\0".join([path, *map(str, facts)])


def _result_files(compare: Comparer) -> Iterator[str]:
    for stream, numbers in compare.routes.file_number.items():
        for first, _ in file_runs(numbers):
            yield output_path(stream, int(numbers[first]))


def _remove_forgotten(folder: Path) -> None:
    """Remove records that nobody went on with for a month."""
    oldest = time.time() - _FORGOTTEN_AFTER_SECONDS
    for path in folder.glob("*.jsonl"):
        with suppress(OSError):
            if path.stat().st_mtime < oldest:
                path.unlink()
