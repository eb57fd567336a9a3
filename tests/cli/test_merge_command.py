"""``leconvert merge`` as a user gives it: priced, made, given again, and killed on the way."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import leconvert as library
from leconvert.cli.main import main
from leconvert.remote.provenance import Origin, known_origin, read_provenance
from leconvert.support.machine import lerobot_home
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset
from tests.hub import WRITE_TOKEN, Fault, StandIn
from tests.program import Leconvert
from tests.trees import digest_of, snapshot

CAMERA = CameraSpec(key="observation.images.top", width=64, height=48)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A v2.1 dataset and a v3.0 one, with one task in common; do not change them."""
    folder = tmp_path_factory.mktemp("merge")
    first = DatasetSpec(episodes=3, frames=[7, 5, 9], cameras=(CAMERA,), tasks=("lift", "place"))
    second = DatasetSpec(episodes=2, frames=[6, 8], cameras=(CAMERA,), tasks=("push", "lift"))
    library.convert(make_dataset(folder / "b21", second), output=folder / "b")
    return make_dataset(folder / "a", first), folder / "b"


@pytest.fixture(scope="module")
def merged(two: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of a merge that nobody disturbed."""
    output = tmp_path_factory.mktemp("quiet") / "merged"
    library.merge(two, output=output)
    return digest_of(output)


def test_a_merge_is_priced_made_and_given_again(
    leconvert_here: Leconvert, two: tuple[Path, Path], merged: str, tmp_path: Path
) -> None:
    out, before = tmp_path / "out", [snapshot(root) for root in two]
    command = ("merge", *two, "--output", out)
    dry = leconvert_here(*command, "--dry-run", code=0)
    assert "5 episodes" in dry.stdout
    assert "Nothing was written." in dry.stdout
    assert list(tmp_path.iterdir()) == []
    done = leconvert_here(*command, "-j", "2", code=0)
    assert "Converted 5 episodes" in done.stdout
    assert digest_of(out) == merged
    names = [word for root in two for word in ("--source", root)]
    leconvert_here("verify", out, *names, "--bytes", code=0)
    again = leconvert_here(*command, "--json", code=0)
    assert json.loads(again.stdout) == {"already_converted": str(out), "verified": "structure"}
    leconvert_here("merge", *reversed(two), "--output", out, code=5)
    assert digest_of(out) == merged
    assert [snapshot(root) for root in two] == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@contextmanager
def halting(call: str, *command: object) -> Iterator[None]:
    """Run a command that stops for ever at its first call of a function; kill it afterwards."""
    module, _, name = call.rpartition(".")
    code = (
        f"import signal, sys, {module} as module\n"
        "def halt(*_, **__):\n"
        "    print('halted', flush=True)\n"
        "    while True: signal.pause()\n"
        f"module.{name} = halt\n"
        "from leconvert.cli.main import main\n"
        "main(sys.argv[1:])\n"
    )
    words = [sys.executable, "-c", code, *map(str, command)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "halted\n"
            yield
        finally:
            process.kill()


def test_a_merge_that_is_killed_is_finished_by_the_same_command(
    leconvert_here: Leconvert, two: tuple[Path, Path], merged: str, tmp_path: Path
) -> None:
    out, before = tmp_path / "out", [snapshot(root) for root in two]
    command = ("merge", *two, "--output", out)
    with halting("leconvert.run.packer.run.swap_into_place", *command):
        assert not out.exists()
    assert [snapshot(root) for root in two] == before
    leconvert_here(*command, code=0)
    assert digest_of(out) == merged
    assert [snapshot(root) for root in two] == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


# ------------------------------------------------------------------------------------------------
# Datasets on the Hub: downloaded as ``convert`` downloads them, then ordinary sources.

V21, V30 = "tester/arm", "stranger/arm_v30"
TAGS = ("v2.1", "v3.0")


@pytest.fixture
def stocked(hub: StandIn, two: tuple[Path, Path]) -> StandIn:
    """A Hub with both datasets; the first one's ``main`` has moved on."""
    hub.add_repo(V21, two[0], tags=("v2.1",))
    hub.add_commit(V21, {"meta/info.json": b"{}"})
    hub.add_repo(V30, two[1], tags=("v3.0",))
    return hub


def is_made_of(out: Path, two: tuple[Path, Path]) -> bool:
    """Compare with the datasets themselves: the result names those that were downloaded."""
    sources = [f"--source={root}" for root in two]
    return main(["verify", str(out), *sources, "--bytes"]) == 0


def test_datasets_of_the_hub_are_downloaded_once_and_merged_with_local_ones(
    stocked: StandIn, two: tuple[Path, Path], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    out = tmp_path / "out"
    command = ["merge", V21, f"hf://datasets/{V30}@v3.0", "--output", str(out)]
    assert main(command) == 0
    assert is_made_of(out, two)
    home, repos = lerobot_home(), (V21, V30)
    commits = [stocked.repo(V21).tags["v2.1"], stocked.repo(V30).tags["v3.0"]]
    origins = (Origin(V21, "v2.1", commits[0]), Origin(V30, "v3.0", commits[1]))
    assert tuple(known_origin(home / repo) for repo in repos) == origins
    noted = read_provenance(out)
    assert noted.merged == origins
    said = capsys.readouterr().err
    assert all(f"Downloading {repo} at " in said for repo in repos)
    stocked.log.clear()
    assert main(command) == 0
    assert "There is nothing to do." in capsys.readouterr().out
    mixed = tmp_path / "mixed"
    assert main(["merge", str(two[0]), V30, "--output", str(mixed)]) == 0
    assert stocked.log == [], "both are here"
    assert is_made_of(mixed, two)
    there = [f"--source=hf://datasets/{repo}@{tag}" for repo, tag in zip(repos, TAGS, strict=True)]
    assert main(["verify", str(mixed), *there]) == 0


def test_a_dataset_of_the_hub_is_read_from_the_clients_cache_where_the_hub_is_not_asked(
    stocked: StandIn, two: tuple[Path, Path], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    from huggingface_hub import constants, snapshot_download

    snapshot_download(V30, repo_type="dataset", revision="v3.0")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    out, commit = tmp_path / "out", stocked.repo(V30).tags["v3.0"]
    assert main(["merge", str(two[0]), f"hf://datasets/{V30}@v3.0", "--output", str(out)]) == 0
    assert is_made_of(out, two)
    noted = read_provenance(out)
    assert noted.merged == (Origin("", "", ""), Origin(V30, commit, commit))


def test_what_cannot_be_fetched_is_refused_before_anything_is(
    stocked: StandIn, two: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tester").mkdir()
    out, home = str(tmp_path / "out"), lerobot_home()
    for words, code, said in (
        ([V30], 2, "A merge needs at least two datasets"),
        ([V30, V30], 2, "is given twice"),
        ([V30, "nothing"], 2, "nothing is not a folder."),
        ([V30, "s3://bucket/set"], 2, "`leconvert convert --root s3://bucket/set --output DIR`"),
        ([V30, "hf://datasets/arm"], 2, "is not an address of a dataset on the Hub"),
        (
            [V30, V21],
            2,
            (f"Write ./{V21} for the folder, or hf://datasets/{V21} for the dataset on the Hub."),
        ),
        ([V30, str(two[0]), "--dry-run"], 2, f"{V30} would first have to be downloaded"),
        (["stranger/none", V30], 15, "stranger/none"),
        ([f"hf://datasets/{V30}@v9", str(two[0])], 15, "v9"),
        ([f"hf://datasets/{V21}@main", str(two[0])], 3, "not a LeRobot dataset"),
    ):
        assert main(["merge", *words, "--output", out]) == code, words
        assert said in capsys.readouterr().err
    assert main(["merge", V30, str(two[0]), "--output", str(home / V30)]) == 2
    assert not home.exists()
    assert not Path(out).exists()


def test_a_folder_that_may_be_another_revision_is_neither_merged_nor_replaced(
    stocked: StandIn, two: tuple[Path, Path], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    here = Path(shutil.copytree(two[0], lerobot_home() / V21))
    before, out = snapshot(here), tmp_path / "out"
    pinned = ["merge", f"hf://datasets/{V21}@v2.1", str(two[1]), "--output", str(out)]
    assert main(pinned) == 5
    assert "Leave the revision out to use this folder" in capsys.readouterr().err
    assert not out.exists()
    assert main(["merge", V21, str(two[1]), "--output", str(out), "--dry-run"]) == 0
    assert main(["merge", V21, str(two[1]), "--output", str(out)]) == 0
    assert snapshot(here) == before
    assert is_made_of(out, two)


@pytest.mark.parametrize(
    "command",
    [
        ["split", V30, "--into", "a=0.5,b=0.5", "--output-dir"],
        ["trim", V30, "--episode=0", "--frames=:5", "--output"],
    ],
)
def test_split_and_trim_take_a_name_of_the_hub_where_it_is_downloaded(
    stocked: StandIn, two: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    command: list[str],
) -> None:  # fmt: skip
    stocked.log.clear()
    assert main([*command, str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert "would first have to be downloaded" in said
    assert f"`hf download --repo-type dataset {V30} --local-dir DIR`" in said
    shutil.copytree(two[1], lerobot_home() / V30)
    assert main([*command, str(tmp_path / "out")]) == 0
    assert stocked.log == []


# ------------------------------------------------------------------------------------------------
# The push of what was merged: as that of ``convert``, to a repo that is named.

NEW = "tester/merged"


@pytest.fixture
def logged_in(stocked: StandIn, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    monkeypatch.setenv("HF_TOKEN", WRITE_TOKEN)
    return stocked


def published(folder: Path) -> dict[str, bytes]:
    """Return the files of a dataset but its card and what tools keep there, by path."""
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")}
    return {
        name: path.read_bytes()
        for name, path in files.items()
        if path.is_file() and not name.startswith(".") and name != "README.md"
    }


def loaded(folder: Path, revision: str) -> Path:
    """Download what was pushed, as the Hub's client does by the tag."""
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(NEW, repo_type="dataset", revision=revision, local_dir=folder))


def written(hub: StandIn) -> list[str]:
    return [r.path for r in hub.log if r.method not in ("GET", "HEAD")]


def test_a_merge_is_pushed_with_a_card_that_names_what_it_is_made_of(
    logged_in: StandIn, two: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    command = ["merge", V21, str(two[1]), "--output", str(out), "--push-repo-id", NEW]
    logged_in.break_requests(Fault("status", path="/commit/", status=403, times=None))
    assert main([*command, "--json"]) == 16
    failed = json.loads(capsys.readouterr().out)
    assert failed["episodes"] == 5
    assert f"`leconvert push {out} --push-repo-id {NEW}`" in failed["push"]["next_step"]
    logged_in.break_requests()
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "converted before. Only the push is left" in said
    assert "tag v3.0      set" in said
    there = loaded(tmp_path / "there", "v3.0")
    assert published(there) == published(out)
    card = (there / "README.md").read_text()
    commit = logged_in.repo(V21).tags["v2.1"]
    assert (
        f"Merged to v3.0 from [{V21}](https://huggingface.co/datasets/{V21}/tree/{commit}) at "
        "`v2.1`, then a local dataset, by leconvert "
    ) in card
    logged_in.log.clear()
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["push"]["tag"] == "kept"
    assert [path for path in written(logged_in) if "validate" not in path] == []


def test_what_is_made_of_a_private_dataset_is_not_made_public_by_the_way(
    logged_in: StandIn, two: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = "tester/secret"
    logged_in.add_repo(secret, two[1], private=True, tags=("v3.0",))
    logged_in.add_repo("tester/open")
    command = ["merge", V21, secret, "--output", str(tmp_path / "out"), "--push-repo-id"]
    assert main([*command, "tester/open"]) == 17
    refusal = f"tester/open is public, but the source {secret} is not."
    assert refusal in capsys.readouterr().err
    assert logged_in.repo("tester/open").tags == {}
    assert main([*command, NEW]) == 0
    assert f"{NEW} is made private, as {secret} is." in capsys.readouterr().err
    assert logged_in.repo(NEW).private
    assert main([*command, "tester/open", "--force-push"]) == 0


def test_a_merge_does_not_replace_what_it_is_made_of(
    logged_in: StandIn, two: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = "tester/own"
    for folder, held in zip(two, ("v2.1", "v3.0"), strict=True):
        repo = logged_in.add_repo(f"{own}_{held}", folder)
        head = repo.branches["main"]
        command = ["merge", *map(str, two), "--output", str(tmp_path / "out")]
        assert main([*command, "--push-repo-id", f"{own}_{held}"]) == 17
        assert "add --force-push" in capsys.readouterr().err
        assert repo.branches["main"] == head


@pytest.mark.parametrize(
    "flag", [["--private"], ["--branch=x"], ["--create-pr"], ["--force-push"], ["--no-card"]]
)
def test_how_to_push_without_where_to_is_refused_before_any_work(
    stocked: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: list[str]
) -> None:
    stocked.log.clear()
    assert main(["merge", V21, V30, "--output", str(tmp_path / "out"), *flag]) == 2
    assert "and this command pushes nothing" in capsys.readouterr().err
    assert stocked.log == []
