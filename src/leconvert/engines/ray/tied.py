"""Runs ``leconvert`` so that it is asked to stop when whoever started it is gone.

    python -m leconvert.engines.ray.tied PID work WORK_DIR ...

Ray ends its own processes when a driver, a node or a link is lost, and nobody is left to ask their
children to hand back. The kernel does (``PR_SET_PDEATHSIG``, see prctl(2)).
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1
_HANDED_BACK = 130


def main() -> None:
    """Tie this process to its parent, whose id comes first, and run the rest as ``leconvert``."""
    parent = int(sys.argv[1])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it ended before we were tied to it
        sys.exit(_HANDED_BACK)
    sys.argv = ["leconvert", *sys.argv[2:]]
    runpy.run_module("leconvert", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
