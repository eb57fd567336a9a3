"""LeRobot's own converter as the oracle: run, not copied."""

from __future__ import annotations

import shutil
from pathlib import Path
from unittest import mock
from uuid import uuid4

__all__ = ["convert_with_reference", "writable_copy"]


def writable_copy(source: Path, target: Path) -> Path:
    """Copy a dataset folder so that it can be changed, whatever the permissions of the source."""
    shutil.copytree(source, target, copy_function=shutil.copyfile)
    for folder in (target, *(path for path in target.rglob("*") if path.is_dir())):
        folder.chmod(0o755)
    return target


def convert_with_reference(
    source: Path,
    target: Path,
    *,
    data_file_size_in_mb: float | None = None,
    video_file_size_in_mb: float | None = None,
) -> Path:
    """Convert a copy of a v2.1 dataset with LeRobot 0.6.1.

    Args:
        source: The dataset; it is not touched.
        target: Where the result shall be.
        data_file_size_in_mb: LeRobot's limit, which need not be whole; None for its default.
        video_file_size_in_mb: Likewise.

    Returns:
        ``target``, now a v3.0 dataset.
    """
    from datasets.fingerprint import Hasher
    from lerobot.scripts import convert_dataset_v21_to_v30

    writable_copy(source, target)
    # It names its cache by a digest of all episodes, which takes longer than the conversion. A name
    # that is never the same does as well: nothing may come from a cache here.
    with mock.patch.object(Hasher, "hash", staticmethod(lambda _: uuid4().hex)):
        convert_dataset_v21_to_v30.convert_dataset(
            "reference/dataset",
            root=target,
            push_to_hub=False,
            data_file_size_in_mb=data_file_size_in_mb,  # type: ignore[arg-type]
            video_file_size_in_mb=video_file_size_in_mb,  # type: ignore[arg-type]
        )
    shutil.rmtree(target.with_name(f"{target.name}_old"))
    return target
