"""What a conversion writes: where files of a version lie, and how its tables come about."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Protocol

from leconvert.formats import v2, v3
from leconvert.formats.dataset import Totals

__all__ = ["TARGETS", "Target"]

Records = Callable[[], Iterable[v3.EpisodeRecord]]


class Target(Protocol):
    """A version to write.

    Attributes:
        version: Its ``codebase_version``.
        list_entry: What lists are called in the metadata of data files that is for `datasets`.
    """

    version: str
    list_entry: str

    def path(self, stream: str, number: int) -> str:
        """Return the path of a stream's file ``number``, counted from 0, below the dataset."""

    def info(
        self, info: Mapping[str, Any], totals: Totals, options: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return ``info.json``, given the source's and the options of a manifest."""

    def write_episodes(self, root: Path, episodes: Records, *, fps: Fraction) -> list[str]:
        """Write what is said of each episode, and its statistics; return the files, in order.

        Args:
            episodes: Gives the records in order, the same ones each time.
            fps: The rate at which frames lie in video files.
        """

    def write_tasks(self, root: Path, tasks: Sequence[tuple[int, str]]) -> list[str]:
        """Write the tasks; return the files."""


class _V3:
    version = "v3.0"
    list_entry = "List"

    def path(self, stream: str, number: int) -> str:
        return v3.output_path(stream, number)

    def info(
        self, info: Mapping[str, Any], totals: Totals, options: Mapping[str, Any]
    ) -> dict[str, Any]:
        return v3.converted_info(
            info,
            totals,
            data_file_size_in_mb=options["data_file_size_in_mb"],
            video_file_size_in_mb=options["video_file_size_in_mb"],
            has_videos=any(ft.get("dtype") == "video" for ft in info["features"].values()),
        )

    def write_episodes(self, root: Path, episodes: Records, *, fps: Fraction) -> list[str]:
        return v3.write_episodes(root, episodes, fps=fps)

    def write_tasks(self, root: Path, tasks: Sequence[tuple[int, str]]) -> list[str]:
        v3.write_tasks(root, tasks)
        return [v3.TASKS_PATH]


class _V21:
    version = v2.WRITTEN_VERSION
    # The library that LeRobot 0.3.3 runs with knows no other name.
    list_entry = "Sequence"

    def path(self, stream: str, number: int) -> str:
        return v2.output_path(stream, number)

    def info(
        self,
        info: Mapping[str, Any],
        totals: Totals,
        options: Mapping[str, Any],  # noqa: ARG002 - no file holds several episodes
    ) -> dict[str, Any]:
        return v2.converted_info(info, totals)

    def write_episodes(self, root: Path, episodes: Records, *, fps: Fraction) -> list[str]:  # noqa: ARG002
        rows = ((each.episode_index, each.length, each.legacy, each.stats) for each in episodes())
        return v2.write_episodes(root, rows)

    def write_tasks(self, root: Path, tasks: Sequence[tuple[int, str]]) -> list[str]:
        v2.write_tasks(root, tasks)
        return [v2.TASKS_PATH]


TARGETS: Mapping[str, Target] = {target.version: target for target in (_V3(), _V21())}
"""Every version that can be written, by its ``codebase_version``."""
