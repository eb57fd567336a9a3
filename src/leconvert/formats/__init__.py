"""LeRobot datasets as they stand on disk: `v2` and `v3` each read and write their own format.

Whoever scans, checks, compares, loads or reports on a dataset reads it through these rooms; who
need not know its version, through the interface that the `Dataset` of both has.
"""

from pathlib import Path

from leconvert.formats import v2, v3
from leconvert.formats.dataset import Dataset, Episodes, Slices, Totals
from leconvert.formats.targets import TARGETS, Target
from leconvert.repairs import NO_REPAIRS, Repairs
from leconvert.workdir.swap import is_converted

__all__ = ["TARGETS", "Dataset", "Episodes", "Slices", "Target", "Totals", "open_dataset"]


def open_dataset(
    root: Path, repairs: Repairs = NO_REPAIRS, *, version: str | None = None
) -> Dataset:
    """Return the dataset in a folder, to be read by its version.

    Args:
        repairs: Which decide how it is read: a v3.0 dataset by its rate alone, see `v2.Dataset`.
        version: The version that a plan found; None to look.
    """
    is_v3 = is_converted(root) if version is None else version == v3.CODEBASE_VERSION
    if is_v3:
        return v3.Dataset(root, assumed_fps=repairs.assumed_fps)
    return v2.Dataset(root, repairs)
