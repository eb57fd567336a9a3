"""Says what a plan comes to: files, batches, and the room and time that they take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leconvert.cli.text import amount, duration, table
from leconvert.text import count

if TYPE_CHECKING:
    from leconvert.plan_summary import PlanSummary

__all__ = ["plan_lines"]


def plan_lines(plan: PlanSummary, seconds: float | None) -> list[str]:
    """Return the lines.

    Args:
        plan: What it comes to.
        seconds: How long one worker may copy; None where nobody knows.
    """
    lines = [
        table([["stream", "files"], *plan.files.items()]),
        f"{plan.episodes:,} episodes, {plan.frames:,} frames, {amount(plan.source_bytes)} in "
        f"{plan.batches:,} batches.",
    ]
    if plan.space.cloned:
        lines.append("Video bytes will be shared with the source, not copied.")
    elif seconds is None:
        lines.append("Bytes will be copied.")
    else:
        lines.append(
            f"Bytes will be copied: about {_time(seconds)} of one worker on an ordinary disk."
        )
    if plan.decoded_cameras:
        lines.append(
            f"Pictures of {count(len(plan.decoded_cameras), 'camera')} will be decoded for their "
            "statistics, which takes longer."
        )
    for room in plan.space.rooms:
        free = "an unknown room" if room.free_bytes is None else amount(room.free_bytes)
        lines.append(f"It needs about {amount(room.bytes_needed)} of {free} free in {room.folder}.")
    if plan.space.twice_bytes:
        lines.append(f"{amount(plan.space.twice_bytes)} of it are free again after the swap.")
    return lines


def _time(seconds: float) -> str:
    return "a second" if seconds < 1.5 else duration(seconds)
