"""Whole files of a store, side by side, into the folder in which a dataset arrives."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import batched

from leconvert.support.errors import InterruptedRunError
from leconvert.support.progress import Progress
from leconvert.transfer.store import RemoteFile, Store
from leconvert.workdir.incoming import Incoming

_THREADS = 8
_GRACE_SECONDS = 2.0
_FILES_AT_A_TIME = 4096


def download_all(
    open_store: Callable[[Callable[[], bool]], Store],
    files: Iterable[RemoteFile],
    arriving: Incoming,
    *,
    is_here: Callable[[RemoteFile], bool],
    size_bytes: int,
    stop: threading.Event,
    progress: Progress,
) -> None:
    """Bring files into the tree that arrives; the first error ends it.

    Args:
        open_store: Makes the store from what tells it to stop.
        files: The files.
        arriving: Where they go. Parts of them stay there for the next call.
        is_here: Tells whether the tree has a file already.
        size_bytes: Bytes of all files.
        stop: Set it from another thread to stop.
        progress: Where to report.

    Raises:
        InterruptedRunError: ``stop`` was set.
    """
    failed = threading.Event()

    def should_stop() -> bool:
        return stop.is_set() or failed.is_set()

    store = open_store(should_stop)
    pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="fetch")
    with progress.stage("fetch", size_bytes, "B") as stage:

        def bring(file: RemoteFile) -> None:
            if should_stop():
                return
            if is_here(file):
                stage.advance(file.size_bytes)
                return
            target = arriving.tree / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            store.download(file, target, arriving.part(file.path), on_bytes=stage.advance)

        running: list[Future[None]] = []
        try:
            for block in batched(files, _FILES_AT_A_TIME):
                running = [pool.submit(bring, file) for file in block]
                for each in running:
                    each.result()
        except BaseException:
            failed.set()
            pool.shutdown(wait=False, cancel_futures=True)
            # A thread that waits for an answer may wait for minutes. What it then gets it does not
            # write: it looks first whether it shall stop.
            wait(running, timeout=_GRACE_SECONDS)
            raise
        pool.shutdown()
    if stop.is_set():
        raise InterruptedRunError(
            f"{arriving.target} is not complete yet.",
            path=str(arriving.folder),
            next_step="Run the same command again to go on.",
        )
