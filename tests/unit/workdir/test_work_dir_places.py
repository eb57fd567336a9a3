"""Source, target and work dir lie side by side."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.trees import snapshot

import leconvert
from leconvert.cli.main import main
from leconvert.support.errors import UsageError, WorkDirError
from leconvert.workdir.records import RunPaths, WorkDir, default_work_dir, encode_record
from leconvert.workdir.swap import check_places, work_dir_beside

SOMEBODY = 54321


@pytest.mark.parametrize(
    ("source", "target", "work", "said"),
    [
        ("set", "out", "set/work", "The work dir {}/set/work lies inside the source {}/set."),
        ("set", "out", "out/work", "The work dir {}/out/work lies inside the target {}/out."),
        ("set", "set/out", "work", "The target {}/set/out lies inside the source {}/set."),
        ("out/set", "out", "work", "The source {}/out/set lies inside the target {}/out."),
        ("set", "work/out", "work", "The target {}/work/out lies inside the work dir {}/work."),
        ("work/set", "out", "work", "The source {}/work/set lies inside the work dir {}/work."),
        ("set", "out", "set", "The work dir {}/set lies inside the source {}/set."),
    ],
)
def test_one_inside_another_is_refused_and_both_are_named(
    tmp_path: Path, source: str, target: str, work: str, said: str
) -> None:
    with pytest.raises(UsageError) as caught:
        check_places(tmp_path / source, tmp_path / target, tmp_path / work)
    assert caught.value.message == said.format(tmp_path, tmp_path)
    assert caught.value.next_step


def test_side_by_side_in_place_and_as_an_outline_they_may_be(tmp_path: Path) -> None:
    source, target, work = (tmp_path / name for name in ("set", "out", ".set.leconvert-work"))
    check_places(source, target, work)
    check_places(source, source, work)
    check_places(tmp_path / "setting", tmp_path / "set", tmp_path / "set-work")
    check_places(work / "outlines" / "abc", target, work, outlined=True)


@pytest.fixture
def give_away(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Let a path, and what is below it, look like somebody else's."""
    lost: list[Path] = []
    real = Path.lstat

    def lstat(path: Path) -> os.stat_result:
        seen = real(path)
        theirs = any(path.is_relative_to(one) for one in lost)
        return os.stat_result([*seen[:4], SOMEBODY, *seen[5:]]) if theirs else seen

    monkeypatch.setattr(Path, "lstat", lstat)
    return lost.append


@pytest.fixture
def begun(source_copy: Path) -> Path:
    """A work dir with a run, beside a dataset in a folder where anybody may make names."""
    assert main(["plan", "--root", str(source_copy)]) == 0
    source_copy.parent.chmod(0o1777)
    return default_work_dir(source_copy)


def test_a_work_dir_that_another_user_put_beside_the_dataset_is_not_used_unasked(
    source_copy: Path,
    begun: Path,
    give_away: Callable[[Path], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    capsys.readouterr()
    give_away(begun)
    for command in (["convert", "--root"], ["plan", "--root"], ["clean", "--give-up", "--of"]):
        assert main([*command, str(source_copy)]) == 7
        said = capsys.readouterr().err
        assert "belongs to another user (user id" in said
        assert f"`--work-dir {begun}`" in said
    with pytest.raises(WorkDirError, match="only if the command names it with --work-dir"):
        leconvert.convert(source_copy)
    assert begun.is_dir()
    # The other work dir, the first remedy, the second one.
    other = str(source_copy.parent / "work")
    assert main(["plan", "--root", str(source_copy), "--work-dir", other]) == 0
    assert main(["plan", "--root", str(source_copy), "--work-dir", str(begun)]) == 0
    assert main(["clean", "--give-up", str(begun)]) == 0
    assert not list(WorkDir(begun).list_runs())


@pytest.mark.parametrize("is_shared", [True, False])
def test_what_a_group_shares_or_a_server_gives_to_another_user_is_used(
    source_copy: Path,
    begun: Path,
    give_away: Callable[[Path], None],
    monkeypatch: pytest.MonkeyPatch,
    is_shared: bool,
) -> None:
    give_away(begun)
    real = os.fstat

    def squashed(descriptor: int) -> os.stat_result:
        seen = real(descriptor)
        return os.stat_result([*seen[:4], SOMEBODY, *seen[5:]])

    if is_shared:  # by users who alone may write to the folder
        source_copy.parent.chmod(0o2775)
        assert main(["plan", "--root", str(source_copy)]) == 0
    else:  # the server gives whatever is made to that user
        monkeypatch.setattr(os, "fstat", squashed)
    assert work_dir_beside(source_copy) == begun


@pytest.mark.parametrize("planted", ["run", "current", "manifest", "journal"])
def test_a_record_that_another_user_put_into_an_open_work_dir_is_not_used_unasked(
    source_copy: Path, begun: Path, give_away: Callable[[Path], None], planted: str
) -> None:
    work = WorkDir(begun)
    run: RunPaths = work.run(work.list_runs()[0])
    run.journal.mkdir(exist_ok=True)
    run.journal_record(1).touch()
    places = {"current": work.current, "run": run.root, "journal": run.journal_record(1)}
    path = places.get(planted, run.manifest)
    give_away(path)
    assert work_dir_beside(source_copy) == begun, "nobody else could put it there"
    path.parent.chmod(0o777)
    with pytest.raises(WorkDirError, match="only if the command names it with --work-dir"):
        work_dir_beside(source_copy)


# --- a work dir that somebody made to do harm, and that a user names all the same -------------


@pytest.fixture
def hostile(source_copy: Path, begun: Path) -> RunPaths:
    """The one run of a work dir that belongs to somebody else and has its batches done."""
    assert main(["work", str(begun)]) == 0
    run = WorkDir(begun).run(WorkDir(begun).list_runs()[0])
    run.journal.mkdir(exist_ok=True)
    return run


@pytest.fixture
def private(tmp_path: Path, hostile: RunPaths) -> Iterator[Path]:
    """A folder in which everything is where a swap of the run would look; it must stay so."""
    folder = tmp_path / "private"
    run_id = hostile.root.name
    for name in ("diary", "diary_old", f".diary.leconvert-{run_id}.1", ".diary_old.leconvert-gone"):
        (folder / name / "meta").mkdir(parents=True)
        (folder / name / "meta/info.json").write_text(
            f'{{"codebase_version": "v2.1", "x": "{name}"}}'
        )
    before = snapshot(folder)
    yield folder
    assert snapshot(folder) == before


def give_to_somebody(work_dir: Path) -> str:
    """Make a whole work dir somebody else's, as far as this user may."""
    if os.geteuid() == 0:
        for path in [work_dir, *work_dir.rglob("*")]:
            os.chown(path, SOMEBODY, SOMEBODY, follow_symlinks=False)
    return str(work_dir)


# Each step, and each way to move a diary: to exchange it, to keep it, and to put it back.
@pytest.mark.parametrize(
    ("step", "target", "old"),
    [
        ("packing", "gone", "diary"),
        ("swapping", "diary", "diary_old"),
        ("swapped", "gone", "diary"),
        ("finished", "diary", "diary_old"),
    ],
)
def test_a_planted_journal_moves_nothing_but_the_named_dataset(
    source_copy: Path,
    begun: Path,
    hostile: RunPaths,
    private: Path,
    step: str,
    target: str,
    old: str,
) -> None:
    swap = {"target": str(private / target), "old": str(private / old)}
    swap |= {"staging": str(private / f".diary.leconvert-{hostile.root.name}.1")}
    fields = {"generation": 1, "step": step, "swap": swap, "notes": {}}
    hostile.journal_record(1).write_bytes(encode_record("journal", 1, hostile.root.name, fields))
    before = snapshot(source_copy)
    work_dir = give_to_somebody(begun)
    code = main(["convert", "--root", str(source_copy), "--work-dir", work_dir])
    assert code == 0
    assert snapshot(source_copy.with_name(f"{source_copy.name}_old")) == before


@pytest.mark.parametrize("changes", [{"target"}, {"source", "target"}], ids=sorted)
def test_a_planted_manifest_moves_nothing_of_what_it_names(
    source_copy: Path, begun: Path, hostile: RunPaths, private: Path, changes: set[str]
) -> None:
    record = json.loads(hostile.manifest.read_bytes())
    (source,) = record["sources"]
    for named in changes:
        (place,) = (each for each in (record, source) if named in each)
        place[named] = str(private / "diary")
    hostile.manifest.write_text(json.dumps(record))
    before = snapshot(source_copy)
    work_dir = give_to_somebody(begun)
    for command in (
        ["convert", "--root", str(source_copy), "--work-dir", work_dir],
        ["work", work_dir],
        ["pack", work_dir],
        ["clean", work_dir],
        ["clean", "--give-up", work_dir],
    ):
        main(command)
    assert snapshot(source_copy) == before


def test_links_in_a_planted_work_dir_are_not_followed_when_it_is_cleared(
    source_copy: Path, begun: Path, hostile: RunPaths, private: Path
) -> None:
    (hostile.attempts_dir / "evil").symlink_to(private)
    (hostile.root / "evil").symlink_to(private)
    (begun / "evil").symlink_to(private)
    work_dir = give_to_somebody(begun)
    assert main(["convert", "--root", str(source_copy), "--work-dir", work_dir]) == 0
    assert not hostile.attempts_dir.exists()
    main(["clean", "--give-up", work_dir])
