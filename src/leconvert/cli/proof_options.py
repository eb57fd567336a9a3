"""Options of what is proven before the swap, and of what becomes of the source after it."""

from __future__ import annotations

import argparse

__all__ = ["add_proof_options"]


def add_proof_options(parser: argparse.ArgumentParser) -> None:
    """Add what is proven before the swap, and what becomes of the source after it."""
    parser.add_argument(
        "--verify", choices=("structure", "bytes", "none"),
        help="what is proven before the result takes its place (default: structure; bytes with "
        "--delete-source)",
    )  # fmt: skip
    parser.add_argument(
        "--no-verify", action="store_const", const="none", dest="verify",
        help="the same as --verify none",
    )  # fmt: skip
    parser.add_argument(
        "--delete-source", action="store_true",
        help="remove the source that the result replaced, once every byte is proven; it is kept "
        "if the result lacks anything of it",
    )  # fmt: skip
