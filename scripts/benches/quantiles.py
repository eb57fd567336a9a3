"""Measure conversions with quantiles, which LeRobot needs to resume a recording, and without.

    python scripts/bench.py quantiles DATASET... --repeats 5

Converts each dataset with one thread, in turn without and with ``--quantiles``, whole and without
its cameras, so that columns alone are computed. Processor seconds of the whole program count: other
work on the machine changes them less than the wall clock.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from benches import kit


def main(arguments: Sequence[str]) -> int:
    """Measure each dataset."""
    parser = kit.parser(__doc__, repeats=5)
    parser.add_argument("sources", nargs="+", type=Path, metavar="DATASET")
    options = parser.parse_args(arguments)
    for source in options.sources:
        features = json.loads((source / "meta/info.json").read_bytes())["features"].items()
        dropped = [f"--drop-feature={name}" for name, of in features if of["dtype"] == "video"]
        with kit.scratch_folder(options.scratch, "quantiles") as folder:
            dataset, out = folder / "DATASET", folder / "out"
            dataset.symlink_to(source.resolve())
            words = (*kit.LECONVERT, "convert", dataset, out, "--max-workers", "1", "-q")
            runners = [
                kit.Runner(f"{what}, {way}", (*words, *fewer, *flags), [out])
                for what, fewer in (("all", []), ("columns", dropped))
                for way, flags in (("by default", []), ("--quantiles", ["--quantiles"]))
            ]
            shape = kit.dataset_shape(source, source.name)
            name = ("quantiles", source.name)
            kit.compare("quantiles", name, runners, folder, shape, options, arguments)
    return 0
