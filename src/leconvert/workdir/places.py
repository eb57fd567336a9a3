"""Where source, target and work dir may be in relation to each other, and whose they are."""

from __future__ import annotations

import os
import shlex
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from leconvert.errors import StorageError, TargetError, UsageError, WorkDirError
from leconvert.workdir.paths import WorkDir, default_work_dir

__all__ = ["check_places", "source_as_output", "work_dir_beside"]


def check_places(source: Path, target: Path, work_dir: Path, *, outlined: bool = False) -> None:
    """Refuse places that would mix source, target and work dir.

    Args:
        source: The dataset.
        target: Where the result goes.
        work_dir: The folder that all hosts share.
        outlined: Whether the source is an outline, which lies in the work dir.

    Raises:
        UsageError: One lies inside another.
        StorageError: The work dir is a file.
        TargetError: The target is a file, or its parent folder is missing.
    """
    places = {"source": source, "target": target, "work dir": work_dir}
    for inner, outer in (
        # A target in the source takes its work dir with it, which nobody named.
        ("target", "source"),
        ("source", "target"),
        ("work dir", "source"),
        ("work dir", "target"),
        ("target", "work dir"),
        ("source", "work dir"),
    ):
        if (inner, outer) in {("target", "source"), ("source", "target")} and source == target:
            continue
        if (inner, outer) == ("source", "work dir") and outlined:
            continue
        if places[inner].is_relative_to(places[outer]):
            raise UsageError(
                f"The {inner} {places[inner]} lies inside the {outer} {places[outer]}.",
                path=str(places[inner]),
                next_step="Choose folders side by side.",
            )
    if os.path.lexists(work_dir) and not work_dir.is_dir():
        raise StorageError(
            f"Cannot use {work_dir} as a work dir: it is not a folder.",
            path=str(work_dir),
            next_step="Name a folder, or one that does not exist yet.",
        )
    if not target.parent.is_dir():
        raise TargetError(
            f"The folder {target.parent}, where the result should go, does not exist.",
            path=str(target.parent),
            next_step="Make it first.",
        )


def source_as_output(source: Path) -> UsageError:
    """Return the error that refuses an output that is the source itself."""
    return UsageError(
        f"The output is the source itself, {source}, which a conversion with --output never "
        "touches.",
        path=str(source),
        next_step=f"Leave --output out: the result takes its place, and it is kept as "
        f"{source.name}_old.",
    )


def work_dir_beside(target: Path) -> Path:
    """Return the work dir that is used where the user names none, unless it may be a trap.

    Its records say what is renamed and removed. So where anybody may make folders, one that another
    user made is not used unasked. Below a folder in which only some users may write they trust each
    other, and whoever names a work dir trusts those who can write there.

    Args:
        target: Where the result goes, or the dataset whose runs are looked at.

    Raises:
        WorkDirError: It may be another user's trap.
    """
    work = WorkDir(default_work_dir(target))
    with suppress(FileNotFoundError, NotADirectoryError):
        for path in _records(work):
            if _may_be_planted(path):
                raise WorkDirError(
                    f"{path} belongs to another user (user id {path.lstat().st_uid}), and anybody "
                    f"may write to {path.parent}: it is not used unasked.",
                    path=str(path),
                    next_step="If you trust that user, name it: `--work-dir "
                    f"{shlex.quote(str(work.root))}`, or `leconvert clean "
                    f"{shlex.quote(str(work.root))}`; otherwise use another --work-dir.",
                )
    return work.root


def _records(work: WorkDir) -> Iterator[Path]:
    """Yield what others could plant, from the work dir down."""
    yield work.root
    yield from sorted(work.root.iterdir())
    for run_id in work.list_runs():
        run = work.run(run_id)
        yield run.root
        yield from sorted(run.root.iterdir())
        if run.journal.is_dir():
            yield from sorted(run.journal.iterdir())


def _may_be_planted(path: Path) -> bool:
    above, owner = path.parent.stat(), path.lstat().st_uid
    if not above.st_mode & stat.S_IWOTH or owner in {0, os.geteuid(), above.st_uid}:
        return False
    # An NFS server that does not trust this host's root, and mounts with an owner of their own,
    # give what this user makes to another one.
    with suppress(OSError), tempfile.TemporaryFile(dir=path.parent) as own:
        return owner != os.fstat(own.fileno()).st_uid
    return True
