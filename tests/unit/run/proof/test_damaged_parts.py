"""Damage that only one part of a verification can see, and what that part says of it."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from mutation import DATA, EPISODES, TOP, break_page, bytes_of
from tests.dataset_damage import Damage, edit_feature, edit_json, rewrite, set_cells
from tests.pictures import CAMERA, IMAGE

import leconvert
from leconvert import media
from leconvert.dataset.files import CARD_BEGIN
from leconvert.model.repairs import RepairOptions, Repairs
from leconvert.model.values import LayoutOptions
from leconvert.run.conversion import ProofOptions
from leconvert.run.packer import reason_to_keep
from leconvert.run.proof import (
    Difference,
    Sampling,
    VerificationReport,
    verify_pair,
)
from leconvert.support.errors import StorageError, UnreadableSourceError
from leconvert.support.parallel import Spread
from leconvert.tables import data_file
from leconvert.testing import DatasetSpec, edit_lines, edit_table, make_dataset, with_column

CLIP = "videos/chunk-000/observation.images.top/episode_000001.mp4"
ROWS = "data/chunk-000/episode_000001.parquet"
TOP_STREAM = "videos/observation.images.top"


@pytest.fixture
def result(small_result: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(small_result, tmp_path / "out"))


def verify(result: Path, source: Path, **options: Any) -> VerificationReport:
    return verify_pair(result, source, spread=Spread(), **options)


def whats(report: VerificationReport) -> list[tuple[str, str]]:
    return [(found.path, found.what) for found in report.differences]


def edit(path: str, change: Callable[[bytearray], object]) -> Damage:
    def damage(root: Path) -> None:
        with bytes_of(root / path) as content:
            change(content)

    return damage


def exchange_places(content: bytearray) -> None:
    """Let the first two episodes' packets be where the other's are (`stco`)."""
    at = content.index(b"stco") + 12
    content[at : at + 8] = content[at + 4 : at + 8] + content[at : at + 4]


def move_place(content: bytearray) -> None:
    """Let the second episode's packets begin a byte early."""
    content[content.index(b"stco") + 19] -= 1


def stretch_box(content: bytearray) -> None:
    content[content.index(b"stbl") - 1] += 1


def first_tasks(table: pa.Table) -> pa.Table:
    texts = pa.array([tasks[0] for tasks in table.column("tasks").to_pylist()])
    return table.set_column(table.schema.get_field_index("tasks"), "tasks", texts)


def break_rows(root: Path) -> None:
    rewrite(DATA, set_cells("timestamp", r14=0.05))(root)
    break_page(root / DATA, "action")


def card_in_circles(root: Path) -> None:
    (root / "README.md").unlink()
    (root / "README.md").symlink_to("README.md")


def nested(depth: int) -> list[Any]:
    return [nested(depth - 1)] if depth else []


INFO, STATS, CARD = "meta/info.json", "meta/stats.json", "README.md"
DAMAGES: dict[str, tuple[Damage, str, list[tuple[str, str, str, int | None]]]] = {
    "packets lie over each other": (
        edit(TOP, move_place), "structure", [(TOP, "samples", "an overlap before byte", None)],
    ),
    "episodes lie in another order": (
        edit(TOP, exchange_places), "bytes",
        [(TOP, "padding", "", None), (TOP, "coded bytes", "", 0), (TOP, "coded bytes", "", 1)],
    ),
    "a box ends beyond the one around it": (
        edit(TOP, stretch_box), "structure", [(TOP, "readable MP4", "", None)],
    ),
    "a row group cannot be read, and the next one is compared": (
        break_rows, "bytes",
        [(DATA, "readable row group", "", 0), (DATA, "column 'timestamp', row 2", "0.05", 1)],
    ),
    "a feature is no table": (
        edit_json(INFO, lambda info: info["features"].update(action=3)), "structure",
        [(INFO, "feature 'action'", "3", None)],
    ),
    "a value within info is nested too deeply": (
        edit_feature("action", names=nested(200)), "structure",
        [(INFO, "", "it is nested too deeply", None)],
    ),
    "the tasks of episodes are no lists": (
        rewrite(EPISODES, first_tasks), "structure",
        [("meta/episodes", "column 'tasks'", "string", None)],
    ),
    "statistics are nested": (
        edit_json(STATS, lambda stats: stats["action"].update(mean={"of": [1.0]})), "bytes",
        [(STATS, "aggregate mean of 'action'", "{'of': [1.0]}", None)],
    ),
    "a link leads in circles": (
        card_in_circles, "structure", [(CARD, "file", "a link that leads to no file", None)],
    ),
    "a card that is no text is not one that a push wrote": (
        lambda root: (root / CARD).write_bytes(b"\xff" + CARD_BEGIN.encode()), "structure",
        [(CARD, "size in bytes", "", None)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_that_one_part_sees(result: Path, small_source: Path, name: str) -> None:
    damage, depth, said = DAMAGES[name]
    damage(result)
    found = verify(result, small_source, depth=depth).differences
    assert len(found) == len(said)
    for each, (path, what, there, episode) in zip(found, said, strict=True):
        assert (each.path, each.episode) == (path, episode)
        assert each.what.startswith(what)
        assert each.found.startswith(there)


def test_episodes_that_tell_datasets_nothing_are_told(result: Path, small_source: Path) -> None:
    rewrite(EPISODES, lambda table: table.replace_schema_metadata({"huggingface": "[]"}))(result)
    found = verify(result, small_source).differences
    assert {(each.path, each.found) for each in found} == {(EPISODES, "None")}


# --- videos ---


def test_a_workers_digest_is_held_against_the_result(
    small_result: Path, small_source: Path
) -> None:
    digests = []
    for episode in range(5):
        clip = small_source / CLIP.replace("000001", f"{episode:06d}")
        index = media.read_clip_index(clip)
        lead = index.reordering(0, index.num_samples)
        digests.append(media.order_digest(index.sizes, index.keyframes, lead))
    known = {TOP_STREAM: np.array(digests, "S16")}
    assert verify(small_result, small_source, clip_digests=known).ok
    known[TOP_STREAM][3] = b"0" * 16
    (found,) = verify(small_result, small_source, clip_digests=known).differences
    assert (found.path, found.episode, found.stream) == (TOP, 3, TOP_STREAM)
    assert found.what == "packet sizes, keyframes or order (digest)"
    assert (found.expected, found.found) == ("0" * 16, digests[3])


def fragment(path: Path) -> None:
    """Remux a clip into a fragmented MP4, with the same frames."""
    target = path.with_suffix(".fragmented.mp4")
    options = {"movflags": "frag_keyframe+empty_moov+default_base_moof"}
    with av.open(str(path)) as source, av.open(str(target), "w", options=options) as result:
        stream = result.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.dts is not None:
                packet.stream = stream
                result.mux(packet)
    target.replace(path)


def test_a_remuxed_clip_is_remuxed_to_be_compared(source_copy: Path, tmp_path: Path) -> None:
    fragment(source_copy / CLIP)
    with pytest.raises(media.UnsupportedClipError):
        media.read_clip_index(source_copy / CLIP)
    leconvert.convert(source_copy, output=tmp_path / "out", proof=ProofOptions(verify="none"))
    for depth in ("structure", "bytes"):
        assert verify(tmp_path / "out", source_copy, depth=depth).ok
    place = int(media.read_clip_index(tmp_path / "out" / TOP).offsets[14])
    with bytes_of(tmp_path / "out" / TOP) as content:
        content[place + 8] ^= 1
    (found,) = verify(tmp_path / "out", source_copy, depth="bytes").differences
    assert (found.path, found.episode) == (TOP, 1)
    assert found.what.startswith("coded bytes from packet 2 on")


# --- rows ---


def test_large_tables_are_compared_a_block_at_a_time(
    small_result: Path, result: Path, small_source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_file, "_WHOLE_FILE_BYTES", 1024)
    monkeypatch.setattr(data_file, "_TAIL_BYTES", 1024)
    assert verify(small_result, small_source, depth="bytes").ok
    rewrite(DATA, set_cells("timestamp", r14=0.05))(result)
    (found,) = verify(result, small_source, depth="bytes").differences
    assert (found.what, found.episode) == ("column 'timestamp', row 2", 1)


def test_what_else_a_schema_says_is_compared_with_every_episode(
    small_source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    leconvert.convert(small_source, output=out, layout=LayoutOptions(data_file_size_in_mb=0.003))
    files = sorted((out / "data/chunk-000").iterdir())
    assert len(files) > 2
    for path in files[:2]:
        relative = path.relative_to(out).as_posix()
        rewrite(
            relative,
            lambda table: table.replace_schema_metadata({**table.schema.metadata, "more": "x"}),
        )(out)
    assert whats(verify(out, small_source)) == [
        (path.relative_to(out).as_posix(), "schema metadata") for path in files[:2]
    ]


# --- repairs ---


@pytest.fixture(scope="module")
def repaired(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A source whose tasks have a gap, and its result with tasks and statistics anew."""
    folder = tmp_path_factory.mktemp("repaired")
    source = make_dataset(
        folder / "source",
        DatasetSpec(episodes=3, frames=[3, 2, 4], cameras=(), tasks=("Pick.", "Place.")),
    )
    edit_lines(source, "tasks", lambda lines: lines[1].update(task_index=5))
    for episode in range(3):
        edit_table(
            source,
            episode,
            lambda table: with_column(
                table, "task_index", pc.multiply(table["task_index"], 5).combine_chunks()
            ),
        )
    options = RepairOptions(remap_tasks=True, recompute_stats=True)
    out, none = folder / "out", ProofOptions(verify="none")
    leconvert.convert(source, output=out, repairs=options, proof=none)
    assert set(pq.read_table(out / DATA).column("task_index").to_pylist()) == {0, 1}
    assert verify(out, source, depth="bytes").differences == ()
    return source, out


def drop(*names: str) -> Damage:
    columns = [f"stats/action/{name}" for name in names]
    return rewrite(EPISODES, lambda table: table.drop_columns(columns))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (rewrite(DATA, set_cells("task_index", r4=5)), ("column 'task_index', row 1", 1, "1", "5")),
        (
            rewrite(EPISODES, set_cells("stats/frame_index/max", r1=[9])),
            ("stats/frame_index/max", 1, "[1]", "[9]"),
        ),
        # Computed statistics that are none are not held against the source.
        (drop("min"), ("computed statistics", None, "statistics that can be aggregated", None)),
        (
            drop("min", "max", "mean", "std", "count"),
            ("statistics of 'action'", 0, "computed ones", "none"),
        ),
    ],
)
def test_what_was_to_be_computed_and_was_not_is_told(
    repaired: tuple[Path, Path], tmp_path: Path, damage: Damage, said: tuple[object, ...]
) -> None:
    source, out = repaired
    root = Path(shutil.copytree(out, tmp_path / "out"))
    damage(root)
    what, episode, expected, there = said
    assert any(
        (each.what, each.episode, each.expected) == (what, episode, expected)
        and there in (None, each.found)
        for each in verify(root, source, depth="bytes").differences
    )


def test_repairs_that_the_run_did_not_plan_are_told(repaired: tuple[Path, Path]) -> None:
    source, out = repaired
    planned = Repairs(dropped_features=("action",))
    found = verify(out, source, repairs=planned).differences[0]
    assert (found.what, found.path) == ("repairs", "meta/repairs.json")
    assert found.expected == str(planned)


# --- records and files ---


def test_a_result_of_no_episodes_is_not_proven(result: Path, source_copy: Path) -> None:
    rewrite(EPISODES, lambda table: table.slice(0, 0), row_groups=False)(result)
    (source_copy / "meta/episodes.jsonl").write_text("")
    edit_json("meta/info.json", lambda info: info.update(total_episodes=0, total_frames=0))(result)
    report = verify(result, source_copy)
    assert Difference("episodes", "meta/episodes", "one at least", "none") in report.differences
    assert report.files == report.episodes == 0


def test_a_file_that_came_along_and_fails_to_be_read_is_no_difference(
    result: Path, source_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = os.pread

    def fail(file: int, size: int, place: int) -> bytes:
        if Path(f"/proc/self/fd/{file}").readlink() == result / "README.md":
            raise OSError(errno.EIO, "Input/output error")
        return read(file, size, place)

    monkeypatch.setattr(os, "pread", fail)
    assert verify(result, source_copy).ok
    with pytest.raises(StorageError, match="input/output error") as told:
        verify(result, source_copy, depth="bytes")
    assert told.value.path == str(result / "README.md")


# --- pictures ---


def no_image(table: pa.Table) -> pa.Table:
    """Let the third image be no image, of as many bytes."""
    image = table.column(IMAGE)[2].as_py()
    return set_cells(IMAGE, r2={**image, "bytes": bytes(len(image["bytes"]))})(table)


@pytest.mark.parametrize(
    ("damage", "camera"),
    [
        (rewrite(DATA, no_image), IMAGE),
        (lambda root: break_page(root / DATA, "timestamp"), CAMERA),
    ],
)
def test_a_picture_that_there_is_none_of_is_told_and_no_other_is_taken(
    picture_result: Path, picture_source: Path, tmp_path: Path, damage: Damage, camera: str
) -> None:
    root = Path(shutil.copytree(picture_result, tmp_path / "out"))
    damage(root)
    found = verify(root, picture_source, sampling=Sampling(decode=1000)).differences
    assert [each.what for each in found] == [
        f"picture of frame {n} of {camera!r}" for n in range(8)
    ]


def test_images_that_the_source_cannot_give_are_the_sources(
    picture_result: Path, picture_source: Path, tmp_path: Path
) -> None:
    source = Path(shutil.copytree(picture_source, tmp_path / "source"))
    break_page(source / ROWS, IMAGE)
    with pytest.raises(UnreadableSourceError, match=f"The images '{IMAGE}' of .* cannot be read"):
        verify(picture_result, source, sampling=Sampling(decode=1000))


# --- what a result lacks of its source ---


def test_unreadable_clips_rows_and_lists_are_the_sources(
    small_result: Path, source_copy: Path
) -> None:
    assert reason_to_keep(small_result, source_copy, Repairs()) is None
    (source_copy / CLIP).write_bytes(b"no clip")
    with pytest.raises(UnreadableSourceError, match=r"episode_000001\.mp4"):
        verify(small_result, source_copy)
    break_page(source_copy / ROWS, "action")
    with pytest.raises(UnreadableSourceError, match=r"episode_000001\.parquet cannot be read"):
        verify(small_result, source_copy, depth="bytes")
    (source_copy / "meta/episodes.jsonl").write_text("[1]\n")
    said = reason_to_keep(small_result, source_copy, Repairs())
    assert said.startswith("its files could not be listed: ")
