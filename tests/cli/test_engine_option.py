"""`convert --engine`: who starts the workers."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.program import Leconvert
from tests.trees import digest_of

# A cluster of one node that runs every element of an array before sbatch returns.
_SBATCH = """\
#!/bin/bash
script=$(mktemp)
cat > "$script"
for element in 0 1; do bash "$script" > "$(dirname "$0")/element-$element.log" 2>&1; done
echo "$@" > "$(dirname "$0")/words"
echo 7
"""
_SQUEUE = """\
#!/bin/bash
echo "7_0|COMPLETED|None"
echo "7_1|COMPLETED|None"
"""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of such a cluster's commands, by which they are found."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, script in (("sbatch", _SBATCH), ("squeue", _SQUEUE)):
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


@pytest.mark.parametrize(
    ("engine", "options"),
    [
        ("local", ["--num-workers", "2"]),
        ("slurm", ["--workers-per-node", "2", f"--program={sys.executable} -m leconvert"]),
    ],
)
def test_every_engine_gives_the_same_bytes(
    leconvert_here: Leconvert, small_source: Path, small_result: Path, tmp_path: Path,
    cluster: Path, engine: str, options: list[str],
) -> None:  # fmt: skip
    leconvert_here(
        "convert", "--root", small_source, "--output", tmp_path / "out", "--engine", engine,
        *options, "--episodes-per-batch", "1", code=0,
    )  # fmt: skip
    assert digest_of(tmp_path / "out") == digest_of(small_result)
    if engine == "slurm":
        assert "--array=0-1" in (cluster / "words").read_text().split()
        did = [(cluster / f"element-{n}.log").read_text().splitlines()[-1] for n in (0, 1)]
        assert did[0].startswith("This worker finished 5 batches")
        assert did[1].startswith("This worker finished 0 batches")
