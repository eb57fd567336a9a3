"""What the disk does not give out of a result is no difference: nobody knows what is in it."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mutation import DATA, TOP
from tests.pictures import CAMERA

import leconvert
from leconvert.dataset.formats.v3 import INFO_PATH, REPAIRS_PATH, STATS_PATH
from leconvert.run.proof import Sampling, pair, samples, verify_pair
from leconvert.support.errors import StorageError, UnreadableSourceError
from leconvert.support.parallel import Spread
from leconvert.support.storage_errors import raise_storage_trouble

Deny = Callable[[Path], None]


@pytest.fixture(params=[errno.EACCES, errno.EIO])
def deny(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Deny:
    """Let every way of opening one file fail."""
    code: int = request.param

    def never_open(denied: Path) -> None:
        def refusing(opens: Callable[..., Any]) -> Callable[..., Any]:
            def opened(path: Any, *args: Any, **options: Any) -> Any:
                if not isinstance(path, int) and os.fspath(path) == str(denied):
                    raise OSError(code, os.strerror(code), str(path))
                return opens(path, *args, **options)

            return opened

        monkeypatch.setattr(os, "open", refusing(os.open))
        monkeypatch.setattr(io, "open", refusing(io.open))

    return never_open


def refusal(converted: Path, source: Path, **options: Any) -> StorageError:
    with pytest.raises(StorageError) as told:
        verify_pair(converted, source, spread=Spread(), **options)
    return told.value


@pytest.mark.parametrize("name", [TOP, DATA, INFO_PATH, STATS_PATH, REPAIRS_PATH])
def test_a_file_that_may_not_be_read_is_a_matter_of_storage_and_named(
    small_result: Path, small_source: Path, name: str, deny: Deny
) -> None:
    deny(small_result / name)
    error = refusal(small_result, small_source)
    assert (error.exit_code, error.path) == (11, str(small_result / name))
    assert str(small_result / name) in error.message


def test_a_file_that_came_along_and_may_not_be_read_is_no_difference_either(
    source_copy: Path, tmp_path: Path, deny: Deny
) -> None:
    (source_copy / "notes.txt").write_text("why")
    leconvert.convert(source_copy, output=tmp_path / "out")
    deny(tmp_path / "out/notes.txt")
    error = refusal(tmp_path / "out", source_copy, depth="bytes")
    assert error.path == str(tmp_path / "out/notes.txt")


def failing_reads(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """Let every read of a file fail that is open already; its index was read by then."""
    read = os.pread

    def pread(file: int, size: int, place: int) -> bytes:
        if Path(f"/proc/self/fd/{file}").readlink() == path:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(file, size, place)

    monkeypatch.setattr("leconvert.run.proof.difference.os.pread", pread)


@pytest.mark.parametrize("name", [TOP, DATA])
def test_an_error_amid_packets_or_rows_names_the_file_of_the_result(
    small_result: Path, small_source: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare = pair.Comparer._compare_table if name == DATA else pair.Comparer._compare_video

    def late(self: Any, *args: Any, **options: Any) -> Any:
        failing_reads(monkeypatch, small_result / name)
        return compare(self, *args, **options)

    monkeypatch.setattr(pair.Comparer, compare.__name__, late)
    error = refusal(small_result, small_source, depth="bytes")
    assert error.path == str(small_result / name)
    assert "input/output error" in error.message


def test_an_error_amid_the_packets_of_a_clip_names_the_clip(
    small_result: Path, small_source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clip = small_source / f"videos/chunk-000/{CAMERA}/episode_000000.mp4"
    failing_reads(monkeypatch, clip)
    assert refusal(small_result, small_source, depth="bytes").path == str(clip)


def test_pictures_that_may_not_be_read_are_a_matter_of_storage(
    small_result: Path, small_source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decoded(path: Path, *_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(samples, "_decoded_at", decoded)
    error = refusal(small_result, small_source, sampling=Sampling(decode=1))
    assert error.path is not None
    assert Path(error.path).is_relative_to(small_result / "videos")


@pytest.mark.parametrize("code", [errno.ENOENT, errno.EINVAL, errno.EISDIR, None])
def test_what_is_about_names_or_content_is_not_blamed_on_the_disk(code: int | None) -> None:
    error = OSError("it is corrupt") if code is None else OSError(code, os.strerror(code))
    raise_storage_trouble(error, "file")


def test_the_disks_error_is_found_behind_that_of_a_reader_and_ffmpegs_is_not_the_disks() -> None:
    import av

    raise_storage_trouble(av.error.PermissionError(errno.EPERM, "refused"), "file")
    error = UnreadableSourceError("It cannot be read.", path="file")
    error.__cause__ = OSError(errno.EIO, "Input/output error")
    with pytest.raises(StorageError, match="Cannot use file: "):
        raise_storage_trouble(error, "file")
