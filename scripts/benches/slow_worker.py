"""`leconvert` whose workers take their time over each shard, as on a slow disk.

    python scripts/benches/slow_worker.py SECONDS_A_SHARD SECONDS_A_BYTE work WORK_DIR ...

`bench.py strong` and the SLURM lab start it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from leconvert.cli import main
from leconvert.run.worker import ShardWriter

seconds_a_shard, seconds_a_byte = map(float, sys.argv[1:3])
write = ShardWriter.write


def slowly(
    self: ShardWriter, *arguments: Any, on_bytes: Callable[[int], None], **options: Any
) -> dict[str, Any]:
    """Write a shard, and sleep before it and for each byte."""

    def sleep(amount: int) -> None:
        time.sleep(max(0, amount) * seconds_a_byte)
        on_bytes(amount)

    time.sleep(seconds_a_shard)
    return write(self, *arguments, on_bytes=sleep, **options)


if __name__ == "__main__":
    ShardWriter.write = slowly  # type: ignore[method-assign]
    sys.exit(main(sys.argv[3:]))
