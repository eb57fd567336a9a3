"""Packages that are imported when first used, and the command that installs a missing one.

The command installs it into the very Python that runs this program.
``pip`` on the PATH may belong to another Python, and an environment made by uv has no pip. An extra
is installed by the names of its packages. So it works alike whether leconvert came from an index, a
file or a checkout, and leconvert itself does not change.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from leconvert.support.errors import InstallationError
from leconvert.support.machine import check_platform

_OURSELVES = "leconvert"
# The checkout, if this module is in one; for an installed package the path is meaningless.
_CHECKOUT = Path(__file__).parents[3]


def lazy_names(
    package: str, names: Mapping[str, Sequence[str]], *, title: str | None = None
) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package.

    Args:
        package: The package.
        names: The names that each module offers; a module of the package without its prefix.
        title: The part of leconvert that needs torch, for the error if torch is missing.
    """
    full_name = {
        name: module if module.startswith("leconvert.") else f"{package}.{module}"
        for module, offered in names.items()
        for name in offered
    }

    def get(name: str) -> Any:
        if name not in full_name:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        check_platform()
        try:
            module = import_module(full_name[name])
        except ModuleNotFoundError as error:
            if title is None or error.name != "torch":
                raise
            raise missing_package(f"{title} needs torch", "probe") from error
        value = getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    return get


class _LazyModule:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        value = getattr(import_module(self._name), name)
        setattr(self, name, value)
        return value


def lazy_module(name: str) -> Any:
    """Return a stand-in for a module that is expensive to import, such as NumPy.

    ``leconvert convert --help`` reads the classes of options too, but computes nothing.
    """
    return _LazyModule(name)


def missing_package(what: str, extra: str, otherwise: str = "") -> InstallationError:
    """Return the error for a part of leconvert that needs a package of an extra.

    Args:
        what: Names the part and the package: "Plots need matplotlib".
        extra: The extra that brings the package.
        otherwise: Another way out: ", or leave --plots out".
    """
    return InstallationError(
        f"{what}, which is not installed.",
        next_step=f"Run `{command_for_extra(extra)}`{otherwise}.",
    )


def command_for_extra(extra: str) -> str:
    """Return the shell command that installs the packages of an extra."""
    return install_command(*_requirements_of(extra))


def install_command(*requirements: str, again: bool = False) -> str:
    """Return the shell command that installs packages into the Python that runs this.

    Args:
        *requirements: Packages, such as ``torch>=2.7``.
        again: Whether to reinstall existing packages.
    """
    if Path(sys.prefix).parent.name.startswith("archive-v"):
        # uvx made this environment in uv's cache. It must not change; uvx makes another one.
        words = ["uvx"] if shutil.which("uvx") else [_uv(), "tool", "run"]
        words += ["--refresh"] if again else []
        words += ["--from", _origin()]
        words += [word for requirement in requirements for word in ("--with", requirement)]
        return shlex.join([*words, _OURSELVES])
    words = [_uv(), "pip", "install", "--python", sys.executable]
    if find_spec("pip") is not None:
        words = [sys.executable, "-m", "pip", "install"]
    return shlex.join([*words, *(["--force-reinstall"] if again else []), *requirements])


def _uv() -> str:
    if shutil.which("uv"):
        return "uv"
    # In a checkout, use the uv of its script. Elsewhere uv itself gives its path to the programs
    # that it runs.
    of_checkout = _CHECKOUT / "scripts" / "uv"
    return str(of_checkout) if of_checkout.exists() else os.environ.get("UV", "uv")


def _origin() -> str:
    """Return the origin of this installation of leconvert, in uvx's form."""
    from importlib import metadata
    from urllib.parse import unquote

    told = metadata.distribution(_OURSELVES).read_text("direct_url.json")
    if told is None:
        return _OURSELVES
    origin = json.loads(told)
    is_repository = "vcs_info" in origin
    return ("git+" if is_repository else "") + unquote(origin["url"].removeprefix("file://"))


def _requirements_of(extra: str) -> list[str]:
    from importlib import metadata

    from packaging.requirements import Requirement

    try:
        lines = metadata.requires(_OURSELVES) or []
    except metadata.PackageNotFoundError:
        return [f"{_CHECKOUT}[{extra}]"]  # it runs from its sources
    wanted = []
    for requirement in map(Requirement, lines):
        marker, requirement.marker = requirement.marker, None
        if marker and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""}):
            wanted.append(str(requirement))
    return wanted
