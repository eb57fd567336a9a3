"""What `leconvert verify` is given, before anything is compared: a wrong path is no difference."""

from __future__ import annotations

from pathlib import Path

from leconvert.errors import SourceError, UsageError
from leconvert.workdir.target import codebase_version, is_converted, old_dir

__all__ = ["check_places"]

_V30_EPISODES = "meta/episodes"  # a result that says v2.1 of itself is a damaged one
_ROLES = "RESULT is the v3.0 dataset, --source the v2.x dataset that it was made from."


def check_places(result: Path, source: Path | str) -> None:
    """Refuse a result that is none, and a source that is a result.

    A result that lacks files, its ``meta/info.json`` even, passes: that is for verify to find.

    Args:
        result: What shall be the v3.0 dataset.
        source: What shall be the v2.x dataset; a URL is not looked at.

    Raises:
        UsageError: There is no result, or the two were given the wrong way round.
        SourceError: The source is a v3.0 dataset.
    """
    if not result.is_dir():
        raise UsageError(f"{result} is not a folder.", path=str(result), next_step=_ROLES)
    converted = isinstance(source, Path) and is_converted(source)
    version = codebase_version(result)
    if version is not None and version.startswith("v2") and not (result / _V30_EPISODES).is_dir():
        swapped = " The two were given the wrong way round." if converted else ""
        raise UsageError(
            f"{result} is a {version} dataset, not a result.{swapped}",
            path=str(result),
            next_step=_ROLES,
        )
    if version is None and not (result / "meta").is_dir():
        raise UsageError(
            f"{result} holds no v3.0 dataset: it has no meta/.", path=str(result), next_step=_ROLES
        )
    if isinstance(source, Path) and converted:
        kept = old_dir(source)
        raise SourceError(
            f"{source} is already v3.0, and a result is compared with the v2.x dataset that it was "
            "made from.",
            path=str(source),
            next_step=f"The source that a conversion in place kept is {kept}."
            if kept.is_dir()
            else _ROLES,
        )
