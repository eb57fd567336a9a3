"""Run scenarios of a lab: `python scripts/lab/run.py LAB --help`, or see docs/lab.md."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from lab_kit import lab_parser, run_lab

LABS = {
    "nfs": "nfs_lab.scenarios",
    "slurm": "slurm_lab.scenarios",
    "slurm-nfs": "slurm_lab.over_nfs",
    "ray": "ray_lab.scenarios",
}


def main(arguments: Sequence[str]) -> int:
    """Run the lab that the first argument names."""
    if not arguments or arguments[0] not in LABS:
        print(f"{__doc__}\nLabs: {', '.join(LABS)}")
        return 2
    lab = import_module(LABS[arguments[0]])
    folder = getattr(lab, "FOLDER", None)
    parser = lab_parser(lab.__doc__ or "", lab.SCENARIOS, folder=folder)
    return run_lab(parser.parse_args(arguments[1:]), lab.SCENARIOS, lab.build)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
