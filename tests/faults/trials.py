"""One command with one fault, then the same command without: what becomes of it.

The command converts, merges, splits, trims, repairs or takes back what it did. A quiet run tells
which operations there are. Each trial runs the command on the same datasets in a folder of its own,
in a forked process, so that a death is one: no ``finally`` runs, locks and descriptors go with the
process. Then it looks at what is left, runs the command again without a fault, and looks again.

These processes look at nothing below ``/proc``: the kernel would keep entries for each of thousands
and clear them away one by one, which some versions do for ever while others walk that folder. What
they would read there is handed down to them instead.
"""

from __future__ import annotations

import errno
import gc
import itertools
import json
import os
import pickle
import select
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
from tests.drift import drift_in_place
from tests.faults.power import Loss, PowerModel
from tests.faults.watched_disk import Fault, FaultKind, Operation, WatchedDisk
from tests.flat_options import as_objects
from tests.trees import digest_of, snapshot

from leconvert import api
from leconvert.model.values import LayoutOptions
from leconvert.run import upkeep, worker_pool
from leconvert.run.packer import run as packing
from leconvert.run.repairing import apply as repairing
from leconvert.support import file_calls, parallel
from leconvert.support.errors import LeconvertError
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset
from leconvert.workdir import identity
from leconvert.workdir import identity as host
from leconvert.workdir.fs import FileSystem

__all__ = [
    "CASES", "STAGES", "TREE_RECORD", "Case", "Outcome", "Place", "Quiet", "Row", "command_on",
    "in_a_process", "kill_trial", "make_source", "make_templates", "name_of", "quiet_run",
    "run_each", "run_trials",
]  # fmt: skip

STAGES = ("plan", "work", "pack", "swap", "finish", "clean")
WRITING = frozenset({"StorageError", "OutcomeUnknownError"})
"""What a run may end with after an operation failed that would have changed something."""
LOOKING = frozenset(
    f"{what}Error"
    for what in ("Source", "Findings", "UnreadableSource", "SourceChanged", "Verification")
)
"""What it may end with besides where a file of the source or the new tree cannot be looked at."""
_TRIAL_SECONDS = 60
_MOUNT_TABLE = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
_BOOT = "the boot of the trials"
_births = itertools.count(1)
# On the platform of `tests.plain_platform` these tests alone have it.
_fork: Callable[[], int] = (
    os.fork if hasattr(os, "fork") else vars(sys.modules["sitecustomize"])["fork"]
)
_PARTS = {"b": "1", "a": "0"}
TREE_RECORD = ".leconvert-tree.json"


@dataclass(frozen=True, slots=True)
class Case:
    """One command, and what it meets.

    Attributes:
        name: What it is called.
        in_place: Whether the result takes the source's place.
        episodes_per_batch: 1 makes the packer join files, None makes it link them.
        can_exchange: Whether two names can be exchanged in one step; not over NFS.
        can_link: Whether shards can be linked into the new tree; not from another file system.
        has_links: Whether there are hard links at all; without them one host works alone.
        has_locks: Whether there is ``flock``.
        work_dir: Where the work dir is, if not beside the target; it is kept.
        delete_source: Whether the source is removed once the result took its place.
        forced: Whether the result replaces an earlier one, which is kept.
        keeps_former: Whether that is kept as a former state, as where a fleet converts anew.
        appends: Whether it is that of the source's first episode, to which the other is appended.
        begins_with: The dataset it begins with, one of `make_templates`.
        to: The version of the result.
        command: ``convert``, ``merge``, ``split``, ``trim``, ``repair`` or ``undo``.
        layout: The layout; of an overlay in place ``meta/`` alone is exchanged.
    """

    name: str
    in_place: bool
    episodes_per_batch: int | None = None
    can_exchange: bool = True
    can_link: bool = True
    has_links: bool = True
    has_locks: bool = True
    work_dir: str | None = None
    delete_source: bool = False
    forced: bool = False
    keeps_former: bool = False
    begins_with: str = "template"
    to: str = "v3.0"
    command: str = "convert"
    layout: str = "reference"
    appends: bool = False

    @property
    def replaces(self) -> bool:
        """Whether another result stands at the target before, and is kept."""
        return self.forced or self.appends

    @property
    def has_former(self) -> bool:
        """Whether what is replaced is kept as a former state."""
        return self.keeps_former or self.appends

    @property
    def exchanges_meta(self) -> bool:
        """Whether ``meta/`` alone is exchanged."""
        return self.in_place and self.layout == "overlay"


CASES = {
    case.name: case
    for case in (
        Case("output", in_place=False, episodes_per_batch=1),
        Case("in-place", in_place=True),
        Case("two-renames", in_place=True, can_exchange=False),
        Case("copied", in_place=False, can_link=False),
        Case("one-host", in_place=False, episodes_per_batch=1, has_links=False),
        Case("one-lock", in_place=True, can_exchange=False, has_links=False),
        Case("no-locks", in_place=False, has_locks=False),
        Case("apart", in_place=True, can_exchange=False, work_dir="far/away/work"),
        Case("deleting", in_place=True, delete_source=True),
        Case("forced", in_place=False, forced=True),
        Case("renewed", in_place=False, forced=True, keeps_former=True),
        Case("append", in_place=False, appends=True),
        Case("append-renames", in_place=False, appends=True, can_exchange=False),
        Case("from-v3", in_place=True, episodes_per_batch=1, begins_with="v30"),
        Case("to-v21", in_place=False, begins_with="v30", to="v2.1"),
        Case("back", in_place=True, begins_with="v30", to="v2.1"),
        Case("back-renames", True, can_exchange=False, begins_with="v30", to="v2.1"),
        Case("merge", in_place=False, command="merge"),
        Case("merge-v21", in_place=False, to="v2.1", episodes_per_batch=1, command="merge"),
        Case("split", in_place=False, begins_with="v30", command="split"),
        Case("trim", in_place=True, begins_with="v30", command="trim"),
        Case("repair", in_place=True, begins_with="drifted", command="repair"),
        Case("repair-nfs", True, can_exchange=False, begins_with="drifted", command="repair"),
        Case("repair-out", in_place=False, begins_with="drifted", command="repair"),
        Case("repair-order", in_place=True, begins_with="disordered", command="repair"),
        Case("undo", in_place=True, begins_with="converted", command="undo"),
        Case("undo-back", True, can_exchange=False, begins_with="went-back", command="undo"),
        Case("undo-repair", True, can_exchange=False, begins_with="repaired", command="undo"),
        Case("overlay", in_place=True, layout="overlay"),
        Case("overlay-renames", in_place=True, layout="overlay", can_exchange=False),
        Case("overlay-deleting", in_place=True, layout="overlay", delete_source=True),
    )
}


@dataclass(frozen=True, slots=True)
class Quiet:
    """What a run without faults did.

    Attributes:
        operations: Every operation, in order.
        digest: The digest of the result.
        losses: Before which operations a power failure leaves what it has not left before, and
            which one; the number of operations stands for the end. Empty where nobody looked.
    """

    operations: Sequence[Operation]
    digest: str
    losses: Sequence[tuple[int, Loss]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one conversion ended.

    Attributes:
        how: ``succeeded``, ``died``, ``refused`` (with one of our errors), ``broke`` (with
            another) or ``hung``.
        error: The error's class.
        exit_code: Its exit code.
        said: Its message, or the traceback of what broke.
        advice: What its message says to do next.
        stage: What the program was doing when the fault came.
        operation: The operation that was hit, or nothing.
        changes: Whether it would have changed something.
    """

    how: str
    error: str = ""
    exit_code: int = 0
    said: str = ""
    advice: str = ""
    stage: str = "end"
    operation: str = ""
    changes: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One trial.

    Attributes:
        case: The case's name.
        number: The number of the operation that was hit.
        fault: What went wrong.
        first: How the disturbed run ended.
        again: How the next one ended.
        problems: What is not as promised; empty where all is well.
        afterwards: What else happened between the two, see `tests.faults.afterwards`.
        ended: How the whole ended, after what messages said was done.
    """

    case: str
    number: int
    fault: str
    first: Outcome
    again: Outcome
    problems: tuple[str, ...]
    afterwards: str = ""
    ended: str = ""


def make_source(root: Path, frames: Sequence[int] = (3, 2), seed: int = 0) -> Path:
    """Make the smallest dataset that has everything: two episodes, one camera, one extra file."""
    camera = CameraSpec(key="observation.images.top", width=32, height=32)
    spec = DatasetSpec(
        episodes=len(frames), frames=list(frames), cameras=(camera,), state_dim=1, action_dim=1,
        extra_files={"README.md": "# x\n"}, seed=seed,
    )  # fmt: skip
    return make_dataset(root, spec)


def make_templates(template: Path, cases: Iterable[Case]) -> Path:
    """Make beside a template (`make_source`) the other datasets that cases begin with.

    ``v30`` is its conversion, ``drifted`` that with wrong frame times, ``disordered`` with rows of
    tables that are not where their numbers say, ``earlier`` another
    conversion, ``shorter`` one of its first episode. ``converted``, ``went-back`` and ``repaired``
    hold a result in its source's place, and that.
    """
    folder, cases = template.parent, list(cases)
    needed = {case.begins_with for case in cases}
    if any(case.forced or case.command == "merge" for case in cases):
        source = make_source(folder / "earlier-source", (2,), seed=11)
        api.convert(source, output=folder / "earlier")
    if any(case.appends for case in cases):
        api.convert(make_source(folder / "shorter-source", (3,)), output=folder / "shorter")
    if needed & {"v30", "drifted", "disordered", "repaired", "went-back"}:
        api.convert(template, output=folder / "v30")
        _put_in_disorder(Path(shutil.copytree(folder / "v30", folder / "disordered")))
        drift_in_place(Path(shutil.copytree(folder / "v30", folder / "drifted")))
    if "converted" in needed:
        api.convert(Path(shutil.copytree(template, folder / "converted" / "set")))
    if "went-back" in needed:
        back = LayoutOptions(to="v2.1")
        api.convert(shutil.copytree(folder / "v30", folder / "went-back" / "set"), layout=back)
    if "repaired" in needed:
        api.repair(Path(shutil.copytree(folder / "drifted", folder / "repaired" / "set")))
    return template


def _put_in_disorder(root: Path) -> None:
    """Exchange the rows of two episodes, and give tasks other numbers."""
    (episodes,), tasks = root.glob("meta/episodes/*/*.parquet"), root / "meta/tasks.parquet"
    pq.write_table(pq.read_table(episodes).take([1, 0]), episodes)
    table = pq.read_table(tasks)
    at = table.schema.get_field_index("task_index")
    numbers = pa.array([3 + number for number in range(table.num_rows)])
    pq.write_table(table.set_column(at, table.schema.field(at), numbers), tasks)


def command_on(command: str, sources: Sequence[Path], target: Path | None, **options: Any) -> None:
    """Run a command of a case; ``target`` is None for the source's place."""
    given = as_objects({"max_workers": 1} | options)
    match command:
        case "convert":
            api.convert(sources[0], output=target, **given)
        case "merge":
            assert target is not None
            api.merge(sources, output=target, **given)
        case "split":
            assert target is not None
            api.split(sources[0], output_dir=target, into=_PARTS, **given)
        case "trim":
            api.trim(sources[0], frames={0: (1, None)}, output=target, **given)
        case "repair":
            api.repair(sources[0], output=target)
        case "undo":
            upkeep.undo_conversion(sources[0])


class Place:
    """The folder of one trial.

    Args:
        case: What to do.
        template: The dataset, made by `make_source`; other cases than a conversion of it need
            `make_templates`. What works in place gets a copy.
        root: A folder that does not exist.
        own_source: Whether a conversion beside the source gets a copy too.
    """

    def __init__(self, case: Case, template: Path, root: Path, *, own_source: bool = False) -> None:
        self.case = case
        self.root = root
        root.mkdir(parents=True)
        self.source = template = template.with_name(case.begins_with)
        self.target = root / ("set" if case.in_place else "out")
        if case.command == "undo":
            shutil.copytree(template, root, dirs_exist_ok=True)
            self.source, template = self.target, root / "set_old"
        elif case.in_place or own_source:
            self.source = Path(shutil.copytree(template, root / "set"))
        self._sources = {self.source: snapshot(template)}
        if case.command == "merge":
            other = template.with_name("earlier")
            self._sources[other] = snapshot(other)
        self._before = self._replaced = self._sources[self.source]
        if case.replaces:
            earlier = "shorter" if case.appends else "earlier"
            shutil.copytree(template.with_name(earlier), self.target)
        if case.replaces or case.command == "undo":
            self._replaced = snapshot(self.target)
        self._of_others: dict[Path, Mapping[str, tuple[int, int, str]]] = {}
        if case.has_former:  # the user's own, under names that no run may take for its own
            for name in ("out_old", "out.former-mine"):
                own = shutil.copytree(self.target, root / name)
                (own / "mine.txt").write_text(name)
                self._of_others[own] = snapshot(own)

    @property
    def results(self) -> list[Path]:
        """Where results go, each a dataset."""
        if self.case.command == "split":
            return [self.target / name for name in _PARTS]
        return [self.target]

    @property
    def digests_of_others(self) -> set[str]:
        """Digests of what the user has beside the target."""
        return {digest_of(own) for own in self._of_others}

    def digest(self) -> str:
        """Return a digest of all results, of ``meta/`` alone where nothing else is new."""
        if self.case.exchanges_meta:
            return digest_of(self.target / "meta", but=TREE_RECORD)
        return " ".join(map(digest_of, self.results))

    def watched(
        self,
        fault: Fault | None,
        on_death: Callable[[], None] | None,
        power: PowerModel | None = None,
        on_change: Callable[[], None] = lambda: None,
    ) -> WatchedDisk:
        """Return the disk as this trial's process sees it."""
        return WatchedDisk(
            self.root, *self._sources, fault=fault, can_exchange=self.case.can_exchange,
            has_links=self.case.has_links, has_locks=self.case.has_locks, on_death=on_death,
            on_change=on_change, power=power,
        )  # fmt: skip

    def power_model(self) -> PowerModel:
        """Return what follows the state of the disk from here on."""
        return PowerModel(self.root, self.root.with_name(f"{self.root.name}-graveyard"))

    def convert(self, disk: WatchedDisk, **options: Any) -> None:
        """Run the case's command in this process; ``options`` are its own unless they differ."""
        case = self.case
        links = nullcontext() if case.can_link else _links_refused()
        # Where there is no flock, locks lie in the folder for temporary files.
        temporary = mock.patch.object(tempfile, "tempdir", str(self.root.parent))
        given: dict[str, Any] = {
            "episodes_per_batch": case.episodes_per_batch, "delete_source": case.delete_source,
            "force_conversion": case.forced, "keep_as_former": case.keeps_former,
            "append": case.appends, "to": case.to, "layout": case.layout,
        }  # fmt: skip
        if case.work_dir is not None:
            given["work_dir"] = self.root / case.work_dir
        with disk, _stages_marked(disk), links, temporary:
            target = None if case.in_place else self.target
            command_on(case.command, list(self._sources), target, **given | options)

    def left_over(self) -> list[str]:
        """Return the names beside the results and their sources."""
        wanted = {"set_old", "far"} if self.case.in_place else {"out"}
        wanted |= {path.name for path in self._sources}
        if self.case.replaces:
            wanted |= {"out_old"}
        if self.case.has_former:
            wanted |= {path.name for path in self._of_others}
            ours = [path.name for path in self.root.glob("out.former-2*")]
            # A forced conversion that is over is done anew by the same command.
            if 1 <= len(ours) <= 1 + self.case.keeps_former:  # places, each with its record
                wanted |= {name for place in ours for name in (place, f".{place}")}
        if self.case.command == "undo":
            wanted |= {"set_v30", "set_v21", "set_repaired"}
        if self.case.exchanges_meta:
            inside = {"README.md", "data", "meta", "meta_old", "videos"}
            inside |= {".meta_old.leconvert-removed"}
            return sorted(
                {path.name for path in self.source.iterdir()} - inside
                | {path.name for path in self.root.iterdir()} - {"set"}
            )
        if self.case.delete_source:  # half of it cannot be compared, and stays
            wanted |= {".set_old.leconvert-removed"}
        names = {path.name for path in self.root.iterdir()} - wanted
        if self.case.command == "split" and self.target.is_dir():
            names |= {path.name for path in self.target.iterdir()} - _PARTS.keys()
        return sorted(names)

    def problems(self, digest: str, *, finished: bool) -> Iterator[str]:
        """Say what is not as promised, after a disturbed run or after the last."""
        if self.case.exchanges_meta:
            yield from self._problems_of_meta(digest, finished=finished)
            return
        old = self.root / "set_old"
        places = [self.source, old] if self.case.in_place else [self.source]
        staged = list(self.root.glob(".set.leconvert-*.*")) if self.case.in_place else []
        intact = [place for place in [*places, *staged] if snapshot(place) == self._before]
        if not intact and self.case.delete_source and self._shown() == digest:
            pass  # nothing is removed before
        elif not intact:
            yield "the source is not intact"
        elif staged and intact[0] in staged and self._shown() != digest:
            yield "the source was moved away, and there is nothing in its place"
        for own, before in self._of_others.items():
            if snapshot(own) != before:
                yield f"the user's own {own.name} is not intact"
        for other, before in self._sources.items():
            if other != self.source and snapshot(other) != before:
                yield f"{other.name} is not intact"
        if self._replaced not in (self._before, *map(_unmarked, self._beside_source())):
            yield "what the result replaced is not intact"
        for result, wanted in zip(self.results, digest.split(), strict=True):
            if result.exists():
                shown = digest_of(result, but=TREE_RECORD)
                if shown != wanted and _unmarked(result) != self._replaced:
                    yield "a reader finds neither the old dataset nor the new one"
            elif (self.case.in_place or self.case.replaces) and self.case.can_exchange:
                yield "a reader finds nothing"
        if not finished:
            return
        if self.digest() != digest:
            yield "the result differs from the quiet run's"
        if left := self.left_over():
            yield f"left over: {left}"

    def _problems_of_meta(self, digest: str, *, finished: bool) -> Iterator[str]:
        """Say the same where ``meta/`` alone is exchanged."""
        now = snapshot(self.source)
        kept = {path: facts for path, facts in self._before.items() if path.startswith("meta/")}
        tops = {path.partition("/")[0] for path in now}
        intact = [
            top
            for top in tops
            if {f"meta/{path.partition('/')[2]}": facts for path, facts in now.items()
                if path.startswith(f"{top}/")} == kept
        ]  # fmt: skip
        shows_new = self.digest() == digest
        if not intact and not (self.case.delete_source and shows_new):
            yield "the old meta/ is not intact"
        rest = self._before.keys() - kept.keys()
        if {path: self._before[path] for path in rest} != {path: now.get(path) for path in rest}:
            yield "the files of episodes are not intact"
        if not shows_new and "meta" not in intact and (self.target / "meta").exists():
            yield "a reader finds neither the old dataset nor the new one"
        if not (self.target / "meta").exists() and self.case.can_exchange:
            yield "a reader finds nothing"
        if finished and not shows_new:
            yield "the result differs from the quiet run's"
        if finished and (left := self.left_over()):
            yield f"left over: {left}"

    def _beside_source(self) -> list[Path]:
        return [path for path in self.root.iterdir() if (path / "meta").is_dir()]

    def _shown(self) -> str:
        """Return the digest of the target without the swap's own mark."""
        return digest_of(self.target, but=TREE_RECORD)


def _unmarked(tree: Path) -> dict[str, tuple[int, int, str]]:
    """Return what is in a tree but for the mark of a swap."""
    return {path: facts for path, facts in snapshot(tree).items() if path != TREE_RECORD}


def quiet_run(
    case: Case,
    template: Path,
    root: Path,
    *,
    own_source: bool = False,
    with_losses: bool = False,
) -> Quiet:
    """Convert without a fault: twice, as the first run of a process also fills caches.

    Losses are looked for on request: after each operation that takes as long as the operation.
    """
    losses: list[tuple[int, Loss]] = []
    for number in range(2):
        place = Place(case, template, root / str(number), own_source=own_source)
        if with_losses and number:
            power = _Recorder(place)
            disk = place.watched(None, None, power.model)
            with power.recording(disk):
                place.convert(disk)
            losses = power.losses
        else:
            disk = place.watched(None, None)
            place.convert(disk)
        digest = place.digest()
        assert list(place.problems(digest, finished=True)) == []
    return Quiet(disk.operations, digest, losses)


class _Recorder:
    """Notes before which operations a power failure leaves something new."""

    def __init__(self, place: Place) -> None:
        self.model = place.power_model()
        self.losses: list[tuple[int, Loss]] = []
        self._seen: set[object] = set()

    @contextmanager
    def recording(self, disk: WatchedDisk) -> Iterator[None]:
        real = self.model.after

        def after(name: str, paths: tuple[str, ...]) -> None:
            real(name, paths)
            self._note(len(disk.operations))

        with mock.patch.object(self.model, "after", after):
            yield
        self._note(len(disk.operations))
        self.model.forget()

    def _note(self, number: int) -> None:
        for loss in Loss:
            signature = self.model.signature(loss)
            if signature not in self._seen:
                self._seen.add(signature)
                self.losses.append((number, loss))


@contextmanager
def _stages_marked(disk: WatchedDisk) -> Iterator[None]:
    """Mark operations with what the program is doing."""
    marks = (
        (api, "open_or_plan", "plan", "work"),
        (worker_pool, "pack_run", "pack", "clean"),
        (packing, "swap_into_place", "swap", "finish"),
        (repairing, "plan_repair", "plan", "work"),
        (repairing, "compare_trees", "pack", "pack"),
        (repairing, "exchange_trees", "swap", "finish"),
        (upkeep, "exchange_trees", "swap", "finish"),
    )
    disk.stage = "plan"
    with ExitStack() as patches:
        for module, name, during, after in marks:
            real = getattr(module, name)
            wrapper = _marking(disk, real, during, after)
            patches.enter_context(mock.patch.object(module, name, wrapper))
        yield


@contextmanager
def _links_refused() -> Iterator[None]:
    """Let the new tree be on another file system than the work dir."""
    real = FileSystem.link

    def link(self: FileSystem, source: Path, target: Path) -> None:
        if ".leconvert-work/" in f"{source}" and ".leconvert-work/" not in f"{target}":
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), str(source), None, str(target))
        real(self, source, target)

    with mock.patch.object(FileSystem, "link", link):
        yield


def _marking(
    disk: WatchedDisk, real: Callable[..., Any], during: str, after: str
) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        disk.stage = during
        result = real(*arguments, **options)
        disk.stage = after
        return result

    return call


def run_trials(
    case: Case, quiet: Quiet, faults: Sequence[Fault], template: Path, root: Path, *, jobs: int = 1
) -> list[Row]:
    """Try every fault, in so many processes at a time."""

    def trial(fault: Fault) -> Callable[[Path], Row]:
        return lambda folder: _trial(case, quiet, fault, template, folder)

    return run_each([trial(fault) for fault in faults], root, jobs=jobs)


def run_each(
    trials: Sequence[Callable[[Path], Row | None]], root: Path, *, jobs: int = 1
) -> list[Row]:
    """Run trials, each in a folder that does not exist, in so many processes at a time.

    What returns None found nothing to try.
    """
    gc.freeze()  # what is there now is not looked at, and so not copied, in each process
    workers = []
    for job in range(jobs):
        log = root / f"rows-{job}.jsonl"
        pid = _fork()
        if pid == 0:
            code = 1
            try:
                with log.open("w") as file:
                    for trial in trials[job::jobs]:
                        row = trial(root / f"trial-{job}")
                        if row is not None:
                            file.write(json.dumps(asdict(row)) + "\n")
                code = 0
            except BaseException:  # noqa: BLE001 - this process must not go on as its parent
                traceback.print_exc()
            finally:
                os._exit(code)
        workers.append((pid, log))
    rows = []
    ended = [os.waitpid(pid, 0)[1] for pid, _ in workers]
    if any(ended):
        raise RuntimeError(f"processes of trials ended with status {ended}")
    for _, log in workers:
        rows += [_row(json.loads(line)) for line in log.read_text().splitlines()]
    return sorted(rows, key=lambda row: (row.number, row.fault, row.afterwards))


def _row(fields: dict[str, Any]) -> Row:
    fields["first"], fields["again"] = Outcome(**fields["first"]), Outcome(**fields["again"])
    fields["problems"] = tuple(fields["problems"])
    return Row(**fields)


def _trial(case: Case, quiet: Quiet, fault: Fault, template: Path, root: Path) -> Row:
    place = Place(case, template, root)
    first = in_a_process(place, fault)
    problems = [f"after the fault: {problem}" for problem in _first_problems(case, fault, first)]
    problems += [f"after the fault: {p}" for p in place.problems(quiet.digest, finished=False)]
    return _ended(
        place, quiet, Row(case.name, fault.at, name_of(fault), first, first, ()), problems
    )


def kill_trial(case: Case, quiet: Quiet, kills: Sequence[float], template: Path, root: Path) -> Row:
    """Kill the command after so many seconds, each time it is given; then leave it alone.

    Returns:
        The row, whose number is that of processes that were killed; one may end before.
    """
    place, killed = Place(case, template, root), 0
    problems: list[str] = []
    for seconds in kills:
        first = in_a_process(place, None, killed_after=seconds)
        problems += [f"after a kill: {p}" for p in place.problems(quiet.digest, finished=False)]
        if first.how != "died":
            break  # what ended is not begun again; whoever comes next looks at it
        killed += 1
    return _ended(place, quiet, Row(case.name, killed, "SIGKILL", first, first, ()), problems)


def _ended(place: Place, quiet: Quiet, row: Row, problems: list[str]) -> Row:
    """Run the command again where nothing disturbs it, and look at what is there then."""
    # The name of the work dir is gone once a run is over. Then the same command says that there is
    # nothing to convert any more.
    over = all(name.endswith(".removed") for name in place.left_over())
    again = in_a_process(place, None)
    if again.how != "succeeded" and not (over and "already" in again.said):
        problems.append(f"the next run {again.how}: {again.said}")
    problems += [f"in the end: {p}" for p in place.problems(quiet.digest, finished=True)]
    shutil.rmtree(place.root)
    return replace(row, again=again, problems=tuple(problems))


def name_of(fault: Fault) -> str:
    """Return what a fault is called in a row."""
    said = fault.kind.name + (f" {errno.errorcode[fault.code]}" if fault.code else "")
    said = said if fault.loss is None else f"POWER {fault.loss.name}"
    return said + (" from here on" if fault.lasts else "")


def _first_problems(case: Case, fault: Fault, first: Outcome) -> Iterator[str]:
    dying = fault.kind in {FaultKind.DIE, FaultKind.TEAR}
    if first.how in {"broke", "hung"} or (dying and first.how == "refused"):
        yield f"the run {first.how}: {first.said}"
    if fault.kind is FaultKind.SHORT and first.how != "succeeded":
        yield f"a short write was not continued: the run {first.how}: {first.said}"
    allowed = WRITING if first.changes and not fault.lasts else WRITING | LOOKING
    if case.command == "undo" and not first.changes:
        allowed |= {"TargetError"}  # what cannot be looked at is nothing to put back
    if first.how == "refused" and first.error not in allowed:
        yield f"the run ended with {first.error}: {first.said}"


@contextmanager
def _platform_handed_down(birth: int) -> Iterator[None]:
    """Answer for the platform: this process holds lock ``birth``, and all before it have ended."""
    name = f"1-{birth:x}"

    with (
        mock.patch.object(host, "boot_id", return_value=_BOOT),
        mock.patch.object(identity, "_lock_of", return_value=f"leconvert-0.alive/{name}"),
        mock.patch.object(identity, "_is_locked", lambda path: path.name == name),
        mock.patch.object(file_calls, "_mount_table", return_value=_MOUNT_TABLE),
        mock.patch.object(parallel, "queued_seconds", return_value=0.0),
    ):
        yield


def _state_file(place: Place) -> Path:
    return place.root.with_name(f"{place.root.name}-power")


def in_a_process(
    place: Place,
    fault: Fault | None,
    act: Callable[[WatchedDisk], None] | None = None,
    power: PowerModel | None = None,
    *,
    killed_after: float | None = None,
    on_change: Callable[[], None] = lambda: None,
) -> Outcome:
    """Convert, or do something else, in a process of its own.

    Args:
        place: Where.
        fault: What goes wrong there.
        act: What to do on the trial's disk; None converts.
        power: What follows the operations; by default a model of the disk, where power fails.
        killed_after: Seconds after which the process is killed, if it has not ended.
        on_change: Called in that process where somebody else shall change a file.
    """
    birth = next(_births)
    _state_file(place).unlink(missing_ok=True)
    reading, writing = os.pipe()
    pid = _fork()
    if pid == 0:
        signal.alarm(_TRIAL_SECONDS)
        gc.disable()  # it would copy every page that the parent shares
        fails = fault is not None and fault.loss is not None
        model = place.power_model() if fails else power

        def report(outcome: Outcome) -> None:
            for hit in disk.operations[fault.at : fault.at + 1] if fault else []:
                outcome = replace(
                    outcome,
                    stage=hit.stage,
                    operation=f"{hit.name} {' '.join(hit.paths)}",
                    changes=hit.changes,
                )
            if fails:
                _state_file(place).write_bytes(pickle.dumps(model))
            os.write(writing, json.dumps(asdict(outcome)).encode())
            os._exit(0)

        disk = place.watched(fault, lambda: report(Outcome("died")), model, on_change)
        try:
            with _platform_handed_down(birth):
                (act or place.convert)(disk)
        except LeconvertError as error:
            name, code = type(error).__name__, error.exit_code
            report(Outcome("refused", name, code, error.message, error.next_step or ""))
        except BaseException as error:  # noqa: BLE001 - whatever it is goes into the row
            report(Outcome("broke", type(error).__name__, 70, traceback.format_exc()))
        report(Outcome("succeeded"))
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        if killed_after is not None and not select.select([pipe], [], [], killed_after)[0]:
            os.kill(pid, signal.SIGKILL)
        said = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if fault is not None and fault.loss is not None and said:  # one that hung left no state
        state: PowerModel = pickle.loads(_state_file(place).read_bytes())
        state.fail(fault.loss)
    if not said and killed_after is not None and code == -signal.SIGKILL:
        return Outcome("died")
    return Outcome(**json.loads(said)) if said else Outcome("hung", said=f"exit code {code}")
