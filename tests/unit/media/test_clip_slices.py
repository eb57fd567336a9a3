"""Episodes cut out of a file that holds several: in any order, with gaps, or refused."""

from __future__ import annotations

import struct
from fractions import Fraction
from itertools import accumulate
from pathlib import Path

import pytest
from clip_recipes import RECIPES, MakeClip, Recipe
from tests.mp4_boxes import Box, changed, stbl_of

from leconvert.media import LastIndex, join_clips, read_clip_index
from leconvert.model.values import Slice
from leconvert.support.errors import UnreadableSourceError

THIRTY = Fraction(30)
LENGTHS = (12, 7, 5, 20)


@pytest.fixture(params=["x264", "x264-b-frames", "x265-b-frames", "av1", "vp9"])
def clips(request: pytest.FixtureRequest, make_clip: MakeClip) -> list[Path]:
    """Clips of one configuration, different in content and length."""
    recipe = RECIPES[request.param]
    return [
        make_clip(Recipe(**{**vars(recipe), "frames": frames, "seed": seed}))
        for seed, frames in enumerate(LENGTHS)
    ]


@pytest.fixture
def many(clips: list[Path], tmp_path: Path) -> tuple[Path, list[Slice]]:
    """A file of all clips, and where in it each is."""
    path = tmp_path / "many.mp4"
    join_clips([Slice(str(clip)) for clip in clips], path, fps=THIRTY)
    firsts = accumulate(LENGTHS[:-1], initial=0)
    return path, [Slice(str(path), *at) for at in zip(firsts, LENGTHS, strict=True)]


@pytest.mark.parametrize("order", [(2,), (3, 0), (1, 3), (3, 2, 1, 0), (0, 0), (2, 3)])
def test_slices_in_any_order_are_joined_to_the_bytes_of_joining_their_clips(
    clips: list[Path], many: tuple[Path, list[Slice]], tmp_path: Path, order: tuple[int, ...]
) -> None:
    _, slices = many
    of_clips = join_clips([Slice(str(clips[n])) for n in order], tmp_path / "a", fps=THIRTY)
    of_slices = join_clips([slices[n] for n in order], tmp_path / "b", fps=THIRTY)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert of_slices == of_clips


def test_an_index_is_held_while_samples_are_left_and_the_file_is_the_same(
    many: tuple[Path, list[Slice]], clips: list[Path], tmp_path: Path
) -> None:
    path, slices = many
    last = LastIndex()
    join_clips(slices[:2], tmp_path / "0", fps=THIRTY, last_index=last)
    assert last.of(str(path)) is not None
    assert last.of(str(clips[0])) is None
    join_clips([Slice(str(clips[1])), slices[3]], tmp_path / "1", fps=THIRTY, last_index=last)
    assert last.of(str(path)) is None  # nothing is left behind the last slice
    join_clips(slices[:1], tmp_path / "2", fps=THIRTY, last_index=last)
    with pytest.raises(UnreadableSourceError):
        join_clips([Slice(str(path), 0, 99)], tmp_path / "3", fps=THIRTY, last_index=last)
    assert last.of(str(path)) is None


def test_a_cut_within_a_group_of_pictures_is_refused(
    many: tuple[Path, list[Slice]], tmp_path: Path
) -> None:
    path, _ = many
    index = read_clip_index(path)
    inside = next(n for n in range(index.num_samples) if not index.keyframes[n])
    with pytest.raises(UnreadableSourceError) as caught:
        join_clips([Slice(str(path), inside, 2)], tmp_path / "cut.mp4", fps=THIRTY)
    assert caught.value.message == (
        f"{path} cannot be cut without encoding it again: frame {inside} begins an episode but is "
        "not a keyframe."
    )
    assert caught.value.next_step == "Leave the episode out with --on-bad-episode drop."
    assert not (tmp_path / "cut.mp4").exists()


def test_a_cut_through_frames_that_are_shown_among_each_other_is_refused(
    make_clip: MakeClip, tmp_path: Path
) -> None:
    path = tmp_path / "clip.mp4"
    plain = make_clip(RECIPES["x264-b-frames"])

    def late_group(top: Box) -> None:
        # The two groups of six change places in time.
        rows = struct.pack(">IIII", 6, 512 * 12, 6, 0)
        stbl_of(top).replace("ctts", struct.pack(">II", 0, 2) + rows)
        top.find("moov/trak").remove("edts")

    path.write_bytes(changed(plain.read_bytes(), late_group))
    index = read_clip_index(path)
    assert [index.can_cut(sample) for sample in (0, 6, 12)] == [True, False, True]
    for part in (Slice(str(path), 0, 6), Slice(str(path), 6)):
        with pytest.raises(UnreadableSourceError, match="other frames are shown between frames"):
            join_clips([part], tmp_path / "cut.mp4", fps=THIRTY)
