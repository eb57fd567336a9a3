"""``leconvert push``, and ``leconvert mirror``, which it includes."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from leconvert.cli.options import (
    add_push_options,
    controlled,
    given_flags,
    local_dataset,
    push_options,
    push_target,
    works_only,
)
from leconvert.cli.output import progress_for, show
from leconvert.cli.parser import add_output
from leconvert.run.conversion import Conversion
from leconvert.support.errors import TargetError, UsageError
from leconvert.support.text import amount, count
from leconvert.transfer.names import in_folder
from leconvert.transfer.options import MAIN, PushOptions
from leconvert.workdir.records import WorkDir
from leconvert.workdir.swap import info_path, is_converted, old_dir

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from leconvert.cli.sources import FoundPlaces
    from leconvert.remote.provenance import Origin, Provenance
    from leconvert.remote.push import PushReport


# The output of a push, for ``convert`` and ``push``.


_KEPT_SHOWN = 5


def push_lines(report: PushReport) -> Iterator[str]:
    """Yield what a push did or would do."""
    if report.dry_run:
        yield f"Nothing was written. A push to {report.url} would:"
        if report.created:
            yield "  make          the repo (this token sees no such repo)"
    else:
        yield f"Pushed to {report.url}"
    yield (
        f"  added         {report.added:,} files, {amount(report.added_bytes)}; "
        f"{report.unchanged:,} files were there already"
    )
    if report.copied:
        yield (
            f"  renamed       {report.copied:,} files, {amount(report.copied_bytes)}, which the "
            "repo had under other names"
        )
    if report.deleted:
        yield f"  deleted       {report.deleted:,} files of the old dataset"
    if report.deleted and report.before:
        yield f"  before        commit {report.before[:12]} still has the old dataset"
    if report.kept:
        more = len(report.kept) - _KEPT_SHOWN
        shown = ", ".join(report.kept[:_KEPT_SHOWN]) + (f" and {more:,} more" if more > 0 else "")
        yield f"  not touched   {shown}"
    yield f"  card          {report.card}"
    place = f"branch {report.branch}"
    if report.pull_request is not None:
        place = f"pull request {report.pull_request}" + (", merged" if report.merged else "")
    made = f" {report.commit[:12]}" if report.commit else ""
    yield f"  commit       {made or f' {report.commits:,} to make'}, {place}"
    unset = "not set; push again after the pull request is merged"
    if report.pull_request is None and report.branch != MAIN:
        unset = f"not set: the tag is for {MAIN}"
    tags = {"none": unset}
    yield f"  tag {report.version}      {tags.get(report.tag, report.tag)}"


# ``leconvert push``.


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "result",
        type=local_dataset,
        metavar="RESULT",
        help="the folder of a v3.0 dataset, or a folder with several datasets in it",
    )
    parser.add_argument(
        "url", nargs="?", metavar="URL",
        help="instead of the Hub: the URL of an empty folder in other storage, such as "
        "s3://BUCKET/NAME",
    )  # fmt: skip
    _add_create_bucket(parser)
    add_push_options(parser)
    add_output(parser, dry_run="show what would be done; write nothing")


def run(options: argparse.Namespace) -> int:
    """Push, and print the outcome."""
    from leconvert.remote.push import push

    if options.url is not None:
        from leconvert.remote.stores import refuse_hub

        refuse_hub(options.result, options.url)
        _refuse_options_of_the_hub(options)
        return run_mirror(options)
    if options.create_bucket:
        raise works_only("--create-bucket", "with a URL", "Give a URL such as s3://BUCKET/NAME")
    how = push_options(options, options.push_repo_id)
    if datasets := _datasets_below(options.result):
        return _push_folders(options, datasets, how)
    report = push(options.result.resolve(), how, progress=progress_for(options))
    return show(options, report.as_record(), push_lines(report))


def _datasets_below(folder: Path) -> dict[Path, str]:
    """Return the datasets below a folder that is not a dataset itself, with their paths in it."""
    from leconvert.fleet import find_datasets

    if not folder.is_dir() or info_path(folder).exists():
        return {}
    found = [path for path in find_datasets(folder) if info_path(path).exists()]
    # The source that a conversion in place kept is not a result.
    kept = {old_dir(path) for path in found}
    return {path: path.relative_to(folder).as_posix() for path in found if path not in kept}


def _push_folders(
    options: argparse.Namespace, datasets: Mapping[Path, str], how: PushOptions
) -> int:
    """Push datasets in one commit, to below the given repo or to where they came from."""
    from leconvert.remote.provenance import noted_origin
    from leconvert.remote.push import push_folders

    named = {}
    for path, place in datasets.items():
        origin = noted_origin(path)
        if how.repo_id is None and origin is None:
            raise UsageError(
                f"No record says which repo {path} came from.",
                path=str(path),
                next_step="Add --push-repo-id ORG/NAME. In that repo, each dataset gets the path "
                "that it has below RESULT.",
            )
        name = in_folder(how.repo_id, place) if how.repo_id else origin.repo_id if origin else ""
        named[name] = path.resolve()
    reports = push_folders(named, how, progress=progress_for(options))
    commits = {report.commit for report in reports if report.added or report.deleted}
    made = max(report.commits for report in reports) if options.dry_run else len(commits)
    done = "would be pushed" if options.dry_run else "pushed"
    added, size_bytes = (
        sum(getattr(r, name) for r in reports) for name in ("added", "added_bytes")
    )
    lines = [
        f"{count(len(reports), 'dataset')} {done}, in {count(made, 'commit')}:",
        f"  added         {added:,} files, {amount(size_bytes)}",
        f"  copied        {sum(report.copied for report in reports):,} files, by the Hub itself",
        f"  deleted       {sum(report.deleted for report in reports):,} files of old datasets",
        *(f"  {report.url}" for report in reports),
    ]
    return show(options, {"pushed": [report.as_record() for report in reports]}, lines)


def _refuse_options_of_the_hub(options: argparse.Namespace) -> None:
    flags = given_flags(options, PushOptions)
    flags += ["--push-repo-id"] * (options.push_repo_id is not None)
    flags += ["--dry-run"] * options.dry_run
    for flag in flags:
        raise UsageError(
            f"{flag} works only for the Hub, but {options.url} is not on the Hub.",
            next_step=f"Leave {flag} or the URL out.",
        )


# The push after a conversion, also if only the push is left to do.


def planned_push(
    options: argparse.Namespace, conversion: Conversion, places: FoundPlaces
) -> tuple[str | None, bool | None]:
    """Return what there is to push after ``convert``.

    Returns:
        The repo to push to, None for no push; and whether an earlier call has put the result in
        place, None if only a comparison can tell. The record of the result tells, since it names
        the commit that the push replaces. A result that was made without a push has no record, and
        the times of a source that is downloaded for this call are new.
    """
    from leconvert.remote.provenance import read_provenance

    origin, target, to = _origin(places), places.target, conversion.layout.to
    repo_id = push_target(options, conversion.layout, origin.repo_id if origin else None)
    if repo_id is None:
        return None, None
    # The records of an unfinished run are more exact.
    is_settled = is_converted(target, to) and WorkDir(places.work_dir).current_run_id() is None
    if not is_settled:
        return repo_id, False
    known = read_provenance(target)
    if known is None or (places.is_temporary and origin is None):
        return repo_id, None
    force = conversion.proof.force_conversion
    differences = [
        *_other_source(options, places, origin, known),
        *_other_options(conversion, known),
    ]
    if not differences:
        # --force-conversion converts a pushed result again. A result that is not pushed yet is
        # pushed.
        return repo_id, not (known.pushed and force)
    if force:
        return repo_id, False
    anew = f"`--force-conversion` converts again and keeps this dataset as {old_dir(target)}"
    if places.in_place:
        anew = "or convert its source again with --output"
    raise TargetError(
        f"{target} already holds a {to} dataset, made from another source or with other options.",
        path=str(target),
        details=differences,
        next_step=f"`leconvert push {shlex.quote(str(target))} --push-repo-id ORG/NAME` pushes "
        f"this dataset as it is; {anew}.",
    )


def _other_source(
    options: argparse.Namespace, places: FoundPlaces, now: Origin | None, known: Provenance
) -> list[str]:
    """Return how this command's source differs from the source of the result."""
    from leconvert.remote.provenance import facts_of

    if places.in_place:
        asked = options.repo_id
        if asked is None or (known.repo_id == asked and _is_revision(options, known)):
            return []
        return [f"source: it was {known.place or 'a local dataset'}, and is {asked} now"]
    here, then = places.source, (known.repo_id, known.commit)
    if then != ((now.repo_id, now.commit) if now else ("", "")):
        named = now.url if now else str(here)
        return [f"source: it was {known.place}, and is {named} now"]
    is_here = here.is_dir() and not places.outline
    if is_here and known.source_facts and facts_of(here) != known.source_facts:
        return [f"source: {here} changed since {known.source} was converted"]
    return []


def was_converted_here(options: argparse.Namespace, places: FoundPlaces) -> bool:
    """Return whether an earlier call put the result of this dataset and revision in its place."""
    if not places.in_place or places.arrival is not None:
        return False
    origin = _origin(places)
    return (
        origin is not None and origin.repo_id == options.repo_id and _is_revision(options, origin)
    )


def waits_for_push(options: argparse.Namespace, conversion: Conversion, target: Path) -> bool:
    """Return whether an earlier call left a result there, but did not push it."""
    from leconvert.remote.provenance import read_provenance

    known = read_provenance(target)
    if known is None or known.pushed or known.repo_id != options.repo_id:
        return False
    if not _is_revision(options, known) or _other_options(conversion, known):
        return False
    return push_target(options, conversion.layout, known.repo_id) is not None


def _origin(places: FoundPlaces) -> Origin | None:
    """Return the place on the Hub that the source came from; None for a local source."""
    from leconvert.remote.provenance import noted_origin, read_origin

    if places.arrival is not None:
        return places.arrival
    if not places.in_place:
        return None
    # The source may have been replaced. The run under way knows its origin, or the result's record.
    work = WorkDir(places.work_dir)
    run_id = work.current_run_id()
    if run_id is not None:
        return read_origin(work.run(run_id).root)
    return noted_origin(places.target)


def _is_revision(options: argparse.Namespace, known: Provenance | Origin) -> bool:
    return options.revision in (None, known.revision, known.commit)


def _other_options(conversion: Conversion, known: Provenance) -> list[str]:
    """Return the differences between options that decide the bytes of a result, then and now."""
    from leconvert.remote.provenance import decisive_options

    now = decisive_options(conversion.result_record())
    return [
        (
            f"{name}: it was {known.options.get(name, 'not given')}, and is "
            f"{now.get(name, 'not given')} now"
        )
        for name in sorted(now.keys() | known.options.keys())
        if now.get(name) != known.options.get(name)
    ]


# A URL instead of the Hub; ``leconvert mirror`` is its older name.


def add_mirror_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("result", type=Path, metavar="RESULT", help="a v3.0 dataset")
    parser.add_argument(
        "url", metavar="URL", help="the URL of an empty folder, such as s3://BUCKET/NAME"
    )
    _add_create_bucket(parser)
    add_output(parser)


def _add_create_bucket(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--create-bucket", action="store_true", help="make the bucket of URL if it does not exist"
    )


def run_mirror(options: argparse.Namespace) -> int:
    """Upload a dataset to other storage, and print the outcome."""
    from leconvert.remote.stores import upload_tree

    with controlled(options) as control:
        report = upload_tree(
            options.result.resolve(),
            options.url,
            create_bucket=options.create_bucket,
            stop=control.stop,
            progress=control.progress,
        )
    sent = (
        f"Uploaded {report.sent:,} of {report.files:,} files, {amount(report.sent_bytes)}, to "
        f"{report.url}"
    )
    return show(options, report.as_record(), [sent])
