"""Which packages leconvert wants, by what it says of itself, and which of them are here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

__all__ = ["Package", "declared_requirements", "packages_of"]

_OURSELVES = "leconvert"


@dataclass(frozen=True, slots=True)
class Package:
    """One package that leconvert or an extra of it wants.

    Attributes:
        name: Its name.
        wants: Which versions, such as ``>=14``; empty for any.
        extras: The extras that want it; empty where every installation does.
        version: The one that is installed; None if it is missing.
        fits: Whether that version is wanted.
    """

    name: str
    wants: str
    extras: tuple[str, ...]
    version: str | None
    fits: bool

    @property
    def is_needed(self) -> bool:
        """Whether nothing can be converted without it."""
        return not self.extras

    @property
    def remedy(self) -> str | None:
        """The command that installs it; None where it is there and fits."""
        if self.fits:
            return None
        what = f"{_OURSELVES}[{self.extras[0]}]" if self.extras else _OURSELVES
        return f"pip install --upgrade '{what}'" if self.version else f"pip install '{what}'"

    def as_record(self) -> dict[str, Any]:
        """Return a JSON-serialisable mapping."""
        return {
            "name": self.name,
            "wants": self.wants,
            "extras": list(self.extras),
            "version": self.version,
            "fits": self.fits,
            "remedy": self.remedy,
        }


def declared_requirements() -> tuple[list[str], list[str]]:
    """Return what the installed leconvert requires, and its extras; nothing if it is not installed.

    It is not installed where it runs from its sources alone.
    """
    try:
        about = metadata.metadata(_OURSELVES)
    except metadata.PackageNotFoundError:
        return [], []
    return about.get_all("Requires-Dist") or [], about.get_all("Provides-Extra") or []


def packages_of(
    requirements: Iterable[str],
    extras: Sequence[str],
    version_of: Callable[[str], str | None],
) -> tuple[Package, ...]:
    """Return the packages that requirements name: needed ones first, else in their order.

    Args:
        requirements: As in the metadata of a distribution.
        extras: The names of its extras.
        version_of: Returns a package's installed version, None if it is missing.
    """
    from packaging.requirements import Requirement

    wants: dict[str, str] = {}
    wanted_by: dict[str, list[str]] = {}
    for text in requirements:
        requirement = Requirement(text)
        marker = requirement.marker
        # The empty name stands for every installation.
        by = [
            extra for extra in ("", *extras) if marker is None or marker.evaluate({"extra": extra})
        ]
        if by:  # else it is for another platform or Python
            wants.setdefault(requirement.name, str(requirement.specifier))
            wanted_by.setdefault(requirement.name, []).extend(by)
    found = [
        _package(name, wants[name], () if "" in by else tuple(by), version_of(name))
        for name, by in wanted_by.items()
    ]
    return tuple(sorted(found, key=lambda package: not package.is_needed))


def _package(name: str, wants: str, extras: tuple[str, ...], version: str | None) -> Package:
    from packaging.specifiers import SpecifierSet

    fits = version is not None and SpecifierSet(wants).contains(version, prereleases=True)
    return Package(name, wants, extras, version, fits)
