"""What control groups leave of a machine, in both versions of their interface."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from leconvert.support.machine import Machine

GIB = 2**30


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Eight cores, 10 GiB available, and no control group yet."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    here = Machine(proc=tmp_path / "proc", groups=tmp_path / "groups")
    write(here.proc / "meminfo", "MemTotal: 16777216 kB\nMemAvailable: 10485760 kB\n")
    return here


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_without_groups_the_machine_is_what_the_kernel_says(machine: Machine) -> None:
    assert machine.cores() == 8
    assert machine.free_memory() == 10 * GIB
    assert machine.peak_memory() == 0
    write(machine.proc / "self/status", "VmPeak:\t 9 kB\nVmHWM:\t    2048 kB\nVmRSS:\t 7 kB\n")
    assert machine.peak_memory() == 2 * 2**20
    assert 2**20 < Machine().peak_memory() < 2**40


def test_every_group_up_to_the_root_bounds_cores_and_memory(machine: Machine) -> None:
    write(machine.proc / "self/cgroup", "0::/batch/job7\n")
    job, batch = machine.groups / "batch/job7", machine.groups / "batch"
    write(job / "cpu.max", "max 100000\n")
    write(batch / "cpu.max", "250000 100000\n")
    write(job / "memory.max", f"{6 * GIB}\n")
    write(job / "memory.current", f"{4 * GIB}\n")
    write(job / "memory.stat", f"anon 5\ninactive_file {GIB}\nactive_file 7\n")
    write(batch / "memory.max", "max\n")
    assert machine.cores() == 3  # two and a half
    assert machine.free_memory() == 3 * GIB  # 6 - 4, and 1 that was only read
    write(batch / "memory.max", f"{8 * GIB}\n")
    write(batch / "memory.current", f"{9 * GIB}\n")
    assert machine.free_memory() == 0


def test_the_first_version_keeps_controllers_apart_and_knows_no_limit(machine: Machine) -> None:
    write(machine.proc / "self/cgroup", "5:cpu,cpuacct:/c\n4:memory:/m\n1:name=systemd:/s\n0::/\n")
    write(machine.groups / "cpu,cpuacct/c/cpu.cfs_quota_us", "100000\n")
    write(machine.groups / "cpu,cpuacct/c/cpu.cfs_period_us", "100000\n")
    # In a container the group's own folder is not to be seen, but its content is the root's.
    write(machine.groups / "memory/memory.limit_in_bytes", f"{2 * GIB}\n")
    write(machine.groups / "memory/memory.usage_in_bytes", f"{GIB}\n")
    write(machine.groups / "memory/memory.stat", f"total_inactive_file {GIB // 2}\n")
    assert machine.cores() == 1
    assert machine.free_memory() == GIB + GIB // 2
    write(machine.proc / "self/cgroup", "5:cpu:/\n4:memory:/\n")
    write(machine.groups / "cpu/cpu.cfs_quota_us", "-1\n")
    write(machine.groups / "cpu/cpu.cfs_period_us", "100000\n")
    write(machine.groups / "memory/memory.limit_in_bytes", "9223372036854771712\n")
    write(machine.groups / "memory/memory.usage_in_bytes", f"{GIB}\n")
    assert machine.cores() == 8
    assert machine.free_memory() == 10 * GIB
