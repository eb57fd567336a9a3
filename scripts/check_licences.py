"""Check the licences of what leconvert depends on, as the installed packages declare them.

    python scripts/check_licences.py

Every package that is reached from leconvert's own requirements and those of its extras counts, as
far as it is installed. A package passes if its SPDX expression, its classifiers or, where it has
neither, its licence field names a licence that lets leconvert be used and handed on as it is.
Libraries inside a wheel, such as the FFmpeg in PyAV's, are not looked at.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_ROOT = Path(__file__).resolve().parents[1]
# Licences that ask for a notice at most, and the weak ones that end at their own files.
_ALLOWED = frozenset({
    "0bsd", "apache-2.0", "bsd-2-clause", "bsd-3-clause", "bsl-1.0", "cc0-1.0", "cnri-python",
    "hpnd", "isc", "mit", "mit-0", "mit-cmu", "mpl-2.0", "psf-2.0", "python-2.0", "unlicense",
    "zlib",
})  # fmt: skip
_CLASSIFIERS = {
    "Apache Software License": "apache-2.0",
    "BSD License": "bsd-3-clause",
    "MIT License": "mit",
    "Mozilla Public License 2.0 (MPL 2.0)": "mpl-2.0",
    "Python Software Foundation License": "psf-2.0",
}
_FIELDS = {
    "apache 2.0": "apache-2.0",
    "bsd": "bsd-3-clause",
    "3-clause bsd license": "bsd-3-clause",
    "bsd 3-clause license": "bsd-3-clause",
}
# The libraries of CUDA come with torch's build for it, under terms of NVIDIA's that let them be
# used and handed on with a program; no conversion needs them.
_OF_NVIDIA = ("cuda-", "nvidia-")


@dataclass(frozen=True, slots=True)
class Declared:
    """The licence that a package declares.

    Attributes:
        name: The package.
        expression: SPDX expression; empty if it has none.
        classifiers: Last parts of its licence classifiers.
        field: The free text; empty if it has none.
    """

    name: str
    expression: str = ""
    classifiers: tuple[str, ...] = ()
    field: str = ""

    @property
    def says(self) -> str:
        """The first of expression, classifiers and licence field that the package has."""
        first_line = self.field.strip().split("\n")[0][:60]
        return self.expression or ", ".join(self.classifiers) or first_line or "nothing"


def declared_by(name: str) -> Declared:
    """Return what an installed package says."""
    about = metadata.metadata(name)
    classifiers = tuple(
        line.rpartition(" :: ")[2]
        for line in about.get_all("Classifier") or []
        if line.startswith("License :: ") and not line.endswith(":: OSI Approved")
    )
    return Declared(
        name, about.get("License-Expression") or "", classifiers, about.get("License") or ""
    )


def is_allowed(declared: Declared, *, is_needed: bool = True) -> bool:
    """Tell whether a package may be depended on, which each installation needs or an extra."""
    if not is_needed and declared.name.startswith(_OF_NVIDIA):
        return True
    if declared.expression:
        return _expression_allowed(declared.expression)
    if declared.classifiers:
        return all(_CLASSIFIERS.get(said) in _ALLOWED for said in declared.classifiers)
    # Some put the whole text of the licence there, whose first line is its name.
    said = declared.field.strip().partition("\n")[0].strip().lower()
    return _FIELDS.get(said, said) in _ALLOWED or (bool(said) and _expression_allowed(said))


def _expression_allowed(expression: str) -> bool:
    """Read an SPDX expression: of OR one part is enough, of AND all are needed.

    An exception that follows WITH only adds permissions.
    """

    def value(word: re.Match[str]) -> str:
        name = word[0].lower()
        return name if name in ("and", "or") else str(name in _ALLOWED)

    text = re.sub(r"\s+with\s+[\w.-]+", "", expression, flags=re.IGNORECASE)
    try:
        return bool(eval(re.sub(r"[^\s()]+", value, text)))  # of True, False, and, or, parentheses
    except (SyntaxError, TypeError):
        return False  # no expression


def reached_from(requirements: Iterable[str]) -> list[str]:
    """Return the installed packages that requirements lead to, sorted."""
    found: set[str] = set()
    asked: set[tuple[str, frozenset[str]]] = set()
    left: list[tuple[str, frozenset[str]]] = [(line, frozenset()) for line in requirements]
    while left:
        line, of = left.pop()
        requirement = Requirement(line)
        marker = requirement.marker
        if marker and not any(marker.evaluate({"extra": extra}) for extra in ("", *of)):
            continue
        name = canonicalize_name(requirement.name)
        wanted = (name, frozenset(requirement.extras))
        if wanted in asked:
            continue
        asked.add(wanted)
        try:
            needs = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # an extra that is not installed here
        found.add(name)
        left += [(need, wanted[1]) for need in needs]
    return sorted(found)


def main() -> int:
    """Check, and name what does not pass."""
    about = tomllib.loads((_ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    needed = reached_from(about["dependencies"])
    optional = [line for extra in about["optional-dependencies"].values() for line in extra]
    names = reached_from([*about["dependencies"], *optional])
    refused = [
        said
        for said in map(declared_by, names)
        if not is_allowed(said, is_needed=said.name in needed)
    ]
    for declared in refused:
        print(f"{declared.name} declares {declared.says}, which is not among the allowed licences")
    print(f"{len(names)} packages, {len(needed)} of them always needed; {len(refused)} refused")
    return 1 if refused else 0


if __name__ == "__main__":
    raise SystemExit(main())
