"""Processes that a server forks run as if they had been started anew, and their ends are told."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

from leconvert.support import forkserver
from leconvert.support.forkserver import ForkedProcess, start_python

# What the forked processes run. It is imported by the server, and is the main program of a process.
_CHILD = """\
import json, os, signal, sys
loaded = "imported" if __name__ != "__main__" else "run"
def facts():
    return {
        "arguments": sys.argv[1:], "input": sys.stdin.read(), "pid": os.getpid(),
        "parent": os.getppid(), "session": os.getsid(0), "name": __name__,
        "shared": "shared_child" in sys.modules, "files": len(os.listdir("/proc/self/fd")) - 3,
    }
if __name__ == "__main__":
    what = sys.argv[1]
    if what == "tell": print(json.dumps(facts()))
    if what == "code": sys.exit(int(sys.argv[2]))
    if what == "text": sys.exit("in words")
    if what == "fail": print("before"); raise ValueError("what failed")
    if what == "die": os.kill(os.getpid(), signal.SIGKILL)
    if what == "wait": print("ready", flush=True); signal.pause()
    if what == "serve": print("ready", flush=True); sys.stdin.read()
"""
# A program with a server, in which a test's lines run.
_PROGRAM = """\
import json, os, signal, subprocess, sys, threading
from leconvert.support.forkserver import *
from leconvert.support import forkserver
held = nowhere = open(os.devnull, "r+b", 0)
serve_forks(["shared_child"])
def start(*words):
    "Start a process with pipes as its standard files."
    (stdin, ours), (its, stdout) = os.pipe(), os.pipe()
    process = start_python("shared_child", words, (stdin, stdout, stdout))
    assert isinstance(process, ForkedProcess), process
    os.close(stdin), os.close(stdout)
    process.stdin, process.stdout = os.fdopen(ours, "wb"), os.fdopen(its, "rb")
    return process
"""


def program(tmp_path: Path, lines: str) -> subprocess.CompletedProcess[str]:
    """Run lines in a program with a server."""
    (tmp_path / "shared_child.py").write_text(_CHILD)
    return subprocess.run(
        [sys.executable, "-P", "-c", _PROGRAM + textwrap.dedent(lines)],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def ran(tmp_path: Path, lines: str) -> Any:
    """Return what such a program printed as JSON."""
    done = program(tmp_path, lines)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return json.loads(done.stdout)


def test_a_forked_process_sees_what_one_that_is_started_anew_sees(tmp_path: Path) -> None:
    told = ran(
        tmp_path,
        """
        process = start("tell", "ü", "\\udcff")
        process.stdin.write(b"given")
        process.stdin.close()
        said = json.loads(process.stdout.read())
        process.wait()
        print(json.dumps([said, process.pid, process.returncode, forkserver._server._pid]))
        """,
    )
    said, pid, code, server = told
    assert code == 0
    assert (said["pid"], said["parent"], said["session"]) == (pid, server, pid)
    assert said["arguments"] == ["tell", "ü", "\udcff"]
    assert said["input"] == "given"
    assert said["name"] == "__main__"
    assert said["shared"], "it was not forked from one that has imported the module"
    # The end that is told over a pipe, and the listing itself.
    assert said["files"] == 2


def test_ends_and_signals_are_told_as_by_subprocess_to_threads_too(tmp_path: Path) -> None:
    ends, signals, said = ran(
        tmp_path,
        """
        ends = []
        for words in (["code", "0"], ["code", "3"], ["text"], ["fail"], ["die"]):
            process = start(*words)
            said = process.stdout.read().decode()
            ends.append([process.wait(), process.poll(), said])
        process = start("wait")
        process.stdout.readline()
        before = process.poll()
        try:
            process.wait(0.01)
            late = False
        except subprocess.TimeoutExpired:
            late = True
        process.send_signal(signal.SIGTERM)
        first = process.wait(30)
        process.send_signal(signal.SIGKILL)  # it has ended: nobody gets it
        other = start("wait")
        other.kill()
        signals = [before, late, first, process.returncode, other.wait()]
        said = {}
        def one(number):
            process = start("tell", str(number))
            process.stdin.close()
            said[number] = json.loads(process.stdout.read())["arguments"][1]
        threads = [threading.Thread(target=one, args=(number,)) for number in range(8)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        print(json.dumps([ends, signals, said]))
        """,
    )
    assert [end[:2] for end in ends] == [[0, 0], [3, 3], [1, 1], [1, 1], [-9, -9]]
    assert ends[3][2].startswith("before\n") or ends[3][2].endswith("before\n")
    assert "ValueError: what failed" in ends[3][2]
    assert signals == [None, True, -15, -15, -9]
    assert said == {str(number): str(number) for number in range(8)}


def test_without_its_server_a_process_goes_on_and_others_are_started_anew(tmp_path: Path) -> None:
    told = ran(
        tmp_path,
        """
        process = start("wait")
        process.stdout.readline()
        os.kill(forkserver._server._pid, signal.SIGKILL)
        os.waitpid(forkserver._server._pid, 0)
        anew = start_python("shared_child", ["code", "4"], (nowhere.fileno(),) * 3)
        runs = process.poll()
        process.send_signal(signal.SIGTERM)
        end_server()
        print(json.dumps([type(anew).__name__, anew.wait(), runs, process.wait(30)]))
        """,
    )
    assert told == ["Popen", 4, None, 255]


def test_a_server_ends_with_a_killed_program_and_so_does_who_has_no_input(tmp_path: Path) -> None:
    lines = """
    process = start("serve")
    process.stdout.readline()
    print(json.dumps([forkserver._server._pid, process.pid]), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    """
    killed = program(tmp_path, lines)
    assert killed.returncode == -signal.SIGKILL
    for pid in json.loads(killed.stdout):
        try:
            process = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            assert select.select([process], [], [], 30)[0], f"process {pid} goes on"
        finally:
            os.close(process)


def test_no_server_is_left_behind_where_there_is_a_second_thread() -> None:
    begun, end = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: (begun.set(), end.wait()))
    thread.start()
    begun.wait()
    try:
        forkserver.serve_forks(["json"])
        assert forkserver._server is None
        with open(os.devnull, "r+b", 0) as nowhere:  # noqa: PTH123
            process = start_python("platform", (), (nowhere.fileno(),) * 3)
        assert not isinstance(process, ForkedProcess)
        assert process.wait(30) == 0
    finally:
        end.set()
        thread.join()


def test_the_program_forks_its_workers(tmp_path: Path, small_source: Path) -> None:
    # Of a worker started anew nothing of the program's command line is left.
    lines = """
from leconvert.run.engines import local
started = local.start_python
def noted(*args, **options):
    process = started(*args, **options)
    print(type(process).__name__, file=sys.stderr)
    return process
local.start_python = noted
from leconvert.cli import program
sys.argv = ["leconvert", *sys.argv[1:]]
program()
"""
    out = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, "-P", "-c", "import sys" + lines, "convert", small_source, out, "-j", "2"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("ForkedProcess") == 2
