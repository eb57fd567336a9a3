"""``leconvert pack``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from leconvert.cli.options import add_json, add_report_option, add_version_option, report_place
from leconvert.cli.progress import progress_for
from leconvert.cli.signals import stop_on_signals

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("work_dir", type=Path, metavar="WORK_DIR", help="the run's shared folder")
    parser.add_argument(
        "--no-wait", action="store_true", help="do not wait for workers; say what is missing"
    )
    parser.add_argument(
        "--verify",
        choices=("structure", "bytes", "none"),
        default="structure",
        help="what is proven before the result takes its place (default: structure)",
    )
    parser.add_argument(
        "--force-conversion", action="store_true", help="replace a v3.0 dataset at the target"
    )
    add_version_option(parser)
    add_report_option(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Pack, and say where the result is."""
    from leconvert.packer import PackOptions, pack_run
    from leconvert.report import telling
    from leconvert.workdir.invocation import record_invocation
    from leconvert.workdir.opened import open_run

    opened = open_run(options.work_dir.resolve(), allow_mixed_versions=options.allow_mixed_versions)
    page = report_place(options.report, Path(opened.manifest.target))
    with telling(opened, page), stop_on_signals() as stop:
        record_invocation(opened.paths, opened.manifest.run_id, "pack", options.command_line)
        packed = pack_run(
            opened,
            PackOptions(verify=options.verify, force_conversion=options.force_conversion),
            wait=not options.no_wait,
            stop=stop,
            progress=progress_for(quiet=options.json),
        )
    if options.json:
        print(json.dumps(packed.as_record(), indent=2))
        return 0
    print(f"v3.0 dataset  {packed.target}")
    if packed.kept is not None:
        print(f"kept          {packed.kept}")
    print(
        f"{packed.linked} files linked, {packed.copied} copied, {packed.joined} joined; "
        f"checked: {packed.verified}"
    )
    if page is not None:
        print(f"report        {page}")
    return 0
