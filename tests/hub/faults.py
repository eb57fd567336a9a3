"""Rules that break requests: by number, by method and path, so many times."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["Fault", "Faults"]

_KINDS = ("drop_before", "drop_after", "status", "hold", "truncate", "flip", "flip_up", "none")


@dataclass(slots=True)
class Fault:
    """What goes wrong with the requests that it matches.

    Attributes:
        kind: ``drop_before`` closes the connection without doing anything, ``drop_after`` does what
            was asked and closes it without an answer, ``status`` answers with ``status`` and does
            nothing, ``hold`` waits for ``release`` before it does anything, ``truncate`` sends the
            first ``keep_bytes`` of the answer's body and closes, ``flip`` changes a bit of its byte
            ``at_byte``, ``flip_up`` one of what is uploaded, ``none`` breaks nothing.
        at: The number of the request, from 1, counted since the rules were set; None for any.
        onward: With ``at``: that request and all after it.
        method: The method, such as ``PUT``; None for any.
        path: A pattern that is searched for in the path with its query; None for any.
        times: For how many requests it holds; None for all.
        status: The status that ``status`` answers with.
        headers: Headers of that answer, such as ``Retry-After``.
        body: Its body.
        keep_bytes: What ``truncate`` lets through.
        at_byte: Where ``flip`` changes something.
        delay_seconds: Waited before anything else, for measuring; tests use ``hold``.
        interfere: Called before the request is served: what somebody else does meanwhile.
        release: What ``hold`` waits for.
        reached: Set when a request has matched, so that a test can wait for it.
    """

    kind: str
    at: int | None = None
    onward: bool = False
    method: str | None = None
    path: str | None = None
    times: int | None = 1
    status: int = 500
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b'{"error": "as a rule asks"}'
    keep_bytes: int = 0
    at_byte: int = 0
    delay_seconds: float = 0.0
    interfere: Callable[[], object] | None = None
    release: threading.Event = field(default_factory=threading.Event)
    reached: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise ValueError(f"{self.kind!r} is none of {', '.join(_KINDS)}")
        if self.onward:
            self.times = None

    def matches(self, number: int, method: str, target: str) -> bool:
        """Tell whether a request is meant."""
        if self.at is not None and (number < self.at if self.onward else number != self.at):
            return False
        if self.method is not None and method != self.method:
            return False
        return self.path is None or re.search(self.path, target) is not None


class Faults:
    """The rules in force; the first that matches and is not used up holds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rules: list[Fault] = []
        self._numbered_from = 0

    def set(self, *rules: Fault, numbered_from: int) -> None:
        """Replace all rules; requests count from 1 after ``numbered_from`` logged ones."""
        with self._lock:
            self._rules = list(rules)
            self._numbered_from = numbered_from

    def take(self, number: int, method: str, target: str) -> Fault | None:
        """Return the rule for a request, and count it as used."""
        with self._lock:
            for rule in self._rules:
                if rule.times == 0 or not rule.matches(
                    number - self._numbered_from, method, target
                ):
                    continue
                if rule.times is not None:
                    rule.times -= 1
                return rule
        return None
