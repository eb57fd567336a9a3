"""`leconvert` whose worker waits in its first batch until the lab lets all workers go on.

    waiting.py FOLDER work WORK_DIR …

The first call of ``ShardWriter.write`` leaves a file ``<host>-<pid>`` in the folder, and goes on
when there is a file ``go``. Other threads, the heartbeat among them, run meanwhile.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from pathlib import Path
from typing import Any

from leconvert.cli import main
from leconvert.run.worker import ShardWriter

_LOOK_SECONDS = 0.05


def wait_in_the_first_batch(folder: Path) -> None:
    """Make every call of ``ShardWriter.write`` wait for the file ``go``."""
    write = ShardWriter.write

    @functools.wraps(write)
    def waiting(*arguments: Any, **options: Any) -> Any:
        (folder / f"{os.uname().nodename}-{os.getpid()}").touch()
        while not (folder / "go").exists():
            time.sleep(_LOOK_SECONDS)
        return write(*arguments, **options)

    ShardWriter.write = waiting  # type: ignore[method-assign]


if __name__ == "__main__":
    wait_in_the_first_batch(Path(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
