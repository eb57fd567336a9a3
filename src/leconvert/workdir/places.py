"""Where source, target and work dir may be in relation to each other."""

from __future__ import annotations

from pathlib import Path

from leconvert.errors import TargetError, UsageError

__all__ = ["check_places", "source_as_output"]


def check_places(source: Path, target: Path, work_dir: Path, *, outlined: bool = False) -> None:
    """Refuse places that would mix source, target and work dir.

    Args:
        source: The dataset.
        target: Where the result goes.
        work_dir: The folder that all hosts share.
        outlined: Whether the source is an outline, which lies in the work dir.

    Raises:
        UsageError: One lies inside another.
        TargetError: The target is a file, or its parent folder is missing.
    """
    places = {"source": source, "target": target, "work dir": work_dir}
    for inner, outer in (
        # A target in the source takes its work dir with it, which nobody named.
        ("target", "source"),
        ("source", "target"),
        ("work dir", "source"),
        ("work dir", "target"),
        ("target", "work dir"),
        ("source", "work dir"),
    ):
        if (inner, outer) in {("target", "source"), ("source", "target")} and source == target:
            continue
        if (inner, outer) == ("source", "work dir") and outlined:
            continue
        if places[inner].is_relative_to(places[outer]):
            raise UsageError(
                f"The {inner} {places[inner]} lies inside the {outer} {places[outer]}.",
                path=str(places[inner]),
                next_step="Choose folders side by side.",
            )
    if not target.parent.is_dir():
        raise TargetError(
            f"The folder {target.parent}, where the result should go, does not exist.",
            path=str(target.parent),
            next_step="Make it first.",
        )


def source_as_output(source: Path) -> UsageError:
    """Return the error that refuses an output that is the source itself."""
    return UsageError(
        f"The output is the source itself, {source}, which a conversion with --output never "
        "touches.",
        path=str(source),
        next_step=f"Leave --output out: the result takes its place, and it is kept as "
        f"{source.name}_old.",
    )
