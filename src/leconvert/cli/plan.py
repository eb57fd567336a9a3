"""``leconvert plan``."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from leconvert.cli.options import add_json, add_plan_options, places
from leconvert.cli.progress import progress_for
from leconvert.cli.text import amount, print_findings, table

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
    from leconvert.model import LayoutOptions
    from leconvert.planner import check_places, draft_plan, open_or_plan

    source, target, work_dir = places(options)
    layout = LayoutOptions(
        options.data_file_size_in_mb, options.video_file_size_in_mb, options.episodes_per_batch
    )
    progress = progress_for(quiet=options.json)
    if options.dry_run:
        check_places(source, target, work_dir)
        draft = draft_plan(source, target, layout, progress=progress)
        streams, findings = draft.streams, draft.scan.findings
        source_bytes, batches = draft.scan.source_bytes, len(draft.batches)
        episodes, frames = draft.scan.num_episodes, int(draft.scan.length.sum())
        free_bytes: int | None = draft.free_bytes
    else:
        opened = open_or_plan(
            source, target, work_dir, layout,
            restart=options.restart,
            allow_mixed_versions=options.allow_mixed_versions,
            progress=progress,
        )  # fmt: skip
        manifest = opened.manifest
        streams, findings = manifest.streams, manifest.findings
        source_bytes, batches = manifest.source_bytes, manifest.num_batches
        episodes, frames = manifest.num_episodes, manifest.num_frames
        free_bytes = None
    seconds = source_bytes / _BYTES_PER_SECOND_AND_WORKER
    if options.json:
        record: dict[str, Any] = {
            "source": str(source),
            "target": str(target),
            "work_dir": None if options.dry_run else str(work_dir),
            "episodes": episodes,
            "frames": frames,
            "source_bytes": source_bytes,
            "files": {layout.stream: layout.num_files for layout in streams},
            "batches": batches,
            "estimated_worker_seconds": seconds,
            "free_bytes": free_bytes,
            "findings": [asdict(finding) for finding in findings],
        }
        print(json.dumps(record, indent=2))
        return 0
    print_findings(findings)
    print(table([["stream", "files"], *([s.stream, s.num_files] for s in streams)]))
    print(
        f"{episodes:,} episodes, {frames:,} frames, {amount(source_bytes)} in {batches:,} batches; "
        f"about {seconds:.0f} s of one worker on an ordinary disk."
    )
    print(f"The result needs about {amount(source_bytes)} beside the source.")
    if options.dry_run:
        print("Nothing was written.")
    else:
        print(f"Planned. Start workers with: leconvert work {work_dir}")
        print(f"Then, on one host:           leconvert pack {work_dir}")
    return 0
