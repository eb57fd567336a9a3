"""Are the frames that a loader gives the right ones? LeRobot's map-style dataset decides."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

from leconvert.errors import UsageError
from leconvert.probe.compare import compare_samples
from leconvert.probe.measured import LoaderUnderTest, SampleToCheck, Subject, require_packages
from leconvert.progress import Progress, Stage

__all__ = ["check_samples"]

_NAMED = 50


def check_samples(
    loader: LoaderUnderTest, subject: Subject, progress: Progress
) -> dict[str, Any] | None:
    """Compare samples of a loader, made in this process, with LeRobot's of the same frames.

    Args:
        loader: The loader; its workers have ended.
        subject: What it was opened on.
        progress: Where to report.

    Returns:
        Counts, and the first places that are wrong. A frame counts by sample and camera: one wrong
        step makes a window wrong, and one that cannot be decoded makes it unreadable. None for the
        map-style loader, which is the reference itself.

    Raises:
        UsageError: LeRobot is missing, or cannot read the dataset from where it is.
    """
    samples = loader.to_check()
    if samples is None:
        return None
    require_packages("torch", "lerobot", "datasets")
    from leconvert.probe.measured_lerobot import MapUnderTest

    options = subject.options
    if "://" in str(options.root) and not str(options.root).startswith("hf://datasets/"):
        raise UsageError(
            f"LeRobot cannot read {options.root}, so nothing can be compared.",
            next_step="Leave --check out, or compare on a local copy.",
        )
    # All episodes: its samples are then numbered as the dataset's frames are.
    reference = MapUnderTest(
        replace(subject, episodes=None, options=replace(options, data_files_root=None))
    ).dataset
    unreadable: list[str] = []
    with progress.stage("check", options.check, "samples") as stage:
        found = compare_samples(
            _decoded(islice(samples, options.check), unreadable, stage),
            reference,
            cameras=subject.meta.camera_keys,
        )
    return {
        "samples": found.samples,
        "refused_by_map": found.unreadable,
        "wrong_frames": sum(found.wrong_frames.values()),
        "wrong_frames_by_camera": dict(found.wrong_frames),
        "unreadable_frames": len(unreadable),
        "wrong_pad_flags": found.wrong_pads,
        "wrong_values": found.wrong_values,
        "named": [
            *dict.fromkeys(unreadable),
            *(f"frame {one.index}: {one.key} {one.what}" for one in found.differences),
        ][:_NAMED],
    }


def _decoded(
    samples: Iterator[SampleToCheck], unreadable: list[str], stage: Stage
) -> Iterator[tuple[dict[str, Any], Collection[str]]]:
    """Yield samples, each with the cameras that are black in it because nothing was decoded."""
    for sample, cameras in samples:
        stage.advance(1)
        unreadable += cameras.values()
        yield dict(sample), cameras.keys()
