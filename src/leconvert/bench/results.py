"""Results as files: a JSON document and a CSV file a measurement; tables and plots of many.

Every document begins with format and version. Its ``kind`` is ``run``, ``limit``, ``diagnose`` or
``resample``. ``docs/formats/probe-result.schema.json`` describes them all. Readers skip unknown
keys, and documents of a later version.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from typing import Any

from leconvert.support.errors import ProbeError, StorageError, UsageError
from leconvert.support.extras import missing_package
from leconvert.support.storage_errors import storage_error, storage_errors
from leconvert.support.values import dataclass
from leconvert.workdir.fs import replace_record
from leconvert.workdir.swap import nearest_above

FORMAT = "leconvert/probe"
VERSION = 1

Document = Mapping[str, Any]


def begin_document(kind: str) -> dict[str, Any]:
    """Return the keys that every document begins with."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "kind": kind,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def stem_of(document: Document) -> str:
    """Return the stem of a document's file names, from its options."""
    options = document["options"]
    if document["kind"] == "limit":
        stem = f"limit-{options['decode_device']}-p{options['processes']}"
    elif document["kind"] == "resample":
        stem = "-".join(
            [
                *("resample", document["set"]["source"], options["mode"], f"{options['hz']:g}hz"),
                *(*options["dtypes"], *options["devices"]),
                *(() if options["preload"] else ["no-preload"]),
            ]
        )
    else:
        device = options["decode_device"]
        if options["device"] != device:
            device = f"{device}-to-{options['device']}"
        stem = (
            f"{options['scenario'] or 'probe'}-{options['loader']}-{options['mode']}"
            f"-b{options['batch_size']}-w{options['num_workers']}-{device}"
            f"-r{options['rank']}of{options['world_size']}"
        )
    return stem.replace(":", "")  # of a device


def flattened(document: Document) -> dict[str, Any]:
    """Return a document as one row: nested keys joined by dots, lists as JSON text."""
    return dict(_leaves(document, ""))


def _leaves(node: Document, prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{name}.")
        elif isinstance(value, list | tuple):
            yield name, json.dumps(value)
        else:
            yield name, value


def csv_text(documents: Sequence[Document]) -> str:
    """Return documents as CSV: a column a key in the order of first appearance, a row each."""
    rows = [flattened(document) for document in documents]
    columns = dict.fromkeys(key for row in rows for key in row)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def check_results_dir(out_dir: Path) -> None:
    """Refuse a folder that no result can be written to, before a measurement that may take hours.

    Raises:
        StorageError: It is not a folder, or this user cannot write there.
    """
    place = nearest_above(out_dir.absolute() / "result")
    try:
        tempfile.TemporaryFile(dir=place).close()
    except OSError as error:
        raise storage_error(OSError(error.errno, error.strerror, str(place))) from error


def write_document(document: Document, out_dir: Path) -> list[Path]:
    """Write ``STEM.json`` and ``STEM.csv``, of resampling also ``STEM-table.csv``.

    If a name is taken, a number is added.
    """
    with storage_errors(out_dir):
        out_dir.mkdir(parents=True, exist_ok=True)
        path = _claimed(out_dir, stem_of(document))
    replace_record(path, (json.dumps(document, indent=2) + "\n").encode())
    tables = {path.with_suffix(".csv"): [document]}
    if document["kind"] == "resample":
        tables[path.with_name(f"{path.stem}-table.csv")] = _rows_with_ratios(document)
    for table, rows in tables.items():
        write_table(rows, table)
    return [path, *tables]


def write_table(documents: Sequence[Document], path: Path) -> None:
    """Write documents as one CSV file."""
    replace_record(path, csv_text(documents).encode())


def _claimed(out_dir: Path, stem: str) -> Path:
    """Create a file with a new name; ranks on several hosts may share a folder."""
    number = 1
    while True:
        path = out_dir / (f"{stem}.json" if number == 1 else f"{stem}-{number}.json")
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            number += 1
        else:
            return path


def read_results(paths: Iterable[Path]) -> Iterator[tuple[Path, Document]]:
    """Yield the documents among some JSON files, in order of path.

    Files of other formats, unfinished files and later versions are skipped.

    Raises:
        StorageError: A file cannot be read.
    """
    for path in sorted(paths):
        try:
            content = json.loads(path.read_bytes())
        except ValueError:
            continue
        except OSError as error:
            raise StorageError(
                f"{path} cannot be read: {error.strerror}.", path=str(path)
            ) from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            continue
        if content.get("version") == VERSION:
            yield path, content


def results_below(folder: Path) -> list[tuple[Path, Document]]:
    """Return all documents in a folder and the folders below it.

    Raises:
        UsageError: The folder does not exist.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder.", path=str(folder))
    return list(read_results(folder.rglob("*.json")))


# Many results as a few lines: repeats become medians, and ranks of one node are added up.
#
# Flags mark problems that a figure alone does not show:
#
# ==================  =============================================================================
# ``thrash``          decoders are opened again and again (under half of all look-ups find one) and
#                     the slowest batches take over four times as long as the mean one
# ``idle workers``    a worker made less than half of an even share
# ``below target``    fewer decoded frames a second on a node than training wants: 120 in *single*,
#                     320 in *sarm*
# ``runs disagree``   repeats differ by more than a fifth of their median
# ``wrong frames``    ``--check`` found frames that are not the right ones, or cannot be read
# ==================  =============================================================================


TARGET_FRAMES_PER_S: Mapping[str, float] = {"single": 120.0, "sarm": 320.0}
"""Decoded frames a second that a node should load, by mode."""

# Further options that define a set-up, with their defaults; others have a column of their own.
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
# Figures of a line that are medians of all results.
_MEDIANS = (
    "first_batch_latency_s", "p50_batch_wait_ms", "p99_batch_wait_ms", "p50_sample_latency_ms",
    "p95_sample_latency_ms", "p99_sample_latency_ms", "shuffle_randomness_frac",
)  # fmt: skip
_LOW_HIT_RATE = 0.5
_SLOW_TIMES_THE_MEAN = 4.0
_IDLE_SHARE = 0.5
_DISAGREE = "runs disagree"
_DISAGREEING_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class SummaryLine:
    """All results of one set-up on one node; the first ten fields say which."""

    dataset: str  # folder or URL of the dataset
    host: str  # the node
    scenario: str  # name of the scenario, or an empty string
    source: str  # label of the source
    loader: str  # the loader
    mode: str  # the mode
    batch_size: int  # samples of a batch
    num_workers: int  # workers of one process
    device: str  # the decoding device
    others: str  # further options that define a set-up, such as ``prefetch-factor 4``
    ranks: int  # processes on this node
    runs: int  # smallest number of repeats of a process
    samples_per_s: float  # median, added up over the ranks; so for the next two
    frames_per_s_node: float  # decoded camera frames a second on this node
    frames_per_s_low: float  # the same for the slowest repeat; the next for the fastest
    frames_per_s_high: float
    peak_pss_gb: float | None  # memory of all processes; None if not known
    first_batch_latency_s: float | None  # median of all results; so for all below
    p50_batch_wait_ms: float | None  # median wait for a batch
    p99_batch_wait_ms: float | None  # wait that one batch in a hundred exceeds
    p50_sample_latency_ms: float | None  # median share of a sample in its batch's wait
    p95_sample_latency_ms: float | None  # share that one sample in twenty exceeds
    p99_sample_latency_ms: float | None  # share that one sample in a hundred exceeds
    shuffle_randomness_frac: float | None  # distinct episodes in a batch over its size
    hit_rate: float | None  # of the decoder caches; None if not known
    # Share of the random-access decode limit; None if it was not measured.
    pct_of_limit: float | None
    wrong_frames: int | None  # maximum of all checks; None if there was none
    flags: tuple[str, ...]  # see above

    @property
    def label(self) -> str:
        """A short label that identifies the line."""
        name = f"{self.scenario} {self.loader}" if self.scenario else self.loader
        label = f"{name} {self.mode} b{self.batch_size} w{self.num_workers} {self.device}"
        label = f"{label}, {self.others}" if self.others else label
        return f"{label} ({_DISAGREE})" if _DISAGREE in self.flags else label

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-serialisable mapping."""
        return {**asdict(self), "flags": ", ".join(self.flags)}


def summarize(documents: Iterable[Document]) -> list[SummaryLine]:
    """Return a line for each set-up and node among the documents of kind ``run``, sorted."""
    groups: dict[tuple[Any, ...], list[Document]] = {}
    for document in documents:
        if document["kind"] == "run":
            groups.setdefault(tuple(_set_up(document).values()), []).append(document)
    return [_line(group) for _, group in sorted(groups.items(), key=itemgetter(0))]


def flags_of(document: Document) -> tuple[str, ...]:
    """Return the flags of one result; see above."""
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


def _set_up(document: Document) -> dict[str, Any]:
    options = document["options"]
    others = (
        f"{name.replace('_', '-')} {options[name]}"
        for name, usual in _OTHER_OPTIONS.items()
        if options.get(name) not in {None, usual}
    )
    return {
        "dataset": document["dataset"]["root"],
        "host": document["host"]["name"],
        "scenario": options["scenario"] or "",
        "source": options["source"] or "",
        **{name: options[name] for name in ("loader", "mode", "batch_size", "num_workers")},
        "device": options["decode_device"],
        "others": ", ".join(others),
    }


def _line(group: Sequence[Document]) -> SummaryLine:
    by_rank: dict[tuple[int, int], list[Document]] = {}
    for document in group:
        options = document["options"]
        # If nodes load files of their own, ranks are counted on each node.
        rank = options.get("partition_index", 0), options["rank"]
        by_rank.setdefault(rank, []).append(document)
    frames = _sum_of_ranks(by_rank, "decoded_frames_per_s") or 0.0
    low, high = (
        sum(
            pick(document["decoded_frames_per_s"] for document in runs) for runs in by_rank.values()
        )
        for pick in (min, max)
    )
    flags = dict.fromkeys(flag for document in group for flag in flags_of(document))
    has_cameras = any(document["dataset"]["cameras"] for document in group)
    if has_cameras and frames < TARGET_FRAMES_PER_S.get(group[0]["options"]["mode"], 0.0):
        flags["below target"] = None
    if high - low > _DISAGREEING_SHARE * frames:
        flags[_DISAGREE] = None
    wrong = [document["wrong_frames"] for document in group if document.get("check")]
    medians: dict[str, Any] = {name: _median(group, name) for name in _MEDIANS}
    return SummaryLine(
        **_set_up(group[0]),
        ranks=len(by_rank),
        runs=min(map(len, by_rank.values())),
        samples_per_s=_sum_of_ranks(by_rank, "samples_per_s") or 0.0,
        frames_per_s_node=frames,
        frames_per_s_low=low,
        frames_per_s_high=high,
        peak_pss_gb=_sum_of_ranks(by_rank, "peak_pss_gb"),
        **medians,
        hit_rate=_median([d.get("video_decoder_cache") or {} for d in group], "hit_rate"),
        pct_of_limit=_sum_of_ranks(by_rank, "pct_of_limit"),
        wrong_frames=max(wrong, default=None),
        flags=tuple(flags),
    )


def _median(group: Iterable[Document], key: str) -> float | None:
    values = [document[key] for document in group if document.get(key) is not None]
    return statistics.median(values) if values else None


def _sum_of_ranks(by_rank: Mapping[Any, Sequence[Document]], key: str) -> float | None:
    """Return the sum over the ranks of each rank's median; None if one of them has no value."""
    medians = [_median(group, key) for group in by_rank.values()]
    return None if None in medians else sum(median for median in medians if median is not None)


_BAR_INCHES = 0.28
_WIDTH_INCHES = 9.0
_EMPTY = "nothing was measured"


def require_matplotlib() -> None:
    """Raise if plots cannot be drawn, before anything is measured."""
    if importlib.util.find_spec("matplotlib") is None:
        raise missing_package("Plots need matplotlib", "plots", ", or leave --plots out")


def draw_plots(lines: Sequence[SummaryLine], out_dir: Path, stem: str) -> list[Path]:
    """Draw throughput, latency, randomness and distance to the limit as ``STEM-NAME.png``."""
    figures = {
        "throughput": _bars(
            lines,
            "decoded camera frames a second on a node",
            {"frames/s": [line.frames_per_s_node for line in lines]},
            spread=[(line.frames_per_s_low, line.frames_per_s_high) for line in lines],
            marks={
                f"target of {mode}": target
                for mode, target in TARGET_FRAMES_PER_S.items()
                if any(line.mode == mode for line in lines)
            },
        ),
        "latency": _bars(
            lines,
            "latency of a sample in ms",
            {
                "p50": [line.p50_sample_latency_ms for line in lines],
                "p95": [line.p95_sample_latency_ms for line in lines],
                "p99": [line.p99_sample_latency_ms for line in lines],
            },
        ),
        "randomness": _bars(
            lines,
            "distinct episodes in a batch / batch size",
            {"randomness": [line.shuffle_randomness_frac for line in lines]},
        ),
        "limit": _bars(
            lines,
            "% of the random-access decode limit",
            {"% of the limit": [line.pct_of_limit for line in lines]},
            marks={"limit": 100.0},
        ),
    }
    return _saved(figures, out_dir, stem)


def _saved(figures: Mapping[str, Any], out_dir: Path, stem: str) -> list[Path]:
    paths = [out_dir / f"{stem}-{name}.png" for name in figures]
    with storage_errors(out_dir):
        out_dir.mkdir(parents=True, exist_ok=True)
        for path, figure in zip(paths, figures.values(), strict=True):
            figure.savefig(path, dpi=120)
    return paths


def _bars(
    lines: Sequence[SummaryLine],
    title: str,
    series: Mapping[str, Sequence[float | None]],
    marks: Mapping[str, float] | None = None,
    spread: Sequence[tuple[float, float]] = (),
) -> Any:
    """Return a figure of horizontal bars, a group a line and a bar a series.

    ``spread`` is drawn over the bars of one series, from the smallest repeat to the greatest.
    """
    from matplotlib.figure import Figure

    bars = len(lines) * len(series)
    figure = Figure(figsize=(_WIDTH_INCHES, 1.4 + _BAR_INCHES * max(bars, 4)), layout="constrained")
    axes = figure.subplots()
    thickness = 0.8 / len(series)
    for number, (name, values) in enumerate(series.items()):
        shift = (number - (len(series) - 1) / 2) * thickness
        places = [place + shift for place, value in enumerate(values) if value is not None]
        drawn = axes.barh(
            places, [value for value in values if value is not None], thickness, label=name
        )
        if spread:  # the line is beside the bar
            axes.bar_label(drawn, fmt="%.4g", label_type="center", color="white", fontsize=7)
        else:
            axes.bar_label(drawn, fmt="%.4g", padding=3, fontsize=7)
    for place, (low, high) in enumerate(spread):
        if high > low:
            axes.plot([low, high], [place, place], color="black", linewidth=1, marker="|")
    for name, value in (marks or {}).items():
        axes.axvline(value, color="black", linewidth=1, linestyle="--")
        axes.annotate(name, (value, 1), xycoords=("data", "axes fraction"), fontsize=7)
    if not any(value is not None for values in series.values() for value in values):
        axes.text(0.5, 0.5, _EMPTY, transform=axes.transAxes, ha="center")
    axes.set_yticks(range(len(lines)), [line.label for line in lines], fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_title(title, fontsize=10, pad=14)
    axes.set_xlabel(
        "median of the repeats; the line is from the least to the greatest"
        if spread
        else "median of the repeats",
        fontsize=8,
    )
    if len(series) > 1:
        axes.legend(fontsize=8)
    return figure


Rows = list[list[str]]
# For each key the title of its column and its format.
_WAY = {key: (key, "") for key in ("way", "dtype", "device")} | {"batch_size": ("batch", "")}
_RATIOS = {
    "with_packing": ("with packing", ".2f"), "without_copies": ("without copies", ".2f"),
    "kernel": ("kernel alone", ".2f"), "cpu_time": ("CPU time", ".2f"),
}  # fmt: skip
_LOADERS = {
    "path": ("path", ""), "device": ("device", ""), "num_workers": ("workers", ""),
    "batch_size": ("batch", ""), "trajectories_per_s": ("trajectories/s", ".0f"),
    "first_batch_s": ("first batch s", ".3f"),
}  # fmt: skip
_TRAINING = {
    "path": ("path", ""), "num_workers": ("workers", ""), "device": ("device", ""),
    "batch_size": ("batch", ""), "steps_per_s": ("steps/s", ".1f"), "data_s": ("data s", ".3f"),
    "model_s": ("model s", ".3f"), "total_s": ("total s", ".3f"), "data_pct": ("data %", ".1f"),
    "speedup": ("times as fast", ".2f"), "gpu_use_pct": ("GPU %", ".0f"),
    "first_epoch_loss": ("loss first", ".4f"), "last_epoch_loss": ("loss last", ".4f"),
}  # fmt: skip


def result_tables(document: Document) -> list[tuple[str, str, Rows]]:
    """Return the tables of a result that have rows: title, explanation, rows with the head."""
    rows = [
        row | {f"{name} ms": ms for name, ms in row["stages_ms"].items()}
        for row in document["results"]
    ]
    stages = [key for key in rows[0] if key.endswith(" ms") and any(row[key] for row in rows)]
    results = _WAY | {
        "trajectories_per_s": ("trajectories/s", ".0f"),
        "ms_per_batch": ("ms/batch", ".3f"),
        "p95_batch_ms": ("p95 ms", ".3f"),
        **{key: (key, ".3f") for key in stages},
        "max_abs_error": ("max error", ".1e"),
        "gpu_use_pct": ("GPU %", ".0f"),
    }
    tables = (
        (
            "Pipelines, side by side",
            "Medians over repeats. batched first copies the trajectories of each batch together. "
            "table takes them from a table that was packed once. The error is the difference "
            "from numpy.interp in float64.",
            _written(rows, results),
        ),
        (
            "Times as fast as the baseline",
            '"with packing" compares all timed work. "kernel alone" compares only the resampling, '
            "without packing, copies and collation.",
            _written(document["speedups"], _WAY | _RATIOS),
        ),
        (
            "Loaders",
            "With baseline and batched, worker processes resample on the CPU. With table, all "
            "trajectories are on the device and are resampled there.",
            _written(document["loaders"] or (), _LOADERS),
        ),
        (
            "Training a small diffusion policy",
            '"times as fast" compares the total time with that of the first path with the same '
            "number of workers.",
            _written(document["end_to_end"] or (), _TRAINING),
        ),
    )
    return [table for table in tables if table[2][1:]]


def _rows_with_ratios(document: Document) -> list[Document]:
    """Return the results of resampling as flat rows, each with its ratios if there are any."""
    compared = {tuple(row[key] for key in _WAY): row for row in document["speedups"]}
    return [
        {key: value for key, value in row.items() if key != "raw"}
        | {
            f"speedup_{name}": compared.get(tuple(row[key] for key in _WAY), {}).get(name)
            for name in _RATIOS
        }
        for row in document["results"]
    ]


def _written(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, tuple[str, str]]) -> Rows:
    return [
        [title for title, _ in columns.values()],
        *(
            [
                "-" if row[key] is None else format(row[key], how)
                for key, (_, how) in columns.items()
            ]
            for row in rows
        ),
    ]


_SIZE_INCHES = (7.5, 4.5)


def draw_resampling(document: Document, out_dir: Path, stem: str) -> list[Path]:
    """Draw all plots into a folder and return their paths."""
    results, compared = document["results"], document["speedups"]
    figures = {
        "throughput": _lines(
            results,
            {"": ("trajectories_per_s", lambda row, one: row["trajectories"] / one["seconds"])},
            "trajectories/s",
        ),
        "latency": _lines(
            results,
            {
                name: (f"{name}_batch_ms", lambda _, one, key=f"{name}_batch_s": 1e3 * one[key])
                for name in ("p50", "p95")
            },
            "ms a batch",
        ),
        "speedup": _lines(
            compared,
            {
                name: (key, lambda _, one, key=key: one[key])
                for name, key in (("with packing", "with_packing"), ("kernel", "kernel"))
            },
            "times as fast as the baseline",
            is_ratio=True,
        ),
    }
    return _saved(figures, out_dir, stem)


def _lines(
    rows: Sequence[Mapping[str, Any]],
    keys: Mapping[str, tuple[str, Callable[..., float]]],
    title: str,
    *,
    is_ratio: bool = False,
) -> Any:
    """Return a plot over the batch size, with one line for each pipeline and key.

    Args:
        rows: Rows of a result; each has its repeats under ``raw``.
        keys: By suffix of a line's name: the key of the figure in a row, and a function that
            computes the same figure for one repeat from the row and the repeat.
        title: Title of the vertical axis.
        is_ratio: Whether 1 is the baseline.
    """
    from matplotlib.figure import Figure

    # The points of each line: size, figure, and the least and the greatest of its repeats.
    series: dict[str, list[tuple[int, float, float, float]]] = {}
    for row in rows:
        for suffix, (key, of_repeat) in keys.items():
            label = f"{row['way']} {row['dtype']} {row['device']} {suffix}".strip()
            repeats = [of_repeat(row, repeat) for repeat in row["raw"]]
            point = row["batch_size"], row[key], min(repeats), max(repeats)
            series.setdefault(label, []).append(point)
    figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
    axes = figure.subplots()
    for label, points in series.items():
        in_doubt = [
            (size, value)
            for size, value, low, high in points
            if high - low > _DISAGREEING_SHARE * value
        ]
        sizes, values, lows, highs = zip(*points, strict=True)
        name = f"{label} ({_DISAGREE})" if in_doubt else label
        (line,) = axes.plot(sizes, values, marker="o", label=name)
        axes.vlines(sizes, lows, highs, color=line.get_color(), linewidth=1)
        for size, value in in_doubt:
            axes.plot(size, value, "x", color="black", zorder=3)
    if series:
        ticks = sorted({size for points in series.values() for size, *_ in points})
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [str(size) for size in ticks])
        axes.legend(fontsize=8)
        if is_ratio:
            axes.axhline(1, color="black", linewidth=1, linestyle="--")
            axes.set_ylim(bottom=0)
        else:
            axes.set_yscale("log")
    else:
        axes.text(0.5, 0.5, "nothing to compare", transform=axes.transAxes, ha="center")
    axes.set_xlabel(
        "trajectories in a batch; the line of a point is from the least to the greatest repeat"
    )
    axes.set_ylabel(title)
    axes.set_title(f"{title}, by the size of a batch", fontsize=10)
    axes.grid(visible=True, alpha=0.3)
    return figure


def probe_result(root: Path, *, duration_s: float) -> dict[str, Any]:
    """Measure how fast a v3.0 dataset loads through ``EpisodeStream``.

    Args:
        root: The dataset.
        duration_s: Seconds to measure.

    Returns:
        The probe's document, as ``docs/formats/probe-result.schema.json`` describes it.

    Raises:
        ProbeError: The dataset could not be measured.
    """
    with tempfile.TemporaryDirectory(prefix="leconvert-probe-") as folder:
        ended = subprocess.run(
            [
                sys.executable, "-P", "-m", "leconvert", "probe", "run", "--json",
                f"--root={root}", f"--duration-s={duration_s}", f"--out-dir={folder}",
            ],
            capture_output=True,
            text=True,
            check=False,
        )  # fmt: skip
    try:
        document: dict[str, Any] = json.loads(ended.stdout)
    except ValueError:
        document = {}
    if "samples_per_s" not in document:
        said = document.get("message") or (ended.stderr.strip().splitlines() or ["no word"])[-1]
        raise ProbeError(
            f"{root} could not be measured: {said}",
            path=str(root),
            next_step=document.get("next_step")
            or f"Try `leconvert probe run --root {shlex.quote(str(root))}`.",
        )
    return document
