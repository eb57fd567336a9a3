"""The proof of a tree: valid only for the process that makes it."""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from leconvert.dataset.files import dataset_with_meta, names_to_keep
from leconvert.dataset.scan import FileFacts, check_source_unchanged, meta_digest, source_changed
from leconvert.run.conversion import ProofOptions
from leconvert.run.proof import reason_to_keep, verify_pair
from leconvert.support.errors import (
    REPORT_IT,
    LeconvertError,
    SourceChangedError,
    UnreadableSourceError,
    VerificationError,
)
from leconvert.support.file_calls import devices_with_fleeting_inodes
from leconvert.support.progress import Progress
from leconvert.support.storage_errors import raise_storage_trouble, storage_errors
from leconvert.support.text import first_few, json_record, shown
from leconvert.workdir.former import TreeFacts
from leconvert.workdir.fs import remove_tree, sync_dir
from leconvert.workdir.locks import LockWait
from leconvert.workdir.records import Journal
from leconvert.workdir.run import OpenedRun
from leconvert.workdir.swap import (
    codebase_version,
    old_dir,
    overlaid_meta,
    removed_dir,
    removed_old_dir,
)

_DIFFERENCES_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Packing:
    """A run whose packer's lock this process holds.

    Attributes:
        run: The run.
        journal: Its journal, under this packer's generation.
        options: The depth of the proof, and the datasets to replace and remove.
        lock_wait: How to wait for the target's lock.
        stop: Set from outside to end the work.
        progress: Receives the progress.
    """

    run: OpenedRun
    journal: Journal
    options: ProofOptions
    lock_wait: LockWait
    stop: threading.Event
    progress: Progress


@dataclass(frozen=True, slots=True)
class PackReport:
    """The report of the packer.

    Attributes:
        target: The result.
        kept: The folder of the replaced dataset, or None.
        linked: Number of files that were linked into the tree.
        copied: Number of shards that had to be copied, because the work dir is on another file
            system or on one without hard links.
        joined: Number of files that were joined from parts.
        cloned_bytes: Coded video bytes that the workers shared with the source.
        copied_bytes: Coded video bytes that the workers copied.
        verified: The depth of the check.
        removed: The replaced source, if it was removed on request.
        kept_because: The reason why it was kept although its removal was requested.
        verified_because: Why less was compared than requested; else None.
    """

    target: Path
    kept: Path | None
    linked: int
    copied: int
    joined: int
    cloned_bytes: int
    copied_bytes: int
    verified: str
    removed: Path | None = None
    kept_because: str | None = None
    verified_because: str | None = None

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-serialisable mapping."""
        return json_record(self)


def as_dataset(run: OpenedRun, tree: Path) -> AbstractContextManager[Path]:
    """Enter the swapped tree as a dataset; after an overlay in place, it is only ``meta/``."""
    if run.manifest.is_overlay_in_place:
        return dataset_with_meta(Path(run.manifest.target), tree)
    return nullcontext(tree)


@dataclass(frozen=True, slots=True)
class Proof:
    """A comparison by this process.

    Attributes:
        depth: ``structure``, ``bytes``, or ``none`` for no comparison.
        outcome: Its outcome, for the journal's notes, where reports read it; None for ``none``. No
            process relies on these notes.
        trees: The tree and the source that it replaces, as they were when the comparison of their
            bytes began; None if bytes were not compared.
        because: Why less was compared than requested; else None.
    """

    depth: str = "none"
    outcome: dict[str, Any] | None = None
    trees: TreePair | None = None
    because: str | None = None


def prove_tree(
    packing: Packing,
    tree: Path,
    place: Path | None,
    depth: str,
    clip_digests: Mapping[str, npt.NDArray[np.bytes_]] | None = None,
) -> Proof:
    """Compare a finished tree with the run's sources.

    Args:
        packing: The run.
        tree: The tree; for an overlay in place, its ``meta/``.
        place: The folder of the only source now, if it is not the planned one; for an overlay in
            place, its ``meta/``.
        depth: ``structure`` or ``bytes``.
        clip_digests: Digests of its clips by the workers of this run; None to read the clips.

    Raises:
        VerificationError: They differ.
    """
    run, journal = packing.run, packing.journal
    roots = [place or Path(source.root) for source in run.manifest.sources]
    if place is None and run.manifest.is_overlay_in_place:
        roots = [run.manifest.exchanged]
    started = time.monotonic()
    deletable = depth == "bytes" and run.manifest.in_place
    trees = TreePair.now(tree, roots[0]) if deletable else None
    with ExitStack() as opened:
        report = verify_pair(
            opened.enter_context(as_dataset(run, tree)),
            [opened.enter_context(as_dataset(run, root)) for root in roots],
            depth=depth,
            progress=packing.progress,
            clip_digests=clip_digests,
            read_rows=run.manifest.kept_episodes,
            keeps_further=bool(run.manifest.kept_episodes),
            repairs=[source.repairs for source in run.manifest.sources],
            stop=packing.stop,
        )
    outcome: dict[str, Any] = {
        "depth": report.depth,
        "ok": report.ok,
        "files": report.files,
        "episodes": report.episodes,
        "rows": report.rows,
        "video_frames": report.video_frames,
        "seconds": round(time.monotonic() - started, 3),
        "differences": len(report.differences),
    }
    if not report.ok:
        lines = first_few(report.differences, _DIFFERENCES_SHOWN)
        with suppress(OSError, LeconvertError):  # the differences are raised in any case
            state = journal.read()
            noted = {**state.notes, "verification": {**outcome, "shown": lines}}
            journal.write(state.step, notes=noted)
        raise _differs(run, tree, roots, lines)
    return Proof(depth, outcome, trees)


def _differs(
    run: OpenedRun, tree: Path, roots: Sequence[Path], details: list[str]
) -> VerificationError:
    target = run.manifest.exchanged
    source = ", ".join(map(str, roots))
    given = [word for root in roots for word in ("--source", str(root))]
    verify = shlex.join(["leconvert", "verify", str(tree), *given, "--bytes"])
    if tree != target:
        return VerificationError(
            f"The new dataset does not match its source {source}. Nothing was replaced.",
            path=str(tree),
            details=details,
            next_step="The new dataset stays for inspection"
            + ("" if run.manifest.is_overlay_in_place else f": {verify}")
            + ". If a file of the source was overwritten during the conversion by a tool that "
            "keeps file times (`cp -p`, `rsync -t`), run the command again with --restart. "
            f"Otherwise: {REPORT_IT}.",
        )
    return does_not_match(target, roots, details, in_place=run.manifest.in_place)


def does_not_match(
    target: Path, sources: Sequence[Path], differences: Sequence[str], *, in_place: bool
) -> VerificationError:
    """Return the error for a result in its place that differs from its sources.

    Args:
        target: The result; for an overlay in place, its ``meta/``.
        sources: Their current folders.
        differences: The first differences.
        in_place: Whether the result replaced its only source, which is kept beside it.
    """
    # An overlay exchanged only `meta/`; only the whole dataset can be compared.
    result = target.parent if overlaid_meta(target.parent) == sources[0] else target
    named = [word for source in sources for word in ("--source", str(source))]
    verify = shlex.join(["leconvert", "verify", str(result), *named, "--bytes"])
    if in_place:
        moved, source = shlex.quote(f"{target}_damaged"), shlex.quote(str(sources[0]))
        helps = (
            f"`mv {shlex.quote(str(target))} {moved} && mv {source} {shlex.quote(str(target))}` "
            "puts the source back; then convert again."
        )
    else:
        helps = "--force-conversion converts again and keeps the present result beside the new one."
    return VerificationError(
        f"{target} no longer matches its source {', '.join(map(str, sources))}: one of them was "
        "changed after the conversion. Nothing was changed or removed now.",
        path=str(target),
        details=differences,
        next_step=f"{helps} `{verify}` lists every difference.",
    )


def facts_of_tree(tree: Path, *, gets_links: bool = False) -> dict[str, FileFacts]:
    """Return the facts of every name that would be lost with a dataset's folder or ``meta/``.

    Args:
        tree: The folder.
        gets_links: Ignore the times of the last change, because this process gives the files
            further names before it looks again.
    """
    fleeting = devices_with_fleeting_inodes()
    found: dict[str, FileFacts] = {}
    try:
        for name in names_to_keep(tree):
            path = f"{tree}/{name}"
            try:
                facts = FileFacts.of(path, fleeting)
            except OSError as error:
                raise_storage_trouble(error, path)
                facts = FileFacts(0, 0, 0)  # no regular file: the comparison reports it
            found[name] = replace(facts, ctime_ns=0) if gets_links else facts
    except UnreadableSourceError as error:
        # A failing disk that cannot list a folder must not make it look empty.
        raise_storage_trouble(error, tree)
        raise
    return found


@dataclass(frozen=True, slots=True)
class TreePair:
    """A result and its source as they are when their comparison begins.

    A process that deletes one of them, or moves both, must find the same facts again after the
    comparison. The time of a file's last change is one of these facts. Nobody can set it, so a file
    that was overwritten and got its times back is noticed. Meanwhile, this process may rename the
    folders, but must not add or remove names of files.

    Two changes are not noticed: one that follows another within a tick of the file system's clock
    (1 to 10 ms before Linux 6.13), and one through an open file between the last look and the
    removal.
    """

    result: Mapping[str, FileFacts]
    source: Mapping[str, FileFacts]

    @classmethod
    def now(cls, result: Path, source: Path) -> TreePair:
        """Read the facts of two trees at their current places."""
        return cls(facts_of_tree(result), facts_of_tree(source))

    def changed(self, result: Path, source: Path) -> str | None:
        """Return a clause that names the first changed file; None if nothing changed."""
        trees = ("the result's", self.result, result), ("its", self.source, source)
        for whose, before, tree in trees:
            if (name := first_change(before, tree)) is not None:
                return f"{whose} {shown(name)} was changed during the comparison"
        return None


def first_change(before: Mapping[str, FileFacts], tree: Path) -> str | None:
    """Return the first name whose facts differ from an earlier `facts_of_tree`, or None."""
    now = facts_of_tree(tree)
    names = sorted(before.keys() | now.keys())
    return next((name for name in names if before.get(name) != now.get(name)), None)


def check_source_as_compared(proof: Proof, tree: Path, source: Path) -> None:
    """Raise an error if the source of a result has changed since their comparison began.

    Args:
        proof: The comparison; if it did not cover all bytes, nothing is raised.
        tree: The current folder of the source.
        source: The folder where users find it, for the message.

    Raises:
        SourceChangedError: The source has changed.
    """
    name = None if proof.trees is None else first_change(proof.trees.source, tree)
    if name is not None:
        raise source_changed(source, [f"{shown(name)}: changed after the comparison"])


def tree_facts(tree: Path) -> TreeFacts:
    """Return the facts that distinguish a dataset that is put aside from any other."""
    return TreeFacts.of(tree, meta_digest(tree, codebase_version(tree) or ""))


def kept_source(target: Path) -> Path | None:
    """Return the folder of the source that was replaced at a target; None if there is none."""
    # A source whose removal was interrupted has a name of leconvert's own.
    places = (old_dir(target), removed_old_dir(target))
    return next((place for place in places if place.is_dir()), None)


def rest_of_removal(doomed: Path) -> str:
    """Return why the rest of an interrupted removal is kept, and where."""
    return (
        f"its removal was interrupted; the remaining part {doomed} cannot be compared and stays, "
        "and no program reads it"
    )


def remove_compared(
    result: Path, old: Path, compared: TreePair, *, kept: Path | None = None
) -> str | None:
    """Remove a replaced dataset that this process has just compared with the result.

    Its facts are checked after it has got a name of leconvert's own, under which no other program
    looks for it.

    Args:
        result: The result.
        old: The folder of the replaced dataset.
        compared: Both, as they were when their comparison began.
        kept: Its current folder, if its removal had begun; None for ``old``.

    Returns:
        The reason why it was kept, under its old name again; None if it is gone.
    """
    kept, doomed = kept or old, removed_dir(old)
    if kept != doomed:
        with storage_errors(kept):
            if doomed.exists():
                return f"{doomed}, the rest of an earlier removal, is in the way: move it elsewhere"
            kept.rename(doomed)
            sync_dir(doomed.parent)
    reason = compared.changed(result, doomed)
    if reason is None:
        remove_tree(doomed)
    elif not old.exists():
        with storage_errors(doomed):
            doomed.rename(old)
            sync_dir(doomed.parent)
    return reason


def remove_source(packing: Packing, report: PackReport, proof: Proof) -> PackReport:
    """Remove the kept source of a finished conversion, unless something would be lost with it.

    The new dataset is already in place. This process has compared the source with the plan and the
    result with the source, byte by byte, and both are unchanged since then. The old tree first gets
    a name of leconvert's own, under which no other program looks for it, and is checked once more.
    After a crash before that, it is still where it was kept. After a later crash, the next process
    compares the rest again, and keeps what it cannot compare.

    Returns:
        The report, with the source kept or removed.

    Raises:
        SourceChangedError: The source has changed since it was planned or compared.
    """
    run = packing.run
    target = run.manifest.exchanged
    kept, doomed = kept_source(target), removed_old_dir(target)
    if kept is None:
        return replace(report, kept=None, removed=report.kept)
    try:
        check_source_unchanged(run, kept)
        check_source_as_compared(proof, kept, kept)
    except SourceChangedError:
        if kept != doomed:
            raise
        return replace(report, kept=kept, kept_because=rest_of_removal(doomed))
    trees = proof.trees
    if trees is None or first_change(trees.result, target) is not None:
        trees = prove_tree(packing, target, kept, "bytes").trees
    assert trees is not None, "a proof by bytes, in place"
    reason = _reason_to_keep(run, target, kept) or remove_compared(
        target, old_dir(target), trees, kept=kept
    )
    if reason is not None:
        return replace(report, kept=kept_source(target), kept_because=reason)
    return replace(report, kept=None, removed=old_dir(target))


def _reason_to_keep(run: OpenedRun, target: Path, kept: Path) -> str | None:
    with as_dataset(run, target) as result, as_dataset(run, kept) as source:
        return reason_to_keep(result, source, run.manifest.sources[0].repairs)
