"""Datasets of the Hub at a glance: those of a user, an organisation or a collection.

Of a dataset no more is read than its tags, the listing of its files and ``meta/info.json``: three
requests, and one more for each thousand files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from leconvert.dataset.formats.v2 import INFO_PATH
from leconvert.model.versions import unreadable
from leconvert.remote.source import find_converted, read_info, resolve_revision
from leconvert.support.errors import HubError, HubUnavailableError, LeconvertError
from leconvert.transfer.client import hub_errors, make_api
from leconvert.transfer.hub import HubStore

_COLLECTION = re.compile(r"(?:hf:/|https?://[^/]+)/collections/([\w.-]+/[\w.-]+)/?\Z")
_OWNER = re.compile(r"(?:hf:/|https?://[^/]+)/(?:datasets/)?([\w.-]+)/?\Z")


@dataclass(frozen=True, slots=True)
class HubGroup:
    """Datasets that belong together on the Hub.

    Attributes:
        name: The user or organisation, or the collection as ``OWNER/SLUG``.
        is_collection: Which of the two.
    """

    name: str
    is_collection: bool


def parse_group(text: str) -> HubGroup | None:
    """Return what ``hf://ORG``, ``hf://collections/ORG/SLUG`` or such a page's address names."""
    if found := _COLLECTION.match(text):
        return HubGroup(found[1], is_collection=True)
    if found := _OWNER.match(text):
        return HubGroup(found[1], is_collection=False)
    return None


def datasets_of(group: HubGroup) -> list[str]:
    """Return the names of a group's dataset repositories: those that this token can see, sorted."""
    from huggingface_hub.errors import HfHubHTTPError

    api = make_api()
    with hub_errors(group.name):
        if not group.is_collection:
            return sorted({found.id for found in api.list_datasets(author=group.name)})
        try:
            items = api.get_collection(group.name).items
        except HfHubHTTPError as error:
            if error.response.status_code != 404:
                raise
            raise HubError(
                f"{group.name} is no collection on the Hub, or this token may not see it.",
                next_step="Copy the address of the collection's page.",
            ) from error
        return sorted({item.item_id for item in items if item.item_type == "dataset"})


@dataclass(frozen=True, slots=True)
class HubGlance:
    """What a dataset on the Hub says of itself.

    Attributes:
        repo_id: ``ORG/NAME``.
        revision: The revision that would be converted; empty where there is none.
        commit: Its commit; likewise.
        version: Its version, or that of the tag ``v3.x`` where the Hub has it converted already;
            None where it has no ``meta/info.json`` that says it.
        info: What ``meta/info.json`` says.
        files: Files of the repo.
        size_bytes: Their bytes.
        problem: Why it cannot be read; None where it can.
    """

    repo_id: str
    revision: str = ""
    commit: str = ""
    version: str | None = None
    info: Mapping[str, Any] = field(default_factory=dict)
    files: int = 0
    size_bytes: int = 0
    problem: str | None = None

    @property
    def episodes(self) -> int | None:
        """How many episodes it says that it has; None where it does not say."""
        with suppress(KeyError, TypeError, ValueError):
            return int(self.info["total_episodes"])
        return None


def glance_at(
    repo_id: str, revision: str | None = None, *, endpoint: str | None = None
) -> HubGlance:
    """Look at a dataset; what is wrong with it is told, not raised."""
    try:
        if revision is None and (done := find_converted(repo_id, endpoint=endpoint)) is not None:
            found = done
        else:
            found = resolve_revision(repo_id, revision, endpoint=endpoint)
        sizes = {file.path: file.size_bytes for file in found.repo.list_files()}
        info: Any = {}
        if INFO_PATH in sizes:
            info = read_info(HubStore(found.repo, tries=1))
    except HubUnavailableError:
        raise
    except LeconvertError as error:
        return HubGlance(repo_id, problem=error.message)
    version = info.get("codebase_version")
    wrong = unreadable(info, f"{repo_id} at {found.revision}") if info else None
    return HubGlance(
        repo_id,
        found.revision,
        found.repo.commit,
        version if isinstance(version, str) else None,
        info,
        len(sizes),
        sum(sizes.values()),
        problem=wrong.message if wrong else None,
    )
