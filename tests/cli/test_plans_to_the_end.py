"""`check --plan-repairs`, obeyed until it names nothing more: it ends, and never in a circle.

It ends with a dataset of which `check` says no error, or with 3 and what has to be fetched or
corrected by hand, and then no command of it is offered.
"""

from __future__ import annotations

import contextlib
import io
import json
import shlex
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from leconvert.cli import main
from tests.oddities import IN_THE_WILD, ODDITIES
from tests.unit.dataset.check.test_dataset import DEFECTS, sound
from tests.v3_by_hand import DERIVED, LOCATED, make_sound

__all__ = ["sound"]

_MOST_STEPS = 4


def _run(*words: object) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(word) for word in words])
    return code, out.getvalue(), err.getvalue()


def follow(
    root: Path, folder: Path, *, without_conversions: bool = False
) -> tuple[int, list[str], str]:
    """Obey until nothing more is named; return the last code, the commands, and what was said.

    Args:
        without_conversions: Whether a conversion without an option is taken for done.
    """
    commands: list[str] = []
    for step in range(_MOST_STEPS):
        code, out, said = _run("check", root, "--plan-repairs", "--json")
        assert code in (0, 3), said
        if code:
            record = json.loads(out)
            return code, commands, f"{record['message']} → {record.get('next_step')}"
        command = json.loads(out)["command"]
        if command is None:
            code, out, said = _run("check", root)
            assert code == 0, f"nothing to do? {out}"
            return 0, commands, ""
        assert command not in commands, f"in a circle: {commands}"
        commands.append(command.replace(str(root), "DATASET"))
        program, verb, *rest = shlex.split(command)
        assert program == "leconvert"
        if without_conversions and [verb, *rest] == ["convert", "--root", str(root)]:
            return 0, commands, ""
        result = folder / f"step{step}"
        code, out, said = _run(verb, *rest, "--output", result)
        assert code == 0, f"{command}: {out[-500:]} {said[-1500:]}"
        root = result
        if verb == "convert":
            code, out, said = _run("check", root)
            return code, commands, out
    raise AssertionError(f"no end: {commands}")


@pytest.fixture(scope="module")
def files_of_episodes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_sound(tmp_path_factory.mktemp("plans"))


def _some(names: Iterable[str], in_ci: Iterable[str]) -> list[Any]:
    return [pytest.param(name, marks=() if name in in_ci else pytest.mark.slow) for name in names]


# `test_located_files` names and gives the same commands for others.
_BY_HAND_IN_CI = {"the tables of two episodes are swapped"}


@pytest.mark.parametrize("name", _some([*LOCATED, *DERIVED], _BY_HAND_IN_CI))
def test_plans_for_datasets_made_by_hand_lose_nothing(
    name: str, files_of_episodes: Path, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(files_of_episodes, tmp_path / "dataset"))
    (LOCATED | DERIVED)[name](root)
    code, commands, said = follow(root, tmp_path)
    assert code == 0, said
    # Statistics need a conversion, which is told all that it does.
    flags = " --fill-stats" if "no table of episodes" in name else ""
    flags += " --locate-files" if flags and "templates" in name else ""
    assert commands == [f"leconvert repair DATASET{flags}"]
    assert not any("drop" in command for command in commands)


def test_a_feature_without_a_dtype_leads_to_a_declaration(sound: Path, tmp_path: Path) -> None:
    """Nothing reads the dataset before: what helps is told by all, and does."""
    root = Path(shutil.copytree(sound, tmp_path / "dataset"))
    path = root / "meta/info.json"
    info = json.loads(path.read_bytes())
    info["features"]["action"].pop("dtype")
    path.write_text(json.dumps(info))
    commands = (
        ["check", root],
        ["check", root, "--plan-repairs"],
        ["convert", root, tmp_path / "x"],
    )
    for words in commands:
        code, out, said = _run(*words)
        assert code == 3
        told = " ".join((out + said).split())
        assert f"Or take the feature out of the features there: `leconvert repair {root}" in told
        assert f"convert {root} NEW" not in told
    del info["features"]["action"]
    path.write_text(json.dumps(info))
    assert _run("repair", root, "--declare-features")[0] == 0
    assert _run("check", root)[0] == 0
    declared = json.loads(path.read_bytes())["features"]["action"]
    assert (declared["dtype"], declared["shape"]) == ("float32", [6])


# One of each way out that a plan has: nothing to do, each option that it names, and what a
# person has to do. `test_repair` repairs one of each finding.
_DEFECTS_IN_CI = {
    "a video of nobody", "a truncated video", "a column too many", "a row too few",
    "a statistic that no episode has", "no frame rate",
}  # fmt: skip


@pytest.mark.parametrize("name", _some(DEFECTS, _DEFECTS_IN_CI))
def test_plans_for_every_defect_of_v30_end(name: str, sound: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(sound, tmp_path / "dataset"))
    DEFECTS[name][1](root)
    _ends(root, tmp_path)


# A plan does not depend on the oddities of a clip's stream, whichever codec it has.
_IN_CLIPS = ("HEVC ", "H.264", "AV1", "late start ", "rotated ", "4 4 4")
_OTHERS = [name for name in ODDITIES if not name.startswith(_IN_CLIPS)]
_ODDITIES_IN_CI = [*list(IN_THE_WILD)[::2], *_OTHERS[::4]]


@pytest.mark.parametrize("name", _some([*IN_THE_WILD, *ODDITIES], _ODDITIES_IN_CI))
def test_plans_for_every_oddity_of_v2_end(name: str, tmp_path: Path) -> None:
    makers: dict[str, Callable[[Path], object]] = IN_THE_WILD | ODDITIES
    makers[name](tmp_path / "dataset")
    # `tests.conformance.test_oddities` converts each and checks the result.
    _ends(tmp_path / "dataset", tmp_path, without_conversions=name in ODDITIES)


def _ends(root: Path, folder: Path, *, without_conversions: bool = False) -> None:
    code, commands, said = follow(root, folder, without_conversions=without_conversions)
    if code:
        assert not commands or code == 3, (commands, said)
        assert "--plan-repairs" not in said
        assert "None" not in said.rpartition("→")[2]
