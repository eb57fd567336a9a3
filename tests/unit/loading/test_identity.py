"""A state of one dataset is refused by another of equal lengths, and taken by a copy."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.loading.conftest import uploaded

from leconvert.loading import EpisodeStream, MixedStream, SampleStream, StreamLoader
from leconvert.support.errors import PlanMismatchError, UnreadableSourceError


def other_task(root: Path) -> None:
    path = root / "meta/tasks.parquet"
    table = pq.read_table(path)
    at = 1 - table.column_names.index("task_index")
    texts = pa.array([f"not to {text}" for text in table.column(at).to_pylist()])
    pq.write_table(table.set_column(at, table.schema.field(at), texts), path)


def other_statistics(root: Path) -> None:
    path = root / "meta/stats.json"
    stats = json.loads(path.read_bytes())
    stats["action"]["mean"][0] += 1e-3
    path.write_text(json.dumps(stats))


def other_size(root: Path) -> None:
    first = min((root / "videos").rglob("*.mp4"))
    with first.open("ab") as file:
        file.write(b"\0\0\0\x08free")


def one(root: str | Path) -> SampleStream:
    return EpisodeStream(root)


def mixture(root: str | Path) -> SampleStream:
    return MixedStream([(root, 1), (root, 2)])


@pytest.mark.parametrize("make", [one, mixture])
@pytest.mark.parametrize("change", [other_task, other_statistics, other_size])
def test_another_dataset_of_equal_lengths_refuses_a_state(
    v30: Path, v30_copy: Path, change: Callable[[Path], None], make: Callable[..., SampleStream]
) -> None:
    state = StreamLoader(make(v30), batch_size=4).state_dict()
    change(v30_copy)

    with pytest.raises(PlanMismatchError, match="The stream cannot continue where it stopped"):
        StreamLoader(make(v30_copy), batch_size=4).load_state_dict(state)


def test_credentials_of_a_url_are_used_but_neither_shown_nor_saved(v30: Path) -> None:
    with uploaded(v30, "/me:geheim@host/set") as url:
        assert "geheim" in url
        stream = EpisodeStream(url, cache_size_in_gb=0)
        assert len(list(stream.batches(4))) == 8
        state = StreamLoader(stream, batch_size=4).state_dict()
        with pytest.raises(UnreadableSourceError, match="is missing") as caught:
            stream._files.open("nothing.mp4")
    for said in (json.dumps(state), str(caught.value), str(caught.value.path), str(stream.root)):
        assert "geheim" not in said
    assert state["marks"].keys() == {"memory://***@host/set"}


def test_a_folder_s_name_is_no_revision(v30: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(v30, tmp_path / "set@2", copy_function=shutil.copyfile)
    assert EpisodeStream(copy).repo_id == "set@2"


@pytest.mark.parametrize("make", [one, mixture])
def test_a_copy_takes_a_state_wherever_it_lies(
    v30: Path, tmp_path: Path, make: Callable[..., SampleStream]
) -> None:
    state = StreamLoader(make(v30), batch_size=4).state_dict()
    copy = shutil.copytree(v30, tmp_path / "elsewhere", copy_function=shutil.copyfile)

    StreamLoader(make(copy), batch_size=4).load_state_dict(state)
    with uploaded(v30) as url:
        there = StreamLoader(make(url), batch_size=4)
        there.load_state_dict(state)
        StreamLoader(make(copy), batch_size=4).load_state_dict(there.state_dict())
