"""``python -m leconvert``."""

from leconvert.cli import program

program()
