"""What of the NFS lab can be told without a lab: refusals, clean-up, and the table."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "scripts" / "lab"))

from lab_kit import LabError
from nfs_lab import NfsLab
from nfs_lab.lab import LabOptions
from nfs_lab.requirements import require


def test_without_root_one_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(LabError, match="root"):
        require("ext4")


def test_down_leaves_a_folder_alone_that_is_not_a_labs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nfs_lab.network.Network.exists", False)
    precious = tmp_path / "precious"
    precious.write_text("data")
    with pytest.raises(LabError):
        NfsLab(tmp_path).down()
    (tmp_path / "lab.json").write_text('{"format": "something else", "options": {}}')
    with pytest.raises(LabError, match="not a lab"):
        NfsLab(tmp_path).down()
    assert precious.read_text() == "data"


def test_up_refuses_a_folder_with_something_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nfs_lab.network.Network.exists", False)
    monkeypatch.setattr("nfs_lab.lab.require", lambda _: None)
    (tmp_path / "precious").write_text("data")
    with pytest.raises(LabError, match="not empty"):
        NfsLab(tmp_path).up(LabOptions())
    assert (tmp_path / "precious").exists()
