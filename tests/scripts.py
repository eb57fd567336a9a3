"""Loads a script as a module, without running it."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

__all__ = ["SCRIPTS", "loaded_script"]

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


@contextmanager
def loaded_script(name: str) -> Iterator[ModuleType]:
    """Have ``scripts/<name>.py`` as a module for the length of a ``with`` block.

    A case of the benchmarks is called by its module, such as ``benches.convert``.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))  # it imports its neighbour, as a script does
        yield importlib.import_module(name)
