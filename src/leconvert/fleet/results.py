"""What a fleet made of a dataset, and of which state of it; and what one host shares meanwhile.

**The record.** When a dataset is converted, and pushed where that is wanted, a record in its work
dir says so: the state that the source had before it was read, the options, the state of the result
after it was put in place, and the commit that was pushed. When the fleet runs again, a dataset is
passed over where all of them are the same. A state is a digest of the path, size and modification
time of each file, which costs a ``stat`` a file and opens none; on the Hub it is a commit.

**What it decides, and what not.** Nothing is deleted because of the record. Where the source has
another state, and the result is still what the fleet made, the dataset is converted anew as with
``--force-conversion``: the new result takes the place once it is proven, and the former is kept.
Where the result was changed by somebody else, or the record is missing, the ordinary conversion
decides by comparing source and result.

**Scratch.** A source on the Hub is fetched to a folder of the host, in which its conversion's work
dir lies too, and its result, if that goes to the Hub alone. All workers of a host share a limit.
The folder is removed after the conversion, and after the push, which has then compared the commit
with the result, file by file.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from leconvert.dataset_files import files_below
from leconvert.errors import InterruptedRunError, LeconvertError, SourceError
from leconvert.fleet.lists import FleetDataset, HubName
from leconvert.hub.fetch import Fetcher, RemoteFile, download_dataset, files_of, read_all
from leconvert.hub.pace import Pace
from leconvert.hub.provenance import HubOrigin, facts_of
from leconvert.hub.push import PushReport, push, push_stands
from leconvert.hub.scratch import ScratchOptions, folder_of, hold_folder, usual_limit
from leconvert.hub.source import Resolved, check_convertible, find_converted, resolve_revision
from leconvert.workdir.fs import make_durably, write_durably
from leconvert.workdir.records import WorkDir, encode_record, find_record

__all__ = ["Host", "Made", "SourceState", "read_made", "write_made"]


# ------------------------------------------------------------------------------------------------
# What was made of a dataset.


_KIND = "fleet-result"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Made:
    """What a fleet made of a dataset.

    Attributes:
        source: The dataset.
        source_state: Its state before it was read: a digest, or a commit.
        options: How it was converted: `asked_of`.
        target: Where its result is; None where that is on the Hub alone.
        target_state: The digest of the result; empty without one here.
        pushed: Repo and commit; None where nothing was pushed.
        fields: What the dataset's ``done`` record said.
    """

    source: str
    source_state: str
    options: Mapping[str, Any]
    target: str | None
    target_state: str = ""
    pushed: Mapping[str, str] | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)

    def target_is_as_made(self, dataset: FleetDataset) -> bool:
        """Tell whether the result is where it was left, and as it was left."""
        if dataset.target is None or self.target != str(dataset.target):
            return dataset.target is None
        return dataset.target.is_dir() and facts_of(dataset.target) == self.target_state

    def push_is_as_made(self, dataset: FleetDataset) -> bool:
        """Tell whether what was pushed is where it was pushed; asks the Hub once."""
        if dataset.push is None:
            return True
        if self.pushed is None or self.pushed["repo_id"] != dataset.push.repo_id:
            return False
        return push_stands(self.pushed["repo_id"], self.pushed["commit"])


def asked_of(
    dataset: FleetDataset, flags: Sequence[str], policy: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return what decides a result, in a form that a record gives back unchanged."""
    options = dataset.options.as_record()
    proof = options.pop("proof", {})
    return {
        **options,
        "repairs": list(flags),
        "policy": [{name: list(value) for name, value in rule.items()} for rule in policy],
        "verify": proof.get("verify"),
    }


def read_made(folder: WorkDir) -> Made | None:
    """Return the record of a dataset; None where there is none that can be read."""
    try:
        record = find_record(folder.fleet_result, _KIND, version=_VERSION)
        if record is None:
            return None
        return Made(**{name: record[name] for name in Made.__dataclass_fields__})
    except (LeconvertError, KeyError):
        return None  # what is there is then compared instead


def write_made(folder: WorkDir, made: Made) -> None:
    """Write or replace the record."""
    make_durably(folder.root)
    write_durably(folder.fleet_result, encode_record(_KIND, _VERSION, "-", asdict(made)))


# ------------------------------------------------------------------------------------------------
# The state of a source, and what is there of it on this host.


@dataclass(frozen=True, slots=True)
class SourceState:
    """A source as it is now.

    Attributes:
        digest: A digest of names, sizes and times, or the commit; empty for no such folder.
        resolved: The commit of one on the Hub; else None.
        converted: The commit that the Hub has of it in v3.x already; None for none.
    """

    digest: str
    resolved: Resolved | None = None
    converted: str | None = None


def source_state(dataset: FleetDataset) -> SourceState:
    """Look at a source, by a ``stat`` a file or by two requests.

    Raises:
        HubError: There is no such repo or revision, or no answer.
        HubAccessError: The token does not allow it.
    """
    source = dataset.source
    if isinstance(source, Path):
        return SourceState(facts_of(source) if source.is_dir() else "")
    to = dataset.options.layout.to
    found = resolve_revision(source.repo_id, source.revision or None, to=to)
    converted = None
    if not source.revision and to == "v3.0":
        done = find_converted(source.repo_id)
        converted = done.repo.commit if done is not None else None
    return SourceState(found.repo.commit, found, converted)


_MORE_THAN_THE_BYTES = 8 * 1024**2
_SMALL_SHARE = 20


@dataclass(frozen=True, slots=True, eq=False)
class Host:
    """What the workers of a fleet share in one process, and through files on one host.

    Attributes:
        work_dir: The fleet's work dir.
        scratch: Where sources are fetched to, and how much may lie there.
        owner: The fleet's folder in it.
        pace: How fast the Hub may be asked.
        stop: Set to stop.
    """

    work_dir: WorkDir
    scratch: ScratchOptions
    owner: str
    pace: Pace
    stop: threading.Event

    @classmethod
    def of(cls, work_dir: WorkDir, scratch: ScratchOptions, stop: threading.Event) -> Host:
        """Return this host's; without a limit it is four fifths of what is free."""
        digest = hashlib.sha256(str(work_dir.root).encode(errors="surrogateescape")).hexdigest()
        owner = f"fleet-{digest[:16]}"
        if scratch.limit_bytes is None:
            scratch = replace(scratch, limit_bytes=max(1, usual_limit(scratch, owner)))
        return cls(work_dir, scratch, owner, Pace(work_dir.hub_pause, stop), stop)

    def folder(self, dataset: FleetDataset) -> WorkDir:
        """Return the work dir of a dataset's conversion, as this host sees it."""
        if not dataset.needs_scratch:
            return self.work_dir.dataset(dataset.name)
        return WorkDir(folder_of(self.scratch, self.owner, dataset.name) / "work")

    @contextmanager
    def at_hand(
        self, dataset: FleetDataset, state: SourceState, *, pause: Callable[[float], object]
    ) -> Iterator[tuple[FleetDataset, HubOrigin | None]]:
        """Provide a dataset whose source and result are folders of this host.

        What is in scratch is removed where the block ends without an error.
        """
        if not dataset.needs_scratch:
            yield dataset, None
            return
        if state.resolved is None:
            assert isinstance(dataset.source, Path)
            listed = None
            sizes = [(dataset.source / path).stat().st_size for path in _files(dataset.source)]
            charged = sum(RemoteFile("", size).charge_bytes for size in sizes)
            room = charged
        else:
            repo = state.resolved.repo
            check_convertible(
                state.resolved,
                Fetcher(repo, should_stop=self.stop.is_set),
                also_v3=dataset.options.layout.to == "v2.1",
            )
            listed = read_all(repo.list_files())
            charged = sum(file.charge_bytes for file in files_of(listed))
            room = 2 * charged
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
            if state.resolved is not None:
                found, source = state.resolved, folder / "source"
                origin = HubOrigin(
                    download_dataset(
                        found.repo,
                        found.revision,
                        source,
                        listed=listed,
                        replaces=True,
                        stop=self.stop,
                    )
                )
                here = replace(here, source=source)
            if here.target is None:
                here = replace(here, target=folder / "result")
            yield here, origin

    def push(self, result: Path, dataset: FleetDataset, made: Made | None) -> PushReport:
        """Push a result, over one that the fleet pushed earlier too; compares the commit with it.

        Raises:
            LeconvertError: As `leconvert.hub.push.push` does.
        """
        assert dataset.push is not None
        earlier = None if made is None or made.pushed is None else made.pushed
        if earlier is not None and earlier["repo_id"] == dataset.push.repo_id:
            options = replace(dataset.push, replaces=earlier["commit"])
        else:
            options = dataset.push
        return push(result, options, pause=self._pause)

    def _pause(self, seconds: float) -> None:
        if self.stop.wait(seconds):
            raise InterruptedRunError(
                "Stopped while the Hub asked to wait.",
                next_step="Run the same command again to go on.",
            )


def _files(folder: Path) -> list[str]:
    return [path for path, is_file in files_below(folder) if is_file]


def already_on_hub(dataset: FleetDataset) -> SourceError:
    """Return the error for a source that the Hub has in v3.x already."""
    assert isinstance(dataset.source, HubName)
    return SourceError(
        f"{dataset.source.repo_id} is on the Hub in v3.x already.",
        path=str(dataset.source),
        next_step=f"To convert its v2.x revision all the same, name it: "
        f"{dataset.source.repo_id}@v2.1, or write --force-conversion behind it.",
    )
