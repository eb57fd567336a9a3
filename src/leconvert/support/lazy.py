"""Modules that are imported when one of their names is first used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from leconvert.support.machine import check_platform


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
            from leconvert.support.extras import missing_package

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
