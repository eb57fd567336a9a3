"""``leconvert convert``."""

from __future__ import annotations

import argparse
import json
import threading
from typing import TYPE_CHECKING

from leconvert.cli.convert_push import ConvertPush
from leconvert.cli.convert_report import show_outcome
from leconvert.cli.engine_options import add_engine_options, chosen_engine
from leconvert.cli.hub_options import add_push_options, add_push_wish, push_target
from leconvert.cli.hub_source_options import Places, places, scratch_options
from leconvert.cli.options import (
    add_json,
    add_lease_options,
    add_plan_options,
    add_probe_wish,
    add_proof_options,
    add_report_option,
    repair_options,
    report_place,
)
from leconvert.cli.progress import progress_for
from leconvert.cli.signals import stop_on_signals
from leconvert.progress import Progress

if TYPE_CHECKING:
    from leconvert.conversion import ConversionReport
    from leconvert.engines import Engine

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_plan_options(parser)
    add_engine_options(parser)
    add_lease_options(parser)
    add_proof_options(parser)
    parser.add_argument(
        "--force-conversion", action="store_true", help="replace a v3.0 dataset at the target"
    )
    parser.add_argument(
        "--keep-work-dir", action="store_true", help="keep the run's records after success"
    )
    add_push_wish(parser)
    add_push_options(parser)
    add_probe_wish(parser)
    add_report_option(parser)
    parser.add_argument("--dry-run", action="store_true", help="show the plan and write nothing")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Convert, and say what was done."""
    if options.dry_run:
        from leconvert.cli import plan

        return plan.run(options)
    engine = chosen_engine(options)
    push_target(options, None)  # contradictions are told before anything is fetched
    progress = progress_for(quiet=options.json)
    with stop_on_signals() as stop:
        found = places(options, stream=bool(options.orchestrate), stop=stop, progress=progress)
        if isinstance(found, str):
            print(json.dumps({"already_converted": found}) if options.json else found)
            return 0
        push = ConvertPush(options, found)
        report = None
        if not push.alone_is_left:
            push.note()
            report = _convert(options, found, engine, stop, progress)
            found.release()
    return show_outcome(report, push, as_json=options.json)


def _convert(
    options: argparse.Namespace,
    found: Places,
    engine: Engine | None,
    stop: threading.Event,
    progress: Progress,
) -> ConversionReport:
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
        probe_seconds=options.probe_seconds if options.probe else None,
        report=report_place(options.report, found.target),
        command=options.command_line,
        stop=stop,
        progress=progress,
    )
