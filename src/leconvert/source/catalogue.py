"""Every finding about a source: its code, how bad it is, and the flag that helps.

``docs/findings.md`` shows this table to users.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from leconvert.errors import UsageError

__all__ = ["CATALOGUE", "DROP", "TASKS_FROM_EPISODES", "Kind", "check_accepted"]

DROP = "--on-bad-episode drop"
TASKS_FROM_EPISODES = "--tasks-from episodes"


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of finding.

    Attributes:
        code: Its stable name.
        severity: ``error``, ``warning`` or ``info``, where the case does not say otherwise.
        meaning: What was seen, in one line.
        repairs: The flags that repair it, those first that lose nothing. Errors of single episodes
            can always be left out with their episode (`DROP`), those of a camera with it.
        acceptable: Whether ``--accept`` makes a warning of the error: the conversion can do
            without the repair, and the result is as good or bad as the source.
    """

    code: str
    severity: str
    meaning: str
    repairs: tuple[str, ...] = ()
    acceptable: bool = False


_KINDS = (
    # The dataset.
    Kind(
        "codebase-version",
        "error",
        "`codebase_version` is not there, or is none of v2.x although the files are.",
        ("--assume-version v2.1",),
    ),
    Kind(
        "frame-rate",
        "error",
        "The timestamps of all episodes step at another rate than `fps`. A warning in datasets "
        "without cameras.",
        ("--assume-fps", "--retime"),
    ),
    Kind(
        "template-names",
        "info",
        "`data_path` or `video_path` has a placeholder under another name than LeRobot's.",
    ),
    # Files of an episode.
    Kind("missing-file", "error", "A file of an episode is not there.", ("--drop-feature", DROP)),
    Kind(
        "misplaced-file",
        "error",
        "A file of an episode lies elsewhere than its template says, or may be one of two.",
        ("--locate-files", "--drop-feature", DROP),
    ),
    Kind(
        "unreadable-file",
        "error",
        "A file is damaged, empty, or no file.",
        ("--drop-feature", DROP),
    ),
    Kind(
        "row-count",
        "error",
        "A table has more or fewer rows than the episode's `length`.",
        (DROP,),
    ),
    Kind(
        "frame-count",
        "error",
        "A clip has more or fewer frames than the episode's `length`.",
        ("--drop-feature", DROP),
    ),
    Kind(
        "no-keyframe", "error", "A clip does not begin with a keyframe.", ("--drop-feature", DROP)
    ),
    Kind(
        "schema-mismatch",
        "error",
        "A table has other columns than those of the other episodes.",
        (DROP,),
    ),
    Kind(
        "path-template",
        "error",
        "`data_path` or `video_path` has placeholders that LeRobot does not know, or names no file "
        "that exists.",
    ),
    Kind(
        "stray-file",
        "warning",
        "Files below the folders of data and videos belong to no episode, or links lead out of the "
        "dataset; they are left behind.",
    ),
    # Numbers of episodes and rows.
    Kind(
        "episode-gap",
        "error",
        "The indices of `episodes.jsonl` do not run from 0 without gaps; the repair numbers the "
        "episodes anew.",
        (DROP,),
    ),
    Kind("empty-episode", "error", "An episode has no frames.", (DROP,)),
    Kind(
        "missing-column",
        "warning",
        "No table has one of the columns that v3.0 demands; it is computed. An error for "
        "`task_index` where there are several tasks.",
        (TASKS_FROM_EPISODES,),
    ),
    Kind(
        "timestamps",
        "error",
        "A row's `timestamp` is 0.1 ms or more from `frame / fps`, so LeRobot loads no video frame "
        "or a wrong one, or is empty. The former is a warning in datasets without cameras.",
        ("--assume-fps", "--retime"),
        acceptable=True,
    ),
    Kind(
        "frame-index",
        "error",
        "The column `frame_index` does not count the episode's rows from 0.",
        ("--reindex",),
        acceptable=True,
    ),
    Kind(
        "episode-index",
        "error",
        "The column `episode_index` differs from the number in the file's name.",
        ("--reindex",),
    ),
    Kind(
        "global-index",
        "error",
        "The column `index` does not count the dataset's rows from 0.",
        ("--reindex",),
    ),
    # Tasks.
    Kind(
        "missing-tasks",
        "error",
        "`tasks.jsonl` is not there, or lists none.",
        (TASKS_FROM_EPISODES,),
    ),
    Kind("task-gap", "error", "Task indices do not run from 0 without gaps.", ("--remap-tasks",)),
    Kind("task-duplicate", "error", "A task is listed more than once.", ("--remap-tasks",)),
    Kind("task-conflict", "error", "One task index stands for two different texts."),
    Kind(
        "task-index",
        "error",
        "Rows name a task that `tasks.jsonl` does not list, or none.",
        (TASKS_FROM_EPISODES, DROP),
    ),
    Kind(
        "task-mismatch",
        "warning",
        "Rows name a task that `episodes.jsonl` does not list for the episode, or that lists a "
        "task which `tasks.jsonl` lacks. An error where all rows have one task, and the episodes "
        "several.",
        (TASKS_FROM_EPISODES,),
        acceptable=True,
    ),
    Kind(
        "annotation-tasks",
        "warning",
        "Tasks are numbered anew, and a column `annotation.*` that may hold task indices is not "
        "named in `meta/modality.json`; it stays as it is.",
    ),
    Kind(
        "gr00t-stats",
        "warning",
        "Episodes are left out that `meta/stats_gr00t.json` or `relative_stats*.json` describe.",
    ),
    Kind(
        "modality",
        "warning",
        "`meta/modality.json` names a feature, or values of one, that the dataset does not have; "
        "what is left out with `--drop-feature` is left out of it.",
    ),
    Kind("several-tasks", "info", "Episodes have more than one task."),
    # Features.
    Kind(
        "phantom-feature",
        "error",
        "A feature is declared, but no episode has data for it.",
        ("--drop-feature",),
    ),
    Kind(
        "undeclared-column",
        "error",
        "The tables have a column that `info.json` does not declare.",
        ("--declare-features", "--drop-feature"),
    ),
    Kind(
        "undeclared-camera",
        "warning",
        "There are videos of a camera that `info.json` does not declare; they are left behind.",
    ),
    Kind(
        "dtype-mismatch",
        "warning",
        "A column is stored in another type than declared; the result declares the stored one.",
    ),
    Kind(
        "shape-mismatch",
        "warning",
        "A feature has another shape than declared, or the declared one makes no sense; the result "
        "declares what is stored.",
    ),
    Kind(
        "codec-mismatch",
        "warning",
        "Clips have another codec, pixel format or frame rate than declared; the result declares "
        "what most have.",
    ),
    Kind(
        "wrapped-scalar",
        "error",
        "A column holds lists of one value, which LeRobot cannot load; the repair makes them the "
        "value.",
        ("--unwrap-scalars", "--drop-feature"),
    ),
    Kind(
        "unloadable-feature",
        "error",
        "LeRobot cannot load a column as it is stored, whatever is declared: bytes, dates, lists "
        "of texts, lists of different lengths or with empty values.",
        ("--drop-feature",),
    ),
    Kind(
        "image-paths",
        "error",
        "Images are the paths of files, which no v3.0 dataset holds.",
    ),
    Kind(
        "video-info",
        "info",
        "A camera is described under `video_info` instead of `info`, or by what is no table.",
    ),
    Kind("nested-names", "info", "The names of a feature are nested, or no list."),
    Kind("null-names", "info", "A vector feature has no names."),
    # Statistics and totals.
    Kind(
        "missing-stats",
        "error",
        "Statistics of an episode, or of a feature, are not there, or no numbers in its shape.",
        ("--fill-stats", "--recompute-stats"),
    ),
    Kind(
        "stale-stats",
        "warning",
        "Statistics differ from the data.",
        ("--fill-stats", "--recompute-stats"),
    ),
    Kind(
        "stray-stats",
        "warning",
        "`episodes_stats.jsonl` has episodes that `episodes.jsonl` does not list.",
    ),
    Kind(
        "computed-stats",
        "info",
        "v2.0 has no statistics of episodes; they are computed.",
    ),
    Kind(
        "uncomputable-stats",
        "error",
        "Statistics are to be computed, and a column has empty values, lists of different lengths, "
        "or no image files.",
        ("--drop-feature",),
    ),
    Kind("stale-total", "warning", "Totals in `info.json` are wrong; the result has right ones."),
    # Clips.
    Kind(
        "frame-times",
        "warning",
        "A clip shows frames half a frame or more from `frame / fps`; they are placed by their "
        "order.",
    ),
    Kind(
        "float32-reach",
        "warning",
        "Frames of the result will stand so late in their file that LeRobot, which compares times "
        "in single precision, refuses them.",
        ("--layout streaming",),
    ),
    Kind(
        "rotated-frames",
        "warning",
        "Clips are to be shown rotated: torchcodec rotates their frames, PyAV does not. They stay "
        "as they are.",
    ),
    Kind("other-tracks", "warning", "Clips have audio or other tracks, which are left out."),
    Kind("codec-change", "info", "The codec changes within a camera; new files begin there."),
    Kind("remux", "info", "Clips cannot be joined as they lie; they are remuxed first."),
)

CATALOGUE: Mapping[str, Kind] = MappingProxyType({kind.code: kind for kind in _KINDS})


def check_accepted(codes: Sequence[str]) -> None:
    """Refuse codes that cannot be accepted.

    Raises:
        UsageError: A code is unknown, or of an error that the conversion cannot do without.
    """
    acceptable = [kind.code for kind in _KINDS if kind.acceptable]
    for code in codes:
        kind = CATALOGUE.get(code)
        if kind is None:
            raise UsageError(
                f"--accept {code}: there is no such finding.",
                next_step=f"The findings are {', '.join(sorted(CATALOGUE))}.",
            )
        if kind.severity == "error" and not kind.acceptable:
            raise UsageError(
                f"--accept {code}: a dataset cannot be converted with it.",
                next_step=f"Use {' or '.join(kind.repairs) or 'another copy of the dataset'}; what "
                f"can be accepted is {', '.join(acceptable)}.",
            )
