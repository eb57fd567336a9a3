"""A signal ends a command that fetches, also while the Hub owes an answer; events, no sleeps."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.hub import Fault, StandIn
from tests.hub.fixtures import hub, lone_client, pauses
from tests.program import started

__all__ = ["hub", "lone_client", "pauses"]

REPO = "tester/arm"
# Ends a test that would hang; the Hub holds its answer for as long as the test wants.
PATIENCE_SECONDS = 60


@pytest.fixture
def here(small_source: Path, tmp_path: Path, hub: StandIn, monkeypatch: pytest.MonkeyPatch) -> Path:
    hub.add_repo(REPO, small_source, tags=("v2.1",))
    for name, value in (
        ("HF_HUB_OFFLINE", "0"), ("HF_HUB_DISABLE_XET", "1"), ("TMPDIR", str(tmp_path / "tmp")),
        ("HF_LEROBOT_HOME", str(tmp_path / "lerobot")),
    ):  # fmt: skip
        monkeypatch.setenv(name, value)
    (tmp_path / "tmp").mkdir()
    return tmp_path


def test_one_signal_ends_a_command_that_waits_for_the_hub(here: Path, hub: StandIn) -> None:
    held = Fault("hold", path=r"episode_000001\.(parquet|mp4)")
    hub.break_requests(held)
    words = f"convert {REPO} {here}/new --json".split()
    try:
        with started("-m", "leconvert", *words) as process:
            assert held.reached.wait(PATIENCE_SECONDS)
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=PATIENCE_SECONDS)
        assert not held.release.is_set(), "it did not wait for the answer"
    finally:
        held.release.set()
    assert process.returncode == 130, err
    assert json.loads(out)["error"] == "InterruptedRunError"
    assert "Run the same command again" in err
    left = [path for path in (here / "tmp").iterdir() if path.suffix != ".alive"]  # locks stay
    assert left == [], "what it fetched for itself goes again"
    assert not (here / "new").exists()


STUBBORN = """
import sys, threading
from leconvert.cli.main import main, stop_on_signals

def run(options):
    with stop_on_signals() as stop:
        print("ready", flush=True)
        stop.wait()
        print("asked", flush=True)
        threading.Event().wait()  # what does not end by itself

from leconvert.cli import upkeep
upkeep.run_undo = run
sys.exit(main(["undo", "no"]))
"""


def test_a_signal_that_is_sent_again_ends_what_does_not_stop() -> None:
    with started("-c", STUBBORN) as process:
        assert process.stdout is not None
        for said in ("ready", "asked"):
            assert process.stdout.readline() == f"{said}\n"
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 130


def test_the_signals_of_ctrl_c_and_of_the_command_above_ask_once() -> None:
    """A worker gets SIGINT from the terminal, and SIGTERM from what started it."""
    code = STUBBORN.replace("threading.Event().wait()", "print(sys.stdin.readline(), flush=True)")
    command, pipe = [sys.executable, "-c", code], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        for number, said in ((signal.SIGINT, "ready"), (signal.SIGTERM, "asked")):
            assert process.stdout.readline() == f"{said}\n"
            process.send_signal(number)
        out, _ = process.communicate("goes on\n", timeout=PATIENCE_SECONDS)
    assert "goes on" in out
