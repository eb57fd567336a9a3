"""``leconvert probe diagnose``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from typing import Any

from leconvert.cli.options import add_json
from leconvert.cli.probe_options import add_dataset_options
from leconvert.support.errors import ProbeError
from leconvert.support.text import amount


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_dataset_options(parser)
    parser.add_argument(
        "--decode-device", "--video-decode-device", default="cpu", metavar="DEVICE",
        help="what is to decode: cpu (default) or cuda",
    )  # fmt: skip
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Look, and say what is there and what is missing."""
    from leconvert.bench import dataset_place, diagnose_decoding

    named = options.root is not None or options.repo_id is not None
    document = diagnose_decoding(
        dataset_place(options.root, options.repo_id) if named else None,
        data_files_root=options.data_files_root,
        revision=options.revision,
        decode_device=options.decode_device,
    )
    if options.json:
        print(json.dumps(document, indent=2))
    else:
        print("\n".join(_lines(document)))
    if document["ok"]:
        return 0
    video, failed = document["video"], document.get("error")
    why = failed["message"] if failed else (video or {}).get("error") or document["missing"][0]
    print(f"leconvert: {why}", file=sys.stderr)
    if failed and failed["next_step"]:
        print(f"  → {failed['next_step']}", file=sys.stderr)
    return ProbeError.exit_code


def _lines(document: Mapping[str, Any]) -> list[str]:
    versions, decoder, video = document["versions"], document["decoder"], document["video"]
    installed = ", ".join(f"{name} {version or 'missing'}" for name, version in versions.items())
    ffmpeg = decoder["ffmpeg"]
    found = f"FFmpeg {ffmpeg['major']}, {ffmpeg['origin']}" if ffmpeg else "none that loads"
    loads = "loads" if decoder["torchcodec_loads"] else decoder["trouble"] or "missing"
    lines = [
        f"installed   {installed}",
        f"FFmpeg      {found}",
        f"torchcodec  {loads}",
        f"GPUs        {', '.join(document['gpus']) or 'none'}",
    ]
    if video is not None:
        coded = video["coded"] or {}
        lines += [
            f"video       {video['file']} ({amount(video['size_bytes'])})",
            f"bytes       {video['first_bytes']}",
            f"codec       {coded.get('codec')}, {coded.get('width')}x{coded.get('height')} "
            f"{coded.get('pixel_format')}, a keyframe every {coded.get('gop')} frames",
        ]
        lines.append(
            f"decoded     by {video['backend']}, shape {video['shape']}, "
            f"{video['seconds'] * 1000:.0f} ms with opening"
            if video["error"] is None
            else f"decoded     no: {video['error']}"
        )
    if "error" in document:
        lines.append(f"failed      {document['error']['message']}")
    return lines + [f"missing     {sentence}" for sentence in document["missing"]]
