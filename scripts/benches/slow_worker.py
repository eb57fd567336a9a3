"""A worker whose disk is slow: it sleeps a fixed time for every byte that it deals with.

    python scripts/benches/slow_worker.py SECONDS_A_BYTE WORK_DIR [options of `leconvert work`]

This is `leconvert work`, but it sleeps each time the progress bar moves, in proportion to the bytes
that were dealt with. `bench.py strong` starts it.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Self

from leconvert.api import run_worker
from leconvert.cli.main import stop_on_signals
from leconvert.cli.options import lease_options
from leconvert.cli.work import add_arguments
from leconvert.support.errors import LeconvertError
from leconvert.support.progress import SilentProgress, Stage


class SlowDisk(SilentProgress):
    """Sleeps for every byte that a stage advances by.

    Args:
        seconds_a_byte: How slow the disk is.
    """

    def __init__(self, seconds_a_byte: float) -> None:
        self._seconds_a_byte = seconds_a_byte

    def stage(self, name: str, total: int, unit: str) -> Stage:  # noqa: ARG002 - the protocol's
        """Return a stage that sleeps."""
        return _SlowStage(self._seconds_a_byte)


class _SlowStage:
    def __init__(self, seconds_a_byte: float) -> None:
        self._seconds_a_byte = seconds_a_byte

    def advance(self, amount: int) -> None:
        time.sleep(max(0, amount) * self._seconds_a_byte)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def main() -> int:
    """Work until nothing is left."""
    seconds_a_byte, *arguments = sys.argv[1:]
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    options = parser.parse_args(arguments)
    leases = lease_options(options)
    disk = SlowDisk(float(seconds_a_byte))
    try:
        with stop_on_signals() as stop:
            run_worker(options.work_dir, leases=leases, stop=stop, progress=disk)
    except LeconvertError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
