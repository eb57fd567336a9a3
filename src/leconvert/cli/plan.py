"""``leconvert plan``."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from leconvert.cli.findings import print_findings
from leconvert.cli.options import (
    add_json,
    add_plan_options,
    layout_options,
    places,
    repair_options,
)
from leconvert.cli.progress import progress_for
from leconvert.cli.text import amount, table

__all__ = ["add_arguments", "run"]

# A cautious rate for the estimate: one worker copies at least so much on an ordinary disk.
_BYTES_PER_SECOND_AND_WORKER = 200 * 1024**2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_plan_options(parser)
    parser.add_argument("--dry-run", action="store_true", help="show the plan and write nothing")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Plan, and show what workers will find."""
    from leconvert.planner import check_places, draft_plan, open_or_plan, summarize
    from leconvert.workdir.invocation import record_invocation

    source, target, work_dir = places(options)
    layout, repairs = layout_options(options), repair_options(options)
    progress = progress_for(quiet=options.json)
    if options.dry_run:
        check_places(source, target, work_dir)
        plan = draft_plan(source, target, layout, repairs, progress=progress).summary
    else:
        opened = open_or_plan(
            source, target, work_dir, layout, repairs,
            restart=options.restart,
            allow_mixed_versions=options.allow_mixed_versions,
            progress=progress,
        )  # fmt: skip
        record_invocation(opened.paths, opened.manifest.run_id, "plan", options.command_line)
        plan = summarize(opened)
    seconds = plan.source_bytes / _BYTES_PER_SECOND_AND_WORKER
    if options.json:
        record = {
            "source": str(source),
            "target": str(target),
            "work_dir": None if options.dry_run else str(work_dir),
            **asdict(plan),
            "estimated_worker_seconds": seconds,
        }
        print(json.dumps(record, indent=2))
        return 0
    print_findings(plan.findings)
    print(table([["stream", "files"], *plan.files.items()]))
    print(
        f"{plan.episodes:,} episodes, {plan.frames:,} frames, {amount(plan.source_bytes)} in "
        f"{plan.batches:,} batches."
    )
    if plan.cloned:
        print(
            "Video bytes will be shared with the source, not copied; the result needs about "
            f"{amount(plan.bytes_needed)} of {amount(plan.free_bytes)} free."
        )
    else:
        print(
            f"Bytes will be copied: about {seconds:.0f} s of one worker on an ordinary disk; the "
            f"result needs about {amount(plan.bytes_needed)} of {amount(plan.free_bytes)} free."
        )
    if options.dry_run:
        print("Nothing was written.")
    else:
        print(f"Planned. Start workers with: leconvert work {work_dir}")
        print(f"Then, on one host:           leconvert pack {work_dir}")
    return 0
