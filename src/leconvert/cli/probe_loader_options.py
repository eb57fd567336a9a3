"""Options of how a probe makes batches; a measurement and a training share them."""

from __future__ import annotations

import argparse

__all__ = ["add_loader_options"]


def add_loader_options(group: argparse._ActionsContainer) -> None:
    """Add what says how batches are made."""
    group.add_argument(
        "--batch-size", type=int, metavar="N", help="samples of a batch (default: 16)"
    )
    group.add_argument(
        "--num-workers",
        type=int,
        metavar="N",
        help="processes that load; 0 loads in this one (default: cores, at most 4)",
    )
    group.add_argument(
        "--prefetch-factor",
        type=int,
        metavar="N",
        help="batches that a worker prepares (default: 2)",
    )
    group.add_argument(
        "--episode-pool-size", "--buffer-size", type=int, metavar="N",
        help="episodes that stream mixes, or frames that stream-lerobot buffers",
    )  # fmt: skip
    group.add_argument(
        "--max-buffer-input-shards", "--max-num-shards", type=int, metavar="N",
        help="files that stream-lerobot reads side by side",
    )  # fmt: skip
    group.add_argument(
        "--video-decoder-cache-size", type=int, metavar="N", help="open decoders of a worker"
    )
    group.add_argument(
        "--video-fetch-workers", type=int, metavar="N",
        help="threads of a worker that fetch and decode ahead (stream)",
    )  # fmt: skip
    group.add_argument("--device", metavar="DEVICE", help="where batches go: cpu (default), cuda")
    group.add_argument(
        "--decode-device", "--video-decode-device", metavar="DEVICE",
        help="what decodes: cpu (default), or cuda for NVDEC (stream only)",
    )  # fmt: skip
