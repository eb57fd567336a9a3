"""A process that is asked may crash, hang or answer nonsense: there is an answer all the same."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from leconvert.cli import examination as doctor
from leconvert.cli.examination import Answer, ask, import_troubles, library_loads, probe_diagnosis


def _python(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", code]


def test_what_a_process_says_is_the_answer() -> None:
    assert ask(_python("print('hello')")) == Answer("hello\n")


def test_a_process_that_hangs_is_left_after_the_limit() -> None:
    answer = ask(_python("import signal; signal.pause()"), limit_seconds=0.3)
    assert answer == Answer("", "no answer within 0.3 s")


def test_a_process_that_crashes_is_told_by_its_signal() -> None:
    answer = ask(_python("import os; os.kill(os.getpid(), 11)"))
    assert answer == Answer("", "it was ended by signal 11")


def test_a_process_that_fails_is_told_by_its_last_words() -> None:
    answer = ask(_python("raise SystemExit('no driver')"))
    assert answer == Answer("", "no driver")
    assert ask(_python("raise SystemExit(3)")) == Answer("", "it ended with 3")


def test_a_program_that_is_not_there_is_no_surprise() -> None:
    assert ask(["/none/python"]) == Answer("", "it cannot be started: No such file or directory")


def test_a_library_loads_or_does_not() -> None:
    assert library_loads("libc.so.6")
    assert not library_loads("libnone-such.so.1")


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (Answer('{"decoder": {}}'), ({"decoder": {}}, None)),
        (Answer('{"error": "UsageError", "message": "No."}'), (None, "No.")),
        (Answer("nonsense"), (None, "it answered 'nonsense'")),
        (Answer("", "no answer within 60 s"), (None, "no answer within 60 s")),
    ],
)
def test_a_diagnosis_is_read_or_told_why_not(
    answer: Answer, outcome: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "ask", lambda _command: answer)
    assert probe_diagnosis() == outcome


def test_imports_tell_what_does_not_load_by_the_first_line_of_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_one.py").write_text("raise OSError('no libavutil.so.59\\nmore')")
    (tmp_path / "fatal_one.py").write_text("import os; os.abort()")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert import_troubles(["json", "broken_one"]) == {"broken_one": "OSError: no libavutil.so.59"}
    found = import_troubles(["json", "broken_one", "fatal_one"])
    assert found == {
        "broken_one": "OSError: no libavutil.so.59",
        "fatal_one": "it was ended by signal 6",
    }
    assert import_troubles([]) == {}
