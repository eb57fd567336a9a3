"""`leconvert submit`: what it says, and what it refuses."""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from leconvert.api import convert, submit_run
from leconvert.cli.main import build_parser, main
from leconvert.cli.options import filled
from leconvert.run.conversion import ProofOptions
from leconvert.support.errors import UsageError
from leconvert.workdir.run import OpenedRun
from tests.plans import open_or_plan
from tests.program import Leconvert
from tests.slurm import Slurm


def test_workers_and_a_packer_are_submitted(
    leconvert: Leconvert, planned: OpenedRun, slurm: Slurm
) -> None:
    work = planned.work_dir.root
    options = ("--nodes", "2", "--workers-per-node", "8", "--slurm-extra=--exclusive")
    sent = leconvert("submit", work, "--json", *options, code=0)
    told = json.loads(sent.stdout)
    # Five batches are left: more workers would find nothing.
    assert (told["workers"], told["worker_job"], told["packer_job"]) == (5, "41", "42")
    (workers, _), (packer, _) = slurm.submitted
    assert "--array=0-4" in workers
    assert "--exclusive" in workers
    assert "--dependency=afterany:41" in packer

    slurm.flag("away")
    shown = leconvert("status", work)
    assert (
        "jobs     slurm 41, 5 workers: state unknown: the scheduler does not answer on this host"
    ) in shown.stdout


def test_a_dry_run_prints_a_script_and_submits_nothing(
    leconvert: Leconvert, planned: OpenedRun, slurm: Slurm
) -> None:
    work = planned.work_dir.root
    shown = leconvert("submit", work, "--dry-run", "--verify", "bytes", code=0)
    assert f"exec leconvert pack {work} --verify=bytes --no-wait" in shown.stdout.splitlines()
    assert not (slurm.folder / "calls.jsonl").exists()
    assert not planned.paths.jobs_dir.exists()


def test_the_packer_is_told_all_of_the_proof(source_copy: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    open_or_plan(source_copy, source_copy, work)
    asked = ProofOptions(delete_source=True, max_wait_seconds=7, force_conversion=True)
    script = submit_run(work, proof=asked, dry_run=True).script
    (packs,) = (line for line in script.splitlines() if line.startswith("exec leconvert pack "))
    parser = build_parser()
    options = parser.parse_args(shlex.split(packs.removeprefix("exec leconvert ")))
    assert filled(ProofOptions, options) == replace(asked, verify="bytes")

    convert(source_copy, work_dir=work)
    with pytest.raises(UsageError, match="Its source is still kept") as refused:
        submit_run(work, proof=asked, dry_run=True)
    command = str(refused.value.next_step).split("`")[1]
    assert main(shlex.split(command)[1:]) == 0
    assert not source_copy.with_name(f"{source_copy.name}_old").exists()
    assert submit_run(work, proof=asked, dry_run=True).finished


def test_a_source_that_is_not_replaced_cannot_be_removed_by_a_packer(planned: OpenedRun) -> None:
    with pytest.raises(
        UsageError, match="--delete-source works only if the result takes the place of its source"
    ):
        submit_run(planned.work_dir.root, proof=ProofOptions(delete_source=True), dry_run=True)


def test_what_a_packer_cannot_be_told_is_refused(planned: OpenedRun) -> None:
    with pytest.raises(UsageError, match="keep_as_former does not work with a submitted packer"):
        submit_run(planned.work_dir.root, proof=ProofOptions(keep_as_former=True), dry_run=True)


def test_what_cannot_be_submitted_has_a_code_and_a_next_step(
    leconvert: Leconvert, planned: OpenedRun, tmp_path: Path
) -> None:
    empty = {**os.environ, "PATH": str(tmp_path)}
    refused = leconvert("submit", planned.work_dir.root, env=empty, code=18)
    assert "This machine has no sbatch, the command of SLURM that submits jobs." in refused.stderr
    assert "--dry-run" in refused.stderr
    assert leconvert("submit", tmp_path / "elsewhere").returncode == 7


def test_ray_has_no_queue_to_submit_to(leconvert: Leconvert, planned: OpenedRun) -> None:
    refused = leconvert("submit", planned.work_dir.root, "--engine", "ray", code=2)
    assert "so nothing can be submitted to it" in refused.stderr
    assert "Use `leconvert convert --engine ray` with the --root" in refused.stderr


def test_of_a_fleet_workers_alone_are_submitted(
    leconvert_here: Leconvert, small_source: Path, tmp_path: Path, slurm: Slurm
) -> None:
    """They plan and pack, too; there can be more of them than datasets."""
    (tmp_path / "list.txt").write_text(f"{small_source} --name small\n")
    work = tmp_path / "work"
    words = ("fleet", tmp_path / "list.txt", "-o", tmp_path / "out", "--work-dir", work)
    leconvert_here(*words, "--plan-only", "-q", code=0)
    assert not (tmp_path / "out").exists()

    shown = leconvert_here("submit", work, "--dry-run", code=0)
    (start,) = (line for line in shown.stdout.splitlines() if line.startswith("exec "))
    assert start.startswith(f"exec leconvert work {work} ")
    assert not (slurm.folder / "calls.jsonl").exists()
    sent = leconvert_here("submit", work, "--json", "--nodes", "3", code=0)
    told = json.loads(sent.stdout)
    assert (told["workers"], told["worker_job"], told["packer_job"]) == (12, "41", None)
    ((call, _),) = slurm.submitted
    assert "--array=0-11" in call

    for more, said in (
        (("--verify", "bytes"), "--force-conversion or --delete-source for a fleet"),
        (("--engine", "ray"), "Give the `leconvert fleet` command again with --engine ray"),
    ):
        refused = leconvert_here("submit", work, *more, code=2)
        assert said in " ".join(refused.stderr.split())

    # What a job runs, here; then nothing is left to submit.
    assert leconvert_here(*shlex.split(start)[2:]).returncode == 0
    assert (tmp_path / "out/small/meta/info.json").is_file()
    sent = leconvert_here("submit", work)
    assert "There is nothing to submit" in sent.stdout
    assert leconvert_here(*words, "-q").returncode == 0
