"""The command line. A module a command: parse, call one function, render, return a code."""

from leconvert.cli.main import main, program

__all__ = ["main", "program"]
