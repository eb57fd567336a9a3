"""The decode limit of a dataset as a result of its own."""

from __future__ import annotations

from typing import Any

from leconvert.probe.environment import cores, host_record, versions_record
from leconvert.probe.files import dataset_files
from leconvert.probe.limit import LimitPlan, limit_of, measure_limit, videos_to_decode
from leconvert.probe.measured import require_packages
from leconvert.probe.metadata import load_meta
from leconvert.probe.results import begin_document
from leconvert.probe.verdicts import dataset_record

__all__ = ["run_limit"]


def run_limit(
    root: str,
    *,
    data_files_root: str | None = None,
    revision: str | None = None,
    processes: int | None = None,
    duration_s: float = 10.0,
    decode_device: str = "cpu",
    seed: int = 0,
) -> dict[str, Any]:
    """Measure how fast the videos of a dataset decode.

    Args:
        root: The dataset.
        data_files_root: Where its files are, if elsewhere.
        revision: Of a dataset on the Hub.
        processes: How many decode at once; None for the cores.
        duration_s: Seconds of each stretch.
        decode_device: What decodes.
        seed: Of random access.

    Returns:
        The result, as ``docs/formats/probe-result.schema.json`` describes it.

    Raises:
        UsageError: torch is missing, or the device cannot decode.
        ProbeError: There are no videos, or they do not decode.
        SourceError: The dataset cannot be read.
    """
    document = begin_document("limit")
    require_packages("torch")
    from leconvert.probe.decoders import choose_backend

    backend = choose_backend("auto", decode_device)
    files = dataset_files(root, revision=revision)
    meta = load_meta(files)
    if data_files_root is not None:
        files = dataset_files(data_files_root)
    paths = videos_to_decode(meta)
    plan = LimitPlan(processes or cores(), duration_s, backend, decode_device, seed)
    rates = [rate.as_record() for rate in measure_limit(files, paths, plan)]
    return document | {
        "limit_frames_per_s": limit_of(rates),
        "rates": rates,
        "files_decoded": len(paths),
        "decoder": {"backend": backend},
        "dataset": dataset_record(meta, files),
        "options": {
            "root": root,
            "data_files_root": data_files_root,
            "revision": revision,
            "processes": plan.processes,
            "duration_s": duration_s,
            "decode_device": decode_device,
            "seed": seed,
        },
        "host": host_record(),
        "versions": versions_record(),
    }
