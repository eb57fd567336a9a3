"""The matrix of a benchmark: where the files are, what a sample is, and what decodes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from leconvert.errors import UsageError
from leconvert.probe.modes import MODES
from leconvert.probe.scenarios import SOURCES, Source

__all__ = ["Matrix", "Places", "parse_matrix", "parse_places"]

Places = Mapping[Source, str]
"""The folder or URL of each source, as far as it is known."""

_DEVICES = ("cpu", "cuda")


@dataclass(frozen=True, slots=True)
class Matrix:
    """Every combination of where the files are, what a sample is, and what decodes it."""

    sources: tuple[Source, ...]
    modes: tuple[str, ...]
    devices: tuple[str, ...]


def parse_matrix(sources: str, modes: str, devices: str) -> Matrix:
    """Return the matrix that three comma-separated lists span.

    Raises:
        UsageError: A list is empty or names something unknown.
    """
    return Matrix(
        sources=tuple(
            source for source in SOURCES if source in _listed("sources", sources, SOURCES)
        ),
        modes=_listed("modes", modes, MODES),
        devices=_listed("devices", devices, _DEVICES),
    )


def parse_places(given: Sequence[str], *, repo_id: str | None, root: str | None) -> Places:
    """Return where each source's files are, as far as that is known.

    Args:
        given: ``SOURCE=URL`` or ``SOURCE=FOLDER``, one a source.
        repo_id: The dataset's name on the Hub.
        root: The local folder.

    Raises:
        UsageError: A source is unknown.
    """
    places: dict[Source, str] = {}
    if repo_id:
        places["hub"] = f"hf://datasets/{repo_id}"
        places["bucket"] = f"hf://buckets/{repo_id}"
    if root:
        places["local"] = root
    for text in given:
        name, equals, place = text.partition("=")
        label = next((source for source in SOURCES if source == name.replace("-", "_")), None)
        if label is None or not equals or not place:
            raise UsageError(
                f"--root-of {text} does not say where a source is.",
                next_step=f"Write SOURCE=URL, with one of {', '.join(SOURCES)}.",
            )
        places[label] = place
    if "bucket" in places:  # warming is a setting of the server: the address stays
        places.setdefault("warmed_bucket", places["bucket"])
    return places


def _listed(what: str, text: str, known: Sequence[str]) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    spelled = {name.replace("-", "_"): name for name in known}
    found = [spelled.get(name.replace("-", "_")) for name in names]
    if not found or None in found:
        raise UsageError(
            f"--{what} {text} is no list of {what}.",
            next_step=f"Choose among {', '.join(known)}.",
        )
    return tuple(dict.fromkeys(name for name in found if name is not None))
