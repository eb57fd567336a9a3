"""A run without hard links is one host's: who that is, who is refused, what a reboot changes."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from pathlib import Path

import pytest
from one_host_fakes import ELSEWHERE, HERE, without_links
from tests.faults.watched_disk import WatchedDisk
from tests.plans import open_or_plan

from leconvert.run.conversion import Conversion, PlanOptions
from leconvert.support.errors import OneHostOnlyError, PlanMismatchError, WorkDirError
from leconvert.workdir import identity as host_module
from leconvert.workdir import locks as one_host_module
from leconvert.workdir.fs import LOCAL
from leconvert.workdir.identity import HostIdentity
from leconvert.workdir.locks import (
    OneHost,
    OneHostFileSystem,
    admit_host,
    check_still_alone,
    plan_one_host,
    read_one_host,
)
from leconvert.workdir.records import RunPaths, WorkDir
from leconvert.workdir.run import OpenedRun, check_current, open_run


@pytest.fixture
def this_host(monkeypatch: pytest.MonkeyPatch) -> list[HostIdentity]:
    """The host that the test runs on, which it may replace."""
    now = [HERE]
    monkeypatch.setattr(HostIdentity, "of_this_host", classmethod(lambda _cls: now[-1]))
    return now


@pytest.fixture
def planned_here(run: RunPaths, this_host: list[HostIdentity]) -> OneHost:
    found = plan_one_host(run.using(without_links()))
    assert found.host == this_host[0]
    return found


@pytest.fixture
def planned_run(small_source: Path, tmp_path: Path, this_host: list[HostIdentity]) -> OpenedRun:
    """A whole plan in a work dir without hard links."""
    assert this_host == [HERE]
    with WatchedDisk(tmp_path, has_links=False):
        return open_or_plan(small_source, tmp_path / "out", tmp_path / "shared")


def test_the_record_says_who_may_work_how_and_why(run: RunPaths, planned_here: OneHost) -> None:
    assert (planned_here.has_links, planned_here.reason) == (False, "EPERM")
    assert read_one_host(run) == planned_here
    assert "Only this host, here," in planned_here.remark
    assert isinstance(planned_here.paths(run).fs, OneHostFileSystem)
    record = json.loads(run.one_host.read_bytes())
    assert record["exclusion"] == "lock"
    # Earlier programs also wrote "rename", for the kernel's exclusive rename.
    run.one_host.write_text(json.dumps(record | {"exclusion": "rename"}))
    assert read_one_host(run) == planned_here


@pytest.mark.parametrize(
    "later",
    [
        replace(HERE, boot="boot-9"),
        replace(HERE, name="container", machine="c" * 32),
        replace(HERE, machine=""),
    ],
    ids=["after a reboot", "in a container of the same kernel", "where its id cannot be read"],
)
def test_the_host_that_planned_comes_in_again(
    run: RunPaths, planned_here: OneHost, this_host: list[HostIdentity], later: HostIdentity
) -> None:
    this_host[0] = later
    now = admit_host(run, planned_here)
    assert now == replace(planned_here, host=replace(HERE, boot=later.boot))
    assert read_one_host(run) == now


@pytest.mark.parametrize(
    "other",
    [
        ELSEWHERE,
        replace(ELSEWHERE, machine=HERE.machine),
        replace(ELSEWHERE, name=HERE.name),
        replace(HERE, machine="", boot="boot-9"),
        HostIdentity(HERE.name, "", ""),
    ],
    ids=["another", "a copied image", "the same name", "unknown after a reboot", "unknown"],
)
def test_every_other_host_is_refused_with_a_way_out(
    run: RunPaths, planned_here: OneHost, this_host: list[HostIdentity], other: HostIdentity
) -> None:
    this_host[0] = other
    before = run.one_host.read_bytes()
    with pytest.raises(
        OneHostOnlyError, match="Only the host here, which planned run r1, may work on it"
    ) as caught:
        admit_host(run, planned_here)
    assert caught.value.exit_code == 13
    assert "no hard links (EPERM)" in caught.value.message
    assert caught.value.message.endswith(
        "This host is here, another one." if other.name == "here" else "This host is elsewhere."
    )
    assert "Run the command on here" in str(caught.value.next_step)
    assert "--restart" in str(caught.value.next_step)
    assert run.one_host.read_bytes() == before


def test_elsewhere_opening_is_refused_and_looking_and_beginning_anew_are_not(
    planned_run: OpenedRun, this_host: list[HostIdentity], small_source: Path, tmp_path: Path
) -> None:
    places = small_source, tmp_path / "out", tmp_path / "shared"
    root = planned_run.work_dir.root
    assert open_run(root).one_host == planned_run.one_host
    this_host[0] = ELSEWHERE
    with pytest.raises(OneHostOnlyError):
        open_run(root)
    assert open_run(root, only_look=True).one_host == planned_run.one_host
    with WatchedDisk(tmp_path, has_links=False):
        with pytest.raises(OneHostOnlyError):
            open_or_plan(*places)
        again = open_or_plan(*places, Conversion(plan=PlanOptions(restart=True)))
    assert again.paths.run_id != planned_run.paths.run_id
    assert again.one_host.host == ELSEWHERE


def test_a_run_is_one_hosts_by_wish_where_there_are_hard_links(
    small_source: Path, tmp_path: Path, this_host: list[HostIdentity]
) -> None:
    places = small_source, tmp_path / "out", tmp_path / "shared"
    planned = open_or_plan(*places, Conversion(plan=PlanOptions(one_host=True)))
    assert (planned.one_host.has_links, planned.one_host.reason) == (True, "asked for")
    assert planned.one_host.remark.endswith("because of --one-host.")
    assert planned.paths.fs is LOCAL
    assert open_or_plan(*places).paths.run_id == planned.paths.run_id
    this_host[0] = ELSEWHERE
    with pytest.raises(OneHostOnlyError) as caught:
        open_or_plan(*places)
    assert caught.value.exit_code == 13
    assert "with --one-host. This host is elsewhere." in caught.value.message
    assert str(caught.value.next_step).endswith("--restart, here or without --one-host.")
    again = open_or_plan(*places, Conversion(plan=PlanOptions(restart=True)))
    assert again.one_host is None


def test_a_run_of_many_hosts_has_no_record_and_does_not_become_one_hosts(
    small_source: Path, tmp_path: Path, this_host: list[HostIdentity]
) -> None:
    places = small_source, tmp_path / "out", tmp_path / "shared"
    planned = open_or_plan(*places)
    assert planned.one_host is None
    assert planned.paths.fs is LOCAL
    assert not planned.paths.one_host.exists()
    with pytest.raises(PlanMismatchError, match="which was planned without --one-host") as caught:
        open_or_plan(*places, Conversion(plan=PlanOptions(one_host=True)))
    assert "--restart" in str(caught.value.next_step)
    assert open_or_plan(*places).paths.run_id == planned.paths.run_id


def test_two_machines_that_pass_for_one_are_found_out_by_the_first(
    planned_run: OpenedRun, this_host: list[HostIdentity]
) -> None:
    first = planned_run.work_dir, planned_run.paths
    check_current(*first, planned_run.one_host)
    this_host[0] = replace(HERE, boot="boot of the copied machine")
    second = open_run(planned_run.work_dir.root)
    check_current(*first, second.one_host)
    with pytest.raises(OneHostOnlyError, match="Two hosts or mounts with the name"):
        check_current(*first, planned_run.one_host)


def test_a_second_mount_of_the_same_folder_is_found_out_by_the_first(
    run: RunPaths, planned_here: OneHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one_host_module, "_device", lambda _folder: planned_here.device + 1)
    second = admit_host(run, planned_here)
    check_still_alone(run, second)
    with pytest.raises(OneHostOnlyError) as caught:
        check_still_alone(run, planned_here)
    assert "names of their own" in str(caught.value.next_step)


@pytest.mark.parametrize("change", [{"exclusion": "hope"}, {"device": None}, {"reason": None}])
def test_a_record_that_does_not_say_who_may_work_is_refused(
    run: RunPaths, planned_here: OneHost, change: dict[str, object]
) -> None:
    assert planned_here
    fields = json.loads(run.one_host.read_bytes()) | change
    if change.get("reason", "") is None:
        del fields["reason"]
    run.one_host.write_text(json.dumps(fields))
    with pytest.raises(WorkDirError, match="The record") as caught:
        read_one_host(run)
    assert caught.value.path == str(run.one_host)


def system(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def test_a_machine_is_told_by_its_id_and_the_id_itself_is_not_published(tmp_path: Path) -> None:
    machine_id = "0123456789abcdef0123456789abcdef"
    boot = {"proc/sys/kernel/random/boot_id": "boot-7\n"}
    first = system(tmp_path / "1", {"etc/machine-id": f"{machine_id}\n", **boot})
    copied = system(tmp_path / "2", {"var/lib/dbus/machine-id": f"{machine_id}\n"})
    other = system(tmp_path / "3", {"etc/machine-id": machine_id[::-1]})
    seen = [HostIdentity.of_this_host(root) for root in (first, copied, other)]
    assert seen[0].machine == seen[1].machine != seen[2].machine
    assert seen[0].machine
    assert machine_id not in seen[0].machine
    assert [identity.boot for identity in seen] == ["boot-7", "", ""]


@pytest.mark.parametrize(
    ("card", "known"), [(0x001B21AABBCC, True), (0x0242AC110002, False), (0x0100000000AA, False)]
)
def test_without_an_id_a_real_network_card_tells_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, card: int, known: bool
) -> None:
    """An address that a container's bridge made up, or a random one, tells nothing."""
    system(tmp_path, {"etc/machine-id": "uninitialized\n"})
    monkeypatch.setattr(host_module.uuid, "getnode", lambda: card)
    assert bool(HostIdentity.of_this_host(tmp_path).machine) is known


def test_elsewhere_than_on_linux_only_the_host_that_planned_may_work_and_is_known_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one_host_module, "is_linux", lambda: False)
    run = WorkDir(tmp_path).run("r1")
    run.ensure()
    planned = plan_one_host(run)
    assert planned is not None
    assert planned.has_links
    assert planned == read_one_host(run)
    assert planned.remark.startswith(f"Only this host, {planned.host.name}, may work on the run: ")
    monkeypatch.setattr(host_module, "is_linux", lambda: False)
    monkeypatch.setattr(uuid, "getnode", lambda: 1 << 40)  # made up anew in each process
    here = HostIdentity.of_this_host(tmp_path)
    assert (here.boot, here.machine != "") == ("", True)
    assert here.is_same_host(HostIdentity.of_this_host(tmp_path))
