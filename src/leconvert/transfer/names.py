"""Names of datasets on the Hub.

A dataset is a repository, or a folder of one: ``ORG/NAME`` or ``ORG/NAME/path/to/dataset``. All
names ``repo_id`` in leconvert have this form; only this module takes them apart.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from urllib.parse import unquote

from leconvert.support.errors import UsageError
from leconvert.support.values import dataclass

_REPO = r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*"
_NAME = rf"{_REPO}(?:/[^/@]+)*"
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_PLACE = re.compile(rf"(?:hf://datasets/)?({_NAME})(?:@([^@\s]+))?\Z")
# As the Hub's own client writes it. With other revisions, the start of the folder is uncertain.
_CLIENTS_PLACE = re.compile(
    rf"hf://datasets/({_REPO})@([0-9a-f]{{40}}|main|v[0-9][0-9.]*)(/[^@]+)\Z"
)
_PAGE = re.compile(
    rf"https://(?:huggingface\.co|hf\.co)/datasets/({_REPO})(?:/tree/([^/\s]+)((?:/[^/\s]+)*))?\Z"
)


@dataclass(frozen=True, slots=True)
class HubName:
    """A dataset on the Hub, as a user names it.

    Attributes:
        repo_id: ``ORG/NAME``, or ``ORG/NAME/path/to/dataset``.
        revision: A tag, branch or commit; None for the newest tag ``v2.x``, else ``main``.
    """

    repo_id: str
    revision: str | None = None

    def __str__(self) -> str:
        return f"hf://datasets/{self.repo_id}" + (f"@{self.revision}" if self.revision else "")

    @property
    def folder(self) -> str:
        """The dataset's folder in its repository; empty if the dataset is the whole repository."""
        return folder_of(self.repo_id)

    @classmethod
    def parse(cls, text: str, *, bare: bool = True) -> HubName | None:
        """Return the dataset for a name or URL, with or without ``@REV``; None if it is neither.

        The address of a page of the Hub counts as a URL, with a revision as ``/tree/REV``. So does
        ``hf://datasets/ORG/NAME@REV/path`` if the revision is a commit, a version or main.

        Args:
            text: The name or URL.
            bare: Whether a name without a URL is accepted.
        """
        is_url = _URL.match(text) is not None
        if not (bare or is_url):
            return None
        text = text.rstrip("/") if is_url else text
        if (page := _PAGE.match(text)) is not None:
            found = cls(page[1] + unquote(page[3] or ""), unquote(page[2] or "") or None)
        elif (place := _CLIENTS_PLACE.match(text)) is not None:
            found = cls(place[1] + place[3], place[2])
        elif (place := _PLACE.match(text)) is not None:
            found = cls(place[1], place[2])
        else:
            return None
        parts = found.repo_id.split("/")
        return None if "@" in found.repo_id or {".", "..", ""} & {*parts} else found


def is_of_the_hub(url: str) -> bool:
    """Return whether a URL is one of the Hub's client, or the address of a dataset's page."""
    return url.startswith("hf://") or HubName.parse(url, bare=False) is not None


def check_name(name: str) -> None:
    """Refuse a name that is not ``ORG/NAME`` or ``ORG/NAME/path/to/dataset``.

    Raises:
        UsageError: It is neither.
    """
    if HubName.parse(name) != HubName(name):
        raise UsageError(
            f"{name!r} is not the name of a repo.",
            next_step="The name of a repo has the form ORG/NAME, that of a folder in a repo "
            "ORG/NAME/path/to/dataset.",
        )


def repository_of(name: str) -> str:
    """Return a dataset's repository, ``ORG/NAME``."""
    return "/".join(name.split("/")[:2])


def folder_of(name: str) -> str:
    """Return a dataset's folder in its repository; empty if the dataset is the whole repository."""
    return "/".join(name.split("/")[2:])


def in_folder(folder: str, path: str) -> str:
    """Return the path of a dataset's file in the repository."""
    return f"{folder}/{path}" if folder and path else folder or path


def download_command(name: str, revision: str | None, local_dir: str | None) -> str:
    """Return the command of the Hub's client that downloads a dataset.

    Args:
        name: The dataset.
        revision: A tag, branch or commit; None for ``main``.
        local_dir: The target folder, see `downloaded_at`; None for the client's cache.
    """
    words = ["hf", "download", "--repo-type", "dataset", repository_of(name)]
    words += ["--include", f"{folder_of(name)}/*"] if folder_of(name) else []
    words += ["--revision", revision] if revision else []
    words += ["--local-dir", local_dir] if local_dir else []
    return shlex.join(words)


def not_downloaded(name: str, home: Path) -> UsageError:
    """Return the error for a dataset that is not in LeRobot's folder of datasets."""
    folder, local_dir = home / name, home / repository_of(name)
    return UsageError(
        f"The dataset {name} is not on this machine: {folder} does not exist.",
        path=str(folder),
        next_step=f"Download it first: {download_command(name, None, str(local_dir))}",
    )


def downloaded_at(name: str, local_dir: str) -> str:
    """Return the path of a dataset after `download_command`."""
    return in_folder(local_dir, folder_of(name))
