"""Frames that say who they are, and PNG files of them.

The upper half of a frame is a grid of 4 by 8 black and white blocks that spell 32 bits: 4 of the
camera, 12 of the episode and 16 of the frame, each modulo its range. Blocks survive lossy coding,
so a decoded frame can still be read; and as the frame number is in it, no frame equals its
neighbour. The lower half is a moving gradient, or noise that costs an encoder as many bits as one
wants to spend.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from leconvert.errors import UsageError

__all__ = ["MIN_SIDE", "FrameLabel", "NoiseField", "draw_frame", "encode_png", "read_label"]

Image = npt.NDArray[np.uint8]

_ROWS, _COLUMNS = 4, 8
_CAMERA_BITS, _EPISODE_BITS, _FRAME_BITS = 4, 12, 16
_DARK, _BRIGHT = 32, 224
MIN_SIDE = 16
"""Smallest height and width that the label fits into, in pixels."""


class FrameLabel(NamedTuple):
    """What a frame says about itself: numbers modulo 16, 4,096 and 65,536."""

    camera: int
    episode: int
    frame: int


class NoiseField:
    """Noise that is drawn once and shown at another offset in every frame.

    Guarantees the same pixels for the same seed and frame, and that an encoder's motion search
    does not find the previous frame in the next. It does not guarantee fresh noise: offsets repeat
    after many frames.

    Args:
        seed: Selects the noise.
        height: Rows of the frames.
        width: Columns of the frames.
        amplitude: How far it goes from mid-grey, up to 127.
    """

    def __init__(self, seed: int, height: int, width: int, amplitude: int) -> None:
        generator = np.random.default_rng([seed, height, width])
        low, high = 128 - amplitude, 128 + amplitude
        self._noise = generator.integers(low, high, (height * 2, width * 2, 3), dtype=np.uint8)
        self._offsets = generator.integers(0, (height, width), (4096, 2))

    def window(self, frame: int, height: int, width: int) -> Image:
        """Return the noise of one frame, of shape (height, width, 3)."""
        top, left = self._offsets[frame % len(self._offsets)]
        return self._noise[top : top + height, left : left + width]


def draw_frame(
    label: FrameLabel, height: int, width: int, *, noise: NoiseField | None = None
) -> Image:
    """Draw one frame.

    Args:
        label: What the frame shall say.
        height: Rows, at least 16.
        width: Columns, at least 16.
        noise: Fills the lower half; without it there is a gradient that moves with the frame.

    Returns:
        RGB pixels of shape (height, width, 3).

    Raises:
        UsageError: The frame is too small for its label.
    """
    if height < MIN_SIDE or width < MIN_SIDE:
        raise UsageError(f"a frame of {width}x{height} pixels is too small for its label")
    image = np.empty((height, width, 3), dtype=np.uint8)
    upper = height // 2
    image[:upper] = _blocks(label, upper, width)[:, :, None]
    if noise is not None:
        image[upper:] = noise.window(label.frame, height - upper, width)
        return image
    rows = np.arange(height - upper, dtype=np.int64)[:, None]
    columns = np.arange(width, dtype=np.int64)[None, :]
    phase = 5 * label.frame + 31 * label.episode
    image[upper:, :, 0] = (columns * 128 // width + phase) % 192 + 32
    image[upper:, :, 1] = (rows * 128 // height + 2 * phase) % 192 + 32
    image[upper:, :, 2] = (rows + columns + 40 * label.camera) % 192 + 32
    return image


def read_label(image: npt.NDArray[np.generic]) -> FrameLabel:
    """Read a frame's label back, also from a lossy copy.

    Args:
        image: RGB pixels of shape (height, width, 3), in 0..255.

    Returns:
        Camera, episode and frame that `draw_frame` was told.
    """
    upper, width = image.shape[0] // 2, image.shape[1]
    value = 0
    for bit in range(_ROWS * _COLUMNS):
        top, bottom, left, right = _block(bit, upper, width)
        # The rim of a block may bleed into its neighbours; its middle does not.
        rim_rows, rim_columns = (bottom - top) // 4, (right - left) // 4
        block = image[top + rim_rows : bottom - rim_rows, left + rim_columns : right - rim_columns]
        value = value << 1 | int(float(block.mean()) > (_DARK + _BRIGHT) / 2)
    return FrameLabel(
        camera=value >> (_EPISODE_BITS + _FRAME_BITS),
        episode=value >> _FRAME_BITS & (1 << _EPISODE_BITS) - 1,
        frame=value & (1 << _FRAME_BITS) - 1,
    )


def encode_png(image: Image) -> bytes:
    """Return RGB pixels, uint8 of shape (height, width, 3), as the bytes of a PNG file."""
    height, width = image.shape[:2]
    rows = np.zeros((height, 1 + width * 3), dtype=np.uint8)  # each row begins with filter type 0
    rows[:, 1:] = image.reshape(height, width * 3)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"".join(
        (
            b"\x89PNG\r\n\x1a\n",
            _png_chunk(b"IHDR", header),
            _png_chunk(b"IDAT", zlib.compress(rows.tobytes(), 1)),
            _png_chunk(b"IEND", b""),
        )
    )


def _png_chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def _blocks(label: FrameLabel, height: int, width: int) -> npt.NDArray[np.uint8]:
    value = (
        (label.camera % (1 << _CAMERA_BITS)) << (_EPISODE_BITS + _FRAME_BITS)
        | (label.episode % (1 << _EPISODE_BITS)) << _FRAME_BITS
        | label.frame % (1 << _FRAME_BITS)
    )
    area = np.empty((height, width), dtype=np.uint8)
    for bit in range(_ROWS * _COLUMNS):
        top, bottom, left, right = _block(bit, height, width)
        is_bright = value >> (_ROWS * _COLUMNS - 1 - bit) & 1
        area[top:bottom, left:right] = _BRIGHT if is_bright else _DARK
    return area


def _block(bit: int, height: int, width: int) -> tuple[int, int, int, int]:
    row, column = divmod(bit, _COLUMNS)
    return (
        row * height // _ROWS,
        (row + 1) * height // _ROWS,
        column * width // _COLUMNS,
        (column + 1) * width // _COLUMNS,
    )
