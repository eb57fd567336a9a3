"""The user's own folders, also for a user without a name, as containers have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from leconvert.cli.main import main
from leconvert.support.errors import UsageError
from leconvert.support.machine import home_folder, lerobot_home


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def unnamed(_: object) -> None:
        raise RuntimeError("Could not determine home directory.")

    for name in ("HOME", "HF_HOME", "HF_LEROBOT_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "expanduser", unnamed)


@pytest.mark.usefixtures("nobody")
@pytest.mark.parametrize("folder", [home_folder, lerobot_home])
def test_a_user_without_a_home_is_told_to_set_one(folder: Callable[[], Path]) -> None:
    with pytest.raises(UsageError, match="This user has no home folder") as refused:
        folder()
    assert refused.value.next_step == (
        "Set the environment variable HOME to a folder that this user may write to."
    )


@pytest.mark.usefixtures("nobody")
def test_a_user_without_a_home_needs_none_where_folders_are_named() -> None:
    assert lerobot_home({"HF_HOME": "/data/hf"}) == Path("/data/hf/lerobot")
    assert lerobot_home({"HF_LEROBOT_HOME": "/data/lerobot"}) == Path("/data/lerobot")


@pytest.mark.usefixtures("nobody")
def test_a_user_without_a_home_verifies(
    small_source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", "--root", str(small_source), "--output", str(tmp_path / "out")]) == 0
    assert main(["verify", str(tmp_path / "out"), "--source", str(small_source), "--bytes"]) == 0
    assert main(["check", "--repo-id", "org/name"]) == 2
    assert "This user has no home folder" in capsys.readouterr().err


def test_a_tilde_in_a_variable_is_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/somebody")
    assert lerobot_home({"HF_LEROBOT_HOME": "~/sets"}) == Path("/somebody/sets")
    assert lerobot_home({"HF_HOME": "~/hf"}) == Path("/somebody/hf/lerobot")
    assert lerobot_home({}) == Path("/somebody/.cache/huggingface/lerobot")
