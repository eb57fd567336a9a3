"""Files of a result that are the source's as they are, and what is wrong with some of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from mutation import bytes_of, chunk_of
from tests.oddities import ODDITIES

import leconvert
from leconvert import media, tables
from leconvert.model.values import LayoutOptions
from leconvert.run.proof import verify_pair
from leconvert.testing import CameraSpec, DatasetSpec, edit_table, make_dataset, with_column

CLIP = "videos/chunk-000/top/episode_000001.mp4"
KEPT_CLIP = "videos/top/chunk-000/file-001.mp4"
KEPT_TABLE = "data/chunk-000/file-001.parquet"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a source and its result; do not change them."""
    folder = tmp_path_factory.mktemp("kept")
    camera = CameraSpec("top", 32, 32, options={"bf": "0"})
    spec = DatasetSpec(episodes=8, frames=[8, 5, 9, 3, 6, 4, 7, 2], cameras=(camera,))
    layout = LayoutOptions(layout="episode-files")
    source = make_dataset(folder / "source", spec)
    leconvert.convert(source, output=folder / "result", layout=layout)
    return folder


@pytest.fixture
def pair(sound: Path, tmp_path: Path) -> tuple[Path, Path]:
    root = Path(shutil.copytree(sound, tmp_path / "pair"))
    return root / "source", root / "result"


def differences(result: Path, source: Path, depth: str = "bytes") -> list[str]:
    found = verify_pair(result, source, depth=depth).differences
    return [f"{each.path}: {each.what}" for each in found]


@pytest.mark.parametrize("path", [KEPT_CLIP, KEPT_TABLE])
def test_a_byte_that_differs_is_found(pair: tuple[Path, Path], path: str) -> None:
    source, result = pair
    with bytes_of(result / path) as content:
        content[len(content) // 2 if path == KEPT_CLIP else 40] ^= 1
    assert any(each.startswith(path) for each in differences(result, source))


def late_clip(source: Path, tmp_path: Path) -> None:
    ODDITIES["late start in some clips"](tmp_path / "late")
    (late,) = (tmp_path / "late").glob("videos/**/*_000001.mp4")
    (source / CLIP).write_bytes(late.read_bytes())


def longer_clip(source: Path, _: Path) -> None:
    (source / CLIP).write_bytes((source / CLIP.replace("000001", "000002")).read_bytes())


def column(name: str, values: list[int | None]) -> Callable[[Path, Path], None]:
    array = pa.array(values, pa.int64())
    return lambda source, _: edit_table(source, 1, lambda rows: with_column(rows, name, array))


@pytest.mark.parametrize(
    ("change", "depth", "said"),
    [
        (late_clip, "structure", f"{KEPT_CLIP}: a file that LeRobot reads as it is"),
        (longer_clip, "structure", f"{KEPT_CLIP}: number of frames"),
        (column("index", [*range(100, 105)]), "structure", f"{KEPT_TABLE}: column 'index', row 0"),
        (column("more", [*range(5)]), "structure", f"{KEPT_TABLE}: column 'more'"),
        # A footer states the least and the greatest alone.
        (column("index", [8, 10, 9, 11, 12]), "structure", None),
        (column("index", [8, 10, 9, 11, 12]), "bytes", f"{KEPT_TABLE}: column 'index', row 1"),
    ],
)
def test_a_kept_file_that_does_not_serve_the_result_is_found(
    pair: tuple[Path, Path],
    tmp_path: Path,
    change: Callable[[Path, Path], object],
    depth: str,
    said: str | None,
) -> None:
    source, result = pair
    change(source, tmp_path)
    keep(source, result)
    found = differences(result, source, depth)
    assert said in found if said is not None else found == []
    if change is longer_clip:
        assert found == [said]


def keep(source: Path, result: Path) -> None:
    """Let the result hold an episode's files as the source has them now."""
    for ours, theirs in ((KEPT_CLIP, CLIP), (KEPT_TABLE, "data/chunk-000/episode_000001.parquet")):
        (result / ours).write_bytes((source / theirs).read_bytes())


@pytest.fixture(params=["read whole", "read in windows"])
def reading(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read small files as they are read, or as large ones."""
    if request.param == "read in windows":
        monkeypatch.setattr("leconvert.tables.data_file._WHOLE_FILE_BYTES", 0)
        monkeypatch.setattr("leconvert.tables.data_file._TAIL_BYTES", 8)


def change_byte(path: Path, column: str, from_end: int) -> None:
    """Change what stands behind a column's dictionary: which row has which of its values."""
    chunk = chunk_of(path, column)
    assert (chunk.path_in_schema, chunk.has_dictionary_page) == (column, True)
    end = chunk.dictionary_page_offset + chunk.total_compressed_size
    with bytes_of(path) as content:
        content[end - from_end] ^= 4


@pytest.mark.usefixtures("reading")
@pytest.mark.parametrize(("column", "from_end"), [("index", 3), ("episode_index", 1)])
def test_numbers_of_rows_are_read_not_taken_from_what_the_footer_or_a_dictionary_says(
    pair: tuple[Path, Path], column: str, from_end: int
) -> None:
    source, result = pair
    change_byte(result / KEPT_TABLE, column, from_end)
    with tables.DataFile(str(result / KEPT_TABLE)) as file:
        stated = [file.extremes[name] for name in ("index", "episode_index")]
    assert stated == [(8, 12), (1, 1)]
    found = differences(result, source, "structure")
    assert len(found) == 1
    assert found[0].startswith((f"{KEPT_TABLE}: column {column!r}", f"{KEPT_TABLE}: readable rows"))


@pytest.mark.usefixtures("reading")
@pytest.mark.parametrize("values", [[2] * 5, [1, 1, 1, 1, 2], [1, 1, None, 1, 1]])
def test_kept_rows_that_name_other_episodes_are_found(
    pair: tuple[Path, Path], values: list[int | None]
) -> None:
    source, result = pair
    column("episode_index", values)(source, source)
    keep(source, result)
    (found,) = differences(result, source, "structure")
    said = "readable rows" if None in values else "column 'episode_index', row "
    assert found.startswith(f"{KEPT_TABLE}: {said}")


def test_changed_files_and_those_of_others_are_not_the_sources(pair: tuple[Path, Path]) -> None:
    source, result = pair
    swap_sizes(result / KEPT_CLIP)
    for depth in ("structure", "bytes"):
        assert f"{KEPT_CLIP}: packet sizes" in differences(result, source, depth)
    # The same bytes as some file of the source, and not as the one of its episode.
    for kept in (KEPT_CLIP, KEPT_TABLE):
        other = result / kept.replace("001.", "002.")
        (result / kept).write_bytes(other.read_bytes())
    found = differences(result, source, "structure")
    assert {each.partition(":")[0] for each in found} == {KEPT_CLIP, KEPT_TABLE}


def swap_sizes(clip: Path) -> None:
    with bytes_of(clip) as content:
        sizes = content.index(b"stsz") + 16
        content[sizes : sizes + 8] = content[sizes + 4 : sizes + 8] + content[sizes : sizes + 4]


def flip_a_coded_byte(clip: Path) -> None:
    with bytes_of(clip) as content:
        content[int(media.read_clip_index(clip).offsets[-1])] ^= 1


@pytest.mark.parametrize("depth", ["structure", "bytes"])
@pytest.mark.parametrize(
    "damage",
    [
        None,
        swap_sizes,
        flip_a_coded_byte,
        lambda clip: clip.write_bytes(clip.read_bytes()[:-9]),
        Path.unlink,
    ],
)
def test_clips_that_are_read_at_once_are_compared_like_single_ones(
    pair: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[Path], object] | None,
    depth: str,
) -> None:
    source, result = pair
    if damage is not None:
        damage(result / KEPT_CLIP)
    single = verify_pair(result, source, depth=depth)
    is_unseen = damage is None or (damage is flip_a_coded_byte and depth == "structure")
    assert single.ok == is_unseen
    monkeypatch.setattr("leconvert.run.proof.pair._LEAST_EPISODES_A_PIECE", 16)
    assert verify_pair(result, source, depth=depth) == single
