"""SLURM's commands as scripts that write down what they are asked and answer what a test says."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

__all__ = ["Slurm", "slurm"]

_SBATCH = """\
#!/usr/bin/env python3
import json, pathlib, sys
folder = pathlib.Path(__file__).parent
calls = folder / "calls.jsonl"
number = 41 + (len(calls.read_text().splitlines()) if calls.exists() else 0)
with calls.open("a") as file:
    print(json.dumps([sys.argv[1:], sys.stdin.read()]), file=file)
full = folder / "full"
if full.exists() and number >= int(full.read_text() or 0):
    sys.exit("sbatch: error: AssocMaxSubmitJobLimit\\nsbatch: error: Batch job submission failed")
print(f"{number};cluster1")
"""
_SQUEUE = """\
#!/usr/bin/env python3
import pathlib, sys
folder = pathlib.Path(__file__).parent
with (folder / "asked").open("a") as file:
    print(*sys.argv[1:], file=file)
(job,) = [a.partition("=")[2] for a in sys.argv if a.startswith("--jobs=")]
if (folder / "away").exists():
    sys.exit("slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
lines = folder / f"states-{job}"
if not lines.exists():
    sys.exit("slurm_load_jobs error: Invalid job id specified")
print(lines.read_text(), end="")
"""
_SCANCEL = """\
#!/usr/bin/env python3
import pathlib, sys
folder = pathlib.Path(__file__).parent
if (folder / "away").exists():
    sys.exit("scancel: error: Unable to contact slurm controller")
(folder / "cancelled").write_text(" ".join(sys.argv[1:]))
for states in folder.glob("states-*"):
    states.write_text(states.read_text().replace("RUNNING", "CANCELLED"))
"""


class Slurm:
    """What the commands were asked, and what they will answer."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def submitted(self) -> list[tuple[list[str], str]]:
        lines = (self.folder / "calls.jsonl").read_text().splitlines()
        return [(words, script) for words, script in map(json.loads, lines)]

    @property
    def times_asked(self) -> int:
        path = self.folder / "asked"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def has(self, job_id: str, *lines: str) -> None:
        """Let ``squeue`` say these lines of a job."""
        (self.folder / f"states-{job_id}").write_text("".join(f"{line}\n" for line in lines))

    def flag(self, name: str, *, on: bool = True) -> None:
        """Let the queue be ``full``, or the controller ``away``.

        A number in the file ``full`` is that of the first job which finds it full.
        """
        if on:
            (self.folder / name).touch()
        else:
            (self.folder / name).unlink()


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    """SLURM's commands in front of the PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, script in (("sbatch", _SBATCH), ("squeue", _SQUEUE), ("scancel", _SCANCEL)):
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return Slurm(folder)
