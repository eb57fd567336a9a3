"""What ``leconvert convert`` says when it is done."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from leconvert.cli.findings import print_findings
from leconvert.cli.text import amount

if TYPE_CHECKING:
    from leconvert.cli.convert_push import ConvertPush
    from leconvert.conversion import ConversionReport

__all__ = ["show_outcome"]


def show_outcome(report: ConversionReport | None, push: ConvertPush, *, as_json: bool) -> int:
    """Push if that is wanted, print what was done, and return the exit code.

    Args:
        report: The conversion; None where an earlier call did it.
        push: The push.
        as_json: Print a record instead of lines.
    """
    # Where the result was converted but could not be measured, the probe's code.
    code = int((report.probe or {}).get("exit_code", 0)) if report else 0
    if as_json:
        pushed, push_code = push.as_record()
        done = {} if report is None else report.as_record()
        print(json.dumps({**done, "push": pushed}, indent=2))
        return push_code or code
    if report is None:
        print("The dataset was converted before; only the push is left.")
    else:
        _print_report(report)
    push.show(push.run())
    return code


def _print_report(report: ConversionReport) -> None:
    """Print findings, sizes and places."""
    from leconvert.repairs import Repairs

    print_findings(report.findings)
    rate = report.source_bytes / report.seconds if report.seconds else 0.0
    print(
        f"Converted {report.episodes:,} episodes, {report.frames:,} frames, "
        f"{amount(report.source_bytes)} into {report.files:,} files "
        f"in {report.seconds:.1f} s ({amount(rate)}/s)."
    )
    print(f"  v3.0 dataset  {report.output}")
    if report.kept_source is not None:
        reason = f": {report.kept_because}" if report.kept_because else ""
        print(f"  kept          {report.kept_source}{reason}")
    if report.removed_source is not None:
        print(f"  removed       {report.removed_source}: all of it is proven to be in the result")
    if report.cloned_bytes:
        print(f"  shared        {amount(report.cloned_bytes)} of video with the source, not copied")
    changes = Repairs.from_record(report.repairs).summary()
    if changes:
        print(f"  changed       {changes[0]}")
        for change in changes[1:]:
            print(f"                {change}")
    print(f"  checked       {report.verified}")
    print(f"  peak memory   {_memory(report.peak_memory_bytes)}")
    if report.work_dir is not None:
        clean = f"leconvert clean {shlex.quote(str(report.work_dir))}"
        print(f"  records       {report.work_dir}; `{clean}` removes them")
    if report.report is not None:
        print(f"  report        {report.report}")
    if report.probe is not None:
        print(f"  loads         {_loading(report.probe)}")


def _memory(peak: Mapping[str, int | None]) -> str:
    command, workers = peak.get("command"), peak.get("workers")
    own = amount(command) if command else "unknown"
    return own if not workers else f"{own}, {amount(workers)} of a worker"


def _loading(probe: Mapping[str, Any]) -> str:
    if "error" in probe:
        return str(probe["message"])
    return (
        f"{probe['samples_per_s']:,.0f} samples/s, {probe['frames_per_s_node']:,.0f} decoded "
        f"frames/s, first batch after {probe['first_batch_latency_s']:.1f} s"
    )
