"""A video file of one episode that was cut out of a larger file is known by its header alone."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

import leconvert
from leconvert import media
from leconvert.media import join
from leconvert.model.values import LayoutOptions
from leconvert.run.proof import pieces, verify_pair
from leconvert.run.proof.videos import SourceClips, Span, as_joined
from leconvert.support.errors import VerificationError
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset

FPS = Fraction(30)
CLIP = "videos/chunk-000/observation.images.top/episode_000001.mp4"
SHARED = "videos/observation.images.top/chunk-000/file-000.mp4"


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


def span(pair: Path, **changes: object) -> Span:
    """What is expected of the clip of episode 1."""
    right = Span(1, 9, 0, None, None, str(pair / "source" / SHARED), 6)
    return right._replace(**changes)


def is_joined(name: Path, expected: Span) -> bool:
    return as_joined(str(name), expected, FPS, SourceClips()) is not None


def test_the_samples_of_a_slice_and_their_header_are_all_that_there_is(pair: Path) -> None:
    clip = media.read_clip_index(pair / "source" / SHARED)
    lead = clip.reordering(6, 15)
    assert lead is not None, "frames are shown in another order than decoded"
    digest = media.order_digest(clip.sizes[6:15], clip.keyframes[6:15], lead)
    assert is_joined(pair / "out" / CLIP, span(pair))
    assert is_joined(pair / "out" / CLIP, span(pair, order_digest=digest))
    assert is_joined(pair / "out" / CLIP, span(pair, from_timestamp=0.0, to_timestamp=0.3))


@pytest.mark.parametrize(
    "changes",
    [
        {"source_first": 5},
        {"source_first": 12},
        {"source_first": None},
        {"length": 8},
        {"length": 0},
        {"order_digest": "0" * 16},
        {"from_timestamp": 0.1},
        {"to_timestamp": 0.2},
    ],
)
def test_a_slice_that_the_file_does_not_hold_is_left_to_the_comparison(
    pair: Path, changes: dict[str, object]
) -> None:
    assert not is_joined(pair / "out" / CLIP, span(pair, **changes))


def test_any_other_byte_of_the_header_and_any_other_size_is_seen(
    pair: Path, tmp_path: Path
) -> None:
    good = (pair / "out" / CLIP).read_bytes()
    clip = media.read_clip_index(pair / "out" / CLIP)
    damaged, expected, clips = tmp_path / "clip.mp4", span(pair), SourceClips()
    for at in range(clip.offsets[0]):
        damaged.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        assert as_joined(str(damaged), expected, FPS, clips) is None, at
    for other in (good[:-1], good + b"\0", b""):
        damaged.write_bytes(other)
        assert as_joined(str(damaged), expected, FPS, clips) is None
    assert as_joined(str(tmp_path / "missing.mp4"), expected, FPS, clips) is None
    damaged.write_bytes(good)
    assert as_joined(str(damaged), expected, FPS, clips) is not None


def flip(at: int) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[at] ^= 1
        path.write_bytes(content)

    return damage


def swap(path: Path) -> None:
    shutil.copy(path.with_name("episode_000000.mp4"), path)


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


@pytest.mark.parametrize(
    ("damage", "is_seen"),
    [
        (None, False),
        (flip(30), True),
        (flip(300), True),
        (swap, True),
        (cut_off, True),
        (Path.unlink, True),
        (flip(-1), False),  # a coded byte, which is for --bytes to compare
    ],
)
def test_what_is_said_does_not_depend_on_whether_headers_are_compared_first(
    pair: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[Path], object] | None,
    is_seen: bool,
) -> None:
    root = Path(shutil.copytree(pair / "out", tmp_path / "out"))
    if damage is not None:
        damage(root / CLIP)
    quickly = verify_pair(root, pair / "source")
    assert quickly.ok != is_seen
    monkeypatch.setattr(pieces, "as_joined", lambda *_: None)
    assert verify_pair(root, pair / "source") == quickly


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
