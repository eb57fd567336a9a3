"""Memory counts the children too."""

from __future__ import annotations

import subprocess
import sys

from leconvert.bench.environment import TreeMemory, tree_memory

_HOLDS_100_MB = (
    "import sys; held = bytearray(b'x') * 100_000_000; print('held', flush=True); sys.stdin.read()"
)


def test_a_childs_memory_is_part_of_the_trees() -> None:
    with TreeMemory(every_seconds=3600) as alone:
        alone.sample()
    with (
        subprocess.Popen(
            [sys.executable, "-c", _HOLDS_100_MB], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as child,
        TreeMemory(every_seconds=3600) as both,
    ):
        assert child.stdout.readline() == b"held\n"
        both.sample()
        child.kill()

    assert both.peak_rss_bytes > alone.peak_rss_bytes + 100_000_000
    assert alone.peak_pss_bytes is not None
    assert both.peak_pss_bytes is not None
    # Half of it: what this process shares with others that begin or end meanwhile is megabytes.
    assert both.peak_pss_bytes > alone.peak_pss_bytes + 50_000_000
    assert both.peak_pss_bytes < both.peak_rss_bytes


def test_children_of_children_count_too() -> None:
    nested = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {_HOLDS_100_MB!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", nested], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout.readline() == b"held\n"
        rss, pss = tree_memory(child.pid)
        child.stdin.close()

    assert rss > 100_000_000
    assert pss is not None
    assert pss > 100_000_000


def test_the_peak_stays_when_memory_is_given_back() -> None:
    with TreeMemory(every_seconds=3600) as memory:
        held = bytearray(b"x") * 80_000_000
        memory.sample()
        peak = memory.peak_rss_bytes
        del held
        memory.sample()

    assert memory.peak_rss_bytes == peak


def test_the_thread_samples_by_itself() -> None:
    with TreeMemory(every_seconds=0.001) as memory:
        memory.start()
        memory.start()
        while not memory.peak_rss_bytes:
            pass

    assert memory.peak_rss_bytes > 0


def test_a_process_that_is_gone_has_no_memory() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()

    assert tree_memory(child.pid) == (0, None)
