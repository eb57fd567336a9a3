"""Damage inside coded frames that FFmpeg paints over."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.unit.loading.conftest import CAMERAS

from leconvert.loading import EpisodeStream, StreamLoader
from leconvert.media import read_clip_index
from leconvert.support.errors import UnreadableSourceError, UsageError

TOP = CAMERAS[0]
EPISODE, FRAME = 3, 7


@pytest.fixture
def damaged(v30_copy: Path) -> Path:
    """The dataset with random bytes inside one coded frame; its file stays as large."""
    camera = EpisodeStream(v30_copy).meta.table.cameras[TOP]
    path = v30_copy / camera.paths[int(camera.file[EPISODE])]
    index = read_clip_index(path)
    sample = int(camera.first[EPISODE]) + FRAME
    size = int(index.sizes[sample])
    noise = random.Random(1)
    with path.open("r+b") as file:
        file.seek(int(index.offsets[sample]) + 8)  # behind the length and the kind of its unit
        file.write(noise.randbytes(size - 8))
    return path


def test_a_damaged_frame_ends_the_pass_with_file_episode_and_frame(
    damaged: Path, v30_copy: Path
) -> None:
    for workers in (0, 1):
        loader = StreamLoader(EpisodeStream(v30_copy), batch_size=4, num_workers=workers)
        with pytest.raises(UnreadableSourceError) as error:
            list(loader)
        assert error.value.path == str(damaged)
        assert f"(episode {EPISODE}, frame {FRAME} of {TOP})" in error.value.message


@pytest.mark.usefixtures("damaged")
def test_pictures_that_were_painted_over_come_only_where_they_are_asked_for(
    v30: Path, v30_copy: Path
) -> None:
    def pictures(root: Path, **options: bool) -> list[bytes]:
        stream = EpisodeStream(root, shuffle=False, **options)  # type: ignore[arg-type]
        return [sample[TOP].numpy().tobytes() for sample in stream]

    assert pictures(v30_copy, strict_decoding=False) != pictures(v30)


def test_torchcodec_cannot_be_strict(v30: Path) -> None:
    assert not EpisodeStream(v30, video_backend="torchcodec").strict_decoding
    assert EpisodeStream(v30).strict_decoding
    with pytest.raises(UsageError, match="which cannot tell whether coded bytes are damaged"):
        EpisodeStream(v30, video_backend="torchcodec", strict_decoding=True)
