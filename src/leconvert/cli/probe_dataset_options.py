"""Options of the dataset that a probe looks at."""

from __future__ import annotations

import argparse

__all__ = ["add_dataset_options"]


def add_dataset_options(parser: argparse._ActionsContainer) -> None:
    """Add what says which dataset is looked at."""
    parser.add_argument("--repo-id", metavar="ORG/NAME", help="the dataset's name on the Hub")
    parser.add_argument(
        "--root", "--local-root", metavar="DIR|URL",
        help="the dataset folder, or a URL that fsspec opens: hf://datasets/ORG/NAME, "
        "hf://buckets/ORG/NAME (default: the local copy of --repo-id, else the Hub)",
    )  # fmt: skip
    parser.add_argument(
        "--data-files-root", metavar="DIR|URL",
        help="where data/ and videos/ are, if not beside meta/",
    )  # fmt: skip
    parser.add_argument("--revision", metavar="REV", help="branch, tag or commit on the Hub")
