"""A process ends with its parent, also where no service of the system tells of the parent's end."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.plain_platform.conftest import Run

# The child, the parent that starts it, and the test's own program, which starts the parent. The
# child looks for its parent when its input ends, so the order of the two events is certain.
CHILD = """
import os, signal, sys
from leconvert.support.machine import end_with_parent

def asked(*_):
    os.write(1, b"asked")
    os._exit(0)

signal.alarm(120)  # so that no failure leaves a process
signal.signal(signal.SIGTERM, asked)
sys.stdin.read()
end_with_parent(signal.SIGTERM, int(sys.argv[1]))
os.write(1, b"looks, ")
while True:
    signal.pause()
"""
PARENT = """
import os, subprocess, sys
began, ends = map(int, sys.argv[1:3])
subprocess.Popen([sys.executable, "-c", sys.argv[3], str(os.getpid())], stdin=began)
os.close(began)
os.read(ends, 1)
"""
PROGRAM = """
import os, select, subprocess, sys
parent, child, ends_first = sys.argv[1], sys.argv[2], sys.argv[3] == "before"
(began, begin), (ends, end), (told, tells) = os.pipe(), os.pipe(), os.pipe()
running = subprocess.Popen(
    [sys.executable, "-c", parent, str(began), str(ends), child],
    pass_fds=(began, ends), stdout=tells, stderr=tells,
)
for descriptor in (began, ends, tells):
    os.close(descriptor)

def heard():
    assert select.select([told], [], [], 30)[0], "the child was told nothing"
    got = os.read(told, 1000)
    assert got, said
    return got

said = b""
if ends_first:
    os.close(end)
    running.wait()
os.close(begin)
while not said.startswith((b"looks", b"asked")):
    said += heard()
os.close(end) if not ends_first else None
running.wait()
while not said.endswith(b"asked"):
    said += heard()
"""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("where", ["plain", "elsewhere"])
def test_a_child_is_told_that_its_parent_ended_before_or_after_it_looked(
    plain: Run, where: str, when: str
) -> None:
    words = ("-c", PROGRAM, PARENT, CHILD, when)
    if where == "plain":
        plain(*words)
    else:
        subprocess.run([sys.executable, *words], check=True)
