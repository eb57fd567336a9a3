"""The command line. A module a command: parse, call one function, render, return a code."""

# Ctrl-C may come before there is anything that could turn it into a sentence.
try:
    from leconvert.cli.main import main, program
except KeyboardInterrupt:
    raise SystemExit(130) from None

__all__ = ["main", "program"]
