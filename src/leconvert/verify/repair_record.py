"""``meta/repairs.json`` of a result: what the comparison then expects must be of its source."""

from __future__ import annotations

from collections.abc import Iterator, Set
from contextlib import suppress

import pyarrow as pa

from leconvert import tables
from leconvert.errors import UnreadableSourceError
from leconvert.model import DATA_STREAM
from leconvert.repairs import SOURCE_VERSIONS, Repairs
from leconvert.source import EpisodeLines, SourcePaths
from leconvert.source.info import DatasetInfo, said_version
from leconvert.source.modality import read_modality, task_columns
from leconvert.tables.paths import REPAIRS_PATH
from leconvert.verify.difference import Difference

__all__ = ["compare_repairs"]


def compare_repairs(
    declared: Repairs,
    expected: Repairs | None,
    info: DatasetInfo,
    paths: SourcePaths,
    lines: EpisodeLines,
) -> Iterator[Difference]:
    """Yield where a result tells of repairs that were not made, or that nobody could make.

    Args:
        declared: What the result says of itself.
        expected: What the conversion was told to change; None where nobody knows.
        info: The source's ``info.json``.
        paths: Where its files are.
        lines: Its ``episodes.jsonl``.
    """
    if expected is not None and declared != expected:
        yield Difference("repairs", REPAIRS_PATH, str(expected), str(declared))
    version = info.raw.get("codebase_version")
    if (declared.assumed_version is None) != (version in SOURCE_VERSIONS):
        said = f"{said_version(version)[5:]}; read as {declared.assumed_version}"
        yield Difference("version", REPAIRS_PATH, "that of the source", said)
    for file in declared.located_files:
        # Only what is not where its template says is taken from elsewhere.
        template = paths.template_path(file.stream, file.episode)
        if (paths.root / template).exists():
            yield Difference("place of a file", REPAIRS_PATH, template, file.path, file.episode)
    indices = task_columns(
        read_modality(paths.root), _first_schema(paths, lines) if declared.task_columns else None
    )
    if not set(declared.task_columns) <= set(indices) or (
        declared.task_columns and declared.task_map is None
    ):
        said = ", ".join(declared.task_columns)
        yield Difference("columns of task indices", REPAIRS_PATH, str(indices), said)
    features = {*info.features, *declared.added_columns}
    unknown = set(declared.dropped_features) - features
    # A column that is not declared can be left out, too.
    unknown -= _stored(unknown, paths, lines)
    named = {*declared.computed_stats, *declared.unwrapped_columns}
    strange = sorted(unknown | (named - features))
    if strange:
        yield Difference("repaired features", REPAIRS_PATH, "the source's", ", ".join(strange))
    episodes = set(lines.episode_index.tolist())
    dropped = [dropped.episode for dropped in declared.dropped_episodes]
    lost = [episode for episode in dropped if episode not in episodes]
    if lost:
        said = ", ".join(map(str, lost))
        yield Difference("episodes left out", REPAIRS_PATH, "some of the source", said)


def _first_schema(paths: SourcePaths, lines: EpisodeLines) -> pa.Schema | None:
    for path in paths.absolute(DATA_STREAM, lines.episode_index.tolist()):
        with suppress(UnreadableSourceError):
            return tables.read_data_schema(path)
    return None


def _stored(names: Set[str], paths: SourcePaths, lines: EpisodeLines) -> set[str]:
    """Return which of some names are columns of the source's tables, mostly told by the first."""
    found: set[str] = set()
    for path in paths.absolute(DATA_STREAM, lines.episode_index.tolist()):
        if found == names:
            break
        # Nothing is known of a table that cannot be read; that it cannot is said elsewhere.
        with suppress(UnreadableSourceError):
            found |= names & set(tables.read_data_schema(path).names)
    return found
