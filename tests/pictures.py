"""A small dataset with a camera and images in its tables, moved rows, and FFmpeg's own pictures."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from leconvert.testing import CameraSpec, DatasetSpec

__all__ = ["CAMERA", "DATA", "IMAGE", "SPEC", "decoded_pictures", "move_rows"]

DATA = "data/chunk-000/file-000.parquet"
CAMERA, IMAGE = "observation.images.top", "observation.images.wrist"

SPEC = DatasetSpec(
    episodes=4,
    frames=[8, 5, 9, 6],
    cameras=(CameraSpec(key=CAMERA, width=64, height=48),),
    image_keys=(IMAGE,),
    image_size=(32, 32),
)


def move_rows(root: Path, column: str, moved: list[int]) -> None:
    """Take one column's values of the first episode from other rows; row groups stay."""
    with pq.ParquetFile(root / DATA) as file:
        groups = [file.read_row_group(n) for n in range(file.num_row_groups)]
    place = groups[0].column_names.index(column)
    values = groups[0].column(column).take(pa.array(moved))
    groups[0] = groups[0].set_column(place, groups[0].schema.field(place), values)
    with pq.ParquetWriter(root / DATA, groups[0].schema) as writer:
        for group in groups:
            writer.write_table(group)


def decoded_pictures(path: Path) -> list[npt.NDArray[np.uint8]]:
    """Return every frame of a video as RGB, in the order of presentation, by FFmpeg alone."""
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
