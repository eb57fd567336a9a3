"""What a swap could not replace is seen before any work."""

from __future__ import annotations

import errno
import os
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import Mock

import pytest
from tests.faults.faulty_files import FaultyFileSystem

from leconvert.support import file_calls as mounts
from leconvert.support.errors import StorageError, TargetError
from leconvert.workdir import swap as targets
from leconvert.workdir.fs import FileSystem
from leconvert.workdir.records import new_run_id, removed_folder
from leconvert.workdir.swap import check_target, old_dir, staging_dir, try_renames


def test_a_name_that_leaves_no_room_for_those_of_a_run_is_refused(tmp_path: Path) -> None:
    most = os.pathconf(tmp_path, "PC_NAME_MAX") - 50
    fits, too_long = tmp_path / ("é" * (most // 2)), tmp_path / ("é" * (most // 2 + 1))
    check_target(fits, None)
    run_id = new_run_id(datetime.now(UTC), os.urandom)
    removed_folder(staging_dir(fits, run_id, 9_999_999)).mkdir()
    with pytest.raises(TargetError, match="is too long") as caught:
        check_target(too_long, None)
    assert f"at most {most} bytes" in str(caught.value.next_step)


def test_a_folder_on_which_another_one_is_mounted_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "my set"
    target.mkdir()
    point = str(target.resolve()).replace(" ", "\\040")
    line = f"36 25 254:1 /root/set {point} rw,relatime shared:1 - ext4 /dev/vda rw\n"
    monkeypatch.setattr(mounts, "_mount_table", lambda: line)
    assert not target.is_mount(), "a bind mount has the device number of the folder above"
    with pytest.raises(TargetError, match="is a mount point and cannot be renamed"):
        check_target(target, old_dir(target))


def test_a_tree_of_another_user_below_a_sticky_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"
    target = shared / "set"
    target.mkdir(parents=True)
    shared.chmod(0o1777)
    may_act = Mock(return_value=False)
    monkeypatch.setattr(targets, "may_act_for_owners", may_act)
    check_target(target, old_dir(target))
    monkeypatch.setattr(os, "geteuid", lambda: target.stat().st_uid + 1)
    with pytest.raises(TargetError, match="belongs to another user") as caught:
        check_target(target, old_dir(target))
    assert "--output" in str(caught.value.next_step)
    may_act.return_value = True
    check_target(target, old_dir(target))
    may_act.return_value = False
    shared.chmod(0o777)
    check_target(target, old_dir(target))


@pytest.mark.parametrize(
    ("call", "code", "error", "said"),
    [
        (None, 0, None, ""),
        ("exchange", errno.EINVAL, None, ""),
        ("exchange", errno.EPERM, TargetError, "Folders in .* cannot be renamed"),
        ("replace", errno.EXDEV, TargetError, "Folders in .* cannot be renamed"),
        ("replace", errno.ESTALE, StorageError, "Cannot use"),
        ("replace", errno.EROFS, StorageError, "Cannot use"),
    ],
)
def test_renames_are_tried_beside_the_target_and_nothing_is_left_of_that(
    tmp_path: Path, call: str | None, code: int, error: type[Exception] | None, said: str
) -> None:
    fs = FaultyFileSystem()
    if call is not None:
        fs.fail(call, code, match="")
    target = tmp_path / "set[1]"
    (tmp_path / f".set[1].leconvert-try-{os.geteuid()}-1").mkdir()  # of a planner that was killed
    with pytest.raises(error, match=said) if error else nullcontext():
        try_renames(target, fs=fs)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("call", ["exchange", "replace"])
def test_a_second_planner_that_removes_the_folders_of_the_first_does_not_stop_it(
    tmp_path: Path, call: str
) -> None:
    """Planners with different work dirs share no lock; each removes what it finds, once."""
    target = tmp_path / "set"
    second: list[bool] = []

    class Between(FileSystem):
        def exchange(self, one: Path, other: Path) -> None:
            self._meet("exchange")
            super().exchange(one, other)

        def replace(self, source: Path, target_: Path) -> None:
            self._meet("replace")
            super().replace(source, target_)

        def _meet(self, name: str) -> None:
            if name == call and not second:
                second.append(True)
                try_renames(target)

    try_renames(target, fs=Between())
    assert second
    assert list(tmp_path.iterdir()) == []
