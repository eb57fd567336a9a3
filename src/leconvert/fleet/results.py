"""The record of a fleet's result, and the resources that workers of one host share.

**The record.** After a dataset is converted, and pushed if that was asked for, a record in its work
dir holds the state of the source before it was read, the options, the state of the result after it
was put in place, and the pushed commit. When the fleet runs again, it skips a dataset for which all
of these are the same. A state is a digest of the path, size and modification time of each file. It
costs a ``stat`` a file and opens none. On the Hub the state is a commit; of a folder of a repo, the
folder's files at that commit.

**What the record decides.** Nothing is deleted because of the record. If the source has another
state, and the result is still as the fleet made it, the dataset is converted again as with
``--force-conversion``: the new result takes the place once it is proven, and the former one is
kept. If somebody else changed the result, or the record is missing, the ordinary conversion decides
by comparing source and result.

**Scratch.** A source on the Hub is downloaded to a folder of the host. The work dir of its
conversion is there too, and its result, if that goes to the Hub only. All workers of a host share
one limit. The folder is removed after the conversion and the push; the push has then compared the
commit with the result, file by file. If the source's files stay on the Hub, the folder holds only
the sparse snapshot, and the files that `RepairOptions.fetch_unfit` lets be downloaded and
rewritten. Room for these is reserved once a plan has computed their size.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from leconvert.dataset.files import files_below
from leconvert.fleet.lists import FleetDataset, Policy, conversion_record
from leconvert.remote.provenance import Origin, facts_of, known_origin
from leconvert.remote.push import PushReport, push, push_stands
from leconvert.remote.source import (
    check_convertible,
    download_dataset,
    fetch_sparse,
    find_converted,
    has_same_files,
    read_info,
    resolve_revision,
    under_way,
)
from leconvert.remote.sparse_snapshot import copies_bytes
from leconvert.run.planner import MovedBytes
from leconvert.support.errors import LeconvertError, SourceError
from leconvert.support.values import dataclass
from leconvert.transfer.client import Pace, wait_for_hub
from leconvert.transfer.names import HubName
from leconvert.transfer.options import PushOptions, ScratchOptions
from leconvert.transfer.scratch import folder_of, hold_folder, usual_limit
from leconvert.transfer.store import RemoteFile, files_of, read_all
from leconvert.workdir.fs import make_durably, write_durably
from leconvert.workdir.records import WorkDir, encode_record, find_record

# The record of a dataset's result.


_KIND = "fleet-result"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Made:
    """A dataset's result, as the fleet made it."""

    source: str  # the dataset
    source_state: str  # its state before it was read: a digest, or a commit
    options: Mapping[str, Any]  # how it was converted: `asked_of`
    target: str | None  # path of the result; None if the result is on the Hub only
    target_state: str = ""  # the digest of the result; empty if it is on the Hub only
    pushed: Mapping[str, str] | None = None  # repo and commit; None if nothing was pushed
    # The fields of the dataset's ``done`` record.
    fields: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        dataset: FleetDataset,
        state: SourceState,
        asked: Mapping[str, Any],
        pushed: PushReport | None,
        fields: Mapping[str, Any],
    ) -> Made:
        """Return the record of a dataset that was just converted."""
        target = dataset.target
        return cls(
            source=str(dataset.source),
            source_state=state.digest,
            options=asked,
            target=None if target is None else str(target),
            target_state="" if target is None else facts_of(target),
            pushed=None
            if pushed is None or pushed.commit is None
            else {"repo_id": pushed.repo_id, "commit": pushed.commit},
            fields=fields,
        )

    def proves(self, depth: str) -> bool:
        """Return whether the comparison then was at least as deep as the one asked for now."""
        return depth != "bytes" or self.fields.get("verified") == depth

    def target_is_as_made(self, dataset: FleetDataset) -> bool:
        """Return whether the result is still at its path and unchanged."""
        if dataset.target is None or self.target != str(dataset.target):
            return dataset.target is None
        return dataset.target.is_dir() and facts_of(dataset.target) == self.target_state

    def push_is_as_made(self, dataset: FleetDataset) -> bool:
        """Return whether the push is still as it was made; asks the Hub once."""
        if dataset.push is None:
            return True
        if self.pushed is None or self.pushed["repo_id"] != dataset.push.repo_id:
            return False
        return push_stands(self.pushed["repo_id"], self.pushed["commit"])


def asked_of(dataset: FleetDataset, policy: Policy) -> dict[str, Any]:
    """Return the options that decide a result, in a form that a record returns unchanged."""
    options = conversion_record(dataset.options)
    proof = options.pop("proof", {})
    return {
        **options,
        "repairs": list(policy.always(dataset).flags()),
        "policy": [
            {name: list(value) for name, value in rule.items()} for rule in policy.as_record()
        ],
        "verify": proof.get("verify"),
    }


def by_record(
    made: Made | None, dataset: FleetDataset, state: SourceState, asked: Mapping[str, Any]
) -> tuple[Mapping[str, Any] | None, bool]:
    """Decide by the record of a dataset, as far as it holds.

    The record is compared with names, sizes and times only. Its proof counts as long as none of
    these changed, and only at its own depth.

    Returns:
        The fields of its ``done`` record if nothing changed since, else None; and whether the
        source changed while the result is as it was made.
    """
    if made is None or made.source != str(dataset.source) or made.options != asked:
        return None, False
    is_as_made = made.target_is_as_made(dataset)
    after = made.pushed["commit"] if made.pushed is not None else None
    if not (state.is_still(made.source_state) or state.is_still(after)):
        return None, is_as_made
    proven = made.proves(dataset.options.proof.depth)
    if is_as_made and proven and made.push_is_as_made(dataset):
        return {**made.fields, "was_finished": True}, False
    return None, False


def replacing(dataset: FleetDataset) -> FleetDataset:
    """Return a dataset whose result is replaced, unless its episodes are appended to it."""
    if dataset.options.layout.append:
        return dataset
    proof = replace(dataset.options.proof, force_conversion=True)
    return replace(dataset, options=replace(dataset.options, proof=proof))


def read_made(folder: WorkDir) -> Made | None:
    """Return the record of a dataset; None if there is none or it cannot be read."""
    try:
        record = find_record(folder.fleet_result, _KIND, version=_VERSION)
        if record is None:
            return None
        return Made(**{name: record[name] for name in Made.__dataclass_fields__})
    except (LeconvertError, KeyError):
        return None  # source and result are compared instead


def write_made(folder: WorkDir, made: Made) -> None:
    """Write or replace the record."""
    make_durably(folder.root)
    write_durably(folder.fleet_result, encode_record(_KIND, _VERSION, "-", asdict(made)))


# The state of a source, and its files on this host.


@dataclass(frozen=True, slots=True)
class SourceState:
    """The current state of a source."""

    digest: str  # a digest of names, sizes and times, or the commit; empty if the folder is missing
    resolved: Origin | None = None  # the resolved revision of a source on the Hub; else None
    # The commit on the Hub that already has it in v3.x; None if there is none.
    converted: str | None = None

    def is_still(self, digest: str | None) -> bool:
        """Return whether the source was in this state when it had that digest."""
        if self.digest == digest:
            return True
        now = self.resolved
        return (
            now is not None
            and digest is not None
            and has_same_files(now.repo_id, digest, now.commit)
        )


def source_state(dataset: FleetDataset) -> SourceState:
    """Look at a source, with a ``stat`` a file or with two requests."""
    source = dataset.source
    if isinstance(source, Path):
        return SourceState(facts_of(source) if source.is_dir() else "")
    to = dataset.options.layout.to
    found = resolve_revision(source.repo_id, source.revision, to=to)
    converted = None
    if not source.revision and to == "v3.0":
        done = find_converted(source.repo_id, source=found)
        converted = done.commit if done is not None else None
    return SourceState(found.commit, found, converted)


# Folder of a downloaded source in the scratch folder of its dataset.
_SOURCE = "source"
_MORE_THAN_THE_BYTES = 8 * 1024**2
_SMALL_SHARE = 20
# At most this many bytes of files that are fetched to be decoded or rewritten are on this host at a
# time, or the largest file.
_WINDOW_BYTES = 256 * 1024**2


@dataclass(frozen=True, slots=True)
class AtHand:
    """A dataset whose source and result are folders of this host."""

    dataset: FleetDataset  # the dataset, with these folders
    origin: Origin | None = None  # its origin on the Hub; None for a local dataset
    # Folder for files of a migrating dataset that are fetched one by one; None if no room is
    # reserved for them.
    scratch: ScratchOptions | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Host:
    """Resources that workers of a fleet share in one process, and through files on one host."""

    work_dir: WorkDir  # the fleet's work dir
    scratch: ScratchOptions  # folder for downloaded sources, and its limit
    owner: str  # the fleet's folder in it
    pace: Pace  # limits how fast the Hub may be asked
    stop: threading.Event  # set to stop

    @classmethod
    def of(cls, work_dir: WorkDir, scratch: ScratchOptions, stop: threading.Event) -> Host:
        """Return this host's resources; scratch gets four fifths of the free space by default."""
        digest = hashlib.sha256(str(work_dir.root).encode(errors="surrogateescape")).hexdigest()
        owner = f"fleet-{digest[:16]}"
        if scratch.limit_bytes is None:
            scratch = replace(scratch, limit_bytes=max(1, usual_limit(scratch, owner)))
        return cls(work_dir, scratch, owner, Pace(work_dir.hub_pause, stop), stop)

    def folder(self, dataset: FleetDataset) -> WorkDir:
        """Return the work dir of a dataset's conversion on this host."""
        if not dataset.needs_scratch:
            return self.work_dir.dataset(dataset.name)
        return WorkDir(folder_of(self.scratch, self.owner, dataset.name) / "work")

    def state_before_push(self, dataset: FleetDataset, state: SourceState) -> SourceState:
        """Return the state that this host converted before, if ``main`` has its result since.

        A push commits first, then it sets the tag by which the replaced dataset is found. A worker
        that is killed in between leaves neither tag. The push of the same result completes this.
        """
        now = state.resolved
        if now is None:
            return state
        source = dataset.source
        assert isinstance(source, HubName)
        before: Origin | None
        if dataset.migrates:
            planned = under_way(self.folder(dataset).root, source.repo_id, source.revision)
            before = None if planned is None else planned.origin
        else:
            before = known_origin(folder_of(self.scratch, self.owner, dataset.name) / _SOURCE)
        if before is None or (before.repo_id, before.revision) != (source.repo_id, now.revision):
            return state
        version = dataset.options.layout.to
        if before.commit == now.commit or read_info(now.store()).get("codebase_version") != version:
            return state
        return replace(state, digest=before.commit, resolved=before)

    @contextmanager
    def at_hand(
        self,
        dataset: FleetDataset,
        state: SourceState,
        *,
        fetches: MovedBytes | None = None,
        pause: Callable[[float], object],
    ) -> Iterator[AtHand]:
        """Provide a dataset whose source and result are folders of this host.

        The dataset's folder in scratch is removed if the block ends without an error. ``fetches``
        are bytes of a migrating dataset that are fetched and rewritten; ``pause`` waits between two
        looks for room.
        """
        if not dataset.needs_scratch:
            yield AtHand(dataset)
            return
        window = 0
        if state.resolved is None:
            assert isinstance(dataset.source, Path)
            listed = None
            files = (path for path, is_file in files_below(dataset.source) if is_file)
            sizes = ((dataset.source / path).stat().st_size for path in files)
            charged = sum(RemoteFile("", size).charge_bytes for size in sizes)
            room = charged
        else:
            store = state.resolved.store(should_stop=self.stop.is_set)
            also_v3 = dataset.options.layout.to == "v2.1"
            check_convertible(state.resolved, store, also_v3=also_v3)
            listed = read_all(store.list_files())
            charged = sum(file.charge_bytes for file in files_of(listed))
            room = 2 * charged
            if dataset.migrates:
                charged = room = copies_bytes(files_of(listed))
            if fetches is not None:
                largest = max(file.charge_bytes for file in files_of(listed))
                window = max(largest, min(fetches.to_fetch, _WINDOW_BYTES))
                room += window + fetches.to_send
        room += charged // _SMALL_SHARE + _MORE_THAN_THE_BYTES
        with hold_folder(
            self.scratch,
            self.owner,
            dataset.name,
            room,
            should_stop=self.stop.is_set,
            pause=pause,
        ) as folder:
            here, origin = dataset, None
            if dataset.migrates:
                assert state.resolved is not None
                hand = snapshot_at(
                    dataset, state.resolved, self.folder(dataset), folder, window, stop=self.stop
                )
                yield hand
                return
            if state.resolved is not None:
                source, origin = folder / _SOURCE, state.resolved
                download_dataset(
                    state.resolved, source, listed=listed, replaces=True, stop=self.stop
                )
                here = replace(here, source=source)
            if here.target is None:
                here = replace(here, target=folder / "result")
            yield AtHand(here, origin)

    def push(self, result: Path, dataset: FleetDataset, made: Made | None) -> PushReport:
        """Push a result and compare the commit with it; replaces an earlier push of the fleet."""
        return push(result, push_options(dataset, made), pause=partial(wait_for_hub, self.stop))


def snapshot_at(
    dataset: FleetDataset,
    resolved: Origin,
    work_dir: WorkDir,
    folder: Path,
    window: int = 0,
    *,
    stop: threading.Event,
) -> AtHand:
    """Provide a dataset whose files stay on the Hub, as a snapshot in its work dir.

    Files that have to be fetched go to ``folder``, at most ``window`` bytes at a time; 0 fetches
    none.
    """
    source = dataset.source
    assert isinstance(source, HubName)
    found = fetch_sparse(
        source.repo_id,
        source.revision,
        work_dir.root,
        for_copies=True,
        found=resolved,
        stop=stop,
    )
    # Otherwise the repo has moved to another commit.
    discard = work_dir.current_run_id() if found.replaces_run else dataset.discard
    here = replace(
        dataset, source=found.source, target=WorkDir.migrated(found.source), discard=discard
    )
    scratch = ScratchOptions(folder / "fetched", window) if window else None
    return AtHand(here, found.arrival, scratch)


def push_options(dataset: FleetDataset, made: Made | None) -> PushOptions:
    """Return how a result is pushed; an earlier push of the fleet may be replaced."""
    assert dataset.push is not None
    earlier = None if made is None else made.pushed
    if earlier is not None and earlier["repo_id"] == dataset.push.repo_id:
        return replace(dataset.push, replaces=earlier["commit"])
    return dataset.push


def already_on_hub(dataset: FleetDataset) -> SourceError:
    """Return the error for a source that the Hub already has in v3.x."""
    assert isinstance(dataset.source, HubName)
    return SourceError(
        f"{dataset.source.repo_id} is already v3.x on the Hub.",
        path=str(dataset.source),
        next_step="To convert its v2.x revision in spite of this, write "
        f"{dataset.source.repo_id}@{'COMMIT' if dataset.source.folder else 'v2.1'} in the list, "
        "or write --force-conversion after the dataset.",
    )
