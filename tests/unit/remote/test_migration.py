"""A dataset becomes v3.0 on the Hub itself: what is there is copied there, and not moved.

What a migration commits must be, file by file and by hash, what a conversion in a folder writes.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.hub import WRITE_TOKEN, Fault, StandIn
from tests.hub.committed import contents, converted, hashes
from tests.hub.store import Repo
from tests.oddities import ODDITIES

from leconvert import LayoutOptions, convert
from leconvert.api import ConversionReport
from leconvert.cli.main import main
from leconvert.model.repairs import RepairOptions
from leconvert.remote.source import fetch_sparse
from leconvert.support.errors import HubAccessError, HubConflictError, UsageError
from leconvert.testing import CameraSpec, DatasetSpec, edit_lines, make_dataset
from leconvert.transfer.options import PushOptions

REPO = "tester/arm"
WORK = ".arm.leconvert-work"
LAYOUTS = ("episode-files", "overlay")
Hashes = dict[str, dict[str, str]]
pytestmark = pytest.mark.usefixtures("logged_in", "headers_of_clips")


@pytest.fixture(scope="module")
def expected(large_clips: Path, tmp_path_factory: pytest.TempPathFactory) -> Hashes:
    """The files that a conversion of the large clips in a folder makes, in each layout."""
    folder = tmp_path_factory.mktemp("expected")
    return {layout: hashes(converted(large_clips, folder, layout)) for layout in LAYOUTS}


@pytest.fixture
def logged_in(hub: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", WRITE_TOKEN)
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path / "home"))


@pytest.fixture
def headers_of_clips(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no clip be fetched whole, however small it is."""
    monkeypatch.setattr("leconvert.remote.sparse_snapshot._WHOLE_KEPT_BYTES", 0)


@pytest.fixture
def repo(hub: StandIn, large_clips: Path) -> Repo:
    return hub.add_repo(REPO, large_clips)


def migrate(
    work: Path,
    layout: str = LAYOUTS[0],
    *,
    repairs: RepairOptions = RepairOptions(),
    fetch_unfit: bool = False,
    push: Mapping[str, Any] = {},
) -> ConversionReport:
    """Migrate as ``leconvert convert --repo-id`` does."""
    found = fetch_sparse(REPO, None, work, for_copies=True)
    return convert(
        found.source,
        arrival=found.arrival,
        layout=LayoutOptions(layout=layout),
        repairs=replace(repairs, fetch_unfit=fetch_unfit),
        push=PushOptions(**push),
    )


def whole_clips(hub: StandIn) -> list[str]:
    """Return the clips that were read to their end."""
    return sorted(
        {r.path.rsplit("/", 1)[1] for r in hub.log if r.path.endswith(".mp4") and r.status == 200}
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_commit_holds_what_a_conversion_writes_and_no_clip_moves(
    hub: StandIn, repo: Repo, expected: Hashes, tmp_path: Path, layout: str
) -> None:
    first = repo.branches["main"]
    report = migrate(tmp_path / WORK, layout)
    new = repo.branches["main"]
    assert contents(repo, new) == expected[layout]
    assert [oid for oid, _ in repo.history(new)].index(first) == 1
    assert repo.tags == {"v2.1": first, "v3.0": new}
    assert not [r.path for r in hub.log if r.path.endswith(".mp4") and r.status != 206]
    uploaded = [r for r in hub.log if r.method == "PUT"]
    assert len(uploaded) == 2, "tasks and episodes alone are large files"
    assert report.push is not None
    assert report.push.copied == (18 if layout == "episode-files" else 0)
    assert (report.kept_files, report.files) == (18, 18)
    assert not (tmp_path / WORK).exists()


def test_the_command_says_what_moved_and_leaves_nothing_here(
    hub: StandIn, large_clips: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layout = "episode-files"
    repo = hub.add_repo(REPO, large_clips, tags=("v2.1",))
    assert main(["convert", "--repo-id", REPO, "--layout", layout, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "were downloaded for this plan" in said
    assert "will be uploaded" in said
    assert "v3.0" not in repo.tags
    assert main(["convert", "--repo-id", REPO, "--layout", layout]) == 0
    said = capsys.readouterr().out
    assert "on the Hub only" in said
    assert "which the repo had under other names" in said
    assert repo.tags["v3.0"] == repo.branches["main"]
    assert not [path for path in (tmp_path / "home").rglob("*") if not path.is_dir()]
    assert main(["convert", "--repo-id", REPO, "--layout", layout]) == 0
    assert "already" in capsys.readouterr().out
    assert not [path for path in (tmp_path / "home").rglob("*") if not path.is_dir()]


def test_a_plan_shows_what_convert_would_do_on_the_hub(
    repo: Repo, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layout = "overlay"
    said = []
    for command in ("convert", "plan"):
        assert main([command, REPO, "--layout", layout, "--dry-run"]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    assert not (tmp_path / "home").exists()
    assert "Only meta/ will be replaced on the Hub" in said[0]
    assert "With this layout LeRobot can load and split the dataset and delete episodes" in said[0]
    assert "/tmp" not in said[0], "it needs no room here"


def test_a_plan_for_workers_leaves_no_file_of_the_hub_where_it_is(
    repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["plan", REPO, "--layout", "overlay", "--output", "out"]) == 2
    told = capsys.readouterr().err
    assert f"`leconvert convert --repo-id {REPO} --layout overlay` makes the dataset v3.0" in told


def test_a_refusal_names_the_repo_and_no_folder_of_ours(
    hub: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ODDITIES["late start in some clips"](tmp_path / "source")
    hub.add_repo(REPO, tmp_path / "source")
    assert main(["convert", REPO, "--layout", "overlay"]) == 2
    told = capsys.readouterr().err
    assert f"hf://datasets/{REPO}@" in told
    assert "outlines" not in told
    words = ["--layout", "episode-files", "--fetch-unfit", "--dry-run"]
    assert main(["convert", REPO, *words]) == 0
    said = capsys.readouterr().out
    assert re.search(r"more will be downloaded, about .* will be uploaded: [0-9]+ % of ", said)
    assert "outlines" not in said


@pytest.mark.parametrize("words", [["--layout", "episode-files"], []])
def test_a_missing_token_is_noticed_before_anything_is_fetched(
    hub: StandIn, repo: Repo, large_clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    words: list[str], capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.delenv("HF_TOKEN")
    assert main(["convert", REPO, *words]) == 16
    told = capsys.readouterr().err
    assert "needs a token for the Hub" in told
    assert "Or add --no-push" in told
    assert not [r for r in hub.log if "/resolve/" in r.path]
    assert not [path for path in (tmp_path / "home").rglob("*") if not path.is_dir()]
    with pytest.raises(HubAccessError):
        convert(large_clips, output=tmp_path / "out", push=PushOptions(repo_id="tester/new"))
    assert not (tmp_path / "out").exists()
    assert main(["convert", REPO, *words, "--dry-run"]) == 16, "as the run"
    assert main(["convert", REPO, *words, "--no-push"]) == 0


def test_a_dataset_that_is_here_is_converted_here(hub: StandIn, repo: Repo, tmp_path: Path) -> None:
    local = tmp_path / "home" / REPO
    assert main(["convert", "--repo-id", REPO, "--no-push"]) == 0
    shutil.rmtree(local)
    (local.with_name("arm_old")).rename(local)
    assert main(["convert", "--repo-id", REPO, "--layout", "episode-files"]) == 0
    assert len([*local.rglob("*.mp4")]) == 12
    # Its clips are in the repo under other names: even so they are copied there.
    stored = {hashlib.sha256(path.read_bytes()).hexdigest() for path in local.rglob("*.mp4")}
    assert not [r for r in hub.log if r.method == "PUT" and r.path.rsplit("/", 1)[1] in stored]


def test_unfit_files_are_refused_or_fetched_mended_and_sent_alone(
    hub: StandIn, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    ODDITIES["late start in some clips"](source)
    repo = hub.add_repo(REPO, source)
    first = repo.branches["main"]
    with pytest.raises(UsageError, match="cannot stay on the Hub as they are") as refused:
        migrate(tmp_path / WORK)
    assert "does not show its first frame at time 0" in " ".join(refused.value.details)
    assert "--fetch-unfit" in str(refused.value.next_step)
    assert repo.branches["main"] == first
    assert not whole_clips(hub)
    report = migrate(tmp_path / WORK, fetch_unfit=True)
    assert report.push is not None
    assert report.moves is not None
    unfit = report.files - (report.kept_files or 0)
    assert len(whole_clips(hub)) == unfit > 0
    assert len([r for r in hub.log if r.method == "PUT"]) == unfit + 2
    assert contents(repo, repo.branches["main"]) == hashes(
        converted(source, tmp_path, "episode-files")
    )
    again = migrate(tmp_path / "named", fetch_unfit=True).push
    assert again is not None
    assert (again.added, again.copied, again.tag) == (0, 0, "kept")
    assert (tmp_path / "named").is_dir(), "a work dir that is named stays"


def test_statistics_are_computed_from_files_that_are_fetched_and_not_sent(
    hub: StandIn, tmp_path: Path
) -> None:
    source = make_dataset(
        tmp_path / "source", DatasetSpec(episodes=3, frames=5, cameras=(CameraSpec(),))
    )
    edit_lines(source, "episodes_stats", lambda lines: lines.pop())
    repairs = RepairOptions(fill_stats=True)
    repo = hub.add_repo(REPO, source)
    with pytest.raises(UsageError, match="cannot stay on the Hub as they are") as refused:
        migrate(tmp_path / WORK, repairs=repairs)
    assert "Statistics are computed" in " ".join(refused.value.details)
    report = migrate(tmp_path / WORK, repairs=repairs, fetch_unfit=True)
    assert report.kept_files == report.files
    assert len([r for r in hub.log if r.method == "PUT"]) == 2
    assert contents(repo, repo.branches["main"]) == hashes(
        converted(source, tmp_path, "episode-files", repairs=repairs)
    )


def test_quantiles_of_the_dataset_are_computed_from_whole_tables(
    hub: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leconvert.remote.sparse_snapshot._WHOLE_TABLE_BYTES", 0)
    plain = make_dataset(tmp_path / "plain", DatasetSpec(episodes=3, frames=5, cameras=()))
    source = tmp_path / "source"
    convert(plain, output=tmp_path / "v30", repairs=RepairOptions(quantiles=True))
    convert(tmp_path / "v30", output=source, layout=LayoutOptions(to="v2.1"))
    repo = hub.add_repo(REPO, source)
    migrate(tmp_path / WORK)
    stats = repo.content(repo.tree(repo.branches["main"])["meta/stats.json"])
    assert stats is not None
    assert "q99" in json.loads(stats.read_bytes())["action"]
    assert contents(repo, repo.branches["main"]) == hashes(
        converted(source, tmp_path, "episode-files")
    )


def test_quantiles_of_frames_that_stay_on_the_hub_are_refused(repo: Repo, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="stay on the Hub"):
        migrate(tmp_path / WORK, repairs=RepairOptions(quantiles=True), fetch_unfit=True)


def test_large_tables_and_other_large_files_stay_there_unread(
    hub: StandIn, repo: Repo, expected: Hashes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leconvert.remote.sparse_snapshot._WHOLE_TABLE_BYTES", 50)
    hub.add_commit(REPO, {"raw/recording.bin": b"x" * 500_000, "notes.txt": b"mine"})
    before = repo.tree(repo.branches["main"])
    migrate(tmp_path / WORK)
    after = repo.tree(repo.branches["main"])
    assert after["raw/recording.bin"] == before["raw/recording.bin"]
    assert not [r for r in hub.log if r.path.endswith("recording.bin")]
    assert not [
        r for r in hub.log if r.path.endswith(".parquet") and r.status == 200 and r.method == "GET"
    ]
    assert {
        path: sha
        for path, sha in contents(repo, repo.branches["main"]).items()
        if "/" in path and not path.startswith("raw")
    } == expected["episode-files"]


def test_files_of_which_the_hub_knows_no_hash_are_fetched_and_sent(
    hub: StandIn, repo: Repo, expected: Hashes, large_clips: Path, tmp_path: Path
) -> None:
    tree = dict(repo.tree(repo.branches["main"]))
    clip = "videos/chunk-000/observation.images.top/episode_000002.mp4"
    tree[clip] = repo.add_regular((large_clips / clip).read_bytes())
    repo.commit("main", tree, "a clip as an ordinary file")
    migrate(tmp_path / WORK)
    assert contents(repo, repo.branches["main"]) == expected["episode-files"]
    assert whole_clips(hub) == ["episode_000002.mp4"]


@pytest.mark.parametrize(
    ("moment", "words", "layout"),
    [
        ("/refs\\?include_prs", ["--restart"], LAYOUTS[1]),
        ("/commit/main", ["--work-dir", "named"], LAYOUTS[0]),
    ],
)
def test_what_changes_on_the_hub_meanwhile_is_converted_by_the_same_command(
    hub: StandIn, repo: Repo, large_clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    moment: str, words: list[str], layout: str, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    other = _changed_clip(hub, large_clips, moment)
    command = ["convert", "--repo-id", REPO, "--layout", layout, *words]
    assert main(command) == 17
    assert (
        "Run the same command again. It begins with the present state of the repo."
        in capsys.readouterr().err
    )
    replaced = repo.branches["main"]
    assert repo.tags == {}
    assert main(command) == 0
    assert repo.tags == {"v2.1": replaced, "v3.0": repo.branches["main"]}
    assert other in contents(repo, repo.branches["main"]).values()
    assert not [path for path in (tmp_path / "home").rglob("*") if not path.is_dir()]


def test_a_revision_that_still_names_what_was_replaced_is_told_with_the_one_that_helps(
    hub: StandIn, large_clips: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repo = hub.add_repo(REPO, large_clips, tags=("v2.1",))
    other = _changed_clip(hub, large_clips, "/refs\\?include_prs")
    command = ["convert", "--repo-id", REPO, "--layout", LAYOUTS[0]]
    for words in ([], [], ["--restart"]):
        assert main([*command, *words]) == 17
        said = capsys.readouterr().err
        assert "still leads to the dataset that was converted" in said
        assert "with --revision main" in said
    assert main([*command, "--revision", "main"]) == 0
    assert repo.tags["v3.0"] == repo.branches["main"]
    assert other in contents(repo, repo.branches["main"]).values()


def test_a_run_that_waits_for_its_push_is_begun_anew_when_asked_to(
    hub: StandIn, repo: Repo
) -> None:
    command = ["convert", "--repo-id", REPO, "--layout", LAYOUTS[0]]
    hub.break_requests(Fault("status", path="/commit/", status=403))
    assert main(command) == 16
    assert main([*command, "--restart"]) == 0
    assert repo.tags["v3.0"] == repo.branches["main"]


def _changed_clip(hub: StandIn, source: Path, path: str) -> str:
    """Let another clip be pushed just before a request is served; return its SHA-256."""
    clip = "videos/chunk-000/observation.images.top/episode_000001.mp4"
    other = (source / clip).read_bytes() + b"\0\0\0\x08free"
    change = lambda: hub.add_commit(REPO, {clip: other})  # noqa: E731
    hub.break_requests(Fault("none", path=path, interfere=change))
    return hashlib.sha256(other).hexdigest()


def test_a_repo_that_changed_is_left_alone_and_no_stand_in_is_sent(
    hub: StandIn, repo: Repo, large_clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clip = "videos/chunk-000/observation.images.top/episode_000001.mp4"
    other = (large_clips / clip).read_bytes() + b"\0\0\0\x08free"

    def changes_on_the_way(again: bytes = b"") -> None:
        def change() -> None:
            hub.add_commit(REPO, {clip: other + again})

        hub.break_requests(Fault("none", path="/refs\\?include_prs", interfere=change))

    changes_on_the_way()
    with pytest.raises(HubConflictError, match="changed after"):
        migrate(tmp_path / WORK)
    changes_on_the_way(b"again")
    with monkeypatch.context() as lost:
        lost.setattr("leconvert.remote.push.DatasetPush._files_at", lambda *_: {})
        with pytest.raises(HubConflictError, match="no longer has the content of 1 file"):
            migrate(tmp_path / ".lost.leconvert-work", push={"force": True})
    assert "v3.0" not in repo.tags
    # Forced, the result goes as it was made, whose files the commit has that was converted.
    converted_clip = repo.tree(repo.branches["main"])[clip]["lfs"]
    changes_on_the_way(b"once more")
    migrate(tmp_path / ".forced.leconvert-work", push={"force": True})
    tree = repo.tree(repo.tags["v3.0"])
    clips = {entry["lfs"] for path, entry in tree.items() if path.endswith(".mp4")}
    assert converted_clip in clips
    assert clips.isdisjoint(r.path.rpartition("/")[2] for r in hub.log if r.method == "PUT")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"layout": "reference"}, "This layout cannot leave the files on the Hub"),
        ({"push": {"repo_id": "tester/other"}}, "pushed to the repo that has them"),
    ],
)
def test_what_the_hub_cannot_do_is_refused(
    repo: Repo, tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        migrate(tmp_path / WORK, **options)


def test_a_work_dir_without_hard_links_is_refused(
    repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leconvert.run.planner.can_link", lambda *_: False)
    with pytest.raises(UsageError, match="is on a file system without hard links"):
        migrate(tmp_path / WORK)


def test_more_than_one_commit_holds_is_merged_at_once(
    hub: StandIn, repo: Repo, expected: Hashes, tmp_path: Path
) -> None:
    first = repo.branches["main"]
    met: list[str] = []
    hub.watch = lambda _: met.append(repo.branches["main"])
    report = migrate(tmp_path / WORK, push={"commit_operations": 8})
    assert report.push is not None
    assert report.push.commits > 2
    assert report.push.merged
    assert len({*met}) == 2, "readers of main meet the old dataset and the new one"
    assert contents(repo, repo.branches["main"]) == expected["episode-files"]
    assert repo.tags == {"v2.1": first, "v3.0": repo.branches["main"]}


def test_a_pull_request_holds_copies_too(repo: Repo, expected: Hashes, tmp_path: Path) -> None:
    report = migrate(tmp_path / WORK, push={"create_pr": True})
    assert report.push is not None
    assert report.push.tag == "none"
    (pull,) = repo.pulls
    assert contents(repo, pull["head"]) == expected["episode-files"]
    assert repo.tags == {}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_other_options_after_a_refused_push_are_told_what_helps(
    hub: StandIn, small_source: Path, capsys: pytest.CaptureFixture[str], layout: str
) -> None:
    hub.add_repo(REPO, small_source)
    hub.break_requests(Fault("status", path="/api/.*commit", status=403, times=None))
    command = ["convert", REPO, "--layout", layout]
    assert main(command) == 16
    hub.break_requests()
    capsys.readouterr()
    other = [*command, "--episodes", "0-2"]
    if layout == "overlay":
        assert main(other) == 2
        assert "does not work with a selection of episodes" in capsys.readouterr().err
        assert main(command) == 0
        return
    assert main(other) == 6
    said = capsys.readouterr().err
    assert "The same options as before push its result. --restart gives it up." in said
    assert main([*other, "--restart"]) == 0
    assert "Converted 3 episodes" in capsys.readouterr().out
