"""Loads a script as a module, without running it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

__all__ = ["SCRIPTS", "loaded_script"]

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


@contextmanager
def loaded_script(name: str) -> Iterator[ModuleType]:
    """Have ``scripts/<name>.py`` as a module for the length of a ``with`` block."""
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))  # it imports its neighbour, as a script does
        patch.setitem(sys.modules, name, module)  # its dataclasses look themselves up
        spec.loader.exec_module(module)
        yield module
