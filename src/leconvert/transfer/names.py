"""How datasets on the Hub are called.

A dataset is a repository, or a folder of one: ``ORG/NAME`` or ``ORG/NAME/path/to/dataset``. Such a
name stands wherever leconvert says ``repo_id``; here alone it is taken apart.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from urllib.parse import unquote

_REPO = r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*"
_NAME = rf"{_REPO}(?:/[^/@]+)*"
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_PLACE = re.compile(rf"(?:hf://datasets/)?({_NAME})(?:@([^@\s]+))?\Z")
# As the Hub's own client writes it. With other revisions the begin of the folder is not certain.
_CLIENTS_PLACE = re.compile(
    rf"hf://datasets/({_REPO})@([0-9a-f]{{40}}|main|v[0-9][0-9.]*)(/[^@]+)\Z"
)
_PAGE = re.compile(
    rf"https://(?:huggingface\.co|hf\.co)/datasets/({_REPO})(?:/tree/([^/\s]+)((?:/[^/\s]+)*))?\Z"
)


@dataclass(frozen=True, slots=True, order=True)
class HubName:
    """A dataset on the Hub, as a user names it.

    Attributes:
        repo_id: ``ORG/NAME``, or ``ORG/NAME/path/to/dataset``.
        revision: A tag, branch or commit; empty for the newest tag ``v2.x``, else ``main``.
    """

    repo_id: str
    revision: str = ""

    def __str__(self) -> str:
        return f"hf://datasets/{self.repo_id}" + (f"@{self.revision}" if self.revision else "")

    @property
    def folder(self) -> str:
        """The dataset's folder in its repository; empty where it is the repository itself."""
        return folder_of(self.repo_id)

    @classmethod
    def parse(cls, text: str, *, bare: bool = True) -> HubName | None:
        """Return what a name or a URL of a dataset, with or without ``@REV``, names, else None.

        The address of a page of the Hub is such a URL, too, with a revision as ``/tree/REV``, and
        so is ``hf://datasets/ORG/NAME@REV/path`` where the revision is a commit, a version or main.

        Args:
            bare: Whether it may be no URL.
        """
        is_url = _URL.match(text) is not None
        if not (bare or is_url):
            return None
        text = text.rstrip("/") if is_url else text
        if (page := _PAGE.match(text)) is not None:
            found = cls(page[1] + unquote(page[3] or ""), unquote(page[2] or ""))
        elif (place := _CLIENTS_PLACE.match(text)) is not None:
            found = cls(place[1] + place[3], place[2])
        elif (place := _PLACE.match(text)) is not None:
            found = cls(place[1], place[2] or "")
        else:
            return None
        parts = found.repo_id.split("/")
        return None if "@" in found.repo_id or {".", "..", ""} & {*parts} else found


def repository_of(name: str) -> str:
    """Return the repository that a dataset is in, ``ORG/NAME``."""
    return "/".join(name.split("/")[:2])


def folder_of(name: str) -> str:
    """Return the dataset's folder in its repository; empty where it is the repository itself."""
    return "/".join(name.split("/")[2:])


def in_folder(folder: str, path: str) -> str:
    """Return the path in the repository of a dataset's file."""
    return f"{folder}/{path}" if folder and path else folder or path


def download_command(name: str, revision: str | None, local_dir: str | None) -> str:
    """Return the command of the Hub's client that downloads a dataset.

    Args:
        name: The dataset.
        revision: A tag, branch or commit; None for ``main``.
        local_dir: Where it goes to, see `downloaded_at`; None for the client's cache.
    """
    words = ["hf", "download", "--repo-type", "dataset", repository_of(name)]
    words += ["--include", f"{folder_of(name)}/*"] if folder_of(name) else []
    words += ["--revision", revision] if revision else []
    words += ["--local-dir", local_dir] if local_dir else []
    return shlex.join(words)


def downloaded_at(name: str, local_dir: str) -> str:
    """Return where a dataset lies after `download_command`."""
    return in_folder(local_dir, folder_of(name)) if folder_of(name) else local_dir
