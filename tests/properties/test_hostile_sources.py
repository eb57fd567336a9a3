"""Whatever stands under ``meta/``, a scan ends in findings or in an error that says what to do."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leconvert.dataset.scan import scan_source
from leconvert.model.repairs import RepairOptions
from leconvert.model.values import SourceScan
from leconvert.support.errors import LeconvertError
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset

CAMERA = "observation.images.top"
INFO, EPISODES = "meta/info.json", "meta/episodes.jsonl"
STATS, TASKS = "meta/episodes_stats.jsonl", "meta/tasks.jsonl"
TABLES = (INFO, EPISODES, STATS, TASKS)
EVERYTHING = RepairOptions(
    on_bad_episode="drop",
    retime=True,
    reindex=True,
    remap_tasks=True,
    recompute_stats=True,
    quantiles=True,
)

ODD_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**25), 10**25),
    st.sampled_from([0, -1, 2**31, 2**63, 2**64, 1e308, float("inf"), float("-inf"), float("nan")]),
    st.text(max_size=8),
    st.sampled_from(["", ".", "..", "/", "a/../b", "\0", "\ud800", "é\n", "{}", "{0}", "video"]),
    st.lists(st.none() | st.integers() | st.text(max_size=3), max_size=4),
    st.dictionaries(st.text(max_size=4), st.none() | st.integers(), max_size=3),
    st.just({"dtype": "video", "shape": [1, 2, 3]}),
)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = DatasetSpec(
        episodes=2,
        frames=[3, 2],
        cameras=(CameraSpec(key=CAMERA, width=16, height=16),),
        has_done=True,
    )
    return make_dataset(tmp_path_factory.mktemp("hostile") / "dataset", spec)


@contextlib.contextmanager
def replaced(path: Path, content: bytes) -> Iterator[None]:
    before = path.read_bytes()
    path.write_bytes(content)
    try:
        yield
    finally:
        path.write_bytes(before)


def check_outcome(root: Path, options: RepairOptions | None = None) -> SourceScan | LeconvertError:
    """Scan, and check that what comes of it can be shown to anyone."""
    scan: SourceScan | None = None
    error: LeconvertError | None = None
    try:
        scan = scan_source(root, options)
    except LeconvertError as caught:
        error = caught
    if scan is None:
        assert error is not None
        assert error.exit_code != 70
        str(error.as_record()).encode()
        return error
    for finding in scan.findings:
        finding.message.encode()
        assert "\n" not in finding.message
        assert len(finding.message) < 2000
    json.dumps(scan.repairs.as_record())
    return scan


def places_in(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value in a JSON document."""
    found = [path] if path else []
    children: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        children = list(value.items())
    elif isinstance(value, list):
        children = list(enumerate(value))
    for key, child in children:
        found += places_in(child, (*path, key))
    return found


def change_one(document: Any, draw: Callable[[st.SearchStrategy[Any]], Any]) -> Any:
    changed = copy.deepcopy(document)
    path = draw(st.sampled_from(places_in(changed)))
    holder = changed
    for key in path[:-1]:
        holder = holder[key]
    if isinstance(holder, dict) and draw(st.booleans()) and draw(st.booleans()):
        del holder[path[-1]]
    else:
        holder[path[-1]] = draw(ODD_VALUES)
    return changed


@settings(max_examples=35, suppress_health_check=list(HealthCheck))
@given(data=st.data(), table=st.sampled_from(TABLES), drop=st.booleans())
def test_any_value_may_be_anything(
    pristine: Path, data: st.DataObject, table: str, drop: bool
) -> None:
    path = pristine / table
    if table == INFO:
        changed = change_one(json.loads(path.read_bytes()), data.draw)
        content = json.dumps(changed).encode()
    else:
        lines = [json.loads(line) for line in path.read_bytes().splitlines()]
        place = data.draw(st.integers(0, len(lines) - 1))
        lines[place] = change_one(lines[place], data.draw)
        content = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    with replaced(path, content):
        check_outcome(pristine, EVERYTHING if drop else None)


@settings(max_examples=50, suppress_health_check=list(HealthCheck))
@given(data=st.data(), table=st.sampled_from(TABLES))
def test_any_bytes_may_be_any_others(pristine: Path, data: st.DataObject, table: str) -> None:
    path = pristine / table
    before = path.read_bytes()
    place = data.draw(st.integers(0, len(before)))
    length = data.draw(st.integers(0, 40))
    new = data.draw(st.binary(max_size=20) | st.just(b"\xef\xbb\xbf") | st.just(b"\r\n"))
    with replaced(path, before[:place] + new + before[place + length :]):
        check_outcome(pristine)


def deep(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n\n",
        b"null",
        b"[]",
        b"0",
        b'"text"',
        b"{",
        b"{}",
        b"\xff\xfe{}",
        b"\x00" * 100,
        b'{"episode_index": 0, "task_index": 0}',
        b'{"episode_index": ' + b"9" * 5000 + b"}",
        b'{"episode_index": 18446744073709551615, "length": 1, "tasks": []}',
        b'{"episode_index": 0, "length": 1e400, "tasks": [], "stats": []}',
        b'{"episode_index": 0, "length": 9223372036854775807, "tasks": []}',
        b'{"codebase_version": "v2.1", "features": ' + deep(100_000) + b"}",
        b'{"episode_index": 0, "stats": ' + deep(5000) + b', "tasks": [], "length": 3}',
        b'{"task_index": 10000000000000000000000, "task": "x"}',
    ],
    ids=range(18),
)
def test_a_table_may_hold_anything(pristine: Path, table: str, content: bytes) -> None:
    with replaced(pristine / table, content):
        outcome = check_outcome(pristine)
    assert isinstance(outcome, LeconvertError) or outcome.findings


@pytest.mark.parametrize("what", ["folder", "pipe", "loop", "nothing", "file"])
@pytest.mark.parametrize(
    "relative",
    [
        *TABLES,
        "data/chunk-000/episode_000000.parquet",
        f"videos/chunk-000/{CAMERA}/episode_000001.mp4",
        "data",
        "videos",
        "data/chunk-000",
    ],
)
def test_a_file_may_be_anything(pristine: Path, tmp_path: Path, relative: str, what: str) -> None:
    root = Path(shutil.copytree(pristine, tmp_path / "dataset"))
    path = root / relative
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    if what == "folder":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "loop":
        path.symlink_to(path)
    elif what == "file":
        path.write_bytes(b"PAR1" * 5)
    outcome = check_outcome(root)
    assert relative in TABLES or isinstance(outcome, SourceScan)
    assert isinstance(outcome, LeconvertError) or "error" in {f.severity for f in outcome.findings}


@pytest.mark.parametrize("table", TABLES)
def test_a_byte_order_mark_and_windows_line_ends_do_no_harm(pristine: Path, table: str) -> None:
    content = b"\xef\xbb\xbf" + (pristine / table).read_bytes().replace(b"\n", b"\r\n")
    with replaced(pristine / table, content):
        outcome = check_outcome(pristine)
    assert isinstance(outcome, SourceScan)
    assert outcome.findings == ()


@pytest.mark.parametrize(
    "template",
    [
        "/etc/{episode_index}",
        "../{episode_index}",
        "data/../../{episode_index}",
        "data/{episode_index}\0",
        "data/{episode_index}\ud800",
        "{episode_index.real}",
        "{episode_index[0]}",
        "{episode_index:{episode_chunk}}",
        "{episode_index:{secret}}",
        "{episode_index:99999999999d}",
        "{episode_index:x}",
        "{episode_index!r:>9}",
        "{}",
        "{0}",
        "{episode_index}" * 3000,
        "x" * 100_000 + "{episode_index}",
        "",
    ],
)
@pytest.mark.parametrize("key", ["data_path", "video_path"])
def test_a_template_cannot_lead_out_or_astray(pristine: Path, key: str, template: str) -> None:
    info = json.loads((pristine / INFO).read_bytes()) | {key: template}
    with replaced(pristine / INFO, json.dumps(info).encode()):
        outcome = check_outcome(pristine)
    assert isinstance(outcome, LeconvertError) or "error" in {f.severity for f in outcome.findings}


@pytest.mark.parametrize("key", ["..", "/etc", "a/../../b", "", ".", "a//b", "\0", "\udcff"])
def test_a_camera_key_cannot_lead_out(pristine: Path, key: str) -> None:
    info = json.loads((pristine / INFO).read_bytes())
    info["features"][key] = info["features"].pop(CAMERA)
    with replaced(pristine / INFO, json.dumps(info).encode()):
        outcome = check_outcome(pristine)
    assert isinstance(outcome, LeconvertError)


@pytest.mark.parametrize(
    "name", ["two words", 'a "quote"', "it's", "Öl\u200b", "line\nbreak", b"\xff\xfe"]
)
def test_names_may_hold_any_characters(pristine: Path, tmp_path: Path, name: str | bytes) -> None:
    root = Path(shutil.copytree(pristine, tmp_path / "dataset"))
    text = os.fsdecode(name)
    for folder in ("", "data/chunk-000", "videos"):
        (root / folder / text).write_bytes(b"x")
    outcome = check_outcome(root)
    assert isinstance(outcome, SourceScan)
    assert {finding.code for finding in outcome.findings} == {"stray-file"}
    assert outcome.only.extra_files == (text,)


@pytest.mark.parametrize("key", ["two words", 'a "quote"', "Öl", "line\nbreak", "sub/folder"])
def test_a_camera_may_have_any_name_that_a_folder_can_have(tmp_path: Path, key: str) -> None:
    spec = DatasetSpec(episodes=1, frames=2, cameras=(CameraSpec(key=key, width=16, height=16),))
    root = make_dataset(tmp_path / "dataset", spec)
    outcome = check_outcome(root)
    assert isinstance(outcome, SourceScan)
    assert outcome.findings == ()
