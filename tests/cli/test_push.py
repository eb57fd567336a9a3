"""``leconvert push`` and the push that follows ``convert``, as a user meets them."""

from __future__ import annotations

import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from leconvert.api import convert
from leconvert.cli.main import main
from leconvert.remote import provenance
from leconvert.remote.provenance import provenance_path, read_provenance, write_provenance
from leconvert.support.errors import HubAccessError, HubConflictError, StorageError, UsageError
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset
from leconvert.transfer.options import PushOptions
from leconvert.workdir.swap import is_converted
from tests.hub import READ_TOKEN, WRITE_TOKEN, Fault, StandIn
from tests.hub.store import Repo

REPO = "tester/arm"


@pytest.fixture(scope="module")
def result(small_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("result") / "out"
    convert(small_source, output=target, for_push=True)
    return target


@pytest.fixture
def logged_in(hub: StandIn, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    monkeypatch.setenv("HF_TOKEN", WRITE_TOKEN)
    return hub


@pytest.fixture
def repo(logged_in: StandIn, small_source: Path) -> Repo:
    return logged_in.add_repo(REPO, small_source)


def _writes(hub: StandIn) -> list[str]:
    return [r.path for r in hub.log if r.method not in ("GET", "HEAD")]


@pytest.mark.parametrize(
    ("arguments", "token", "code", "said"),
    [
        (["--push-repo-id", REPO], None, 16, "needs a token for the Hub"),
        (["--push-repo-id", REPO], READ_TOKEN, 16, "You must use a token with write access"),
        (["--push-repo-id", "stranger/arm"], WRITE_TOKEN, 16, "don't have the rights to create"),
        ([], WRITE_TOKEN, 2, "No record says which repo"),
    ],
)
def test_what_goes_wrong_is_a_sentence_and_a_code(
    hub: StandIn, small_source: Path, result: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], arguments: list[str], token: str | None, code: int,
    said: str,
) -> None:  # fmt: skip
    hub.add_repo(REPO, small_source)
    if token is not None:
        monkeypatch.setenv("HF_TOKEN", token)
    assert main(["push", str(result), *arguments]) == code
    lines = capsys.readouterr().err.splitlines()
    first = next(line for line in lines if line.startswith("leconvert: "))
    assert said in first
    assert lines[-1].startswith("  → ")


@pytest.mark.parametrize(
    "name", ["arm", f"{REPO}@v2.1", f"{REPO}/../other", f"hf://datasets/{REPO}"]
)
@pytest.mark.parametrize("command", ["push", "convert"])
def test_what_is_no_name_of_a_repo_is_refused_before_anything_is_asked_or_made(
    logged_in: StandIn, small_source: Path, result: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], name: str, command: str,
) -> None:  # fmt: skip
    places = [str(result)] if command == "push" else [str(small_source), str(tmp_path / "out")]
    assert main([command, *places, "--push-repo-id", name]) == 2
    assert f"{name!r} is not the name of a repo" in capsys.readouterr().err
    assert logged_in.log == []
    assert not (tmp_path / "out").exists()


def test_without_a_name_it_goes_where_the_source_came_from_if_that_is_there(
    logged_in: StandIn, result: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = Path(shutil.copytree(result, tmp_path / "copy"))
    known = read_provenance(result)
    assert known is not None
    origin = {"repo_id": "tester/gone", "revision": "main", "commit": "a" * 40}
    write_provenance(copy, replace(known, **origin))
    assert main(["push", str(copy)]) == 15
    assert "The Hub has no dataset" in capsys.readouterr().err
    logged_in.add_repo("tester/gone")
    assert main(["push", str(copy)]) == 0
    assert "tag v3.0      set" in capsys.readouterr().out


def test_no_push_needs_no_token_and_asks_nothing(
    hub: StandIn, small_source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["convert", f"--root={small_source}", f"--output={out}", "--no-push"]) == 0
    assert "Hub" not in capsys.readouterr().out
    shutil.rmtree(out)
    assert main(["convert", f"--root={small_source}", f"--output={out}"]) == 0
    assert "Hub           not pushed" in (capsys.readouterr().out)
    assert hub.log == []
    assert not provenance_path(out).exists()


def test_convert_pushes_and_the_card_says_where_it_came_from(
    repo: Repo, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commit = repo.branches["main"]
    code = main(
        [
            "convert", "--repo-id", REPO, "--data-file-size-in-mb=50",
            f"--work-dir={tmp_path / 'work'}",
        ]
    )  # fmt: skip
    said = capsys.readouterr()
    assert code == 0, said.err
    assert "Left out" not in said.err
    assert "tag v3.0      set" in said.out
    assert repo.tags["v3.0"] == repo.branches["main"] != commit
    card = (repo.folder / "blobs" / repo.tree(repo.tags["v3.0"])["README.md"]["oid"]).read_text()
    assert f"[{REPO}](https://huggingface.co/datasets/{REPO}/tree/{commit}) at `main`" in card
    assert "`data_file_size_in_mb` = 50" in card


def test_a_push_that_failed_is_done_by_the_same_command(
    logged_in: StandIn, source_copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repo = logged_in.add_repo(REPO, source_copy)
    command = ["convert", f"--root={source_copy}", "--push-repo-id", REPO]
    rule = Fault(
        "none", path="/commit/", interfere=lambda: logged_in.add_commit(REPO, {"a.md": b"x"})
    )
    logged_in.break_requests(rule)
    assert main([*command, "--json"]) == 17
    record = json.loads(capsys.readouterr().out)
    assert record["frames"] == 44
    assert record["push"]["exit_code"] == 17
    assert f"`leconvert push {source_copy} --push-repo-id {REPO}`" in record["push"]["next_step"]

    commit = repo.branches["main"]
    assert main([*command, "--dry-run"]) == 0
    assert "converted before. Only the push is left" in capsys.readouterr().out
    assert (repo.branches["main"], "v3.0" in repo.tags) == (commit, False)
    assert main(command) == 0
    assert "converted before. Only the push is left" in capsys.readouterr().out
    assert repo.tags["v3.0"] == repo.branches["main"]
    logged_in.log.clear()
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["push"]["tag"] == "kept"
    assert [path for path in _writes(logged_in) if "validate" not in path] == []


def test_a_dataset_from_the_hub_is_pushed_back_by_the_same_command(
    logged_in: StandIn, small_source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repo = logged_in.add_repo(REPO, small_source, tags=("v2.1",))
    command = ["convert", "--repo-id", REPO]
    logged_in.break_requests(Fault("status", method="POST", path="/commit/", status=403))
    assert main(command) == 16
    assert "v3.0" not in repo.tags
    logged_in.log.clear()
    assert main([*command, "--force-conversion"]) == 0
    assert "converted before. Only the push is left" in capsys.readouterr().out
    assert repo.tags["v3.0"] == repo.branches["main"] != repo.tags["v2.1"]
    assert not [r for r in logged_in.log if "/resolve/" in r.path and ".mp4" in r.path]
    names = sorted(path.name for path in (tmp_path / "hf_home/lerobot/tester").iterdir())
    assert names == [".arm.leconvert-provenance", "arm", "arm_old"]


@pytest.mark.parametrize("revision", ["v2.1", "main"])
def test_a_named_revision_is_pushed_back_by_the_same_command(
    logged_in: StandIn, small_source: Path, capsys: pytest.CaptureFixture[str], revision: str
) -> None:
    repo = logged_in.add_repo(REPO, small_source, tags=("v2.1",))
    command = ["convert", "--repo-id", REPO, "--revision", revision]
    logged_in.break_requests(Fault("status", method="POST", path="/commit/", status=403))
    assert main(command) == 16
    assert main([*command, "--dry-run"]) == 0
    assert main(command) == 0
    assert repo.tags["v3.0"] == repo.branches["main"] != repo.tags["v2.1"]
    logged_in.log.clear()
    assert main(command) == 0
    assert [path for path in _writes(logged_in) if "validate" not in path] == []
    assert main([*command, "--no-push"]) == 0
    assert "There is nothing to do." in capsys.readouterr().out

    other = ["convert", "--repo-id", REPO, "--revision", "other"]
    assert main(other) == 5
    assert f"no record says that it is {REPO} at other" in capsys.readouterr().err


def test_a_v3_dataset_of_the_hub_goes_back_to_v21_and_to_a_repo_that_is_named(
    logged_in: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _dataset(tmp_path / "set", 2)
    assert main(["convert", str(tmp_path / "set"), str(tmp_path / "v30")]) == 0
    repo = logged_in.add_repo(REPO, tmp_path / "v30", tags=("v3.0",))
    before = (dict(repo.branches), dict(repo.tags))
    command = ["convert", "--repo-id", REPO, "--to", "v2.1"]
    logged_in.log.clear()
    assert main(command) == 2
    assert (
        "Add --push-repo-id ORG/NAME to push to ORG/NAME, or add --no-push."
        in capsys.readouterr().err
    )
    assert logged_in.log == []
    assert main([*command, "--push-repo-id", "tester/back"]) == 0
    back = logged_in.repo("tester/back")
    assert _episodes(logged_in, "tester/back") == ("v2.1", 2)
    assert back.tags == {"v2.1": back.branches["main"]}
    assert (repo.branches, repo.tags) == before
    home = tmp_path / "hf_home/lerobot/tester"
    assert is_converted(home / "arm", "v2.1")
    assert is_converted(home / "arm_old")
    capsys.readouterr()
    assert main([*command, "--push-repo-id", "tester/back"]) == 0
    assert "converted before. Only the push is left" in capsys.readouterr().out
    assert main([*command, "--push-repo-id", "tester/back", "-q"]) == 0
    assert capsys.readouterr() == ("", "")
    assert main(["undo", str(home / "arm")]) == 0
    assert is_converted(home / "arm")


def _dataset(folder: Path, episodes: int, seed: int = 0) -> Path:
    camera = CameraSpec(key="observation.images.top")
    spec = DatasetSpec(episodes=episodes, frames=[5] * episodes, cameras=(camera,), seed=seed)
    return make_dataset(folder, spec)


def _episodes(hub: StandIn, repo_id: str) -> tuple[str, int]:
    """Return version and number of episodes of what a repo holds on main."""
    repo = hub.repo(repo_id)
    content = repo.content(repo.tree(repo.branches["main"])["meta/info.json"])
    assert content is not None
    info = json.loads(content.read_bytes())
    return info["codebase_version"], info["total_episodes"]


def _advised(error: str) -> list[str]:
    """Return the first command that an error advises, as arguments."""
    return shlex.split(error[error.index("`leconvert ") :].split("`")[1])[1:]


def test_a_result_of_another_repo_is_never_pushed(
    logged_in: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, episodes in (("a", 2), ("b", 3)):
        source = _dataset(tmp_path / name, episodes, episodes)
        logged_in.add_repo(f"tester/{name}", source, tags=("v2.1",))
    out = tmp_path / "out"
    assert main(["convert", "--repo-id=tester/a", f"--output={out}", "--no-push"]) == 0
    record = provenance_path(out).read_bytes()
    command = ["convert", "--repo-id=tester/b", f"--output={out}", "--push-to-hub"]
    for _ in range(2):
        capsys.readouterr()
        assert main(command) == 5
        said = capsys.readouterr().err
        assert (
            f"{out} already holds a v3.0 dataset, made from another source or with other options."
        ) in said
        assert "source: it was hf://datasets/tester/a@" in said
    assert provenance_path(out).read_bytes() == record
    assert _episodes(logged_in, "tester/b") == ("v2.1", 3)
    assert main([*command, "--force-conversion"]) == 0
    assert _episodes(logged_in, "tester/b") == ("v3.0", 3)


def test_a_record_of_what_was_there_before_does_not_outlive_the_next_conversion(
    logged_in: StandIn, tmp_path: Path
) -> None:
    first, second = _dataset(tmp_path / "first", 2, 1), _dataset(tmp_path / "second", 3, 2)
    out = tmp_path / "out"
    assert main(["convert", f"--root={first}", f"--output={out}", "--push-repo-id=tester/a"]) == 0
    shutil.rmtree(out)
    assert main(["convert", f"--root={second}", f"--output={out}"]) == 0
    assert not provenance_path(out).exists()
    assert main(["push", str(out), "--push-repo-id=tester/b"]) == 0
    assert _episodes(logged_in, "tester/b") == ("v3.0", 3)


@pytest.fixture
def unpushed(logged_in: StandIn, tmp_path: Path) -> list[str]:
    """Convert with a push that the Hub refuses; return the command, which can be given again."""
    source = _dataset(tmp_path / "source", 2)
    command = [
        "convert", f"--root={source}", f"--output={tmp_path / 'out'}", "--push-repo-id=tester/new",
    ]  # fmt: skip
    logged_in.break_requests(Fault("status", method="POST", path="/commit/", status=403))
    assert main(command) == 16
    return command


def test_a_result_of_other_options_is_not_what_the_command_would_have_made(
    unpushed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main([*unpushed, "--layout=streaming"]) == 5
    said = capsys.readouterr().err
    assert "layout: it was not given, and is streaming now" in said
    assert main([*_advised(said)[:-1], "tester/new"]) == 0
    assert main([*unpushed, "--episodes-per-batch=1"]) == 0, "which decides nothing"
    assert "Only the push is left" in capsys.readouterr().out


def _rewrite_rows(out: Path) -> None:
    """Change values, which no look at the result alone can find wrong."""
    path = next(out.glob("data/*/*.parquet"))
    table = pq.read_table(path)
    place = table.schema.get_field_index("action")
    rows = [[value + 1 for value in row] for row in table["action"].to_pylist()]
    field = table.schema.field(place)
    pq.write_table(table.set_column(place, field, pa.array(rows, field.type)), path)


def test_an_altered_result_is_not_pushed_but_by_force(
    logged_in: StandIn, unpushed: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    _rewrite_rows(out)
    assert main(["check", str(out)]) == 0
    for command in (unpushed, ["push", str(out), "--push-repo-id=tester/new"]):
        capsys.readouterr()
        assert main(command) == 10
        said = capsys.readouterr().err
        assert "is still the result of a conversion" in said
        assert "data/chunk-000/file-000.parquet" in said
        assert main(_advised(said)) == 10, "the verification finds it, too"
    assert "meta/info.json" not in logged_in.repo("tester/new").tree(
        logged_in.repo("tester/new").branches["main"]
    )
    assert main(["push", str(out), "--push-repo-id=tester/new", "--force-push"]) == 0
    repo = logged_in.repo("tester/new")
    card = repo.content(repo.tree(repo.branches["main"])["README.md"])
    assert card is not None
    assert b"Converted to v3.0" not in card.read_bytes()


def test_a_result_that_was_verified_again_is_pushed(
    logged_in: StandIn, unpushed: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out/meta/info.json"
    path.write_text(json.dumps(json.loads(path.read_bytes())))
    capsys.readouterr()
    assert main(unpushed) == 10
    advice = _advised(capsys.readouterr().err)
    assert main([argument for argument in advice if argument != "--bytes"]) == 0
    assert main(unpushed) == 10, "an old version of leconvert made it and recorded no hashes"
    assert main(advice) == 0
    assert main(unpushed) == 0
    assert _episodes(logged_in, "tester/new") == ("v3.0", 2)


@pytest.mark.parametrize(
    ("request_path", "said"),
    [("/preupload/", "Nothing was committed."), ("/commit/", "The tag v3.0 was not set.")],
)
def test_a_result_that_changes_under_the_push_is_noticed(
    logged_in: StandIn, unpushed: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    request_path: str, said: str,
) -> None:  # fmt: skip
    info = tmp_path / "out/meta/info.json"

    def change() -> None:
        info.write_bytes(info.read_bytes().replace(b"v3.0", b"v3.9"))

    logged_in.break_requests(Fault("none", path=request_path, interfere=change))
    assert main(unpushed) == 10
    assert said in capsys.readouterr().err
    assert logged_in.repo("tester/new").tags == {}


def test_files_beside_the_datasets_own_may_be_added(
    logged_in: StandIn, unpushed: list[str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    (out / "notes.md").write_text("mine")
    (out / "README.md").write_text("# Mine")
    stray = out / "data/chunk-000/file-007.parquet"
    shutil.copy(out / "data/chunk-000/file-000.parquet", stray)
    assert main(unpushed) == 10
    stray.unlink()
    assert main(unpushed) == 0
    assert "notes.md" in logged_in.repo("tester/new").tree(
        logged_in.repo("tester/new").branches["main"]
    )


def test_a_conversion_that_ends_before_its_record_is_written_is_pushed_by_the_same_command(
    repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["convert", "--repo-id", REPO, "--push-to-hub"]

    def end(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(provenance, "note_result", end)
        assert main(command) == 130
    assert "v3.0" not in repo.tags
    assert main(command) == 0
    assert repo.tags["v3.0"] == repo.branches["main"]


def test_a_packed_result_goes_back_to_where_it_came_from(repo: Repo, tmp_path: Path) -> None:
    out, work = tmp_path / "out", tmp_path / "work"
    assert main(["plan", f"--repo-id={REPO}", f"--output={out}", f"--work-dir={work}"]) == 0
    assert main(["work", str(work), f"--scratch-dir={tmp_path / 'scratch'}"]) == 0
    assert main(["pack", str(work)]) == 0
    assert main(["push", str(out)]) == 0
    assert repo.tags["v3.0"] == repo.branches["main"]


def test_a_colleagues_episode_is_not_replaced_by_a_copy_that_lacks_it(
    logged_in: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine, theirs = _dataset(tmp_path / "mine", 2), _dataset(tmp_path / "theirs", 3)
    repo = logged_in.add_repo(REPO, mine, tags=("v2.1",))
    newer = logged_in.add_commit(REPO, theirs)
    out = tmp_path / "out"
    assert main(["convert", f"--root={mine}", f"--output={out}", f"--push-repo-id={REPO}"]) == 17
    said = capsys.readouterr().err
    assert (
        "in the repo: 3 episodes and 15 frames, v2.1; the result: 2 episodes and 10 frames" in said
    )
    assert (
        "9 files would be deleted and 1 replaced; they would stay only in the history of the repo"
    ) in said
    assert "3 commits in all" in said
    assert f"{newer[:12]} " in said
    assert repo.branches["main"] == newer
    assert main(_advised(said)) == 10, "If the source has new episodes"
    # What is there can be converted instead: nothing of either is lost.
    out = tmp_path / "beside"
    assert main(["convert", f"--repo-id={REPO}", f"--output={out}", "--push-to-hub"]) == 17
    advice = _advised(capsys.readouterr().err.split("changed after the converted commit")[1])
    advice[advice.index("FOLDER")] = str(tmp_path / "newer")
    assert main(advice) == 0
    assert _episodes(logged_in, REPO) == ("v3.0", 3)


def test_a_result_without_a_record_is_pushed_once_it_was_compared_with_what_is_there(
    logged_in: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = _dataset(tmp_path / "source", 2)
    repo = logged_in.add_repo(REPO, source)
    out = tmp_path / "out"
    assert main(["convert", f"--root={source}", f"--output={out}"]) == 0
    command = ["push", str(out), "--push-repo-id", REPO]
    assert main(command) == 17
    assert main(_advised(capsys.readouterr().err)) == 0
    assert main(command) == 0
    assert repo.tags["v3.0"] == repo.branches["main"]


def test_a_copy_of_the_repo_that_was_converted_may_be_replaced(
    logged_in: StandIn, repo: Repo, small_source: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    copy = logged_in.add_repo("tester/copy", small_source)
    out = tmp_path / "out"
    command = ["convert", f"--repo-id={REPO}", f"--output={out}", "--push-repo-id=tester/copy"]
    logged_in.add_commit("tester/copy", {"meta/tasks.jsonl": b"{}"})
    assert main(command) == 17
    assert f"holds another dataset than the converted {REPO} at" in capsys.readouterr().err
    tasks = (small_source / "meta/tasks.jsonl").read_bytes()
    logged_in.add_commit("tester/copy", {"meta/tasks.jsonl": tasks})
    assert main(command) == 0
    assert copy.tags["v3.0"] == copy.branches["main"]


def test_a_tag_on_another_v3_dataset_moves_by_force_alone(
    logged_in: StandIn, repo: Repo, result: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logged_in.add_commit(REPO, {"meta/tasks.parquet": b"other"})
    theirs = repo.tags["v3.0"] = repo.branches["main"]
    logged_in.add_commit(REPO, {}, deleted=("meta/tasks.parquet",))
    command = ["push", str(result), "--push-repo-id", REPO]
    assert main(command) == 17
    assert (
        f"already leads to another v3.0 dataset, at commit {theirs[:12]}."
        in capsys.readouterr().err
    )
    assert repo.tags == {"v3.0": theirs}
    assert main([*command, "--force-push"]) == 0
    assert repo.tags["v3.0"] == repo.branches["main"]


def test_what_came_from_a_private_repo_is_not_made_public_by_the_way(
    logged_in: StandIn, small_source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logged_in.add_repo("tester/secret", small_source, private=True)
    logged_in.add_repo("tester/open")
    out = tmp_path / "out"
    command = ["convert", "--repo-id=tester/secret", f"--output={out}", "--push-repo-id"]
    assert main([*command, "tester/new"]) == 0
    assert "tester/new is made private, as tester/secret is." in capsys.readouterr().err
    assert logged_in.repo("tester/new").private
    assert main([*command, "tester/open"]) == 17
    said = "tester/open is public, but the source tester/secret is not."
    assert said in capsys.readouterr().err
    assert logged_in.repo("tester/open").tags == {}
    assert main([*command, "tester/open", "--force-push"]) == 0


def test_nobody_knows_of_a_repo_that_cannot_be_seen_whether_it_was_public(
    logged_in: StandIn, small_source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    repo = logged_in.add_repo("stranger/arm", small_source)
    out = tmp_path / "out"
    assert main(["convert", "--repo-id=stranger/arm", f"--output={out}", "--no-push"]) == 0
    push = ["push", str(out), "--push-repo-id"]
    assert main([*push, "tester/public"]) == 0
    assert not logged_in.repo("tester/public").private
    repo._state["private"] = True  # to this token it is as if it were gone
    assert main([*push, "tester/new"]) == 0
    assert "as stranger/arm can no longer be seen" in capsys.readouterr().err
    assert logged_in.repo("tester/new").private


def test_private_is_not_ignored(
    repo: Repo, result: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["push", str(result), "--push-repo-id", REPO, "--private"]
    assert main([*command, "--force-push"]) == 17
    assert f"--private is given, but {REPO} is public." in capsys.readouterr().err
    assert repo.tags == {}
    repo._state["private"] = True
    assert main(command) == 0


def test_verifying_needs_no_disk_that_can_be_written(
    logged_in: StandIn, unpushed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def full(*_: object, **__: object) -> None:
        raise StorageError("The disk cannot be written.")

    monkeypatch.setattr(provenance, "write_durably", full)
    out, source = tmp_path / "out", tmp_path / "source"
    (out / "meta/info.json").write_bytes((out / "meta/info.json").read_bytes() + b"\n")
    assert main(["verify", str(out), f"--source={source}", "--bytes"]) == 0
    assert (
        "could not be saved for a later push: The disk cannot be written."
        in capsys.readouterr().err
    )
    assert main([*unpushed, "--force-push"]) == 0
    (out / "meta/info.json").write_bytes((out / "meta/info.json").read_bytes()[:-1])
    assert main(["push", str(out), "--push-repo-id=tester/other"]) == 0
    assert (
        "The push is done. It could not be recorded: The disk cannot be written."
        in capsys.readouterr().err
    )


# ------------------------------------------------------------------------------------------------
# ``convert(..., push=...)`` of Python.


def test_a_conversion_from_python_pushes_what_it_made(
    logged_in: StandIn, small_source: Path, tmp_path: Path
) -> None:
    how = PushOptions(repo_id="tester/new", branch="trial")
    report = convert(small_source, output=tmp_path / "out", push=how)
    assert report.push is not None
    assert (report.push.repo_id, report.push.branch, report.push.created) == (
        *("tester/new", "trial"), True,
    )  # fmt: skip
    assert logged_in.repo("tester/new").branches["trial"] == report.push.commit
    assert report.as_record()["push"]["commit"] == report.push.commit
    known = read_provenance(tmp_path / "out")
    assert known is not None
    assert known.pushed


def test_a_push_from_python_that_fails_says_that_only_the_push_is_left(
    logged_in: StandIn, small_source: Path, tmp_path: Path
) -> None:
    all_but_its_role = Fault("status", path="/api/(?!whoami)", status=403, times=None)
    logged_in.break_requests(all_but_its_role)
    with pytest.raises(HubAccessError) as refused:
        convert(small_source, output=tmp_path / "out", push=PushOptions(repo_id="tester/new"))
    again = f"leconvert push {tmp_path}/out --push-repo-id tester/new"
    assert "The dataset is converted already" in str(refused.value.next_step)
    logged_in.break_requests()
    assert main(shlex.split(again)[1:]) == 0


def test_a_push_to_nowhere_is_refused_before_any_work(small_source: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="The repo for the push is not given"):
        convert(small_source, output=tmp_path / "out", push=PushOptions())
    with pytest.raises(TypeError, match="push must be PushOptions"):
        convert(small_source, output=tmp_path / "out", push="tester/new")  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


BROKEN_HEAD = b"---\ntags: [robot\n---\n# Mine\n"


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
@pytest.mark.parametrize(
    ("content", "said"),
    [(BROKEN_HEAD, "The YAML head of "), ("# Größe\n".encode("latin-1"), "is not UTF-8 text")],
)
def test_a_card_that_cannot_be_pushed_is_refused_before_the_conversion(
    logged_in: StandIn, small_source: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], content: bytes, said: str, more: list[str],
) -> None:  # fmt: skip
    source = Path(shutil.copytree(small_source, tmp_path / "source"))
    (source / "README.md").write_bytes(content)
    out = tmp_path / "out"
    command = ["convert", str(source), str(out), "--push-repo-id", REPO, *more]
    assert main(command) == 17
    told = capsys.readouterr().err
    assert said in told
    assert str(source / "README.md") in told, "the user has to correct this file"
    assert not out.exists()
    assert not _writes(logged_in)
    # The repo has a card of its own, which stays.
    logged_in.add_repo(REPO, small_source)
    assert main([*command, "--force-push"]) == 0


def test_a_broken_card_of_the_repo_is_refused_before_the_conversion_unless_it_stays(
    logged_in: StandIn, small_source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logged_in.add_repo(REPO, small_source)
    logged_in.add_commit(REPO, {"README.md": BROKEN_HEAD})
    command = ["convert", REPO, "--root", str(tmp_path / "arm"), "--revision", "main"]
    for more in ([], ["--engine", "local", "--layout", "episode-files"]):
        assert main([*command, "--push-repo-id", REPO, *more]) == 17
        assert f"The YAML head of README.md in {REPO} cannot" in capsys.readouterr().err
        assert not is_converted(tmp_path / "arm")
    assert main([*command, "--push-repo-id", REPO, "--no-card"]) == 0


def test_a_broken_card_is_refused_before_a_merge_and_before_a_conversion_in_python(
    logged_in: StandIn, small_source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copies = [Path(shutil.copytree(small_source, tmp_path / name)) for name in ("one", "two")]
    (copies[0] / "README.md").unlink()
    (copies[1] / "README.md").write_bytes(BROKEN_HEAD)
    out = tmp_path / "out"
    merge = ["merge", *map(str, copies), "--output", str(out), "--push-repo-id", REPO]
    assert main(merge) == 17
    assert f"The YAML head of {copies[1]}/README.md cannot be read" in capsys.readouterr().err
    with pytest.raises(HubConflictError, match="The YAML head of"):
        convert(copies[1], output=out, push=PushOptions(repo_id=REPO))
    assert not out.exists()
