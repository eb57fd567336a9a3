"""Random samples as LeRobot's own dataset loads them from a result, against the source.

The only module here that knows LeRobot, and it is imported for nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from leconvert.errors import InstallationError
from leconvert.model import DATA_STREAM
from leconvert.source import load_tasks
from leconvert.verify.difference import Difference
from leconvert.verify.pictures import SourcePictures, picture_features
from leconvert.verify.pieces import Comparer
from leconvert.verify.rows import expected_rows
from leconvert.verify.sampling import Place, Sampling

__all__ = ["check_lerobot", "compare_samples"]

_NEXT_STEP = "Install it: pip install 'leconvert[deep]', or verify without --deep."


def check_lerobot() -> None:
    """Import LeRobot's dataset.

    Raises:
        InstallationError: It is not installed.
    """
    try:
        import lerobot.datasets.lerobot_dataset  # noqa: F401
    except ImportError as error:
        raise InstallationError(
            f"--deep loads samples through lerobot, which cannot be imported: {error}.",
            next_step=_NEXT_STEP,
        ) from error


def compare_samples(
    compare: Comparer, sampling: Sampling, advance: Callable[[int], None]
) -> Iterator[Difference]:
    """Load random samples through ``LeRobotDataset`` and yield what is not as in the source.

    Args:
        compare: The result and its source.
        sampling: How many, and which.
        advance: Called with 1 for each.

    Raises:
        InstallationError: lerobot is not installed.
        UnreadableSourceError: The source cannot be read or decoded.
    """
    check_lerobot()
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    try:
        dataset: Any = LeRobotDataset(
            f"local/{compare.result.name}", root=str(compare.result), return_uint8=True
        )
    except Exception as error:  # noqa: BLE001 - LeRobot's errors are of many kinds
        yield Difference("loads in LeRobot", "meta/", "a dataset", _first_line(error))
        return
    begins = np.cumsum(compare.episodes.length) - compare.episodes.length
    repairs = compare.episodes.repairs
    tasks = dict(repairs.tasks(load_tasks(compare.paths.root, repairs)))
    for _, place in sampling.frames(sampling.deep, compare.compared_lengths):
        number = int(begins[place.position]) + place.frame
        path = compare.path_of(DATA_STREAM, place.position)
        episode = int(compare.episodes.index[place.position])
        try:
            sample: Mapping[str, Any] = dataset[number]
        except Exception as error:  # noqa: BLE001 - see above
            said = _first_line(error)
            yield Difference(f"sample {number} in LeRobot", path, "a sample", said, episode)
        else:
            for key, expected in _expected(compare, place, tasks):
                if not _same(expected, sample.get(key)):
                    what = f"{key!r} of sample {number} in LeRobot"
                    found = _shown(sample.get(key))
                    yield Difference(what, path, _shown(expected), found, episode)
        advance(1)


def _expected(
    compare: Comparer, place: Place, tasks: Mapping[int, str]
) -> Iterator[tuple[str, Any]]:
    """Yield what a sample must hold: pictures, the row's other columns, and the task's text."""
    pictures = picture_features(compare)
    source = SourcePictures(compare)
    for key in pictures:
        (picture,) = source.pictures(key, place.position, [place.frame])
        yield key, np.moveaxis(picture, -1, 0)
    rows = expected_rows(compare.row_span(place.position), compare.row_rules)
    for name in rows.column_names:
        if name not in pictures:
            yield name, rows.column(name)[place.frame].as_py()
    # LeRobot loads no sample that has no task_index.
    yield "task", tasks.get(rows.column("task_index")[place.frame].as_py())


def _same(expected: Any, found: Any) -> bool:
    if not hasattr(found, "numpy"):
        # Only a text is itself in a sample; a picture that is not there equals nothing.
        return not hasattr(expected, "shape") and bool(expected == found)
    have, wanted = found.numpy(), np.asarray(expected)
    if wanted.dtype == np.uint8 and have.dtype != np.uint8:
        # LeRobot gives images of tables as numbers up to 1 whatever it is asked for.
        have = np.round(have * 255)
    if wanted.size != have.size:
        return False
    are_floats = wanted.dtype.kind == have.dtype.kind == "f"
    if are_floats:  # a row's number in double precision may be one in single precision there
        wanted = wanted.astype(have.dtype)
    return bool(np.array_equal(wanted.reshape(have.shape), have, equal_nan=are_floats))


def _shown(value: Any) -> str:
    if hasattr(value, "shape"):
        values = np.asarray(value)
        return f"{'x'.join(map(str, values.shape))}, mean {float(values.mean()):.6g}"
    return str(value)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
