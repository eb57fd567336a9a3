"""Where a command reads and writes; a source that is not here is brought here."""

from __future__ import annotations

import argparse
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from leconvert.cli.source_options import local_root, refuse_source_as_output
from leconvert.cli.store_source import bring_from_store
from leconvert.cli.url_source import name_on_the_hub
from leconvert.progress import NO_PROGRESS, Progress

if TYPE_CHECKING:
    from leconvert.hub.origin import Arrival

__all__ = ["Places", "places"]


@dataclass(frozen=True, slots=True)
class Places:
    """Where a command reads and writes, absolute.

    Attributes:
        source: The dataset, or the tree of an outline.
        target: Where the result goes.
        work_dir: The run's folder.
        arrival: How the source came from the Hub; None for one that was always here.
        is_temporary: Whether the source was only brought here to be converted.
    """

    source: Path
    target: Path
    work_dir: Path
    arrival: Arrival | None = None
    is_temporary: bool = False

    def release(self) -> None:
        """Remove a source that was only brought here to be converted, now that it is."""
        from leconvert.workdir.trees import remove_tree

        if self.is_temporary:
            remove_tree(self.source)


def places(
    options: argparse.Namespace,
    *,
    stream: bool,
    stop: threading.Event | None = None,
    progress: Progress = NO_PROGRESS,
) -> Places | str:
    """Return source, target and work dir, after the source was brought here if need be.

    Args:
        options: What the user said.
        stream: Bring an outline of a source on the Hub instead of all of it.
        stop: Set it from another thread to stop.
        progress: Where to report.

    Returns:
        The places; or a line that says that the Hub has the dataset in v3.x already.

    Raises:
        LeconvertError: One of its subclasses.
    """
    from leconvert.workdir.places import work_dir_beside

    name_on_the_hub(options)
    local = local_root(options).resolve()
    refuse_source_as_output(options, local)
    target = local if options.output is None else Path(options.output).resolve()
    named = options.work_dir
    work_dir = work_dir_beside(target) if named is None else Path(named).resolve()
    if isinstance(options.root, str):
        source = bring_from_store(options, target, stop=stop, progress=progress)
        return Places(source, target, work_dir, is_temporary=True)
    if options.output is None and options.root is None:
        target.parent.mkdir(parents=True, exist_ok=True)
    here = Places(local, target, work_dir, _known(local))
    if options.repo_id is None:
        return here
    from leconvert.cli.hub_source import bring_from_hub

    return bring_from_hub(options, here, stream=stream, stop=stop, progress=progress)


def _known(local: Path) -> Arrival | None:
    """Return how a dataset of this machine came here, if it came from the Hub."""
    from leconvert.hub.download import known_origin
    from leconvert.hub.origin import Arrival

    origin = known_origin(local)
    return None if origin is None else Arrival(origin)
