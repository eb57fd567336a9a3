"""A real Ray cluster on one machine: `python scripts/lab/ray_nodes.py --help`, docs/engines.md.

It is not called ``ray.py``: beside it nobody could import Ray.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version

from every_lab.program import lab_parser, run_lab, told
from every_lab.report import Row
from ray_lab import RayCluster
from ray_lab.scenarios import SCENARIOS, make_ground

from leconvert import __version__

_NODES = 3


def main(arguments: Sequence[str] | None = None) -> int:
    parser = lab_parser(
        "Convert a dataset on Ray nodes that are killed, cut off and added meanwhile.", SCENARIOS
    )
    return run_lab(parser, arguments, SCENARIOS, visit)


def visit(
    names: Sequence[str], options: argparse.Namespace, say: Callable[[str], None]
) -> Iterator[Row]:
    """Start the cluster, run scenarios, and yield what comes of them."""
    began = time.monotonic()
    with RayCluster(options.folder / "c", _NODES).running() as cluster:
        say(
            f"leconvert {__version__}, Ray {version('ray')}, {_NODES} nodes in network namespaces "
            f"of a machine of {os.cpu_count()} cores, up in {time.monotonic() - began:.1f} s\n"
        )
        ground = make_ground(cluster, options.folder)
        for name in names:
            yield from told(SCENARIOS[name](ground), say)


if __name__ == "__main__":
    sys.exit(main())
