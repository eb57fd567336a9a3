"""Decoding chosen frames gives the frames of those ranks, and not their neighbours."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from clip_recipes import RECIPES, Recipe
from tests.decoding import decode_frames

from leconvert.errors import UnreadableSourceError
from leconvert.media import ClipRange, coded_packets, join_clips, remux_clip

MakeClip = Callable[[Recipe], Path]


@pytest.mark.parametrize(
    "name", ["x264", "x264-b-frames", "x264-b-frames-no-edit-list", "x265", "av1", "vp9", "mpeg4"]
)
def test_chosen_frames_are_those_of_a_full_decode(
    name: str, make_clip: MakeClip, tmp_path: Path
) -> None:
    recipe = RECIPES[name]
    clips = [make_clip(Recipe(**{**vars(recipe), "seed": seed, "frames": 20})) for seed in (0, 1)]
    path = tmp_path / "joined.mp4"
    join_clips([ClipRange(str(clip)) for clip in clips], path, fps=recipe.fps)
    for video in (path, clips[0]):
        every = dict(decode_frames(video))
        assert list(every) == list(range(len(every)))
        assert len({picture.tobytes() for picture in every.values()}) == len(every)
        rng = np.random.default_rng(7)
        for count in (1, 2, 5):
            for _ in range(8):
                ranks = rng.choice(len(every), count).tolist()
                chosen = list(decode_frames(video, ranks))
                assert [rank for rank, _ in chosen] == sorted(set(ranks))
                for rank, picture in chosen:
                    assert picture.dtype == np.uint8
                    assert picture.shape == (64, 64, 3)
                    assert (picture == every[rank]).all()


def test_far_frames_are_reached_without_decoding_all_between(
    recordings: Callable[[str], list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from leconvert.media import pyav

    decoded = 0
    real = pyav._rank_of

    def counting(*arguments: object) -> int:
        nonlocal decoded
        decoded += 1
        return real(*arguments)

    monkeypatch.setattr(pyav, "_rank_of", counting)
    path = recordings("g1_inspire_12ep")[0]
    found = [rank for rank, _ in decode_frames(path, [3, 200, 400])]
    assert found == [3, 200, 400]
    assert decoded < 40


def test_no_ranks_decode_nothing_and_open_nothing(tmp_path: Path) -> None:
    assert list(decode_frames(tmp_path / "absent.mp4", [])) == []


@pytest.mark.parametrize("rank", [-1, 12, 1000])
def test_a_frame_that_is_not_there_is_an_error(rank: int, make_clip: MakeClip) -> None:
    with pytest.raises(UnreadableSourceError, match=f"no frame {rank}"):
        list(decode_frames(make_clip(RECIPES["x264"]), [0, rank]))


def test_files_that_only_ffmpeg_can_read_are_decoded_too(make_clip: MakeClip) -> None:
    path = make_clip(Recipe(container="matroska", options=RECIPES["x264-b-frames"].options))
    every = dict(decode_frames(path))
    assert len(every) == 12
    chosen = dict(decode_frames(path, [2, 9]))
    assert list(chosen) == [2, 9]
    assert all((chosen[rank] == every[rank]).all() for rank in chosen)
    assert list(dict(decode_frames(path, [2, 11]))) == [2, 11]
    with pytest.raises(UnreadableSourceError, match="no frame 12"):
        list(decode_frames(path, [12]))


def test_what_ffmpeg_cannot_read_is_an_error_with_the_path(tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    path.write_bytes(b"not a video at all" * 100)
    for read in (
        lambda: list(coded_packets(path)),
        lambda: list(decode_frames(path)),
        lambda: list(decode_frames(path, [0])),
        lambda: remux_clip(path, tmp_path / "out.mp4", fps=Fraction(30)),
    ):
        with pytest.raises(UnreadableSourceError) as caught:
            read()
        assert str(path) in str(caught.value)
    with pytest.raises(UnreadableSourceError, match=r"absent\.mp4"):
        list(coded_packets(tmp_path / "absent.mp4"))
