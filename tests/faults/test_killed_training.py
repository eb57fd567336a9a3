"""``probe train`` that is killed before any operation on its folder goes on from a checkpoint.

The same command with ``--resume-from last`` ends with what a run that nobody disturbed ends with:
the same model, and the same place in the stream.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from leconvert.api import convert

IN_CI = 250  # so-manieth operation
WORDS = [
    *("probe", "train", "--batch-size", "4", "--steps", "5", "--save-every", "2", "--json"),
    *("--num-workers", "0", "--resume-from", "last"),
]
# Every trial is a fork of one process, which has imported what takes long.
DRIVER = """
import json, os, signal, sys
from pathlib import Path
import torch
import leconvert.bench.training, leconvert.loading
from leconvert.cli.main import main

root, folder, words, every = json.loads(sys.argv[1])
CHANGES = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree"}

def run(out_dir, kill_at):
    counted = Path(f"{out_dir}.count")
    pid = os.fork()
    if pid == 0:
        seen = 0
        def hook(event, arguments):
            nonlocal seen
            if event in CHANGES and str(out_dir) + "/" in f"{arguments[0]}/":
                seen += 1
                if seen == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(hook)
        code = main([*words, "--root", root, "--out-dir", str(out_dir)])
        done, seen = seen, -10**9
        counted.write_text(str(done))
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code, int(counted.read_text()) if code == 0 else None

def end_of(out_dir):
    (last,) = sorted(Path(out_dir, "checkpoints").glob("step-*"))[-1:]
    return last.name, {f.name: torch.load(f, weights_only=True) for f in last.iterdir()}

def same(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b

code, operations = run(Path(folder, "quiet"), 0)
name, quiet = end_of(Path(folder, "quiet"))
told = {"operations": operations, "quiet": [code, name], "trials": []}
for number in range(1, operations + 1, every):
    out_dir = Path(folder, str(number))
    killed = run(out_dir, number)[0]
    again = run(out_dir, 0)[0]
    last, found = end_of(out_dir)
    is_same = same(found, quiet)
    is_left = Path(out_dir, "checkpoints/unfinished").exists()
    told["trials"].append([number, killed, again, last, is_same and not is_left])
Path(folder, "told.json").write_text(json.dumps(told))
"""


def _told(source: Path, folder: Path, every: int) -> dict[str, Any]:
    root = convert(source, output=folder / "set").output
    given = json.dumps([str(root), str(folder), WORDS, every])
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, given], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told: dict[str, Any] = json.loads((folder / "told.json").read_text())
    return told


@pytest.mark.parametrize(
    "every", [pytest.param(IN_CI, id="some"), pytest.param(1, id="all", marks=pytest.mark.slow)]
)
def test_a_training_that_is_killed_before_an_operation_ends_as_one_that_was_not(
    small_source: Path, tmp_path: Path, every: int
) -> None:
    told = _told(small_source, tmp_path, every)
    assert told["quiet"] == [0, "step-00000005"]
    assert len(told["trials"]) == -(-told["operations"] // every)
    for number, killed, again, last, is_same in told["trials"]:
        assert (killed, again, last, is_same) == (-9, 0, "step-00000005", True), number
