"""Generated LeRobot v2.x datasets: for tests, the demo and benchmarks.

``make_dataset(root, spec)`` writes a correct dataset. Every frame shows its camera, episode and
frame number (``read_label``), so a test can distinguish the right frame from its neighbour.
"""

from leconvert.testing.dataset import (
    PROFILES,
    CameraSpec,
    DatasetSpec,
    FrameLabel,
    draw_frame,
    edit_info,
    edit_lines,
    edit_table,
    encode_png,
    make_dataset,
    read_label,
    with_column,
)

__all__ = [
    "PROFILES",
    "CameraSpec",
    "DatasetSpec",
    "FrameLabel",
    "draw_frame",
    "edit_info",
    "edit_lines",
    "edit_table",
    "encode_png",
    "make_dataset",
    "read_label",
    "with_column",
]
