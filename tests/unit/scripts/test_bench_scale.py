"""The lease benchmark counts what happens, and its workers end a run as real ones do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.scripts import SCRIPTS


def test_every_batch_is_leased_once_and_collected(tmp_path: Path) -> None:
    sizes = ("--batches", "24", "--workers", "2")
    places = ("--scratch", str(tmp_path), "--log-dir", str(tmp_path / "logs"))

    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "bench.py"), "scale", "lease", *sizes, *places],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    (line,) = (tmp_path / "logs" / "scale-lease.jsonl").read_text("utf-8").splitlines()
    row = json.loads(line)
    assert (row["batches"], row["workers"]) == (24, 2)
    # A claim and a `done` are a link each; a claim makes three folders; one worker record besides.
    # A worker that looks between another's folder and its link tries that link as well, in vain.
    assert 2.0 <= row["calls_a_batch"]["link"] < 2.5
    assert row["calls_a_batch"]["make_dir"] >= 3.0
    assert row["calls_a_batch"]["replace"] >= 2.0
    assert str(tmp_path) not in line
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]
