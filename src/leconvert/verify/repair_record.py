"""``meta/repairs.json`` of a result: what the comparison then expects must be of its source."""

from __future__ import annotations

from collections.abc import Iterator

from leconvert.repairs import Repairs
from leconvert.source import EpisodeLines
from leconvert.source.info import DatasetInfo
from leconvert.tables.paths import REPAIRS_PATH
from leconvert.verify.difference import Difference

__all__ = ["compare_repairs"]


def compare_repairs(
    declared: Repairs, expected: Repairs | None, info: DatasetInfo, lines: EpisodeLines
) -> Iterator[Difference]:
    """Yield where a result tells of repairs that were not made, or that nobody could make.

    Args:
        declared: What the result says of itself.
        expected: What the conversion was told to change; None where nobody knows.
        info: The source's ``info.json``.
        lines: Its ``episodes.jsonl``.
    """
    if expected is not None and declared != expected:
        yield Difference("repairs", REPAIRS_PATH, str(expected), str(declared))
    features = {*info.features, *declared.added_columns}
    named = [*declared.dropped_features, *declared.computed_stats]
    strange = sorted({name for name in named if name not in features})
    if strange:
        yield Difference("repaired features", REPAIRS_PATH, "the source's", ", ".join(strange))
    episodes = set(lines.episode_index.tolist())
    dropped = [dropped.episode for dropped in declared.dropped_episodes]
    lost = [episode for episode in dropped if episode not in episodes]
    if lost:
        said = ", ".join(map(str, lost))
        yield Difference("episodes left out", REPAIRS_PATH, "some of the source", said)
