"""Advice that destroys nothing: what is wrong with a dataset is told so that nobody loses a file.

`meta/episodes` that names wrong files leaves the right ones without an episode. What is told then
must lead to the table, and never to the files.
"""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import leconvert as library
from leconvert.dataset.findings import DROP, SOURCE_CATALOGUE, V3_CATALOGUE
from leconvert.model.values import LayoutOptions
from leconvert.support.text import GET_AGAIN
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset
from tests.program import Leconvert

ROOT = Path(__file__).parents[2]
TOP = "observation.images.top"
RESTORE = "Restore meta/episodes from another copy of the dataset"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A v3.0 dataset of six episodes with a file each; do not change it."""
    folder = tmp_path_factory.mktemp("advice")
    camera = CameraSpec(key=TOP, width=64, height=48)
    source = make_dataset(folder / "source", DatasetSpec(episodes=6, frames=5, cameras=(camera,)))
    library.convert(source, output=folder / "v30", layout=LayoutOptions(layout="episode-files"))
    return folder / "v30"


@pytest.fixture
def broken(sound: Path, tmp_path: Path) -> Path:
    """A copy that a test may break."""
    return Path(shutil.copytree(sound, tmp_path / "v30"))


def _tells_first(said: str, first: str, then: str) -> None:
    text = " ".join(said.split())
    assert 0 <= text.find(first) < text.find(then), text


def lose(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:200])


@pytest.mark.parametrize(("version", "damage"), [("v2.1", lose), ("v3.0", cut)])
def test_a_lost_or_cut_file_is_to_be_got_again_before_anything_is_left_out(
    leconvert_here: Leconvert, broken: Path, tmp_path: Path, version: str,
    damage: Callable[[Path], None],
) -> None:  # fmt: skip
    if version == "v2.1":
        library.convert(broken, output=tmp_path / "v21", layout=LayoutOptions(to="v2.1"))
        broken = tmp_path / "v21"
    for path in (sorted(broken.glob("data/*/*"))[2], sorted(broken.glob("videos/**/*.mp4"))[2]):
        content = path.read_bytes()
        damage(path)
        checked = leconvert_here("check", broken, code=3)
        _tells_first(checked.stdout, GET_AGAIN, DROP)
        refused = leconvert_here("convert", broken, "--output", tmp_path / "out", "--to", "v2.1")
        assert refused.returncode == 3
        _tells_first(refused.stderr, GET_AGAIN, DROP)
        *_, last = refused.stderr.splitlines()
        _tells_first(last, GET_AGAIN, DROP)
        planned = leconvert_here("check", broken, "--plan-repairs")
        assert GET_AGAIN in planned.stderr
        assert DROP in planned.stdout
        found = leconvert_here("fleet", "find", broken)
        _tells_first(found.stdout, GET_AGAIN, DROP)
        path.write_bytes(content)
        assert leconvert_here("check", broken).returncode == 0


_DESTRUCTIVE = re.compile(r"\b(?:delete|remove|erase|unlink|rm|throw away)\b", re.IGNORECASE)
# An imperative: at the begin of a sentence, of a command, or after a comma, "or", "and", "then".
_DESTROYS = re.compile(
    rf"(?:^|[.;:,`(|] ?|\b(?:or|and|then) ){_DESTRUCTIVE.pattern}", re.IGNORECASE
)
# What a command does that the user gives, and compares before it does it.
_HELP = {
    "remove leftovers of finished and discarded runs",
    "also remove DATASET_old and former states of DATASET (replaced results that were "
    "kept); with the WORK_DIR of a fleet: those of all its results; a folder is removed only "
    "if every byte of the folder is proven to be in the result",
    "remove the kept source, once every byte is proven to be in the result",
    "after a conversion in place: remove the source if every byte of the source is proven to "
    "be in the result",
}
_OF_LEROBOT = "its streaming class and the Hub's visualizer do not find the files"


def _texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the texts of a module but its docstrings."""
    source = path.read_text()
    if not _DESTRUCTIVE.search(source):  # most modules; to parse them takes a second
        return
    tree = ast.parse(source)
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.lineno, node.value


def test_no_message_advises_to_delete_anything() -> None:
    kinds = (*SOURCE_CATALOGUE.values(), *V3_CATALOGUE.values())
    advice = {(kind.code, kind.remedy) for kind in kinds if kind.remedy}
    assert [each for each in advice if _DESTROYS.search(each[1])] == []
    found = [
        (path.name, line, text)
        for path in sorted((ROOT / "src/leconvert").rglob("*.py"))
        for line, text in _texts(path)
        if text not in _HELP and _DESTROYS.search(text) and _OF_LEROBOT not in text
    ]
    assert found == []


def test_no_page_advises_to_delete_a_file_or_a_dataset() -> None:
    advised = re.compile(
        r"\b(?:delete|remove|erase) (?:it|them|(?:the|this|that|your|a|any|all)\b[^.|\n]{0,30}"
        r"\b(?:file|folder|dataset|copy|tree|work dir)s?)\b|\brm -?[a-z]* ",
        re.IGNORECASE,
    )
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    found = {
        (page.name, match[0]) for page in pages for match in advised.finditer(page.read_text())
    }
    assert found == set()


def test_what_loses_nothing_is_told_of_every_file_that_may_be_had_again() -> None:
    """A flag that leaves something out never stands alone where a file is missing or cut off."""
    codes = {"missing-file", "unreadable-file", "row-count", "frame-count", "shared-frames"}
    told = {code for code, kind in SOURCE_CATALOGUE.items() if kind.remedy and kind.repairs}
    assert codes <= told
    for code in ("missing-file", "unreadable-file", "row-count", "frame-count", "shared-frames"):
        remedy = V3_CATALOGUE[code].remedy or ""
        first = min(at for text in (GET_AGAIN, RESTORE) if (at := remedy.find(text)) >= 0)
        assert 0 <= first < remedy.index(DROP), code
