"""``leconvert demo``: make a small dataset, convert it, and compare every byte."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from shutil import rmtree
from typing import NamedTuple

from leconvert.api import ConversionReport, convert
from leconvert.cli.main import end_on_signals
from leconvert.cli.output import progress_for, show
from leconvert.cli.parser import add_output
from leconvert.run.proof import VerificationReport, verify_pair
from leconvert.support.errors import StorageError, TargetError, VerificationError
from leconvert.support.progress import NO_PROGRESS, Progress
from leconvert.support.text import amount
from leconvert.testing import CameraSpec, DatasetSpec, make_dataset

DEMO_SPEC = DatasetSpec(
    episodes=6,
    frames=[60, 45, 75, 1, 50, 64],
    fps=30,
    cameras=(
        CameraSpec(key="observation.images.top", width=160, height=120),
        CameraSpec(key="observation.images.wrist", width=96, height=96),
    ),
)


class DemoReport(NamedTuple):
    """The demo's conversion and the check of its result."""

    conversion: ConversionReport
    verification: VerificationReport


def run_demo(folder: Path, *, progress: Progress = NO_PROGRESS) -> DemoReport:
    """Make a v2.1 dataset with two cameras, convert it, and compare every byte.

    If it is interrupted or the disk is full, an empty folder is left.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise TargetError(
            f"{folder} is not empty." if folder.is_dir() else f"{folder} is a file.",
            path=str(folder),
            next_step="Name a new folder.",
        )
    folder.mkdir(parents=True, exist_ok=True)
    try:
        source = make_dataset(folder / "demo_v21", DEMO_SPEC)
        progress.say(f"Made a v2.1 dataset of {DEMO_SPEC.episodes} episodes in {source}")
        conversion = convert(source, output=folder / "demo_v30", progress=progress)
        verification = verify_pair(conversion.output, source, depth="bytes", progress=progress)
    except (KeyboardInterrupt, StorageError, OSError):
        # Half a demo is of no use, and the same command would refuse the folder.
        for made in folder.iterdir():
            rmtree(made, ignore_errors=True)
        raise
    return DemoReport(conversion, verification)


# ``leconvert demo``.


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "folder",
        type=Path,
        nargs="?",
        default=Path("leconvert-demo"),
        metavar="FOLDER",
        help="the new folder for both datasets (default: leconvert-demo)",
    )
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Run the demo, and print the outcome and the places."""
    with end_on_signals():
        report = run_demo(options.folder.resolve(), progress=progress_for(options))
    proof = report.verification
    record = {
        "conversion": report.conversion.as_record(),
        "verified": {
            name: getattr(proof, name) for name in ("ok", "depth", "rows", "video_frames")
        },
    }
    return show(options, record, _lines(report), 0 if proof.ok else VerificationError.exit_code)


def _lines(report: DemoReport) -> Iterator[str]:
    done, proof = report.conversion, report.verification
    yield f"v2.1 dataset  {done.source}  ({amount(done.source_bytes)})"
    yield f"v3.0 dataset  {done.output}  ({done.files} files, {done.seconds:.2f} s)"
    yield from map(str, proof.differences)
    if proof.ok:
        yield (
            f"Verified: {proof.rows:,} rows and {proof.video_frames:,} camera frames of "
            f"{proof.episodes} episodes hold the same bytes as the source, at exact times."
        )
