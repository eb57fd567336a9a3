"""The output of a conversion: the paths of a version's files, and the writers of its tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from leconvert.dataset.formats import v2, v3
from leconvert.dataset.formats.dataset import Dataset, Totals
from leconvert.model.values import DATA_STREAM, OVERLAY
from leconvert.model.versions import V3_VERSION
from leconvert.support.errors import UsageError

Records = Callable[[], Iterable[v3.EpisodeRecords]]


@dataclass(frozen=True)
class Target:
    """A version to write.

    Attributes:
        version: Its ``codebase_version``.
        list_entry: The name of lists in the metadata of data files for `datasets`.
        names: The names of its files.
    """

    version: str
    list_entry: str
    names: v3.FileNames

    def info(
        self, info: Mapping[str, Any], totals: Totals, options: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return ``info.json``, from the source's and the options of a manifest."""
        if self.version != V3_VERSION:
            return v2.converted_info(info, totals)
        return v3.converted_info(
            info,
            totals,
            data_file_size_in_mb=options["data_file_size_in_mb"],
            video_file_size_in_mb=options["video_file_size_in_mb"],
            has_videos=any(ft.get("dtype") == "video" for ft in info["features"].values()),
            names=self.names,
        )

    def write_episodes(self, root: Path, episodes: Records, *, fps: Fraction) -> list[str]:
        """Write the record and statistics of each episode; return the files, in order."""
        if self.version == V3_VERSION:
            return v3.write_episodes(root, episodes, fps=fps, names=self.names)
        blocks = ((each.episode_index, each.length, each.legacy, each.stats) for each in episodes())
        return v2.write_episodes(root, blocks)

    def write_tasks(self, root: Path, tasks: Sequence[tuple[int, str]]) -> list[str]:
        """Write the tasks; return the paths of the files."""
        if self.version == V3_VERSION:
            v3.write_tasks(root, tasks)
            return [v3.TASKS_PATH]
        v2.write_tasks(root, tasks)
        return [v2.TASKS_PATH]


_V3 = Target(V3_VERSION, "List", v3.USUAL_NAMES)
# The library of LeRobot 0.3.3 knows no other name of lists.
_V21 = Target(
    v2.WRITTEN_VERSION,
    "Sequence",
    v3.FileNames(
        v2.in_v3_words(v2.DATA_PATH_TEMPLATE),
        v2.in_v3_words(v2.VIDEO_PATH_TEMPLATE),
        counts_on=True,
    ),
)
TARGETS: Mapping[str, Target] = {target.version: target for target in (_V3, _V21)}
"""Every version that can be written, by its ``codebase_version``."""


# v3.0 with the file names of a v2.x dataset.


def v3_target(info: Mapping[str, Any]) -> Target:
    """Return the target of an existing v3.0 result, from its ``info.json``."""
    return replace(_V3, names=v3.names_of(info))


def _overlay_target(dataset: v2.Dataset, num_episodes: int) -> Target:
    """Return the target for v3.0 around the unchanged files of a v2.x dataset.

    Raises:
        UsageError: LeRobot could not read these files by v3.0's names.
    """
    data, video = dataset.paths.v3_templates
    info = {"data_path": data, "video_path": video, "chunks_size": dataset.declared.chunks_size}
    names = v3.names_of(info)
    if names.data_path != data or (video is not None and names.video_path != video):
        raise _untranslatable(dataset, "LeRobot's reader of v3.0 does not accept")
    first, last = (names.path(DATA_STREAM, number) for number in (0, num_episodes - 1))
    if len(first) != len(last):
        # LeRobot reads tables in the order of their names as text.
        raise _untranslatable(dataset, "do not sort in the order of the episodes")
    return replace(_V3, names=names)


def _untranslatable(dataset: v2.Dataset, what: str) -> UsageError:
    paths = [dataset.declared.data_path, dataset.declared.video_path]
    templates = " or ".join(path for path in paths if path is not None)
    return UsageError(
        f"The files of {dataset.root} are named by {templates}, which {what}.",
        path=str(dataset.root),
        next_step="Use --layout episode-files, which gives the files the usual names.",
    )


def target_of(to: str, layout: str, dataset: Dataset, num_episodes: int) -> Target:
    """Return the target of a conversion of one or more datasets."""
    if layout == OVERLAY and isinstance(dataset, v2.Dataset):
        return _overlay_target(dataset, num_episodes)
    return TARGETS[to]
