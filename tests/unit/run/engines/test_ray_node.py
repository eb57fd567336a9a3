"""What a Ray task does on a node, and what becomes of its worker when Ray's process is gone."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

from leconvert.run.engines.ray import work_on_this_node

HOST = socket.gethostname()


def test_a_worker_s_output_and_code_come_back(tmp_path: Path) -> None:
    log = tmp_path / "1.log"
    program = "import sys; print(sys.argv[1:], flush=True); sys.exit(11)"
    said = work_on_this_node(["-S", "-c", program], ["work", "WORK"], str(log), 1.0)
    assert said == (HOST, 11, "")
    assert log.read_text() == f"['{os.getpid()}', 'work', 'WORK']\n"


def test_a_work_dir_that_is_not_there_is_named(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "1.log"
    said = work_on_this_node(["-c", ""], [], str(log), 1.0)
    assert said == (HOST, None, f"{HOST} cannot write to {log.parent}: No such file or directory")


def interrupted_once_there(
    tmp_path: Path, program: str, grace_seconds: float
) -> tuple[str, int | None, str]:
    """Run a worker that is interrupted as Ray does it, as soon as it says that it is there."""
    there, log = tmp_path / "there", tmp_path / "1.log"

    def interrupt() -> None:
        pause = threading.Event()
        while not there.exists():
            pause.wait(0.01)  # for a file of another process
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    ray = threading.Thread(target=interrupt)
    try:
        ray.start()
        head = f"import pathlib, signal, sys\nthere = pathlib.Path({str(there)!r})\n"
        return work_on_this_node(["-S", "-c", head + program], [], str(log), grace_seconds)
    finally:
        ray.join()
        signal.signal(signal.SIGINT, before)


def test_a_cancelled_task_lets_its_worker_hand_back(tmp_path: Path) -> None:
    program = (
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))\n"
        "there.touch()\nwhile True: signal.pause()\n"
    )
    assert interrupted_once_there(tmp_path, program, 30.0) == (HOST, 130, "")


def test_a_worker_that_does_not_hand_back_in_time_is_killed(tmp_path: Path) -> None:
    program = (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nthere.touch()\nwhile True: signal.pause()\n"
    )
    assert interrupted_once_there(tmp_path, program, 0.0) == (HOST, -9, "")


def test_a_worker_is_asked_to_stop_when_its_parent_dies(tmp_path: Path) -> None:
    """The parent, which stands for Ray's process, is killed while the worker runs."""
    package = tmp_path / "leconvert_here"
    package.mkdir()
    (package / "leconvert.py").write_text("")
    worker = (
        "import os, runpy, signal, sys\n"
        "import leconvert.run.engines.ray as tied\n"
        "def run(*_, **__):\n"
        "    signal.signal(signal.SIGTERM, lambda *_: (print('asked', flush=True), os._exit(0)))\n"
        "    print(sys.argv, flush=True)\n"
        "    while True: signal.pause()\n"
        "runpy.run_module = run\n"
        "tied.main()\n"
    )
    parent = (
        "import os, subprocess, sys, signal\n"
        "subprocess.Popen([sys.executable, '-c', sys.argv[1], str(os.getpid()), 'work', 'WORK'])\n"
        "signal.pause()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", parent, worker], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "['leconvert', 'work', 'WORK']\n"
        process.kill()
        assert process.stdout.read() == "asked\n"


def test_a_worker_whose_parent_is_gone_already_does_not_begin() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "leconvert.run.engines.ray", "1", "work", "WORK"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGTERM, "", "")
