"""Without a GPU the script says of each step why it could not run; its commands are real ones."""

from __future__ import annotations

import json
import subprocess
from argparse import Namespace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from leconvert.cli.main import build_parser

SCRIPT = "gpu_check"

OPTIONS = Namespace(repeats=2, duration_s=1.0, num_workers=3, steps=5)


def test_each_step_is_a_command_of_the_program(script: ModuleType) -> None:
    steps = list(script.steps(Path("set"), Path("out"), OPTIONS))
    parser = build_parser()
    names = [step.name for step in steps]
    assert len(set(names)) == len(names)
    for step in steps:
        parser.parse_args(step.words)
        needs_gpu = "cuda" in step.words or "resample" in step.words
        assert (step.gpus > 0) == needs_gpu
    said = "\n".join(" ".join(step.words) for step in steps)
    for words in ("diagnose", "limit", "--decode-device cuda", "resample --all", "--gpus 2"):
        assert words in said


def test_what_a_machine_lacks_is_said_and_what_fails_is_kept(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter(
        [
            SimpleNamespace(returncode=0, stdout=json.dumps({"rate": 3, "raw": [1]}), stderr=""),
            SimpleNamespace(returncode=14, stdout="", stderr=f"no decoder in {tmp_path}"),
        ]
    )
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: next(answers))
    one = script.Machine(("H100",), None)
    step = script.Step("train", ("probe", "train", "--out-dir", str(tmp_path)), 2)

    ran = script.try_step(script.Step("limit", ("probe", "limit"), 1), one, tmp_path)
    failed = script.try_step(script.Step("limit", ("probe", "limit"), 1), one, tmp_path)
    few = script.try_step(step, one, tmp_path)
    none = script.try_step(step, script.Machine((), "torch finds no GPU"), tmp_path)

    assert (ran["outcome"], ran["document"]) == ("ran", {"rate": 3})
    assert (failed["outcome"], failed["why"]) == ("failed", "no decoder in $SCRATCH")
    assert (few["outcome"], few["why"]) == ("could not run", "it needs 2 GPUs; here are 1")
    assert (none["outcome"], none["why"]) == ("could not run", "torch finds no GPU")
    assert none["command"] == "leconvert probe train --out-dir $SCRATCH"
