"""What the program says of a mistake: one sentence, mostly what to do next, and a code.

Each line of mistakes.txt is a code, with a hyphen where nothing is to be done next, and a command
line. It runs in a folder that holds a file called `file`, and a small v2.1 dataset `set` where the
command names it. Nothing else may be there afterwards. A new mistake is a new line.
"""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from leconvert.cli import main
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset

_PROGRESS = re.compile(r"\w+: \d.*/s\)$")
_MISTAKES = Path(__file__).with_name("mistakes.txt").read_text("utf-8").splitlines()


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of three episodes."""
    camera = CameraSpec(key="observation.images.top")
    spec = DatasetSpec(episodes=3, frames=[12, 5, 9], cameras=(camera,))
    return make_dataset(tmp_path_factory.mktemp("messages") / "set", spec)


@pytest.mark.parametrize("line", _MISTAKES)
def test_a_mistake_is_a_sentence_with_a_code_and_mostly_a_next_step(
    line: str,
    dataset: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    code, *words = shlex.split(line)
    if "set" in words:
        shutil.copytree(dataset, "set")
    before = sorted(tmp_path.iterdir())
    assert str(main(words)) == code.removesuffix("-")
    assert sorted(tmp_path.iterdir()) == before
    said, told = capsys.readouterr()
    told = [each for each in told.splitlines() if not _PROGRESS.match(each)]
    assert said == ""
    assert told[0].startswith("leconvert: ")
    assert told[0].endswith((".", "?"))
    assert any(each.startswith("  → ") for each in told) != code.endswith("-")
