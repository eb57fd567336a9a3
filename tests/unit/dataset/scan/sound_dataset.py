"""The tiny dataset that tests damage: its parts, and the findings of a scan of it."""

from __future__ import annotations

from leconvert.model.values import Finding, SourceScan
from leconvert.testing import CameraSpec, DatasetSpec

LENGTHS = [6, 5, 4, 7]
TOP = "observation.images.top"
WRIST = "observation.images.wrist"
SOUND = DatasetSpec(
    episodes=len(LENGTHS),
    frames=LENGTHS,
    cameras=(CameraSpec(key=TOP, width=64, height=48), CameraSpec(key=WRIST, width=32, height=32)),
    tasks=("Pick up the cube.",),
    has_done=True,
    matrix_shape=(2, 3),
)


def severities(scan: SourceScan) -> dict[str, set[str]]:
    """Return a scan's codes, each with its severities."""
    found: dict[str, set[str]] = {}
    for finding in scan.findings:
        found.setdefault(finding.code, set()).add(finding.severity)
    return found


def only(scan: SourceScan, code: str) -> Finding:
    """Return a scan's only finding, which must have a code."""
    assert [finding.code for finding in scan.findings] == [code], scan.findings
    return scan.findings[0]
