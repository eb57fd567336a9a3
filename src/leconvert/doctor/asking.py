"""Asks another process, for a bounded time: what it loads may crash, or hang for ever."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

__all__ = ["Answer", "ask", "library_loads", "probe_diagnosis"]

_LIMIT_SECONDS = 60.0
_LAST_WORDS = 300


@dataclass(frozen=True, slots=True)
class Answer:
    """What a process said.

    Attributes:
        text: Its standard output; empty if it did not end well.
        trouble: Why there is no answer; None if there is one.
    """

    text: str
    trouble: str | None = None


def ask(command: Sequence[str], *, limit_seconds: float = _LIMIT_SECONDS) -> Answer:
    """Run a command and return what it says.

    A process that a driver holds in the kernel survives being killed; it is not waited for.

    Args:
        command: Program and arguments.
        limit_seconds: How long it may take.
    """
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    except OSError as error:
        return Answer("", f"it cannot be started: {error.strerror}")
    try:
        said, complained = process.communicate(timeout=limit_seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=1.0)
        return Answer("", f"no answer within {limit_seconds:g} s")
    if process.returncode < 0:
        return Answer("", f"it was ended by signal {-process.returncode}")
    if process.returncode and not said:
        words = complained.decode("utf-8", "replace").split()
        return Answer("", " ".join(words)[-_LAST_WORDS:] or f"it ended with {process.returncode}")
    return Answer(said.decode("utf-8", "replace"))


def probe_diagnosis() -> tuple[dict[str, Any] | None, str | None]:
    """Return what `leconvert probe diagnose` finds, or None and why it found nothing."""
    answer = ask([sys.executable, "-P", "-m", "leconvert", "probe", "diagnose", "--json"])
    if answer.trouble is not None:
        return None, answer.trouble
    try:
        found = json.loads(answer.text)
    except ValueError:
        return None, f"it answered {answer.text[:_LAST_WORDS]!r}"
    return (found, None) if "decoder" in found else (None, str(found.get("message")))


def library_loads(name: str) -> bool:
    """Tell whether the dynamic loader finds a shared library, such as a driver's."""
    code = f"import ctypes; ctypes.CDLL({name!r}); print('loads')"
    return ask([sys.executable, "-P", "-c", code], limit_seconds=20.0).trouble is None
