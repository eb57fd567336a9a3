"""``leconvert probe submit``: what it would send, word for word, and what it sends."""

from __future__ import annotations

import json
from pathlib import Path

from tests.program import Leconvert
from tests.slurm import Slurm


def test_a_submitted_chain_is_told_as_json(
    leconvert: Leconvert, slurm: Slurm, tmp_path: Path
) -> None:
    sent = leconvert(
        *("probe", "submit", "--scenarios", "mmap_local,stream_hub", "--repo-id", "lab/set"),
        *("--no-summary", "--json"),
        cwd=tmp_path,
        code=0,
    )
    assert json.loads(sent.stdout)["jobs"] == [
        {
            "job_id": "41",
            "name": "probe-mmap_local",
            "log": "probe-results/logs/probe-mmap_local-41.out",
            "after": None,
        },
        {
            "job_id": "42",
            "name": "probe-stream_hub",
            "log": "probe-results/logs/probe-stream_hub-42.out",
            "after": "41",
        },
    ]
    assert (tmp_path / "probe-results/logs").is_dir()
    assert len(slurm.submitted) == 2
