"""The limit of decoding: how fast this machine can decode a dataset's videos, and whether it can.

The videos are decoded on one core and on all cores, with one process per core and one thread per
process, in two ways: neighbouring frames one after another, and single frames at random positions
as in training. Before the clock starts, the files are opened, and their touched parts are read into
the page cache. Rows, windows, shuffling and collation take no part.

The limit for loaders is random access with all processes. A loader can exceed it only if it decodes
something cheaper than single random frames, such as the repeated frames of a window at an episode's
end.
"""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, replace
from functools import partial
from itertools import cycle, pairwise
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from pathlib import Path
from threading import BrokenBarrierError
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from leconvert import loading  # its names import torch, which may be missing in a diagnosis
from leconvert.bench.environment import (
    FoundFfmpeg,
    find_ffmpeg,
    host_record,
    versions_for_torchcodec,
    versions_record,
)
from leconvert.bench.options import RunOptions
from leconvert.bench.results import begin_document, read_results
from leconvert.support.errors import LeconvertError, ProbeError, UnreadableSourceError, UsageError
from leconvert.support.extras import command_for_extra
from leconvert.support.machine import allowed_cores
from leconvert.transfer.files import Files, files_at

if TYPE_CHECKING:
    from leconvert.loading import DatasetMeta

Access = Literal["sequential", "random"]

ACCESSES: tuple[Access, ...] = get_args(Access)
"""Runs of neighbouring frames, as a player reads them; or single frames at random positions."""

# How long a process waits for the others; importing torch takes time.
_PATIENCE_SECONDS = 300.0
_RUN_FRAMES = 32
# Each open decoder costs memory in each process.
_MOST_FILES = 48
# Packets of a video from which the distance of keyframes is determined.
_PACKETS_LOOKED_AT = 500

Stretch = tuple[int, float]
"""The work of one process in one stretch: frames decoded, and seconds."""


def run_limit(options: RunOptions, processes: int | None = None) -> dict[str, Any]:
    """Measure how fast the videos of a dataset decode.

    Args:
        options: The dataset, the seconds of each stretch, the device, and the seed of random
            access.
        processes: Number of processes; one per core by default.

    Returns:
        The result, as ``docs/formats/probe-result.schema.json`` describes it.

    Raises:
        ProbeError: The dataset has no videos, or a decoding process failed.
    """
    document = begin_document("limit")
    options, processes = options.placed(), processes or allowed_cores()
    backend = loading.choose_backend("auto", options.decode_device)
    meta, files = opened_dataset(str(options.root), options.data_files_root, options.revision)
    paths = videos_to_decode(meta)
    rates = measure_limit(files, paths, options, processes)
    names = ("root", "data_files_root", "revision", "duration_s", "decode_device", "seed")
    return document | {
        "limit_frames_per_s": limit_of(rates),
        "rates": rates,
        "files_decoded": len(paths),
        "decoder": {"backend": backend},
        "dataset": dataset_record(meta, files),
        "options": {"processes": processes, **{name: getattr(options, name) for name in names}},
        "host": host_record(),
        "versions": versions_record(),
    }


def opened_dataset(
    root: str, data_files_root: str | None, revision: str | None
) -> tuple[DatasetMeta, Files]:
    """Return a dataset's metadata, and the files of ``data/`` and ``videos/``."""
    files = files_at(root, revision=revision)
    meta = loading.load_meta(files)
    return meta, files if data_files_root is None else files_at(data_files_root)


def videos_to_decode(meta: DatasetMeta, most: int = _MOST_FILES) -> list[str]:
    """Return relative paths of video files, spread over the files of every camera.

    Raises:
        ProbeError: There are no videos.
    """
    cameras = [files.paths for files in meta.table.cameras.values() if files.paths]
    if not cameras:
        raise ProbeError(
            f"{meta.root} has no videos, so there is no decode limit to measure.",
            path=meta.root,
            next_step="Measure a loader instead, with `leconvert probe run`.",
        )
    each = max(1, most // len(cameras))
    return [path for paths in cameras for path in paths[:: -(-len(paths) // each)]]


def measure_limit(
    files: Files, paths: Sequence[str], options: RunOptions, processes: int
) -> list[dict[str, Any]]:
    """Decode by one process and by all, in both ways, and return the rates.

    Files of remote datasets are downloaded whole first.
    """
    with ExitStack() as at_the_end:
        local = []
        for path in paths:
            opened = files.open(path)
            at_the_end.callback(opened.close)
            opened.need([(0, opened.size_bytes)])
            local.append(opened.path)
        return [
            _rate(access, stretches)
            for number in sorted({1, processes})
            for access, stretches in zip(
                ACCESSES, zip(*_decoded_by(number, local, options), strict=True), strict=True
            )
        ]


def _decoded_by(processes: int, paths: Sequence[str], options: RunOptions) -> list[list[Stretch]]:
    """Return the stretches of each process.

    Raises:
        ProbeError: A process failed.
    """
    context = get_context("forkserver")
    # One process imports torch, and the others are forked from it; otherwise many would wait for
    # the disk.
    preload = [decode_stretches.__module__, loading.open_decoder.__module__]
    context.set_forkserver_preload(preload)
    start = context.Barrier(processes)
    with ProcessPoolExecutor(processes, context, _share, (start,)) as pool:
        parts = [
            pool.submit(decode_stretches, options, number, paths) for number in range(processes)
        ]
    errors = [error for part in parts if (error := part.exception()) is not None]
    if not errors:
        return [part.result() for part in parts]
    # The others only waited in vain for the process that failed.
    error = next((one for one in errors if not isinstance(one, BrokenBarrierError)), errors[0])
    if isinstance(error, UsageError):  # a device that cannot decode has a remedy
        raise error
    said = str(error).partition("\n")[0] or repr(error)
    raise ProbeError(
        f"A decoding process failed: {said.rstrip('.')}.",
        next_step="Try: leconvert probe diagnose.",
    ) from error


def _rate(access: Access, stretches: Sequence[Stretch]) -> dict[str, Any]:
    return {
        "access": access,
        "processes": len(stretches),
        "frames": sum(frames for frames, _ in stretches),
        "seconds": max(seconds for _, seconds in stretches),
        "frames_per_s": sum(frames / seconds for frames, seconds in stretches),
    }


def limit_of(rates: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the limit in frames a second: random access with the most processes."""
    random = [rate for rate in rates if rate["access"] == "random"]
    best = max(random, key=lambda rate: rate["processes"], default=None)
    return None if best is None else float(best["frames_per_s"])


def known_limit(
    options: RunOptions, meta: DatasetMeta, files: Files, results_dir: Path | None
) -> dict[str, Any] | None:
    """Return the limit for a run: measured now if asked for, else from an earlier result."""
    if not meta.video_keys:
        return None
    if not options.with_limit:
        return find_limit(results_dir, meta, options.decode_device) if results_dir else None
    asked = replace(options, duration_s=options.limit_duration_s)
    rates = measure_limit(files, videos_to_decode(meta), asked, allowed_cores())
    return _limit_record("measured", rates)


def find_limit(folder: Path, meta: DatasetMeta, device: str) -> dict[str, Any] | None:
    """Return the newest limit in a folder for this host, dataset and device.

    Results with fewer processes than cores are ignored, since the host could decode more.
    """
    fitting = [
        (document["started"], path.name, document["rates"])
        for path, document in read_results(folder.glob("*.json"))
        if document["kind"] == "limit"
        and document["host"]["name"] == platform.node()
        and document["dataset"]["fingerprint"] == meta.fingerprint()
        and document["options"]["decode_device"] == device
        and document["options"]["processes"] >= allowed_cores()
    ]
    return _limit_record(*max(fitting, key=lambda found: found[:2])[1:]) if fitting else None


def _limit_record(origin: str, rates: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the limit and its origin: ``measured`` for now, or a result's file."""
    frames_per_s = limit_of(rates)
    if frames_per_s is None:
        return None
    return {"frames_per_s": frames_per_s, "origin": origin, "rates": list(rates)}


_start: Barrier


def _share(start: Barrier) -> None:
    """Keep the barrier at which the processes meet; only a new process can be given one."""
    global _start  # noqa: PLW0603
    _start = start


def decode_stretches(options: RunOptions, number: int, paths: Sequence[str]) -> list[Stretch]:
    """Be one process: open the files, then decode in both ways, in step with the others."""
    try:
        opened = [_Clip(path, options.decode_device) for path in paths]
        clips = [clip for clip in opened if clip.num_frames]
        if not clips:
            raise ValueError("no video file contains a frame")
        done: list[Stretch] = []
        for access in ACCESSES:
            calls = _calls(clips, access, options.seed + number)
            _, warm = next(calls)
            warm()  # the first frame of a decoder costs more than any other
            _start.wait(_PATIENCE_SECONDS)
            done.append(_timed(calls, options.duration_s))
            _start.wait(_PATIENCE_SECONDS + options.duration_s)
    except BaseException:
        _start.abort()  # the others must not wait for ever
        raise
    return done


class _Clip:
    """A file, opened with the decoder of `EpisodeStream`."""

    def __init__(self, path: str, device: str) -> None:
        backend = loading.choose_backend("auto", device)
        opened = files_at(Path(path).parent).open(Path(path).name)
        clip = loading.open_clip(opened, keep_index=backend == "pyav")
        self._decoder = loading.open_decoder(clip, backend, device=device)
        self.num_frames = clip.num_frames or 0

    def run(self, first: int, stop: int) -> list[object]:
        return [frames for _, frames in self._decoder.decode(np.arange(first, stop))]


def _calls(
    clips: Sequence[_Clip], access: Access, seed: int
) -> Iterator[tuple[int, Callable[[], object]]]:
    if access == "random":
        generator = np.random.default_rng(seed)
        ends = np.cumsum([clip.num_frames for clip in clips])
        while True:
            for place in generator.integers(0, ends[-1], 1024).tolist():
                number = int(np.searchsorted(ends, place, side="right"))
                clip = clips[number]
                frame = place - (int(ends[number]) - clip.num_frames)
                yield 1, partial(clip.run, frame, frame + 1)
    # Processes begin with different files, as workers do.
    for clip in cycle([*clips[seed % len(clips) :], *clips[: seed % len(clips)]]):
        for first in range(0, clip.num_frames, _RUN_FRAMES):
            stop = min(first + _RUN_FRAMES, clip.num_frames)
            yield stop - first, partial(clip.run, first, stop)


def _timed(calls: Iterator[tuple[int, Callable[[], object]]], seconds: float) -> Stretch:
    """Make calls until the time is over; whole calls count."""
    began = now = time.perf_counter()
    frames = 0
    for count, call in calls:
        call()
        frames += count
        now = time.perf_counter()
        if now - began >= seconds:
            break
    return frames, now - began


def dataset_record(meta: DatasetMeta, files: Files) -> dict[str, Any]:
    """Return a description of a dataset, with the coding of each camera's first video."""
    table = meta.table
    videos: dict[str, Any] = {}
    for key, camera in table.cameras.items():
        # Players require that all files of a camera are coded alike.
        videos[key] = _facts_of(files, camera.paths[0]) if camera.paths else None
    first: Mapping[str, Any] = next((facts for facts in videos.values() if facts), {})
    return {
        "root": meta.root,
        "fingerprint": meta.fingerprint(),
        "codebase_version": str(meta.info["codebase_version"]),
        "episodes": len(table),
        "frames": int(table.length.sum()),
        "fps": meta.fps,
        "cameras": list(meta.camera_keys),
        "data_files": len(table.data.paths),
        "video_files": sum(len(camera.paths) for camera in table.cameras.values()),
        "codec": first.get("codec"),
        "gop": first.get("gop"),
        "videos": videos,
    }


def _facts_of(files: Files, path: str) -> dict[str, Any] | None:
    """Return how a video is coded; None if it is no video."""
    with suppress(LeconvertError), closing(files.open(path)) as opened:
        if not files.is_local:
            # The part that describes the coding; the whole file may have hundreds of megabytes.
            index = loading.open_clip(opened, keep_index=True).index
            if index is not None:
                runs = index.byte_runs(0, min(_PACKETS_LOOKED_AT, index.num_samples))
                opened.need([(start, start + length) for start, length in runs])
        return video_facts(opened.path)
    return None


def video_facts(path: str) -> dict[str, Any] | None:
    """Read how a video is coded from its header and its first packets; nothing is decoded.

    ``codec`` and ``pixel_format`` are FFmpeg's names, such as ``av1`` and ``yuv420p``. ``gop`` is
    the most frequent distance of keyframes in frames, None with one keyframe. ``has_b_frames`` is
    true if frames are shown in another order than they are stored.

    Returns:
        None if the file is no video.
    """
    from leconvert.media.pyav import opened_video

    keyframes: list[int] = []
    reordered = False
    with suppress(UnreadableSourceError), opened_video(path) as (container, stream):
        for number, packet in enumerate(container.demux(stream)):
            if not packet.size or number >= _PACKETS_LOOKED_AT:
                break
            reordered |= packet.pts != packet.dts
            if packet.is_keyframe:
                keyframes.append(number)
        context = stream.codec_context
        gaps = Counter(after - before for before, after in pairwise(keyframes))
        return {
            "codec": str(context.codec.canonical_name),
            "gop": gaps.most_common(1)[0][0] if gaps else None,
            "width": int(context.width),
            "height": int(context.height),
            "pixel_format": str(context.pix_fmt),
            "has_b_frames": reordered,
        }
    return None


def diagnose_decoding(
    root: str | None,
    *,
    data_files_root: str | None = None,
    revision: str | None = None,
    decode_device: str = "cpu",
) -> dict[str, Any]:
    """Look at the installation, and decode the first frame of a dataset's first video.

    Args:
        root: The dataset, a folder or URL; None to look at the installation only.
        data_files_root: Folder or URL of ``data/`` and ``videos/``, if not ``root``.
        revision: Branch, tag or commit on the Hub.
        decode_device: ``cpu``, ``cuda`` or ``cuda:N``.

    Returns:
        The result, as ``docs/formats/probe-result.schema.json`` describes it. ``ok`` is false if
        the frame could not be decoded; ``missing`` lists what to install.
    """
    document = begin_document("diagnose")
    versions = versions_record()
    trouble, gpus = None, []
    if versions["torch"] is not None:
        import torch

        # The modules' own versions also name the build, such as +cpu.
        versions["torch"] = torch.__version__
        if torch.cuda.is_available():
            gpus = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
        if versions["torchcodec"] is not None:
            trouble = loading.torchcodec_trouble()
            if trouble is None:
                import torchcodec

                versions["torchcodec"] = torchcodec.__version__
    ffmpeg = find_ffmpeg()
    document |= {
        "ok": True,
        "missing": missing_pieces(
            torch=versions["torch"],
            torchcodec=versions["torchcodec"],
            torchcodec_trouble=trouble,
            ffmpeg=ffmpeg,
            built_for=versions_for_torchcodec(),
            cuda=bool(gpus),
            wants_cuda=decode_device != "cpu",
        ),
        "options": {
            "root": root,
            "data_files_root": data_files_root,
            "revision": revision,
            "decode_device": decode_device,
        },
        "decoder": {
            "torchcodec_loads": versions["torchcodec"] is not None and not trouble,
            "trouble": trouble,
            "ffmpeg": None if ffmpeg is None else asdict(ffmpeg),
        },
        "gpus": gpus,
        "video": None,
        "host": host_record(),
        "versions": versions,
    }
    if versions["torch"] is None:
        return document | {"ok": False}
    try:
        if root is not None:
            meta, files = opened_dataset(root, data_files_root, revision)
            document["video"] = _first_frame(meta, files, decode_device)
        else:
            loading.choose_backend("auto", decode_device)
    except LeconvertError as error:
        document |= {"ok": False, "error": error.as_record()}
    else:
        video = document["video"]
        document["ok"] = video is None or video["error"] is None
    return document


def missing_pieces(
    *,
    torch: str | None,
    torchcodec: str | None,
    torchcodec_trouble: str | None,
    ffmpeg: FoundFfmpeg | None,
    built_for: Sequence[int],
    cuda: bool,
    wants_cuda: bool,
) -> list[str]:
    """Return what to install or repair, a sentence each, the most important first.

    Args:
        torch: The version of torch; None if it is missing.
        torchcodec: The version of torchcodec; None if it is missing.
        torchcodec_trouble: Why torchcodec does not load; None if it does, or is missing.
        ffmpeg: The FFmpeg that torchcodec finds.
        built_for: The FFmpeg versions that torchcodec is built for, ascending.
        cuda: Whether torch can use a GPU.
        wants_cuda: Whether the GPU shall decode.
    """
    missing = []
    if torch is None:
        missing.append(f"torch is not installed. Install it with `{command_for_extra('probe')}`.")
    if torchcodec is None:
        missing.append(
            "torchcodec is not installed. Decoding on a GPU and LeRobot's loaders need it. "
            f"Install it with `{command_for_extra('probe')}`."
        )
    elif ffmpeg is None:
        first, last = built_for[0], built_for[-1]
        missing.append(
            f"torchcodec {torchcodec} finds no suitable FFmpeg. Decoding on a GPU and "
            "LeRobot's loaders need torchcodec; PyAV decodes without it. Install "
            f"FFmpeg {first} to {last} with shared libraries (apt install ffmpeg), or a "
            "PyAV whose wheel contains one of these versions (av 15: FFmpeg 7, av 16 "
            "to 18: FFmpeg 8, av 19: FFmpeg 9)."
        )
    elif torchcodec_trouble is not None:
        missing.append(
            f"torchcodec cannot be imported ({torchcodec_trouble}). Install the version "
            f"that belongs to torch {torch}."
        )
    if wants_cuda and not cuda:
        missing.append(
            "torch sees no GPU. Check nvidia-smi, and install a build of torch for CUDA."
        )
    if wants_cuda and (torchcodec or "").endswith("+cpu"):
        missing.append(
            f"torchcodec {torchcodec} decodes only on the CPU. Install its build for CUDA."
        )
    return missing


def _first_frame(meta: DatasetMeta, files: Files, decode_device: str) -> dict[str, Any] | None:
    """Decode the first frame of the first video; a file that cannot be decoded is described."""
    camera = next((key for key in meta.video_keys if meta.table.cameras[key].paths), None)
    if camera is None:
        return None
    is_depth, backend = meta.is_depth(camera), loading.choose_backend("auto", decode_device)
    with closing(files.open(meta.table.cameras[camera].paths[0])) as opened:
        opened.need([(0, opened.size_bytes)])
        with Path(opened.path).open("rb") as file:
            first_bytes = file.read(32)
        found = {
            "camera": camera,
            "file": opened.name,
            "size_bytes": opened.size_bytes,
            "first_bytes": first_bytes.hex(" ", 4),
            "coded": video_facts(opened.path),
            "backend": backend,
        }
        began = time.perf_counter()
        try:
            clip = loading.open_clip(opened, keep_index=backend == "pyav" or is_depth)
            decoder = loading.open_decoder(clip, backend, device=decode_device, is_depth=is_depth)
            ((_, (frame,)),) = decoder.decode(np.zeros(1, np.int64))
        except LeconvertError as error:
            return found | {"shape": None, "seconds": None, "error": error.message}
        return found | {
            "shape": list(frame.shape),
            "device": str(frame.device),
            "seconds": time.perf_counter() - began,
            "error": None,
        }
