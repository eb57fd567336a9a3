"""Commands one after the other, in random order, on one dataset: each keeps what it should keep.

What a dataset must hold is followed in a model. After each command the dataset is read by LeRobot's
rules (tests/read_dataset.py), and must hold the model's episodes.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.read_dataset import Episode, read_dataset
from tests.trees import snapshot

from leconvert.cli import main
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset

_LAYOUTS = ("reference", "streaming", "episode-files", "overlay")


@dataclass
class Walk:
    """A dataset on its way."""

    folder: Path
    bases: list[Path]
    chance: random.Random
    root: Path = field(init=False)
    must_hold: list[Episode] = field(init=False)
    before: list[tuple[list[Episode], dict[str, bytes]]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    number: int = 0

    def __post_init__(self) -> None:
        self.root = self.folder / "d0"
        shutil.copytree(self.chance.choice(self.bases), self.root)
        self.must_hold = read_dataset(self.root)

    @property
    def version(self) -> str:
        return str(json.loads((self.root / "meta/info.json").read_text())["codebase_version"])

    def step(self) -> None:
        """Give one command, and see that the dataset holds what it must."""
        moves: list[Callable[[], None]] = [
            self.convert_in_place,
            self.convert_beside,
            self.select,
            self.trim,
            self.merge,
            self.split,
            self.repair,
            self.undo,
            self.clean,
            self.rename,
        ]
        self.chance.choice(moves)()
        assert read_dataset(self.root) == self.must_hold, self.said[-3:]
        assert self._run("check", self.root), self.said[-3:]

    def _layout(self) -> list[str]:
        if self.chance.random() < 0.25:
            return ["--to", "v2.1"]
        words = ["--layout", self.chance.choice(_LAYOUTS)]
        if self.chance.random() < 0.5:
            words += ["--data-file-size-in-mb", "0.003", "--video-file-size-in-mb", "0.02"]
        return words

    def _run(self, *words: object) -> bool:
        """Return whether the command did what it was told; if not nothing may have changed."""
        listed = [str(word) for word in words]
        before = snapshot(self.folder)
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([*listed])
        self.said.append(f"{' '.join(listed)} -> {code} {err.getvalue().strip()[:600]}")
        assert code in (0, 2, 3, 5), self.said[-1]
        if code:
            after = snapshot(self.folder)
            assert {name: after.get(name) for name in before} == before, self.said[-1]
            self.refused.append(self.said[-1])
        return code == 0

    def _next(self) -> Path:
        self.number += 1
        return self.folder / f"d{self.number}"

    def _moved_to(self, root: Path, must_hold: list[Episode]) -> None:
        self.root, self.must_hold, self.before = root, must_hold, []

    def convert_in_place(self) -> None:
        kept = (copy.deepcopy(self.must_hold), snapshot(self.root))
        if self._run("convert", self.root, *self._layout()) and snapshot(self.root) != kept[1]:
            self.before.append(kept)

    def convert_beside(self) -> None:
        result = self._next()
        if self._run("convert", self.root, result, *self._layout()):
            assert self._run("verify", result, "--source", self.root), self.said[-1]
            self._moved_to(result, self.must_hold)

    def select(self) -> None:
        count = len(self.must_hold)
        taken = sorted(self.chance.sample(range(count), self.chance.randint(1, count)))
        result, numbers = self._next(), ",".join(map(str, taken))
        if self._run("convert", self.root, result, "--episodes", numbers, *self._layout()):
            self._moved_to(result, [self.must_hold[number] for number in taken])

    def split(self) -> None:
        if len(self.must_hold) < 3:
            return
        cut = self.chance.randint(1, len(self.must_hold) - 1)
        parts = self._next()
        into = f"a=0-{cut - 1},b={cut}-{len(self.must_hold) - 1}"
        if self._run("split", self.root, "--output-dir", parts, "--into", into, *self._layout()):
            assert read_dataset(parts / "a") == self.must_hold[:cut]
            self._moved_to(parts / "b", self.must_hold[cut:])

    def trim(self) -> None:
        number = self.chance.randrange(len(self.must_hold))
        length = len(self.must_hold[number])
        start = self.chance.randint(0, length - 1)
        stop = self.chance.randint(start + 1, length)
        trimmed = list(self.must_hold)
        trimmed[number] = trimmed[number].cut(start, stop)
        words = ["trim", self.root, "--episode", number, "--frames", f"{start}:{stop}"]
        if self.chance.random() < 0.5:
            result = self._next()
            if self._run(*words, "--output", result, *self._layout()):
                self._moved_to(result, trimmed)
            return
        kept = (copy.deepcopy(self.must_hold), snapshot(self.root))
        if self._run(*words, *self._layout()):
            self.before.append(kept)
            self.must_hold = trimmed

    def merge(self) -> None:
        other, result = self.chance.choice(self.bases), self._next()
        if self._run("merge", self.root, other, "--output", result, *self._layout()):
            self._moved_to(result, self.must_hold + read_dataset(other))

    def repair(self) -> None:
        words = self.chance.choice(([], ["--quantiles"], ["--recompute-stats"], ["--remap-tasks"]))
        if self.chance.random() < 0.5:
            result = self._next()
            if self._run("repair", self.root, "--output", result, *words) and result.exists():
                self._moved_to(result, self.must_hold)
            return
        kept = (copy.deepcopy(self.must_hold), snapshot(self.root))
        if self._run("repair", self.root, *words) and snapshot(self.root) != kept[1]:
            self.before.append(kept)

    def rename(self) -> None:
        result = self._next()
        words = ["--rename-feature", "observation.state=state", *self._layout()]
        if not self._run("convert", self.root, result, *words):
            return
        again = self._next()
        words = ["--rename-feature", "state=observation.state", *self._layout()]
        if self._run("convert", result, again, *words):
            self._moved_to(again, self.must_hold)

    def undo(self) -> None:
        if self._run("undo", self.root) and self.before:
            self.must_hold, tree = self.before.pop()
            # The meta/ of an overlay stays beside that of its source.
            there = {
                name: facts
                for name, facts in snapshot(self.root).items()
                if name in tree or not name.startswith(("meta_v30", "meta_v21"))
            }
            assert there == tree, self.said[-1]

    def clean(self) -> None:
        # What is not wholly in the dataset stays, as the source of a trimmed one does.
        if self._run("clean", "--of", self.root, "--old") and not self._is_kept():
            self.before = []

    def _is_kept(self) -> bool:
        kept = self.root.with_name(f"{self.root.name}_old"), self.root / "meta_old"
        return any(path.exists() for path in kept)


def make_bases(folder: Path) -> list[Path]:
    """Write the datasets that walks begin with; any two can be merged."""
    found = []
    for seed, lengths in enumerate(((7, 12, 5, 9), (6, 6, 11), (10, 4, 8, 13, 3))):
        cameras = [
            CameraSpec(
                key=f"observation.images.{name}",
                width=32,
                height=32,
                gop_size=gop,
                noise_amplitude=40,
                options={"bf": "2"} if name == "side" else {},
            )
            for name, gop in (("top", 2), ("side", 5))
        ]
        spec = DatasetSpec(
            episodes=len(lengths),
            frames=lengths,
            cameras=cameras,
            tasks=("Pick.", "Place.", f"Only here: {seed}."),
            tasks_per_episode=2,
            state_dim=3,
            seed=seed + 1,
        )
        make_dataset(folder / f"base{seed}", spec)
        found.append(folder / f"base{seed}")
    return found


def walk(folder: Path, bases: list[Path], seed: int, steps: int) -> Walk:
    """Give so many commands, as the seed decides."""
    made = Walk(folder, bases, random.Random(seed))
    for _ in range(steps):
        made.step()
    return made


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return the datasets that walks begin with."""
    return make_bases(tmp_path_factory.mktemp("bases"))


@pytest.mark.parametrize("seed", range(2))
def test_a_dataset_holds_what_it_must_after_each_command(
    seed: int, bases: list[Path], tmp_path: Path
) -> None:
    made = walk(tmp_path, bases, seed, 5)
    assert len(made.said) > len(made.refused)


@pytest.mark.slow
@pytest.mark.parametrize("hundreds", range(10, 30))
def test_it_does_on_two_hundred_ways(bases: list[Path], tmp_path: Path, hundreds: int) -> None:
    for seed in range(hundreds * 100, hundreds * 100 + 10):
        home = tmp_path / str(seed)
        home.mkdir()
        walk(home, bases, seed, 12)
        shutil.rmtree(home)
