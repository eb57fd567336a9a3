"""A video file of one episode that was cut out of a larger file is compared with its slice."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import leconvert
from leconvert import media
from leconvert.media import join
from leconvert.model.values import LayoutOptions
from leconvert.run.proof import verify_pair
from leconvert.support.errors import VerificationError
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset

CLIP = "videos/chunk-000/observation.images.top/episode_000001.mp4"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``source``, of v3.0, and the good result ``out``; do not change them."""
    folder = tmp_path_factory.mktemp("joined")
    cameras = (CameraSpec("observation.images.top", 64, 48, options={"bf": "2", "g": "4"}),)
    clips = make_dataset(
        folder / "clips", DatasetSpec(episodes=3, frames=[6, 9, 5], cameras=cameras)
    )
    leconvert.convert(clips, output=folder / "source")
    leconvert.convert(folder / "source", output=folder / "out", layout=LayoutOptions(to="v2.1"))
    return folder


def test_another_byte_of_the_header_size_or_file_is_seen(pair: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(pair / "out", tmp_path / "out"))
    assert verify_pair(root, pair / "source").ok
    good = (root / CLIP).read_bytes()
    header_bytes = media.read_clip_index(root / CLIP).offsets[0]
    for at in (*range(0, header_bytes, 59), 300, header_bytes - 1):
        (root / CLIP).write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        assert {each.path for each in verify_pair(root, pair / "source").differences} == {CLIP}, at
    (root / CLIP).write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    assert verify_pair(root, pair / "source").ok, "a coded byte is for --bytes to compare"
    another = (root / CLIP).with_name("episode_000000.mp4").read_bytes()
    for other in (good[:-1], good[:-7], good + b"\0", b"", another):
        (root / CLIP).write_bytes(other)
        assert not verify_pair(root, pair / "source").ok
    (root / CLIP).unlink()
    assert not verify_pair(root, pair / "source").ok


def test_a_fault_that_the_writer_makes_in_every_header_is_found(
    pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = media.build_header

    def wrong(*args: Any, **options: Any) -> Any:
        header = build(*args, **options)
        content = bytearray(header.content)
        content[content.index(b"stts") + 15] ^= 1  # the duration of a frame
        return header._replace(content=bytes(content))

    monkeypatch.setattr(join, "build_header", wrong)
    monkeypatch.setattr(media, "build_header", wrong)
    with pytest.raises(VerificationError, match="does not match"):
        leconvert.convert(pair / "source", output=tmp_path / "out", layout=LayoutOptions(to="v2.1"))
