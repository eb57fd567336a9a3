"""A good result that is damaged in any way that we could think of does not pass.

Each mutation is found at its depth, and a difference says the right thing: the file, the episode,
and what was expected and found. The deeper proof begins with what the other compares; every fifth
mutation is sought by both.
"""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from mutation import AV1, BYTES, DATA, HEVC, SPARE_DATA, SPARE_TOP, STRUCTURE, TOP, WRIST, Mutation
from mutations import MUTATIONS

import leconvert
from leconvert import media
from leconvert.model.values import LayoutOptions
from leconvert.run.proof import Difference, verify_pair
from leconvert.testing import (
    CameraSpec,
    DatasetSpec,
    edit_info,
    edit_table,
    make_dataset,
    with_column,
)

EVERY = [mutation for mutations in MUTATIONS.values() for mutation in mutations]
DEPTHS = (STRUCTURE, BYTES)
README = Path(__file__).resolve().parents[4] / "README.md"

# Frames that are shown in another order than they are decoded.
_REORDERED = {"bf": "2"}


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``source`` and the good result ``out``; do not change them."""
    folder = tmp_path_factory.mktemp("mutations")
    spec = DatasetSpec(
        episodes=6,
        frames=[6, 4, 4, 1, 5, 4],
        cameras=tuple(
            CameraSpec(f"observation.images.{name}", 64, 48, gop_size=6, options=_REORDERED)
            for name in ("top", "wrist")
        ),
        image_keys=("observation.images.still",),
        image_size=(16, 16),
        has_done=True,
        tasks=("Pick.", "Place.", "Rest."),
        tasks_per_episode=2,
        extra_episode_keys={"operator": ["ann", "bob"], "score": [1.5, 2.5, 3.5]},
        extra_info={"license": "mit"},
        extra_files={"README.md": "# A dataset\n", "meta/modality.json": "{}\n"},
    )
    source = make_dataset(folder / "source", spec)
    add_notes(source)
    layout = LayoutOptions(block_align=512, data_file_size_in_mb=0.016, video_file_size_in_mb=0.008)
    leconvert.convert(source, output=folder / "out", layout=layout)
    return folder


@pytest.fixture(scope="session")
def pair_of_codecs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As ``pair``, of two short episodes in HEVC and AV1."""
    folder = tmp_path_factory.mktemp("codecs")
    cameras = tuple(
        CameraSpec(f"observation.images.{name}", 64, 64, codec=encoder)
        for name, encoder in (("hevc", "libx265"), ("av1", "libsvtav1"))
    )
    spec = DatasetSpec(episodes=2, frames=2, cameras=cameras, distinct_clips=1)
    source = make_dataset(folder / "source", spec)
    leconvert.convert(source, output=folder / "out")
    return folder


def add_notes(source: Path) -> None:
    """Give a dataset a column of texts."""
    for episode in range(6):
        edit_table(
            source,
            episode,
            lambda table: with_column(
                table, "note", pa.array([f"frame {number}" for number in range(len(table))])
            ),
        )
    note = {"dtype": "string", "shape": [1], "names": None}
    edit_info(source, lambda info: info["features"].update(note=note))


@pytest.mark.parametrize("depth", DEPTHS)
def test_undamaged_hevc_and_av1_pass(pair_of_codecs: Path, depth: str) -> None:
    out, source = pair_of_codecs / "out", pair_of_codecs / "source"
    assert verify_pair(out, source, depth=depth).differences == ()
    assert [media.read_clip_index(out / path).codec for path in (HEVC, AV1)] == ["hev1", "av01"]


@pytest.mark.parametrize("depth", DEPTHS)
def test_the_undamaged_result_passes(pair: Path, depth: str) -> None:
    report = verify_pair(pair / "out", pair / "source", depth=depth)
    assert report.differences == ()
    assert (report.files, report.episodes, report.rows, report.video_frames) == (6, 6, 24, 48)


def test_the_result_is_one_that_much_can_go_wrong_in(pair: Path) -> None:
    out = pair / "out"
    assert [pq.read_metadata(out / path).num_row_groups for path in (DATA, SPARE_DATA)] == [4, 2]
    for path in (TOP, WRIST):
        index = media.read_clip_index(out / path)
        assert index.num_samples == 15
        assert index.reordering(0, 6) is not None
        assert index.keyframes.tolist().count(True) == 4
    assert media.read_clip_index(out / SPARE_TOP).num_samples == 9


@pytest.mark.parametrize("mutation", EVERY, ids=lambda mutation: mutation.title)
def test_damage_is_found_and_said(
    request: pytest.FixtureRequest, tmp_path: Path, mutation: Mutation
) -> None:
    pair: Path = request.getfixturevalue(mutation.pair)
    root = tmp_path / "out"
    shutil.copytree(pair / "out", root)
    (tmp_path / "source").symlink_to(pair / "source")
    mutation.damage(root)
    deepest = BYTES if mutation in EVERY[::5] else mutation.depth
    for depth in dict.fromkeys((mutation.depth, deepest)):
        report = verify_pair(root, pair / "source", depth=depth)
        said = [str(difference) for difference in report.differences]
        assert any(matches(mutation, found) for found in report.differences), (depth, said)
    if mutation.depth == BYTES:
        # What structure finds as well is to be listed so.
        assert verify_pair(root, pair / "source", depth=STRUCTURE).ok


def matches(mutation: Mutation, difference: Difference) -> bool:
    return (
        difference.path == mutation.path
        and difference.episode == mutation.episode
        and mutation.what in difference.what
        and mutation.expected in difference.expected
        and mutation.found in difference.found
    )


def test_every_mutation_has_a_title_of_its_own_and_the_readme_says_how_many_there_are() -> None:
    assert [title for title, count in Counter(m.title for m in EVERY).items() if count > 1] == []
    assert len(EVERY) >= 75
    assert str(len(EVERY)) in README.read_text("utf-8").split()
