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
def cluster(tmp_path: Path) -> dict[str, str]:
    """An environment with such a cluster."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, script in (("sbatch", _SBATCH), ("squeue", _SQUEUE)):
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)
    return {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def test_every_engine_gives_the_same_bytes(
    leconvert: Leconvert, small_source: Path, tmp_path: Path, cluster: dict[str, str]
) -> None:
    program = f"--program={sys.executable} -m leconvert"
    for engine, options in (
        ("inline", ["--max-workers", "2"]),
        ("local", ["--num-workers", "2"]),
        ("slurm", ["--workers-per-node", "2", "--partition", "cpu", program]),
    ):
        leconvert(
            "convert", "--root", small_source, "--output", tmp_path / engine,
            "--engine", engine, *options, "--episodes-per-batch", "1",
            env=cluster, code=0,
        )  # fmt: skip
    words = (tmp_path / "bin/words").read_text().split()
    assert {"--array=0-1", "--partition=cpu"} <= set(words)
    did = [(tmp_path / f"bin/element-{n}.log").read_text().splitlines()[-1] for n in (0, 1)]
    assert did[0].startswith("This worker finished 5 batches")
    assert did[1].startswith("This worker finished 0 batches")
    digests = {digest_of(tmp_path / engine) for engine in ("inline", "local", "slurm")}
    assert len(digests) == 1
