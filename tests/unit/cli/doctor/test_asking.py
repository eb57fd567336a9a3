"""A process that is asked may crash, hang or answer nonsense: there is an answer all the same."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from leconvert.cli import doctor
from leconvert.cli.doctor import NoAnswerError, ask, import_troubles, library_loads, probe_diagnosis


def _python(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", code]


def test_an_answer_is_read_and_a_library_loads_or_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(_python("print('hello')")) == "hello\n"
    assert library_loads("libc.so.6")
    assert not library_loads("libnone-such.so.1")
    monkeypatch.setattr(doctor, "ask", lambda _command: '{"decoder": {}}')
    assert probe_diagnosis() == {"decoder": {}}


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (_python("import signal; signal.pause()"), "no answer within 0.5 s"),
        (_python("import os; os.kill(os.getpid(), 11)"), "it was ended by signal 11"),
        (_python("raise SystemExit('no driver')"), "no driver"),
        (_python("raise SystemExit(3)"), "it ended with 3"),
        (["/none/python"], "it cannot be started: No such file or directory"),
    ],
)
def test_a_process_that_hangs_crashes_or_fails_is_told_by_its_limit_signal_or_last_words(
    command: list[str], why: str
) -> None:
    limit_seconds = 0.5 if "0.5" in why else 60.0
    with pytest.raises(NoAnswerError) as told:
        ask(command, limit_seconds=limit_seconds)
    assert str(told.value) == why


@pytest.mark.parametrize(
    ("answer", "why"),
    [('{"error": "UsageError", "message": "No."}', "No."), ("nonsense", "it answered 'nonsense'")],
)
def test_a_diagnosis_that_cannot_be_read_is_told_why_not(
    answer: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "ask", lambda _command: answer)
    with pytest.raises(NoAnswerError) as told:
        probe_diagnosis()
    assert str(told.value) == why


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
