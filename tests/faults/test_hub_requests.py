"""What reads the Hub meets every fault of its requests: once, and for good.

What may be over in a moment is asked again, whichever request it is; an answer that stays ends with
the code that it has everywhere.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from tests.hub import OTHER_TOKEN, WRITE_TOKEN, Fault, StandIn
from tests.hub.fixtures import hub, lone_client, pauses
from tests.trees import digest_of

import leconvert
from leconvert.cli.main import main
from leconvert.remote import source

__all__ = ["hub", "lone_client", "pauses"]

REPO = "tester/arm"
READING = {
    "convert": "convert tester/arm {here}/new --no-push --quiet",
    "push": "push {here}/out --push-repo-id tester/arm",
}
OF_THE_MOMENT = ("408", "429", "500", "502", "503", "drop_before", "drop_after", "truncate")
CODES = {"401": 16, "403": 16, "404": 15, "409": 17, "412": 17, "500": 15, "drop_before": 15}
INFO = "resolve/.*/meta/info.json"
Run = Callable[[str], int]


@pytest.fixture(scope="module")
def to_push(small_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the result ``out`` and the record of its push; do not change it."""
    folder = tmp_path_factory.mktemp("to-push")
    leconvert.convert(small_source, output=folder / "out", for_push=True)
    return folder


@pytest.fixture
def run(
    small_source: Path, to_push: Path, tmp_path: Path, hub: StandIn, monkeypatch: pytest.MonkeyPatch
) -> Run:
    monkeypatch.setenv("HF_TOKEN", WRITE_TOKEN)
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path / "home"))
    hub.add_repo(REPO, small_source, tags=("v2.1",))
    shutil.copytree(to_push, tmp_path, dirs_exist_ok=True)
    return lambda name: main(READING[name].format(here=tmp_path).split())


def _fault(kind: str, **rule: object) -> Fault:
    if kind.isdigit():
        return Fault("status", status=int(kind), **rule)  # type: ignore[arg-type]
    return Fault(kind, keep_bytes=1, **rule)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", READING)
def test_a_fault_at_any_request_that_may_be_over_in_a_moment_is_survived(
    run: Run, hub: StandIn, name: str, tmp_path: Path
) -> None:
    """What is asked first meets one kind of fault, the next the next."""
    hub.log.clear()
    hub.break_requests(Fault("status", path="/commit/", status=403))  # a push writes nothing yet
    assert run(name) == (16 if name == "push" else 0)
    asked = sorted({r.path for r in hub.log if r.method == "GET" and "whoami" not in r.path})
    api = [path for path in asked if path.startswith("/api/")]
    assert any("/refs" in path for path in api)
    assert any("/tree/" in path for path in api)
    asked = [*api, *[path for path in asked if path not in api][::12]]  # files are alike
    for number, path in enumerate(asked):
        kind = OF_THE_MOMENT[number % len(OF_THE_MOMENT)]
        for left in (tmp_path / "new", tmp_path / "home"):
            shutil.rmtree(left, ignore_errors=True)
        denied = Fault("status", path="/commit/", status=403)
        hub.break_requests(_fault(kind, path=f"^{re.escape(path)}"), denied)
        hub.log.clear()
        assert run(name) == (16 if name == "push" else 0), (path, kind)
        assert sum(r.fault is not None for r in hub.log) == 1 + (name == "push")


# Every kind, and either command at every place.
@pytest.mark.parametrize(
    ("kind", "place", "name"),
    list(zip(CODES, cycle(["/refs", "/tree/", INFO]), cycle(["convert", "push"]), strict=False)),
)
def test_an_answer_that_stays_ends_with_the_code_that_it_has_everywhere(
    run: Run, hub: StandIn, name: str, place: str, kind: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    hub.break_requests(_fault(kind, path=place, times=None))
    assert run(name) == CODES[kind]
    assert "Check the disk" not in capsys.readouterr().err
    assert "v3.0" not in hub.repo(REPO).tags


@pytest.mark.parametrize(("name", "times"), [("push", 1), ("convert", 99)])
def test_an_info_json_that_is_changed_on_its_way_is_a_failed_transfer(
    run: Run, hub: StandIn, name: str, times: int, small_source: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Read as it came, it would say another version, and that a newer leconvert is needed."""
    version = (small_source / "meta/info.json").read_bytes().index(b"v2.1") + len("v2.")
    hub.break_requests(Fault("flip", path=INFO, at_byte=version, times=times))
    code = run(name)
    if times == 1:
        assert code == 0
    else:
        assert code == 3
        assert "meta/info.json of hf://datasets/tester/arm@" in capsys.readouterr().err


# A gated repo, of which the Hub lets a token that has no access see its name, or its listing too.


GATED = (
    "convert tester/gated {here}/new --no-push",
    "convert tester/gated --layout episode-files --dry-run --no-push",
    "plan tester/gated --output {here}/new --work-dir {here}/work",
    "merge tester/gated {here}/out --output {here}/both",
    "verify {here}/out --source hf://datasets/tester/gated",
    "push {here}/out --push-repo-id tester/gated",
)


# Both kinds of repo meet both tokens.
@pytest.mark.parametrize(
    ("command", "gated", "token"),
    list(
        zip(
            GATED,
            cycle(["contents", "all", "all", "contents"]),
            cycle([OTHER_TOKEN, None]),
            strict=False,
        )
    ),
)
def test_a_gated_repo_is_told_as_one_and_nothing_is_left_of_it(
    run: Run, hub: StandIn, small_source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    gated: str, token: str | None, command: str, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    hub.add_repo("tester/gated", small_source, tags=("v2.1",), gated=gated)
    if token is None:
        monkeypatch.delenv("HF_TOKEN")
    else:
        monkeypatch.setenv("HF_TOKEN", token)
    before = {path for path in tmp_path.rglob("*") if "hub" not in path.parts}
    assert main(command.format(here=tmp_path).split()) == 16
    said = capsys.readouterr().err
    if token is not None or not command.startswith("push"):
        assert "tester/gated is gated, and the present token has no access to it." in said
        assert "Request access on the page of the repo." in said
    left = {path for path in tmp_path.rglob("*") if "hub" not in path.parts} - before
    assert not [path for path in left if path.is_file()]


@pytest.mark.parametrize("step", ["check_convertible", "download_dataset"])
def test_a_download_before_which_another_command_did_everything_changes_nothing(
    run: Run, hub: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], step: str,
) -> None:  # fmt: skip
    command = ["convert", REPO, "--quiet"]
    real, calls = getattr(source, step), []

    def meanwhile(*arguments: Any, **options: Any) -> Any:
        calls.append(step)
        if len(calls) == 1:
            assert main(command) == 0
        return real(*arguments, **options)

    monkeypatch.setattr(source, step, meanwhile)
    assert main(command) == 5
    assert "Another process may have put it there" in capsys.readouterr().err
    home, done = tmp_path / "home/tester", hub.repo(REPO).branches["main"]
    before = {path.name: digest_of(path) for path in home.iterdir() if path.is_dir()}
    assert sorted(before) == ["arm", "arm_old"]
    assert main(command) == 0
    assert {path.name: digest_of(path) for path in home.iterdir() if path.is_dir()} == before
    assert hub.repo(REPO).branches["main"] == done
