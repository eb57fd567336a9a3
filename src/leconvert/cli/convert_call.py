"""From the options of ``leconvert convert`` to the call that converts."""

from __future__ import annotations

import argparse
import threading
from typing import TYPE_CHECKING

from leconvert.cli.places import Places
from leconvert.cli.repair_options import repair_options
from leconvert.cli.report_option import report_place
from leconvert.cli.scratch_options import scratch_options
from leconvert.progress import Progress

if TYPE_CHECKING:
    from leconvert.conversion import ConversionReport
    from leconvert.engines import Engine

__all__ = ["convert_as_asked"]


def convert_as_asked(
    options: argparse.Namespace,
    found: Places,
    engine: Engine | None,
    stop: threading.Event,
    progress: Progress,
    *,
    for_push: bool,
) -> ConversionReport:
    """Convert, as the options say.

    Args:
        options: Of ``leconvert convert``.
        found: Where source, target and work dir are.
        engine: Starts the workers; None for threads or processes of this machine.
        stop: Set it from another thread to stop.
        progress: Where to report.
        for_push: Whether the result shall be pushed.

    Raises:
        LeconvertError: One of its subclasses.
    """
    from leconvert.conversion import LeaseOptions, convert

    # Nobody watches workers on other hosts: they bear with a disk that fails for a while.
    trouble_seconds = 0.0 if engine is None else 120.0

    return convert(
        found.source,
        arrival=found.arrival,
        output=None if found.target == found.source else found.target,
        work_dir=found.work_dir if options.work_dir is not None else None,
        data_file_size_in_mb=options.data_file_size_in_mb,
        video_file_size_in_mb=options.video_file_size_in_mb,
        episodes_per_batch=options.episodes_per_batch,
        block_align=options.block_align,
        layout=options.layout,
        loader_workers=options.loader_workers,
        repairs=repair_options(options),
        orchestrate=options.orchestrate,
        engine=engine,
        num_workers=options.num_workers,
        max_workers=options.max_workers,
        verify=options.verify,
        force_conversion=options.force_conversion,
        delete_source=options.delete_source,
        restart=options.restart,
        one_host=options.one_host,
        allow_mixed_versions=options.allow_mixed_versions,
        leases=LeaseOptions(options.lease_seconds, options.max_attempts, trouble_seconds),
        scratch=scratch_options(options),
        keep_work_dir=options.keep_work_dir,
        for_push=for_push,
        probe_seconds=options.probe_seconds if options.probe else None,
        report=report_place(options.report, found.target),
        command=options.command_line,
        stop=stop,
        progress=progress,
    )
