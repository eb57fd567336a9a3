"""``--layout overlay``: LeRobot loads every frame through a new ``meta/`` alone, and back again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import comparison
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from comparison import V21Source
from test_episode_files import frames_of, opened
from tests.plans import draft_plan
from tests.trees import digest_of, snapshot

import leconvert
from leconvert.cli.main import main
from leconvert.loading import EpisodeStream
from leconvert.model.repairs import RepairOptions
from leconvert.model.selection import EpisodeSelection
from leconvert.model.values import LayoutOptions
from leconvert.run.conversion import Conversion, ProofOptions
from leconvert.run.proof import verify_pair
from leconvert.run.upkeep import clean_kept_source, undo_conversion
from leconvert.support.errors import TargetError, UsageError
from leconvert.testing import (
    CameraSpec,
    DatasetSpec,
    edit_lines,
    edit_table,
    make_dataset,
    with_column,
)

OVERLAY = LayoutOptions(layout="overlay")
_TOP = CameraSpec(key="observation.images.top", width=32, height=32)
_SIDE = CameraSpec(key="observation.images.side", codec="libsvtav1", width=64, height=64)
_SMALL = DatasetSpec(
    episodes=5, frames=(9, 4, 7, 12, 6), cameras=(_TOP, _SIDE), tasks=("one", "two"),
    extra_files={"README.md": "# x\n", "meta/modality.json": "{}"},
)  # fmt: skip


def test_every_frame_is_the_sources_frame_and_some_episodes_load_alone(tmp_path: Path) -> None:
    from lerobot.datasets import LeRobotDataset

    # It has several chunks; an overlay leaves their names as they are.
    source = V21Source.open(make_dataset(tmp_path / "source", replace(_SMALL, chunks_size=2)))
    ours = Path(shutil.copytree(source.root, tmp_path / "ours"))
    before = snapshot(ours)
    leconvert.convert(ours, layout=OVERLAY, proof=ProofOptions(verify="bytes"))
    after = snapshot(ours)
    for path, facts in before.items():  # not even a time is another one
        assert after[path.replace("meta/", "meta_old/", 1)] == facts
    for backend in comparison.DECODERS:
        compared = comparison.assert_every_frame_is_the_sources(ours, source, backend, window=3)
        assert compared == 2 * sum(source.lengths)
    some = [1, len(source.lengths) - 1]
    dataset = LeRobotDataset("ours/dataset", root=ours, episodes=some, video_backend="torchcodec")
    assert len(dataset) == sum(source.lengths[episode] for episode in some)
    assert [int(dataset[at]["episode_index"]) for at in (0, len(dataset) - 1)] == some


# --- what else is done with it ----------------------------------------------------------------


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("template") / "set", _SMALL)


@pytest.fixture
def small(template: Path, tmp_path: Path) -> Path:
    root = Path(shutil.copytree(template, tmp_path / "set"))
    leconvert.convert(root, layout=OVERLAY)
    return root


def test_it_is_proven_checked_and_loaded(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command, said in (
        (["verify", str(small), "--source", str(small / "meta_old"), "--bytes"], "matches"),
        (["check", str(small)], "0 errors, 0 warnings"),
        (["convert", str(small), "--layout", "overlay"], "There is nothing to do."),
    ):
        assert main(command) == 0
        assert said in capsys.readouterr().out
    stream = EpisodeStream(small)
    assert sum(1 for _ in stream) == 38


def test_lerobots_tools_work_or_end_as_the_page_of_layouts_says(tmp_path: Path) -> None:
    from lerobot.datasets import dataset_tools as tools

    spec = DatasetSpec(episodes=3, frames=(4, 2, 3), cameras=(_TOP,))
    root = make_dataset(tmp_path / "set", spec)
    leconvert.convert(root, layout=OVERLAY)
    tools.split_dataset(opened(root), {"a": [0, 2], "b": [1]}, output_dir=tmp_path)
    assert [frames_of(tmp_path / name) for name in "ab"] == [4 + 3, 2]
    with pytest.raises(FileNotFoundError, match="file-000"):
        tools.merge_datasets([opened(root), opened(root)], "o/o", output_dir=tmp_path / "merged")
    values = np.zeros((9, 1), np.float32), {"dtype": "float32", "shape": (1,), "names": None}
    with pytest.raises(IndexError):
        tools.add_features(
            opened(root), {"reward": values}, output_dir=tmp_path / "more", repo_id="o/o"
        )
    with pytest.raises(IndexError):
        tools.remove_feature(opened(root), "action", output_dir=tmp_path / "less", repo_id="o/o")
    tools.modify_tasks(opened(root), new_task="another")
    assert frames_of(root) == 9


def test_a_plan_leaves_nothing_to_workers_and_one_pack_ends_it(
    template: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, work = Path(shutil.copytree(template, tmp_path / "set")), tmp_path / "work"
    assert main(["plan", str(root), "--layout", "overlay", "--work-dir", str(work)]) == 0
    said = capsys.readouterr().out
    assert "batches" not in said
    assert "Run on one host: leconvert pack" in said
    assert main(["pack", str(work)]) == 0
    assert frames_of(root) == 38


def test_it_is_joined_later_and_written_as_v21(small: Path, template: Path, tmp_path: Path) -> None:
    for name, layout in (
        ("joined", LayoutOptions()),
        ("files", LayoutOptions(layout="episode-files")),
        ("v21", LayoutOptions(to="v2.1")),
    ):
        leconvert.convert(small, output=tmp_path / name, layout=layout)
        assert verify_pair(tmp_path / name, template, depth="bytes").differences == ()
        assert not (tmp_path / name / "meta_old").exists()
    with pytest.raises(TargetError) as refused:
        leconvert.convert(small, layout=LayoutOptions(to="v2.1"))
    assert "` puts back its v2.x meta/" in str(refused.value.next_step)


def test_undo_puts_the_old_meta_back_and_the_same_command_overlays_again(
    small: Path, template: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = digest_of(small)
    assert main(["undo", str(small), "--dry-run"]) == 0
    assert f"Would put {small / 'meta_old'} back as {small / 'meta'}" in capsys.readouterr().out
    assert digest_of(small) == before
    report = undo_conversion(small)
    assert (report.result, report.rows, report.camera_frames) == (small / "meta_v30", 38, 76)
    aside = Path(shutil.move(small / "meta_v30", small.parent / "aside"))
    assert digest_of(small) == digest_of(template)
    shutil.move(aside, small / "meta_v30")
    assert undo_conversion(small).was_undone
    leconvert.convert(small, layout=OVERLAY)  # what the undo kept is no file of the dataset
    assert frames_of(small) == 38
    with pytest.raises(TargetError, match="meta_v30 exists already"):
        undo_conversion(small)


def test_an_undo_that_ended_between_two_renames_is_ended_by_the_next(small: Path) -> None:
    (small / "meta").rename(small / "meta_v30")
    assert not undo_conversion(small).was_undone
    assert sorted(path.name for path in small.glob("meta*")) == ["meta", "meta_v30"]
    assert V21Source.open(small).lengths == [9, 4, 7, 12, 6]


def test_a_file_that_changed_since_is_no_reason_to_go_back_unseen(small: Path) -> None:
    (small / "meta_old/episodes.jsonl").write_text("")
    before = digest_of(small)
    with pytest.raises(leconvert.support.errors.LeconvertError):
        undo_conversion(small)
    assert digest_of(small) == before


def test_the_old_meta_goes_when_nothing_would_be_lost_with_it(
    small: Path, tmp_path: Path, template: Path
) -> None:
    report = clean_kept_source(small)
    assert [row.path for row in report.removed] == [small / "meta_old"]
    assert not (small / "meta_old").exists()
    assert frames_of(small) == 38
    again = Path(shutil.copytree(template, tmp_path / "again"))
    (again / "meta/notes.bin").write_bytes(b"x")
    done = leconvert.convert(again, layout=OVERLAY, proof=ProofOptions(delete_source=True))
    assert done.removed_source == again / "meta_old"
    assert (again / "meta/notes.bin").read_bytes() == b"x"


# --- what is refused ----------------------------------------------------------------------------


def _refused(root: Path, **options: object) -> UsageError:
    before = snapshot(root)
    with pytest.raises(UsageError) as refused:
        leconvert.convert(root, **{"layout": OVERLAY, **options})  # type: ignore[arg-type]
    assert snapshot(root) == before
    assert sorted(path.name for path in root.parent.iterdir() if path.name.startswith(".")) == []
    return refused.value


def _with_template(name: str, template: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        path = root / "meta/info.json"
        info = json.loads(path.read_text())
        usual = info[name]
        path.write_text(json.dumps({**info, name: template}))
        for episode in range(5):
            names = {"episode_chunk": 0, "episode_index": episode, "video_key": _TOP.key}
            new = root / template.format(**names)
            new.parent.mkdir(parents=True, exist_ok=True)
            (root / usual.format(**names)).rename(new)

    return change


def _unsorted(root: Path) -> None:
    shutil.rmtree(root)
    spec = DatasetSpec(episodes=11, frames=2, cameras=())
    make_dataset(root, spec)
    path = root / "meta/info.json"
    template = "data/chunk-{episode_chunk:03d}/episode_{episode_index}.parquet"
    path.write_text(json.dumps({**json.loads(path.read_text()), "data_path": template}))
    for episode in range(11):
        folder = root / "data/chunk-000"
        (folder / f"episode_{episode:06d}.parquet").rename(folder / f"episode_{episode}.parquet")


def _stray(root: Path) -> None:
    (root / "data/chunk-000/other.parquet").write_bytes(b"")


def _broken_clip(root: Path) -> None:
    (root / f"videos/chunk-000/{_TOP.key}/episode_000001.mp4").write_bytes(b"no clip")


def _no_stats(root: Path) -> None:
    (root / "meta/episodes_stats.jsonl").unlink()
    path = root / "meta/info.json"
    path.write_text(path.read_text().replace('"v2.1"', '"v2.0"'))


def _other_index(root: Path) -> None:
    edit_table(root, 2, lambda table: with_column(table, "index", pa.array(range(7))))


def _a_number_left_out(root: Path) -> None:
    """Call the last episode 5 where it would be 4: v3.0 counts its rows' episodes from 0 on."""
    for path in sorted(root.rglob("episode_000004.*")):
        path.rename(path.with_stem("episode_000005"))
    for table in ("episodes", "episodes_stats"):
        edit_lines(root, table, lambda lines: lines[4].update(episode_index=5))
    edit_table(root, 5, lambda table: with_column(table, "episode_index", pa.array([5] * 6)))


REFUSED: dict[str, tuple[Callable[[Path], None], dict[str, object], str]] = {
    "a stray file": (_stray, {}, "below data/ that belong to no episode are left behind (1)"),
    "statistics to compute": (_no_stats, {}, "Statistics are computed: action, "),
    "an episode left out": (
        _broken_clip,
        {"repairs": RepairOptions(on_bad_episode="drop")},
        "Episodes or features are left out",
    ),
    "rows of another index": (
        _other_index, {"repairs": RepairOptions(reindex=True)},
        "episode_000002.parquet has another index or episode_index than the result",
    ),
    "an episode's number left out": (
        _a_number_left_out, {"repairs": RepairOptions(on_bad_episode="drop")},
        "episode_000005.parquet has another index or episode_index than the result",
    ),
    "a selection": (
        lambda _: None, {"selection": EpisodeSelection(episodes="0-2")},
        "does not work with a selection of episodes",
    ),
    "another name": (
        lambda _: None, {"repairs": RepairOptions(rename_features=(f"{_TOP.key}=top",))},
        "Features are renamed",
    ),
    "tables in one folder": (
        _with_template("data_path", "data/{episode_chunk:03d}-{episode_index:06d}.parquet"), {},
        "which LeRobot's reader of v3.0 does not accept",
    ),
    "names that do not sort": (_unsorted, {}, "do not sort in the order of the episodes"),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_what_needs_other_files_is_refused(kind: str, template: Path, tmp_path: Path) -> None:
    change, options, said = REFUSED[kind]
    root = Path(shutil.copytree(template, tmp_path / "set"))
    change(root)
    refused = _refused(root, **options)
    assert said in " ".join([refused.message, *refused.details])
    assert "--layout episode-files" in str(refused.next_step)


def test_v30_several_and_places_that_cannot_share_are_refused(
    small: Path, template: Path, tmp_path: Path
) -> None:
    joined = tmp_path / "joined"
    leconvert.convert(template, output=joined)
    for roots, output, said in (
        ([joined], joined, "is already v3.0"),
        ([template, small], tmp_path / "new", "does not work with several datasets"),
        ([template], tmp_path / "new", "cannot share the files of"),
    ):
        with pytest.raises(UsageError, match=said) as refused:
            draft_plan(roots, output, tmp_path / "work", Conversion(layout=OVERLAY))
    # The list of a fleet has no --output that could be left out.
    advice = f"`leconvert convert {template} --layout overlay` writes only meta/"
    assert advice in str(refused.value.next_step)


def test_other_names_that_v30_can_say_are_taken(template: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(template, tmp_path / "set"))
    name = "data/part_{episode_chunk}/{episode_index:04d}.parquet"
    _with_template("data_path", name)(root)
    (root / "data/chunk-000").rmdir()
    leconvert.convert(root, layout=OVERLAY)
    templates = json.loads((root / "meta/info.json").read_text())
    assert templates["data_path"] == "data/part_{chunk_index}/{file_index:04d}.parquet"
    assert frames_of(root) == 38


def test_verify_finds_an_index_that_leads_to_another_file(small: Path) -> None:
    path = small / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    for column in ("data/file_index", "data/chunk_index"):
        values = table[column].to_pylist()
        values[2] += 1
        pq.write_table(with_column(table, column, pa.array(values)), path)
        assert not verify_pair(small, small / "meta_old").ok, column


def test_beside_its_source_a_tree_has_the_sources_names(
    template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether blocks are shared then is for the file system; here they are copied."""
    monkeypatch.setattr("leconvert.run.planner.can_clone", lambda *_: True)
    report = leconvert.convert(template, output=tmp_path / "new", layout=OVERLAY)
    assert (report.files, report.kept_files, report.kept_source) == (15, 15, None)
    assert verify_pair(tmp_path / "new", template, depth="bytes").differences == ()
    for part in ("data", "videos"):
        assert digest_of(tmp_path / "new" / part) == digest_of(template / part)
    assert frames_of(tmp_path / "new") == 38
