"""What a plan comes to, for people to look at before any work is done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from leconvert.model import Finding, StreamLayout, camera_of
from leconvert.repairs import Repairs
from leconvert.space import SpaceNeeded, space_needed
from leconvert.workdir.opened import OpenedRun

__all__ = ["PlanSummary", "decoded_cameras", "summarize"]


@dataclass(frozen=True, slots=True)
class PlanSummary:
    """What a plan comes to, before any work is done.

    Attributes:
        episodes: Episodes of the dataset.
        frames: Frames of the dataset.
        source_bytes: Bytes of its data and video files.
        files: Output files of each stream.
        batches: Batches of work.
        block_align: Block alignment of episodes in video files, in bytes; 0 for none.
        space: What it takes beside the source.
        findings: What the scan found.
        decoded_cameras: Those whose clips are decoded, as their statistics are computed.
    """

    episodes: int
    frames: int
    source_bytes: int
    files: Mapping[str, int]
    batches: int
    block_align: int
    space: SpaceNeeded
    findings: Sequence[Finding]
    decoded_cameras: Sequence[str]


def summarize(run: OpenedRun) -> PlanSummary:
    """Return what a written plan comes to."""
    manifest = run.manifest
    scans = [run.scan.stream(layout.stream)[0] for layout in manifest.streams]
    return PlanSummary(
        episodes=manifest.num_episodes,
        frames=manifest.num_frames,
        source_bytes=manifest.source_bytes,
        files={layout.stream: layout.num_files for layout in manifest.streams},
        batches=manifest.num_batches,
        block_align=manifest.block_align,
        space=space_needed(
            None if manifest.outline else Path(manifest.source),
            Path(manifest.target),
            run.paths.root,
            manifest.block_align,
            scans,
            run.batches,
            has_links=run.one_host is None or run.one_host.has_links,
        ),
        findings=manifest.findings,
        decoded_cameras=decoded_cameras(manifest.streams, manifest.repairs),
    )


def decoded_cameras(streams: Sequence[StreamLayout], repairs: Repairs) -> tuple[str, ...]:
    """Return the cameras whose statistics are computed."""
    cameras = (camera_of(layout.stream) for layout in streams)
    return tuple(key for key in cameras if key is not None and key in repairs.computed_stats)
