"""What the parts of a verification allow, and what they hold against a result."""

from __future__ import annotations

import json
import shutil
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import leconvert
from leconvert import media, tables
from leconvert.dataset.files import CARD_BEGIN
from leconvert.dataset.formats import v3
from leconvert.model.repairs import RepairOptions
from leconvert.run.conversion import ProofOptions
from leconvert.run.proof import verify_pair
from leconvert.run.proof.metadata import compare_own_values
from leconvert.run.proof.videos import ClipReader, compare_header
from leconvert.testing import DatasetSpec, make_dataset

DEPTHS = ("structure", "bytes")


@pytest.fixture(scope="module")
def plain_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four episodes without cameras; do not change it."""
    spec = DatasetSpec(
        episodes=4, frames=[3, 2, 4, 1], cameras=(), extra_info={"splits": {"train": "0:4"}}
    )
    return make_dataset(tmp_path_factory.mktemp("plain") / "source", spec)


@pytest.fixture
def plain_copy(plain_source: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(plain_source, tmp_path / "source"))


def data_path(source: Path, episode: int) -> Path:
    return source / f"data/chunk-000/episode_{episode:06d}.parquet"


def said(result: Path, source: Path, depth: str) -> list[str]:
    return [str(found) for found in verify_pair(result, source, depth=depth).differences]


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_first_episode_of_other_types_than_most_is_no_difference(
    plain_copy: Path, tmp_path: Path, depth: str
) -> None:
    table = pq.read_table(data_path(plain_copy, 0))
    at = table.schema.get_field_index("frame_index")
    narrow = pa.field("frame_index", pa.int32())
    table = table.set_column(at, narrow, table.column(at).cast(pa.int32()))
    pq.write_table(table.replace_schema_metadata(None), data_path(plain_copy, 0))
    leconvert.convert(plain_copy, output=tmp_path / "out", proof=ProofOptions(verify="none"))
    schema = tables.read_data_schema(tmp_path / "out/data/chunk-000/file-000.parquet")
    assert schema.field("frame_index").type == pa.int64()
    assert said(tmp_path / "out", plain_copy, depth) == []


def test_images_that_the_source_has_as_bytes_alone_are_no_difference(tmp_path: Path) -> None:
    key = "observation.images.still"
    spec = DatasetSpec(episodes=2, frames=2, cameras=(), image_keys=(key,), image_size=(16, 16))
    source = make_dataset(tmp_path / "source", spec)
    for episode in range(2):
        table = pq.read_table(data_path(source, episode))
        content = pa.array([image["bytes"] for image in table.column(key).to_pylist()])
        table = table.set_column(table.schema.get_field_index(key), key, content)
        pq.write_table(table.replace_schema_metadata(None), data_path(source, episode))
    leconvert.convert(source, output=tmp_path / "out", proof=ProofOptions(verify="none"))
    assert said(tmp_path / "out", source, "bytes") == []


@pytest.mark.parametrize("depth", DEPTHS)
def test_repairs_are_expected_in_every_table(plain_copy: Path, tmp_path: Path, depth: str) -> None:
    data_path(plain_copy, 1).unlink()
    leconvert.convert(
        plain_copy, output=tmp_path / "out", proof=ProofOptions(verify="none"),
        repairs=RepairOptions(on_bad_episode="drop", recompute_stats=True),
    )  # fmt: skip
    info = json.loads((tmp_path / "out/meta/info.json").read_bytes())
    assert info["splits"] == {"train": "0:3"}
    assert said(tmp_path / "out", plain_copy, depth) == []
    # The record of repairs is what makes them expected.
    (tmp_path / "out/meta/repairs.json").unlink()
    assert any("total_episodes" in line for line in said(tmp_path / "out", plain_copy, depth))


def test_links_and_what_tools_keep_are_no_difference(plain_source: Path, tmp_path: Path) -> None:
    leconvert.convert(plain_source, output=tmp_path / "out")
    stats = tmp_path / "out/meta/stats.json"
    stats.rename(tmp_path / "blob")
    stats.symlink_to(tmp_path / "blob")
    (tmp_path / "out/.cache").mkdir()
    (tmp_path / "out/.cache/lock").touch()
    assert said(tmp_path / "out", plain_source, "bytes") == []


def test_splits_that_are_no_ranges_stay_when_others_are_renumbered() -> None:
    splits = {"train": "0:4", "val": "4:6", "odd": "last", "open": "2:"}
    kept = v3.kept_splits(splits, np.array([0, 1, 3, 5]))
    assert kept == {"train": "0:3", "val": "3:4", "odd": "last", "open": "2:"}
    assert v3.kept_splits(None, np.array([0])) == {}


@pytest.mark.parametrize(
    ("value", "stored", "is_same"),
    [
        *((value, stored, True) for value, stored in [
            (1, 1), (1, 1.0), (2**53 + 1, float(2**53)), (float("nan"), float("nan")), (None, None),
            ({}, "{}"), ([1, "a"], '[1, "a"]'), ({"a": 1}, {"a": 1, "b": None}),
            ([{"a": [1]}], [{"a": [1.0]}]),
        ]),
        *((value, stored, False) for value, stored in [
            (1, 2), (1, True), ("1", 1), (None, 0), ([1], [1, 2]), ({"a": 1}, {"a": 2}),
            ({"a": 1}, "{"), (0.1, 0.30000000000000004), ("a", None),
        ]),
    ],
)  # fmt: skip
def test_values_of_episodes_may_be_stored_in_wider_types_and_others_are_told(
    value: object, stored: object, is_same: bool
) -> None:
    line = {"episode_index": 3, "own": value}
    found = list(compare_own_values([line], {"own": [stored]}, ["episode_index"]))
    told = [(each.what, each.episode, each.expected, each.found) for each in found]
    assert told == [("own", 3, str(value), str(stored))] * (not is_same)


def test_no_header_is_judged_where_packets_are_wrong(small_source: Path, tmp_path: Path) -> None:
    clip = str(small_source / "videos/chunk-000/observation.images.top/episode_000000.mp4")
    path = "clip.mp4"

    def found(lengths: list[int]) -> list[str]:
        fps = Fraction(30)
        index = media.read_clip_index(tmp_path / path)
        differences = compare_header(index, lengths, clip, fps, ClipReader())
        return [what for what, *_ in differences]

    shutil.copyfile(clip, tmp_path / path)
    assert found([11]) == []  # fewer frames than the file has
    assert found([13]) == []
    (what, *_) = found([12])  # FFmpeg's own header is not ours
    assert what.startswith(("header, box", "size of the file"))


def paths_that_differ(result: Path, source: Path) -> list[str]:
    return [
        difference.path for difference in verify_pair(result, source, depth="bytes").differences
    ]


def test_attributes_of_git_belong_to_the_repo(result_copy: Path, source_copy: Path) -> None:
    (source_copy / ".gitattributes").write_text("*.mp4 filter=lfs\n")
    assert paths_that_differ(result_copy, source_copy) == []
    (result_copy / ".gitattributes").write_text("*.parquet filter=lfs\n")
    assert paths_that_differ(result_copy, source_copy) == []
    (result_copy / ".gitignore").write_text("data\n")
    assert paths_that_differ(result_copy, source_copy) == [".gitignore"]


@pytest.mark.parametrize("had_one", [True, False])
def test_a_card_that_a_push_wrote_is_not_the_sources(
    result_copy: Path, source_copy: Path, had_one: bool
) -> None:
    if not had_one:
        (source_copy / "README.md").unlink()
    (result_copy / "README.md").write_text(f"# A dataset\n{CARD_BEGIN}\n| episodes | 5 |\n")
    assert paths_that_differ(result_copy, source_copy) == []
    (result_copy / "README.md").write_text("# Another one\n")
    assert paths_that_differ(result_copy, source_copy) == ["README.md"]
