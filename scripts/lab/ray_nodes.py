"""A real Ray cluster on one machine: `python scripts/lab/ray_nodes.py --help`, docs/engines.md.

It is not called ``ray.py``: beside it nobody could import Ray.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version

from lab_kit import lab_parser, run_lab, say
from ray_lab import RayCluster
from ray_lab.scenarios import SCENARIOS, Ground, make_ground

from leconvert import __version__

_NODES = 3


def main(arguments: Sequence[str] | None = None) -> int:
    parser = lab_parser(
        "Convert a dataset on Ray nodes that are killed, cut off and added meanwhile.", SCENARIOS
    )
    return run_lab(parser.parse_args(arguments), SCENARIOS, build)


@contextmanager
def build(options: argparse.Namespace) -> Iterator[tuple[Ground]]:
    """Have the cluster and a dataset for the length of a ``with`` block."""
    began = time.monotonic()
    with RayCluster(options.folder / "c", _NODES).running() as cluster:
        say(
            f"leconvert {__version__}, Ray {version('ray')}, {_NODES} nodes in network namespaces "
            f"of a machine of {os.cpu_count()} cores, up in {time.monotonic() - began:.1f} s\n"
        )
        yield (make_ground(cluster, options.folder),)


if __name__ == "__main__":
    sys.exit(main())
