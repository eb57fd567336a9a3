"""How much of a pass goes into decoding, told by wrapping the one method that decodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

__all__ = ["SinglePass", "Stopwatch", "Watch", "time_single_pass", "timed_calls"]


class Watch(Protocol):
    """Something that knows how many seconds went into decoding so far."""

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        ...


class Stopwatch:
    """Adds up seconds.

    Attributes:
        seconds: So far.
    """

    def __init__(self) -> None:
        self.seconds = 0.0


@dataclass(frozen=True, slots=True)
class SinglePass:
    """One pass over samples in one process, without batches.

    Attributes:
        samples: How many were timed.
        seconds: What they took.
        decode_seconds: Of which inside the decoder; None where nothing decodes.
    """

    samples: int
    seconds: float
    decode_seconds: float | None

    def as_metrics(self) -> dict[str, float | None]:
        """Return rate and shares as results name them.

        ``decode_pct`` is the share of time inside the frame decoder, opening it included;
        ``fetch_pct`` is the rest: reading rows and bytes, windows, putting the sample together.
        """
        if not self.samples or self.seconds <= 0:
            return dict.fromkeys(("single_proc_samples_per_s", "fetch_pct", "decode_pct"))
        decoding = 100 * (self.decode_seconds or 0.0) / self.seconds
        return {
            "single_proc_samples_per_s": self.samples / self.seconds,
            "fetch_pct": 100 - decoding,
            "decode_pct": decoding,
        }


@contextmanager
def timed_calls(
    owner: Any, method: str, *, clock: Callable[[], float] = time.perf_counter
) -> Iterator[Stopwatch]:
    """Time every call of a method while the block runs, and put it back.

    Args:
        owner: The class or object that has it.
        method: Its name; it must not call itself.
        clock: Seconds, ascending.
    """
    watch = Stopwatch()
    original = getattr(owner, method)

    def timed(*arguments: Any, **options: Any) -> Any:
        began = clock()
        try:
            return original(*arguments, **options)
        finally:
            watch.seconds += clock() - began

    was_its_own = method in vars(owner)
    setattr(owner, method, timed)
    try:
        yield watch
    finally:
        if was_its_own:
            setattr(owner, method, original)
        else:
            delattr(owner, method)


def time_single_pass(
    samples: Iterable[Mapping[str, Any]],
    watch: Watch | None,
    *,
    num_warmup: int,
    num_samples: int,
    clock: Callable[[], float] = time.perf_counter,
) -> SinglePass:
    """Draw samples one by one; the first ``num_warmup`` are not timed."""
    drawn = iter(samples)
    for _ in islice(drawn, num_warmup):
        pass
    before = watch.seconds if watch else 0.0
    began = clock()
    count = sum(1 for _ in islice(drawn, num_samples))
    seconds = clock() - began
    return SinglePass(count, seconds, watch.seconds - before if watch else None)
