"""A swap that broke, then something else, then the same command: old or new, whole.

After a fault in the swap of a conversion the source changes, the options change, something is
damaged or moved by hand, or another conversion of the same target runs. Then the same command
runs, and what its message says is done, until it succeeds or there is nothing left to do.

At every operation that names, moves or removes something, and at every end,

- the bytes of the source lie in one place and in no other, unless a process that was asked to
  remove them put their conversion at the target and compared the two;
- a tree that somebody put there by hand lies in one place too;
- what a reader finds is a tree that was put there by hand, or one of the whole datasets;
- a command that succeeds leaves the conversion of the source as it lies there, by its options.

Or nothing breaks, and at one operation of the command somebody overwrites a file in place and gives
it its times back (`overwriting_trial`). The new state of a source lies in one place too, until that
state was converted. A source is not removed for a result that was overwritten before.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow.parquet as pq
from tests.faults.power import PowerModel
from tests.faults.trials import (
    TREE_RECORD,
    Case,
    Outcome,
    Place,
    Row,
    in_a_process,
    make_source,
    name_of,
)
from tests.faults.watched_disk import Fault, FaultKind, WatchedDisk
from tests.trees import digest_of

from leconvert import api
from leconvert.model.values import LayoutOptions
from leconvert.run.conversion import WorkerOptions
from leconvert.run.upkeep import clean_kept_source, clean_work_dir
from leconvert.testing import edit_info

__all__ = [
    "AFTERWARDS", "CASES_AFTERWARDS", "CHANGES", "OVERWRITTEN", "OVERWRITTEN_FILES", "Datasets",
    "after_kills", "after_trial", "overwriting_trial", "own_card", "own_file", "own_key",
    "run_scene", "to_the_end",
]  # fmt: skip

CASES_AFTERWARDS = ("in-place", "two-renames", "deleting", "output", "forced", "renewed")
_OTHER_OPTIONS: dict[str, Any] = {"video_file_size_in_mb": 0.0001}
_MOST_REMEDIES = 4
_MOVES = frozenset({"rename", "replace", "rename_no_replace", "exchange", "unlink", "rmdir"})
_REFUSALS = frozenset({3, 4, 5, 6, 8, 9, 10, 12})
"""Exit codes of refusals that docs/reference/exit-codes.md has for such a run; no disk failed."""
_ENDS = (
    "There is nothing left to convert",
    "is already",
)
"""What a message says where nothing is left to do."""


OVERWRITTEN_FILES = {
    "another packet": "videos/chunk-000/observation.images.top/episode_000001.mp4",
    "another value": "data/chunk-000/episode_000001.parquet",
    "another card": "README.md",
}
_OF_RESULT = "another packet in the result"
OVERWRITTEN = (*OVERWRITTEN_FILES, _OF_RESULT)
"""What is overwritten in place, in the source or in the result."""
CHANGES = ("grown", "overwritten", "foreign")
"""Datasets that a source changes to, or that somebody puts beside it."""


def _place_of_a_value(path: Path) -> int:
    """Return which byte of a file can be another one, so that the file is as right as before."""
    content = path.read_bytes()
    if path.suffix == ".parquet":
        first = np.ravel(pq.read_table(path)["observation.state"].to_pylist()[0])
        return content.index(np.float32(first[0]).tobytes())
    return content.index(b"mdat") + 5 if path.suffix == ".mp4" else len(content) // 2


class Datasets:
    """Datasets that trials start from or change to, and what becomes of each.

    Args:
        root: A folder that does not exist.
        template: What is planned.
        versions: What else there is: `CHANGES`, or `OVERWRITTEN_FILES`.
        other_options: Whether trials convert with other options, too.
    """

    def __init__(
        self, root: Path, template: Path, versions: Iterable[str], *, other_options: bool = False
    ) -> None:
        root.mkdir(parents=True)
        self.sources = {"planned": template}
        self.sources |= {version: _made(version, root, template) for version in versions}
        self.digest = {name: digest_of(path) for name, path in self.sources.items()}
        self.converted: dict[tuple[str, bool], str] = {}
        for name, source in self.sources.items():
            for is_other in sorted({False, other_options}):
                output = root / f"{name}-{is_other}"
                layout = LayoutOptions(**_OTHER_OPTIONS if is_other else {})
                workers = WorkerOptions(max_workers=1)
                api.convert(source, output=output, layout=layout, workers=workers)
                self.converted[name, is_other] = digest_of(output)
        assert len(set(self.converted.values())) == len(self.converted)


def _made(version: str, root: Path, template: Path) -> Path:
    folder = root / version
    if version == "grown":
        return make_source(folder, (3, 2, 2))
    if version == "foreign":
        return make_source(folder, (4,), seed=7)
    shutil.copytree(template, folder)
    if version == "overwritten":
        data = "data/chunk-000/episode_000000.parquet"
        other = make_source(root / "other", (3, 2), seed=7)
        shutil.copyfile(other / data, folder / data)
    else:
        path = folder / OVERWRITTEN_FILES[version]
        content = bytearray(path.read_bytes())
        content[_place_of_a_value(path)] ^= 1
        path.write_bytes(content)
    return folder


@dataclass(slots=True)
class Scene:
    """What is where, and what the user asks for.

    Attributes:
        place: The folder of the trial.
        datasets: The datasets.
        version: Which of them the source is now.
        removed: Whether it was removed, after a process compared it.
        cleaned: Whether a command was asked to remove it once its conversion has its place.
        by_hand: Digests of trees that nobody but the user may remove.
        damaged: Digests of trees that somebody damaged.
        options: What is asked for besides the case's options.
        earlier: The digest of the result that stood at the target before, in a forced case.
    """

    place: Place
    datasets: Datasets
    version: str = "planned"
    removed: bool = False
    cleaned: bool = False
    by_hand: set[str] = field(default_factory=set)
    damaged: set[str] = field(default_factory=set)
    options: dict[str, Any] = field(default_factory=dict)
    earlier: str = ""

    @property
    def target(self) -> Path:
        return self.place.target

    @property
    def result(self) -> str:
        """The digest of what a command that succeeds leaves."""
        return self.datasets.converted[self.version, "video_file_size_in_mb" in self.options]

    def trees(self) -> dict[Path, str]:
        """Return every dataset's folder, and its digest without a swap's mark."""
        folders = [path for path in sorted(self.place.root.iterdir()) if path.is_dir()]
        return {
            path: _digest(path)
            for path in folders
            if (path / "meta").is_dir() or path == self.target
        }

    def source(self) -> Path | None:
        """Return where the source lies."""
        wanted = self.datasets.digest[self.version]
        return next((path for path, digest in self.trees().items() if digest == wanted), None)

    def replaced(self) -> Path | None:
        """Return where the tree lies that the result is to replace, or replaced."""
        if self.place.case.in_place:
            return self.source()
        wanted = self.earlier
        return next((path for path, digest in self.trees().items() if digest == wanted), None)

    def moment(self) -> Iterator[str]:
        """Say what is not as promised, at any moment."""
        trees = self.trees()
        found = list(trees.values())
        count = found.count(self.datasets.digest[self.version])
        shown = trees.get(self.target)
        may_go = self.place.case.delete_source or self.cleaned
        if not count and shown == self.result and may_go:
            self.removed = True
        if count != 1 and not (count == 0 and self.removed):
            yield f"the source lies in {count} places"
        for digest in self.by_hand:
            if digest not in found:
                yield "what was put there by hand is gone"
        whole = {*self.datasets.digest.values(), *self.datasets.converted.values()}
        whole |= self.by_hand | self.damaged
        if shown is not None and shown not in whole:
            yield "a reader finds no whole dataset"

    def end(self, outcome: Outcome) -> Iterator[str]:
        """Say what is not as promised when a command has ended."""
        yield from self.moment()
        yield from self.ended(outcome)
        # Once the source is removed nothing tells what the user changed from what was written.
        may_stand = {self.result} | (self.by_hand if self.removed else set())
        if outcome.how == "succeeded" and self.trees().get(self.target) not in may_stand:
            yield "it succeeded, and the result is not the conversion of the source"

    def ended(self, outcome: Outcome) -> Iterator[str]:
        """Say how a command should not end."""
        if outcome.how == "refused" and outcome.exit_code not in _REFUSALS:
            yield f"exit code {outcome.exit_code}: {outcome.said}"
        if outcome.how in {"broke", "hung", "died"}:
            yield f"it {outcome.how}: {outcome.said}"


def _digest(tree: Path) -> str:
    return digest_of(tree, but=TREE_RECORD)


# --- what happens in between; each says whether there was anything to do ----------------------


def _changed(scene: Scene, version: str) -> bool:
    there = scene.source()
    if there is None or there.name.endswith(".leconvert-removed"):
        return False  # nobody comes by that name
    new = scene.datasets.sources[version]
    for path in sorted(new.rglob("*")):
        if path.is_file():
            place = there / path.relative_to(new)
            if not place.exists() or place.read_bytes() != path.read_bytes():
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(path.read_bytes())
    scene.version = version
    return True


def _other_options(scene: Scene) -> bool:
    scene.options |= _OTHER_OPTIONS
    return True


def _new_tree(scene: Scene) -> Path | None:
    """Return where the new tree lies, if it is anywhere and the source is somewhere else."""
    if scene.source() is None:
        return None
    trees = [
        path
        for path, digest in scene.trees().items()
        if (path / "meta/info.json").exists()
        and not (path / "meta/episodes.jsonl").exists()
        and digest not in scene.by_hand
    ]
    return next(iter(trees), None)


def _tree_removed(scene: Scene) -> bool:
    tree = _new_tree(scene)
    if tree is not None:
        shutil.rmtree(tree)
    return tree is not None


def _tree_damaged(scene: Scene) -> bool:
    tree = _new_tree(scene)
    if tree is None or not (clips := sorted(tree.rglob("*.mp4"))):
        return False
    content = clips[0].read_bytes()
    clips[0].unlink()  # it may be one file with a shard
    if scene.place.case.delete_source:  # whoever deletes compares every byte
        clips[0].write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    else:
        clips[0].write_bytes(content[:-1])
    scene.damaged.add(_digest(tree))
    return True


def _shards(scene: Scene) -> list[Path]:
    return sorted(scene.place.root.glob("**/attempts/**/*.mp4"))


def _shard_removed(scene: Scene) -> bool:
    shards = _shards(scene)
    for shard in shards[:1]:
        shard.unlink()
    return bool(shards)


def _shard_damaged(scene: Scene) -> bool:
    shards = _shards(scene)
    for shard in shards[:1]:
        content = shard.read_bytes()
        shard.unlink()
        shard.write_bytes(content[: len(content) // 2])
    return bool(shards)


def _old_put_back(scene: Scene) -> bool:
    old = scene.target.with_name(f"{scene.target.name}_old")
    if scene.place.case.has_former:
        old = next(iter(scene.place.root.glob("out.former-2*")), old)
    if not old.exists() or _digest(old) in scene.place.digests_of_others:
        return False
    if scene.target.exists():
        scene.by_hand.add(_digest(scene.target))
        scene.target.rename(scene.target.with_name("moved-new"))
    old.rename(scene.target)
    return True


def _target_moved_away(scene: Scene) -> bool:
    if not scene.target.exists():
        return False
    digest = _digest(scene.target)
    if digest != scene.datasets.digest[scene.version]:
        scene.by_hand.add(digest)
    scene.target.rename(scene.target.with_name("moved-away"))
    return True


def _foreign_old(scene: Scene) -> bool:
    old = scene.target.with_name(f"{scene.target.name}_old")
    if old.exists():
        return False
    shutil.copytree(scene.datasets.sources["foreign"], old)
    scene.by_hand.add(scene.datasets.digest["foreign"])
    return True


def _foreign_target(scene: Scene) -> bool:
    if scene.target.exists():
        return False
    shutil.copytree(scene.datasets.sources["foreign"], scene.target)
    scene.by_hand.add(scene.datasets.digest["foreign"])
    return True


def _edited(scene: Scene, edit: Callable[[Path], object]) -> bool:
    """Let the user change the result that stands at the target, old or new."""
    before = _digest(scene.target) if scene.target.exists() else None
    if before is None or before in scene.datasets.digest.values():
        return False  # it is the source that stands there
    edit(scene.target)
    after = _digest(scene.target)
    if scene.earlier == before:
        scene.earlier = after
    scene.by_hand = (scene.by_hand - {before}) | {after}
    return True


def own_card(result: Path) -> None:
    (result / "README.md").write_text("# Of the user's own making\n")


def own_key(result: Path) -> None:
    edit_info(result, lambda info: info.update(license="the user's"))


def own_file(result: Path) -> None:
    (result / "meta" / "notes.txt").write_text("the user's")


def _cleaned(scene: Scene) -> bool:
    if scene.place.case.in_place or not scene.target.exists():
        return False  # what it removes there is the source, after comparing
    clean_kept_source(scene.target)
    return True


def _second_conversion(scene: Scene) -> bool:
    work_dir = scene.place.root / "elsewhere"
    outcome = run_scene(scene, work_dir=work_dir)
    return outcome.how in {"succeeded", "refused"} or not list(scene.end(outcome))


AFTERWARDS: Mapping[str, Callable[[Scene], bool]] = {
    "episodes added": lambda scene: _changed(scene, "grown"),
    "a file overwritten": lambda scene: _changed(scene, "overwritten"),
    "other options": _other_options,
    "new tree removed": _tree_removed,
    "new tree damaged": _tree_damaged,
    "shard removed": _shard_removed,
    "shard damaged": _shard_damaged,
    "old put back": _old_put_back,
    "target moved away": _target_moved_away,
    "foreign at old": _foreign_old,
    "foreign at target": _foreign_target,
    "second conversion": _second_conversion,
    "card edited": lambda scene: _edited(scene, own_card),
    "key added": lambda scene: _edited(scene, own_key),
    "file added": lambda scene: _edited(scene, own_file),
    "former states cleaned": _cleaned,
}


# --- a trial ----------------------------------------------------------------------------------


class _Eyes:
    """Looks at the scene after each operation that moves or removes something."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    def before(self, name: str, paths: tuple[str, ...]) -> None:
        pass

    def after(self, name: str, paths: tuple[str, ...]) -> None:
        if name not in _MOVES or ".leconvert-work" in paths[-1] or "elsewhere" in paths[-1]:
            return
        for problem in self._scene.moment():
            raise AssertionError(f"after {name} {' '.join(paths)}: {problem}")


def run_scene(
    scene: Scene,
    act: Callable[[WatchedDisk], None] | None = None,
    fault: Fault | None = None,
    *,
    killed_after: float | None = None,
    **more: Any,
) -> Outcome:
    """Convert, or do something else, and look at the scene after each move."""

    def convert(disk: WatchedDisk) -> None:
        scene.place.convert(disk, **scene.options | more)

    eyes = cast("PowerModel", _Eyes(scene))
    outcome = in_a_process(scene.place, fault, act or convert, eyes, killed_after=killed_after)
    list(scene.moment())  # what the process removed, it removed after it compared
    scene.options.pop("restart", None)
    return outcome


def _follow(scene: Scene, outcome: Outcome) -> bool:
    """Do what a message says; return whether there was anything to do."""
    done = _follow_once(scene, outcome)
    for name, digest in scene.datasets.digest.items():
        if scene.trees().get(scene.target) == digest and scene.place.case.in_place:
            scene.version = name  # the user put another dataset there, and shall have that
            scene.by_hand.discard(digest)
    return done


def _follow_once(scene: Scene, outcome: Outcome) -> bool:
    advice, root = outcome.advice, scene.place.root
    done = False
    for command in re.findall(r"`([^`]+)`", advice):
        for part in command.split(" && "):
            words = shlex.split(part)
            if words[0] == "mv":
                Path(words[1]).rename(words[2])
                done = True
            elif words[:2] == ["rm", "-r"]:
                shutil.rmtree(words[2])
                done = True
            elif words[:2] == ["leconvert", "clean"] and "--give-up" in words:
                clean_work_dir(Path(words[2]), give_up=True)
                done = True
        if done:
            return True
    away = root / "moved-away"
    if away.exists() and ("Put the result back" in advice or "is not a folder" in outcome.said):
        away.rename(scene.target)
        return True
    if "or move" in advice:
        _aside(scene.target)
        return True
    if "Give the same options as before to finish the run" in advice:
        scene.options.clear()
        return True
    if "--force-conversion" in advice and not scene.options.get("force_conversion"):
        scene.options["force_conversion"] = True
        return True
    if "--restart" in advice:
        scene.options["restart"] = True
        return True
    if "Move the dataset that you want to keep: its new place is" in advice:
        source, kept = scene.source(), scene.replaced()
        for path in scene.trees():
            if path not in {source, kept}:
                _aside(path)
        if kept is not None and kept != scene.target:
            kept.rename(scene.target)
        return True
    if "give it another name" in advice:
        _aside(Path(outcome.said.partition(" does not have the mark of run")[0]))
        return True
    if "Or `leconvert clean --of" in advice:
        old = scene.target.with_name(f"{scene.target.name}_old")
        _aside(old)
        return True
    return "again" in advice


def _aside(tree: Path) -> None:
    tree.rename(tree.with_name(f"moved-{len(list(tree.parent.iterdir()))}"))


def after_trial(
    case: Case, fault: Fault, afterwards: str, datasets: Datasets, template: Path, root: Path
) -> Row | None:
    """Break a swap, let something else happen, and go on as the messages say.

    Returns:
        The row; None where there was nothing to do, such as a result to damage.
    """
    scene = _scene(case, datasets, template, root)
    first = in_a_process(scene.place, fault)
    row = Row(case.name, fault.at, name_of(fault), first, first, ())
    return _aftermath(scene, row, afterwards)


def after_kills(
    case: Case,
    kills: Sequence[float],
    afterwards: str,
    datasets: Datasets,
    template: Path,
    root: Path,
) -> Row | None:
    """Do the same after a conversion that is killed, and kill those that follow something else.

    Args:
        kills: Seconds after which the first process is killed, and each one that follows what
            happens afterwards; whoever comes then is left alone. A process may end before.

    Returns:
        The row, whose number is that of processes that were killed; None as `after_trial`.
    """
    scene = _scene(case, datasets, template, root)
    first = in_a_process(scene.place, None, killed_after=kills[0])
    row = Row(case.name, int(first.how == "died"), "SIGKILL", first, first, ())
    return _aftermath(scene, row, afterwards, kills[1:])


def overwriting_trial(
    case: Case, number: int, what: str, datasets: Datasets, template: Path, root: Path
) -> Row | None:
    """Let somebody overwrite a file in place at an operation and give it its times back.

    Returns:
        The row; None where that file lies nowhere then, or under a name that nobody comes by.
    """
    scene = _scene(case, datasets, template, root)
    noted = root.with_name(f"{root.name}-overwritten")
    noted.unlink(missing_ok=True)

    def overwrite() -> None:
        if _overwritten(scene, what):
            noted.touch()

    fault = Fault(number, FaultKind.CHANGE)
    first = in_a_process(scene.place, fault, on_change=overwrite)
    row = Row(case.name, number, name_of(fault), first, first, (), what)
    if not noted.exists():
        shutil.rmtree(scene.place.root)
        return None
    problems = []
    if what == _OF_RESULT:
        scene.damaged.update(
            digest for path, digest in scene.trees().items() if "_old" not in path.name
        )
        if scene.source() is None:
            problems.append("the source was removed for a result that somebody overwrote")
    else:
        scene.version = what
    problems += [f"after that: {problem}" for problem in scene.moment()]
    if first.how not in {"succeeded", "refused"}:
        problems.append(f"it {first.how}: {first.said}")
    return _followed(scene, row, problems)


def _overwritten(scene: Scene, what: str) -> bool:
    source = scene.source()
    if source is None or source.name.endswith(".leconvert-removed"):
        return False
    if what == _OF_RESULT:
        tree = _new_tree(scene)
        clips = sorted((tree or scene.place.root / "none").rglob("*.mp4"))
        for clip in clips[:1]:
            _overwrite(clip)
        return bool(clips)
    _overwrite(source / OVERWRITTEN_FILES[what])
    return True


def _overwrite(path: Path) -> None:
    times = path.stat()
    content = bytearray(path.read_bytes())
    content[_place_of_a_value(path)] ^= 1
    with path.open("r+b") as file:
        file.write(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def _scene(case: Case, datasets: Datasets, template: Path, root: Path) -> Scene:
    scene = Scene(Place(case, template, root, own_source=True), datasets)
    if case.forced:
        scene.earlier = digest_of(scene.target)
        scene.by_hand |= {scene.earlier, *scene.place.digests_of_others}
    return scene


def _aftermath(scene: Scene, row: Row, afterwards: str, kills: Sequence[float] = ()) -> Row | None:
    problems = [f"after the fault: {problem}" for problem in scene.moment()]
    killed = 0
    if not AFTERWARDS[afterwards](scene):
        shutil.rmtree(scene.place.root)
        return None
    for seconds in kills:
        stopped = run_scene(scene, killed_after=seconds)
        killed += stopped.how == "died"
        checked = scene.moment() if stopped.how == "died" else scene.end(stopped)
        problems += [f"after a kill: {problem}" for problem in checked]
    row = replace(row, number=row.number + killed, afterwards=afterwards)
    return _followed(scene, row, problems, is_whole=row.first.how == "succeeded" and not killed)


def _followed(scene: Scene, row: Row, problems: list[str], *, is_whole: bool = True) -> Row:
    try:
        outcomes = to_the_end(scene, problems)
        if outcomes[-1].how == "succeeded" and (left := _left_over(scene, is_whole=is_whole)):
            problems.append(f"left over: {left}")
    finally:
        shutil.rmtree(scene.place.root)
    ended = "done" if outcomes[-1].how == "succeeded" else f"{outcomes[-1].error}"
    ended = f"{ended} after {len(outcomes) - 1}"
    return replace(row, again=outcomes[0], problems=tuple(problems), ended=ended)


def to_the_end(scene: Scene, problems: list[str]) -> list[Outcome]:
    """Run the command and do what messages say, until it succeeds or nothing is left to do."""
    outcomes = [outcome := run_scene(scene)]
    problems += [f"then: {problem}" for problem in scene.end(outcome)]
    while outcome.how == "refused" and not any(end in _words(outcome) for end in _ENDS):
        if len(outcomes) > _MOST_REMEDIES or not _follow(scene, outcome):
            problems.append(f"no end: {' | '.join(map(_words, outcomes))}")
            break
        outcomes.append(run_scene(scene))
        said, outcome = _words(outcome), outcomes[-1]
        problems += [f"after the remedy {said}: {p}" for p in scene.end(outcome)]
    return outcomes


def _words(outcome: Outcome) -> str:
    return f"{outcome.said} {outcome.advice}"


def _left_over(scene: Scene, *, is_whole: bool) -> list[str]:
    root = scene.place.root
    names = [path.name for path in root.iterdir() if ".leconvert-" in path.name]
    # The second conversion may have been refused with its tree built, which its command resumes.
    others = [path.name for path in root.glob("elsewhere/runs/*")]
    names = [name for name in names if not any(run in name for run in others)]
    # What a removal left that was interrupted is not removed unseen.
    half_gone = f".{scene.target.name}_old.leconvert-removed"
    return [name for name in names if name != half_gone or is_whole]
