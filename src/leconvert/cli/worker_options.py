"""Options of those who work on a run: their leases, versions and patience."""

from __future__ import annotations

import argparse

from leconvert.cli.values import seconds, some_seconds, whole

__all__ = ["add_lease_options", "add_trouble_option", "add_version_option"]


def add_version_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--allow-mixed-versions``."""
    parser.add_argument(
        "--allow-mixed-versions",
        action="store_true",
        help="work although this host's library versions differ from the planner's",
    )


def add_lease_options(parser: argparse.ArgumentParser) -> None:
    """Add what governs leases."""
    parser.add_argument(
        "--lease-seconds", type=some_seconds, default=60.0, metavar="S",
        help="a batch whose worker is silent for so long is taken over (default: 60)",
    )  # fmt: skip
    parser.add_argument(
        "--max-attempts", type=whole(1), default=3, metavar="N",
        help="set a batch aside after N errors (default: 3)",
    )  # fmt: skip


def add_trouble_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--max-trouble-seconds``, for workers that nobody watches."""
    parser.add_argument(
        "--max-trouble-seconds", type=seconds, default=120.0, metavar="S",
        help="when the disk or the mount fails, try again for so long before giving up, with "
        "pauses of 1 s to 30 s (default: 120)",
    )  # fmt: skip
