"""Every kind of finding: its code, how bad it is, and what helps.

``docs/reference/findings.md`` shows both tables to users.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from leconvert.model.values import Finding
from leconvert.support.errors import UsageError
from leconvert.support.text import GET_AGAIN

__all__ = [
    "DROP",
    "SOURCE_CATALOGUE",
    "TASKS_FROM_EPISODES",
    "V3_CATALOGUE",
    "Kind",
    "all_remedies",
    "check_accepted",
    "found",
    "lossless_remedy",
    "shortened",
]


# ------------------------------------------------------------------------------------------------
# What the scan can say about a source, v2.x or v3.0.


DROP = "--on-bad-episode drop"
TASKS_FROM_EPISODES = "--tasks-from episodes"


class Kind(NamedTuple):
    """One kind of finding.

    Attributes:
        code: Its stable name.
        severity: ``error``, ``warning`` or ``info``, where the case does not say otherwise.
        meaning: What was seen, or what it means for whoever loads the dataset, in one line.
        repairs: The flags that repair it, those first that lose nothing. Errors of single episodes
            can always be left out with their episode (`DROP`), those of a camera with it.
        acceptable: Whether ``--accept`` makes a warning of the error: the conversion can do
            without the repair, and the result is as good or bad as the source.
        remedy: What helps and loses nothing: it is told before the flags.
    """

    code: str
    severity: str
    meaning: str
    repairs: tuple[str, ...] = ()
    acceptable: bool = False
    remedy: str | None = None


_RESTORE_BOTH = f"{GET_AGAIN}, and the table of episodes with it."
_RESTORE_PLACES = (
    "The table of episodes names a wrong file or time: restore it from another copy of the dataset."
)

_SOURCE_KINDS = (
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
    # Several sources.
    Kind(
        "robot-type",
        "error",
        "Datasets that are merged are of different robots; accepted, the result says the first's.",
        acceptable=True,
    ),
    Kind(
        "merged-file",
        "warning",
        "A file that would come along is left behind, since an earlier dataset of the merge has "
        "one of the same name.",
    ),
    Kind(
        "merged-splits",
        "info",
        "A dataset of a merge has other splits than one `train` of all its episodes; the result "
        "has that one, as LeRobot's own merge writes it.",
    ),
    Kind(
        "merged-quantiles",
        "info",
        "Some datasets of a merge have statistics with quantiles, others have none; the result has "
        "none of all episodes, which policies such as pi0.5 need.",
        ("--quantiles",),
    ),
    Kind(
        "quantile-bounds",
        "info",
        "Quantiles of pictures are copied with the statistics of episodes. Those of all episodes "
        "do not follow from them, and to decode the pictures takes long: `meta/stats.json` has the "
        "least of those up to the median, and the greatest of the others.",
        ("--quantiles",),
    ),
    # Files of an episode.
    Kind(
        "missing-file",
        "error",
        "A file of an episode is not there.",
        ("--drop-feature", DROP),
        remedy=f"{GET_AGAIN}.",
    ),
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
        remedy=f"{GET_AGAIN}.",
    ),
    Kind(
        "lfs-pointers",
        "error",
        "In place of files there are pointers of Git LFS: the dataset was cloned without it.",
        remedy="`git lfs pull` in the clone.",
    ),
    Kind(
        "row-count",
        "error",
        "A table has more or fewer rows than the episode's `length`.",
        (DROP,),
        remedy=_RESTORE_BOTH,
    ),
    Kind(
        "frame-count",
        "error",
        "A clip has more or fewer frames than the episode's `length`.",
        ("--drop-feature", DROP),
        remedy=_RESTORE_BOTH,
    ),
    Kind(
        "shared-frames",
        "error",
        "Two episodes of a v3.0 dataset are the same frames of a file.",
        ("--drop-feature", DROP),
        remedy=_RESTORE_PLACES,
    ),
    Kind(
        "no-keyframe",
        "error",
        "A clip, or an episode's part of a v3.0 file, does not begin with a keyframe, or needs "
        "frames of another episode, or for v2.1 any beside it, or to be trimmed lists keyframes at "
        "which no decoder can start: it cannot be cut out without encoding it again.",
        ("--drop-feature", DROP),
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
    # Which rows and frames are an episode's, in v3.0.
    Kind(
        "rows-by-column",
        "warning",
        "A data file has other rows than those of its episodes; the rows of each are found by the "
        "column `episode_index`, and other rows are left behind.",
    ),
    Kind(
        "frames-by-time",
        "info",
        "A video file has other frames than those of its episodes, as trimmed ones have; episodes "
        "are found by `from_timestamp`, and frames that none needs are left behind.",
    ),
    Kind(
        "from-timestamp",
        "warning",
        "`from_timestamp` is not where an episode begins by the count of frames, which decides.",
    ),
    Kind(
        "drifted-times",
        "info",
        "Frames of a video file lie 0.1 ms or more from their time, so that LeRobot refuses them; "
        "in the result all times are exact.",
    ),
    Kind(
        "episode-range",
        "warning",
        "`dataset_from_index`, `dataset_to_index` and `length` do not go together; the result has "
        "right ones.",
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
        "uneven-times",
        "error",
        "With `--to v2.1`: two timestamps of an episode are not 1 / fps apart to within 0.1 ms, so "
        "that LeRobot 0.3.3 does not open the dataset.",
        ("--retime", DROP),
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
        remedy=f"{GET_AGAIN}.",
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
        "A column is stored in another type than declared; the result declares the stored one. "
        "`frame_index`, `episode_index`, `index` and `task_index` that are stored as "
        "floating-point numbers become int64.",
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
    Kind(
        "feature-names",
        "warning",
        "A vector has more or fewer names than values, or two values have one name. LeRobot loads "
        "it; its replay and rollouts pair names with values and lose some. The names stay.",
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
    Kind(
        "beyond-v21",
        "error",
        "With `--to v2.1`: a feature that v2.1 has no form for: annotations in language columns, "
        "depth maps, sound. Left out, it stays in the source alone.",
        ("--drop-feature",),
    ),
    Kind("other-tracks", "warning", "Clips have audio or other tracks, which are left out."),
    Kind("codec-change", "info", "The codec changes within a camera; new files begin there."),
    Kind("remux", "info", "Clips cannot be joined as they lie; they are remuxed first."),
    Kind(
        "rewritten-file",
        "info",
        "With `--layout episode-files`, files that cannot serve v3.0 as they are; each of them is "
        "written anew, and all others are kept. With `--layout overlay`, and where files stay on "
        "the Hub without `--fetch-unfit`, they are errors.",
    ),
)

SOURCE_CATALOGUE: Mapping[str, Kind] = MappingProxyType({kind.code: kind for kind in _SOURCE_KINDS})


def check_accepted(codes: Sequence[str]) -> None:
    """Refuse codes that cannot be accepted."""
    acceptable = [kind.code for kind in _SOURCE_KINDS if kind.acceptable]
    for code in codes:
        kind = SOURCE_CATALOGUE.get(code)
        if kind is None:
            raise UsageError(
                f"--accept {code}: there is no such finding.",
                next_step=f"The findings are {', '.join(sorted(SOURCE_CATALOGUE))}.",
            )
        if kind.severity == "error" and not kind.acceptable:
            raise UsageError(
                f"--accept {code}: a dataset cannot be converted with it.",
                next_step=f"Use {' or '.join(kind.repairs) or 'another copy of the dataset'}; what "
                f"can be accepted is {', '.join(acceptable)}.",
            )


# ------------------------------------------------------------------------------------------------
# What `check` can say about a v3.0 dataset.
#
# An *error* makes LeRobot's loader raise, or return the wrong thing without raising. A *warning*
# costs time, or room, or makes one of LeRobot's tools stumble. An *info* is neither.


_SHOWN_A_KIND_AND_STREAM = 20

# What a command makes right is tried by tests/unit/dataset/check, finding by finding.
_REPAIR = "`leconvert repair DATASET` makes it right."
_REPAIR_STATS = (
    "`leconvert repair DATASET` adds up those of the episodes; where they have none, "
    "`leconvert repair DATASET --fill-stats` computes them."
)
_DROP_EPISODES = (
    "`leconvert repair DATASET --on-bad-episode drop` leaves its episodes out and keeps the rest, "
    "and `--drop-feature CAMERA` a camera."
)
_RESTORE = f"{GET_AGAIN}. Otherwise {_DROP_EPISODES}"
_RESTORE_TABLE = "Restore the table from another copy of the dataset."
_WRITE_ANEW = "`leconvert convert DATASET NEW` writes it anew without this."
_LEAVE_BEHIND = (
    "If an episode should have the file, restore meta/episodes from another copy of the dataset. "
    f"Otherwise {_WRITE_ANEW}"
)


_V3_KINDS = (
    # --- files ---
    Kind(
        "provenance",
        "warning",
        "`meta/provenance.parquet`, which says from which dataset each episode is, cannot be read, "
        "or is of other episodes than those of the dataset.",
        remedy=f"Nothing is loaded by it. {_WRITE_ANEW}",
    ),
    Kind(
        "missing-file",
        "error",
        "A file that the metadata names is not there.",
        remedy=_RESTORE,
    ),
    Kind(
        "unreadable-file",
        "error",
        "A file is truncated, damaged, or of another kind.",
        remedy=_RESTORE,
    ),
    Kind(
        "stray-data",
        "error",
        "A parquet file below data/ belongs to no episode; loaders read it all the same and every "
        "later row moves.",
        remedy=_LEAVE_BEHIND,
    ),
    Kind(
        "stray-file",
        "warning",
        "A file belongs to no episode; it only takes room.",
        remedy=_LEAVE_BEHIND,
    ),
    # --- meta/info.json ---
    Kind(
        "info-value",
        "error",
        "A value of info.json is missing or makes no sense.",
        remedy="Correct meta/info.json.",
    ),
    Kind(
        "totals",
        "error",
        "info.json counts other episodes, frames or tasks than there are; samplers go by it.",
        remedy=_REPAIR,
    ),
    Kind(
        "splits",
        "info",
        "A split is no range of episodes of this dataset; LeRobot 0.6.1 does not read splits.",
        remedy="Correct the split in meta/info.json.",
    ),
    Kind(
        "path-template",
        "error",
        "A path template cannot be filled in, or leads where loaders do not look.",
        remedy="Set LeRobot's own template in meta/info.json.",
    ),
    Kind(
        "feature",
        "error",
        "A feature is declared in a way that LeRobot cannot use.",
        remedy="Correct the feature in meta/info.json. "
        "`leconvert convert DATASET NEW` declares the columns as they are stored, and "
        "`leconvert repair DATASET --declare-features` those that are not declared.",
    ),
    Kind(
        "feature-names",
        "warning",
        "A visual feature has no names for its three axes; policies cannot tell where the channels "
        "are.",
        remedy='Set names to ["height", "width", "channels"] in meta/info.json.',
    ),
    # --- meta/tasks.parquet ---
    Kind(
        "tasks-layout",
        "error",
        "The text of a task is not the index of the pandas table, where readers take it from.",
        remedy=_RESTORE_TABLE,
    ),
    Kind(
        "tasks-order",
        "error",
        "A task's row is not its task_index; readers go by the row, so frames get the wrong task.",
        remedy="`leconvert repair DATASET` sorts or numbers its rows, as the tasks that "
        "meta/episodes lists demand. Where these fit neither, sort meta/tasks.parquet by "
        "task_index, from 0 without gaps.",
    ),
    Kind(
        "tasks-duplicate",
        "warning",
        "Two tasks have the same text; recording more episodes of it fails.",
        remedy="Merge them with LeRobot's modify_tasks.",
    ),
    # --- meta/episodes ---
    Kind(
        "no-episodes",
        "error",
        "There is no episode to load.",
        remedy="Record one, or convert a dataset that has some.",
    ),
    Kind(
        "episodes-column",
        "error",
        "meta/episodes lacks a column, or holds it as another type.",
        remedy=_RESTORE_TABLE,
    ),
    Kind(
        "episodes-null",
        "error",
        "A column that leads to files has no value for an episode.",
        remedy=_RESTORE_TABLE,
    ),
    Kind(
        "episode-order",
        "error",
        "An episode's row is not its index; readers go by the row and take another episode's.",
        remedy="`leconvert repair DATASET` sorts or numbers its rows, as dataset_from_index "
        "demands. Where that fits neither, sort meta/episodes by episode_index, from 0 without "
        "gaps, over all files in text order.",
    ),
    Kind(
        "episode-range",
        "error",
        "dataset_from_index, dataset_to_index and length do not go together.",
        remedy=_REPAIR,
    ),
    Kind(
        "file-order",
        "error",
        "Data files in the order of their names are not in the order of episodes, so that row "
        "numbers miss.",
        remedy=_WRITE_ANEW,
    ),
    Kind(
        "episodes-location",
        "warning",
        "meta/episodes/chunk_index or file_index does not name the file that holds the row; tools "
        "that edit datasets go by it.",
        remedy=_REPAIR,
    ),
    Kind(
        "episode-tasks",
        "warning",
        "The tasks that meta/episodes lists for an episode are not those of its rows.",
        remedy="`leconvert repair DATASET` lists the tasks that only rows have. Where "
        "meta/episodes lists one that no row has, set the right ones with LeRobot's modify_tasks.",
    ),
    # --- data files ---
    Kind(
        "data-columns",
        "error",
        "A data file has other columns than info.json declares.",
        remedy="`leconvert repair DATASET --declare-features` declares columns that info.json does "
        "not declare, and `--drop-feature NAME` leaves out what has no column.",
    ),
    Kind(
        "data-types",
        "error",
        "A column is stored as another type than info.json declares.",
        remedy="`leconvert convert DATASET NEW` declares the columns as they are stored.",
    ),
    Kind(
        "data-schema",
        "warning",
        "Data files have different schemas; readers that do not go by info.json refuse them.",
        remedy=_WRITE_ANEW,
    ),
    Kind(
        "image-metadata",
        "warning",
        "The file does not say that a column holds images; StreamingLeRobotDataset returns bytes.",
        remedy=_WRITE_ANEW,
    ),
    Kind(
        "row-groups",
        "warning",
        "Row groups are not one an episode; who wants one episode reads a whole group.",
        remedy="`leconvert convert DATASET NEW` writes the dataset anew, with one row group an "
        "episode.",
    ),
    Kind(
        "rows",
        "error",
        "A data file has more or fewer rows than its episodes.",
        remedy=f"{_RESTORE_BOTH} Otherwise {_DROP_EPISODES}",
    ),
    Kind(
        "index-column",
        "error",
        "index is not the row's place in the dataset.",
        remedy=_REPAIR,
    ),
    Kind(
        "episode-column",
        "error",
        "episode_index is not the episode that the row belongs to.",
        remedy=_REPAIR,
    ),
    Kind(
        "frame-column",
        "error",
        "frame_index does not count from 0 within the episode.",
        remedy=_REPAIR,
    ),
    Kind(
        "timestamp-column",
        "error",
        "timestamp is not frame_index / fps; video frames are looked up by it.",
        remedy="Correct fps in info.json if that is what is wrong; else "
        "`leconvert repair DATASET --retime` sets it so.",
    ),
    Kind(
        "task-column",
        "error",
        "task_index names no task.",
        remedy=f"Restore meta/tasks.parquet from another copy of the dataset. Otherwise "
        f"{_DROP_EPISODES}",
    ),
    # --- video files ---
    Kind(
        "video-frames",
        "error",
        "An episode ends beyond the last frame of its video file.",
        remedy=f"{_RESTORE_BOTH} Otherwise {_DROP_EPISODES}",
    ),
    Kind(
        "shared-frames",
        "error",
        "Two episodes are the same frames of a video file.",
        remedy="`leconvert repair DATASET` sets the times anew where a file has as many frames as "
        f"its episodes. {_RESTORE_PLACES} Otherwise {_DROP_EPISODES}",
    ),
    Kind(
        "frame-times",
        "error",
        "Frames lie 0.1 ms or more from the time at which LeRobot asks for them; it refuses them.",
        remedy="`leconvert repair DATASET` gives every frame its exact time.",
    ),
    Kind(
        "float32-reach",
        "error",
        "Frames are at their exact time, but LeRobot compares times in single precision and "
        "refuses them.",
        remedy="`leconvert convert DATASET NEW --layout streaming` cuts files that end before that "
        "happens.",
    ),
    Kind(
        "video-end",
        "warning",
        "to_timestamp is not where the episode ends; tools that cut episodes out go by it.",
        remedy=_REPAIR,
    ),
    Kind(
        "video-neighbours",
        "warning",
        "Episodes of a video file leave frames unused, or a pause between them.",
        remedy="`leconvert repair DATASET` closes pauses and sets times anew; frames that no "
        "episode has are left behind by `leconvert convert DATASET NEW`.",
    ),
    Kind(
        "video-keyframe",
        "warning",
        "An episode does not begin with a keyframe; it decodes only from the one before it.",
        remedy="`leconvert repair DATASET --on-bad-episode drop` leaves the episode out; else "
        "encode the videos again, with a keyframe where an episode begins.",
    ),
    Kind(
        "video-shape",
        "warning",
        "Frames have another height or width than info.json declares.",
        remedy="`leconvert convert DATASET NEW` declares what the files hold.",
    ),
    Kind(
        "video-codec",
        "warning",
        "A file has another codec than info.json declares.",
        remedy="`leconvert convert DATASET NEW` declares what the files hold.",
    ),
    Kind(
        "video-index",
        "info",
        "The MP4 is of a kind that is only read packet by packet, which is slow.",
        remedy="`leconvert convert DATASET NEW` writes plain MP4 files.",
    ),
    Kind(
        "streaming-video",
        "info",
        "LeRobot 0.6.1's StreamingLeRobotDataset asks for frames by their time in the whole "
        "dataset, which only fits a camera with one video file.",
        remedy="Stream with a later LeRobot, or load with LeRobotDataset.",
    ),
    # --- statistics ---
    Kind(
        "stats-missing",
        "warning",
        "A feature has no statistics; policies that normalise it fail.",
        remedy=_REPAIR_STATS,
    ),
    Kind(
        "stats-shape",
        "error",
        "A statistic has a shape that does not fit its feature.",
        remedy=_REPAIR_STATS,
    ),
    Kind(
        "stats-value",
        "warning",
        "A statistic is impossible: not finite, min above mean or max, std below 0, or an image "
        "beyond [0, 1].",
        remedy=_REPAIR_STATS,
    ),
    Kind(
        "stats-aggregate",
        "warning",
        "stats.json is not the aggregate of the statistics that meta/episodes holds.",
        remedy=_REPAIR_STATS,
    ),
    Kind(
        "episode-stats",
        "warning",
        "meta/episodes has no usable statistics of a feature for every episode; merging and "
        "editing fail.",
        remedy="`leconvert repair DATASET --fill-stats` computes them from the data.",
    ),
)

V3_CATALOGUE: Mapping[str, Kind] = MappingProxyType({kind.code: kind for kind in _V3_KINDS})


def found(
    code: str,
    message: str,
    *,
    episode: int | None = None,
    stream: str | None = None,
    path: str | None = None,
    severity: str | None = None,
    remedy: str | None = None,
) -> Finding:
    """Return a finding with what its kind says; arguments that are given take precedence."""
    kind = V3_CATALOGUE[code]
    if kind.remedy == _RESTORE and path is not None and path.startswith("meta/"):
        remedy = _REPAIR_STATS if path == "meta/stats.json" else _RESTORE_TABLE
    return Finding(
        code,
        severity or kind.severity,
        message,
        episode=episode,
        stream=stream,
        path=path,
        remedy=remedy or kind.remedy,
    )


def lossless_remedy(code: str, remedy: str | None = None) -> str | None:
    """Return what loses nothing and is told before a flag that does; None where there is nothing.

    Args:
        code: The code of an error in a source.
        remedy: Its remedy: a flag, or a sentence of `check`, which says itself what loses nothing.
    """
    is_sentence = remedy is not None and not remedy.startswith("--")
    kind = SOURCE_CATALOGUE.get(code)
    return None if kind is None or is_sentence else kind.remedy


def all_remedies(code: str, remedy: str | None) -> str:
    """Return both in one line; empty where nothing helps."""
    return " Or ".join(filter(None, (lossless_remedy(code, remedy), remedy)))


def shortened(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Keep the first findings of each code, severity and stream, and say how many more there are.

    A dataset of a hundred thousand broken files has one thing wrong with it, not a hundred
    thousand; memory is bounded by what is kept.
    """
    counts: Counter[tuple[str, str, str | None]] = Counter()
    kept: list[Finding] = []
    for finding in findings:
        key = (finding.code, finding.severity, finding.stream)
        counts[key] += 1
        if counts[key] <= _SHOWN_A_KIND_AND_STREAM:
            kept.append(finding)
    for (code, severity, stream), count in counts.items():
        if count > _SHOWN_A_KIND_AND_STREAM:
            more = f"{count - _SHOWN_A_KIND_AND_STREAM:,} more findings of this kind."
            kept.append(Finding(code, severity, more, stream=stream))
    return tuple(kept)
