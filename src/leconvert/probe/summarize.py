"""Many results as a few lines: repeats become medians, ranks of one node are added up.

What goes wrong in ways that a figure alone does not show is flagged:

==================  =============================================================================
``thrash``          decoders are opened again and again (under half of all look-ups find one) and
                    the slowest batches take over four times as long as the mean one
``idle workers``    a worker made less than half of an even share
``below target``    fewer decoded frames a second on a node than training wants: 120 in *single*,
                    320 in *sarm*
``wrong frames``    ``--check`` found frames that are not the right ones, or cannot be read
==================  =============================================================================
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["TARGET_FRAMES_PER_S", "SetUp", "SummaryLine", "flags_of", "summarize"]

TARGET_FRAMES_PER_S: Mapping[str, float] = {"single": 120.0, "sarm": 320.0}
"""Decoded frames a second that a node should load, by mode."""

# Options that make another set-up, beside those that have a column of their own, and what they are
# where nobody says.
_OTHER_OPTIONS: Mapping[str, object] = {
    "data_files_root": None,
    "revision": None,
    "deltas": None,
    "max_episodes": None,
    "num_partitions": 1,
    "world_size": 1,
    "prefetch_factor": 2,
    "episode_pool_size": None,
    "max_buffer_input_shards": None,
    "video_decoder_cache_size": None,
    "video_fetch_workers": None,
    "device": "cpu",
}
_LOW_HIT_RATE = 0.5
_SLOW_TIMES_THE_MEAN = 4.0
_IDLE_SHARE = 0.5

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True, order=True)
class SetUp:
    """What was measured, and where: the results of one set-up become one line.

    Attributes:
        dataset: Where it is.
        host: The node.
        scenario: Its name, or an empty string.
        source: The label.
        loader: The loader.
        mode: The mode.
        batch_size: Samples of a batch.
        num_workers: Workers of one process.
        device: What decoded.
        others: Other options that make a set-up of its own, as ``prefetch-factor 4``.
    """

    dataset: str
    host: str
    scenario: str
    source: str
    loader: str
    mode: str
    batch_size: int
    num_workers: int
    device: str
    others: str


@dataclass(frozen=True, slots=True)
class SummaryLine(SetUp):
    """All results of one set-up on one node.

    Attributes:
        ranks: Processes on this node.
        runs: Repeats of each, at least.
        samples_per_s: Median, added up over the ranks; likewise the next two.
        frames_per_s_node: Decoded camera frames a second on this node.
        peak_pss_gb: Memory of all processes; None where unknown.
        first_batch_latency_s: Median of all results; likewise all that follow.
        p50_batch_wait_ms: Median wait for a batch.
        p99_batch_wait_ms: A wait that one batch in a hundred exceeds.
        p50_sample_latency_ms: Share of a sample, median.
        p95_sample_latency_ms: Likewise, one in twenty.
        p99_sample_latency_ms: Likewise, one in a hundred.
        shuffle_randomness_frac: Distinct episodes in a batch over its size.
        hit_rate: Of the decoder caches; None where unknown.
        pct_of_limit: Share of the random-access decode limit; None where it was not measured.
        wrong_frames: The most that any check found; None where none was made.
        flags: See the module.
    """

    ranks: int
    runs: int
    samples_per_s: float
    frames_per_s_node: float
    peak_pss_gb: float | None
    first_batch_latency_s: float | None
    p50_batch_wait_ms: float | None
    p99_batch_wait_ms: float | None
    p50_sample_latency_ms: float | None
    p95_sample_latency_ms: float | None
    p99_sample_latency_ms: float | None
    shuffle_randomness_frac: float | None
    hit_rate: float | None
    pct_of_limit: float | None
    wrong_frames: int | None
    flags: tuple[str, ...]

    @property
    def label(self) -> str:
        """What tells this line from the others, in a few words."""
        name = f"{self.scenario} {self.loader}" if self.scenario else self.loader
        label = f"{name} {self.mode} b{self.batch_size} w{self.num_workers} {self.device}"
        return f"{label}, {self.others}" if self.others else label

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-serialisable mapping."""
        return {**asdict(self), "flags": ", ".join(self.flags)}


def summarize(documents: Iterable[Document]) -> list[SummaryLine]:
    """Return a line for each set-up and node among the documents of kind ``run``, sorted."""
    groups: dict[SetUp, list[Document]] = {}
    for document in documents:
        if document["kind"] == "run":
            groups.setdefault(_set_up(document), []).append(document)
    return [_line(set_up, group) for set_up, group in sorted(groups.items(), key=_by_set_up)]


def flags_of(document: Document) -> tuple[str, ...]:
    """Return what is wrong with one result; see the module."""
    flags = []
    hit_rate = (document.get("video_decoder_cache") or {}).get("hit_rate")
    waits, batches = document.get("p99_batch_wait_ms"), document.get("batches_measured")
    if hit_rate is not None and hit_rate < _LOW_HIT_RATE and waits and batches:
        mean_ms = document["steady_window_s"] / batches * 1000
        if waits > _SLOW_TIMES_THE_MEAN * mean_ms:
            flags.append("thrash")
    made = document.get("samples_per_worker") or ()
    if len(made) > 1 and min(made) < _IDLE_SHARE * sum(made) / len(made):
        flags.append("idle workers")
    if document.get("wrong_frames") or document.get("unreadable_frames"):
        flags.append("wrong frames")
    return tuple(flags)


def _set_up(document: Document) -> SetUp:
    options = document["options"]
    return SetUp(
        dataset=document["dataset"]["root"],
        host=document["host"]["name"],
        scenario=options["scenario"] or "",
        source=options["source"] or "",
        loader=options["loader"],
        mode=options["mode"],
        batch_size=options["batch_size"],
        num_workers=options["num_workers"],
        device=options["decode_device"],
        others=", ".join(
            f"{name.replace('_', '-')} {options[name]}"
            for name, usual in _OTHER_OPTIONS.items()
            if options.get(name) not in {None, usual}
        ),
    )


def _by_set_up(item: tuple[SetUp, object]) -> SetUp:
    return item[0]


def _line(set_up: SetUp, group: Sequence[Document]) -> SummaryLine:
    by_rank: dict[tuple[int, int], list[Document]] = {}
    for document in group:
        options = document["options"]
        # Where nodes load files of their own, ranks are counted on each.
        rank = options.get("partition_index", 0), options["rank"]
        by_rank.setdefault(rank, []).append(document)
    frames = _sum_of_ranks(by_rank, "decoded_frames_per_s") or 0.0
    flags = dict.fromkeys(flag for document in group for flag in flags_of(document))
    if frames < TARGET_FRAMES_PER_S.get(set_up.mode, 0.0) and _cameras(group):
        flags["below target"] = None
    wrong = [document["wrong_frames"] for document in group if document.get("check")]
    return SummaryLine(
        **asdict(set_up),
        ranks=len(by_rank),
        runs=min(map(len, by_rank.values())),
        samples_per_s=_sum_of_ranks(by_rank, "samples_per_s") or 0.0,
        frames_per_s_node=frames,
        peak_pss_gb=_sum_of_ranks(by_rank, "peak_pss_gb"),
        first_batch_latency_s=_median(group, "first_batch_latency_s"),
        p50_batch_wait_ms=_median(group, "p50_batch_wait_ms"),
        p99_batch_wait_ms=_median(group, "p99_batch_wait_ms"),
        p50_sample_latency_ms=_median(group, "p50_sample_latency_ms"),
        p95_sample_latency_ms=_median(group, "p95_sample_latency_ms"),
        p99_sample_latency_ms=_median(group, "p99_sample_latency_ms"),
        shuffle_randomness_frac=_median(group, "shuffle_randomness_frac"),
        hit_rate=_median([d.get("video_decoder_cache") or {} for d in group], "hit_rate"),
        pct_of_limit=_sum_of_ranks(by_rank, "pct_of_limit"),
        wrong_frames=max(wrong, default=None),
        flags=tuple(flags),
    )


def _cameras(group: Sequence[Document]) -> bool:
    return any(document["dataset"]["cameras"] for document in group)


def _median(group: Iterable[Document], key: str) -> float | None:
    values = [document[key] for document in group if document.get(key) is not None]
    return statistics.median(values) if values else None


def _sum_of_ranks(by_rank: Mapping[Any, Sequence[Document]], key: str) -> float | None:
    """Return the sum over the ranks of each rank's median; None if one of them has no value."""
    medians = [_median(group, key) for group in by_rank.values()]
    return None if None in medians else sum(median for median in medians if median is not None)
