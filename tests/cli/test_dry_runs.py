"""A dry run ends with the code of the run that it stands for, and writes nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import leconvert
from leconvert.cli.main import main
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset
from leconvert.transfer.client import check_can_push
from tests.cli.test_reruns import flip_a_byte
from tests.hub import READ_TOKEN, WRITE_TOKEN, StandIn
from tests.trees import snapshot


def dataset(root: Path, episodes: int) -> None:
    make_dataset(root, DatasetSpec(episodes=episodes, frames=6, cameras=(CameraSpec(32, 32),)))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("dry")
    dataset(root / "A", 3)
    dataset(root / "grown", 4)
    shutil.copytree(root / "A", root / "B")
    leconvert.convert(root / "A", output=root / "v3")
    (root / "list").write_text("A\nB\n")
    return root


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_before(*more: str) -> Callable[[list[str], Path], object]:
    return lambda command, _: main([*command, *more, "--quiet"])


def damage(result: str) -> Callable[[list[str], Path], object]:
    def do(command: list[str], here: Path) -> None:
        main(command)
        flip_a_byte(here / result)

    return do


def grow(command: list[str], here: Path) -> None:
    main(command)
    shutil.rmtree(here / "A")
    (here / "grown").rename(here / "A")


def break_source(_: list[str], here: Path) -> None:
    (here / "A/data/chunk-000/episode_000001.parquet").unlink()


def occupy(*names: str) -> Callable[[list[str], Path], object]:
    return lambda _, here: [(here / name).mkdir() for name in names]


def begin(*words: str) -> Callable[[list[str], Path], object]:
    return lambda *_: main(list(words))


def stale_totals(_: list[str], here: Path) -> None:
    path = here / "v3/meta/info.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "total_frames": 1}))


def nothing(*_: object) -> None:
    pass


CONVERT = ["convert", "A", "out"]
BYTES = [*CONVERT, "--verify", "bytes"]
MERGE = ["merge", "A", "B", "-o", "out"]
SPLIT = ["split", "A", "--output-dir", "out", "--into", "a=0,b=1-2"]
TRIM = ["trim", "A", "--episode", "1", "--frames", ":4", "-o", "out"]
FLEET = ["fleet", "list", "-o", "out", "--work-dir", "work", "-j", "1"]
REPAIR = ["repair", "v3"]
ANEW = ["repair", "v3", "--quantiles", "-o", "out"]
FULL, HALF = 1000, 30_000

# What the command is, what was done before, how many bytes are free, and the code of both.
CASES = {
    "convert": (CONVERT, nothing, None, 0),
    "convert, begun anew in place": (["convert", "A", "--restart"], run_before(), None, 0),
    "convert, damaged": (BYTES, damage("out"), None, 10),
    "convert, other options": ([*CONVERT, "--quantiles"], begin(*CONVERT), None, 5),
    "convert, something else there": (CONVERT, occupy("out"), None, 5),
    "convert, old in the way": (["convert", "A"], occupy("A_old"), None, 5),
    "convert, other run": (
        [*CONVERT, "--work-dir", "w", "--quantiles"],
        begin("plan", "A", "out", "--work-dir", "w"), None, 6,
    ),
    "convert, no room": (CONVERT, nothing, FULL, 11),
    "convert, no place for a page": ([*CONVERT, "--report=no/page.html"], nothing, None, 2),
    "convert, page in the source": (["convert", "A", "--report=A/page.html"], nothing, None, 2),
    "convert, no measurement": ([*CONVERT, "--probe", "--to", "v2.1"], nothing, None, 2),
    "merge, page in a source": ([*MERGE, "--report=B/page.html"], nothing, None, 2),
    "merge, finished": (MERGE, run_before(), None, 0),
    "split": (SPLIT, nothing, None, 0),
    "split, damaged": ([*SPLIT, "--verify", "bytes"], damage("out/a"), None, 10),
    "split, work dir in the source": ([*SPLIT, "--work-dir", "A"], nothing, None, 2),
    "split, work dir in the parts": ([*SPLIT, "--work-dir", "out"], nothing, None, 2),
    "split, no folder": ([*SPLIT[:3], "list", *SPLIT[4:]], nothing, None, 5),
    "trim, finished": (TRIM, run_before(), None, 0),
    "trim, no place for a page": ([*TRIM, "--report=no/page.html"], nothing, None, 2),
    "repair, nothing": (REPAIR, nothing, None, 0),
    "repair": (REPAIR, stale_totals, None, 0),
    "repair, no room": (REPAIR, stale_totals, FULL, 11),
    "repair, anew": (ANEW, nothing, None, 0),
    "repair, anew, page in the dataset": ([*ANEW, "--report=v3/page.html"], nothing, None, 2),
    "fleet, grown": (FLEET, grow, None, 0),
    "fleet, work dir of a conversion": (
        FLEET, begin("plan", "A", "out", "--work-dir", "work"), None, 2,
    ),
    "fleet, bad source": (FLEET, break_source, None, 8),
    "fleet, room for one alone": (FLEET, nothing, HALF, 8),
}  # fmt: skip

# One case of each command, whose dry run is not told to be quiet.
TALKING = {"convert", "merge, finished", "split", "trim, finished", "repair", "fleet, bad source"}


@pytest.mark.parametrize("name", CASES)
def test_a_dry_run_ends_with_the_code_of_the_run(
    name: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command, prepare, room, code = CASES[name]
    prepare(command, here)
    if room is not None:
        used = sum(size for size, *_ in snapshot(here).values())

        def free(*_: object) -> int:
            return max(0, room - sum(size for size, *_ in snapshot(here).values()) + used)

        for place in ("run.space", "run.repairing.apply", "fleet.overview"):
            monkeypatch.setattr(f"leconvert.{place}.free_bytes_of", free)
        monkeypatch.setattr("leconvert.run.repairing.apply.can_clone", lambda *_: False)
    before = snapshot(here)
    capsys.readouterr()
    quiet = () if name in TALKING else ("--quiet",)
    assert main([*command, "--dry-run", *quiet]) == code
    assert snapshot(here) == before
    said = capsys.readouterr()
    if name in TALKING:
        assert said.out != "" or code != 0
    else:
        assert said.out == ""
        assert (said.err != "") == (code != 0)
    if room is HALF:
        assert "Free disk space or choose another --output-dir." in said.err
    assert main(command) == code


@pytest.fixture
def reader(hub: StandIn, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    monkeypatch.setenv("HF_TOKEN", READ_TOKEN)
    return hub


@pytest.mark.parametrize(
    "command",
    [
        [*CONVERT, "--push-repo-id", "tester/new"],
        [*MERGE, "--push-repo-id", "tester/new", "--dry-run"],
        [*FLEET, "--push-repo-id", "tester/{name}"],
    ],
)
def test_a_token_that_can_only_read_is_found_before_the_work(
    command: list[str], here: Path, reader: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    before = snapshot(here)
    assert main(command) == 16
    assert "but the present token may only read" in capsys.readouterr().err
    assert snapshot(here) == before
    assert [request.method for request in reader.log] in ([], ["GET"]), "asked once a process"


def test_a_token_that_may_write_and_a_hub_that_does_not_say_stop_nothing(
    hub: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_nobody")
    with pytest.raises(leconvert.support.errors.HubAccessError):
        check_can_push("tester/new")
    monkeypatch.setenv("HF_TOKEN", WRITE_TOKEN)
    check_can_push("tester/new")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    check_can_push("tester/new")
