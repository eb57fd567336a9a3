"""What a user sees while it works: bars on a terminal, lines elsewhere."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from leconvert import convert
from leconvert.cli.output import ShownProgress
from leconvert.dataset import statistics
from leconvert.model.repairs import RepairOptions
from leconvert.run.conversion import WorkerOptions
from leconvert.testing import CameraSpec, DatasetSpec, edit_lines, make_dataset


def test_a_terminal_gets_a_bar_for_each_stage(small_source: Path, tmp_path: Path) -> None:
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 110, 0, 0))
    arguments = ["convert", "--root", str(small_source), "--output", str(tmp_path / "out")]
    process = subprocess.Popen(
        [sys.executable, "-m", "leconvert", *arguments], stdout=subprocess.PIPE, stderr=follower
    )
    os.close(follower)
    seen = b""
    while True:
        try:
            block = os.read(leader, 65536)
        except OSError:  # the program closed its side
            break
        if not block:
            break
        seen += block
    process.communicate()
    os.close(leader)
    assert process.returncode == 0
    text = seen.decode()
    for stage in ("scan", "work", "pack", "verify"):
        assert f"{stage:<6}: 100%|" in text
    assert "files/s" in text
    assert "B/s" in text


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of the progress, which a test sets; no clock ticks beside it."""
    now = [0.0]
    monkeypatch.setattr("leconvert.cli.output._Ticking._run", lambda _: None)
    monkeypatch.setattr("leconvert.cli.output.time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def told(now: list[float], name: str, unit: str, steps: dict[float, int]) -> list[str]:
    """Return the lines of a stage that advances by these amounts at these seconds."""
    stream = io.StringIO()
    with ShownProgress(stream).stage(name, sum(steps.values()), unit) as stage:
        for now[0], number in steps.items():
            stage.advance(number)
    return stream.getvalue().splitlines()


def test_a_long_stage_says_how_long_it_takes(now: list[float]) -> None:
    steps = {2.0: 1024**2, 8.0: 3 * 1024**2, 20.0: 6 * 1024**2}
    assert told(now, "work", "B", steps) == [
        "work: 4.0 MiB of 10.0 MiB, about 12 s left (8.0 s, 512.0 KiB/s)",
        "work: 10.0 MiB (20.0 s, 512.0 KiB/s)",
    ]


def slowly(now: list[float], real: Callable[..., Any]) -> Callable[..., Any]:
    """Return the same function, which takes six seconds."""

    def computed(*arguments: Any, **options: Any) -> Any:
        now[0] += 6.0
        return real(*arguments, **options)

    return computed


def converted(source: Path, out: Path, **repairs: bool) -> str:
    """Convert in one thread, and return the lines of the progress."""
    stream = io.StringIO()
    convert(
        source,
        output=out,
        repairs=RepairOptions(**repairs),
        workers=WorkerOptions(max_workers=1),
        progress=ShownProgress(stream),
    )
    return stream.getvalue()


def test_the_time_left_shrinks_while_pictures_are_decoded_for_their_statistics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, now: list[float]
) -> None:
    monkeypatch.setattr(statistics, "table_stats", slowly(now, statistics.table_stats))
    key = "observation.images.top"
    spec = DatasetSpec(episodes=6, frames=4, cameras=(), image_keys=(key,))
    source = make_dataset(tmp_path / "source", spec)
    lines = converted(source, tmp_path / "out", recompute_stats=True)
    left = [int(found) for found in re.findall(r"work: .* ([0-9]+) s left", lines)]
    assert len(left) >= 4
    assert left == sorted(set(left), reverse=True)
    assert left[-1] <= 7


def test_the_time_left_is_that_of_the_camera_whose_pictures_are_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, now: list[float]
) -> None:
    """The other camera has nearly all bytes, which are only copied, and in no time."""
    monkeypatch.setattr(statistics, "clip_stats", slowly(now, statistics.clip_stats))
    small = "observation.images.small"
    spec = DatasetSpec(
        episodes=6,
        frames=8,
        distinct_clips=1,
        cameras=(
            CameraSpec(key="observation.images.big", width=640, height=480, options={"crf": "0"}),
            CameraSpec(key=small, width=64, height=48),
        ),
    )
    source = make_dataset(tmp_path / "source", spec)
    edit_lines(source, "episodes_stats", lambda rows: [row["stats"].pop(small) for row in rows])
    lines = converted(source, tmp_path / "out", fill_stats=True)
    told = re.findall(r"work: ([0-9]+) %, about ([0-9]+) s left \(([0-9]+)\.", lines)
    assert [int(seconds) for _, _, seconds in told] == [6, 12, 18, 24, 30]
    for _, left, seconds in told:
        assert int(left) == pytest.approx(36 - int(seconds), abs=1)
    assert "work: 100 % (36.0 s)" in lines


def test_a_stage_in_which_nothing_comes_to_its_end_shows_that_it_lives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Stream(io.StringIO):
        def write(self, text: str) -> int:
            written = super().write(text)
            told.set()
            return written

    told = threading.Event()
    monkeypatch.setattr("leconvert.cli.output._LINE_EVERY_SECONDS", 0.001)
    stream = Stream()
    with ShownProgress(stream).stage("work", 1024, "B"):
        assert told.wait(30)
        assert stream.getvalue().startswith("work: 0 B of 1.0 KiB (")
