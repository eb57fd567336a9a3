"""What is said arrives, or its failure is a sentence: pipes, names and terminals of every kind."""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import leconvert
from leconvert.cli.main import main
from leconvert.cli.output import folded
from leconvert.support.errors import UsageError
from tests.program import Leconvert

PROGRAM = [sys.executable, "-m", "leconvert"]
# As in a shell: what is short fails when the program ends, not when it is written.
BUFFERED = {**os.environ, "PYTHONUNBUFFERED": ""}


def _without_reader(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run the program with an output that nobody reads any more, as after ``| head -1``."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        return subprocess.run(
            [*PROGRAM, *arguments],
            stdout=writer, stderr=subprocess.PIPE, check=False, env=BUFFERED,
        )  # fmt: skip
    finally:
        os.close(writer)


@pytest.mark.parametrize("arguments", [["--version"], ["convert", "--help"]])
def test_a_reader_that_went_away_is_no_failure_to_tell_of(arguments: list[str]) -> None:
    ended = _without_reader(*arguments)
    assert (ended.returncode, ended.stderr) == (141, b"")


@pytest.mark.parametrize(("both", "code"), [(False, 0), (True, 141)])
def test_a_conversion_goes_on_when_nobody_reads_its_progress(
    small_source: Path, tmp_path: Path, both: bool, code: int
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(
        [*PROGRAM, "convert", "--root", str(small_source), "--output", str(tmp_path / "out")],
        stdout=writer if both else subprocess.PIPE, stderr=writer, check=False, env=BUFFERED,
    )  # fmt: skip
    os.close(writer)
    assert ended.returncode == code
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_mistake_has_its_code_where_nobody_can_be_told(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run([*PROGRAM, "check", str(tmp_path)], stderr=full, check=False)
        as_json = subprocess.run(
            [*PROGRAM, "check", str(tmp_path), "--json"],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
    assert ended.returncode == 3
    assert (as_json.returncode, as_json.stderr.count("\n")) == (3, 2), as_json.stderr


def test_an_interrupt_before_anything_is_loaded_ends_without_a_traceback() -> None:
    code = (
        "import sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'leconvert.cli.main':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "import leconvert.__main__\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (ended.returncode, ended.stderr) == (130, b"")


def test_an_output_that_is_closed_or_full_does_not_undo_the_work(small_source: Path) -> None:
    closed = subprocess.run(
        ["/bin/sh", "-c", 'exec "$@" >&-', "sh", *PROGRAM, "check", str(small_source)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert closed.returncode == 0, closed.stderr
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [*PROGRAM, "--version"],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=BUFFERED,
        )  # fmt: skip
    assert ended.returncode == 11
    assert "there is no space left" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_terminal_without_utf_8_gets_what_it_can_show(source_copy: Path) -> None:
    named = source_copy.rename(source_copy.with_name("données"))
    told = subprocess.run(
        [*PROGRAM, "check", str(named)],
        capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    assert "donn\\xe9es (v2.1): 0 errors" in told.stdout


def test_a_name_that_is_no_utf_8_is_refused_in_a_sentence(
    leconvert_here: Leconvert, small_source: Path, source_copy: Path
) -> None:
    named = os.fsdecode(os.fsencode(source_copy) + b"\xff")
    source_copy.rename(named)
    refused = leconvert_here("convert", "--root", named, "--output", f"{named}.out", code=2)
    assert "No parquet file can be opened there" in refused.stderr
    assert "Rename the folder" in refused.stderr
    with pytest.raises(UsageError, match="No parquet file can be opened there"):
        leconvert.convert(small_source, output=f"{named}.out")


def in_a_plain_c_locale(dataset: Path, output: str, utf8_mode: str) -> tuple[int, str]:
    """Convert without a locale of UTF-8; return the code and what was said on stderr."""
    told = subprocess.run(
        [*PROGRAM, "convert", "--root", os.fsencode(dataset), "--output", os.fsencode(output)],
        capture_output=True, check=False,
        env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": utf8_mode},
    )  # fmt: skip
    return told.returncode, told.stderr.decode("ascii", "backslashreplace")


def test_a_name_of_utf_8_is_not_blamed_for_a_locale_that_is_none(
    source_copy: Path, tmp_path: Path
) -> None:
    named = source_copy.rename(tmp_path / "donn\xe9es")
    code, said = in_a_plain_c_locale(named, f"{named}.out", "0")
    assert code == 2
    assert "in this locale" in said
    assert "Set PYTHONUTF8=1" in said
    assert "Rename it" not in said
    code, said = in_a_plain_c_locale(named, f"{named}.out", "1")  # what it suggests helps
    assert code == 0, said


@pytest.mark.parametrize(
    ("place", "mode", "arguments", "code", "lacking"),
    [
        ("set", 0o000, ("check", "set"), 11, "enter the folder"),
        ("set/data/chunk-000/episode_000000.parquet", 0o000, ("check", "set"), 3, "read"),
        ("there", 0o555, ("convert", "set", "there/out"), 5, "write in the folder"),
    ],
)
def test_a_right_that_is_missing_is_named_and_the_command_that_gives_it_helps(
    small_source: Path, tmp_path: Path, place: str, mode: int, arguments: tuple[str, ...],
    code: int, lacking: str,
) -> None:  # fmt: skip
    """Root may do everything unless it gives that up."""
    unprivileged: tuple[str, ...] = ()
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("setpriv is missing")
        unprivileged = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search")
    command = [*unprivileged, *PROGRAM, *arguments]
    shutil.copytree(small_source, tmp_path / "set")
    (tmp_path / "there").mkdir()
    (tmp_path / place).chmod(mode)
    try:
        refused = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        *_, said, helps = refused.stderr.splitlines()
        assert refused.returncode == code
        user = pwd.getpwuid(os.geteuid()).pw_name
        assert said == f"leconvert: User {user} may not {lacking} {tmp_path / place}."
        subprocess.run(shlex.split(helps.split("`")[1]), check=True)
        subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)
    finally:
        (tmp_path / place).chmod(0o755)


def test_a_folder_that_was_removed_under_the_shell_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    refused = subprocess.run(
        ["/bin/sh", "-c", 'cd "$0" && rmdir "$0" && exec "$@"', str(tmp_path / "gone"),
         *PROGRAM, "check", "."],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert refused.returncode == 11
    assert refused.stderr.splitlines() == [
        "leconvert: The current folder of this command no longer exists.",
        "  → Change to a folder that exists, then run the same command again.",
    ]


# ------------------------------------------------------------------------------------------------
# Sentences fit a terminal between words, and are one line each for `grep`.


def test_a_command_to_copy_is_not_broken() -> None:
    command = f"`leconvert push {'/a long folder' * 4} --push-repo-id ORG/NAME`"
    line = f"  → The dataset is converted: then {command} is enough, and nothing else is left."
    assert folded(line, 60, "    ") == [
        "  → The dataset is converted: then",
        f"    {command}",
        "    is enough, and nothing else is left.",
    ]


@pytest.mark.parametrize("command", ["convert", "check"])
@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (RuntimeError("can't start new thread"), "can start no more threads"),
        (MemoryError(), "can get no more memory"),
    ],
)
def test_a_limit_of_threads_or_memory_is_told_and_the_same_command_continues_above_it(
    small_source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], command: str, raised: Exception, said: str,
) -> None:  # fmt: skip
    def limited(_thread: threading.Thread) -> None:
        raise raised

    arguments = [command, str(small_source)]
    if command == "convert":
        arguments += ["--output", str(tmp_path / "out"), "--engine", "inline"]
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", limited)
        assert main(arguments) == 11
    told = capsys.readouterr().err
    assert said in told
    assert "then run the same command again" in " ".join(told.split())
    assert main(arguments) == 0
