"""Options of the trajectories that ``leconvert probe resample`` resamples."""

from __future__ import annotations

import argparse

__all__ = ["add_trajectory_options"]


def add_trajectory_options(parser: argparse.ArgumentParser) -> None:
    """Add where trajectories come from, and how many."""
    group = parser.add_argument_group("trajectories (default: the synthetic set)")
    source = group.add_mutually_exclusive_group()
    source.add_argument(
        "--synthetic", action="store_true", help="30 to 333 Hz, 1 to 4 s, 7 + 14 columns"
    )
    source.add_argument(
        "--dataset", "--root", metavar="DIR|URL", help="the numeric columns of a v3.0 dataset"
    )
    source.add_argument("--hdf5", metavar="FILE", help="a file that --write-hdf5 wrote")
    group.add_argument("--revision", metavar="REV", help="of a --dataset on the Hub")
    group.add_argument("--columns", nargs="+", metavar="FEATURE", help="take only these")
    group.add_argument(
        "--max-trajectories", type=int, metavar="N",
        help="use the first N, or make N synthetic ones (default: 512, or twice the "
        "largest batch)",
    )  # fmt: skip
    group.add_argument(
        "--jitter", type=float, metavar="X",
        help="shift synthetic samples by up to this share of a step (default: 0)",
    )  # fmt: skip
    group.add_argument("--write-hdf5", metavar="FILE", help="write the trajectories, and end")
