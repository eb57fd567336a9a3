"""``leconvert probe submit``: what it would send, word for word, and what it sends."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.program import Leconvert

SBATCH = """\
#!/bin/sh
cat > /dev/null
echo "$@" >> "$0.calls"
wc -l < "$0.calls"
"""


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
