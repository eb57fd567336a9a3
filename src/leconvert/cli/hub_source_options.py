"""Options for a source on the Hub, and the way from a dataset's name to a folder."""

from __future__ import annotations

import argparse
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from leconvert.cli.url_source import bring_from_store, name_on_the_hub
from leconvert.cli.values import size_in_bytes
from leconvert.errors import UsageError
from leconvert.progress import NO_PROGRESS, Progress

if TYPE_CHECKING:
    from leconvert.hub.origin import Arrival
    from leconvert.hub.scratch import ScratchOptions

__all__ = [
    "Places",
    "add_revision",
    "add_scratch_options",
    "dataset_root",
    "local_root",
    "places",
    "scratch_options",
]


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


def add_revision(parser: argparse.ArgumentParser) -> None:
    """Add ``--revision``."""
    parser.add_argument(
        "--revision",
        metavar="REV",
        help="tag, branch or commit of --repo-id on the Hub (default: the newest v2.x tag, "
        "else main)",
    )


def add_scratch_options(parser: argparse.ArgumentParser) -> None:
    """Add where, and how much, workers keep of a source that they fetch batch by batch."""
    parser.add_argument(
        "--scratch-dir", type=Path, metavar="DIR",
        help="local folder for files that are fetched from the Hub (default: in the system's "
        "folder for temporary files)",
    )  # fmt: skip
    parser.add_argument(
        "--scratch-limit", type=size_in_bytes, metavar="BYTES",
        help="what all workers of a host may keep there at a time, such as 20G (default: what "
        "their batches need)",
    )  # fmt: skip


def scratch_options(options: argparse.Namespace) -> ScratchOptions:
    """Return what `add_scratch_options` declared."""
    from leconvert.hub.scratch import ScratchOptions

    folder = options.scratch_dir
    return ScratchOptions(None if folder is None else folder.resolve(), options.scratch_limit)


def local_root(options: argparse.Namespace) -> Path:
    """Return the folder that ``--root`` or ``--repo-id`` names; it need not exist.

    Raises:
        UsageError: Neither is given, or ``--revision`` without ``--repo-id``.
    """
    if options.repo_id is None and getattr(options, "revision", None) is not None:
        raise UsageError("--revision names a revision of --repo-id, which is not given.")
    if options.root is not None:
        return Path(options.root)
    if options.repo_id is None:
        raise UsageError(
            "No dataset is given.", next_step="Pass --root DIR, or --repo-id ORG/NAME."
        )
    hub_home = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    lerobot_home = Path(os.environ.get("HF_LEROBOT_HOME", hub_home / "lerobot")).expanduser()
    return lerobot_home / str(options.repo_id)


def dataset_root(options: argparse.Namespace) -> Path:
    """Return the folder that ``--root`` or ``--repo-id`` names on this machine.

    Raises:
        UsageError: Neither is given, or the repo is not on this machine.
    """
    root = local_root(options)
    if options.root is None and not root.is_dir():
        raise UsageError(
            f"{options.repo_id} is not on this machine: {root} does not exist.",
            path=str(root),
            next_step=f"Download it first: hf download --repo-type dataset {options.repo_id} "
            f"--local-dir {root}",
        )
    return root


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
    from leconvert.workdir.paths import default_work_dir

    name_on_the_hub(options)
    local = local_root(options).resolve()
    target = local if options.output is None else Path(options.output).resolve()
    work_dir: Path = default_work_dir(target)
    if options.work_dir is not None:
        work_dir = Path(options.work_dir).resolve()
    if isinstance(options.root, str):
        source = bring_from_store(options, target, stop=stop, progress=progress)
        return Places(source, target, work_dir, is_temporary=True)
    if options.output is None and options.root is None:
        target.parent.mkdir(parents=True, exist_ok=True)
    if options.repo_id is None:
        return Places(local, target, work_dir, _known(local))
    from leconvert.cli.convert_push import waits_for_push
    from leconvert.hub import arrival
    from leconvert.mirrors import source_dir
    from leconvert.workdir.target import is_converted

    force = getattr(options, "force_conversion", False)
    is_here = local.is_dir() and any(local.iterdir())
    # With force a result that is there is replaced: its source comes to beside it. One that an
    # earlier call did not get to push is pushed first.
    anew = force and is_converted(local) and not waits_for_push(options, local)
    if anew:
        local, is_here = source_dir(local), False
    # A run that only has to be ended may have put its result where the source would be.
    resumes = stream and not options.restart
    if resumes and arrival.under_way(work_dir, options.repo_id, options.revision):
        is_here = False
    elif is_here and options.revision is None:
        return Places(local, target, work_dir, _known(local))
    elif options.revision is None and not force:
        said = arrival.already_converted(
            options.repo_id, target, fetch=not stream, stop=stop, progress=progress
        )
        if said is not None:
            return said
    if not stream or is_here:
        arrived = arrival.download(
            options.repo_id, options.revision, local, stop=stop, progress=progress
        )
    else:
        arrived = arrival.outline(
            options.repo_id,
            options.revision,
            work_dir,
            scratch_limit=options.scratch_limit,
            restart=options.restart,
            stop=stop,
            progress=progress,
        )
    is_temporary = anew and arrived.source == local
    return Places(arrived.source, target, work_dir, arrived.arrival, is_temporary)


def _known(local: Path) -> Arrival | None:
    from leconvert.hub.download import known_origin
    from leconvert.hub.origin import Arrival

    origin = known_origin(local)
    return None if origin is None else Arrival(origin)
