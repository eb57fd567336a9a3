"""A clip with a damaged index is refused, or every frame of the result is the right one."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from leconvert import LayoutOptions, convert
from leconvert.media.pyav import open_container
from leconvert.support.errors import LeconvertError
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset

# So many that their indices are read together.
FRAMES = [9, 12, 7, 8, 10, 9, 11]


CODECS = ("libx264", "libsvtav1")


@pytest.fixture(scope="module")
def source_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    @cache
    def make(codec: str) -> Path:
        camera = CameraSpec(key="observation.images.top", width=64, height=64, codec=codec)
        spec = DatasetSpec(episodes=len(FRAMES), frames=FRAMES, cameras=(camera,))
        return make_dataset(tmp_path_factory.mktemp("indexes") / "dataset", spec)

    return make


def pictures(root: Path) -> list[bytes]:
    """Return all frames; names of programs in the file, which may be damaged, are not looked at."""
    found = []
    for clip in sorted(root.rglob("*.mp4")):
        with open_container(str(clip)) as container:
            frames = container.decode(video=0)
            found += [frame.to_ndarray(format="rgb24").tobytes() for frame in frames]
    return found


def damage(clip: Path, rng: random.Random) -> None:
    """Change a byte or two of ``moov``, a third of the time of the samples' sizes.

    What tells the decoder how to begin (``stsd``) is left: like the coded frames it is carried over
    as it is.
    """
    content = bytearray(clip.read_bytes())
    sizes = content.index(b"stsz") + 16
    table = range(sizes, sizes + 4 * int.from_bytes(content[sizes - 4 : sizes]))
    start = content.index(b"moov") - 4
    index = range(start, start + int.from_bytes(content[start : start + 4]))
    start = content.index(b"stsd") - 4
    told = range(start, start + int.from_bytes(content[start : start + 4]))
    for _ in range(rng.choice([1, 1, 2])):
        place = rng.choice([at for at in rng.choice([table, index, index]) if at not in told])
        content[place] ^= rng.randrange(1, 256)
    clip.write_bytes(content)


@pytest.mark.parametrize(
    ("codec", "layout", "times"),
    [
        ("libx264", "reference", 10),
        ("libsvtav1", "episode-files", 10),
        *(
            pytest.param(codec, layout, 500, marks=pytest.mark.slow)
            for codec in CODECS
            for layout in ("reference", "episode-files")
        ),
    ],
)
def test_no_damage_of_an_index_gives_other_pictures(
    source_of: Callable[[str], Path], tmp_path: Path, codec: str, layout: str, times: int
) -> None:
    damage_and_convert(source_of(codec), tmp_path, LayoutOptions(layout=layout), times)


@pytest.mark.parametrize(
    ("codec", "times"),
    [("libx264", 10), *(pytest.param(codec, 500, marks=pytest.mark.slow) for codec in CODECS)],
)
def test_nor_where_zeros_lie_between_episodes(
    source_of: Callable[[str], Path], tmp_path: Path, codec: str, times: int
) -> None:
    joined = tmp_path / "joined"
    convert(source_of(codec), output=joined, layout=LayoutOptions(block_align=4096))
    damage_and_convert(joined, tmp_path, LayoutOptions(to="v2.1"), times)


def damage_and_convert(source: Path, folder: Path, layout: LayoutOptions, times: int) -> None:
    expected = pictures(source)
    assert len(set(expected)) == sum(FRAMES)
    refused: list[int] = []
    for seed in range(times):
        rng = random.Random(f"{layout.to} {layout.layout} {times} {seed}")
        damaged = Path(shutil.copytree(source, folder / str(seed) / "source"))
        damage(rng.choice(sorted(damaged.rglob("*.mp4"))), rng)
        result = damaged.with_name("result")
        try:
            convert(damaged, output=result, layout=layout)
        except LeconvertError as error:
            refused.append(error.exit_code)
        else:
            assert pictures(result) == expected, seed
        shutil.rmtree(damaged.parent)
    assert set(refused) == {3}
    assert 0.4 * times < len(refused) < 0.95 * times
