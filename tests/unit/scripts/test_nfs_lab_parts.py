"""What of the NFS lab can be told without a lab: refusals, clean-up, and the table."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "scripts" / "lab"))

from lab_kit import LabError, missing_packages
from nfs_lab import NfsLab
from nfs_lab.lab import LabOptions
from nfs_lab.requirements import has_wide_registers, packages_for, preload, require


def test_packages_are_named_by_the_programs_that_are_missing() -> None:
    there = {"ip": "/sbin/ip", "modprobe": "/sbin/modprobe", "mkfs.ext4": "/sbin/mkfs.ext4"}
    assert missing_packages(packages_for("ext4", wide_registers=False), find=there.get) == [
        "ethtool",
        "nfs-common",
        "nfs-kernel-server",
        "user-mode-linux",
    ]
    assert "xfsprogs" in missing_packages(packages_for("xfs"), find=there.get)
    compiler = packages_for("ext4", wide_registers=True)
    assert {"gcc", "libc6-dev"} <= set(missing_packages(compiler, find=there.get))


def test_registers_that_the_guests_kernel_does_not_know_are_seen(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("flags\t\t: fpu avx512f pku\n")
    assert not has_wide_registers(cpuinfo)
    cpuinfo.write_text("flags\t\t: fpu avx512f amx_tile amx_int8\n")
    assert has_wide_registers(cpuinfo)


def test_a_kernel_is_started_with_the_library_that_was_built_for_it(tmp_path: Path) -> None:
    assert preload(tmp_path) == []
    (tmp_path / "wide_registers.so").touch()
    assert preload(tmp_path) == ["env", f"LD_PRELOAD={tmp_path}/wide_registers.so"]


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
