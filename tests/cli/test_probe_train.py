"""``leconvert probe train``: the command, its launcher, and what is missing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.program import Leconvert

LAUNCHER = """\
#!/bin/bash
set -euo pipefail
mkdir -p run1/logs

job1=$(sbatch --parsable --job-name=probe-train --nodes=4 --ntasks-per-node=1 --cpus-per-task=16 \
--mem=64G --time=12:00:00 --gpus-per-node=1 --account=robots --requeue --open-mode=append \
--output=run1/logs/%x-%j.out <<'JOB'
#!/bin/bash
set -euo pipefail
unset RANK WORLD_SIZE LOCAL_RANK
export MASTER_ADDR=$(hostname)
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
srun --nodes=4 --ntasks=4 --cpus-per-task=16 --kill-on-bad-exit=1 leconvert probe train \
--root=hf://buckets/lab/set --mode=sarm --device=cuda --out-dir=run1 --steps=100000 \
--resume-from=last
JOB
)
job1=${job1%%;*}
echo "$job1 probe-train"
"""


def test_the_launcher_word_for_word(leconvert: Leconvert) -> None:
    printed = leconvert(
        *("probe", "train", "--submit", "--dry-run", "--root", "hf://buckets/lab/set"),
        *("--steps", 100000, "--nodes", 4, "--time", "12:00:00", "--device", "cuda"),
        *("--mode", "sarm", "--account", "robots", "--out_dir", "run1"),
        code=0,
    )
    assert printed.stdout == LAUNCHER


def test_a_job_does_not_get_the_libraries_of_the_machine_that_submits_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from leconvert.cli import main

    begun: list[None] = []
    monkeypatch.setattr("leconvert.cli.probe.start_with_ffmpeg", lambda: begun.append(None))
    words = ["probe", "train", "--root", "nowhere"]
    assert main([*words, "--submit", "--dry-run"]) == 0
    assert begun == []
    assert main(words) == 3
    assert begun == [None]


def test_it_trains_resumes_and_tells_the_outcome(
    leconvert_here: Leconvert, small_result: Path, tmp_path: Path
) -> None:
    words = (
        "probe",
        "train",
        "--root",
        small_result,
        "--batch-size",
        4,
        "--out-dir",
        tmp_path / "run",
    )
    trained = leconvert_here(*words, "--steps", 6, "--num-workers", 1, "--json", code=0)
    first = json.loads(trained.stdout)
    assert (first["first_step"], first["steps"], first["samples"]) == (0, 6, 6 * 4)
    assert first["checkpoint"].endswith("checkpoints/step-00000006")
    resumed = leconvert_here(*words, "--steps", 8, "--num-workers", 1, "--resume-from", "last")
    assert resumed.returncode == 0, resumed.stderr
    assert "8, resumed from step 6; 1 rank" in resumed.stdout
    alone = leconvert_here(*words, "--steps", 9, "--num-workers", 0, "--resume-from", "last")
    assert alone.returncode == 0, alone.stderr
    assert "9, resumed from step 8; 1 rank" in alone.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--nodes", "2"), 2, "works only with --submit"),
        (("--gpus", "2"), 2, "needs --device cuda"),
        (("--gpus", "2", "--nodes", "2", "--device", "cuda"), 2, "works only with --submit"),
        (("--gpus", "99", "--device", "cuda"), 14, "GPUs of this machine"),
        (("--dummy", "--resume-from", "last"), 2, "which makes no checkpoints"),
        (("--steps", "0"), 2, "--steps must be at least 1"),
        (("--learning-rate", "nan"), 2, "--learning-rate must be at least 0, not nan"),
        (("--resume-from", "nowhere"), 14, "nowhere is not a complete checkpoint"),
        (("--rank", "0"), 2, "rank and world_size must be given together"),
        (("--rank", "0", "--world-size", "2"), 14, "ranks cannot connect"),
        (("--submit", "--cpus", "many"), 2, "--cpus many is not a valid value"),
    ],
)
def test_what_makes_no_sense_has_a_sentence_and_a_code(
    small_result: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: int, said: str,
) -> None:  # fmt: skip
    from leconvert.cli import main

    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    words = ["probe", "train", "--root", str(small_result), "--out-dir", str(tmp_path / "run")]
    assert main([*words, *arguments]) == code
    told = capsys.readouterr()
    assert said in told.err
    assert told.out == ""
    assert not (tmp_path / "run").exists()


def test_it_becomes_torchrun_with_a_process_for_each_gpu(
    small_result: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    import torch

    from leconvert.cli import main

    class Replaced(BaseException):
        """Stands for the end of this program."""

    def execv(path: str, words: list[str]) -> None:
        assert path == sys.executable
        raise Replaced(*words)

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr("os.execv", execv)
    command = ["probe", "train", "--root", str(small_result), "--device", "cuda", "--json"]
    command += ["--steps", "6", "--out-dir", str(tmp_path / "run")]
    with pytest.raises(Replaced) as replaced:
        main([*command, "--gpus", "2"])
    words = list(replaced.value.args)
    assert words[1:5] == ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    assert words[5:9] == ["-m", "leconvert", "probe", "train"]
    assert set(words[9:]) == {
        f"--root={small_result}", "--device=cuda", "--json", "--steps=6",
        f"--out-dir={tmp_path / 'run'}",
    }  # fmt: skip
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    assert main([*command, "--gpus", "2"]) == 2
    assert "this process is already one of several ranks" in capsys.readouterr().err
