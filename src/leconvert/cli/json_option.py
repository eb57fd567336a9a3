"""``--json``, which nearly every command has."""

from __future__ import annotations

import argparse

__all__ = ["add_json"]


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add ``--json``."""
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON on stdout")
