"""``leconvert probe train-lerobot``."""

from __future__ import annotations

import argparse
import math

from leconvert.support.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--also",
        action="append",
        default=[],
        metavar="DATASET=SHARE",
        help="mix another dataset in (a folder or URL), for a share of all samples such as 0.3; "
        "give it before --, once for each dataset",
    )
    parser.add_argument(
        "arguments",
        nargs="*",
        metavar="ARGUMENT",
        help="arguments of lerobot-train, after --",
    )


def run(options: argparse.Namespace) -> int:
    """Train."""
    from leconvert.bench import train_with_lerobot

    train_with_lerobot(options.arguments, also=[_share(text) for text in options.also])
    return 0


def _share(text: str) -> tuple[str, float]:
    dataset, _, share = text.rpartition("=")
    try:
        value = float(share)
    except ValueError:
        value = math.nan
    if not dataset or not 0 < value < 1:
        raise UsageError(
            f"--also takes DATASET=SHARE with a share between 0 and 1, such as my_dataset=0.3, not "
            f"{text!r}."
        )
    return dataset, value
