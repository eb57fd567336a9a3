"""One run of the probe: time a loader, then make the checks that timing alone does not make.

The order is chosen so that nothing disturbs the timing: open the dataset, time the batches, read
the counters, end the workers. Then follow the pass in this process that separates reading from
decoding, the comparison with the map-style loader, the decode limit, and how the videos are coded.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from leconvert.bench.decoding import dataset_record, known_limit, opened_dataset
from leconvert.bench.environment import (
    TreeMemory,
    find_device,
    find_ffmpeg,
    host_record,
    require_packages,
    versions_record,
)
from leconvert.bench.loaders import (
    NO_SINGLE_PASS,
    BatchFacts,
    LoaderUnderTest,
    Measured,
    SampleToCheck,
    Subject,
    measure,
    open_loader,
    percentiles_ms,
    time_single_pass,
    windows_of,
)
from leconvert.bench.options import RunOptions, frames_per_sample
from leconvert.bench.results import begin_document
from leconvert.loading import (
    PAD_SUFFIX,
    DatasetMeta,
    EpisodeStream,
    Sample,
    choose_backend,
    chosen_episodes,
    find_rank,
)
from leconvert.support.errors import LeconvertError, ProbeError, UnreadableSourceError, UsageError
from leconvert.support.machine import allowed_cores
from leconvert.support.progress import NO_PROGRESS, Progress, Stage
from leconvert.support.values import dataclass

# Comparison of streamed samples with LeRobot's own dataset: is it the right frame?


_NAMED = 50
_TOLD = 3


@dataclass(frozen=True, slots=True)
class SampleDifference:
    """One key of one sample that differs from LeRobot's.

    Attributes:
        index: Number of the frame in the whole dataset.
        key: The feature, a pad flag, or ``task``.
        what: The difference, in words.
    """

    index: int
    key: str
    what: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """The outcome of a comparison.

    Attributes:
        samples: Number of samples compared.
        wrong_frames: For each camera, the number of samples with a picture that differs.
        wrong_pads: Number of pad flags that differ.
        wrong_values: Number of other keys that differ, in value, type or shape.
        unreadable: Number of samples that LeRobot itself could not load, so nothing was compared.
        differences: The first fifty differences, and the first fifty samples that could not be
            loaded.
    """

    samples: int
    wrong_frames: Mapping[str, int]
    wrong_pads: int
    wrong_values: int
    unreadable: int
    differences: tuple[SampleDifference, ...]

    @property
    def is_right(self) -> bool:
        """Whether samples were compared and none differs."""
        wrong = sum(self.wrong_frames.values()) + self.wrong_pads + self.wrong_values
        return self.samples > 0 and not wrong


def compare_with_map(stream: EpisodeStream, samples: int) -> Comparison:
    """Compare the first samples of a stream with LeRobot's samples of the same numbers.

    Args:
        stream: The stream; it is iterated in this process.
        samples: Maximum number of samples.

    Returns:
        The differences. Frames that LeRobot itself refuses to load are counted separately.

    Raises:
        UsageError: The dataset is not local.
    """
    root = stream.meta.root
    if "://" in root:
        raise UsageError(
            f"{root} is not a local folder, but LeRobot's dataset class reads only local folders.",
            next_step="Download the dataset and give its folder.",
        )
    require_packages("lerobot", "datasets")
    from leconvert.bench.lerobot_loaders import open_map

    deltas = stream.delta_timestamps or {}
    reference = open_map(RunOptions(root=root), deltas, return_uint8=stream.return_uint8)
    first = ((sample, ()) for sample in islice(stream, samples))
    return compare_samples(first, reference, cameras=stream.meta.camera_keys)


def compare_samples(
    samples: Iterable[tuple[Sample, Collection[str]]], reference: Any, *, cameras: tuple[str, ...]
) -> Comparison:
    """Compare samples of any loader with a map-style dataset.

    Args:
        samples: Samples, each with the keys that are not compared.
        reference: The map-style dataset.
        cameras: The keys that hold pictures.
    """
    wrong_frames = dict.fromkeys(cameras, 0)
    wrong_pads = wrong_values = unreadable = compared = 0
    named: list[SampleDifference] = []
    refused: list[SampleDifference] = []
    for sample, left_out in samples:
        number = int(sample["index"])
        try:
            wanted = reference[number]
        except Exception as error:  # noqa: BLE001 (LeRobot's errors are of many kinds)
            unreadable += 1
            first_line = str(error).strip().partition("\n")[0]
            if len(refused) < _NAMED:
                said = f"LeRobot cannot load it: {first_line}"
                refused.append(SampleDifference(number, "", said))
            continue
        compared += 1
        for key in sorted({*sample, *wanted}.difference(left_out)):
            what = _difference(sample, wanted, key, is_picture=key in wrong_frames)
            if what is None:
                continue
            if len(named) < _NAMED:
                named.append(SampleDifference(number, key, what))
            if key in wrong_frames:
                wrong_frames[key] += 1
            elif key.endswith(PAD_SUFFIX):
                wrong_pads += 1
            else:
                wrong_values += 1
    return Comparison(
        samples=compared,
        wrong_frames=wrong_frames,
        wrong_pads=wrong_pads,
        wrong_values=wrong_values,
        unreadable=unreadable,
        differences=(*named, *refused),
    )


def _difference(
    sample: Mapping[str, Any], wanted: Mapping[str, Any], key: str, *, is_picture: bool
) -> str | None:
    if key not in sample or key not in wanted:
        return "is missing" if key in wanted else "is missing in LeRobot's sample"
    ours, theirs = sample[key], wanted[key]
    if not isinstance(ours, torch.Tensor) or not isinstance(theirs, torch.Tensor):
        return None if ours == theirs else f"is {ours!r} instead of {theirs!r}"
    if is_picture and ours.dtype != theirs.dtype and ours.dtype == torch.uint8:
        # LeRobot gives images of tables as floats, even if asked for bytes.
        theirs = (theirs * 255).round().to(torch.uint8)
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return (
            f"is {ours.dtype} of {tuple(ours.shape)} instead of {theirs.dtype} of "
            f"{tuple(theirs.shape)}"
        )
    if torch.equal(ours, theirs):
        return None
    if ours.dtype.is_floating_point and torch.allclose(ours, theirs, 0, 0, equal_nan=True):
        return None
    off = (ours.to(torch.float64) - theirs.to(torch.float64)).abs()
    return (
        f"differs in {int((off > 0).sum())} of {off.numel()} numbers, by up to {float(off.max()):g}"
    )


def check_samples(
    loader: LoaderUnderTest, subject: Subject, progress: Progress
) -> dict[str, Any] | None:
    """Compare samples of a loader, made in this process, with LeRobot's of the same frames.

    Returns:
        Counts, and the first differences. A frame counts by sample and camera: one wrong step makes
        a window wrong, and one that cannot be decoded makes it unreadable. None for the map-style
        loader, which is the reference itself.
    """
    samples = loader.to_check()
    if samples is None:
        return None
    require_packages("torch", "lerobot", "datasets")
    from leconvert.bench.lerobot_loaders import open_map

    options = subject.options
    if "://" in str(options.root) and not str(options.root).startswith("hf://datasets/"):
        raise UsageError(
            f"LeRobot cannot read {options.root}, so --check cannot compare anything.",
            next_step="Leave --check out, or give a local copy of the dataset.",
        )
    # Open all episodes, so that samples have the numbers of the dataset's frames.
    reference = open_map(replace(options, data_files_root=None), subject.deltas)
    unreadable: list[str] = []
    with progress.stage("check", options.check, "samples") as stage:
        found = compare_samples(
            _decoded(islice(samples, options.check), unreadable, stage),
            reference,
            cameras=subject.meta.camera_keys,
        )
    return {
        "samples": found.samples,
        "refused_by_map": found.unreadable,
        "wrong_frames": sum(found.wrong_frames.values()),
        "wrong_frames_by_camera": dict(found.wrong_frames),
        "unreadable_frames": len(unreadable),
        "wrong_pad_flags": found.wrong_pads,
        "wrong_values": found.wrong_values,
        "named": [
            *dict.fromkeys(unreadable),
            *(f"frame {one.index}: {one.key} {one.what}" for one in found.differences),
        ][:_NAMED],
    }


def _decoded(
    samples: Iterator[SampleToCheck], unreadable: list[str], stage: Stage
) -> Iterator[tuple[dict[str, Any], Collection[str]]]:
    """Yield samples, each with its cameras that are black because nothing was decoded."""
    for sample, cameras in samples:
        stage.advance(1)
        unreadable += cameras.values()
        yield dict(sample), cameras.keys()


def failure_of(document: Mapping[str, Any]) -> ProbeError | None:
    """Return the error for wrong frames in a result; None if there are none.

    Without ``--check`` the first unreadable frame ends a run.
    """
    check = document["check"]
    if check is None:
        return None
    wrong, unreadable = check["wrong_frames"], check["unreadable_frames"]
    others = check["wrong_values"] + check["wrong_pad_flags"]
    in_batches = document["unreadable_frames"]
    if not check["samples"]:
        said = f"Nothing was compared: LeRobot could not load any of {check['refused_by_map']} "
        said += "samples."
        next_step = "Convert the dataset again with leconvert, which writes exact times."
    elif wrong or unreadable or others or in_batches:
        said = (
            f"{check['samples']} samples were compared: {wrong} frames are wrong, {unreadable} "
            f"cannot be read, and {others} values or pad flags are wrong. In the batches, "
            f"{in_batches} frames could not be read."
        )
        next_step = "The field `check` of the result lists the places."
    else:
        return None
    details, left = check["named"][:_TOLD], len(check["named"]) - _TOLD
    if left > 0:
        details = [*details, f"… and {left} more in the result, under `check`"]
    path = document["dataset"]["root"]
    return ProbeError(said, path=path, next_step=next_step, details=details)


# The run.


_GB = 1e9
_TRACEBACK = ("Traceback", "Original Traceback")


def run_probe(
    options: RunOptions,
    *,
    results_dir: Path | None = None,
    progress: Progress = NO_PROGRESS,
) -> dict[str, Any]:
    """Measure one loader on one dataset.

    Args:
        options: The options.
        results_dir: Folder of earlier results, to find a decode limit in.
        progress: Receives the progress.

    Returns:
        The result, as ``docs/formats/probe-result.schema.json`` describes it.

    Raises:
        ProbeError: The loader failed or gave no samples, or a device is missing.
    """
    began = time.perf_counter()
    document = begin_document("run")
    options = options.placed()
    choose_backend("auto", options.decode_device)  # a device that cannot decode is refused at once
    find_device(options.device)
    meta, data_files = opened_dataset(str(options.root), options.data_files_root, options.revision)
    rank, world_size = find_rank(
        options.rank, options.world_size, of_node=options.num_partitions > 1
    )
    options = options.resolved(
        cores=allowed_cores(), cameras=len(meta.camera_keys), rank=rank, world_size=world_size
    )
    deltas = windows_of(options, meta)
    subject = Subject(options, meta, deltas, _episodes(options, meta))
    loader = open_loader(subject)
    measured, memory = _timed(loader, options, progress)
    cache = loader.facts().video_decoder_cache if meta.video_keys else None
    loader.close_workers()
    single = NO_SINGLE_PASS
    if options.probe_samples:
        with _loader_errors(options), loader.single() as (samples, decoding_s):
            single = time_single_pass(
                samples,
                decoding_s if meta.video_keys else None,
                num_warmup=options.probe_warmup,
                num_samples=options.probe_samples,
            )
    check = check_samples(loader, subject, progress) if options.check else None
    limit = known_limit(options, meta, data_files, results_dir)
    ffmpeg = find_ffmpeg() if loader.backend == "torchcodec" else None
    window_frames = frames_per_sample(deltas, meta.camera_keys)
    frames_per_s = measured.frames_per_s
    samples_of, frames_of = measured.of_workers(options.num_workers or 0)
    waits, latencies = measured.waits_s, measured.sample_latencies_s()
    document |= {
        **_proposed_keys(options, meta, loader),
        "samples_per_s": measured.samples_per_s,
        "frames_per_s_node": frames_per_s,
        "decoded_frames_per_s": frames_per_s,
        "window_frames": window_frames,
        "window_frames_per_s": measured.samples_per_s * window_frames,
        "first_batch_latency_s": measured.first_batch_latency_s,
        **{f"{name}_sample_latency_ms": ms for name, ms in percentiles_ms(latencies).items()},
        **{f"{name}_batch_wait_ms": ms for name, ms in percentiles_ms(waits).items()},
        "wallclock_s": measured.wallclock_s,
        "steady_window_s": measured.steady_window_s,
        "total_time_s": time.perf_counter() - began,
        "samples_measured": measured.samples,
        "batches_measured": len(measured.facts),
        "epochs": measured.epochs,
        **single,
        "video_decoder_cache": cache,
        "peak_rss_gb": memory.peak_rss_bytes / _GB,
        "peak_pss_gb": None if memory.peak_pss_bytes is None else memory.peak_pss_bytes / _GB,
        "num_shards": loader.num_shards,
        "loaded_episodes": loader.loaded_episodes,
        "samples_per_worker": samples_of,
        "frames_per_worker": frames_of,
        "shuffle_randomness_frac": measured.shuffle_randomness,
        "pct_of_limit": None if limit is None else 100 * frames_per_s / limit["frames_per_s"],
        "limit": limit,
        "wrong_frames": None if check is None else check["wrong_frames"],
        "unreadable_frames": loader.facts().unreadable,
        "check": check,
        "read_from": options.read_from,
        "notes": [*loader.notes, *_remarks(options)],
        "decoder": {
            "backend": loader.backend,
            "ffmpeg": ffmpeg and {"major": ffmpeg.major, "origin": ffmpeg.origin},
        },
        "dataset": dataset_record(meta, data_files),
        "options": options.as_record(),
        "host": host_record(),
        "versions": versions_record(),
    }
    return document


def _proposed_keys(
    options: RunOptions, meta: DatasetMeta, loader: LoaderUnderTest
) -> dict[str, Any]:
    """Return the options under the keys of the benchmarks that were proposed for LeRobot."""
    first = next(iter(meta.camera_keys), None)
    return {
        "scenario": options.scenario,
        "rank": options.rank,
        "world_size": options.world_size,
        "loader": "map_style" if options.loader == "map" else "streaming",
        "batch_size": options.batch_size,
        "num_workers": options.num_workers,
        "episode_pool_size": loader.pool_size,
        "max_buffer_input_shards": options.max_buffer_input_shards,
        "fps": meta.fps,
        "data_files_root": options.data_files_root,
        "num_cameras": len(meta.camera_keys),
        "image_shape": None if first is None else list(meta.shapes[first]),
    }


def _episodes(options: RunOptions, meta: DatasetMeta) -> list[int] | None:
    if options.max_episodes is None and (options.num_partitions, options.partition_index) == (1, 0):
        return None
    table = meta.table
    places = chosen_episodes(
        table.index,
        table.length,
        table.files(),
        max_episodes=options.max_episodes,
        num_partitions=options.num_partitions,
        partition_index=options.partition_index,
    )
    return [int(index) for index in table.index[places]]


def _timed(
    loader: LoaderUnderTest, options: RunOptions, progress: Progress
) -> tuple[Measured, TreeMemory]:
    """Time the loader; workers still run when memory is sampled last."""
    total = max(1, round(options.duration_s))
    told = 0
    with TreeMemory() as memory, progress.stage("timing", total, "s") as stage:

        def tell(seconds: float) -> None:
            nonlocal told
            whole = min(int(seconds), total)
            stage.advance(whole - told)
            told = whole

        def facts_of(batch: Mapping[str, Any]) -> BatchFacts:
            # Start here: the workers exist now, and forking is unsafe while threads run.
            memory.start()
            if options.device != "cpu":
                for value in batch.values():
                    if isinstance(value, torch.Tensor):
                        value.to(options.device, non_blocking=True)
                torch.cuda.synchronize(options.device)
            return loader.facts_of(batch)

        with _loader_errors(options):
            measured = measure(
                loader.open_epoch,
                facts_of,
                warmup_batches=options.warmup_batches,
                duration_s=options.duration_s,
                num_batches=options.num_batches,
                on_batch=tell,
            )
        memory.sample()
    if not measured.samples:
        raise ProbeError(
            f"The loader {options.loader} returned no sample: rank {options.rank} of "
            f"{options.world_size} in partition {options.partition_index} of "
            f"{options.num_partitions} has no frames.",
            path=options.root,
            next_step="Use fewer ranks or partitions, or more episodes.",
        )
    return measured, memory


@contextmanager
def _loader_errors(options: RunOptions) -> Iterator[None]:
    """Raise a loader's own error, or a frame that does not decode, as a `ProbeError`."""
    try:
        yield
    except Exception as error:
        if isinstance(error, LeconvertError) and not isinstance(error, UnreadableSourceError):
            raise  # it has its own remedy
        lines = [line for line in str(error).strip().splitlines() if line.strip()]
        said = f"{type(error).__name__}: {lines[0]}" if lines else repr(error)
        if lines and lines[0].startswith("Caught "):
            # A worker's error has a traceback as its text. Its message may itself have several
            # lines; the exception's own first line is not indented.
            at_margin = [line for line in lines[1:] if not line.startswith((" ", *_TRACEBACK))]
            said = at_margin[0] if at_margin else lines[-1].strip()
        raise ProbeError(
            f"The loader {options.loader} failed: {said.rstrip('.')}.",
            path=options.root,
            next_step="Check the dataset with `leconvert check`. With --check N, unreadable frames "
            "are only counted.",
        ) from error


def _remarks(options: RunOptions) -> list[str]:
    """Return remarks on options for the reader of the result."""
    if options.max_buffer_input_shards is None or options.loader == "stream-lerobot":
        return []
    return [f"{options.loader} has no input shards: --max-buffer-input-shards did nothing"]
