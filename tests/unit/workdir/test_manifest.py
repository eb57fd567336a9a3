"""A plan that is damaged, half written or not there says so, with its path and a next step."""

from __future__ import annotations

import json

import pytest

from leconvert.support.errors import WorkDirError
from leconvert.workdir.run import BatchFile, OpenedRun, open_run, read_manifest


def test_a_run_without_a_manifest_was_never_planned_to_the_end(planned: OpenedRun) -> None:
    planned.paths.manifest.unlink()
    with pytest.raises(WorkDirError, match="The planning of the run was not finished") as caught:
        read_manifest(planned.paths)
    assert caught.value.path == str(planned.paths.manifest)
    assert "again" in str(caught.value.next_step)


@pytest.mark.parametrize("name", ["batches", "scan_table"])
def test_another_file_than_was_planned_is_refused_at_open(planned: OpenedRun, name: str) -> None:
    path, root = getattr(planned.paths, name), planned.work_dir.root
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    with pytest.raises(WorkDirError, match="is not the file that the plan recorded") as caught:
        open_run(root)
    assert (caught.value.path, caught.value.exit_code) == (str(path), 7)
    path.unlink()
    with pytest.raises(WorkDirError, match="is missing"):
        open_run(root)


def test_batches_are_read_by_number_and_one_at_anothers_offset_is_refused(
    planned: OpenedRun,
) -> None:
    batches = list(planned.batches)
    assert len(batches) == len(planned.batches) == planned.manifest.num_batches == 5
    assert [planned.batches.read(number) for number in range(5)] == batches
    path = planned.paths.batches
    lines = path.read_bytes().splitlines(keepends=True)
    as_long = [json.loads(line) for line in lines]
    swapped = lines[1].replace(b'"batch_id":1', b'"batch_id":2')
    assert len(swapped) == len(lines[1])
    assert as_long[1]["batch_id"] == 1
    path.write_bytes(b"".join([lines[0], swapped, *lines[2:]]))
    batches = BatchFile(planned.paths, planned.manifest.streams)
    assert batches.read(0).batch_id == 0
    with pytest.raises(WorkDirError, match="offsets at batch 1") as caught:
        batches.read(1)
    assert caught.value.path == str(path)


@pytest.mark.parametrize("cut", [1, 40])
def test_a_batch_that_is_cut_off_is_damaged(planned: OpenedRun, cut: int) -> None:
    path = planned.paths.batches
    path.write_bytes(path.read_bytes()[: -1 - cut])
    batches = BatchFile(planned.paths, planned.manifest.streams)
    with pytest.raises(WorkDirError, match="is damaged") as caught:
        batches.read(4)
    assert (caught.value.path, caught.value.next_step) == (
        str(path), "Begin a new run with --restart.",
    )  # fmt: skip
    with pytest.raises(WorkDirError, match="is damaged"):
        list(batches)
