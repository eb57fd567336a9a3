"""``leconvert probe submit``: what it would send, word for word, and what it sends."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.program import Leconvert

CHAIN = """\
#!/bin/bash
set -euo pipefail
mkdir -p out/logs

job1=$(sbatch --parsable --job-name=probe-mmap_local --nodes=1 --ntasks-per-node=1 \
--cpus-per-task=4 --mem=8G --time=00:30:00 --account=robots --partition=batch --no-requeue \
--output=out/logs/%x-%j.out <<'JOB'
#!/bin/bash
source "$(conda info --base)/etc/profile.d/conda.sh"
conda activate lerobot
set -euo pipefail
unset RANK WORLD_SIZE LOCAL_RANK
exec leconvert probe run --scenario=mmap_local --root=sets/set --repo-id=lab/set --max-episodes=3 \
--episode-pool-size=8 --out-dir=out
JOB
)
job1=${job1%%;*}
echo "$job1 probe-mmap_local"

job2=$(sbatch --parsable --job-name=probe-stream_bucket_2node --nodes=2 --ntasks-per-node=1 \
--cpus-per-task=4 --mem=64G --time=01:00:00 --account=robots --partition=batch --no-requeue \
--output=out/logs/%x-%j.out --dependency="afterany:$job1" <<'JOB'
#!/bin/bash
source "$(conda info --base)/etc/profile.d/conda.sh"
conda activate lerobot
set -euo pipefail
unset RANK WORLD_SIZE LOCAL_RANK
srun --nodes=2 --ntasks=2 --cpus-per-task=4 leconvert probe run --scenario=stream_bucket_2node \
--root=hf://buckets/lab/set --repo-id=lab/set --max-episodes=3 --episode-pool-size=8 --out-dir=out
JOB
)
job2=${job2%%;*}
echo "$job2 probe-stream_bucket_2node"

job3=$(sbatch --parsable --job-name=probe-summary --nodes=1 --ntasks-per-node=1 \
--cpus-per-task=1 --mem=4G --time=00:10:00 --account=robots --partition=batch --no-requeue \
--output=out/logs/%x-%j.out --dependency="afterany:$job2" <<'JOB'
#!/bin/bash
source "$(conda info --base)/etc/profile.d/conda.sh"
conda activate lerobot
set -euo pipefail
unset RANK WORLD_SIZE LOCAL_RANK
exec leconvert probe summarize out
JOB
)
job3=${job3%%;*}
echo "$job3 probe-summary"
"""

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


def test_the_chain_of_scenarios_word_for_word(leconvert: Leconvert, tmp_path: Path) -> None:
    printed = leconvert(
        *("probe", "submit", "--dry-run", "--repo_id", "lab/set", "--root", "sets/set"),
        *("--scenarios", "mmap_local,stream_bucket_2node", "--conda_env", "lerobot"),
        *("--max_episodes", 3, "--buffer_size", 8, "--out_dir", "out"),
        *("--cpus", 4, "--mem", "mmap-local=8G", "--partition", "batch"),
        cwd=tmp_path,
        env={**os.environ, "ACCOUNT": "robots", "PARTITION": "gpu"},
        code=0,
    )
    assert printed.stdout == CHAIN
    assert list(tmp_path.iterdir()) == []


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
