"""What stands in the sandbox before a block runs.

The pages call their datasets by placeholder names, which are real names here: in the sandbox's
folder ``path/to/dataset`` is a v2.1 dataset and ``WORK`` a work dir. A block that converts DATASET
needs it as v2.1 and no RESULT yet; one that verifies RESULT needs that. Which it is follows from
the command itself, as the program's own parser reads it, so that no page has to say it twice.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from leconvert.api import convert
from leconvert.cli import main
from leconvert.remote.provenance import provenance_path
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset
from tests.hub import StandIn

__all__ = ["REPO", "Places", "Templates", "make_templates", "tell"]

REPO = "tester/arm"
# What names in Python blocks stand for; commands tell it by their options.
_V21 = frozenset({"path/to/dataset", "DATASET", "SOURCE"})
_V30 = frozenset({"path/to/dataset_v30", "my_dataset", "other_dataset", "RESULT"})


@dataclass(frozen=True, slots=True)
class Templates:
    """The dataset of all pages, before and after; copied, never changed."""

    v21: Path
    v30: Path


def make_templates(folder: Path) -> Templates:
    """Make a dataset of four short episodes and two cameras, and convert it."""
    spec = DatasetSpec(
        episodes=4,
        frames=[20, 17, 18, 23],
        cameras=(
            CameraSpec(key="observation.images.top", width=64, height=48),
            CameraSpec(key="observation.images.wrist", width=32, height=32),
        ),
    )
    source = make_dataset(folder / "v21", spec)
    return Templates(source, convert(source, output=folder / "v30", for_push=True).output)


class Places:
    """The datasets and work dirs of one page.

    Args:
        templates: What datasets are copied from.
        hub: Where ``--repo-id`` leads to.
    """

    def __init__(self, templates: Templates, hub: StandIn) -> None:
        self._templates = templates
        self._hub = hub

    def before_command(self, options: argparse.Namespace) -> None:
        """Provide what a command needs, and take away what it makes."""
        command = options.command
        if command in ("convert", "plan"):
            self._before_conversion(options)
        elif command in ("work", "pack", "status", "release", "submit"):
            self._plan(options.work_dir)
            if command == "pack" or getattr(options, "watch", None):
                tell("work", str(options.work_dir))
            if getattr(options, "watch", None):
                tell("pack", str(options.work_dir))
        elif command == "clean":
            self._before_clean(options)
        elif command == "report":
            self._plan(options.place) if options.place.name == "WORK" else self.v30(options.place)
        elif command == "verify" and len(options.source) == 1:  # what was merged is there
            self.v30(options.result)
            self.anywhere(options.source[0], self._templates.v21)
        elif command in ("push", "mirror"):
            self.v30(options.result)
            self._hub_has_the_dataset()
            if options.url is not None:
                _remove(_local(options.url))
        elif command == "fleet" and isinstance(getattr(options, "root", None), str):
            self._hub_has_the_dataset()
        elif command == "fleet" and options.fleet_command == "find":
            for name in ("may/pick", "may/place", "june/pick"):
                self.v21(options.root / name)
        elif command == "fleet" and getattr(options, "policy", None) is not None:
            options.policy.write_text('[[rule]]\nfindings = "timestamps"\nflags = "--retime"\n')
        elif command in ("split", "trim"):
            self.v21(Path(options.dataset))
        elif command == "merge" and REPO in options.datasets:
            self._hub_has_the_dataset()
        elif command == "repair":
            self.v30(options.dataset)
        elif command == "check":
            self.anywhere(options.root or _of_repo(options.repo_id), self._templates.v21)
        elif command in ("check-fs", "doctor") and options.folder is not None:
            options.folder.mkdir(parents=True, exist_ok=True)
        elif command == "probe":
            self._before_probe(options)

    def before_python(self, code: str) -> None:
        """Provide the datasets that a Python block names; what it calls ``output`` goes."""
        nodes = list(ast.walk(ast.parse(code)))
        texts = {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}
        made = {
            node.value.value
            for node in nodes
            if isinstance(node, ast.keyword)
            and node.arg == "output"
            and isinstance(node.value, ast.Constant)
        }
        for name in made:
            _remove(Path(name))
        for name in sorted(texts & _V21):
            self.v21(Path(name))
        for name in sorted((texts & _V30) - made):
            self.v30(Path(name))
        if REPO in texts:
            self._hub_has_the_dataset()

    def v21(self, place: Path) -> None:
        """Have a v2.1 dataset there."""
        self._have(place, self._templates.v21)

    def v30(self, place: Path) -> None:
        """Have a v3.0 dataset there, with the record that a push goes by."""
        self._have(place, self._templates.v30)
        if not provenance_path(place).exists():
            shutil.copy(provenance_path(self._templates.v30), provenance_path(place))

    def anywhere(self, place: Path | str, template: Path) -> None:
        """Have a dataset at a path or a ``file://`` URL; one that is there stays."""
        if not str(place).startswith("hf://"):
            there = _local(place)
            if not there.is_dir() or (
                template == self._templates.v21 and _version(there)[1] == "3"
            ):
                self._have(there, template)

    def _have(self, place: Path, template: Path) -> None:
        if not place.is_dir() or _version(place) != _version(template):
            _remove(place)
            shutil.copytree(template, place)

    def _before_conversion(self, options: argparse.Namespace) -> None:
        if REPO in (options.repo_id, options.dataset):
            self._hub_has_the_dataset()
            root = _of_repo(REPO)
            for place in (root, root.with_name(f"{root.name}_old")):
                _remove(place)
        else:
            given = options.root or options.dataset
            self.anywhere(given, self._templates.v21)
            root = _local(given)
        output = options.output or options.result
        for place in (output or root.with_name(f"{root.name}_old"), options.work_dir):
            if place is not None:
                _remove(place)

    def _plan(self, work_dir: Path, dataset: Path = Path("DATASET")) -> None:
        if not work_dir.is_dir():
            self.v21(dataset)
            _remove(Path("RESULT"))
            tell("plan", "--root", dataset, "--output", "RESULT", "--work-dir", work_dir)

    def _before_clean(self, options: argparse.Namespace) -> None:
        if options.of is None:
            self._plan(options.work_dir)
        elif not options.of.with_name(f"{options.of.name}_old").is_dir():
            _remove(options.of)
            self.v21(options.of)
            tell("convert", "--root", options.of)

    def _before_probe(self, options: argparse.Namespace) -> None:
        for name in ("root", "dataset"):
            place = getattr(options, name, None)
            if place is not None and "://" not in str(place):
                self.v30(Path(place))

    def _hub_has_the_dataset(self) -> None:
        repo = self._hub.find("datasets", REPO)
        if repo is None:
            self._hub.add_repo(REPO, self._templates.v21)
        else:
            there = tuple(repo.tree(repo.branches["main"]))
            self._hub.add_commit(REPO, self._templates.v21, deleted=there)
            repo.tags.clear()


def tell(*words: object) -> None:
    """Run a command that no page shows."""
    given = [str(word) for word in words]
    code = main(given)
    assert code == 0, f"leconvert {' '.join(given)} ended with {code}"


def _of_repo(repo_id: str) -> Path:
    return Path(os.environ["HF_LEROBOT_HOME"]) / repo_id


def _local(place: Path | str) -> Path:
    return Path(str(place).removeprefix("file://"))


def _version(place: Path) -> str:
    info = place / "meta/info.json"
    return str(json.loads(info.read_bytes())["codebase_version"]) if info.is_file() else ""


def _remove(place: Path) -> None:
    if place.is_dir():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)
