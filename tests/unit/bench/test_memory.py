"""Memory counts all processes of a tree, at its peak."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from leconvert.bench import environment
from leconvert.bench.environment import TreeMemory, tree_memory

_HOLDS_100_MB = (
    "import sys; held = bytearray(b'x') * 100_000_000; print('held', flush=True); sys.stdin.read()"
)
_PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {_HOLDS_100_MB!r}])"


def test_memory_of_children_and_their_children_counts() -> None:
    # The tree of a process of its own: what earlier tests started and ends meanwhile is not in it.
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout.readline() == b"held\n"
        rss, pss = tree_memory(parent.pid)
        with_this_process, _ = tree_memory(os.getpid())
        parent.stdin.close()

    assert with_this_process > rss > pss > 100_000_000
    assert tree_memory(parent.pid) == (0, None)  # it is gone


def test_the_thread_samples_by_itself_and_the_peak_stays_when_memory_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Without the processes that earlier tests left, which come and go.
    monkeypatch.setattr(environment, "descendants", lambda _: ())
    with TreeMemory(every_seconds=0.001) as memory:
        held = bytearray(b"x") * 80_000_000
        memory.start()
        memory.start()
        while not memory.peak_rss_bytes:
            pass
        peak = memory.peak_rss_bytes
        del held
        memory.sample()

    assert memory.peak_rss_bytes >= peak
    assert memory.peak_rss_bytes > memory.seen[-1][0] + 40_000_000
    assert memory.peak_pss_bytes is not None
