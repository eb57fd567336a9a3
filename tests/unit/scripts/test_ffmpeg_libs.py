"""FFmpeg's libraries get the names that torchcodec asks for, and only they."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = "ffmpeg_libs"


def _wheel(folder: Path) -> Path:
    folder.mkdir()
    for name in (
        "libavcodec-7ee0753d.so.61.19.101",
        "libswscale-5efb2ca5.so.8.3.100",
        "libx264-b1bb65f5.so.165",
        "libavcodec.so.61",
    ):
        (folder / name).write_bytes(b"")
    return folder


def test_plain_names_point_to_the_wheels_libraries(script: ModuleType, tmp_path: Path) -> None:
    wheel = _wheel(tmp_path / "av.libs")

    links = script.link_plain_names(wheel, tmp_path / "links")

    assert {link.name: link.readlink().name for link in links} == {
        "libavcodec.so.61": "libavcodec-7ee0753d.so.61.19.101",
        "libswscale.so.8": "libswscale-5efb2ca5.so.8.3.100",
    }


def test_links_of_a_removed_wheel_are_renewed(script: ModuleType, tmp_path: Path) -> None:
    links = tmp_path / "links"
    links.mkdir()
    (links / "libavcodec.so.61").symlink_to(tmp_path / "gone")

    script.link_plain_names(_wheel(tmp_path / "av.libs"), links)

    assert (links / "libavcodec.so.61").is_file()


def test_a_folder_without_ffmpeg_is_an_error(script: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()

    with pytest.raises(FileNotFoundError, match="contains no FFmpeg libraries"):
        script.link_plain_names(tmp_path / "empty", tmp_path / "links")


def test_the_installed_wheel_has_all_seven_libraries(script: ModuleType, tmp_path: Path) -> None:
    links = script.link_plain_names(script.wheel_libraries(), tmp_path / "links")

    assert [link.name.split(".")[0] for link in links] == [
        "libavcodec", "libavdevice", "libavfilter", "libavformat", "libavutil",
        "libswresample", "libswscale",
    ]  # fmt: skip
    assert all(link.is_file() for link in links)
