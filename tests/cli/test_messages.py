"""What the program says of a mistake, as a person reads it: messages.txt holds every sentence.

Each block of the file is a command line, its output and its exit code; it runs in a folder that
holds a file called `file`, and a small v2.1 dataset `set` where the command names it. Nothing else
may be there afterwards. After a message was reworded

    python -m tests.cli.test_messages

writes the file anew; the difference is to be read before it is committed. A new mistake is a new
line `$ leconvert …`.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from leconvert.cli import main
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset

_PROGRESS = re.compile(r"\w+: \d.*/s\)$")
MESSAGES = Path(__file__).with_name("messages.txt")


def _blocks() -> Iterator[tuple[str, str]]:
    """Yield each command line of the file, and what stands below it."""
    for block in MESSAGES.read_text("utf-8").strip().split("\n\n"):
        command, _, said = block.partition("\n")
        yield command.removeprefix("$ leconvert").strip(), said


def _said(command: str, folder: Path) -> str:
    """Return what the program says in a folder, with its code, whatever the folder is called."""
    (folder / "file").touch()
    if "set" in shlex.split(command):
        shutil.copytree(_dataset(), folder / "set")
    before = sorted(folder.iterdir())
    out, err = io.StringIO(), io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(shlex.split(command))
    assert sorted(folder.iterdir()) == before, command
    told = [line for line in err.getvalue().splitlines() if not _PROGRESS.match(line)]
    text = "\n".join([*out.getvalue().splitlines(), *told, f"[{code}]"])
    return text.replace(str(folder.resolve()), "<here>")


@cache
def _dataset() -> Path:
    """Make a dataset of three episodes; the files go when the process ends."""
    folder = tempfile.TemporaryDirectory(prefix="leconvert-messages-")
    _FOLDERS.append(folder)
    spec = DatasetSpec(
        episodes=3, frames=[12, 5, 9], cameras=(CameraSpec(key="observation.images.top"),)
    )
    return make_dataset(Path(folder.name) / "set", spec)


_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []


@pytest.mark.parametrize(("command", "said"), list(_blocks()), ids=[one for one, _ in _blocks()])
def test_a_mistake_is_told_as_the_file_has_it(
    command: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path / "home"))
    assert _said(command, tmp_path) == said


def test_each_mistake_is_a_sentence_with_a_code_and_mostly_a_next_step() -> None:
    without_step = 0
    for command, said in _blocks():
        sentence, *more, code = said.splitlines()
        assert sentence.startswith("leconvert: "), command
        assert sentence.endswith((".", "?")), command
        assert code in {"[2]", "[3]", "[5]", "[7]", "[11]"}, command
        without_step += not (more and more[-1].startswith("  → "))
    assert without_step <= 27


def _rewrite() -> None:
    os.environ["HF_LEROBOT_HOME"] = "/nonexistent"
    blocks = []
    for command, _ in _blocks():
        with tempfile.TemporaryDirectory() as folder:
            blocks.append(f"$ leconvert {command}".rstrip() + "\n" + _said(command, Path(folder)))
    MESSAGES.write_text("\n\n".join(blocks) + "\n", "utf-8")


if __name__ == "__main__":
    _rewrite()
