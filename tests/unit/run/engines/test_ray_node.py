"""What a Ray task does on a node, and what becomes of its worker when Ray's process is gone."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from leconvert.run.engines.ray import work_on_this_node

HOST = socket.gethostname()


def test_output_and_code_come_back_and_a_missing_work_dir_is_named(tmp_path: Path) -> None:
    log = tmp_path / "1.log"
    program = "import sys; print(sys.argv[1:], flush=True); sys.exit(11)"
    said = work_on_this_node(["-S", "-c", program], ["work", "WORK"], str(log), 1.0)
    assert said == (HOST, 11, "")
    assert log.read_text() == f"['{os.getpid()}', 'work', 'WORK']\n"
    said = work_on_this_node(["-c", ""], [], str(tmp_path / "logs" / "1.log"), 1.0)
    why = f"{HOST} cannot write to {tmp_path / 'logs'}: No such file or directory"
    assert said == (HOST, None, why)


@pytest.mark.parametrize(
    ("answer", "grace_seconds", "code"),
    [("lambda *_: sys.exit(130)", 30.0, 130), ("signal.SIG_IGN", 0.0, -9)],
    ids=["in time", "not in time"],
)
def test_a_cancelled_task_lets_its_worker_hand_back_in_time(
    tmp_path: Path, answer: str, grace_seconds: float, code: int
) -> None:
    """Run a worker that is interrupted as Ray does it, as soon as it says that it is there."""
    there, log = tmp_path / "there", tmp_path / "1.log"
    program = (
        f"import pathlib, signal, sys\nsignal.signal(signal.SIGTERM, {answer})\n"
        f"pathlib.Path({str(there)!r}).touch()\nwhile True: signal.pause()\n"
    )

    def interrupt() -> None:
        pause = threading.Event()
        while not there.exists():
            pause.wait(0.01)  # for a file of another process
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    ray = threading.Thread(target=interrupt)
    try:
        ray.start()
        said = work_on_this_node(["-S", "-c", program], [], str(log), grace_seconds)
    finally:
        ray.join()
        signal.signal(signal.SIGINT, before)
    assert said == (HOST, code, "")


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
