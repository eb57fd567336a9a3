"""FFmpeg is looked for by the names that torchcodec asks for; without it, we start once more."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from leconvert.bench.environment import (
    FoundFfmpeg,
    find_ffmpeg,
    link_ffmpeg,
    restart_environment,
    start_again_with_ffmpeg,
    versions_for_torchcodec,
)


def loads(*names: str) -> object:
    def load(name: str) -> None:
        if name not in names:
            raise OSError(f"{name}: cannot open shared object file")

    return load


@pytest.mark.parametrize(
    ("names", "major"),
    [
        (("libavutil.so.61", "libavutil.so.60"), 9),
        (("libavutil.so.60",), 8),
        (("libavutil.so.56", "libavutil.so.59"), 7),
        ((), None),
    ],
)
def test_the_newest_ffmpeg_that_torchcodec_knows_is_found(
    names: tuple[str, ...], major: int | None
) -> None:
    found = find_ffmpeg(loads(*names), {}, range(4, 10))  # type: ignore[arg-type]

    assert found == (None if major is None else FoundFfmpeg(major, "system"))


def test_an_ffmpeg_that_torchcodec_is_not_built_for_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "torchcodec"
    package.mkdir()
    for name in ("__init__.py", "libtorchcodec_core7.so", "libtorchcodec_custom_ops8.so"):
        (package / name).write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torchcodec", raising=False)

    assert versions_for_torchcodec() == [7, 8]
    assert find_ffmpeg(loads("libavutil.so.61"), {}) is None  # type: ignore[arg-type]
    assert find_ffmpeg(loads("libavutil.so.61", "libavutil.so.59"), {}) == FoundFfmpeg(  # type: ignore[arg-type]
        7, "system"
    )


def test_plain_names_point_to_the_libraries_of_ffmpeg_alone_and_are_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel, links = tmp_path / "av.libs", tmp_path / "links"
    for folder in (tmp_path / "av", links):
        folder.mkdir()
    (tmp_path / "av/__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "av", raising=False)
    (links / "libavcodec.so.61").symlink_to(tmp_path / "gone")
    with pytest.raises(FileNotFoundError, match="contains no FFmpeg libraries"):
        link_ffmpeg(links)
    wheel.mkdir()
    for name in (
        "libavcodec-7ee0753d.so.61.19.101", "libswscale-5efb2ca5.so.8.3.100",
        "libx264-b1bb65f5.so.165", "libavcodec.so.61",
    ):  # fmt: skip
        (wheel / name).write_bytes(b"")

    assert link_ffmpeg(links) == f"{links}:{wheel}"

    assert {link.name: link.readlink().name for link in links.iterdir()} == {
        "libavcodec.so.61": "libavcodec-7ee0753d.so.61.19.101",
        "libswscale.so.8": "libswscale-5efb2ca5.so.8.3.100",
    }
    assert (links / "libavcodec.so.61").is_file()


def test_the_installed_wheel_has_all_libraries_and_is_told_from_the_system(tmp_path: Path) -> None:
    links = tmp_path / "links"
    link_ffmpeg(links)

    made = {link.name.split(".")[0]: link for link in sorted(links.iterdir())}

    assert list(made) == [
        "libavcodec", "libavdevice", "libavfilter", "libavformat", "libavutil", "libswresample",
        "libswscale",
    ]  # fmt: skip
    found = find_ffmpeg(loads(made["libavutil"].name), {"LD_LIBRARY_PATH": f"/nowhere:{links}"})  # type: ignore[arg-type]
    assert found.origin == "PyAV's wheel"
    assert links.stat().st_mode & 0o077 == 0  # others cannot put libraries beside ours


def test_processes_of_two_hosts_with_one_number_may_link_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = Path.replace

    def replaced(self: Path, target: Path) -> Path:
        monkeypatch.setattr(Path, "replace", replace)
        link_ffmpeg(tmp_path)  # on the other host, in a container that also counts from 1
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", replaced)
    link_ffmpeg(tmp_path)
    assert len(list(tmp_path.iterdir())) == 7
    assert all(link.is_file() for link in tmp_path.iterdir())


def test_the_environment_to_start_again_with_keeps_what_was_there(tmp_path: Path) -> None:
    before = {"XDG_CACHE_HOME": str(tmp_path), "LD_LIBRARY_PATH": "/mine", "KEPT": "1"}

    after = restart_environment(before)

    (links,) = (tmp_path / "leconvert").iterdir()
    assert after["LD_LIBRARY_PATH"] == f"{link_ffmpeg(links)}:/mine"
    assert after["KEPT"] == "1"
    assert restart_environment(after) is None  # once is enough
    (tmp_path / "file").write_text("")  # a cache that cannot be written means PyAV
    assert restart_environment({"XDG_CACHE_HOME": str(tmp_path / "file")}) is None


def test_the_same_command_is_started_again_unless_ffmpeg_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("LECONVERT_FFMPEG_LINKS", raising=False)
    monkeypatch.setattr(sys, "orig_argv", ["python3", "-m", "leconvert", "probe", "run"])
    started: list[tuple[str, list[str], dict[str, str]]] = []

    for found in (FoundFfmpeg(7, "system"), None):
        start_again_with_ffmpeg(
            find=lambda found=found: found,  # type: ignore[misc]
            execute=lambda *call: started.append(call),
        )

    ((program, command, environment),) = started
    assert [program, *command] == [sys.executable] * 2 + ["-m", "leconvert", "probe", "run"]
    assert str(tmp_path) in environment["LD_LIBRARY_PATH"]
