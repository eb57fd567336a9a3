"""The completion, asked in real shells as a user asks: by Tab."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from leconvert.cli.main import completion_script
from leconvert.support.extras import command_for_extra
from tests.program import Leconvert

# What bash does at Tab: it calls the function that `complete` names, with the words so far.
_BASH = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
called=$(complete -p leconvert | sed 's/.*-F \\([^ ]*\\).*/\\1/')
COMPREPLY=()
"$called" leconvert "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("completion")
    for shell in ("bash", "zsh", "fish"):
        (folder / shell).write_text(completion_script(shell) + "\n")
    return folder


def _needs(shell: str) -> str:
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"{shell} is not installed here")
    return found


def _in_bash(script: Path, *words: str, cwd: Path | None = None) -> list[str]:
    done = subprocess.run(
        [_needs("bash"), "--norc", "-c", _BASH, "bash", str(script), "leconvert", *words],
        capture_output=True, text=True, check=True, cwd=cwd,
    )  # fmt: skip
    return sorted(line.rstrip() for line in done.stdout.splitlines() if line)


def test_bash_completes_commands_options_choices_and_folders(scripts: Path, tmp_path: Path) -> None:
    script = scripts / "bash"
    assert _in_bash(script, "con") == ["convert"]
    assert _in_bash(script, "probe", "s") == ["submit", "summarize"]
    assert _in_bash(script, "convert", "--video") == ["--video-file-size-in-mb"]
    assert _in_bash(script, "convert", "--layout", "") == [
        "episode-files",
        "overlay",
        "reference",
        "streaming",
    ]
    assert _in_bash(script, "completion", "z") == ["zsh"]
    (tmp_path / "datasets").mkdir()
    (tmp_path / "data.json").write_text("{}")
    assert _in_bash(script, "convert", "--root", "da", cwd=tmp_path) == ["datasets"]
    assert _in_bash(script, "status", "da", cwd=tmp_path) == ["datasets"]
    assert _in_bash(script, "report", "-o", "da", cwd=tmp_path) == ["data.json", "datasets"]


def test_fish_completes_commands_options_and_choices(scripts: Path, tmp_path: Path) -> None:
    fish = _needs("fish")

    def completed(line: str) -> set[str]:
        done = subprocess.run(
            [fish, "--no-config", "-c", f"source {scripts / 'fish'}; complete -C '{line}'"],
            capture_output=True, text=True, check=True, env={"HOME": str(tmp_path), "PATH": ""},
        )  # fmt: skip
        assert done.stderr == ""
        return {entry.partition("\t")[0] for entry in done.stdout.splitlines()}

    assert "convert" in completed("leconvert con")
    assert "--video-file-size-in-mb" in completed("leconvert convert --video")
    assert {"reference", "streaming"} <= completed("leconvert convert --layout ")


def test_zsh_accepts_the_script(scripts: Path) -> None:
    subprocess.run([_needs("zsh"), "-n", str(scripts / "zsh")], check=True)
    text = (scripts / "zsh").read_text()
    assert text.startswith("#compdef leconvert")
    assert "reference streaming" in text


def test_without_shtab_it_is_said_what_to_install(
    leconvert_here: Leconvert, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    refused = leconvert_here("completion", "bash", code=19)
    assert command_for_extra("completion") in refused.stderr


def test_the_script_is_printed_alone(leconvert_here: Leconvert) -> None:
    printed = leconvert_here("completion", "bash")
    assert (printed.returncode, printed.stderr) == (0, "")
    assert "complete " in printed.stdout
    unknown = leconvert_here("completion", "ksh")
    assert unknown.stderr.startswith("leconvert: SHELL takes bash, zsh or fish, not 'ksh'")
