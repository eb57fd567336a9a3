"""What the client's cache holds of a dataset, for when the Hub is not to be asked."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from leconvert.errors import HubError
from leconvert.hub.origin import Origin

__all__ = ["cached_snapshot", "is_offline"]

_TAG = re.compile(r"v2\.(\d+)(?:\.(\d+))?\Z")


def is_offline() -> bool:
    """Tell whether ``HF_HUB_OFFLINE`` forbids to ask the Hub."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def cached_snapshot(repo_id: str, revision: str | None) -> tuple[Path, Origin]:
    """Return the folder of a revision in the client's cache, and which commit it is.

    Its files are links into the cache; whether all are there is not known without the Hub: the
    scan finds what is missing.

    Args:
        repo_id: ``ORG/NAME``.
        revision: A tag, branch or commit; None for the newest ``v2.x`` tag in the cache, else
            ``main``.

    Raises:
        HubError: The cache has no such revision.
    """
    from huggingface_hub import constants

    top = Path(constants.HF_HUB_CACHE) / f"datasets--{repo_id.replace('/', '--')}"
    if revision is None:
        tags = sorted(
            (tuple(int(number or 0) for number in found.groups()), path.name)
            for path in (top / "refs").glob("v2.*")
            if (found := _TAG.match(path.name))
        )
        revision = tags[-1][1] if tags else "main"
    ref = top / "refs" / revision
    commit = ref.read_text().strip() if ref.is_file() else revision
    folder = top / "snapshots" / commit
    if not folder.is_dir():
        raise HubError(
            f"HF_HUB_OFFLINE is set, and the cache has no {repo_id} at {revision}.",
            path=str(top),
            next_step="Unset HF_HUB_OFFLINE, or download it where there is a network: hf download "
            f"--repo-type dataset {shlex.quote(repo_id)} --revision {shlex.quote(revision)}",
        )
    return folder, Origin(repo_id, revision, commit)
