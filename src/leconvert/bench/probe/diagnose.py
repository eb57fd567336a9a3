"""Can this machine decode this dataset on that device, and if not, what is missing?"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from leconvert.bench.environment import (
    FoundFfmpeg,
    find_ffmpeg,
    host_record,
    versions_for_torchcodec,
    versions_record,
    video_facts,
)
from leconvert.bench.results import begin_document
from leconvert.loading import DatasetMeta, Files, OpenFile, files_at, load_meta
from leconvert.support.errors import LeconvertError
from leconvert.support.extras import command_for_extra

__all__ = ["diagnose_decoding", "missing_pieces"]

_FIRST_BYTES = 32


@dataclass(frozen=True, slots=True)
class _Pieces:
    """What is there, as far as what to install depends on it."""

    torch: str | None  # its version; None if it is missing.
    torchcodec: str | None  # likewise
    torchcodec_trouble: str | None  # why it does not load; None if it does, or is missing.
    ffmpeg: FoundFfmpeg | None  # the FFmpeg that torchcodec finds
    built_for: tuple[int, ...]  # the FFmpeg versions that torchcodec is built for, ascending
    cuda: bool  # whether torch can use a GPU
    wants_cuda: bool  # whether the GPU is to decode


def missing_pieces(pieces: _Pieces) -> list[str]:
    """Return what to install or mend, a sentence each, the most important first."""
    missing = []
    if pieces.torch is None:
        missing.append(f"torch is not installed: run `{command_for_extra('probe')}`.")
    if pieces.torchcodec is None:
        missing.append(
            "torchcodec is not installed; decoding on a GPU and LeRobot's loaders need it: run "
            f"`{command_for_extra('probe')}`."
        )
    elif pieces.ffmpeg is None:
        first, last = pieces.built_for[0], pieces.built_for[-1]
        missing.append(
            f"torchcodec {pieces.torchcodec} finds no FFmpeg that it is built for; decoding on a "
            f"GPU and LeRobot's loaders need it, PyAV decodes all the same: install FFmpeg {first} "
            f"to {last} with its shared libraries (apt install ffmpeg), or a PyAV whose wheel "
            "carries one of these (av 15 carries FFmpeg 7, av 16 to 18 carry 8, av 19 carries 9)."
        )
    elif pieces.torchcodec_trouble is not None:
        missing.append(
            f"torchcodec does not load ({pieces.torchcodec_trouble}): install the version that "
            f"belongs to torch {pieces.torch}."
        )
    if pieces.wants_cuda and not pieces.cuda:
        missing.append("torch sees no GPU: check nvidia-smi, and install a torch build for CUDA.")
    if pieces.wants_cuda and (pieces.torchcodec or "").endswith("+cpu"):
        missing.append(
            f"torchcodec {pieces.torchcodec} decodes on the CPU only: install its build for CUDA."
        )
    return missing


def diagnose_decoding(
    root: str | None,
    *,
    data_files_root: str | None = None,
    revision: str | None = None,
    decode_device: str = "cpu",
) -> dict[str, Any]:
    """Look at what is installed and, of a dataset, decode the first frame of its first video.

    Returns:
        The result, as ``docs/formats/probe-result.schema.json`` describes it. ``ok`` is false if
        the frame could not be decoded as asked; ``missing`` says what to install.
    """
    document = begin_document("diagnose")
    versions = versions_record()
    pieces = _look(versions, decode_device)
    versions |= {"torch": pieces.torch, "torchcodec": pieces.torchcodec}
    document |= {
        "ok": True,
        "missing": missing_pieces(pieces),
        "options": {
            "root": root,
            "data_files_root": data_files_root,
            "revision": revision,
            "decode_device": decode_device,
        },
        "decoder": {
            "torchcodec_loads": pieces.torchcodec is not None and not pieces.torchcodec_trouble,
            "trouble": pieces.torchcodec_trouble,
            "ffmpeg": None if pieces.ffmpeg is None else asdict(pieces.ffmpeg),
        },
        "gpus": _gpus(),
        "video": None,
        "host": host_record(),
        "versions": versions,
    }
    if pieces.torch is None:
        return document | {"ok": False}
    try:
        if root is not None:
            files = files_at(root, revision=revision)
            meta = load_meta(files)
            if data_files_root is not None:
                files = files_at(data_files_root)
            document["video"] = _first_frame(meta, files, decode_device)
        else:
            _choose(decode_device)
    except LeconvertError as error:
        document |= {"ok": False, "error": error.as_record()}
    else:
        video = document["video"]
        document["ok"] = video is None or video["error"] is None
    return document


def _look(versions: Mapping[str, Any], decode_device: str) -> _Pieces:
    trouble, cuda = None, False
    torch_version, torchcodec_version = versions["torch"], versions["torchcodec"]
    if importlib.util.find_spec("torch") is not None:
        import torch

        from leconvert.loading import torchcodec_trouble

        cuda = bool(torch.cuda.is_available())
        # What the modules say names the build too, such as +cpu.
        torch_version = torch.__version__
        if torchcodec_version is not None:
            trouble = torchcodec_trouble()
        if torchcodec_version is not None and trouble is None:
            import torchcodec

            torchcodec_version = torchcodec.__version__
    return _Pieces(
        torch=torch_version,
        torchcodec=torchcodec_version,
        torchcodec_trouble=trouble,
        ffmpeg=find_ffmpeg(),
        built_for=tuple(versions_for_torchcodec()),
        cuda=cuda,
        wants_cuda=decode_device != "cpu",
    )


def _gpus() -> list[str]:
    if importlib.util.find_spec("torch") is None:
        return []
    import torch

    if not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]


def _choose(decode_device: str) -> str:
    from leconvert.loading import choose_backend

    return choose_backend("auto", decode_device)


def _first_frame(meta: DatasetMeta, files: Files, decode_device: str) -> dict[str, Any] | None:
    """Decode the first frame of the first video; a file that cannot be decoded is described."""
    camera = next((key for key in meta.video_keys if meta.episodes.cameras[key].paths), None)
    if camera is None:
        return None
    opened = files.open(meta.episodes.cameras[camera].paths[0])
    try:
        opened.need([(0, opened.size_bytes)])
        return {
            "camera": camera,
            "file": opened.name,
            "size_bytes": opened.size_bytes,
            **_described(opened),
            **_decoded(opened, decode_device, is_depth=meta.is_depth(camera)),
        }
    finally:
        opened.close()


def _described(opened: OpenFile) -> dict[str, Any]:
    import av

    with Path(opened.path).open("rb") as file:
        first = file.read(_FIRST_BYTES)
        file.seek(0)
        facts = None
        with suppress(av.error.FFmpegError, OSError, IndexError):  # the decoder says what is wrong
            facts = video_facts(file).as_record()
    return {"first_bytes": first.hex(" ", 4), "coded": facts}


def _decoded(opened: OpenFile, decode_device: str, *, is_depth: bool) -> dict[str, Any]:
    import numpy as np

    from leconvert.loading import open_clip, open_decoder

    backend = _choose(decode_device)
    began = time.perf_counter()
    try:
        clip = open_clip(opened, keep_index=backend == "pyav" or is_depth)
        decoder = open_decoder(clip, backend, device=decode_device, is_depth=is_depth)  # type: ignore[arg-type]
        ((_, frames),) = decoder.decode(np.zeros(1, np.int64))
        frame = frames[0]
    except LeconvertError as error:
        return {"backend": backend, "shape": None, "seconds": None, "error": error.message}
    return {
        "backend": backend,
        "shape": list(frame.shape),
        "device": str(frame.device),
        "seconds": time.perf_counter() - began,
        "error": None,
    }
