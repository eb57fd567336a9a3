"""Folders that a command reads and writes. A source on the Hub is downloaded."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

from leconvert.cli.main import end_on_signals
from leconvert.cli.options import exclude, given_flags, path_or_url, push_target, works_only
from leconvert.cli.push import waits_for_push, was_converted_here
from leconvert.model.values import LayoutOptions
from leconvert.run.conversion import Control, Conversion, Places
from leconvert.support.errors import HubAccessError, UsageError
from leconvert.support.machine import lerobot_home
from leconvert.support.values import dataclass
from leconvert.transfer.client import check_can_push
from leconvert.transfer.names import (
    HubName,
    download_command,
    downloaded_at,
    is_of_the_hub,
    not_downloaded,
)
from leconvert.transfer.options import ScratchOptions
from leconvert.workdir.fs import is_folder, remove_tree
from leconvert.workdir.records import WorkDir
from leconvert.workdir.swap import (
    is_converted,
    is_same_folder,
    old_dir,
    overlaid_meta,
    source_as_output,
    source_dir,
    work_dir_beside,
)

if TYPE_CHECKING:
    from leconvert.remote.provenance import Origin

# The dataset that a command line names: a folder, a name on the Hub, or a URL.


def take_arguments(options: argparse.Namespace) -> None:
    """Turn DATASET and OUTPUT into ``--root`` or ``--repo-id``, and ``--output``.

    A URL of the Hub becomes ``--repo-id`` and ``--revision``.

    DATASET is a URL if it contains ``://``. It is a folder if it exists, or if it is not of the
    form ORG/NAME or ORG/NAME/path, with or without @REV. Otherwise it is a name on the Hub. If both
    make sense, it is refused.
    """
    if options.result is not None:
        if options.output is not None and options.output.resolve() != options.result.resolve():
            raise UsageError(
                "Two folders are given for the result: "
                f"{options.result} and --output {options.output}.",
                next_step="Give one of them.",
            )
        options.output = options.result
    given, options.dataset = options.dataset, None
    if given is not None:
        given = _spelled_out(given)
    if given is not None and _is_hub_name(given):
        if options.repo_id not in (None, given):
            raise _two_sources(given, f"--repo-id {options.repo_id}")
        options.repo_id = given
    elif given is not None:
        root = path_or_url(given)
        for flag, other in (("--root", options.root), ("--repo-id", options.repo_id)):
            if other is not None and not (flag == "--root" and _is_same(other, root)):
                raise _two_sources(given, f"{flag} {other}")
        options.root = root
    name_on_the_hub(options)
    if isinstance(options.root, str) and options.repo_id is not None:
        raise _two_sources(options.root, f"--repo-id {options.repo_id}")


def hub_dataset(given: str) -> HubName | None:
    """Return the dataset on the Hub that DATASET means; None for another place."""
    given = _spelled_out(given)
    if is_of_the_hub(given) and "://" in given:
        return _on_the_hub(given)
    return HubName(given) if _is_hub_name(given) else None


def _spelled_out(given: str) -> str:
    """Return the URL for ``ORG/NAME@REV``; anything else unchanged."""
    named = HubName.parse(given) if "@" in given and "://" not in given else None
    if named is None or os.path.lexists(given) or not _is_hub_name(named.repo_id):
        return given
    return str(named)


def _is_hub_name(given: str) -> bool:
    if "://" in given or HubName.parse(given) != HubName(given):
        return False
    downloaded = (lerobot_home() / given).is_dir()
    if os.path.lexists(given):
        is_unclear = downloaded and not Path(given).samefile(lerobot_home() / given)
    else:
        # If the first part is a folder here, the name is more likely a mistyped path.
        is_unclear = not downloaded and Path(given.split("/", maxsplit=1)[0]).is_dir()
    if is_unclear:
        word = shlex.quote(given)
        raise UsageError(
            f"{given} may mean a folder here or a dataset on the Hub.",
            next_step=(
                f"Write ./{word} for the folder, or hf://datasets/{word} for the dataset on "
                "the Hub."
            ),
        )
    return not os.path.lexists(given)


def name_on_the_hub(options: argparse.Namespace) -> None:
    """Turn ``--root hf://datasets/ORG/NAME@REV`` into ``--repo-id`` and ``--revision``."""
    if not isinstance(options.root, str) or not is_of_the_hub(options.root):
        return
    found = _on_the_hub(options.root)
    for name in ("repo_id", "revision"):
        if getattr(options, name) not in (None, getattr(found, name)):
            option = f"--{name.replace('_', '-')}"
            raise exclude(options.root, option)
    options.repo_id, options.revision, options.root = found.repo_id, found.revision, None


def _on_the_hub(url: str) -> HubName:
    found = HubName.parse(url, bare=False)
    if found is None:
        raise UsageError(
            f"{url} is not an address of a dataset on the Hub.",
            path=url,
            next_step="Write hf://datasets/ORG/NAME or hf://datasets/ORG/NAME@REV; for a folder of "
            "a repo, write hf://datasets/ORG/NAME/path/to/dataset@REV.",
        )
    return found


def _is_same(one: Path | str, other: Path | str) -> bool:
    if isinstance(one, Path) and isinstance(other, Path):
        return one.resolve() == other.resolve()
    return one == other


def _two_sources(given: str, option: str) -> UsageError:
    return UsageError(
        f"Two sources are given: {given} and {option}.", next_step="Give one of them."
    )


def local_root(options: argparse.Namespace) -> Path:
    """Return the folder that ``--root`` or ``--repo-id`` names. It need not exist."""
    if options.repo_id is None and getattr(options, "revision", None) is not None:
        raise works_only("--revision", "with --repo-id", "Add --repo-id ORG/NAME")
    if options.root is not None:
        return Path(options.root)
    if options.repo_id is None:
        raise UsageError(
            "No dataset is given.",
            next_step="Give the dataset's folder, or ORG/NAME for a dataset on the Hub.",
        )
    return lerobot_home() / str(options.repo_id)


def dataset_root(options: argparse.Namespace) -> Path:
    """Return the folder that ``--root`` or ``--repo-id`` names on this machine."""
    root = local_root(options)
    if options.root is None and not root.is_dir():
        raise not_downloaded(options.repo_id, lerobot_home())
    return root


def refuse_source_as_output(options: argparse.Namespace, local: Path) -> None:
    """Refuse an ``--output`` that is the source: with ``--output``, the source never changes."""
    if options.output is not None and is_same_folder(Path(options.output).resolve(), local):
        raise source_as_output(local)


def refuse_scratch_options(options: argparse.Namespace, *, stream: bool) -> None:
    """Refuse a scratch folder if no worker downloads files."""
    flag = next(iter(given_flags(options, ScratchOptions)), None)
    if flag is None or (stream and options.repo_id is not None):
        return
    if options.repo_id is None:
        where = f"for a dataset on the Hub. The dataset {str(options.root)!r} is not on the Hub"
        raise works_only(flag, where)
    raise UsageError(
        f"{flag} works only if worker processes download the files. This command would download "
        f"all of {options.repo_id} before the conversion.",
        next_step="Add --engine local: worker processes then download the files batch by batch.",
    )


# A source with a URL, for the time of a block.


@contextmanager
def source_at(place: Path | str, scratch_dir: Path | None, control: Control) -> Iterator[Path]:
    """Provide a source for the block. A source with a URL is downloaded, and removed afterwards."""
    if isinstance(place, Path):
        yield place.resolve()
        return
    with TemporaryDirectory(prefix="leconvert-source-", dir=scratch_dir) as folder:
        if is_of_the_hub(place):
            named = NamedDataset(Path(folder) / "source", _on_the_hub(place))
            yield named.downloaded(control)
        else:
            from leconvert.remote.stores import download_tree

            source = Path(folder) / "source"
            yield download_tree(place, source, stop=control.stop, progress=control.progress)


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
    # A result that is in place may be the wanted one. Only a comparison with the source tells.
    if not (is_converted(target, conversion.layout.to) and is_compared(options, conversion)):
        conversion.check_target(folder, target)
    return download_tree(url, folder, stop=control.stop, progress=control.progress)


def is_compared(options: argparse.Namespace, conversion: Conversion) -> bool:
    """Return whether a command leaves a result in place if a comparison finds it right.

    Other commands do more than to make a result, or make it again.
    """
    return hasattr(options, "push_repo_id") and not (
        conversion.proof.force_conversion
        or conversion.proof.delete_source
        or conversion.plan.restart
        or asks_more(options, conversion)
    )


def asks_more(options: argparse.Namespace, conversion: Conversion) -> bool:
    """Return whether a command asks for more than a result."""
    return (
        getattr(options, "probe", False)
        or options.report is not None
        or options.keep_work_dir
        or conversion.layout.block_align is not None  # no result tells how its blocks are aligned
    )


# The places of a conversion.


@dataclass(frozen=True, slots=True)
class FoundPlaces(Places):
    """The folders of a command, and how it found them."""

    is_temporary: bool = False  # whether the source was downloaded only to be converted
    # Whether the result goes to the source's repo, where its files stay; the target is then in the
    # work dir.
    migrates: bool = False
    # The target that the options name. A report goes beside it.
    named: Path = Path()

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
) -> Iterator[FoundPlaces | str]:
    """Provide source, target and work dir for the block; a source on the Hub is downloaded first.

    A signal ends the download at once. The next call continues it. Files that are downloaded for a
    dry run are removed after the block.

    Yields:
        The places; or a sentence that the Hub has the dataset in this version already.
    """
    missing = [folder for folder in local_root(options).resolve().parents if not folder.exists()]
    try:
        if not options.dry_run:
            yield _places(options, conversion, control, options.work_dir, stream)
            return
        with TemporaryDirectory(prefix="leconvert-plan-") as begun:
            found = _places(options, conversion, control, Path(begun) / "work", True)
            if not isinstance(found, str) and not found.migrates:
                found = replace(found, work_dir=_work_dir(options.work_dir, found.target))
            yield found
    finally:
        for folder in missing:  # made for a dataset of the Hub, which perhaps does not exist
            with suppress(OSError):
                folder.rmdir()


def _work_dir(given: Path | None, target: Path) -> Path:
    return work_dir_beside(target) if given is None else given.resolve()


def _places(
    options: argparse.Namespace,
    conversion: Conversion,
    control: Control,
    named: Path | None,
    stream: bool,
) -> FoundPlaces | str:
    from leconvert.remote.provenance import known_origin

    local = local_root(options).resolve()
    migrates = _migrates(options, conversion.layout, local)
    stream = stream or migrates
    refuse_scratch_options(options, stream=stream)
    refuse_source_as_output(options, local)
    target = local if options.output is None else Path(options.output).resolve()
    work_dir = _work_dir(named, target)
    with end_on_signals(control.stop):
        if isinstance(options.root, str):
            _check_push(options, conversion.layout, None)
            source = bring_from_store(options, conversion, control, target)
            return FoundPlaces([source], target, work_dir, is_temporary=True, named=target)
        if options.output is None and options.root is None:
            target.parent.mkdir(parents=True, exist_ok=True)
        here = FoundPlaces([local], target, work_dir, known_origin(local), named=target)
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


def _check_push(options: argparse.Namespace, layout: LayoutOptions, arrival: Origin | None) -> None:
    """Refuse, before any work, a push that the token does not allow."""
    if not hasattr(options, "push_repo_id"):
        return
    came_from = arrival.repo_id if arrival else options.repo_id
    repo_id = push_target(options, layout, came_from)
    if repo_id is not None:
        try:
            check_can_push(repo_id)
        except HubAccessError as error:
            error.next_step = (
                f"{error.next_step} Or add --no-push: the result then stays on this machine."
            )
            raise


# A source named on the Hub: used from its folder, or downloaded.


def bring_from_hub(
    options: argparse.Namespace,
    conversion: Conversion,
    control: Control,
    here: FoundPlaces,
    *,
    stream: bool,
) -> FoundPlaces | str:
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
        if WorkDir(here.work_dir).current_run_id() is None:
            conversion.check_target(local, here.target)
    # The result of a run that is nearly finished may be where the source would be.
    resumes = stream and not restart
    if resumes and hub_source.under_way(here.work_dir, options.repo_id, options.revision):
        is_here = False
    elif is_here and (options.revision is None or was_converted_here(options, here)):
        if here.arrival is not None:
            hub_source.check_same_repo(local, here.arrival, options.repo_id)
            # An earlier call downloaded it in this version.
            if here.in_place and not (force or changes) and is_converted(local, to):
                return (
                    f"{options.repo_id} at {here.arrival.revision} is already {to}, and was "
                    f"downloaded to {local}. --force-conversion converts it again."
                )
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
    named: HubName | None = None  # its name on the Hub; None for a local folder

    def is_here(self) -> bool:
        """Return whether its folder contains anything."""
        return self.folder.is_dir() and any(self.folder.iterdir())

    def bring(self, control: Control) -> Path:
        """Return its folder, after a download if need be; a signal ends it as in `places`."""
        if self.named is None:
            return self.folder
        with end_on_signals(control.stop):
            return self.downloaded(control).resolve()

    def downloaded(self, control: Control) -> Path:
        """Return the folder of a dataset on the Hub, after its download."""
        from leconvert.remote.source import download

        assert self.named is not None
        found = download(
            self.named.repo_id,
            self.named.revision,
            self.folder,
            also_v3=True,
            stop=control.stop,
            progress=control.progress,
        )
        return found.source


@contextmanager
def named_places(
    options: argparse.Namespace, datasets: Sequence[NamedDataset], control: Control
) -> Iterator[FoundPlaces]:
    """Provide sources, target and work dir for the block, after downloads if need be."""
    from leconvert.run.planner import check_all_places

    folders = [dataset.folder for dataset in datasets]
    target = folders[0] if options.output is None else options.output.resolve()
    # Impossible places are refused before anything is downloaded.
    if len(datasets) > 1:
        check_all_places(Places(folders, target, _work_dir(options.work_dir, target)))
    refuse_source_as_output(options, folders[0])
    sources = [dataset.bring(control) for dataset in datasets]
    if options.output is None:
        target = sources[0]
    yield FoundPlaces(sources, target, _work_dir(options.work_dir, target), named=target)


def named_datasets(given: Sequence[str], *, unfetched: str | None = None) -> list[NamedDataset]:
    """Parse several arguments DATASET as ``convert`` parses one. Nothing is downloaded yet."""
    found = []
    for word in given:
        named = hub_dataset(word)
        if named is not None:
            dataset = NamedDataset((lerobot_home() / named.repo_id).resolve(), named)
            if unfetched and not dataset.is_here():
                raise UsageError(
                    f"{unfetched}, but {word} would first have to be downloaded.",
                    next_step=f"`{download_command(named.repo_id, named.revision, 'DIR')}` "
                    f"downloads it. Then give {downloaded_at(named.repo_id, 'DIR')} instead of "
                    f"{word}.",
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
