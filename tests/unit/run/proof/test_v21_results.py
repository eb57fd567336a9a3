"""A v2.1 result is proven like a v3.0 one: what is damaged is found, and the message says where."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from mutation import bytes_of
from tests.dataset_damage import edit_info, remove, rewrite, set_cells, set_stat

import leconvert
from leconvert import media
from leconvert.model.values import LayoutOptions
from leconvert.run.proof import Sampling, verify_pair
from leconvert.support.errors import UsageError
from leconvert.testing import CameraSpec, DatasetSpec, edit_lines, make_dataset

ROWS = "data/chunk-000/episode_000001.parquet"
CLIP = "videos/chunk-000/observation.images.top/episode_000002.mp4"
TOP = "videos/observation.images.top"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``source`` and the good result ``out``; do not change them."""
    folder = tmp_path_factory.mktemp("v21")
    spec = DatasetSpec(
        episodes=3, frames=[6, 4, 5],
        cameras=(CameraSpec("observation.images.top", 64, 48, options={"bf": "2"}),),
        tasks=("Pick.", "Place."), extra_episode_keys={"operator": ["ann", "bob"]},
        extra_files={"meta/modality.json": "{}\n"},
    )  # fmt: skip
    source = make_dataset(folder / "source", spec)
    leconvert.convert(source, output=folder / "out", layout=LayoutOptions(to="v2.1"))
    return folder


@pytest.mark.parametrize("depth", ["structure", "bytes"])
def test_a_good_result_has_no_differences(pair: Path, depth: str) -> None:
    report = verify_pair(pair / "out", pair / "source", depth=depth, sampling=Sampling(decode=9))
    assert report.differences == ()
    assert (report.files, report.episodes, report.rows) == (6, 3, 15)
    assert (report.video_frames, report.pictures) == (15, 9)


def test_a_good_result_is_its_own_source_and_lerobot_of_today_cannot_load_it(pair: Path) -> None:
    assert verify_pair(pair / "out", pair / "out", depth="bytes").ok
    with pytest.raises(UsageError, match=r"--deep works only for v3.0 datasets"):
        verify_pair(pair / "out", pair / "source", sampling=Sampling(deep=1))


def replace_text(path: str, old: str, new: str) -> Callable[[Path], None]:
    def damage(root: Path) -> None:
        text = (root / path).read_text()
        assert old in text
        (root / path).write_text(text.replace(old, new, 1))

    return damage


def set_stat_of_an_episode(root: Path) -> None:
    edit_lines(root, "episodes_stats", lambda lines: lines[1]["stats"]["action"].update(max=[9]))


def flip_packet(root: Path) -> None:
    with bytes_of(root / CLIP) as content:
        content[int(media.read_clip_index(root / CLIP).offsets[2])] ^= 1


def call_lists_by_their_new_name(root: Path) -> None:
    table = pq.read_table(root / ROWS)
    told = table.schema.metadata[b"huggingface"].replace(b"Sequence", b"List")
    pq.write_table(table.replace_schema_metadata({b"huggingface": told}), root / ROWS)


@pytest.mark.parametrize(
    ("damage", "depth", "path", "what"),
    [
        (edit_info(total_videos=2), "structure", "meta/info.json", "total_videos"),
        (edit_info(chunks_size=10), "structure", "meta/info.json", "chunks_size"),
        (replace_text("meta/tasks.jsonl", "Place.", "Push."), "structure", "meta/tasks.jsonl",
         "tasks"),
        (replace_text("meta/episodes.jsonl", '"length": 4', '"length": 5'), "structure",
         "meta/episodes.jsonl", "length"),
        (replace_text("meta/episodes.jsonl", "bob", "eve"), "structure", "meta/episodes.jsonl",
         "operator"),
        (replace_text("meta/episodes.jsonl", '{"episode_index": 2', '{"episode_index": 7'),
         "structure", "meta/episodes.jsonl", "episode_index"),
        (replace_text("meta/episodes.jsonl", '"length"', "length"), "structure",
         "meta/episodes.jsonl", "readable metadata"),
        (remove(ROWS), "structure", ROWS, "file"),
        (remove("meta/stats.json"), "structure", "meta/stats.json", "file"),
        (remove("meta/modality.json"), "structure", "meta/modality.json", "file"),
        (lambda root: (root / "data/chunk-000/more.parquet").write_bytes(b"x"), "structure",
         "data/chunk-000/more.parquet", "file"),
        (lambda root: shutil.copy(root / CLIP.replace("2.", "0."), root / CLIP), "structure", CLIP,
         "number of frames"),
        (call_lists_by_their_new_name, "structure", ROWS, "`huggingface` entry"),
        (set_stat("action", "mean", [1.0] * 6), "bytes", "meta/stats.json",
         "aggregate mean of 'action'"),
        (set_stat_of_an_episode, "bytes", "meta/episodes_stats.jsonl", "stats/action/max"),
        (rewrite(ROWS, set_cells("action", r0=[1.0] * 6)), "bytes", ROWS,
         "column 'action', row"),
        (flip_packet, "bytes", CLIP, "coded bytes from packet 2 on"),
    ],
)  # fmt: skip
def test_damage_is_found_and_said(
    pair: Path, tmp_path: Path, damage: Callable[[Path], object], depth: str, path: str, what: str
) -> None:
    root = Path(shutil.copytree(pair / "out", tmp_path / "out"))
    damage(root)
    found = verify_pair(root, pair / "source", depth=depth).differences
    said = [str(difference) for difference in found]
    assert any(each.path == path and what in each.what for each in found), said
    if depth == "bytes":
        assert verify_pair(root, pair / "source", depth="structure").ok
