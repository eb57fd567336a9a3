"""The command line. A command parses, calls one function and prints; some share a module."""

import sys

# Ctrl-C may come before `main` can report it. On Windows the imports below fail one after the
# other.
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
