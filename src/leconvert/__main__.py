"""``python -m leconvert``."""

import os
import sys

# `python -m` looks for modules in the current folder first, where a user's inspect.py or logging.py
# would be taken for Python's own. Neither `python -P` nor the `leconvert` command does so.
try:
    if not sys.flags.safe_path and sys.path[0] in {"", os.getcwd()}:  # noqa: PTH109 - no more imports
        del sys.path[0]
except OSError:  # the current folder is gone
    pass

from leconvert.cli import program

program()
