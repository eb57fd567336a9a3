"""A migration on the Hub that is cut off after every request, and goes on by the same command.

Readers of ``main`` and of the tags meet these states in this order and no others: all old; the new
dataset; the new one with the tag of the old one; the same with its own tag.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.hub import WRITE_TOKEN, LoggedRequest, StandIn
from tests.hub.committed import contents, converted, hashes
from tests.hub.fixtures import CutOff, cut_after, hub, lone_client, pauses

from leconvert import api
from leconvert.cli.main import main
from leconvert.remote import provenance
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset

__all__ = ["hub", "lone_client", "pauses"]

OLD, NEW = "old", "new"
STATES = [(OLD, False, False), (NEW, False, False), (NEW, True, False), (NEW, True, True)]
IN_CI = 24  # so-manieth request
LAYOUTS = ["episode-files", "overlay"]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    camera = CameraSpec(noise_amplitude=90, target_clip_bytes=40_000)
    return make_dataset(
        tmp_path_factory.mktemp("source") / "set",
        DatasetSpec(episodes=2, frames=(7, 4), cameras=(camera,)),
    )


@pytest.fixture(scope="module")
def expected(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """What a conversion in a folder makes, in each layout."""
    return {
        layout: hashes(converted(source, tmp_path_factory.mktemp(layout), layout))
        for layout in (*LAYOUTS, "reference")
    }


class Scene:
    """One repo, and everything that readers of it met."""

    def __init__(self, hub: StandIn, name: str, source: Path, new: dict[str, str]) -> None:
        self.repo = hub.add_repo(name, source)
        self.first = self.repo.branches["main"]
        self.met: list[tuple[str, bool, bool]] = []
        self._new = new
        hub.watch = self.look
        self.look()

    def look(self, _: LoggedRequest | None = None) -> None:
        tags = self.repo.tags
        main = self.repo.branches["main"]
        assert tags.get("v2.1", self.first) == self.first
        assert tags.get("v3.0", main) == main
        if main != self.first:
            assert contents(self.repo, main) == self._new, "readers met half a dataset"
        state = (OLD if main == self.first else NEW, "v2.1" in tags, "v3.0" in tags)
        if not self.met or self.met[-1] != state:
            self.met.append(state)


@pytest.fixture
def migrated(
    hub: StandIn,
    source: Path,
    expected: dict[str, dict[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[str, int | None], int]:
    """Migrate, cut off after a request if one is named, then again; return the requests of all."""
    monkeypatch.setenv("HF_TOKEN", WRITE_TOKEN)
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("leconvert.remote.sparse_snapshot._WHOLE_KEPT_BYTES", 0)

    def run(layout: str, number: int | None) -> int:
        name = f"tester/arm{number or 0}"
        scene = Scene(hub, name, source, expected[layout])
        hub.log.clear()
        command = ["convert", "--repo-id", name, "--layout", layout, "--quiet"]
        if number is not None:
            with cut_after(number), pytest.raises(CutOff):
                main(command)
        assert main(command) == 0
        assert scene.met == STATES
        assert not [r for r in hub.log if r.path.endswith(".mp4") and r.status != 206]
        left = [path for path in (tmp_path / "home").rglob("*") if not path.is_dir()]
        assert not left, "nothing stays here"
        return len(hub.log)

    return run


@pytest.mark.parametrize("every", [IN_CI, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_migration_cut_off_after_any_request_is_completed_by_the_same_command(
    migrated: Callable[[str, int | None], int], layout: str, every: int
) -> None:
    requests = migrated(layout, None)
    # The two layouts share the work.
    for number in range(1 + LAYOUTS.index(layout) * every // 2, requests, every):
        migrated(layout, number)


@pytest.mark.parametrize("step", ["work_and_pack", "note_result", "_push_migrated"])
def test_the_loser_of_two_migrations_is_told_to_run_again_and_then_finds_nothing_to_do(
    hub: StandIn, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], step: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("HF_TOKEN", WRITE_TOKEN)
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path / "home"))
    repo = hub.add_repo("tester/arm", source)
    command = ["convert", "--repo-id", "tester/arm", "--layout", "episode-files", "--quiet"]
    module = provenance if step == "note_result" else api
    real, calls = getattr(module, step), []

    def meanwhile(*arguments: Any, **options: Any) -> Any:
        calls.append(step)
        if len(calls) == 1:
            assert main(command) == 0
        return real(*arguments, **options)

    monkeypatch.setattr(module, step, meanwhile)
    assert main(command) == 12
    assert "was removed during this command" in capsys.readouterr().err
    done = repo.branches["main"]
    assert main(command) == 0
    assert repo.branches["main"] == done
    assert not [path for path in (tmp_path / "home").rglob("*") if not path.is_dir()]


# ------------------------------------------------------------------------------------------------
# The same by a fleet, whose worker is killed.


def migrate_by_a_fleet(
    hub: StandIn, source: Path, new: dict[str, str], folder: Path, layout: str, number: int
) -> int:
    """Kill the worker after a request, 0 for none, then run the command again; return how many."""
    name = f"tester/arm{number}"
    scene = Scene(hub, name, source, new)
    folder.mkdir()
    (folder / "list.txt").write_text(name)
    command = [
        *(sys.executable, "-m", "leconvert", "fleet", "list.txt", "--work-dir", "work", "-q"),
        *("--scratch-dir", "scratch", "--push-to-hub", "--layout", layout, "-j", "1"),
        *("--lease-seconds", "2"),
    ]
    online = {**os.environ, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
    workers: list[subprocess.Popen[bytes]] = []

    def look(request: LoggedRequest) -> None:
        scene.look(request)
        if len(hub.log) == number:
            workers[0].send_signal(signal.SIGKILL)

    hub.log.clear()
    hub.watch = look
    for expected in [-signal.SIGKILL] * (number > 0) + [0]:
        workers.append(subprocess.Popen(command, cwd=folder, env=online, stderr=subprocess.PIPE))
        _, said = workers[-1].communicate(timeout=100)
        assert workers[-1].returncode == expected, said.decode()
    assert scene.met == STATES
    assert not list((folder / "scratch").rglob("*")), "nothing stays here"
    return len(hub.log)


@pytest.mark.parametrize(
    ("layout", "number"),
    [
        ("reference", 32),  # makes the commit: the tags are missing, by which the source is found
        *(pytest.param(each, None, marks=pytest.mark.slow) for each in (*LAYOUTS, "reference")),
    ],
)
def test_a_fleets_worker_killed_after_any_request_is_gone_on_with(
    hub: StandIn,
    source: Path,
    expected: dict[str, dict[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    layout: str,
    number: int | None,
) -> None:
    monkeypatch.setenv("HF_TOKEN", WRITE_TOKEN)

    def killed_after(request: int) -> int:
        place = tmp_path / str(request)
        return migrate_by_a_fleet(hub, source, expected[layout], place, layout, request)

    for each in range(1, killed_after(0)) if number is None else [number]:
        killed_after(each)
