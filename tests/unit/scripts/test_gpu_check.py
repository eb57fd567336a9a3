"""Without a GPU the script says of each step why it could not run; its commands are real ones."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from types import ModuleType

from leconvert.cli.main import build_parser

SCRIPT = "gpu_check"

OPTIONS = Namespace(repeats=2, duration_s=1.0, num_workers=3, steps=5)


def test_each_step_is_a_command_of_the_program(script: ModuleType) -> None:
    steps = list(script.steps(Path("set"), Path("out"), OPTIONS))
    parser = build_parser()
    names = [step.name for step in steps]
    assert len(set(names)) == len(names)
    for step in steps:
        parser.parse_args(step.command.split())
        needs_gpu = "cuda" in step.command or "resample" in step.command
        assert (step.gpus > 0) == needs_gpu
    said = "\n".join(step.command for step in steps)
    for words in ("diagnose", "limit", "--decode-device cuda", "resample --all", "--gpus 2"):
        assert words in said
