"""Options of how long and how often ``leconvert probe run`` measures."""

from __future__ import annotations

import argparse

__all__ = ["add_measurement_options"]


def add_measurement_options(group: argparse._ActionsContainer) -> None:
    """Add how long and how often is measured, and what beside the rate."""
    group.add_argument(
        "--warmup-batches", type=int, metavar="N", help="do not count these (default: 10)"
    )
    group.add_argument(
        "--duration-s", type=float, metavar="S", help="time at least so long (default: 60)"
    )
    group.add_argument("--num-batches", type=int, metavar="N", help="time at most so many")
    group.add_argument(
        "--probe-samples", type=int, metavar="N",
        help="samples of the pass in this process that tells reading from decoding (default: 100)",
    )  # fmt: skip
    group.add_argument(
        "--probe-warmup", type=int, metavar="N", help="samples before those (default: 10)"
    )
    group.add_argument(
        "--check", type=int, metavar="N",
        help="compare N samples with LeRobot's map-style loader, frame by frame",
    )  # fmt: skip
    group.add_argument(
        "--with-limit", action="store_true",
        help="measure the decode limit too (default: take it from the result of `probe limit` in "
        "--out-dir)",
    )  # fmt: skip
    group.add_argument(
        "--limit-duration-s", type=float, metavar="S", help="of each stretch of it (default: 5)"
    )
