"""The command line. A module a command: parse, call one function, render, return a code."""

import sys

# Ctrl-C may come before there is anything that could turn it into a sentence; and on Windows
# the imports below fail one after the other.
try:
    from leconvert.cli.main import fail, prepare_output
    from leconvert.support.errors import InstallationError
    from leconvert.support.machine import check_platform

    try:
        check_platform()
    except InstallationError as error:
        prepare_output()
        raise SystemExit(fail(error, as_json="--json" in sys.argv)) from None
    from leconvert.cli.main import main, program
except KeyboardInterrupt:
    raise SystemExit(130) from None

__all__ = ["main", "program"]
