"""The user's own folders, which a container may not have."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from leconvert.errors import UsageError

__all__ = ["home_folder", "lerobot_home"]


def home_folder() -> Path:
    """Return the user's home folder.

    Raises:
        UsageError: There is none: HOME is not set, and the user id has no name, as in containers.
    """
    try:
        return Path.home()
    except RuntimeError:
        raise UsageError(
            "This user has no home folder: HOME is not set, and the user id has no name.",
            next_step="Set HOME to a folder that this user may write to.",
        ) from None


def lerobot_home(environment: Mapping[str, str] = os.environ) -> Path:
    """Return where LeRobot keeps datasets: ``HF_LEROBOT_HOME``, else ``lerobot`` in ``HF_HOME``.

    Args:
        environment: The process's environment.

    Raises:
        UsageError: Neither is set, and there is no home folder for the default.
    """
    given = environment.get("HF_LEROBOT_HOME")
    if given is not None:
        return Path(os.path.expanduser(given))  # noqa: PTH111 - never fails, as Path's does
    hub_home = environment.get("HF_HOME")
    cache = home_folder() / ".cache" / "huggingface" if hub_home is None else Path(hub_home)
    return Path(os.path.expanduser(cache / "lerobot"))  # noqa: PTH111
