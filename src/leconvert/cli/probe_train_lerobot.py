"""``leconvert probe train-lerobot``."""

from __future__ import annotations

import argparse

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "arguments",
        nargs="*",
        metavar="ARGUMENT",
        help="arguments of lerobot-train, after --",
    )


def run(options: argparse.Namespace) -> int:
    """Train."""
    from leconvert.probe import train_with_lerobot

    train_with_lerobot(options.arguments)
    return 0
