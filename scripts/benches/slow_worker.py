"""`leconvert` whose workers take their time over each shard, as on a slow disk.

    python scripts/benches/slow_worker.py SECONDS_A_SHARD SECONDS_A_BYTE work WORK_DIR ...

`bench.py strong` and the labs start it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from leconvert.run.worker import ShardWriter


def slow_down(seconds_a_shard: float, seconds_a_byte: float) -> None:
    """Let the workers of this process sleep before each shard and for each byte."""
    write = ShardWriter.write

    def slowly(
        self: ShardWriter, *arguments: Any, on_bytes: Callable[[int], None], **options: Any
    ) -> dict[str, Any]:
        def sleep(amount: int) -> None:
            time.sleep(max(0, amount) * seconds_a_byte)
            on_bytes(amount)

        time.sleep(seconds_a_shard)
        return write(self, *arguments, on_bytes=sleep, **options)

    ShardWriter.write = slowly  # type: ignore[method-assign]


if __name__ == "__main__":
    from leconvert.cli import main

    slow_down(*map(float, sys.argv[1:3]))
    sys.exit(main(sys.argv[3:]))
