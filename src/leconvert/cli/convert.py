"""``leconvert convert``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from leconvert.cli.findings import print_findings
from leconvert.cli.options import (
    add_json,
    add_lease_options,
    add_plan_options,
    add_report_option,
    places,
    push_wanted,
    repair_options,
    report_place,
)
from leconvert.cli.progress import progress_for
from leconvert.cli.signals import stop_on_signals
from leconvert.cli.text import amount

if TYPE_CHECKING:
    from leconvert.conversion import ConversionReport

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_plan_options(parser)
    parser.add_argument(
        "--orchestrate",
        action=argparse.BooleanOptionalAction,
        help="work in processes that lease batches from the work dir; more can join with "
        "`leconvert work` (default: where the work is many small files)",
    )
    parser.add_argument("--num-workers", type=int, metavar="N", help="work in N processes")
    parser.add_argument("--max-workers", type=int, metavar="N", help="work in N threads")
    add_lease_options(parser)
    parser.add_argument(
        "--verify",
        choices=("structure", "bytes", "none"),
        default="structure",
        help="what is proven before the result takes its place (default: structure)",
    )
    parser.add_argument("--no-verify", action="store_const", const="none", dest="verify")
    parser.add_argument(
        "--force-conversion", action="store_true", help="replace a v3.0 dataset at the target"
    )
    parser.add_argument(
        "--keep-work-dir", action="store_true", help="keep the run's records after success"
    )
    parser.add_argument("--push-to-hub", nargs="?", const="true", metavar="BOOL", help="not yet")
    parser.add_argument("--no-push", action="store_true", help="never write to the Hub")
    parser.add_argument(
        "--probe", action="store_true", help="measure how fast the result loads; needs torch"
    )
    parser.add_argument(
        "--probe-seconds", type=float, default=10.0, metavar="S", help="for so long (default: 10)"
    )
    add_report_option(parser)
    parser.add_argument("--dry-run", action="store_true", help="show the plan and write nothing")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Convert, and say what was done."""
    if options.dry_run:
        from leconvert.cli import plan

        return plan.run(options)
    from leconvert.conversion import LeaseOptions, convert
    from leconvert.repairs import Repairs

    source, target, work_dir = places(options)
    push_wanted(options)
    with stop_on_signals() as stop:
        report = convert(
            source,
            output=None if target == source else target,
            work_dir=work_dir if options.work_dir is not None else None,
            data_file_size_in_mb=options.data_file_size_in_mb,
            video_file_size_in_mb=options.video_file_size_in_mb,
            episodes_per_batch=options.episodes_per_batch,
            block_align=options.block_align,
            layout=options.layout,
            loader_workers=options.loader_workers,
            repairs=repair_options(options),
            orchestrate=options.orchestrate,
            num_workers=options.num_workers,
            max_workers=options.max_workers,
            verify=options.verify,
            force_conversion=options.force_conversion,
            restart=options.restart,
            allow_mixed_versions=options.allow_mixed_versions,
            leases=LeaseOptions(options.lease_seconds, options.max_attempts),
            keep_work_dir=options.keep_work_dir,
            probe_seconds=options.probe_seconds if options.probe else None,
            report=report_place(options.report, target),
            command=options.command_line,
            stop=stop,
            progress=progress_for(quiet=options.json),
        )
    if options.json:
        print(json.dumps(report.as_record(), indent=2))
        return _exit_code(report)
    print_findings(report.findings)
    rate = report.source_bytes / report.seconds if report.seconds else 0.0
    print(
        f"Converted {report.episodes:,} episodes, {report.frames:,} frames, "
        f"{amount(report.source_bytes)} into {report.files:,} files "
        f"in {report.seconds:.1f} s ({amount(rate)}/s)."
    )
    print(f"  v3.0 dataset  {report.output}")
    if report.kept_source is not None:
        print(f"  kept          {report.kept_source}")
    if report.cloned_bytes:
        print(f"  shared        {amount(report.cloned_bytes)} of video with the source, not copied")
    changes = Repairs.from_record(report.repairs).summary()
    if changes:
        print(f"  changed       {changes[0]}")
        for change in changes[1:]:
            print(f"                {change}")
    print(f"  checked       {report.verified}")
    if not options.no_push:
        print("  Hub           nothing was pushed; a local dataset is pushed only on request")
    if report.report is not None:
        print(f"  report        {report.report}")
    if report.probe is not None:
        print(f"  loads         {_loading(report.probe)}")
    return _exit_code(report)


def _loading(probe: Mapping[str, Any]) -> str:
    if "error" in probe:
        return str(probe["message"])
    return (
        f"{probe['samples_per_s']:,.0f} samples/s, {probe['frames_per_s_node']:,.0f} decoded "
        f"frames/s, first batch after {probe['first_batch_latency_s']:.1f} s"
    )


def _exit_code(report: ConversionReport) -> int:
    """Return 0; where the result was converted but could not be measured, the probe's code."""
    return int((report.probe or {}).get("exit_code", 0))
