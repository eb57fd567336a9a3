"""A source that a name on the Hub stands for: used where it is, or brought here."""

from __future__ import annotations

import argparse
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from leconvert.cli.convert_push import waits_for_push
from leconvert.hub import arrival
from leconvert.progress import Progress
from leconvert.workdir.incoming import source_dir
from leconvert.workdir.target import is_converted

if TYPE_CHECKING:
    from leconvert.cli.places import Places

__all__ = ["bring_from_hub"]


def bring_from_hub(
    options: argparse.Namespace,
    here: Places,
    *,
    stream: bool,
    stop: threading.Event | None,
    progress: Progress,
) -> Places | str:
    """Return the places of a dataset that ``--repo-id`` names, after it was brought here.

    Args:
        options: What the user said.
        here: The places as they are if the dataset is on this machine already.
        stream: Bring an outline instead of all of it.
        stop: Set it from another thread to stop.
        progress: Where to report.

    Returns:
        The places; or a line that says that the Hub has the dataset in v3.x already.

    Raises:
        LeconvertError: One of its subclasses.
    """
    local = here.source
    force = getattr(options, "force_conversion", False)
    is_here = local.is_dir() and any(local.iterdir())
    # With force a result that is there is replaced: its source comes to beside it. One that an
    # earlier call did not get to push is pushed first.
    anew = force and is_converted(local) and not waits_for_push(options, local)
    if anew:
        local, is_here = source_dir(local), False
    # A run that only has to be ended may have put its result where the source would be.
    resumes = stream and not options.restart
    if resumes and arrival.under_way(here.work_dir, options.repo_id, options.revision):
        is_here = False
    elif is_here and options.revision is None:
        if here.arrival is not None:
            arrival.check_same_repo(local, here.arrival.origin, options.repo_id)
        return here
    elif options.revision is None and not force:
        said = arrival.already_converted(
            options.repo_id, here.target, fetch=not stream, stop=stop, progress=progress
        )
        if said is not None:
            return said
    if not stream or is_here:
        arrived = arrival.download(
            options.repo_id, options.revision, local, anew=anew, stop=stop, progress=progress
        )
    else:
        arrived = arrival.outline(
            options.repo_id,
            options.revision,
            here.work_dir,
            scratch_limit=options.scratch_limit,
            restart=options.restart,
            stop=stop,
            progress=progress,
        )
    return replace(
        here,
        source=arrived.source,
        arrival=arrived.arrival,
        is_temporary=anew and arrived.source == local,
    )
