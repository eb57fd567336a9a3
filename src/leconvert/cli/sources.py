"""Folders that a command reads and writes. A source on the Hub is downloaded."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

from leconvert.cli.main import end_on_signals
from leconvert.cli.options import (
    hub_dataset,
    local_root,
    path_or_url,
    push_target,
    refuse_scratch_options,
    refuse_source_as_output,
)
from leconvert.cli.push import waits_for_push
from leconvert.model.values import LayoutOptions
from leconvert.run.conversion import Control, Conversion
from leconvert.support.errors import HubAccessError, UsageError
from leconvert.support.machine import lerobot_home
from leconvert.transfer.client import check_can_push
from leconvert.transfer.incoming import source_dir
from leconvert.transfer.names import download_command, downloaded_at
from leconvert.workdir.fs import is_folder, remove_tree
from leconvert.workdir.records import WorkDir
from leconvert.workdir.swap import is_converted, old_dir, overlaid_meta, work_dir_beside

if TYPE_CHECKING:
    from leconvert.remote.provenance import HubOrigin

# A source in other storage, such as S3: the whole dataset is downloaded to beside its result.


def bring_from_store(
    options: argparse.Namespace, conversion: Conversion, control: Control, target: Path
) -> Path:
    """Download the dataset at the URL of ``--root`` to beside the target; return its folder."""
    from leconvert.remote.stores import download_tree

    url = str(options.root)
    if options.output is None:
        raise UsageError(
            f"No folder is given for the result of {url}.", next_step="Add --output DIR."
        )
    if getattr(options, "dry_run", False):
        raise UsageError(
            f"--dry-run cannot show a plan of {url}: the dataset would first have to be downloaded."
        )
    folder = source_dir(target)
    conversion.proof.check_target(folder, target, conversion.layout.to)
    return download_tree(url, folder, stop=control.stop, progress=control.progress)


# The places of a conversion.


@dataclass(frozen=True, slots=True)
class Places:
    """Folders that a command reads and writes, absolute."""

    sources: Sequence[Path]  # the datasets, or the sparse snapshot of the only one
    target: Path  # the folder of the result
    work_dir: Path  # the run's folder
    arrival: HubOrigin | None = None  # how the source came from the Hub; None for a local source
    is_temporary: bool = False  # whether the source was downloaded only to be converted
    # Whether the result goes to the source's repo, where its files stay; the target is then in the
    # work dir.
    migrates: bool = False
    # The target that the options name. A report goes beside it.
    named: Path = Path()

    @property
    def source(self) -> Path:
        """The first source."""
        return self.sources[0]

    @property
    def in_place(self) -> bool:
        """Whether the result takes the place of its source."""
        return self.source == self.target

    @property
    def outline(self) -> str | None:
        """The URL of the source if its files are on the Hub; None if they are on this machine."""
        return None if self.arrival is None else self.arrival.outline

    @property
    def made_of(self) -> str:
        """The source to compare a result with. In place, it is the kept source."""
        if self.outline is not None:
            return self.outline
        kept = overlaid_meta(self.target) or old_dir(self.target)
        return str(kept) if self.in_place else ", ".join(map(str, self.sources))

    def release(self) -> None:
        """Remove a source that was downloaded only to be converted, when it is."""
        if self.is_temporary:
            remove_tree(self.source)


@contextmanager
def places(
    options: argparse.Namespace,
    conversion: Conversion,
    control: Control,
    *,
    stream: bool,
) -> Iterator[Places | str]:
    """Provide source, target and work dir for the block; a source on the Hub is downloaded first.

    A signal ends the download at once. The next call continues it. Files that are downloaded for a
    dry run are removed after the block.

    Yields:
        The places; or a sentence that the Hub has the dataset in this version already.
    """
    if not options.dry_run:
        yield _places(options, conversion, control, options.work_dir, stream)
        return
    with TemporaryDirectory(prefix="leconvert-plan-") as begun:
        found = _places(options, conversion, control, Path(begun) / "work", True)
        if not isinstance(found, str) and not found.migrates:
            found = replace(found, work_dir=_work_dir(options.work_dir, found.target))
        yield found


def _work_dir(given: Path | None, target: Path) -> Path:
    return work_dir_beside(target) if given is None else given.resolve()


def _places(
    options: argparse.Namespace,
    conversion: Conversion,
    control: Control,
    named: Path | None,
    stream: bool,
) -> Places | str:
    local = local_root(options).resolve()
    migrates = _migrates(options, conversion.layout, local)
    stream = stream or migrates
    refuse_scratch_options(options, stream=stream)
    refuse_source_as_output(options, local)
    target = local if options.output is None else Path(options.output).resolve()
    work_dir = _work_dir(named, target)
    with end_on_signals(control.stop):
        if isinstance(options.root, str):
            source = bring_from_store(options, conversion, control, target)
            return Places([source], target, work_dir, is_temporary=True, named=target)
        if options.output is None and options.root is None:
            target.parent.mkdir(parents=True, exist_ok=True)
        here = Places([local], target, work_dir, _known(local), named=target)
        if options.repo_id is None:
            _check_push(options, conversion.layout, here.arrival)
            return here

        here = replace(here, migrates=migrates)
        found = bring_from_hub(options, conversion, control, here, stream=stream)
    if isinstance(found, str) or not (found.outline and migrates):
        return found
    return replace(found, target=WorkDir.migrated(found.source))


def _migrates(options: argparse.Namespace, layout: LayoutOptions, local: Path) -> bool:
    """Return whether a dataset becomes v3.0 on the Hub itself, without a result here.

    A dataset that is on this machine already is converted here.
    """
    if options.repo_id is None or (local.is_dir() and any(local.iterdir())):
        return False
    if not layout.can_migrate:
        return False
    if not hasattr(options, "push_repo_id"):  # `plan` can only show what `convert` would do
        return options.dry_run and options.output is None
    is_asked = options.push_repo_id in (None, options.repo_id)
    return is_asked and push_target(options, layout, options.repo_id) is not None


def _check_push(
    options: argparse.Namespace, layout: LayoutOptions, arrival: HubOrigin | None
) -> None:
    """Refuse, before any work, a push that the token does not allow."""
    if not hasattr(options, "push_repo_id"):
        return
    came_from = arrival.origin.repo_id if arrival else options.repo_id
    repo_id = push_target(options, layout, came_from)
    if repo_id is not None:
        try:
            check_can_push(repo_id)
        except HubAccessError as error:
            error.next_step = (
                f"{error.next_step} Or add --no-push: the result then stays on this machine."
            )
            raise


def _known(local: Path) -> HubOrigin | None:
    """Return how a local dataset came from the Hub; None if it did not."""
    from leconvert.remote.provenance import HubOrigin, known_origin

    origin = known_origin(local)
    return None if origin is None else HubOrigin(origin)


# A source named on the Hub: used from its folder, or downloaded.


def bring_from_hub(
    options: argparse.Namespace,
    conversion: Conversion,
    control: Control,
    here: Places,
    *,
    stream: bool,
) -> Places | str:
    """Return the places of the dataset of ``--repo-id``, after its download."""
    from leconvert.remote import source as hub_source  # local datasets do not need the Hub's client

    local = here.source
    force, restart = conversion.proof.force_conversion, conversion.plan.restart
    is_here = local.is_dir() and any(local.iterdir())
    # With force, a result in place is replaced, and its source is downloaded to beside it. A result
    # that an earlier call did not push is pushed first.
    layout = conversion.layout
    to = layout.to
    changes = conversion.selection or conversion.repairs.as_record()
    anew = force and is_converted(local, to) and not waits_for_push(options, conversion, local)
    if anew:
        local, is_here = source_dir(local), False
    # The result of a run that is nearly finished may be where the source would be.
    resumes = stream and not restart
    if resumes and hub_source.under_way(here.work_dir, options.repo_id, options.revision):
        is_here = False
    elif is_here and options.revision is None:
        if here.arrival is not None:
            hub_source.check_same_repo(local, here.arrival.origin, options.repo_id)
        _check_push(options, conversion.layout, here.arrival)
        return here
    elif options.revision is None and not force and (to == "v3.0" or not changes):
        said = hub_source.already_converted(
            options.repo_id,
            here.target,
            to=to,
            fetch=not stream,
            stop=control.stop,
            progress=control.progress,
        )
        if said is not None:
            return said
    _check_push(options, conversion.layout, None)
    # A v3.0 dataset is a source only if something of it would change.
    also_v3 = bool(changes) or here.target != here.source or layout != type(layout)()
    also_v3 &= not here.migrates
    if not stream or is_here:
        arrived = hub_source.download(
            options.repo_id,
            options.revision,
            local,
            anew=anew,
            to=to,
            also_v3=also_v3,
            stop=control.stop,
            progress=control.progress,
        )
    else:
        arrived = hub_source.fetch_sparse(
            options.repo_id,
            options.revision,
            here.work_dir,
            to=to,
            also_v3=also_v3,
            scratch_limit=conversion.scratch.limit_bytes,
            for_copies=here.migrates,
            restart=restart,
            stop=control.stop,
            progress=control.progress,
        )
    return replace(
        here,
        sources=[arrived.source],
        arrival=arrived.arrival,
        is_temporary=anew and arrived.source == local,
        migrates=here.migrates and arrived.source != local,
    )


# Several sources, each a folder here or a name on the Hub. No command changes them.


class NamedDataset(NamedTuple):
    """A dataset that a command reads as a whole."""

    folder: Path  # its folder, or the folder to download it to; absolute
    repo_id: str | None = None  # its name on the Hub; None for a local folder
    revision: str | None = None  # the tag, branch or commit that was asked for

    def is_here(self) -> bool:
        """Return whether its folder contains anything."""
        return self.folder.is_dir() and any(self.folder.iterdir())

    def bring(self, control: Control) -> Path:
        """Return its folder, after a download if need be; a signal ends it as in `places`."""
        if self.repo_id is None:
            return self.folder
        from leconvert.remote.source import download

        with end_on_signals(control.stop):
            found = download(
                self.repo_id,
                self.revision,
                self.folder,
                also_v3=True,
                stop=control.stop,
                progress=control.progress,
            )
        return found.source.resolve()


@contextmanager
def named_places(
    options: argparse.Namespace, datasets: Sequence[NamedDataset], control: Control
) -> Iterator[Places]:
    """Provide sources, target and work dir for the block, after downloads if need be."""
    from leconvert.run.planner import check_all_places

    folders = [dataset.folder for dataset in datasets]
    target = folders[0] if options.output is None else options.output.resolve()
    # Impossible places are refused before anything is downloaded.
    if len(datasets) > 1:
        check_all_places(folders, target, _work_dir(options.work_dir, target))
    refuse_source_as_output(options, folders[0])
    sources = [dataset.bring(control) for dataset in datasets]
    if options.output is None:
        target = sources[0]
    yield Places(sources, target, _work_dir(options.work_dir, target), named=target)


def named_datasets(given: Sequence[str], *, unfetched: str | None = None) -> list[NamedDataset]:
    """Parse several arguments DATASET as ``convert`` parses one. Nothing is downloaded yet."""
    found = []
    for word in given:
        named = hub_dataset(word)
        if named is not None:
            dataset = NamedDataset((lerobot_home() / named[0]).resolve(), *named)
            if unfetched and not dataset.is_here():
                raise UsageError(
                    f"{unfetched}, but {word} would first have to be downloaded.",
                    next_step=f"`{download_command(*named, 'DIR')}` downloads it. Then give "
                    f"{downloaded_at(named[0], 'DIR')} instead of {word}.",
                )
        elif isinstance(place := path_or_url(word), str):
            raise UsageError(
                f"{word} is neither a folder of this machine nor a dataset on the Hub.",
                next_step=f"`leconvert convert --root {shlex.quote(word)} --output DIR` downloads "
                "and converts the dataset. Then give DIR instead of the URL.",
            )
        elif not is_folder(place):
            raise UsageError(
                f"{word} is not a folder.",
                path=word,
                next_step="Give a folder that exists, or a dataset on the Hub as ORG/NAME or "
                "hf://datasets/ORG/NAME@REV.",
            )
        else:
            dataset = NamedDataset(place.resolve())
        found.append(dataset)
    return found
