"""``leconvert probe submit``: what it would send, word for word, and what it sends."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.program import Leconvert

MATRIX_COMMANDS = [
    f"exec python -m leconvert probe run --source={source} --mode={mode} --decode-device={device} "
    f"--root={root} --seed=7 --out-dir=probe-results"
    for source, root in (("local", "set"), ("warmed_bucket", "hf://buckets/warm/set"))
    for mode in ("single", "sarm-action")
    for device in ("cpu", "cuda")
]

SBATCH = """\
#!/bin/sh
cat > /dev/null
echo "$@" >> "$0.calls"
wc -l < "$0.calls"
"""


def test_the_matrix_of_sources_modes_and_devices_word_for_word(leconvert: Leconvert) -> None:
    printed = leconvert(
        *("probe", "submit", "--dry-run", "--no-summary", "--program", "python -m leconvert"),
        *("--sources", "local,warmed_bucket", "--modes", "single,sarm-action"),
        *("--devices", "cpu,cuda", "--root", "set", "--seed", 7),
        *("--root-of", "warmed_bucket=hf://buckets/warm/set"),
        code=0,
    )
    lines = printed.stdout.splitlines()
    assert [line for line in lines if line.startswith("exec ")] == MATRIX_COMMANDS
    submitted = [line for line in lines if "sbatch" in line]
    assert len(submitted) == 8
    assert ["--gpus-per-node=1" in line for line in submitted] == [False, True] * 4
    assert ["--dependency=" in line for line in submitted] == [False] + [True] * 7


def test_a_submitted_chain_is_told_as_json(leconvert: Leconvert, tmp_path: Path) -> None:
    sbatch = tmp_path / "sbatch"
    sbatch.write_text(SBATCH)
    sbatch.chmod(0o755)
    sent = leconvert(
        *("probe", "submit", "--scenarios", "mmap_local,stream_hub", "--repo-id", "lab/set"),
        *("--no-summary", "--json"),
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
        code=0,
    )
    assert json.loads(sent.stdout)["jobs"] == [
        {
            "job_id": "1",
            "name": "probe-mmap_local",
            "log": "probe-results/logs/probe-mmap_local-1.out",
            "after": None,
        },
        {
            "job_id": "2",
            "name": "probe-stream_hub",
            "log": "probe-results/logs/probe-stream_hub-2.out",
            "after": "1",
        },
    ]
    assert (tmp_path / "probe-results/logs").is_dir()
    assert len((tmp_path / "sbatch.calls").read_text().splitlines()) == 2
