"""The source files of one shard on a worker's disk, for a run whose source is on the Hub."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from leconvert.media.boxes import read_moov
from leconvert.remote.sparse_snapshot import open_sparse_snapshot
from leconvert.support.errors import SourceChangedError
from leconvert.transfer.hub import HubStore
from leconvert.transfer.scratch import ScratchSlot, Window, limit_too_small
from leconvert.transfer.store import RemoteFile, fetch_file
from leconvert.workdir.incoming import part_in


class HubInputs:
    """Fetches what a shard needs into the worker's slot, and removes it when the shard is written.

    Only bytes that have the hash of the planned commit's listing are ever handed out. Where the
    slot's room does not hold all files of a shard, they come and go in the order in which they are
    read.

    Args:
        tree: The outline's tree, the plan's source.
        slot: The worker's part of the scratch folder.
        limit_bytes: What may lie in the scratch folder; None for no limit.

    Attributes:
        peak_bytes: The most that lay in the slot at a time.

    Raises:
        UsageError: The limit does not hold the largest file.
    """

    def __init__(self, tree: Path, slot: ScratchSlot, limit_bytes: int | None) -> None:
        outline = open_sparse_snapshot(tree)
        if limit_bytes is not None and limit_bytes < outline.largest_bytes:
            raise limit_too_small(limit_bytes, outline.largest_bytes)
        self._tree = tree
        self._slot = slot
        self._repo = outline.repo
        self._listing = outline.listing()
        self.peak_bytes = 0

    @contextmanager
    def files(
        self, sources: Sequence[str], should_stop: Callable[[], bool]
    ) -> Iterator[Callable[[int], str]]:
        """Provide a shard's files for the block.

        Args:
            should_stop: Asked while anybody waits.

        Yields:
            What returns the path of the whole file at a place; valid until the next call, and
            until the block ends where no other file is asked for.
        """
        prefix = f"{self._tree}/"
        listed = self._listing.find([source.removeprefix(prefix) for source in sources])
        fetched: list[RemoteFile] = []
        numbers: dict[str, int] = {}  # of what is fetched, which several slices may be parts of
        places: dict[int, int] = {}
        for place, (file, is_whole) in enumerate(listed):
            if is_whole:
                continue
            if file.path not in numbers:
                numbers[file.path] = len(fetched)
                fetched.append(file)
            places[place] = numbers[file.path]
        if not fetched:
            yield sources.__getitem__
            return
        waiting = threading.Event()
        store = HubStore(self._repo, should_stop=should_stop)

        def fetch(file: RemoteFile, target: Path) -> None:
            part = part_in(self._slot.files_dir, file.path)
            part.parent.mkdir(exist_ok=True)
            fetch_file(store, file, target, part)
            _check_same_index(self._tree, file.path, target)

        with (
            self._slot.reserved(fetched, should_stop=should_stop, pause=waiting.wait) as granted,
            Window(
                fetched,
                self._slot.files_dir,
                fetch,
                budget_bytes=granted,
                should_stop=should_stop,
            ) as window,
        ):
            try:
                yield (
                    lambda place: window.path(places[place]) if place in places else sources[place]
                )
            finally:
                self.peak_bytes = max(self.peak_bytes, window.peak_bytes)


def _check_same_index(tree: Path, relative: str, fetched: Path) -> None:
    """Check that a clip's index, by which its bytes are found, is the one in the checked file.

    Ranges that make an outline have no hash of their own.
    """
    if fetched.suffix != ".mp4":
        return  # rows are read from the fetched file alone
    outlined = tree / relative
    indices = []
    for path in (outlined, fetched):
        with path.open("rb") as file:
            found = read_moov(file.fileno(), os.fstat(file.fileno()).st_size, str(path))
        assert found is not None
        indices.append(found.payload)
    if indices[0] != indices[1]:
        raise SourceChangedError(
            f"{outlined} holds another index than the file on the Hub.",
            path=str(outlined),
            next_step=f"Move {tree.parent} elsewhere, and plan again with --restart.",
        )
