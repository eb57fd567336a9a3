"""``leconvert plan``."""

from __future__ import annotations

import argparse
import json
import shlex
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

from leconvert.cli.findings import print_findings
from leconvert.cli.json_option import add_json
from leconvert.cli.layout_options import layout_options
from leconvert.cli.places import places
from leconvert.cli.plan_options import add_plan_options
from leconvert.cli.plan_target import replaced_target
from leconvert.cli.plan_view import plan_lines
from leconvert.cli.progress import progress_for
from leconvert.cli.repair_options import repair_options

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
    from leconvert.plan_summary import summarize
    from leconvert.planner import draft_plan, is_outline, open_or_plan
    from leconvert.workdir.invocation import record_invocation
    from leconvert.workdir.paths import default_work_dir
    from leconvert.workdir.places import check_places

    layout, repairs = layout_options(options), repair_options(options)
    progress = progress_for(quiet=options.json)
    with ExitStack() as cleanup:
        given = options.work_dir
        if options.dry_run:  # what is fetched to plan with goes again
            begun = cleanup.enter_context(TemporaryDirectory(prefix="leconvert-plan-"))
            options.work_dir = Path(begun) / "work"
        found = places(options, stream=True, progress=progress)
        if isinstance(found, str):
            print(json.dumps({"already_converted": found}) if options.json else found)
            return 0
        source, target, work_dir = found.source, found.target, found.work_dir
        arrival = found.arrival
        if options.dry_run:
            work_dir = default_work_dir(target) if given is None else given.resolve()
        check_places(source, target, work_dir, outlined=is_outline(arrival))
        replaced = replaced_target(options, source, target, work_dir)
        if options.dry_run:
            plan = draft_plan(
                source, target, work_dir, layout, repairs, arrival=arrival, progress=progress
            ).summary
        else:
            opened = open_or_plan(
                source, target, work_dir, layout, repairs,
                arrival=arrival,
                restart=options.restart,
                one_host=options.one_host,
                allow_mixed_versions=options.allow_mixed_versions,
                progress=progress,
            )  # fmt: skip
            record_invocation(opened.paths, opened.manifest.run_id, "plan", options.command_line)
            plan = summarize(opened)
    # Nobody knows how long decoding takes here.
    seconds = None if plan.decoded_cameras else plan.source_bytes / _BYTES_PER_SECOND_AND_WORKER
    if options.json:
        record = {
            "source": (arrival.outline if arrival else None) or str(source),
            "target": str(target),
            "work_dir": None if options.dry_run else str(work_dir),
            **asdict(plan),
            "estimated_worker_seconds": seconds,
        }
        print(json.dumps(record, indent=2))
        return 0
    print_findings(plan.findings)
    print("\n".join(plan_lines(plan, seconds)))
    if options.dry_run:
        print("Nothing was written.")
    else:
        pack = ["leconvert", "pack", str(work_dir), *(["--force-conversion"] if replaced else [])]
        print(f"Planned. Start workers with: leconvert work {shlex.quote(str(work_dir))}")
        print(f"Then, on one host:           {shlex.join(pack)}")
    if replaced:
        print(f"{target} holds a v3.0 dataset, which is then kept as {replaced}.")
    return 0
