"""One run of the probe: time a loader, then look at what the timing alone does not tell.

In this order, so that nothing disturbs the timing: open the dataset, time the batches, read the
counters, end the workers; then the pass in this process that tells reading from decoding, the
comparison with the map-style loader, the decode limit, and how the videos are coded.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from leconvert.bench.environment import (
    cores,
    find_ffmpeg,
    host_record,
    versions_record,
)
from leconvert.bench.probe.compare import check_samples
from leconvert.bench.probe.decoding import dataset_record, known_limit, opened_dataset
from leconvert.bench.probe.measure import (
    NO_SINGLE_PASS,
    BatchFacts,
    Measured,
    measure,
    percentiles_ms,
    time_single_pass,
)
from leconvert.bench.probe.measured import (
    LoaderUnderTest,
    Subject,
    open_loader,
    windows_of,
)
from leconvert.bench.probe.options import RunOptions, frames_per_sample
from leconvert.bench.results import begin_document
from leconvert.bench.sampler import TreeMemory
from leconvert.loading import (
    DatasetMeta,
    choose_backend,
    chosen_episodes,
    find_rank,
)
from leconvert.support.errors import LeconvertError, ProbeError, UnreadableSourceError
from leconvert.support.progress import NO_PROGRESS, Progress

_GB = 1e9
_TRACEBACK = ("Traceback", "Original Traceback")


def run_probe(
    options: RunOptions,
    *,
    results_dir: Path | None = None,
    progress: Progress = NO_PROGRESS,
) -> dict[str, Any]:
    """Measure one loader on one dataset.

    Returns:
        The result, as ``docs/formats/probe-result.schema.json`` describes it.
    """
    began = time.perf_counter()
    document = begin_document("run")
    options = options.placed()
    backend = choose_backend("auto", options.decode_device)
    _check_device(options.device)
    meta, data_files = opened_dataset(str(options.root), options.data_files_root, options.revision)
    options = _resolved(options, meta)
    deltas = windows_of(options, meta)
    subject = Subject(options, meta, deltas, _episodes(options, meta))
    loader = open_loader(subject)
    measured, memory = _timed(loader, options, progress)
    cache = loader.cache_counts()
    loader.close_workers()
    single = _single_pass(loader, options, has_videos=bool(meta.video_keys))
    check = check_samples(loader, subject, progress) if options.check else None
    limit = known_limit(options, meta, data_files, results_dir, backend=backend)
    window_frames = frames_per_sample(deltas, meta.camera_keys)
    frames_per_s = measured.frames_per_s
    samples_of, frames_of = measured.of_workers(options.num_workers or 0)
    waits, latencies = measured.waits_s, measured.sample_latencies_s()
    document |= {
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
        "unreadable_frames": loader.unreadable_frames,
        "check": check,
        "read_from": options.read_from,
        "notes": [*loader.notes, *_remarks(options)],
        "decoder": _decoder_record(backend),
        "dataset": dataset_record(meta, data_files),
        "options": options.as_record(),
        "host": host_record(),
        "versions": versions_record(),
    }
    return document


def _resolved(options: RunOptions, meta: DatasetMeta) -> RunOptions:
    rank, world_size = find_rank(
        options.rank, options.world_size, of_node=options.num_partitions > 1
    )
    return options.resolved(
        cores=cores(), cameras=len(meta.camera_keys), rank=rank, world_size=world_size
    )


def _episodes(options: RunOptions, meta: DatasetMeta) -> list[int] | None:
    if options.max_episodes is None and options.num_partitions == 1:
        return None
    table = meta.episodes
    places = chosen_episodes(
        table.index,
        table.length,
        table.files(),
        max_episodes=options.max_episodes,
        num_partitions=options.num_partitions,
        partition_index=options.partition_index,
    )
    return [int(index) for index in table.index[places]]


def _check_device(device: str) -> None:
    if device != "cpu" and not torch.cuda.is_available():
        raise ProbeError(
            f"There is no GPU that torch {torch.__version__} can use.",
            next_step="Leave --device out, or install a torch build for CUDA.",
        )


def _timed(
    loader: LoaderUnderTest, options: RunOptions, progress: Progress
) -> tuple[Measured, TreeMemory]:
    """Time the loader; the workers are still there when memory is looked at last."""
    by_batches = options.num_batches is not None
    total = options.num_batches if by_batches else max(1, round(options.duration_s))
    told = 0
    with (
        TreeMemory() as memory,
        progress.stage("timing", total or 1, "batches" if by_batches else "s") as stage,
    ):

        def tell(seconds: float) -> None:
            nonlocal told
            amount = 1 if by_batches else int(min(seconds, options.duration_s)) - told
            if amount:
                told += amount
                stage.advance(amount)

        def facts_of(batch: Mapping[str, Any]) -> BatchFacts:
            # Not before: the workers are there now, and forking beside threads is asking for it.
            memory.start()
            if options.device != "cpu":
                _move(batch, options.device)
            return loader.facts_of(batch)

        try:
            measured = measure(
                loader.open_epoch,
                facts_of,
                warmup_batches=options.warmup_batches,
                duration_s=options.duration_s,
                num_batches=options.num_batches,
                on_batch=tell,
            )
        except Exception as error:
            raise _failed(options, error) from error
        memory.sample()
    if not measured.samples:
        raise ProbeError(
            f"The loader {options.loader} gave no sample to time: rank {options.rank} of "
            f"{options.world_size} in partition {options.partition_index} of "
            f"{options.num_partitions} has no frames.",
            path=options.root,
            next_step="Use fewer ranks or partitions, or more episodes.",
        )
    return measured, memory


def _move(batch: Mapping[str, Any], device: str) -> None:
    for value in batch.values():
        if isinstance(value, torch.Tensor):
            value.to(device, non_blocking=True)
    torch.cuda.synchronize(device)


def _failed(options: RunOptions, error: Exception) -> LeconvertError:
    """Say what a loader's own error was; a worker's comes with the whole traceback as its text."""
    if isinstance(error, LeconvertError) and not isinstance(error, UnreadableSourceError):
        return error
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    is_workers = bool(lines) and lines[0].startswith("Caught ")
    said = f"{type(error).__name__}: {lines[0]}" if lines else repr(error)
    if is_workers:
        # A message may itself have several lines; the exception's own first one is at the margin.
        at_margin = [line for line in lines[1:] if not line.startswith((" ", *_TRACEBACK))]
        said = at_margin[0] if at_margin else lines[-1].strip()
    return ProbeError(
        f"The loader {options.loader} failed: {said.rstrip('.')}.",
        path=options.root,
        next_step="Look at the files with leconvert check; with --check N such frames only count.",
    )


def _single_pass(
    loader: LoaderUnderTest, options: RunOptions, *, has_videos: bool
) -> dict[str, float | None]:
    if not options.probe_samples:
        return NO_SINGLE_PASS
    try:
        with loader.single() as (samples, decoding_s):
            return time_single_pass(
                samples,
                decoding_s if has_videos else None,
                num_warmup=options.probe_warmup,
                num_samples=options.probe_samples,
            )
    except Exception as error:
        raise _failed(options, error) from error


def _remarks(options: RunOptions) -> list[str]:
    """Return what a reader of the result should know about what decoded."""
    if options.loader != "stream" or find_spec("torchcodec") is None or find_ffmpeg() is not None:
        return []
    return [
        "PyAV decodes: torchcodec finds no FFmpeg that it is built for; `leconvert doctor` says "
        "what to install"
    ]


def _decoder_record(backend: str) -> dict[str, Any]:
    found = find_ffmpeg() if backend == "torchcodec" else None
    return {
        "backend": backend,
        "ffmpeg": None if found is None else {"major": found.major, "origin": found.origin},
    }
